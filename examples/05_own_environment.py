"""Train on a kernel file of your own: it is checked, trained by its path, and its policy is read.

python examples/05_own_environment.py [STEPS]

Output:

    shop.py passes all checks
    profit 108.4 and 7.1 customers lost in 60 days
    stock:   0   1   2   3   4   5   6   7   8   9  10  11  12
    order:  11  11  10   0   0   0   0   0   0   0   0   0   0
"""

import sys
from pathlib import Path

import numpy as np

import slipstream
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import load_kernel

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
shop = Path(__file__).parent / "kernels" / "shop.py"

# Checks finite rewards, observations within their space, interpreted equal to compiled, ...
kernel = load_kernel(str(shop))
check_environment(kernel)
print(f"{shop.name} passes all checks")

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

# The policy is a rule: order up to one level if the stock is below another.
capacity = kernel.module.CAPACITY
stock = np.arange(capacity + 1)
allowed = stock[:, None] + stock[None, :] <= capacity
observations = (stock[:, None] / capacity).astype(np.float32)
orders = slipstream.load_policy(run).act(observations, mask=allowed)
print("stock:", *(f"{had:3d}" for had in stock))
print("order:", *(f"{units:3d}" for units in orders))
