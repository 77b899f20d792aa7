"""Acting and stepping without a step of Python: a policy's loop and a kernel's, linked.

Both are machine code already; what is compiled here is the few lines that call them in turn. The
numbers are, bit for bit, those of a call of each at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import codegen
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import EPISODES, FAULT, FINALS, RESET
from slipstream.kernels.vector_env import VectorEnv

# Bound by the renderer.
act: Any = None
advance: Any = None  # of the kernel's batch loop
MASKED: Any = None  # whether `act` takes masks; the other branch is never compiled


class Acting(NamedTuple):
    """What acts in compiled code.

    Attributes:
        loop: compiled; ``loop(by, t, obs, mask, action, log_prob, out)`` acts at row t for all
            copies at once, as the loops of `rl/nets/action_selection.py` do.
        by: its first argument, of the policy as it is now.
    """

    loop: Any
    by: Any


class RolloutRows(NamedTuple):
    """Rows that are filled, of the E copies of an environment or of more.

    Attributes:
        obs: [T + 1, E, *shape]; flat: the same memory, [T + 1, E, D].
        mask: bool [T + 1, E, choices] of allowed choices, or [0, 0] for none.
        action: [T, E, K]; log_prob, reward: float32 [T, E]; terminated, truncated: bool [T, E].
    """

    obs: NDArray[Any]
    flat: NDArray[Any]
    mask: NDArray[np.bool_]
    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def collect(begin: int, end: int, lo: int, batch: Any, block: Any, by: Any, sent: Any) -> int:
    """Rows begin..end-1 of copies lo, lo + 1, ... of the block.

    Args:
        batch: of the kernel's loop; block: RolloutRows; by: see `Acting`.
        sent: [copies, K], what the copies receive, overwritten.

    Returns:
        The row that is next: `end`, unless there is no room for what ends, or a fault.
    """
    obs, flat, mask, action, log_prob, reward, terminated, truncated = block
    room, counts, hi = len(batch[4]), batch[7], lo + len(sent)
    for t in range(begin, end):
        if room - max(counts[FINALS], counts[EPISODES]) < len(sent):
            return t
        drawn = (action[t][lo:hi], log_prob[t][lo:hi], sent)
        now = (sent, obs[t + 1][lo:hi], reward[t][lo:hi], terminated[t][lo:hi], truncated[t][lo:hi])
        if MASKED:
            act(by, t, flat[t][lo:hi], mask[t][lo:hi], *drawn)
            advance(0, len(sent), t, RESET, batch, (*now, mask[t + 1][lo:hi]))
        else:
            act(by, t, flat[t][lo:hi], mask, *drawn)
            advance(0, len(sent), t, RESET, batch, now)
        if counts[FAULT] != 0:
            return t + 1
    return end


class FusedLoop:
    """Fills blocks with what a kernel's copies and a policy do.

    Args:
        env: copies that `fits` has nothing against.
        acting, block: examples of their types.
    """

    def __init__(self, env: VectorEnv, acting: Acting, block: RolloutRows) -> None:
        assert isinstance(env, KernelVectorEnv)
        self._env = env
        self._sent = np.zeros((env.num_envs, env.spec.action_width), env.spec.action_dtype)
        examples = (0, 0, 0, env.batch, tuple(block), acting.by, self._sent)
        module = codegen.compile_module(
            f"{env.kernel.name}_fused",
            codegen.source_of([collect]),
            {"collect": examples},
            {},
            {
                "Any": Any,
                "MASKED": bool(env.mask_width),
                **{"FINALS": FINALS, "EPISODES": EPISODES, "FAULT": FAULT, "RESET": RESET},
            },
            linked={"act": acting.loop, "advance": env.loop.advance},
        )
        self._collect = module["collect"]

    @staticmethod
    def fits(env: VectorEnv) -> bool:
        """Return true if it covers these copies: of a compiled kernel, one player, no images."""
        return (
            isinstance(env, KernelVectorEnv)
            and env.backend == "compiled"
            and env.spec.players == 1
            and env.spec.observation_dtype == np.float32
        )

    def run(self, begin: int, block: RolloutRows, lo: int, acting: Acting) -> None:
        """Fills rows begin, begin + 1, ... of the copies lo, lo + 1, ...

        Raises:
            KernelError: a number that nobody can train on, or an index beyond an array.
        """
        env, t, end = self._env, begin, len(block.reward)
        while t < end:
            env.make_room()
            try:
                t = self._collect(t, end, lo, env.batch, tuple(block), acting.by, self._sent)
            except Exception as error:
                raise env.named(error, self._sent) from error
            env.check(self._sent, t - 1)
        env.make_room()
