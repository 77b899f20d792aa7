"""Probe environments with known values and optimal policies, for tests of agents.

After Andy Jones's debugging notes: each isolates one part of an algorithm. `probe` selects one:

- ``one``: one step, reward 1. The value is 1.
- ``observed``: one step, reward = observation, which is +1 or -1. The value is the observation.
- ``delayed``: two steps, observation 0 then 1, reward 1 at the second. Values: gamma, then 1.
- ``action``: one step, reward 1 for action 1, else -1. The best policy always takes action 1.
- ``matched``: one step, observation +1 or -1, reward 1 if the action matches it, else -1.
- ``endless``: reward 1 per step, truncated by a time limit, never terminated. The value is
  1 / (1 - gamma) at every step. A lower value means that truncation was treated as termination.
- ``switches``: three switches (MultiDiscrete), reward 1 for each that equals its observation.
- ``target``: continuous action in [-1, 1], reward -(action - observation)^2.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slipstream.core import config
from slipstream.core.random import uniform
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric

ONE, OBSERVED, DELAYED, ACTION, MATCHED, ENDLESS, SWITCHES, TARGET = range(8)
NAMES = ("one", "observed", "delayed", "action", "matched", "endless", "switches", "target")
WIDTH = 3  # numbers in an observation; most probes use the first only


class Config(config.Config):
    probe: Literal[
        "one", "observed", "delayed", "action", "matched", "endless", "switches", "target"
    ] = Field("matched", description="name of the probe")
    max_steps: int = Field(8, ge=1, description="time limit in steps (for `endless`)")


class Params(NamedTuple):
    probe: int
    max_steps: int


Data = kernel.NoData


STATE = np.dtype(
    [("key", "u8"), ("counter", "u8"), ("seen", "f8", (WIDTH,)), ("time", "i8"), ("score", "f8")],
    align=True,
)


def load(config: Config) -> kernel.KernelData:
    params = Params(NAMES.index(config.probe), config.max_steps)
    return kernel.KernelData(Data(np.zeros(1)), {"train": (params,)})


def reset(s: Any, p: Any, d: Any) -> None:
    if p.probe == OBSERVED or p.probe == MATCHED or p.probe == SWITCHES:
        for i in range(WIDTH):
            s.seen[i] = 1.0 if uniform(s) < 0.5 else -1.0
    if p.probe == TARGET:
        s.seen[0] = 1.6 * uniform(s) - 0.8


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    s.time = s.time + 1
    reward = 1.0
    terminated = True
    if p.probe == OBSERVED:
        reward = s.seen[0]
    elif p.probe == DELAYED:
        terminated = s.time == 2
        reward = 1.0 if s.time == 2 else 0.0
        s.seen[0] = 1.0
    elif p.probe == ACTION:
        reward = 1.0 if action[0] == 1 else -1.0
    elif p.probe == MATCHED:
        reward = 1.0 if (action[0] == 1) == (s.seen[0] > 0.0) else -1.0
    elif p.probe == ENDLESS:
        terminated = False
    elif p.probe == SWITCHES:
        reward = 0.0
        for i in range(WIDTH):
            if (action[i] == 1) == (s.seen[i] > 0.0):
                reward = reward + 1.0
    elif p.probe == TARGET:
        miss = float(action[0]) - s.seen[0]
        reward = -(miss * miss)
    s.score = reward
    return reward, terminated, False


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    for i in range(WIDTH):
        out[i] = s.seen[i]


def spec(p: Any, d: Any) -> EnvSpec:
    action: spaces.Space[Any] = spaces.Discrete(2)
    if p.probe == SWITCHES:
        action = spaces.MultiDiscrete([2] * WIDTH)
    if p.probe == TARGET:
        action = spaces.Box(-1.0, 1.0, (1,), np.float32)
    return EnvSpec(
        observation_space=spaces.Box(-1.0, 1.0, (WIDTH,), np.float32),
        action_space=action,
        metrics=(Metric("score", "reward of the last step"),),
        max_episode_steps=p.max_steps,
    )
