"""From a name to environments, and messages that say what would work."""

from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.gym.gymnasium_environment import GymnasiumKind
from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.kernels.vector_env import member_indices
from slipstream.report.inputs import Backtest
from slipstream.training.environments.autotune_cache import Tunable
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import (
    DataWindow,
    get_kind,
    load_window,
    make_environment,
)
from slipstream.training.environments.kernel_environment import (
    KernelEnvironment,
    KernelKind,
    Timeline,
)

SOURCES = Path(__file__).parents[4] / "src/slipstream"
CLOCK = str(Path(__file__).parents[2] / "samples/clock.py")


@pytest.mark.parametrize(
    ("target", "backend", "settings"),
    [
        ("cartpole", "compiled", {"max_steps": 20}),
        (CLOCK, "compiled", {"records": [[2, 0]]}),
        ("gym:Acrobot-v1", "serial", {}),
        ("gym:MountainCarContinuous-v0", "serial", {"kwargs": {"goal_velocity": 0.1}}),
    ],
)
def test_targets(target, backend, settings):
    env = slipstream.make_vec(target, 3, seed=5, **settings)
    assert env.num_envs == 3 and env.backend == backend
    out = allocate_buffers(env)
    env.reset(out.obs)
    draw = np.random.default_rng(0)
    for t in range(25):
        env.step(random_actions(env.spec, 3, draw), out, t)
    assert np.isfinite(out.obs).all()
    env.close()


def test_all_backends_agree():
    envs = [
        slipstream.make_vec("cartpole", 4, seed=1, backend=backend)
        for backend in ("serial", "compiled", "auto")
    ]
    outs = [allocate_buffers(env) for env in envs]
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
        (
            {"target": "cartpole", "backend": "process"},
            ["a kernel is compiled", "compiled or serial"],
        ),
        ({"target": "cartpole", "backend": "cuda"}, ["GPU", "auto or compiled or serial"]),
        ({"target": "cartpole", "backend": "quick"}, ["no such backend"]),
        ({"target": "cartpole", "gravty": 1}, ["`env.gravty`", "`gravity`"]),
        ({"target": "gym:Acrobot-v1", "backend": "compiled"}, ["only kernels", "auto or serial"]),
        ({"target": "gym:Acrobot-v1", "gravity": 1}, ["`env.gravity`", "known keys: kwargs"]),
        ({"target": "gym:Acrobat-v1"}, ["gym:Acrobat-v1 cannot be created: "]),
        ({"target": "gym:absent_module:X-v0"}, ["absent_module", "Install the package"]),
        (
            {"target": "gym:Acrobot-v1", "kwargs": {"speed": 1}},
            ["with the arguments {'speed': 1}"],
        ),
    ],
)
def test_what_cannot_be_had(arguments, words):
    with pytest.raises(ConfigError) as error:
        slipstream.make_vec(**{"num_envs": 2, **arguments})
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cartpole", KernelKind),
        ("mine.py", KernelKind),
        ("gym:CartPole-v1", GymnasiumKind),
        ("gym:module:X-v0", GymnasiumKind),
    ],
)
def test_the_name_says_the_kind(name, kind):
    assert get_kind(name) == kind(name) and get_kind(name).is_known


def test_kinds_answer_for_their_names():
    """Properties depend on the kind of environment, not on the prefix of its name."""
    gym, kernel = get_kind("gym:a:B-v1"), get_kind("cartpole")
    assert (gym.short_name, get_kind("x/my_env.py").short_name) == ("a:B-v1", "my_env")
    assert gym.open_section == "kwargs" and kernel.open_section is None
    assert not kernel.has_folds
    assert gym.default_hyperparams("ppo")["agent"] and kernel.default_hyperparams("ppo")
    for refused in (
        lambda: gym.check_rules({}, 1),
        lambda: load_window("gym:a:B-v1", {}, DataWindow()),
        lambda: load_window("cartpole", {}, DataWindow()),
    ):
        with pytest.raises(ConfigError):
            refused()


@pytest.mark.parametrize("name", ["cartpole", "gym:CartPole-v1"])
def test_what_is_loaded(name):
    environment = make_environment(name, {})
    own = isinstance(environment, KernelEnvironment)
    assert environment.kind.resumable == own
    noun = environment.kind.max_envs(environment.spec)[1]
    assert noun == ("a kernel" if own else "a Gymnasium environment")
    assert environment.metadata["name"] == name
    assert bool(environment.metadata.get("sources")) == own
    assert (environment.part(KernelEnvironment) is environment) == own
    assert environment.part(Tunable) is environment and environment.part(Backtest) is None
    assert environment.part(Timeline) is None and environment.splits() == ("train",)
    assert environment.check({}) is None
    held = environment.make_eval_envs("test", 20, 2)
    assert held.num_envs == (40 if own else 16), "foreign copies must each be made"
    held.close()


def test_members_of_a_joined_environment_have_their_own_records():
    environment = make_environment(CLOCK, {"records": [[2, 0], [3, 0], [4, 0]]})
    every = environment.records("train")
    joined = environment.batched([every[:1], every[1:]])
    assert joined.records("train") == every
    env = joined.make_envs(*member_indices([1, 2], 3), "serial")
    assert env.reset()[:, 2].tolist() == [0, 0, 0, 1, 2, 1]
    assert isinstance(joined, Environment)


def test_nobody_asks_which_kind_it_is():
    """Only the factory knows the prefix; messages and completions may show it."""
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        assert "startswith(GYMNASIUM)" not in text or path.name == "factory.py", path
        assert 'startswith("gym:' not in text, path
