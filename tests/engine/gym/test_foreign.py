"""What foreign environments do wrong ends in one paragraph that names the call and what came."""

from __future__ import annotations

import asyncio
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.errors import ConfigError, KernelError, ResourceError, SlipstreamError
from slipstream.gym import env_factory
from slipstream.gym.env_factory import flatten_spaces
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.gymnasium_semantics import NativeEnv
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import member_indices
from slipstream.training.environments.factory import resolve_environment

pytestmark = pytest.mark.usefixtures("one_server")

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Broken(gymnasium.Env):
    """Does as it is told, wrongly."""

    def __init__(self, made=None, begun=None, stepped=None, observation=None, action=None):
        self.observation_space = observation or spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = action or spaces.Discrete(2)
        self.begun, self.stepped = begun, stepped
        if made is not None:
            made()

    def reset(self, *, seed=None, options=None):
        return (np.zeros(4, np.float32), {}) if self.begun is None else self.begun()

    def step(self, action):
        right = (np.zeros(4, np.float32), 0.0, False, False, {})
        return right if self.stepped is None else self.stepped()


gymnasium.register("SlipstreamBroken-v0", Broken, disable_env_checker=True, order_enforce=False)


def one_step(**kwargs):
    env = ForeignEnv("SlipstreamBroken-v0", *member_indices([0], 2), kwargs=kwargs)
    out = allocate_buffers(env)
    env.reset(out.obs)
    env.step(np.zeros((2, 1), env.spec.action_dtype), out, 0)
    return out


def raising(error):
    def call():
        raise error

    return call


def seen(observation):
    return {"begun": lambda: (observation, {})}


def stepped(*values):
    return {"stepped": lambda: values}


