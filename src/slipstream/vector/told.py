"""What native copies say besides, as the block and their processes have it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.vector.info_form import mask_of
from slipstream.vector.info_table import APART, NOTHING, InfoTable

if TYPE_CHECKING:
    from slipstream.vector.native import NativeEnv

Final = tuple[Any, dict[str, Any]]
"""The last observation of an episode, None where it lies in the block, and its info."""
Told = tuple[int, dict[str, Any] | None, Final | None]
"""A row, what its copy said, and how its episode ended, where that does not lie in the block."""


class ToldInfos:
    """Reads infos of one step. Those of numbers alone lie in the block; others are asked for.

    Copies that may be writing at this moment have said nothing, until the next step.

    Args:
        env: whose copies' infos.
    """

    def __init__(self, env: NativeEnv) -> None:
        self._env, self._table = env, InfoTable()
        self._handed: dict[int, tuple[dict[str, Any] | None, Final | None]] | None = None
        self._hidden: NDArray[np.bool_] | bool = False

    def forget(self) -> None:
        """Another step has been, or will be."""
        self._handed, self._hidden = None, False

    def final(self, row: int) -> Final | None:
        """How the episode of a copy ended, where that does not lie in the block."""
        handed = self._apart().get(row)
        return None if handed is None else handed[1]

    def each(self) -> list[dict[str, Any]]:
        """The newest info of each copy, [E], fresh dicts."""
        env = self._env
        infos: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self._apart()  # first: what a worker has to say is lost if it dies over the question
        told = self._shown("told")
        for row in np.flatnonzero(told).tolist():
            infos[row] = self._read("info", row, int(told[row]))
        return infos

    def finals(self) -> list[dict[str, Any] | None]:
        """The last info of episodes that ended at this step, [E], fresh dicts; None elsewhere."""
        env = self._env
        infos: list[dict[str, Any] | None] = [None] * env.num_envs
        self._apart()
        told = env.arrays["told_last"]
        for row in np.flatnonzero(self._shown("kept")).tolist():
            infos[row] = self._read("last_info", row, int(told[row]))
        return infos

    def _read(self, name: str, row: int, code: int) -> dict[str, Any]:
        if code == NOTHING:
            return {}
        if code == APART:
            info, final = self._apart()[row]
            return dict((info if name == "info" else final and final[1]) or {})
        return self._table.read(self._env.arrays[name], row, code)

    def batch(self) -> dict[str, Any]:
        """All of it in Gymnasium's form, see `batch_infos`."""
        batch: dict[str, Any] = {}
        arrays = self._env.arrays
        if not (arrays["told"].any() or arrays["kept"].any()):
            return batch
        table, handed = self._table, self._apart()
        told = self._shown("told")
        infos = {row: info for row, (info, _) in handed.items() if info is not None}
        parts = [
            (int(own[0]), 1, add)
            for own, add in table.parts(np.flatnonzero(told), told, arrays["info"], infos)
        ]
        kept, last = np.flatnonzero(self._shown("kept")), arrays["told_last"]
        finals = {row: final[1] for row, (_, final) in handed.items() if final is not None}
        for own, add in table.parts(kept, last, arrays["last_info"], finals):
            parts.append((int(own[0]), 0, partial(self._add_finals, rows=own, add=add)))
        for _, _, add in sorted(parts, key=lambda part: part[:2]):
            add(batch)
        return batch

    def _add_finals(
        self, batch: dict[str, Any], rows: NDArray[np.int64], add: Callable[[dict[str, Any]], None]
    ) -> None:
        """How the episodes of some copies ended, before what their next ones begin with."""
        size = self._env.num_envs
        finals = batch.setdefault("final_obs", np.full(size, None, dtype=object))
        for row in rows.tolist():
            finals[row] = self._env.final_of(row)
        mask_of(batch, "final_obs", size)[rows] = True
        add(batch.setdefault("final_info", {}))
        mask_of(batch, "final_info", size)[rows] = True

    def _shown(self, name: str) -> NDArray[Any]:
        array = self._env.arrays[name]
        self._hidden = self._hidden | self._env.writing
        return np.where(self._hidden, array.dtype.type(0), array) if self._hidden.any() else array

    def _apart(self) -> dict[int, tuple[dict[str, Any] | None, Final | None]]:
        """What copies could not write down, by row; asked for once a step."""
        if self._handed is None:
            self._handed = {}
            asked = self._shown("told") == APART
            asked |= (self._shown("kept") != 0) & (self._env.arrays["told_last"] == APART)
            if asked.any():
                for row, info, final in self._env.ask_told(asked, self._table.signatures):
                    self._handed[row] = info, final
                    self._table.note(info)
                    self._table.note(final and final[1])
                self._shown("told")  # workers that were lost over it
        return self._handed
