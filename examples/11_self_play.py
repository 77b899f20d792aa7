"""Self-play: tic-tac-toe from nothing, then games against whoever moves at random.

python examples/11_self_play.py [STEPS]
"""

import sys

import numpy as np

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000

run = slipstream.train(
    "tictactoe",
    total_timesteps=steps,
    overrides={
        # One seat is shown; in the other one sits the learner as it was an iteration ago.
        "env.self_play": {"sampling": "latest", "snapshot_iterations": 1},
        "evaluation.every": 1.0,  # the last policy is the one to keep
    },
    report=False,
)
print(f"{run.metrics()['snapshots'][-1]:.0f} snapshots were taken")

# The kernel asks for both players' actions: rows [games, player, ...].
env, games = slipstream.make_vec("tictactoe", num_envs=500, seed=1), 500
policy, rng = slipstream.load_policy(run), np.random.default_rng(1)
obs, results = env.reset(), []
while len(results) < games:
    actions = np.zeros((500, 2), np.int64)
    actions[:, 0] = policy.act(obs[:, 0], mask=env.mask[:, 0])
    actions[:, 1] = (env.mask[:, 1] * rng.random((500, 10))).argmax(1)  # anything allowed
    obs, *_ = env.step(actions)
    results += env.episodes.metrics["winner"].tolist()
won, drawn = (np.mean(np.array(results) == value) for value in (1.0, 0.0))
print(f"moving first against random moves it won {won:.1%} and drew {drawn:.1%}")