FINE = np.zeros(4, np.float32)
DICT = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (2,), np.float32)})
WRONG = {
    "constructor raises": (
        {"made": raising(RuntimeError("no licence"))},
        "no licence.*constructor",
    ),
    "constructor exits": ({"made": raising(SystemExit(0))}, "SystemExit .0.*constructor"),
    "constructor asks for memory": ({"made": raising(MemoryError("2 TiB"))}, "memory.*2 TiB"),
    "reset raises": ({"begun": raising(KeyError("level"))}, "KeyError: 'level', in `reset`"),
    "reset exits": ({"begun": lambda: sys.exit()}, "SystemExit.*in `reset`"),
    "reset returns None": ({"begun": lambda: None}, "`reset`.*NoneType instead of a tuple"),
    "reset of the old interface": ({"begun": lambda: FINE}, "`reset`.*ndarray instead of a tuple"),
    "reset returns three": ({"begun": lambda: (FINE, {}, 1)}, "`reset`.*tuple"),
    "observation is None": (seen(None), "`reset`.*the observation None instead of float32"),
    "observation is text": (seen("start"), "'start' instead of float32"),
    "observation is a scalar": (seen(0.5), r"shape \(\) instead of float32 of shape \(4,\)"),
    "observation of one number": (seen(np.zeros(1)), r"shape \(1,\) instead of"),
    "observation too long": (seen(np.zeros(5)), r"shape \(5,\) instead of"),
    "observation with an axis more": (seen(np.zeros((1, 4))), r"shape \(1, 4\) instead of"),
    "observation is ragged": (seen([[1], [1, 2]]), "lengths"),
    "observation is a dict": (seen({"x": 1}), "a dict of 1 instead of"),
    "observation with NaN": (seen(np.full(4, np.nan)), "`reset`.*NaN or infinity"),
    "observation with infinity": (seen([0, 0, np.inf, 0]), "`reset`.*NaN or infinity"),
    "constructor is given nonsense": (
        {"made": raising(ValueError("no such level"))},
        rf"cannot be created.*no such level \({__file__}:\d+\)",
    ),
    "choice too large": (
        {**seen(9), "observation": spaces.Discrete(4, start=5)},
        "9, which is no integer from 5 to 8",
    ),
    "choice too small": (
        {**seen(3), "observation": spaces.Discrete(4, start=5)},
        "3, which is no integer from 5 to 8",
    ),
    "choice is a float": ({**seen(2.0), "observation": spaces.Discrete(4)}, "float64"),
    "choices too large": (
        {**seen(np.array([0, 3])), "observation": spaces.MultiDiscrete([2, 3])},
        "3, which is no integers",
    ),
    "a part is missing": ({**seen({"a": 1}), "observation": DICT}, r"without the part \['b'\]"),
    "a part is misshapen": (
        {**seen({"a": 1, "b": np.zeros(3)}), "observation": DICT},
        r"\['b'\] instead of",
    ),
    "an image of floats": (
        {**seen(np.zeros((8, 8, 3))), "observation": spaces.Box(0, 255, (8, 8, 3), np.uint8)},
        "float64",
    ),
    "step raises": ({"stepped": raising(ValueError("lost"))}, "ValueError: lost, in `step`"),
    "step exits": ({"stepped": lambda: sys.exit("bye")}, "SystemExit .'bye'"),
    "step returns None": ({"stepped": lambda: None}, "`step`.*NoneType instead of .observation"),
    "step of the old interface": (stepped(FINE, 0.0, False, {}), "tuple of 4 instead of"),
    "reward is None": (stepped(FINE, None, False, False, {}), "the reward None"),
    "reward is text": (stepped(FINE, "1.0", False, False, {}), "the reward '1.0'"),
    "reward is a row": (stepped(FINE, np.zeros(3), False, False, {}), "the reward"),
    "reward is NaN": (stepped(FINE, float("nan"), False, False, {}), "must be finite"),
    "terminated is None": (stepped(FINE, 0.0, None, False, {}), "`terminated` None"),
    "truncated is text": (stepped(FINE, 0.0, False, "no", {}), "`truncated` 'no'"),
    "terminated is 2": (stepped(FINE, 0.0, 2, False, {}), "`terminated` 2"),
    "step shows None": (stepped(None, 0.0, False, False, {}), "`step`.*the observation None"),
    "no observation space": ({"observation": "none"}, "no fixed flat size"),
    "time limit of 0": (
        {"max_episode_steps": 0},
        "max_episode_steps.*(positive integer|at least 1)",
    ),
    "time limit of -2": (
        {"max_episode_steps": -2},
        "max_episode_steps.*(positive integer|at least 1)",
    ),
    "time limit of 2.5": ({"max_episode_steps": 2.5}, "max_episode_steps"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_one_paragraph(name):
    kwargs, words = WRONG[name]
    with pytest.raises(SlipstreamError, match=words) as error:
        one_step(**kwargs)
    text = str(error.value)
    assert text.startswith("gym:SlipstreamBroken-v0") and "\n" not in text and len(text) < 700


@pytest.mark.parametrize(
    "values",
    [
        (FINE.astype(np.float64), np.float32(1), np.bool_(True), 0, {}),
        (FINE.tolist(), 1, np.array([False]), False, {}),
        (FINE, np.array([1.0]), 1, False, {}),
    ],
)
def test_what_means_the_same_is_taken(values):
    assert one_step(**stepped(*values)).reward.tolist() == [1.0, 1.0]


def test_where_it_was_raised_is_said():
    with pytest.raises(KernelError, match=rf"{__file__}:\d+"):
        one_step(begun=raising(RuntimeError("here")))


def test_choices_may_begin_anywhere():
    """As observation and as action: Discrete(4, start=5) is four columns, of which one is 1."""
    space = spaces.Discrete(4, start=5)
    out = one_step(**seen(6), **{"stepped": lambda: (8, 0.0, False, False, {})}, observation=space)
    assert out.obs.tolist() == [[0, 0, 0, 1]] * 2


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3_000_000_000_000),
        spaces.MultiDiscrete([2_000_000_000_000] * 3),
        spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Discrete(3_000_000_000_000)}),
    ],
)
def test_spaces_that_fit_no_memory_are_refused_before_anything_is_allocated(space):
    with pytest.raises(ResourceError, match=r"000,00.*numbers"):
        flatten_spaces("X", space, spaces.Discrete(2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: spaces.Box(0.0, 1.0, (3 * 10**12,), np.float32),
        lambda: spaces.Box(0, 255, shape=(6_000_000, 6_000_000, 3), dtype=np.uint8),
        lambda: spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (10**6, 10**7))}),
    ],
)
def test_a_box_that_fits_no_memory_is_refused_before_it_is_made(make):
    """Where the system grants what is never there, the process would be killed without a word."""
    init = spaces.Box.__init__

    class Huge(Broken):
        def __init__(self):
            self.observation_space = make()

    gymnasium.register("SlipstreamHuge-v0", Huge)
    try:
        with pytest.raises(
            ResourceError, match=r"SlipstreamHuge.*more memory.*a Box of [\d,]+ numbers"
        ):
            resolve_environment("gym:SlipstreamHuge-v0", {})
    finally:
        del gymnasium.registry["SlipstreamHuge-v0"]
    assert spaces.Box.__init__ is init


def test_free_memory_is_looked_at_once_however_many_spaces_are_made(monkeypatch):
    looks = []
    monkeypatch.setattr(env_factory, "free_memory", lambda: looks.append(0) or 2**30)
    with env_factory._memory_guard():
        spaces.Tuple([spaces.Box(0.0, 1.0, (2,)) for _ in range(5)])
    assert len(looks) == 1


