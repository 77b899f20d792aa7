"""Gymnasium environments in worker processes, with the trajectories of the serial backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.vector.driver import Arrays
from slipstream.vector.foreign import name_of
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv, log_dtype, log_shape
from slipstream.vector.infos import NOTHING, InfoTable
from slipstream.vector.leaves import MisfitError
from slipstream.vector.loop import RESET
from slipstream.vector.process.crowd import Crowd
from slipstream.vector.process.faults import FaultPolicy
from slipstream.vector.process.job import AssignedForeign, registered
from slipstream.vector.process.process_env import ProcessVectorEnv
from slipstream.vector.process.scheduler import CopyScheduler
from slipstream.vector.process.worker import BEGIN, REPLAY
from slipstream.vector.vector_env import Received, StepOut, blank


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
        workers, method, policy, crowd, scheduler, halves: as for `ProcessVectorEnv`.
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
        scheduler: CopyScheduler | None = None,
        halves: bool = False,
    ) -> None:
        if spec is None:
            with GymnasiumVectorEnv(env, seeds[:1], indices[:1], kwargs=kwargs) as probe:
                spec = probe.spec
        self._table = InfoTable()
        known = registered(env) if isinstance(env, str) else None
        super().__init__(
            AssignedForeign(env, dict(kwargs or {}), limit, known),
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
            halves=halves,
            log=(log_shape(spec, at_end)[0], log_dtype(spec)),
        )

    def send(self, actions: Any, copies: Any = None) -> None:
        self.copies.check_open()
        if not self.copies.begun:
            raise ConfigError("Call `reset()` before the first `send(actions)`.")
        rows = self.copies.idle_rows(copies)
        try:
            numbers = self.actions.rows(actions, (len(rows),), self.spec.action_width)
        except MisfitError as error:
            raise ConfigError(f"`send` to {len(rows)} copies was given {error}.") from None
        self.block["actions"][rows] = numbers
        self.copies.send(rows)

    def recv(self, count: int | None = None, timeout: float | None = None) -> Received:
        self.copies.check_open()
        block, at = self.block, self.copies.receive(count, timeout)
        self._collect(0, at)
        self.ended, self.finals = self.drain_episodes(), self.drain_finals()
        self.ledger.good(block["valid"][at], at)
        self.ledger.check()
        rows = self._joined([part[at] for part in self._obs])
        return Received(
            at,
            self.observations.native(rows),
            block["reward"][at].astype(np.float32),
            block["terminated"][at],
            block["truncated"][at],
            block["valid"][at],
        )

    def send_half(self, half: int, actions: NDArray[Any], t: int = 0) -> None:
        self.block["actions"][self._half(half)] = actions
        self.copies.asked.send_half(half, t)

    def recv_half(self, half: int, out: StepOut, t: int = 0) -> None:
        at, block = self._half(half), self.block
        self.copies.asked.receive_half(half)
        self._collect(t, at)
        out.reward[...] = block["reward"][at]
        out.terminated[...], out.truncated[...] = block["terminated"][at], block["truncated"][at]
        out.valid[...] = block["valid"][at]
        out.obs[...] = self._joined([part[at] for part in self._obs])
        self.ledger.good(block["valid"][at], at)
        self.ledger.check()

    def _half(self, half: int) -> slice:
        middle = self.num_envs // 2
        return slice(middle, self.num_envs) if half else slice(0, middle)

    def timed(self, rows: NDArray[Any]) -> list[float]:
        """Takes steps with rows of actions [n, E, K], without an answer in between.

        Returns:
            Seconds of each step in which no copy of its worker failed, of all workers in turn;
            none of a worker that was lost.
        """
        self.copies.ready()
        parts = self.copies.ask("timed", lambda own: (rows[:, own],), spare=True)
        return [seconds for _, part in parts for seconds in part or []]

    def infos(self) -> dict[str, Any]:
        self.copies.check_open()
        asked = (self._table.signatures,)
        parts = self.copies.ask("infos", lambda _: asked, spare=True)
        for rows, part in parts:
            if part is None:  # what it said is lost with the worker
                self.block["told"][rows] = NOTHING
        self.block["told"][self.copies.unseen] = NOTHING
        apart = dict(one for _, part in parts for one in part or [])
        for info in apart.values():
            self._table.note(info)
        return self._table.batch(self.block["told"], self.block["info"], apart)

    def resize(self, num_envs: int) -> Any:
        self.copies.check_open()
        before, old = self.num_envs, self.block
        last = int(old["index"].max())

        def fill(arrays: Arrays) -> None:
            new = slice(before, num_envs)
            arrays["seed"][new] = old["seed"][0]
            arrays["index"][new] = np.arange(last + 1, last + 1 + max(0, num_envs - before))

        self.copies.resize(num_envs, self._layout, fill)
        self.num_envs = num_envs
        self._over = self.block["held"].copy()
        rows = blank(self).obs
        self._show(rows)
        return self.observations.native(rows)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """As `GymnasiumVectorEnv.get_state`, and interchangeable with it."""
        self.copies.check_open()
        block = self.block
        log, length = block["log"], block["length"].copy()
        taken = np.arange(log.shape[1]) < length[:, None]
        seen = blank(self).obs
        self._show(seen)
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
            self.copies.run(REPLAY)
            self._show(obs)
            same = (obs == state["seen"]).reshape(self.num_envs, -1).all(axis=1)
            able &= ~block["astray"] & same & (block["ret"] == state["ret"])
            able &= ~self.copies.unseen  # their worker was lost over it
        self.fresh = int((~able).sum())
        if self.fresh:
            block["selected"][:] = ~able
            block["episode"][~able] = state["episode"][~able]
            self.copies.run(BEGIN)
        self._show(obs)
        self.ledger.check()
