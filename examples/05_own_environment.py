"""An environment of your own: a kernel file is checked, trained by its path, and explained.

python examples/05_own_environment.py [STEPS]
"""

import sys
from pathlib import Path

import numpy as np

import slipstream
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import load_kernel

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
shop = Path(__file__).parent / "kernels" / "shop.py"

# Runs it: rewards finite, observations in their space, interpreted equal to compiled, ...
kernel = load_kernel(str(shop))
check_environment(kernel)
print(f"{shop.name} keeps the kernel contract")

run = slipstream.train(
    shop,
    total_timesteps=steps,
    num_envs=32,
    overrides={"env.delivery": 2.0, "agent.ent_coef": 0.01},  # any field of any section
    report=False,
)
result = slipstream.evaluate(run).splits["test"]  # new episodes
lost = result.metrics["lost"]
print(f"profit {result.mean_return:.1f} and {lost:.1f} customers lost in 60 days")

# What was learned is a rule: order up to a level, and only below another.
capacity = kernel.module.CAPACITY
stock = np.arange(capacity + 1)
allowed = stock[:, None] + stock[None, :] <= capacity
observations = (stock[:, None] / capacity).astype(np.float32)
orders = slipstream.load_policy(run).act(observations, mask=allowed)
print("with a stock of", *(f"{had:3d}" for had in stock))
print("it orders      ", *(f"{units:3d}" for units in orders))
