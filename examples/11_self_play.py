"""Learn tic-tac-toe by self-play, then play against a random player.

python examples/11_self_play.py [STEPS]

Output:

    368 snapshots
    first player against random moves: won 97.0%, drew 3.0%
"""

import sys

import numpy as np

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000

run = slipstream.train(
    "tictactoe",
    total_timesteps=steps,
    overrides={
        # The opponent is the learner's policy of the previous iteration.
        "env.self_play": {"sampling": "latest", "snapshot_iterations": 1},
        "evaluation.every": 1.0,  # keeps the last policy
    },
    report=False,
)
print(f"{run.metrics()['snapshots'][-1]:.0f} snapshots")

# The kernel takes the actions of both players: rows [games, player, ...].
env, games = slipstream.make_vec("tictactoe", num_envs=500, seed=1), 500
policy, rng = slipstream.load_policy(run), np.random.default_rng(1)
obs, results = env.reset(), []
while len(results) < games:
    actions = np.zeros((500, 2), np.int64)
    actions[:, 0] = policy.act(obs[:, 0], mask=env.mask[:, 0])
    actions[:, 1] = (env.mask[:, 1] * rng.random((500, 10))).argmax(1)  # a random allowed action
    obs, *_ = env.step(actions)
    results += env.episodes.metrics["winner"].tolist()
won, drawn = (np.mean(np.array(results) == value) for value in (1.0, 0.0))
print(f"first player against random moves: won {won:.1%}, drew {drawn:.1%}")
