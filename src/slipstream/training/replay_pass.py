"""Acting, stepping, keeping and learning without a step of Python: four compiled loops, linked.

What `kernels/fused.py` is for rollouts. The numbers are, bit for bit, those of a call of each
at every row.
"""

from __future__ import annotations

import time
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import render
from slipstream.jit.clock import compiled_clock
from slipstream.jit.gate import RunTasks
from slipstream.kernels.copies import KernelVectorEnv
from slipstream.kernels.fused import Acting, RolloutRows
from slipstream.kernels.loop import EPISODES, FAULT, FINALS, RESET
from slipstream.rl.agents.options import Learning
from slipstream.rl.experience.replay.plan import updates_due
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout

# Bound by the renderer.
act: Any = None
advance: Any = None  # of the kernel's batch loop
write: Any = None  # of the replay
learn: Any = None
seconds: Any = None  # a clock

MASKED = False  # whether the kernel has a mask; Numba drops the branches that are not taken

SAMPLED = 16  # acting is timed at every 16th row: a reading costs as much as a small policy

# Places of `Keeping.spent`.
ACTING = 0
LEARNING = 1


class Keeping(NamedTuple):
    """What is kept of each row, and when members learn.

    Attributes:
        ring: the replay's Ring; schedule: its Schedule.
        learned: int64 [M], updates that each member was told to make so far.
        due: int64 [M], those of one row, overwritten.
        valid: bool [E], all true; nothing: bool [E, 0].
        final_of: int64 [E], all -1, overwritten in between.
        spent: float64 [2], seconds of acting (in rows that are timed) and learning so far.
    """

    ring: Any
    schedule: Any
    learned: NDArray[np.int64]
    due: NDArray[np.int64]
    valid: NDArray[np.bool_]
    nothing: NDArray[np.bool_]
    final_of: NDArray[np.int64]
    spent: NDArray[np.float64]


