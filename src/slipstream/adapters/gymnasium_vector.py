"""Gymnasium's `VectorEnv` over copies of a kernel, or of any Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.copies import FaceCopies, FaceStep, check_one_player, each, make_batch
from slipstream.adapters.gymnasium_face import VectorFace, mode_of
from slipstream.adapters.gymnasium_foreign import ForeignVectorFace
from slipstream.core.errors import ConfigError
from slipstream.gym.gymnasium_environment import (
    GymnasiumKind,
    maker,
    wrappers_of,
)
from slipstream.training.environments.factory import kind_of


class KernelVectorFace(VectorFace):
    """Copies of a kernel, on any backend.

    Infos hold what there is to say, each key with its ``_key`` mask: `metrics`, the kernel's, where
    an episode ended; `episode` (``r``, ``l``) there, too, if asked for; `action_mask` bool
    [E, n] at every step where the kernel has a mask; `valid` where a transition is not real. Under
    SAME_STEP the first two stand in `final_info`, beside `final_obs`.

    Args:
        batch: the copies.
        statistics: tell `episode`, as `RecordEpisodeStatistics` would: leave that wrapper out then.
    """

    def __init__(self, batch: FaceCopies, *, statistics: bool = False) -> None:
        check_one_player(batch, "a VectorEnv has")
        super().__init__(
            batch.num_envs, batch.observation_space, batch.action_space, batch.autoreset
        )
        self.batch, self.statistics = batch, statistics

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes.

        Args:
            seed: copy e begins the stream of seed + e, or of the e-th seed of a list; None: each
                goes on with its own.
            options: ``{"reset_mask": bool [E]}`` chooses copies; the others stay as they are.
        """
        self._check_open()
        seeds, selected = self._seeds(seed), self._selected(options)
        if options:
            raise ConfigError(
                f"{self.batch.name} has no reset options {sorted(options)}: a kernel takes "
                "`reset_mask` only; its settings are given where it is made."
            )
        if isinstance(seed, (int, np.integer)):
            super().reset(seed=int(seed))
        obs = self.batch.reset(seeds, selected)
        chosen = np.ones(self.num_envs, np.bool_) if selected is None else selected
        return obs, self._allowed(chosen)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Steps every copy; all arrays are fresh.

        Raises:
            ActionError: wrong number, shape or dtype, or not in the action space.
            UnreadyError: a copy was not reset, or has ended under DISABLED.
        """
        self._check_open()
        came = self.batch.step(actions)
        infos = self._infos(came) if len(came.ended) else {}
        if came.valid is not None:
            infos |= {"valid": came.valid, "_valid": ~came.valid}
        if self.batch.mask is not None:
            # NEXT_STEP ignores the next action of a copy that has ended.
            next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
            ended = came.terminated | came.truncated
            infos |= self._allowed(~ended if next_step else np.ones(self.num_envs, np.bool_))
        return came.obs, came.reward.astype(np.float64), came.terminated, came.truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the copies."""
        self.batch.close()

    def _infos(self, came: FaceStep) -> dict[str, Any]:
        """What there is to say of the episodes that ended."""
        told: dict[str, Any] = {}
        if self.statistics:
            told |= self._column(
                "episode", came, {"r": came.episodes.ret, "l": came.episodes.length}
            )
        if came.episodes.metrics:
            told |= self._column("metrics", came, came.episodes.metrics)
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return told
        finals = np.full(self.num_envs, None, dtype=object)
        for e, obs in zip(came.ended.tolist(), each(came.finals), strict=False):
            finals[e] = obs
        ended = came.terminated | came.truncated
        return {
            "final_obs": finals,
            "_final_obs": ended,
            "final_info": told,
            "_final_info": ended.copy(),
        }

    def _column(
        self, name: str, came: FaceStep, values: Mapping[str, NDArray[Any]]
    ) -> dict[str, Any]:
        """Numbers of the ended episodes as arrays [E] with their masks."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[came.episodes.e] = True
        inner: dict[str, Any] = {}
        for key, column in values.items():
            inner[key] = np.zeros((self.num_envs, *column.shape[1:]), column.dtype)
            inner[key][came.episodes.e] = column
            inner[f"_{key}"] = mask.copy()
        return {name: inner, f"_{name}": mask}

    def _allowed(self, chosen: NDArray[np.bool_]) -> dict[str, Any]:
        mask = self.batch.mask
        return {} if mask is None else {"action_mask": mask.copy(), "_action_mask": chosen.copy()}


def make_vec(
    target: str | Mapping[str, Any],
    num_envs: int = 1,
    *,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    backend: str = "auto",
    workers: int | None = None,
    **options: Any,
) -> VectorFace:
    """Copies as Gymnasium's `VectorEnv`; what ``gym.make_vec("slipstream/...")`` calls.

    Args:
        target: as for `slipstream.make_vec`: a kernel's name or file, or ``gym:ID``.
        num_envs: E.
        autoreset_mode: NextStep, SameStep or Disabled.
        backend: of a kernel, see `make_batch`; of ``gym:ID`` process (auto) or serial.
        workers: processes of the backend `process`.
        **options: of a kernel `split`, `statistics` (see `KernelVectorFace`) and the fields of its
            Config; of ``gym:ID`` its `kwargs` and `wrappers`, and options of `ForeignVectorFace`.
    """
    if isinstance(target, str) and type(kind_of(target)) is GymnasiumKind:
        wrappers = wrappers_of({"wrappers": options.pop("wrappers", ())})
        return ForeignVectorFace(
            [maker(target, wrappers)] * num_envs,
            autoreset_mode=autoreset_mode,
            backend="process" if backend == "auto" else backend,
            workers=workers,
            **options,
        )
    statistics, split = options.pop("statistics", False), options.pop("split", "train")
    batch = make_batch(
        target,
        num_envs,
        autoreset=mode_of(autoreset_mode),
        backend=backend,
        split=split,
        workers=workers,
        settings=options,
        foreign=False,
    )
    return KernelVectorFace(batch, statistics=statistics)
