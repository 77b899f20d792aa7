"""A whole kernel as text, parts of which a test may replace."""

import textwrap

import pytest

PARTS = {
    "top": "",
    "Config": "class Config(config.Config):\n    width: float = 1.0",
    "Params": "class Params(NamedTuple):\n    width: float",
    "Data": "class Data(NamedTuple):\n    table: NDArray[np.float32]",
    "STATE": 'STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("x", "f8")], align=True)',
    "load": (
        "def load(config):\n"
        "    data = Data(np.ones(3, np.float32))\n"
        '    return kernel.Loaded(data, {"train": (Params(config.width),)})'
    ),
    "reset": "def reset(s, p, d):\n    s.x = p.width",
    "step": "def step(s, action, p, d):\n    s.x = s.x + 1.0\n    return s.x, False, False",
    "observe": "def observe(s, p, d, out):\n    out[0] = s.x",
    "spec": (
        "def spec(p, d):\n"
        "    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)\n"
        "    return Spec(space, spaces.Discrete(2), max_episode_steps=5)"
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
from slipstream.kernels.spec import Spec
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
