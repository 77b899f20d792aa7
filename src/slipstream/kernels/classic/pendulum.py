"""Pendulum swing-up with limited torque, identical to Gymnasium's Pendulum-v1 step by step.

Reward -(angle^2 + 0.1 speed^2 + 0.001 torque^2) before the step, angle measured from upright in
[-pi, pi). Episodes are truncated after 200 steps and never terminate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from pydantic import Field

from slipstream.core import config
from slipstream.core.bounds import Gravity, Magnitude, SomeBars, TimeStep
from slipstream.core.random import uniform
from slipstream.kernels.spec import EnvSpec, Symmetry


class Config(config.Config):
    gravity: Gravity = Field(10.0, description="m/s^2")
    mass: Magnitude = Field(1.0, description="kg")
    length: Magnitude = Field(1.0, description="m")
    time_step: TimeStep = Field(0.05, description="s")
    max_torque: Magnitude = Field(2.0, description="N m")
    max_speed: Magnitude = Field(8.0, description="rad/s")
    max_steps: SomeBars = Field(200, description="steps per episode")


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("angle", "f8"), ("speed", "f8")], align=True)

# Defaults of `slipstream train pendulum`. PPO reaches about -160 after 500,000 steps.
DEFAULT_HYPERPARAMS = {
    "ppo": {
        "agent": {
            "n_steps": 256,
            "batch_size": 512,
            "n_epochs": 8,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
            "gamma": 0.95,
            "gae_lambda": 0.9,
        },
        "training": {"num_envs": 16, "total_timesteps": 500_000},
    },
    # learning_rate and budget of the RL Zoo (Raffin 2020); about -150 from 10,000 steps on
    "sac": {
        "agent": {"learning_rate": 1e-3},
        "training": {"num_envs": 1, "total_timesteps": 20_000},
    },
    # learning_rate of the paper; batch and budget as for sac
    "td3": {
        "agent": {"learning_rate": 1e-3},
        "training": {"num_envs": 1, "total_timesteps": 20_000},
    },
}


def reset(s: Any, p: Any, d: Any) -> None:
    s.angle = math.pi * (2.0 * uniform(s) - 1.0)
    s.speed = 2.0 * uniform(s) - 1.0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    torque = min(max(float(action[0]), -p.max_torque), p.max_torque)
    turns = math.floor((s.angle + math.pi) / (2.0 * math.pi))
    from_upright = s.angle - 2.0 * math.pi * turns
    cost = from_upright * from_upright + 0.1 * (s.speed * s.speed) + 0.001 * (torque * torque)
    inertia = p.mass * (p.length * p.length)
    speed = s.speed + p.time_step * (
        3.0 * p.gravity / (2.0 * p.length) * math.sin(s.angle) + 3.0 / inertia * torque
    )
    s.speed = min(max(speed, -p.max_speed), p.max_speed)
    s.angle = s.angle + p.time_step * s.speed
    return -cost, False, False


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = math.cos(s.angle)
    out[1] = math.sin(s.angle)
    out[2] = s.speed


def spec(p: Any, d: Any) -> EnvSpec:
    bound = np.array([1.0, 1.0, p.max_speed], dtype=np.float32)
    return EnvSpec(
        observation_space=spaces.Box(-bound, bound, dtype=np.float32),
        action_space=spaces.Box(-p.max_torque, p.max_torque, (1,), np.float32),
        symmetry=Symmetry((1, 2), action=(0,)),  # clockwise and not
        max_episode_steps=p.max_steps,
    )
