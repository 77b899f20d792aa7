"""One copy of a kernel in a chosen state; the forex oracle beside these tests is importable."""

import sys
from pathlib import Path

import numpy as np
import pytest

from slipstream.kernels.contract import blank
from slipstream.kernels.copies import KernelVectorEnv
from slipstream.kernels.discover import load_kernel
from slipstream.kernels.vector_env import member_indices

sys.path.insert(0, str(Path(__file__).parent))


class Single:
    """Steps one compiled copy from a given state."""

    def __init__(self, name, config=None, backend="compiled"):
        kernel = load_kernel(name)
        loaded = kernel.load(kernel.configure(config or {}))
        self.env = KernelVectorEnv(kernel, loaded, *member_indices([0], 1), backend=backend)
        self.out = blank(self.env)
        self.env.reset(self.out.obs)
        self.t = 0

    def set(self, **fields):
        state = self.env.get_state()
        for name, value in fields.items():
            state[f"state.{name}"][0] = value
        self.env.set_state(state, self.out.obs)
        return self.out.obs[0].copy()

    def get(self, *names):
        return [self.env.read((name,))[name][0] for name in names]

    def step(self, action):
        row = np.zeros((1, self.env.spec.action_width), self.env.spec.action_dtype)
        row[0] = action
        self.env.step(row, self.out, self.t)
        self.t += 1
        out = self.out
        return out.obs[0], out.reward[0], bool(out.terminated[0]), bool(out.truncated[0])


@pytest.fixture
def single():
    return Single
