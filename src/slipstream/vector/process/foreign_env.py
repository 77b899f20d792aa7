"""Gymnasium environments in worker processes, with the trajectories of the serial backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import Spec
from slipstream.vector.foreign import name_of
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv, log_dtype, log_shape
from slipstream.vector.loop import RESET
from slipstream.vector.process.crowd import Crowd
from slipstream.vector.process.faults import FaultPolicy
from slipstream.vector.process.job import Foreign, registered
from slipstream.vector.process.process_env import ProcessVectorEnv
from slipstream.vector.process.scheduler import Scheduler
from slipstream.vector.process.worker import BEGIN, REPLAY
from slipstream.vector.vector_env import blank


class ForeignProcessEnv(ProcessVectorEnv):
    """Copies of a foreign environment; seeds and episodes are those of `GymnasiumVectorEnv`.

    Args:
        env: an id (``"module:ID"``), or a function or lambda that makes one when it is called. An
            id must be registered by the import of its module, of Gymnasium, or in this process by
            something that can be pickled; what a function reaches must be importable by workers,
            or belong to the main program.
        seeds, indices: as for `ProcessVectorEnv`.
        kwargs: keyword arguments of the environment.
        spec: of it, where it is known; else one copy is made here to look.
        at_end, limit: as for `GymnasiumVectorEnv`.
        workers, method, policy, crowd, scheduler: as for `ProcessVectorEnv`.
    """

    def __init__(
        self,
        env: Any,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        kwargs: Mapping[str, Any] | None = None,
        spec: Spec | None = None,
        at_end: int = RESET,
        limit: int | None = None,
        workers: int | None = None,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        crowd: Crowd | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        if spec is None:
            with GymnasiumVectorEnv(env, seeds[:1], indices[:1], kwargs=kwargs) as probe:
                spec = probe.spec
        known = registered(env) if isinstance(env, str) else None
        super().__init__(
            Foreign(env, dict(kwargs or {}), limit, known),
            spec,
            seeds,
            indices,
            name=f"gym:{name_of(env)}",
            workers=workers,
            at_end=at_end,
            method=method,
            policy=policy,
            crowd=crowd,
            scheduler=scheduler,
            log=(log_shape(spec, at_end)[0], log_dtype(spec)),
        )

    def get_state(self) -> dict[str, NDArray[Any]]:
        """As `GymnasiumVectorEnv.get_state`, and interchangeable with it."""
        block = self.block
        log, length = block["log"], block["length"].copy()
        taken = np.arange(log.shape[1]) < length[:, None]
        seen = blank(self).obs
        self._show(seen, None)
        return {
            "episode": block["episode"].copy(),
            "length": length,
            "ret": block["ret"].copy(),
            "seen": seen,
            "actions": np.where(taken[..., None], log, log.dtype.type(0)),
        }

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Takes the actions of each copy's episode again; `fresh` counts those that went astray."""
        self.copies.ready()
        self._finals, self._episodes = [], []
        self.copies.begun = True
        block, actions = self.block, state.get("actions")  # older checkpoints have none
        block["episode"][:] = state["episode"]
        longest = block["log"].shape[1]
        able = np.zeros(self.num_envs, np.bool_)
        if actions is not None:
            lengths = state["length"]
            able = (lengths <= min(actions.shape[1], longest)) & (state["episode"] > 0)
            block["length"][:] = np.where(able, lengths, 0)
            common = min(actions.shape[1], longest)
            block["log"][:, :common] = actions[:, :common]
            block["selected"][:] = able
            self.copies.run(REPLAY, self.workers.links)
            self._show(obs, mask)
            same = (obs == state["seen"]).reshape(self.num_envs, -1).all(axis=1)
            able &= ~block["astray"] & same & (block["ret"] == state["ret"])
        self.fresh = int((~able).sum())
        if self.fresh:
            block["selected"][:] = ~able
            block["episode"][~able] = state["episode"][~able]
            self.copies.run(BEGIN, self.workers.links)
        self._show(obs, mask)
        self.ledger.check()
