"""Step 1,024 environments without an agent: into new arrays, and into arrays of the caller.

python examples/04_step_by_hand.py [STEPS]

Output:

    mean reward of the first step: 1.0
    26,406,393 steps per second
    108,997 episodes, 9 steps on average
"""

import sys
import time

import numpy as np

import slipstream
from slipstream.kernels.vector_env import StepBuffers

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
env = slipstream.make_vec("cartpole", num_envs=1024)
num_envs, shape = env.num_envs, env.spec.observation_shape

obs = env.reset(seed=1)
obs, reward, terminated, truncated = env.step(np.ones(num_envs, np.int64))
print(f"mean reward of the first step: {reward.mean():.1f}")

# Faster: results are written into these arrays, without allocation or checks.
obs = np.zeros((num_envs, *shape), np.float32)
reward = np.zeros(num_envs, np.float32)
terminated, truncated, valid = (np.zeros(num_envs, np.bool_) for _ in range(3))
out = StepBuffers(obs, reward, terminated, truncated, valid)
actions = np.random.default_rng(0).integers(0, 2, (num_envs, 1))

env.reset(obs)
began = time.perf_counter()
for t in range(steps):
    env.step(actions, out, t)
print(f"{num_envs * steps / (time.perf_counter() - began):,.0f} steps per second")

ended = env.drain_episodes()
print(f"{len(ended.returns):,} episodes, {ended.length.mean():.0f} steps on average")
