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
        loop: compiled ``loop(ctx, t, obs, mask, action, log_prob, out)``, which acts for all
            environments at row t; see `rl/nets/action_selection.py`.
        ctx: first argument of `loop`, with the current policy.
    """

    loop: Any
    ctx: Any


class RolloutRows(NamedTuple):
    """Rollout rows to fill, of all E environments of a rollout.

    Attributes:
        obs: [T + 1, E, *shape].
        flat: the same memory as [T + 1, E, D].
        mask: bool [T + 1, E, n] of allowed discrete actions, or [0, 0] for none.
        action: [T, E, K].
        log_prob, reward: float32 [T, E].
        terminated, truncated: bool [T, E].
    """

    obs: NDArray[Any]
    flat: NDArray[Any]
    mask: NDArray[np.bool_]
    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


def collect(
    begin: int, end: int, lo: int, batch: Any, block: Any, ctx: Any, env_actions: Any
) -> int:
    """Fill rows begin..end-1 of environments lo, lo + 1, ... of the block.

    Args:
        begin, end: range of rows.
        lo: first environment.
        batch: arrays of the kernel's loop.
        block: RolloutRows.
        ctx: see `CompiledActor`.
        env_actions: [num_envs, K], actions that the environments receive; overwritten.

    Returns:
        The next row: `end`, or less if storage for ended episodes is full or after a fault.
    """
    obs, flat, mask, action, log_prob, reward, terminated, truncated = block
    capacity, counts, hi = len(batch[4]), batch[7], lo + len(env_actions)
    for t in range(begin, end):
        if capacity - max(counts[FINALS], counts[EPISODES]) < len(env_actions):
            return t
        actions_out = (action[t][lo:hi], log_prob[t][lo:hi], env_actions)
        outputs = (
            env_actions,
            obs[t + 1][lo:hi],
            reward[t][lo:hi],
            terminated[t][lo:hi],
            truncated[t][lo:hi],
        )
        if MASKED:
            act(ctx, t, flat[t][lo:hi], mask[t][lo:hi], *actions_out)
            advance(0, len(env_actions), t, RESET, batch, (*outputs, mask[t + 1][lo:hi]))
        else:
            act(ctx, t, flat[t][lo:hi], mask, *actions_out)
            advance(0, len(env_actions), t, RESET, batch, outputs)
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
