"""A kernel for tests of the loop: it counts, and ends when its Params say so."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core import config
from slipstream.core.random import uniform
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric


class Config(config.Config):
    records: tuple[tuple[int, int], ...] = ((3, 0),)  # (terminate at, truncate at), 0 for never
    max_steps: int = 0
    stagger: bool = False
    nan_at: int = 0


class Params(NamedTuple):
    terminate_at: int
    truncate_at: int
    max_steps: int
    stagger: bool
    nan_at: int
    number: int


class Data(NamedTuple):
    tenths: NDArray[np.float32]


STATE = np.dtype(
    [
        ("key", "u8"),
        ("counter", "u8"),
        ("time", "i8"),
        ("start", "f8"),
        ("sum", "f8"),
        ("seen", "f8", (2, 2)),
        ("late", "?"),
        ("words", "u8", (2,)),
    ],
    align=True,
)


def load(config: Config) -> kernel.KernelData:
    params = tuple(
        Params(end, cut, config.max_steps, config.stagger, config.nan_at, number)
        for number, (end, cut) in enumerate(config.records)
    )
    return kernel.KernelData(
        Data(np.full(1, 0.1, np.float32)), {"train": params, "test": params[::-1]}
    )


def reset(s: Any, p: Any, d: Any) -> None:
    s.start = uniform(s)


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    s.time = s.time + 1
    s.sum = s.sum + float(action[0]) * float(d.tenths[0])
    s.seen[1, 0] = s.sum
    s.late = s.time > 2
    s.words[1] = s.key
    reward = float(s.time) + s.start
    if p.nan_at > 0 and s.time == p.nan_at:
        reward = reward * 1e308 * 1e308
    terminated = p.terminate_at > 0 and s.time >= p.terminate_at
    truncated = p.truncate_at > 0 and s.time >= p.truncate_at
    return reward, terminated, truncated


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = float(s.time)
    out[1] = s.start
    out[2] = float(p.number)
    out[3] = s.seen[1, 0]


def spec(p: Any, d: Any) -> EnvSpec:
    return EnvSpec(
        observation_space=spaces.Box(-np.inf, np.inf, (4,), np.float32),
        action_space=spaces.Discrete(5),
        metrics=(Metric("sum", "tenths"), Metric("late")),
        trace=("time", "seen"),
        max_episode_steps=p.max_steps or None,
        stagger_episodes=p.stagger,
    )
