"""Search hyperparameters, confirm the best trials on new seeds, and load the winner's policy.

python examples/08_study.py [STEPS]

Output:

    Confirmed winner: trial 3.
    Mean return of the final seeds on fresh episodes: 487.2.
    Policy: /tmp/studies/example-08/policy (first seed of the final training, fixed in advance).
    {'agent.gamma': 0.9665746018354044, 'agent.learning_rate': 0.0008453845568211374}
    <Policy: observations 4, actions Discrete(2), layers 64 and 64, activation tanh>
"""

import sys

import slipstream

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000

study = slipstream.tune(
    {
        "env": "cartpole",
        "training": {"num_envs": 16, "total_timesteps": steps},
        "evaluation": {"episodes": 20},
    },
    study_name="example-08",  # studies/example-08; the same call resumes a killed study
    study={
        "n_trials": 6,
        "fold_seeds": 2,  # without prices, a fold is a seed
        "space": {
            "agent.learning_rate": {"low": 3e-4, "high": 3e-3, "log": True},
            "agent.gamma": {"low": 0.9, "high": 0.99},
        },
        "confirmation": {"top": 2, "seeds": 2},
        "final_seeds": 2,
    },
    report=False,
)
print(study.outcome)
if study.outcome.winner is not None:
    print(study.outcome.params)
    print(slipstream.load_policy(study))
