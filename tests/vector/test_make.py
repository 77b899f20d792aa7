"""From a target to environments, and messages that say what would work."""

from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.vector.contract import blank, random_actions
from slipstream.vector.make import make_vector_env

CLOCK = str(Path(__file__).parent / "kernels" / "clock.py")


@pytest.mark.parametrize(
    ("target", "backend", "config"),
    [
        ("cartpole", "compiled", {"max_steps": 20}),
        (CLOCK, "compiled", {"records": [[2, 0]]}),
        ("gym:Acrobot-v1", "serial", {}),
        ("gym:MountainCarContinuous-v0", "serial", {"kwargs": {"goal_velocity": 0.1}}),
    ],
)
def test_targets(target, backend, config):
    env = make_vector_env(target, 3, 5, config=config)
    assert env.num_envs == 3 and env.backend == backend
    out = blank(env)
    env.reset(out.obs)
    draw = np.random.default_rng(0)
    for t in range(25):
        env.step(random_actions(env.spec, 3, draw), out, t)
    assert np.isfinite(out.obs).all()
    env.close()


def test_all_backends_agree():
    envs = [
        make_vector_env("cartpole", 4, 1, backend=backend, workers=workers)
        for backend, workers in (("serial", "auto"), ("compiled", 1), ("auto", 2), ("auto", "auto"))
    ]
    outs = [blank(env) for env in envs]
    for env, out in zip(envs, outs, strict=True):
        env.reset(out.obs)
        env.step(np.ones((4, 1), np.int64), out)
        assert (out.obs == outs[0].obs).all()
        env.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "cartpol"}, ["did you mean `cartpole`"]),
        ({"target": "cartpole", "num_envs": 0}, ["`num_envs` must be at least 1"]),
        ({"target": "cartpole", "backend": "process"}, ["do not exist yet", "compiled or serial"]),
        ({"target": "cartpole", "backend": "cuda"}, ["GPU", "auto or compiled or serial"]),
        ({"target": "cartpole", "backend": "quick"}, ["no such backend"]),
        ({"target": "cartpole", "backend": "serial", "workers": 2}, ["`backend: compiled`"]),
        ({"target": "cartpole", "split": "validation"}, ["no split `validation`", "train"]),
        ({"target": "cartpole", "config": {"gravty": 1}}, ["`env.gravty`", "`gravity`"]),
        ({"target": "gym:Acrobot-v1", "backend": "compiled"}, ["only kernels", "auto or serial"]),
        ({"target": "gym:Acrobot-v1", "workers": 2}, ["one worker", "`auto`"]),
        ({"target": "gym:Acrobot-v1", "config": {"gravity": 1}}, ["`gravity`", "`kwargs`"]),
        ({"target": "gym:Acrobat-v1"}, ["gym:Acrobat-v1 cannot be made: "]),
        ({"target": "gym:absent_module:X-v0"}, ["absent_module", "install the package"]),
        (
            {"target": "gym:Acrobot-v1", "config": {"kwargs": {"speed": 1}}},
            ["with the arguments {'speed': 1}"],
        ),
    ],
)
def test_what_cannot_be_had(arguments, words):
    with pytest.raises(ConfigError) as error:
        make_vector_env(**{"num_envs": 2, **arguments})
    assert all(word in str(error.value) for word in words), str(error.value)
