"""Stable-Baselines3's VecEnv: what DummyVecEnv and VecMonitor give, and its algorithms on it."""

from functools import partial

import gymnasium
import numpy as np
import pytest

sb3 = pytest.importorskip(
    "stable_baselines3", reason="pip install --no-deps -r requirements/peers.lock has SB3"
)

from stable_baselines3.common import vec_env as theirs  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402

from slipstream.adapters.batch import ActionError, ResetNeededError  # noqa: E402
from slipstream.adapters.gymnasium_env import EnvAdapter  # noqa: E402
from slipstream.adapters.sb3 import ForeignVecEnv, make_vec  # noqa: E402
from slipstream.core.errors import ConfigError  # noqa: E402

pytestmark = pytest.mark.peers


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def assert_steps(ours, dummy, same_spaces, handed, steps=40):
    """Both give the same, statistics of time apart."""
    ours.seed(3), dummy.seed(3)
    assert same_spaces(handed.take(ours.reset()), dummy.reset())
    drawn = np.random.default_rng(0)
    ended = 0
    for _ in range(steps):
        actions = drawn.integers(0, 2, ours.num_envs)
        one, other = handed.take(ours.step(actions)), dummy.step(actions)
        assert same_spaces(one[:3], other[:3])
        for mine, own in zip(one[3], other[3], strict=True):
            assert mine.keys() == own.keys()
            mine, own = dict(mine), dict(own)
            for key in ("r", "l"):
                assert mine.get("episode", {}).get(key) == own.get("episode", {}).get(key)
            ended += "episode" in mine
            mine.pop("episode", None), own.pop("episode", None)
            assert same_spaces(mine, own)
    assert ended > 2


def test_kernels_step_as_under_dummy_vec_env(same_spaces, handed):
    ours = make_vec("cartpole", 3, backend="serial", max_steps=12)
    single = partial(EnvAdapter, "cartpole", backend="serial", max_steps=12)
    assert_steps(ours, theirs.VecMonitor(theirs.DummyVecEnv([single] * 3)), same_spaces, handed)


@pytest.mark.parametrize("backend", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_foreign_environments_step_as_under_dummy_vec_env(backend, same_spaces, handed):
    ours = ForeignVecEnv([cartpole] * 3, backend=backend, workers=2)
    dummy = theirs.VecMonitor(theirs.DummyVecEnv([cartpole] * 3))
    try:
        assert_steps(ours, dummy, same_spaces, handed)
        assert ours.get_attr("gravity") == [9.8] * 3
        ours.set_attr("gravity", 1.0, indices=-1)
        assert ours.get_attr("gravity", [0, 2]) == [9.8, 1.0]
        assert ours.env_method("get_wrapper_attr", "force_mag", indices=1) == [10.0]
        assert ours.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True] * 3
        assert ours.env_is_wrapped(Monitor, 0) == [True]  # the infos have its statistics
        ours.set_options({"low": -0.01, "high": 0.01})
        assert np.abs(ours.reset()).max() <= 0.01
        assert np.abs(ours.reset()).max() > 0.01  # options are used once
    finally:
        ours.close()


HEAVY = """
import sys

import gymnasium
import numpy as np


class Heavy(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    @property
    def loaded(self):
        return [name for name in ("torch", "stable_baselines3") if name in sys.modules]

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


gymnasium.register("HeavyHere-v0", entry_point="heavy_here:Heavy")
"""


