"""A shop orders stock every evening: sales earn, storage and each delivery cost."""

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config
from slipstream.core.random import integer
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric

CAPACITY, MOST_WANTED, STORAGE = 12, 6, 0.1  # units, units on a good day, cost overnight


class Config(config.Config):
    delivery: float = 2.0  # cost of a delivery, in profits on a unit


class Params(NamedTuple):
    delivery: float


class Data(NamedTuple):
    none: np.ndarray  # the rules need no data


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("stock", "i8"), ("lost", "f8")], align=True)


def load(config):
    return kernel.KernelData(Data(np.zeros(1)), {"train": (Params(config.delivery),)})


def reset(s, p, d):  # every field is zero already
    s.stock = integer(s, CAPACITY + 1)


def step(s, action, p, d):
    ordered = int(action[0])  # the mask sees to it that the store is not overfilled
    wanted = integer(s, MOST_WANTED + 1)
    sold = min(s.stock + ordered, wanted)
    s.stock, s.lost = s.stock + ordered - sold, s.lost + float(wanted - sold)
    cost = STORAGE * s.stock + (p.delivery if ordered > 0 else 0.0)
    return sold - cost, False, False  # the time limit is the batch loop's work


def observe(s, p, d, out):
    out[0] = s.stock / CAPACITY


def mask(s, p, d, out):
    for units in range(CAPACITY + 1):
        out[units] = s.stock + units <= CAPACITY


def spec(p, d):
    stock, orders = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(CAPACITY + 1)
    return EnvSpec(stock, orders, metrics=(Metric("lost", "units"),), max_episode_steps=60)
