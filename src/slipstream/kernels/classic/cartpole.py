"""CartPole (Barto, Sutton, Anderson 1983), identical to Gymnasium's CartPole-v1 step by step.

Euler integration at 50 Hz and reward 1 per step. An episode terminates when the pole leans more
than 12 degrees or the cart leaves the track, and is truncated after 500 steps.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slipstream.core import config
from slipstream.core.bounds import Gravity, Magnitude, SomeBars, TimeStep
from slipstream.core.random import uniform
from slipstream.kernels import kernel
from slipstream.kernels.spec import EnvSpec, Symmetry


class Config(config.Config):
    FIXED_KEYS: ClassVar[tuple[str, ...]] = (
        "gravity",
        "cart_mass",
        "pole_mass",
        "half_length",
        "force",
        "time_step",
        "max_steps",
    )

    gravity: Gravity = Field(9.8, description="m/s^2")
    cart_mass: Magnitude = Field(1.0, description="kg")
    pole_mass: Magnitude = Field(0.1, description="kg")
    half_length: Magnitude = Field(0.5, description="half the pole's length, m")
    force: Magnitude = Field(10.0, description="push to the left or right, N")
    time_step: TimeStep = Field(0.02, description="s")
    max_steps: SomeBars = Field(500, description="steps per episode")


class Params(NamedTuple):
    gravity: float
    pole_mass: float
    total_mass: float
    half_length: float
    force: float
    time_step: float
    max_steps: int


Data = kernel.NoData


STATE = np.dtype(
    [("key", "u8"), ("counter", "u8"), ("x", "f8"), ("v", "f8"), ("angle", "f8"), ("spin", "f8")],
    align=True,
)

# Defaults of `slipstream train cartpole`. PPO reaches 500 within 100,000 steps, DQN within 50,000.
DEFAULT_HYPERPARAMS = {
    "ppo": {
        "agent": {
            "n_steps": 32,
            "batch_size": 256,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "gamma": 0.98,
            "gae_lambda": 0.9,
            "reward_scaling": "on",  # otherwise values of 50 dominate the gradient norm
        },
        "training": {"num_envs": 16, "total_timesteps": 300_000},
    },
    "dqn": {
        "agent": {
            "batch_size": 128,
            "utd_ratio": 0.5,
            "n_step": 3,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "tau": 0.01,
            "target_update_interval": 1,
            "exploration_steps": 8000,
        },
        "training": {"num_envs": 1, "total_timesteps": 50_000},
    },
}

X_LIMIT = 2.4  # m
ANGLE_LIMIT = 12 * 2 * math.pi / 360  # rad


def load(config: Config) -> kernel.KernelData:
    params = Params(
        gravity=config.gravity,
        pole_mass=config.pole_mass,
        total_mass=config.cart_mass + config.pole_mass,
        half_length=config.half_length,
        force=config.force,
        time_step=config.time_step,
        max_steps=config.max_steps,
    )
    return kernel.KernelData(Data(np.zeros(1)), {"train": (params,)})


def reset(s: Any, p: Any, d: Any) -> None:
    s.x = 0.1 * uniform(s) - 0.05
    s.v = 0.1 * uniform(s) - 0.05
    s.angle = 0.1 * uniform(s) - 0.05
    s.spin = 0.1 * uniform(s) - 0.05


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    force = p.force if action[0] == 1 else -p.force
    cos = math.cos(s.angle)
    sin = math.sin(s.angle)
    pole_moment = p.pole_mass * p.half_length  # kg m
    push = (force + pole_moment * (s.spin * s.spin) * sin) / p.total_mass
    spin_rate = (p.gravity * sin - cos * push) / (
        p.half_length * (4.0 / 3.0 - p.pole_mass * (cos * cos) / p.total_mass)
    )
    acceleration = push - pole_moment * spin_rate * cos / p.total_mass
    s.x = s.x + p.time_step * s.v
    s.v = s.v + p.time_step * acceleration
    s.angle = s.angle + p.time_step * s.spin
    s.spin = s.spin + p.time_step * spin_rate
    fallen = s.x < -X_LIMIT or s.x > X_LIMIT or s.angle < -ANGLE_LIMIT or s.angle > ANGLE_LIMIT
    return 1.0, fallen, False


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = s.x
    out[1] = s.v
    out[2] = s.angle
    out[3] = s.spin


def spec(p: Any, d: Any) -> EnvSpec:
    bound = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], dtype=np.float32)
    return EnvSpec(
        observation_space=spaces.Box(-bound, bound, dtype=np.float32),
        action_space=spaces.Discrete(2),
        symmetry=Symmetry((0, 1, 2, 3), action_permutation=(1, 0)),  # left and right
        max_episode_steps=p.max_steps,
    )
