"""Train eight members at once: two seeds of each of four learning rates, in one run.

python examples/02_population.py [STEPS]

Output:

    learning rate 0.0001, seed 0: 199
    learning rate 0.0001, seed 1: 500
    learning rate 0.0003, seed 2: 500
    learning rate 0.0003, seed 3: 500
    learning rate 0.001, seed 4: 500
    learning rate 0.001, seed 5: 500
    learning rate 0.003, seed 6: 500
    learning rate 0.003, seed 7: 500
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
rates = [1e-4, 1e-4, 3e-4, 3e-4, 1e-3, 1e-3, 3e-3, 3e-3]

run = slipstream.train(
    "cartpole",
    members=len(rates),
    num_envs=16,
    total_timesteps=steps,
    overrides={"agent.learning_rate": rates},
)
for rate, score in zip(rates, run.scores, strict=True):
    print(f"learning rate {rate:g}, seed {score.seed}: {score.best_score:.0f}")
