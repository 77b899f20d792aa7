"""Search for settings, confirm the best on fresh seeds, take the winner's policy.

python examples/08_study.py [STEPS]
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
    study_name="example-08",  # studies/example-08; the same call goes on after a kill
    study={
        "n_trials": 6,
        "fold_seeds": 2,  # without prices a fold is a seed
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
    print(slipstream.load_policy(study).actions.width, "number an action")
