"""Two players and a mask: the choice just taken by the other one is forbidden."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.core.random import integer
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric

CHOICES = 4


class Config(config.Config):
    max_steps: int = 3


class Params(NamedTuple):
    max_steps: int


class Data(NamedTuple):
    worth: NDArray[np.float64]


STATE = np.dtype(
    [("key", "u8"), ("counter", "u8"), ("taken", "i8", (2,)), ("total", "f8")], align=True
)


def load(config: Config) -> kernel.KernelData:
    return kernel.KernelData(Data(np.arange(4.0)), {"train": (Params(config.max_steps),)})


def reset(s: Any, p: Any, d: Any) -> None:
    for player in range(2):
        s.taken[player] = integer(s, CHOICES)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    for player in range(2):
        s.taken[player] = action[player, 0]
    first = d.worth[s.taken[0]] - d.worth[s.taken[1]]
    s.total = s.total + abs(first)
    return (first, -first), first > 2.0, False


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    out[0] = float(s.taken[player])
    out[1] = float(s.taken[1 - player])


def mask(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    for choice in range(CHOICES):
        out[choice] = choice != s.taken[1 - player]


def spec(p: Any, d: Any) -> EnvSpec:
    return EnvSpec(
        observation_space=spaces.Box(0.0, 3.0, (2,), np.float32),
        action_space=spaces.Discrete(CHOICES),
        metrics=(Metric("total"),),
        players=2,
        max_episode_steps=p.max_steps,
    )