# Long: what happens at a row, in the order in which it happens, stands in one place.
def collect(
    begin: int, end: int, batch: Any, block: Any, by: Any, sent: Any, keeping: Any, store: Any,
    feed: Any, learner: Any,
) -> int:  # fmt: skip
    """Rows begin..end-1.

    Args:
        batch: of the kernel's loop; block: RolloutRows; by: see `Acting`.
        sent: [E, K], what the copies receive, overwritten.
        keeping: Keeping; store: of the replay's `ReplayLoops`; feed, learner: see `Learning`.

    Returns:
        The row that is next: `end`, unless there is no room for what ends, or a fault.
    """
    obs, flat, mask, action, log_prob, reward, terminated, truncated = block
    final_obs, final_index, counts, copies = batch[4], batch[5], batch[7], len(sent)
    finals = final_obs.reshape(len(final_obs), final_obs.size // len(final_obs))
    for t in range(begin, end):
        if len(final_obs) - counts[EPISODES] < copies:
            return t
        timed = t % SAMPLED == 0
        began = seconds() if timed else 0.0
        allowed = mask[t] if MASKED else mask
        act(by, t, flat[t], allowed, action[t], log_prob[t], sent)
        if timed:
            keeping.spent[ACTING] += seconds() - began
        now = (sent, obs[t + 1], reward[t], terminated[t], truncated[t])
        counts[FINALS] = 0
        if MASKED:
            advance(0, copies, t, RESET, batch, (*now, mask[t + 1]))
        else:
            advance(0, copies, t, RESET, batch, now)
        if counts[FAULT] != 0:
            return t + 1
        for i in range(counts[FINALS]):
            keeping.final_of[final_index[i, 1]] = i
        shown = mask[t + 1] if MASKED else keeping.nothing
        happened = (action[t], reward[t], terminated[t], truncated[t], keeping.valid)
        seen = (flat[t + 1], shown, finals, keeping.final_of)
        write(keeping.ring, store, 0, copies, *happened, *seen)
        for i in range(counts[FINALS]):
            keeping.final_of[final_index[i, 1]] = -1
        counts[FINALS] = 0
        some = False
        for m in range(len(keeping.due)):
            keeping.due[m] = 0
            if keeping.ring.held[m] > 0:
                total = updates_due(keeping.schedule, keeping.ring.steps[m])
                keeping.due[m] = total - keeping.learned[m]
                keeping.learned[m] = total
                some = some or keeping.due[m] > 0
        if some:
            began = seconds()
            learn(feed, learner, keeping.ring, store, keeping.due)
            keeping.spent[LEARNING] += seconds() - began
    return end


class ReplayPass:
    """Runs the rows of an iteration for a kernel's copies.

    Args:
        env: all copies, which `FusedLoop.fits`.
        replay: what is kept of them; it has `loops`.
        acting, learning, block: examples of their types.
        learned: see `Keeping`.
    """

    def __init__(
        self,
        env: KernelVectorEnv,
        replay: Replay,
        acting: Acting,
        learning: Learning,
        block: RolloutRows,
        learned: NDArray[np.int64],
    ) -> None:
        copies, spec = env.num_envs, env.spec
        loops = replay.loops
        assert loops is not None
        self._env, self._replay = env, replay
        self._sent = np.zeros((copies, spec.action_width), spec.action_dtype)
        self._keeping = Keeping(
            replay.ring,
            replay.plan.schedule,
            learned,
            np.zeros_like(learned),
            np.ones(copies, np.bool_),
            np.zeros((copies, 0), np.bool_),
            np.full(copies, -1, np.int64),
            np.zeros(2),
        )
        examples = (
            *(0, 0, env.batch, tuple(block), acting.by, self._sent),
            *(self._keeping, loops.store, learning.feed, learning.by),
        )
        module = render.compile_module(
            f"{env.kernel.name}_replay",
            render.source_of([collect]),
            {"collect": examples},
            {"updates_due": cast(FunctionType, updates_due)},
            {
                **{"Any": Any, "FINALS": FINALS, "EPISODES": EPISODES, "FAULT": FAULT},
                **{
                    "MASKED": bool(env.mask_width),
                    "RESET": RESET,
                    "SAMPLED": SAMPLED,
                    "ACTING": ACTING,
                    "LEARNING": LEARNING,
                },
            },
            linked={
                "act": acting.loop,
                "advance": env.loop.advance,
                "write": loops.write,
                "learn": learning.loop,
                "seconds": compiled_clock(),
            },
        )
        self._collect = module["collect"]

    def run(
        self, rollout: Rollout, acting: Acting, learning: Learning, run_tasks: RunTasks
    ) -> tuple[float, float, float]:
        """Fills all rows, keeps them, and learns as often as is due.

        Args:
            run_tasks: whose threads may take part in updates.

        Returns:
            Seconds of acting (from every 16th row), stepping and keeping, and learning.

        Raises:
            KernelError: a number that nobody can train on, or an index beyond an array.
        """
        end, began, before = len(rollout.reward), time.perf_counter(), self._keeping.spent.copy()
        learning.share(partial(self._run_rows, rollout, acting, learning), run_tasks)
        rollout.valid[:] = True
        acted, learned = (self._keeping.spent - before).tolist()
        spent = time.perf_counter() - began
        acted *= end / -(-end // SAMPLED)
        acted = min(acted, spent - learned)  # a sample may have met an interruption
        return acted, spent - acted - learned, learned

    def _run_rows(self, rollout: Rollout, acting: Acting, learning: Learning) -> None:
        env, t, end, block = self._env, 0, len(rollout.reward), tuple(rollout.rows)
        while t < end:
            env.make_room()
            loops = self._replay.loops  # other arrays after making room
            assert loops is not None
            try:
                t = self._collect(
                    *(t, end, env.batch, block, acting.by, self._sent),
                    *(self._keeping, loops.store, learning.feed, learning.by),
                )
            except Exception as error:
                raise env.named(error, self._sent) from error
            env.check(self._sent, t - 1)
        env.make_room()
