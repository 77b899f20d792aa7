"""A store that orders ahead: sales earn 12 each, storage, deliveries and empty shelves cost."""

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config
from slipstream.core.random import integer
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec


class Config(config.Config):
    none: float = 0.0


class Params(NamedTuple):
    none: float


class Data(NamedTuple):
    none: np.ndarray


def load(config):
    return kernel.KernelData(Data(np.zeros(1)), {"train": (Params(config.none),)})


CAPACITY = 20
STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("stock", "i8"), ("coming", "i8")], align=True)


def reset(s, p, d):
    s.stock = integer(s, CAPACITY + 1)


def step(s, action, p, d):
    ordered = min(int(action[0]), CAPACITY - s.stock)
    arrived = s.coming
    s.coming = ordered
    s.stock = min(s.stock + arrived, CAPACITY)
    wanted = 4 + integer(s, 9)
    sold = min(s.stock, wanted)
    s.stock = s.stock - sold
    cost = 1.0 * s.stock + (12.0 if ordered > 0 else 0.0) + 4.0 * ordered
    return 12.0 * sold - cost - 3.0 * (wanted - sold), False, False


def observe(s, p, d, out):
    out[0] = s.stock * 1.0
    out[1] = s.coming * 1.0


def spec(p, d):
    box = spaces.Box(0.0, 100.0, (2,), np.float32)
    return EnvSpec(box, spaces.Discrete(CAPACITY + 1), max_episode_steps=100)
