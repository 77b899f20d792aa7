"""`VectorizedHockeyEnv`: the hockey project's interface on our games, and modes by their names."""

import enum
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream import make_vec
from slipstream.compat.hockey_project.vectorized_env import (
    VectorizedHockeyEnv,
    VectorizedHockeyEnvOptimized,
)
from slipstream.core.errors import ConfigError


class Mode(enum.Enum):
    """As the original's."""

    NORMAL = 0
    TRAIN_SHOOTING = 1
    TRAIN_DEFENSE = 2


def test_modes_have_the_originals_names():
    def first(mode):
        env = make_vec("hockey", 2, backend="serial", mode=mode, opponents={"idle": 1})
        return env.reset(seed=1)

    assert np.array_equal(first("TRAIN_SHOOTING"), first("train_shooting"))
    assert np.array_equal(first(Mode.TRAIN_DEFENSE), first("train_defense"))
    assert np.array_equal(first({"NORMAL": 1.0}), first("normal"))
    with pytest.raises(ConfigError, match="mode"):
        make_vec("hockey", 2, mode="TRAIN_PASSING")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [VectorizedHockeyEnv, VectorizedHockeyEnvOptimized])
def test_games_of_two_are_our_copies(kind, handed):
    env = kind(2, lambda: SimpleNamespace(mode=Mode.TRAIN_SHOOTING, keep_mode=True), "spawn")
    alone = make_vec("hockey", 2, mode="train_shooting")
    assert env.observation_space.shape == (18,) and env.action_space.shape == (8,)
    assert (env.num_envs, env.mode, env.keep_mode) == (2, Mode.TRAIN_SHOOTING, True)
    obs, rows = env.reset(), alone.reset(seed=0)
    assert np.array_equal(obs, rows[:, 0]) and np.array_equal(env.obs_agent_two(), rows[:, 1])
    draw, over = np.random.default_rng(1), 0
    for _ in range(90):
        actions = draw.uniform(-1, 1, (2, 8)).astype(np.float32)
        obs, rewards, dones, truncs, infos = map(handed.take, env.step(actions))
        came = alone.step(actions.reshape(2, 2, 4))
        assert np.array_equal(rewards, came[1][:, 0]) and obs.dtype == np.float32
        assert np.array_equal(obs, came[0][:, 0])
        assert np.array_equal(dones, came[2] | came[3]) and np.array_equal(truncs, came[3])
        for game in np.flatnonzero(dones):
            over += 1
            assert infos[game]["winner"] in (-1, 0, 1)
            assert infos[game]["terminal_obs"].shape == (18,)
            assert not np.array_equal(infos[game]["terminal_obs"], obs[game])
        assert all(infos[game]["winner"] == 0 for game in np.flatnonzero(~dones))
        assert all("terminal_obs" not in infos[game] for game in np.flatnonzero(~dones))
    assert over >= 2
    handed.check()
    env.close()
    env.close()


def test_a_bot_may_have_the_second_seat():
    bot = SimpleNamespace(weak=True)
    env = VectorizedHockeyEnv(3, lambda: SimpleNamespace(mode="NORMAL", opponent=bot))
    assert env.action_space.shape == (4,) and env.reset().shape == (3, 18)
    obs, rewards, *_ = env.step(np.zeros((3, 4), np.float32))
    assert obs.shape == (3, 18) and rewards.shape == (3,)
    with pytest.raises(ConfigError, match="A bot is player 1"):
        env.obs_agent_two()
    with pytest.raises(ConfigError, match=r"must make a hockey environment.*mode='TRAIN_SHOOTING'"):
        VectorizedHockeyEnv(3, lambda: 5)


@pytest.mark.parametrize(
    "opponents",
    [pytest.param(None, id="two", marks=pytest.mark.slow), pytest.param({"strong": 1.0}, id="bot")],
)
def test_infos_have_the_originals_terms_of_every_step(opponents):
    """Beside what the kernel pays for the same step by weights of its own, in both seats."""
    settings = {"mode": {"NORMAL": 1.0, "TRAIN_DEFENSE": 1.0}}
    settings |= {"opponents": opponents} if opponents else {}
    names = {"closeness": "reward_closeness_to_puck", "touch": "reward_touch_puck",
             "direction": "reward_puck_direction"}  # fmt: skip
    env, plain = VectorizedHockeyEnv(16, **settings), make_vec("hockey", 16, **settings)
    paid = {name: make_vec("hockey", 16, reward={name: 1.0}, **settings) for name in names}
    for one in (plain, *paid.values()):
        one.reset(seed=0)
    obs, draw, seen = env.reset(), np.random.default_rng(2), dict.fromkeys(names, 0.0)
    for _ in range(300):
        actions = draw.uniform(-1, 1, (16, env.action_space.shape[0])).astype(np.float32)
        actions[:, 0] = np.clip(obs[:, 12] - obs[:, 0], -1, 1)  # after the puck
        actions[:, 1] = np.clip(obs[:, 13] - obs[:, 1], -1, 1)
        obs, *_, infos = env.step(actions)
        rows = actions if opponents else actions.reshape(16, 2, -1)
        base = plain.step(rows)[1].reshape(16, -1)[:, 0]
        for name, told in names.items():
            term = paid[name].step(rows)[1].reshape(16, -1)[:, 0] - base
            assert np.allclose([info[told] for info in infos], term, atol=2e-6), name
            seen[name] += np.abs(term).sum()
    assert min(seen.values()) > 0.5
