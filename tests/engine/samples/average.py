"""A kernel for tests of `finalize_episode`: the mean action, set at the end."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric


class Config(config.Config):
    length: int = 3


class Params(NamedTuple):
    length: int


class Data(NamedTuple):
    pass


STATE = np.dtype(
    [("key", "u8"), ("counter", "u8"), ("steps", "i8"), ("sum", "f8"), ("mean", "f8")], align=True
)


def load(config: Config) -> kernel.KernelData:
    return kernel.KernelData(Data(), {"train": (Params(config.length),)})


def reset(s: Any, p: Any, d: Any) -> None:
    s.sum = 0.0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    s.steps = s.steps + 1
    s.sum = s.sum + float(action[0])
    return s.mean, s.steps >= p.length, False


def finalize_episode(s: Any, p: Any, d: Any) -> None:
    if s.steps > 0:
        s.mean = s.sum / float(s.steps)


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = s.mean


def spec(p: Any, d: Any) -> EnvSpec:
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, (1,), np.float32),
        action_space=spaces.Discrete(5),
        metrics=(Metric("mean"),),
        max_episode_steps=4,
    )
