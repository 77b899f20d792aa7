"""`valid` is written at every step by every environment, whatever stood in the row before."""

import numpy as np
import pytest

from slipstream.gym.foreign_env import ForeignEnv
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.vector_env import allocate_buffers, member_indices

COPIES, LIMIT, STEPS = 6, 4, 9
TARGETS = ["cartpole", "pendulum", "probes", "gym:CartPole-v1", "gym:Pendulum-v1"]


def environment(target, mode, backend="compiled"):
    seeds, indices = member_indices((3,), COPIES)
    if target.startswith("gym:"):
        return ForeignEnv(target[4:], seeds, indices, at_end=mode, limit=LIMIT)
    kernel = load_kernel(target)
    settings = {"probe": "endless"} if target == "probes" else {}
    loaded = kernel.load(kernel.configure({**settings, "max_steps": LIMIT}))
    return KernelVectorEnv(kernel, loaded, seeds, indices, backend=backend, autoreset_mode=mode)


def flags(env):
    """[STEPS, E] of `valid` and of `ended`, from rows that held true and false before."""
    out = allocate_buffers(env)
    env.reset(out.obs, out.mask)
    actions = np.zeros((env.num_envs, env.spec.action_dim), env.spec.action_dtype)
    valid, ended = [], []
    for t in range(STEPS):
        out.valid[:] = (np.arange(env.num_envs) + t) % 2 == 0
        env.step(actions, out, t)
        valid.append(out.valid.copy())
        ended.append(out.terminated | out.truncated)
    return np.array(valid), np.array(ended)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", [RESET, RESET_KEEP_ALL, HOLD])
def test_every_step_says_that_it_is_real(target, mode):
    backends = ["compiled"] if target.startswith("gym:") else ["serial", "compiled"]
    for backend in backends:
        valid, ended = flags(environment(target, mode, backend))
        assert valid.all() and ended.any()
