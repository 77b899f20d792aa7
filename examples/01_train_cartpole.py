"""Train an agent, look at how it went, and let the best policy act: a minute in all.

python examples/01_train_cartpole.py [STEPS]
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = slipstream.train(
    "cartpole", total_timesteps=steps, num_envs=32, callbacks=[slipstream.ConsoleCallback()]
)
best = run.scores[run.best_member]
print(f"the policy of step {best.best_steps:,} was chosen; on fresh episodes it scores")
print(f"{best.test_score:.1f} +- {best.test_error:.1f}")

# The policy is complete: it scales observations and maps actions itself.
policy = slipstream.load_policy(run)
leaning_right = [0.0, 0.0, 0.1, 0.0]
print("a pole that leans to the right is pushed", ["left", "right"][policy.act(leaning_right)])

env = slipstream.make_vec("cartpole", num_envs=100)
obs, steps_survived = env.reset(seed=7), 0
for _ in range(200):
    obs, reward, terminated, truncated = env.step(policy.act(obs))
    steps_survived += int((~terminated).sum())
print(f"{steps_survived:,} of {100 * 200:,} steps without a fall")
