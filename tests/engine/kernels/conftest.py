"""One environment in a chosen state; the text of a kernel, parts of which a test may replace."""

import textwrap

import numpy as np
import pytest

from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import member_indices

PARTS = {
    "top": "",
    "Config": "class Config(config.Config):\n    width: float = 1.0",
    "Params": "class Params(NamedTuple):\n    width: float",
    "Data": "class Data(NamedTuple):\n    table: NDArray[np.float32]",
    "STATE": 'STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("x", "f8")], align=True)',
    "load": (
        "def load(config):\n"
        "    data = Data(np.ones(3, np.float32))\n"
        '    return kernel.KernelData(data, {"train": (Params(config.width),)})'
    ),
    "reset": "def reset(s, p, d):\n    s.x = p.width",
    "step": "def step(s, action, p, d):\n    s.x = s.x + 1.0\n    return s.x, False, False",
    "observe": "def observe(s, p, d, out):\n    out[0] = s.x",
    "spec": (
        "def spec(p, d):\n"
        "    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)\n"
        "    return EnvSpec(space, spaces.Discrete(2), max_episode_steps=5)"
    ),
}
HEAD = """\
import math
from typing import NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.kernels import kernel
from slipstream.core.random import uniform
from slipstream.kernels.spec import EnvSpec
"""


def kernel_text(**parts):
    """The kernel with some parts replaced; an empty part is left out."""
    chosen = {**PARTS, **{name: textwrap.dedent(text) for name, text in parts.items()}}
    return "\n\n\n".join([HEAD, *(text for text in chosen.values() if text)]) + "\n"


@pytest.fixture
def write_kernel(tmp_path):
    """Writes a kernel file and returns its path."""

    def write(name="mine.py", **parts):
        path = tmp_path / name
        path.write_text(kernel_text(**parts))
        return path

    return write


class Single:
    """Steps one compiled copy from a given state."""

    def __init__(self, name, config=None, backend="compiled"):
        kernel = load_kernel(name)
        loaded = kernel.load(kernel.configure(config or {}))
        self.env = KernelVectorEnv(kernel, loaded, *member_indices([0], 1), backend=backend)
        self.out = allocate_buffers(self.env)
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
        row = np.zeros((1, self.env.spec.action_dim), self.env.spec.action_dtype)
        row[0] = action
        self.env.step(row, self.out, self.t)
        self.t += 1
        out = self.out
        return out.obs[0], out.reward[0], bool(out.terminated[0]), bool(out.truncated[0])


@pytest.fixture
def single():
    return Single
