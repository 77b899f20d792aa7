"""Train an agent, evaluate it, and use its best policy.

python examples/01_train_cartpole.py [STEPS]

Output (shortened):

    ...
    Training 1 member, 200,000 steps, 1 shard, cpu
    Using Vectorized Environments: 32 parallel envs (compiled)
    ...
          20,480 steps  evaluation score 152.3  new best
          40,960 steps  evaluation score 256.1  new best
          60,416 steps  evaluation score 500  new best
    ...
    200,704 steps in 0:04 (57 k steps/s; ...)
    best policy: step 60,416, validation score 500.0
    split  member  episodes  mean return  95 % interval  mean length
    test   0             40          500     500 to 500          500
    pole leaning to the right: push right
    20,000 of 20,000 steps without a fall
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = slipstream.train(
    "cartpole", total_timesteps=steps, num_envs=32, callbacks=[slipstream.ConsoleCallback()]
)
best = run.scores[run.best_member]
print(f"best policy: step {best.best_steps:,}, validation score {best.best_score:.1f}")
print(slipstream.evaluate(run))  # new episodes, which selected no policy

# A policy scales observations and maps actions itself.
policy = slipstream.load_policy(run)
leaning_right = [0.0, 0.0, 0.1, 0.0]
print("pole leaning to the right: push", ["left", "right"][policy.act(leaning_right)])

env = slipstream.make_vec("cartpole", num_envs=100)
obs, steps_survived = env.reset(seed=7), 0
for _ in range(200):
    obs, reward, terminated, truncated = env.step(policy.act(obs))
    steps_survived += int((~terminated).sum())
print(f"{steps_survived:,} of {100 * 200:,} steps without a fall")
