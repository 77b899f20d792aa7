"""Step environments of slipstream as a Gymnasium `VectorEnv`.

Other libraries: `slipstream.make_adapter("sb3", "cartpole", num_envs=64)`; docs/guides/adapters.md.

python examples/10_adapters.py [STEPS]

Output:

    390 episodes, mean return 481.2
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.wrappers.vector import RecordEpisodeStatistics

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

envs = gym.make_vec("slipstream.adapters.registration:slipstream/cartpole-v0", num_envs=64)
envs = RecordEpisodeStatistics(envs)
obs, infos = envs.reset(seed=1)
returns = []
for _ in range(steps // envs.num_envs):
    # Push in the direction in which the pole leans and moves.
    actions = (obs[:, 2] + obs[:, 3] > 0).astype(np.int64)
    obs, rewards, terminations, truncations, infos = envs.step(actions)
    if "episode" in infos:
        returns += infos["episode"]["r"][infos["_episode"]].tolist()
envs.close()
print(f"{len(returns)} episodes, mean return {np.mean(returns) if returns else float('nan'):.1f}")
