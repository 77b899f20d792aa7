"""Compiled collection: a policy's loop and a kernel's loop, linked into one call.

Both loops are already machine code; only the few lines that call them in turn are compiled here.
Results are bit-identical to calling both at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import codegen
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import EPISODES, FAULT, FINALS, RESET
from slipstream.kernels.vector_env import VectorEnv

# Bound by the code generator.
act: Any = None
advance: Any = None  # of the kernel's batch loop
MASKED: Any = None  # true if `act` takes masks; the other branch is never compiled


class CompiledActor(NamedTuple):
    """Compiled action selection.

    Attributes:
        loop: compiled; ``loop(ctx, t, obs, mask, action, log_prob, out)`` acts at row t for all
            environments, as the loops of `rl/nets/action_selection.py` do.
        ctx: its first argument, of the current policy.
    """

    loop: Any
    ctx: Any


class RolloutRows(NamedTuple):
    """Rollout rows to fill, of all E environments of a rollout.

    Attributes:
        obs: [T + 1, E, *shape]; flat: the same memory, [T + 1, E, D].
        mask: bool [T + 1, E, n] of allowed discrete actions, or [0, 0] for none.
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
    """Fill rows begin..end-1 of environments lo, lo + 1, ... of the block.

    Args:
        batch: of the kernel's loop; block: RolloutRows; ctx: see `CompiledActor`.
        sent: [num_envs, K], the actions that the environments receive; overwritten.

    Returns:
        The next row: `end`, or less if storage for ended episodes is full or after a fault.
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
    """Fill rollout blocks with steps of a kernel's environments and a policy.

    Args:
        env: environments for which `is_supported` is true.
        acting, block: examples of their types.
    """

    def __init__(self, env: VectorEnv, acting: CompiledActor, block: RolloutRows) -> None:
        assert isinstance(env, KernelVectorEnv)
        self._env = env
        self._sent = np.zeros((env.num_envs, env.spec.action_dim), env.spec.action_dtype)
        examples = (0, 0, 0, env.batch, tuple(block), acting.ctx, self._sent)
        module = codegen.compile_module(
            f"{env.kernel.name}_fused",
            codegen.get_source([collect]),
            {"collect": examples},
            {},
            {
                "Any": Any,
                "MASKED": bool(env.mask_size),
                **{"FINALS": FINALS, "EPISODES": EPISODES, "FAULT": FAULT, "RESET": RESET},
            },
            linked={"act": acting.loop, "advance": env.loop.advance},
        )
        self._collect = module["collect"]

    @staticmethod
    def is_supported(env: VectorEnv) -> bool:
        """Return true for a compiled kernel with one player and no image observations."""
        return (
            isinstance(env, KernelVectorEnv)
            and env.backend == "compiled"
            and env.spec.players == 1
            and env.spec.observation_dtype == np.float32
        )

    def run(self, begin: int, block: RolloutRows, lo: int, acting: CompiledActor) -> None:
        """Fill rows begin, begin + 1, ... of environments lo, lo + 1, ...

        Raises:
            KernelError: a non-finite number, or an index beyond an array.
        """
        env, t, end = self._env, begin, len(block.reward)
        while t < end:
            env.ensure_capacity()
            try:
                t = self._collect(t, end, lo, env.batch, tuple(block), acting.ctx, self._sent)
            except Exception as error:
                raise env.explain_error(error, self._sent) from error
            env.raise_fault(self._sent, t - 1)
        env.ensure_capacity()
