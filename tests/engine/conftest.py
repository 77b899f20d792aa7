"""Copies of small kernels, and a recorder that keeps what every step wrote."""

from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import StepBuffers, member_indices

KERNELS = Path(__file__).parent / "samples"


class Steps:
    """Steps a vector environment; every array handed to it is fresh and kept."""

    def __init__(self, env):
        self.env, self.t = env, 0
        self.rows = []

    def fresh(self):
        e, spec = self.env.num_envs, self.env.spec
        shape = (e,) if spec.players == 1 else (e, spec.players)
        obs = np.full((*shape, *spec.observation_shape), -99, spec.observation_dtype)
        poison = np.arange(e) % 2 == 0
        flags = [np.ones(e, np.bool_) for _ in range(2)]
        mask = np.zeros((*shape, self.env.mask_size), np.bool_) if self.env.mask_size else None
        return StepBuffers(obs, np.full(shape, -99, np.float32), *flags, poison, mask)

    def reset(self):
        out = self.fresh()
        self.env.reset(out.obs, out.mask)
        return out

    def step(self, actions=0):
        spec, e = self.env.spec, self.env.num_envs
        players = () if spec.players == 1 else (spec.players,)
        rows = np.zeros((e, *players, spec.action_dim), spec.action_dtype)
        rows[...] = actions
        out = self.fresh()
        self.env.step(rows, out, self.t)
        self.t += 1
        self.rows.append(out)
        return out


@pytest.fixture(params=["serial", "compiled"])
def backend(request):
    return request.param


@pytest.fixture
def make():
    """Builds copies of a kernel of `tests/engine/samples`, or of a built-in one."""

    def build(name="clock", num_envs=3, seeds=(7,), config=None, **settings):
        path = KERNELS / f"{name}.py"
        kernel = load_kernel(str(path) if path.exists() else name)
        loaded = kernel.load(kernel.configure(config or {}))
        rows, indices = member_indices(seeds, num_envs)
        return KernelVectorEnv(kernel, loaded, rows, indices, **settings)

    return build


@pytest.fixture
def steps():
    return Steps
