"""A replay without observations: the STATE fields that a kernel shows them of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import render
from slipstream.jit.memory import zeros
from slipstream.kernels.compile import allows_text, checked_parts, make_data_text
from slipstream.kernels.copies import KernelVectorEnv
from slipstream.kernels.kernel import Kernel, Loaded
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import Finals, VectorEnv
from slipstream.rl.experience.compiled import of_float32, of_int64
from slipstream.rl.experience.observed import observed_fields
from slipstream.rl.experience.replay import shown
from slipstream.rl.experience.replay.compiled import BATCH, RING, writing
from slipstream.rl.experience.replay.gather import Batch
from slipstream.rl.experience.replay.ring import Ring
from slipstream.rl.experience.replay.storage import ReplayLoops, Storage
from slipstream.rl.experience.rollout import Rollout

_NO_OBS = np.zeros((0, 0), np.float32)


class Kept(NamedTuple):
    """What is kept of an observation.

    Attributes:
        dtype: of a record with the fields f0, f1, ...
        names: the STATE field of each; None is the number of the Params record.
    """

    dtype: np.dtype[Any]
    names: tuple[str | None, ...]


def kept_of(kernel: Kernel, spec: Spec) -> Kept | None:
    """What is kept; None where the kernel cannot show an observation again from a part."""
    observed = observed_fields(kernel)
    if observed is None or spec.players > 1:
        return None
    fields: list[tuple[str | None, np.dtype[Any]]] = [
        (name, kernel.STATE[name]) for name in observed
    ]
    fields.append((None, np.dtype("i4")))
    fields.sort(key=lambda field: -field[1].base.itemsize)  # nothing lies across its own size
    dtype = np.dtype([(f"f{i}", kind) for i, (_, kind) in enumerate(fields)])
    return Kept(dtype, tuple(name for name, _ in fields))


def kept_bytes(kernel: Kernel, loaded: Loaded, spec: Spec) -> int | None:
    """Of one observation; None where it cannot be shown again."""
    kept = kept_of(kernel.fitted(loaded), spec)
    return None if kept is None else kept.dtype.itemsize


class KernelFields(Storage):
    """Fields of a kernel's records; its own `observe` and `mask` show the rest again.

    Args:
        envs: the copies, in consecutive slices of E.
        slots: S of each ring.
    """

    masks = False

    def __init__(self, envs: Sequence[VectorEnv], slots: int) -> None:
        self._envs = [cast(KernelVectorEnv, env) for env in envs]
        first = self._envs[0]
        kept = kept_of(first.kernel, first.spec)
        assert kept is not None
        dtype = kept.dtype
        edges = np.cumsum([0, *(env.num_envs for env in envs)]).tolist()
        self._ranges = list(itertools.pairwise(edges))
        self._kept = zeros((edges[-1], slots), dtype)
        self.raw = self._kept.view(np.uint8).reshape(edges[-1], slots, dtype.itemsize)
        self._first = np.concatenate([env.first_records for env in self._envs])
        self._scratch = np.zeros(1, first.kernel.STATE)
        for env in self._envs:
            env.keep_records()
        self._loops = _compile(first, kept, self._store(0))

    @staticmethod
    def fits(envs: Sequence[VectorEnv]) -> bool:
        """Whether all copies are a kernel's that can show an observation again from a part."""
        return all(
            isinstance(env, KernelVectorEnv) and kept_of(env.kernel, env.spec) is not None
            for env in envs
        )

    @staticmethod
    def bytes_of(envs: Sequence[VectorEnv]) -> int:
        """Bytes that one observation takes."""
        env = cast(KernelVectorEnv, envs[0])
        size = kept_bytes(env.kernel, env.loaded, env.spec)
        assert size is not None
        return size

    def _store(self, i: int, final: NDArray[Any] | None = None) -> tuple[Any, ...]:
        """What the loops take besides the ring, for slice i of the copies."""
        env = self._envs[i]
        records = (env.state, env.book, env.final_records if final is None else final)
        shared = (tuple(env.loaded.data), env.params, self._first, self._kept, self._scratch)
        return (*shared, *records)

    def begin(self, ring: Ring, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        for i, (lo, hi) in enumerate(self._ranges):
            self._loops["begin"](ring, self._store(i), lo, hi)

    def write(
        self,
        ring: Ring,
        rollout: Rollout,
        t: int,
        mask: NDArray[np.bool_],
        finals: Finals,
        final_of: NDArray[np.int64],
    ) -> None:
        for i, (lo, hi) in enumerate(self._ranges):
            self._loops["write"](
                *(ring, self._store(i, finals.records), lo, hi, rollout.actions[t]),
                *(rollout.reward[t], rollout.terminated[t], rollout.truncated[t]),
                *(rollout.valid[t], _NO_OBS, mask, _NO_OBS, final_of),
            )

    def gather(
        self, ring: Ring, m: int, index: NDArray[np.int64], n: int, gamma: float, batch: Batch
    ) -> None:
        self._loops["gather"](ring, self._store(0), m, index, n, gamma, batch)

    def elsewhere(self, ring: Ring, obs: NDArray[Any]) -> NDArray[np.bool_]:
        return np.zeros(len(obs), np.bool_)  # a kernel's copies come back exactly

    @property
    def loops(self) -> ReplayLoops:
        """Its `write` is for copies of one slice."""
        return ReplayLoops(self._loops["gather"], self._loops["write"], self._store(0))


def _compile(env: KernelVectorEnv, kept: Kept, store: tuple[Any, ...]) -> dict[str, Any]:
    """The functions of `shown.py` for one kernel."""
    kernel, spec = env.kernel, env.spec
    functions: dict[str, Any] = {one.__name__: one for one in shown.FUNCTIONS}
    functions["observe"] = kernel.observe
    if kernel.mask is not None:
        functions["mask"] = kernel.mask
    entries: list[Any] = [shown.gather, shown.begin, shown.write]
    shape = spec.observation_shape
    shaped = len(shape) > 1 and spec.observation_dtype == np.float32
    text = "\n\n\n".join(
        [
            "from typing import Any",
            "\n".join(make_data_text(kernel)),
            *_records_text(kernel, kept),
            "\n".join(_look_text(kernel, spec)),
            render.source_of([shown.show_place, *entries]),
        ]
    )
    action = of_float32(2) if spec.action_dtype == np.float32 else of_int64(2)
    batch = BATCH
    if spec.observation_dtype == np.uint8:
        pixels = np.zeros((1, *spec.observation_shape), np.uint8)
        batch = batch._replace(obs=pixels, obs_next=pixels)
    return render.compile_module(
        f"{kernel.name}_replay",
        text + "\n",
        {
            "gather": (RING, store, 0, of_int64(1), 1, 1.0, batch),
            "begin": (RING, store, 0, 1),
            "write": writing(action, store),
        },
        {name: cast(FunctionType, function) for name, function in functions.items()},
        {"Data": kernel.Data, "SHAPED": shaped, "SHAPE": shape if shaped else ()},
        inline=False,
        checked=checked_parts(kernel) & functions.keys(),
    )


def _records_text(kernel: Kernel, kept: Kept) -> list[str]:
    """`keep`, `recall` and `which_of`: between whole records and what is kept of them."""
    keep, recall, which = ["def keep(s, which, kept):"], ["def recall(kept, s):"], []
    for number, name in enumerate(kept.names):
        if name is None:
            keep.append(f"    kept.f{number} = which")
            which = ["def which_of(kept):", f"    return kept.f{number}"]
            continue
        shape = kernel.STATE[name].shape
        for axis, size in enumerate(shape):
            loop = f"{'    ' * (axis + 1)}for i{axis} in range({size}):"
            keep.append(loop)
            recall.append(loop)
        indent = "    " * (len(shape) + 1)
        place = ", ".join(f"i{axis}" for axis in range(len(shape)))
        at = f"[{place}]" if place else ""
        keep.append(f"{indent}kept.f{number}{at} = s.{name}{at}")
        recall.append(f"{indent}s.{name}{at} = kept.f{number}{at}")
    return ["\n".join(lines) for lines in (keep, [*recall, "    pass"], which)]


def _look_text(kernel: Kernel, spec: Spec) -> list[str]:
    """`look`: where an episode was cut, a kernel need not allow anything; then all is."""
    if kernel.mask is None:
        return ["def look(s, p, d, masks, b):", "    pass"]
    return [
        *allows_text(spec),
        "",
        "",
        "def look(s, p, d, masks, b):",
        "    mask(s, p, d, masks[b])",
        "    if not allows(masks[b]):",
        f"        for i in range({spec.choices}):",
        "            masks[b, i] = True",
    ]
