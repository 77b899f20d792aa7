"""Any Gymnasium environment trains by its id; its copies are stepped one after another.

python examples/06_gymnasium.py [STEPS]
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