def test_actions_that_fit_no_memory_are_refused_before_anything_is_allocated():
    gymnasium.register("SlipstreamWide-v0", lambda: Broken(action=spaces.Discrete(3 * 10**9)))
    with pytest.raises(KernelError, match="has 3,000,000,000 actions or numbers"):
        resolve_environment("gym:SlipstreamWide-v0", {})


def test_a_list_may_stand_for_a_tuple():
    """As for Gymnasium."""
    space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))
    out = one_step(
        **seen([2, 1]), **{"stepped": lambda: ((0, 1), 0.0, False, False, {})}, observation=space
    )
    assert out.obs.tolist() == [[1, 0, 0, 0, 1]] * 2


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "10"])
def test_a_kernels_time_limit_is_a_number_of_steps(limit):
    with pytest.raises(KernelError, match=r"max_episode_steps.*(positive integer|at least 1)"):
        EnvSpec(spaces.Box(0, 1, (1,)), spaces.Discrete(2), max_episode_steps=limit)


@pytest.mark.parametrize("late", [1, 6])
def test_what_breaks_at_once_is_said_before_anything_is_trained(late):
    """So that a study says it, too, instead of a search in which every trial failed."""

    class Late(Broken):
        def __init__(self):
            super().__init__(action=spaces.MultiDiscrete([3, 2], start=[1, 4]))
            self.left = late

        def step(self, action):
            assert self.action_space.contains(action)
            self.left -= 1
            return (FINE if self.left else None), 0.0, False, False, {}

    gymnasium.register("SlipstreamLate-v0", Late, disable_env_checker=True)
    try:
        with pytest.raises(KernelError, match=r"`step`.*None"):
            resolve_environment("gym:SlipstreamLate-v0", {}).probed()
    finally:
        del gymnasium.registry["SlipstreamLate-v0"]


def test_modules_that_end_the_process_are_named(tmp_path, monkeypatch):
    (tmp_path / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "breaks_at_once.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in (("leaves", "SystemExit .0"), ("breaks", "ZeroDivisionError")):
        with pytest.raises(KernelError, match=words):
            resolve_environment(f"gym:{name}_at_once:Any-v0", {})
    with pytest.raises(ConfigError):
        resolve_environment("gym:Nothing-v0", {})


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("kind", [MuteError, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("where", ["made", "begun", "stepped"])
def test_whatever_class_of_exception_is_said(kind, where):
    """`CancelledError` is no `Exception`, and an exception's own text may be broken."""

    def fails(*_, **__):
        raise kind

    name = {"made": "__init__", "begun": "reset", "stepped": "step"}[where]
    Raises = type("Raises", (Broken,), {name: fails})

    one = member_indices([0], 1)
    wanted = rf"raised {kind.__name__}.*Fix the environment"
    with pytest.raises(KernelError, match=wanted), ForeignEnv(Raises, *one) as env:
        env.reset(allocate_buffers(env).obs)
        env.step(np.zeros((1, 1), np.int64), allocate_buffers(env))


def endless():
    space = spaces.Dict({"a": spaces.Discrete(2)})
    space.spaces["again"] = space
    return space


def unbounded():
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    space.low = np.full(2, np.nan, np.float32)
    return space


def test_spaces_that_contain_themselves_or_have_no_bounds():
    one = spaces.Discrete(2)
    with pytest.raises(ConfigError, match="observations: the space contains itself"):
        flatten_spaces("X", endless(), one)
    with pytest.raises(ConfigError, match="observations: the space contains itself"):
        NativeEnv([lambda: Broken(observation=endless())])
    with pytest.raises(ConfigError, match=r"observations: .*bound to a number or infinity"):
        flatten_spaces("X", unbounded(), one)
    with pytest.raises(ConfigError, match=r"actions: .*bound to a number or infinity"):
        flatten_spaces("X", one, unbounded())


@pytest.mark.parametrize("wrap", [lambda env: env, gymnasium.Wrapper], ids=["bare", "wrapped"])
def test_copies_that_are_one_object_are_refused(wrap):
    env = Broken()
    makers, rows = [lambda: wrap(env)] * 4, member_indices([0], 4)
    ways = {
        "serial": lambda: ForeignEnv(makers[0], *rows),
        "native": lambda: NativeEnv(makers),
        "processes": lambda: ForeignEnv(makers[0], *rows, workers=2),
    }
    for way, make in ways.items():
        with pytest.raises(
            ConfigError, match=r"the same environment twice.*instead of `lambda: env`"
        ):
            make().close()
            pytest.fail(way)


def test_copies_in_this_process_have_the_same_spaces():
    spaces_of = iter([spaces.Discrete(2), spaces.Discrete(3)])
    with pytest.raises(ConfigError, match=r"environment 1 has the action_space Discrete\(3\)"):
        ForeignEnv(lambda: Broken(action=next(spaces_of)), *member_indices([0], 2))
