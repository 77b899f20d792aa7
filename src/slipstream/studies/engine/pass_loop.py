"""Test passes without a step of Python: networks and environments in one compiled loop.

This is a template like `vector/loop.py`, rendered once for each kernel. A member runs through many
steps before the next one's turn, so that its weights stay in the processor's nearest memory. Who
decides is compiled into the loop: a call by symbol hands on a hundred numbers that describe arrays,
which is 5 % of a step of two rows. The numbers are, bit for bit, those of `Policy.act` and the
environments' own loop.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.machine import render
from slipstream.nets.modes import decide_box, decide_choices
from slipstream.nets.policy import Policy
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import FAULT, HOLD

# Bound by the renderer.
advance: Any = None  # of the kernel's batch loop
decide: Any = None  # of `nets/modes.py`
note: Any = None  # (s, row): copies what is recorded after each step; written for the kernel


def run_passes(
    begin: int, end: int, copies: int, by: Any, mask: Any, batch: Any, out: Any, values: Any
) -> None:
    """Steps `begin` to `end` of all members, `copies` environments each.

    Args:
        by, mask: who decides, and what is allowed; see `nets/modes.py`.
        batch, out: of the kernel's loop; out[1] shows what the environments look like.
        values: float64 [steps, E, noted], written.
    """
    state, obs = batch[2], out[1].reshape(len(out[1]), out[1].size // len(out[1]))
    for m in range(values.shape[1] // copies):
        lo, hi = m * copies, (m + 1) * copies
        for t in range(begin, end):
            decide(by, m, lo, hi, obs, mask, out[0])
            advance(lo, hi, t, HOLD, batch, out)
            if batch[7][FAULT] != 0:  # a reward is NaN or infinite: left as it is, to be named
                return
            for e in range(lo, hi):
                note(state[e], values[t, e])


class PassLoop:
    """The compiled loop for some copies and the policies that act in them.

    Args:
        env: M x R copies that hold at an episode's end.
        policy: of M members.
        noted: STATE fields recorded after each step.
    """

    def __init__(self, env: KernelVectorEnv, policy: Policy, noted: tuple[str, ...]) -> None:
        self._env, self._copies = env, env.num_envs // policy.members
        self._decider = policy.actor(self._copies).decider
        batch, self._out = env.arguments()
        self._mask = self._out[5] if env.mask_width else np.zeros((0, 0), np.bool_)
        lines = ["def note(s, row):"]
        lines += [f"    row[{k}] = s.{name}" for k, name in enumerate(noted)]
        text = "\n\n\n".join(["\n".join(lines), render.source_of([run_passes])]) + "\n"
        examples = (0, 0, 0, self._decider, self._mask, batch, self._out, np.zeros((1, 1, 1)))
        decide = decide_box if policy.actions.continuous else decide_choices
        module = render.compile_module(
            f"{env.kernel.name}_passes",
            text,
            {"run_passes": examples},
            {"decide": cast(FunctionType, decide)},
            {"Any": Any, "HOLD": HOLD, "FAULT": FAULT},
            linked={"advance": env.loop.advance},
        )
        self._run = module["run_passes"]

    @staticmethod
    def fits(env: KernelVectorEnv, policy: Policy) -> bool:
        """Whether it covers this kernel and network."""
        return env.backend == "compiled" and env.spec.players == 1 and not policy.is_image

    def reset(self) -> None:
        """Begins all passes."""
        self._env.reset(self._out[1], self._mask if self._env.mask_width else None)

    def run(self, begin: int, end: int, values: NDArray[np.float64]) -> None:
        """Takes steps `begin` to `end` and writes what is noted into values [steps, E, noted].

        Raises:
            KernelError: a number that nobody can train on, or an index beyond an array.
        """
        batch, _ = self._env.arguments()
        try:
            self._run(begin, end, self._copies, self._decider, self._mask, batch, self._out, values)
        except Exception as error:
            raise self._env.named(error, self._out[0]) from error
        self._env.check(self._out[0])
