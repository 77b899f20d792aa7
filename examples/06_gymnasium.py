"""Train on a Gymnasium environment by its id.

python examples/06_gymnasium.py [STEPS]

Output:

    after    50,176 steps: mean return   -82.7
    after   100,352 steps: mean return   -76.7
    after   150,528 steps: mean return   -78.9
    after   200,704 steps: mean return   -85.3
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = slipstream.train(
    {
        "env": {"name": "gym:Acrobot-v1", "kwargs": {}},  # kwargs go to gymnasium.make
        "agent": {"n_steps": 128, "batch_size": 256, "ent_coef": 0.01},
        "training": {"num_envs": 8, "total_timesteps": steps},
        "evaluation": {"episodes": 10, "every": 0.25},
    },
    report=False,
)
table = run.evaluations()  # columns of evaluations.csv
for at, score in zip(table["steps"], table["score"], strict=True):
    print(f"after {at:9,.0f} steps: mean return {score:7.1f}")
