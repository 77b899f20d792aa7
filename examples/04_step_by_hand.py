"""Thousands of copies stepped together, no agent: with values returned, or into your own arrays.

python examples/04_step_by_hand.py [STEPS]
"""

import sys
import time

import numpy as np

import slipstream
from slipstream.kernels.vector_env import StepBuffers

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
env = slipstream.make_vec("cartpole", num_envs=1024)
copies, shape = env.num_envs, env.spec.observation_shape

obs = env.reset(seed=1)
obs, reward, terminated, truncated = env.step(np.ones(copies, np.int64))
print(f"mean reward of a first step: {reward.mean():.1f}")

# For speed the results are written where you want them; nothing is allocated or checked.
obs = np.zeros((copies, *shape), np.float32)
reward = np.zeros(copies, np.float32)
terminated, truncated, valid = (np.zeros(copies, np.bool_) for _ in range(3))
out = StepBuffers(obs, reward, terminated, truncated, valid)
actions = np.random.default_rng(0).integers(0, 2, (copies, 1))

env.reset(obs)
began = time.perf_counter()
for t in range(steps):
    env.step(actions, out, t)
print(f"{copies * steps / (time.perf_counter() - began):,.0f} steps per second")

ended = env.drain_episodes()
print(f"{len(ended.returns):,} episodes ended, of {ended.length.mean():.0f} steps on average")