def test_workers_load_neither_torch_nor_sb3(tmp_path, monkeypatch):
    """176 MB and most of a minute in each of them."""
    (tmp_path / "heavy_here.py").write_text(HEAVY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    face = make_vec("gym:heavy_here:HeavyHere-v0", 2, backend="process", workers=1)
    try:
        assert face.get_attr("loaded") == [[], []]
        assert face.env_is_wrapped(gymnasium.wrappers.OrderEnforcing) == [True, True]
    finally:
        face.close()
        gymnasium.registry.pop("HeavyHere-v0", None)


class Takes(gymnasium.Env):
    """Says which action it was given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {"given": action}


PARTS = {"turn": gymnasium.spaces.Discrete(3), "push": gymnasium.spaces.Box(-1, 1, (2,))}


@pytest.mark.parametrize(
    "space", [gymnasium.spaces.Dict(PARTS), gymnasium.spaces.Tuple(PARTS.values())], ids=type
)
def test_lists_of_nested_actions_are_one_for_each_copy(space):
    """Two copies and two parts: a list of pairs must not be read as a pair of columns."""
    makers = [lambda: Takes(space)] * 2
    ours, dummy = ForeignVecEnv(makers, backend="serial"), theirs.DummyVecEnv(makers)
    space.seed(1)
    actions = [space.sample() for _ in range(2)]
    given = []
    for face in (ours, dummy):
        face.reset()
        given.append([info["given"] for info in face.step(actions)[3]])
    for mine, own in zip(*given, strict=True):
        parts = own.keys() if isinstance(own, dict) else range(len(own))
        assert all(np.array_equal(mine[part], own[part]) for part in parts)


class Breaks(gymnasium.Wrapper):
    def step(self, action):
        raise ZeroDivisionError("the simulator broke")


def test_a_lost_episode_has_none_of_what_its_last_info_would_say():
    face = ForeignVecEnv(
        [lambda: Breaks(cartpole())], backend="serial", on_fault="restart", info_keywords=("won",)
    )
    face.reset()
    _, _, dones, (info,) = face.step([0])
    assert dones[0] and info["episode"]["won"] is None and info["TimeLimit.truncated"]
    face.close()


def test_an_end_by_the_limit_is_told_from_a_real_one(kernel_file):
    face = make_vec(
        kernel_file("clock"), 1, backend="serial", records=[[3, 3]], info_keywords=("sum",)
    )
    face.reset()
    for _ in range(2):
        assert face.step([1])[3] == [{"TimeLimit.truncated": False}]
    obs, rewards, dones, (info,) = face.step([1])
    assert rewards.dtype == np.float32 and dones.tolist() == [True]
    assert info["TimeLimit.truncated"] is False  # terminated as well
    assert info["terminal_observation"][0] == 3.0 and obs[0, 0] == 0.0
    assert info["late"] == 1.0
    assert info["episode"]["sum"] == info["sum"] == pytest.approx(0.3)
    cut = make_vec(kernel_file("clock"), 1, backend="serial", records=[[0, 1]])
    cut.reset()
    assert cut.step([1])[3][0]["TimeLimit.truncated"] is True


def test_attributes_of_a_kernels_copies(kernel_file):
    face = make_vec("cartpole", 3, backend="serial")
    face.reset()
    face.set_attr("x", 0.5, indices=[1])
    assert face.get_attr("x", 1) == [0.5] and face.get_attr("x", -1) != [0.5]
    assert face.step([0, 0, 0])[0][1, 0] == pytest.approx(0.5, abs=0.1)
    assert face.get_attr("gravity") == [9.8] * 3
    face.set_attr("level", 7)
    assert face.get_attr("level", [2]) == [7]
    assert face.has_attr("level") and not face.has_attr("nothing")
    assert face.env_is_wrapped(Monitor) == [True] * 3  # the infos have its statistics
    with pytest.raises(IndexError, match="less than 3 sub-environments"):
        face.get_attr("x", 3)
    masked = make_vec(kernel_file("masked"), 2, backend="serial")
    masked.reset()
    assert np.stack(masked.env_method("action_masks")).shape == (2, 5)


def test_wrong_use_is_named():
    face = make_vec("cartpole", 2, backend="serial")
    with pytest.raises(ResetNeededError, match="call `reset`"):
        face.step([0, 0])
    face.reset()
    with pytest.raises(ResetNeededError, match="`step_async` before `step_wait`"):
        face.step_wait()
    with pytest.raises(ActionError, match="shape"):
        face.step([0])
    with pytest.raises(ConfigError, match="unknown metrics profit"):
        make_vec("cartpole", 2, backend="serial", info_keywords=("profit",))
    face.set_options({"low": 0})
    with pytest.raises(ConfigError, match="no reset options"):
        face.reset()
    with pytest.raises(ConfigError, match=r"has 2 players, but SB3 steps one. .*PettingZoo"):
        make_vec("tictactoe", 2, backend="serial")
    with pytest.raises(ConfigError, match="only takes `kwargs` and `wrappers`"):
        make_vec("gym:CartPole-v1", 2, low=3)


def test_wrappers_of_theirs_fit_around_it():
    inner = make_vec("cartpole", 4, backend="serial")
    face = theirs.VecNormalize(theirs.VecFrameStack(inner, 2))
    assert face.reset().shape == (4, 8)
    infos = [info for _ in range(40) for info in face.step(np.zeros(4, int))[3]]
    final = next(info for info in infos if "episode" in info)
    assert final["terminal_observation"].shape == (8,)


@pytest.mark.parametrize("name", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_their_algorithms_train_on_it(name):
    import torch

    torch.set_num_threads(1)
    if name == "PPO":
        own = {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 3e-3}
        steps, envs = 8_192, 16
    else:
        own = {"learning_starts": 200, "train_freq": 4, "gradient_steps": 4, "buffer_size": 5_000}
        steps, envs = 3_000, 4
    face = make_vec("cartpole", envs)
    model = getattr(sb3, name)("MlpPolicy", face, seed=1, device="cpu", **own)
    first = next(model.policy.parameters())
    before = first.detach().clone()
    model.learn(steps)
    assert not torch.equal(before, first)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert len(returns) > 20
    if name == "PPO":  # a random policy makes 22 steps
        assert np.mean(returns) > 40


def test_without_the_library_the_face_says_what_to_install(monkeypatch):
    import sys

    from slipstream.core.errors import ResourceError
    from slipstream.core.extras import import_optional

    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(ResourceError, match="pip install 'stable-baselines3>="):
        import_optional("stable_baselines3", "The face for Stable-Baselines3", "sb3")


class Unpicklable(gymnasium.Wrapper):
    """Its attribute cannot leave the process that steps it."""

    def __init__(self, env):
        super().__init__(env)
        self.rule = lambda: 1


def wrapped_with_a_lambda():
    return Unpicklable(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_has_attr_fetches_nothing(backend):
    face = ForeignVecEnv([wrapped_with_a_lambda] * 2, backend=backend, workers=1)
    try:
        face.reset()
        assert face.has_attr("rule") and face.has_attr("gravity")
        assert not face.has_attr("nothing")
    finally:
        face.close()
