"""Copies stepped by worker processes behind the same interface."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.vector.loop import HOLD, RESET
from slipstream.vector.process.block import Block
from slipstream.vector.process.crowd import Crowd
from slipstream.vector.process.driver import ProcessDriver
from slipstream.vector.process.faults import Fault, FaultPolicy
from slipstream.vector.process.job import AssignedForeign, Assignment
from slipstream.vector.process.layout import Layout, copies_layout
from slipstream.vector.process.scheduler import CopyScheduler
from slipstream.vector.process.worker import BEGIN
from slipstream.vector.vector_env import Episodes, Finals, StepOut, VectorEnv

_OF_EPISODES = ("ended_ret", "ended_length", "lost", "metrics")
_PAUSE_SECONDS = 0.01  # between two tries where no copy at all can be stepped


class ProcessVectorEnv(VectorEnv):
    """E copies in W worker processes, which share one block of memory with this one.

    A copy that raises, hangs, or returns what its space does not hold is begun again alone; a
    worker that is lost is replaced, and begins its copies again. The others go on: rows that are
    lost have ``valid`` false, and their episodes end truncated and marked as `Episodes.lost`.

    Args:
        what: a foreign environment, as every worker makes it.
        spec: of it.
        seeds, indices: uint64 [E], member's seed and index within the member of each copy.
        name: of it, for messages.
        workers: W; the machine's cores unless given.
        at_end: RESET, RESET_KEEP_ALL or HOLD of `loop.py`.
        method: "forkserver", "spawn" or "fork".
        policy: what a fault leads to.
        crowd: where workers come from; processes of its own unless given.
        scheduler: which copy a worker steps next, between `send` and `recv`.
        halves: the lower and the upper half of the rows can be stepped apart.

    Attributes:
        ledger: faults so far.

    Raises:
        ConfigError, ResourceError, KernelError: it cannot be made.
    """

    backend = "process"

    def __init__(
        self,
        what: AssignedForeign,
        spec: Spec,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        *,
        name: str,
        workers: int | None = None,
        at_end: int = RESET,
        method: str = "forkserver",
        policy: FaultPolicy = FaultPolicy(),  # noqa: B008  (a tuple)
        crowd: Crowd | None = None,
        scheduler: CopyScheduler | None = None,
        halves: bool = False,
        log: tuple[int, Any] = (0, np.int64),
    ) -> None:
        self.num_envs, self.spec = len(seeds), spec
        self._what, self._at_end, self._policy = what, at_end, policy
        self._scheduler = scheduler
        leaves = self.observations.leaves
        if self.observations.layout == "image":  # workers write channels first, as rows have them
            leaves = (replace(leaves[0], shape=spec.observation_shape),)
        self._leaves = leaves
        self._layout = partial(copies_layout, spec, leaves, log=log)
        self._finals: list[tuple[NDArray[Any], NDArray[np.int64]]] = []
        self._episodes: list[tuple[Any, ...]] = []
        self._over = np.zeros(self.num_envs, np.bool_)  # held, and somebody has been told
        self.copies = ProcessDriver(
            self._layout(self.num_envs),
            self.num_envs,
            self._job,
            name=name,
            leave=self._leave,
            describe=self._describe,
            workers=workers,
            method=method,
            policy=policy,
            crowd=crowd,
            halves=halves,
            repeats=at_end == HOLD,
        )
        self.halves = halves
        self.ledger, self.workers = self.copies.ledger, self.copies.workers
        self.block["seed"][:], self.block["index"][:] = seeds, indices
        self.copies.start()

    @property
    def block(self) -> Block:
        """The arrays that all share."""
        return self.copies.block

    @property
    def _obs(self) -> list[NDArray[Any]]:
        return [self.block[f"obs.{i}"] for i in range(len(self._leaves))]

    @property
    def _final(self) -> list[NDArray[Any]]:
        return [self.block[f"final.{i}"] for i in range(len(self._leaves))]

    def _job(
        self,
        layout: Layout,
        number: int,
        workers: int,
        ranges: tuple[tuple[int, int], ...],
        spin: float,
    ) -> Assignment:
        return Assignment(
            self._what,
            self.spec,
            layout,
            number,
            workers,
            ranges,
            self._at_end,
            self._policy.on_fault == "restart",
            spin,
            self._scheduler,
        )

    def _describe(self, copy: int) -> tuple[int, int, list[Any]]:
        block = self.block
        episode, length = max(0, int(block["episode"][copy]) - 1), int(block["length"][copy])
        return episode, length, block["actions"][copy].ravel().tolist()

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self.copies.ready()
        self._finals, self._episodes = [], []
        self.block["selected"][:] = True
        self._over[:] = self.block["held"][:] = False
        self.block["tries"][:] = 0
        self.copies.run(BEGIN)
        self.copies.begun = True
        self._show(obs)
        self.ledger.check()

    def begin(
        self,
        copies: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.copies.ready()
        block = self.block
        block["selected"][:] = False
        block["selected"][copies] = True
        block["seed"][copies] = seed % 2**64
        block["index"][copies] = np.asarray(episodes).astype(np.uint64)
        block["episode"][copies] = 0
        self._over[copies] = block["held"][copies] = False
        block["tries"][copies] = 0
        self.copies.run(BEGIN)
        self.copies.begun = True
        obs[copies] = self._joined([part[copies] for part in self._obs])
        self.ledger.check()

    def step_rows(self, actions: NDArray[Any], out: StepOut, t: int = 0) -> None:
        copies, block = self.copies, self.block.arrays
        copies.check_open()
        if not copies.begun:
            raise ConfigError("Call `reset()` before the first `step(actions)`.")
        if actions.shape != block["actions"].shape or out.obs.shape[0] != self.num_envs:
            raise ConfigError(
                f"`step` of {self.num_envs} copies takes actions of shape "
                f"{block['actions'].shape} and rows for each; it was given {actions.shape} and "
                f"{len(out.obs)} rows."
            )
        copies.settle()  # refuses while steps are under way, which read these actions
        block["actions"][...] = actions
        while True:
            copies.begin_step(t)
            copies.end_step()
            self._collect(t)
            if copies.stepped or block["lost"].any() or self._stopped():
                break
            time.sleep(_PAUSE_SECONDS)  # all are being made anew
            self.ledger.check()
        out.reward[...] = block["reward"]
        out.terminated[...], out.truncated[...] = block["terminated"], block["truncated"]
        out.valid[...] = block["valid"]
        self._show(out.obs)
        self.ledger.good(block["valid"])
        self.ledger.check()

    def _stopped(self) -> bool:
        """Whether every copy waits at its episode's end."""
        return bool(self.block["held"].all())

    def _leave(self, at: NDArray[np.int64]) -> None:
        """Where episodes stood when their worker was lost."""
        block = self.block
        block["ended_ret"][at] = block["ret"][at]
        block["ended_length"][at] = block["length"][at]
        block["held"][at] = self._over[at]  # of an end that nobody was told it takes no notice
        for obs in self._obs:  # it may have written half of one
            obs[at] = 0

    def _collect(self, t: int, rows: slice | NDArray[np.int64] | None = None) -> None:
        """Notes what ended at a step of some rows; of all unless given."""
        block = self.block.arrays
        over = block["ended"]
        if self.ledger.total:  # else nothing can be lost
            over = over | block["lost"]
        if rows is None:
            (at,) = over.nonzero()
        else:
            at = np.arange(self.num_envs)[rows]
            at = at[over[at]]
        if not len(at):
            return
        if self._at_end == HOLD:
            self._over[at] = True
            for copy in at[block["lost"][at]].tolist():
                self.ledger.give_up(copy)
        columns = [block[name].take(at, axis=0) for name in _OF_EPISODES]
        self._episodes.append((t, at, *columns))
        if not np.count_nonzero(block["kept"]):
            return
        kept = at[block["kept"][at]]
        if len(kept):
            rows = self._joined([final[kept] for final in self._final])
            self._finals.append((rows, np.stack([np.full(len(kept), t), kept], axis=1)))

    def _joined(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if self.observations.layout != "flat":
            return parts[0]
        return self.observations.join(parts, parts[0].shape[:1])

    def _show(self, obs: NDArray[Any]) -> None:
        if len(self._leaves) == 1 and self._leaves[0].sizes is None:
            obs[...] = self.block.arrays["obs.0"].reshape(obs.shape)
        else:
            obs[...] = self._joined(self._obs)

    def drain_finals(self) -> Finals:
        kept, self._finals = self._finals, []
        if not kept:
            shape = (0, *self.spec.observation_shape)
            return Finals(np.zeros(shape, self.spec.observation_dtype), np.zeros((0, 2), np.int64))
        obs = np.concatenate([rows for rows, _ in kept])
        return Finals(obs, np.concatenate([index for _, index in kept]).astype(np.int64))

    def drain_episodes(self) -> Episodes:
        ended, self._episodes = self._episodes, []
        block = self.block
        if not ended:
            ended = [(0, np.zeros(0, np.int64), *(block[name][:0].copy() for name in _OF_EPISODES))]
        times, *columns = zip(*ended, strict=True)
        e, ret, length, lost, metrics = map(np.concatenate, columns)
        t = np.repeat(np.array(times, np.int64), [len(at) for at in columns[0]])
        named = {m.name: metrics[:, i].copy() for i, m in enumerate(self.spec.metrics)}
        return Episodes(t, e, ret, length, named, lost if lost.any() else None)

    def drain_faults(self) -> list[Fault]:
        """Faults since the last call; the newest 100 of them."""
        return self.ledger.drain()

    def close(self) -> None:
        """Ends the workers; may be called again."""
        self.copies.close()
