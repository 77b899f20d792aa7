"""Matching pennies for self-play: player 1 wins if both show the same side, else player 2.

The only equilibrium is to show either side half of the time: whoever can be foreseen loses.
"""

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Metric


class Config(config.Config):
    pass


class Params(NamedTuple):
    pass


class Data(NamedTuple):
    pass


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("winner", "i8")], align=True)


def load(config):
    return kernel.KernelData(Data(), {"train": (Params(),)})


def reset(s, p, d):
    s.winner = 0


def step(s, action, p, d):
    s.winner = 1 if action[0, 0] == action[1, 0] else -1
    return (float(s.winner), -float(s.winner)), True, False


def observe(s, p, d, player, out):
    out[0] = 1.0 - 2.0 * player  # who one is: 1 wants the same side, -1 the other one


def spec(p, d):
    return EnvSpec(
        observation_space=spaces.Box(-1.0, 1.0, (1,), np.float32),
        action_space=spaces.Discrete(2),
        metrics=(Metric("winner", "1 or -1"),),
        players=2,
        winner="winner",
        max_episode_steps=1,
    )
