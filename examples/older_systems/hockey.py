"""The hockey project's calls: a curriculum of theirs, a policy of the run, its vector environment.

python examples/older_systems/hockey.py [EPISODES]

Their example says `device="cuda:1"`, which needs a card. The curriculum is slipstream's own: 5,200
games of shooting, defending, bots and self-play. EPISODES makes each of its phases that short.
"""

import json
import sys

import numpy as np

import slipstream
from slipstream.compat.hockey_project.single_run import CURRICULUM, train_single_run
from slipstream.compat.hockey_project.vectorized_env import VectorizedHockeyEnvOptimized

config = json.loads(CURRICULUM.read_text())
games = 200
if len(sys.argv) > 1:
    games, config["training"]["warmup_steps"] = 4, 500
    config["training"]["checkpoint_save_freq"] = int(sys.argv[1])
    for phase in config["curriculum"]["phases"]:
        phase["episodes"] = int(sys.argv[1])

result = train_single_run(
    config,
    base_output_dir="results/runs",
    verbose=False,
    eval_freq_steps=100_000,
    eval_num_games=games,
    num_envs=4,
)
print(f"{result['run_name']}: {result['total_episodes']} games, {result['total_steps']:,} steps")
print(f"games won of the last evaluation: {result['evaluation_results'][-1]['win_rate']:.0%}")

policy = slipstream.load_policy(f"results/runs/models/{result['run_name']}_best")
env = VectorizedHockeyEnvOptimized(num_envs=4, opponents={"strong": 1})
obs, winners = env.reset(), []
while len(winners) < 4:
    actions = policy.act_batch(obs, deterministic=True)
    obs, rewards, dones, truncs, infos = env.step(actions)
    winners += [infos[game]["winner"] for game in np.flatnonzero(dones)]
env.close()
print(f"against the strong bot: {winners.count(1)} won, {winners.count(-1)} lost of {len(winners)}")
