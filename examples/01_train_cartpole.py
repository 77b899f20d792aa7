"""Train an agent, look at how it went, and let the best policy act: a minute in all.

python examples/01_train_cartpole.py [STEPS]
"""

import sys

import numpy as np

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = slipstream.train(
    "cartpole", total_steps=steps, num_envs=32, listeners=[slipstream.ConsoleListener()]
)
best = run.result["members"][0]
print(f"best validation score {best['best_score']:.0f} after {best['best_steps']:,} steps")

# The policy is complete: it scales observations and maps actions itself.
policy = slipstream.load_policy(run)
leaning_right = np.array([[0.0, 0.0, 0.1, 0.0]], dtype=np.float32)
print(
    "a pole that leans to the right is pushed",
    ["left", "right"][int(policy.act(leaning_right)[0, 0])],
)
