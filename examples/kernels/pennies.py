"""Matching pennies: player 1 wins if both show the same side, player 2 if they do not.

The only equilibrium is to show either side half of the time: whoever can be foreseen loses.

    slipstream train examples/kernels/pennies.py --set env.self_play={}
"""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config, kernel
from slipstream.core.spec import Metric, Spec


class Config(config.Config):
    pass


class Params(NamedTuple):
    pass


class Data(NamedTuple):
    pass


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("winner", "i8")], align=True)


def load(config: Config) -> kernel.Loaded:
    return kernel.Loaded(Data(), {"train": (Params(),)})


def reset(s: Any, p: Any, d: Any) -> None:
    s.winner = 0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[tuple[float, float], bool, bool]:
    s.winner = 1 if action[0, 0] == action[1, 0] else -1
    reward = float(s.winner)
    return (reward, -reward), True, False


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Who one is: 1 wants the same side, -1 the other one."""
    out[0] = 1.0 - 2.0 * player


def spec(p: Any, d: Any) -> Spec:
    return Spec(
        observation=spaces.Box(-1.0, 1.0, (1,), np.float32),
        action=spaces.Discrete(2),
        metrics=(Metric("winner", "1 or -1"),),
        players=2,
        winner="winner",
        max_episode_steps=1,
    )
