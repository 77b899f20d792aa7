"""One player, two switches; each allows only what the clock says."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.core.random import integer
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec


class Config(config.Config):
    pass


class Params(NamedTuple):
    pass


class Data(NamedTuple):
    none: NDArray[np.float64]


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("time", "i8")], align=True)


def load(config: Config) -> kernel.KernelData:
    return kernel.KernelData(Data(np.zeros(1)), {"train": (Params(),)})


def reset(s: Any, p: Any, d: Any) -> None:
    s.time = integer(s, 3)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    s.time = s.time + 1
    return 1.0, s.time >= 5, False


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = float(s.time)


def mask(s: Any, p: Any, d: Any, out: Any) -> None:
    for choice in range(5):
        out[choice] = choice <= max(s.time, 2)


def spec(p: Any, d: Any) -> EnvSpec:
    return EnvSpec(spaces.Box(0.0, 5.0, (1,), np.float32), spaces.MultiDiscrete([2, 3]))
