"""Rules of the hockey kernel that need no Box2D: starts, seats, actions, symmetry, batches."""

import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.games.hockey.kernel import closeness, create_bodies, decode_action
from slipstream.kernels.env_checker import allocate_buffers
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import member_indices

BOTS = {
    "player1": {"strong": 1.0},
    "player2": {"weak": 1.0, "strong": 1.0, "random": 1.0, "idle": 1.0},
}


@pytest.fixture
def build():
    def make(config=None, copies=1, backend="serial", seeds=(0,), lo=0, hi=None):
        kernel = load_kernel("hockey")
        loaded = kernel.load(kernel.configure(config or {}))
        seeds, indices = member_indices(list(seeds), copies)
        env = KernelVectorEnv(kernel, loaded, seeds[lo:hi], indices[lo:hi], backend=backend)
        out = allocate_buffers(env)
        env.reset(out.obs)
        return env, out

    return make


def test_starts_lie_where_the_modes_say(build):
    for mode in ("normal", "train_shooting", "train_defense"):
        env, out = build({"mode": mode}, copies=200)
        place = env.state["position"]
        assert np.array_equal(place[:, 0], np.tile([2.0, 4.0], (200, 1)))
        x, y = place[:, 2].T
        if mode == "normal":
            assert np.array_equal(place[:, 1], np.tile([8.0, 4.0], (200, 1)))
            assert 60 < (x < 5).sum() < 140
        else:
            assert (place[:, 1, 0] >= 4.66).all() and (place[:, 1, 0] <= 9.67).all()
            assert np.ptp(place[:, 1, 1]) > 3
        if mode == "train_defense":
            assert (x >= 5).all() and (np.abs(y - 4) <= 3.2).all()
            speed = env.state["force"][:, 2] / env.loaded.data.table[2, 40] * 0.02
            assert np.allclose(np.hypot(*speed.T), 60.0) and (speed[:, 0] < 0).all()
        else:
            away = np.abs(x - 5)
            assert (away >= 1).all() and (away <= 2).all() and (np.abs(y - 4) <= 1).all()
        assert not out.obs[:, :, 16:].any()


def test_who_acts_is_drawn_by_weight_for_every_episode(build):
    env, _ = build(BOTS, copies=400)
    kinds = env.state["kind"]
    assert (kinds[:, 0] == 2).all()
    assert np.bincount(kinds[:, 1], minlength=5).min() == 0  # nobody from outside
    assert np.bincount(kinds[:, 1], minlength=5)[1:].min() > 60


def test_discrete_actions(build):
    env, _ = build({"num_action_levels": 3})
    s, p = Records(env.state)[0], Records(env.params)[0]
    assert env.spec.action_space.n == 14
    expected = {0: (0, 0, 0, 0), 1: (-0.5, 0, 0, 0), 2: (-1, 0, 0, 0), 3: (0.5, 0, 0, 0)}
    expected |= {4: (1, 0, 0, 0), 5: (0, -0.5, 0, 0), 12: (0, 0, 1, 0), 13: (0, 0, 0, 1)}
    for action, row in expected.items():
        decode_action(s, p, np.array([action]), 0)
        assert tuple(s.actions[0]) == row
    assert build({"num_action_levels": 2})[0].spec.action_space.n == 8
    assert build({"num_action_levels": 2, "puck_hold": False})[0].spec.action_space.n == 7
    assert build({"puck_hold": False})[0].spec.observation_shape == (16,)


def test_time_ends_a_game_after_251_or_81_steps(build):
    for mode, steps in (("normal", 251), ("train_shooting", 81)):
        for how in ("truncated", "terminated"):
            env, out = build({"mode": mode, "time_out": how})
            env.state["time"] = steps - 2
            action = np.zeros((1, 2, 4), np.float32)
            env.step(action, out, 0)
            assert not out.truncated[0] and not out.terminated[0]
            env.step(action, out, 1)
            assert out.truncated[0] == (how == "truncated")
            assert out.terminated[0] == (how == "terminated")


def test_a_goal_is_seen_one_step_after_the_puck_reaches_it(build):
    env, out = build()
    s, action = Records(env.state)[0], np.zeros((1, 2, 4), np.float32)
    create_bodies(s, env.loaded.data, 8.0, 4.0, 8.8, 4.0)
    s.linear_velocity[2] = 10.0, 0.0
    ended = []
    for t in range(4):
        reached = s.position[2, 0] > 10.0 - 1.1433
        env.step(action, out, t)
        ended.append((bool(reached), bool(out.terminated[0])))
        if out.terminated[0]:
            break
    assert ended[-1] == (True, True) and all(a == b for a, b in ended)
    assert out.reward[0, 0] == 10.0 and out.reward[0, 1] < -9.0


def test_walls_give_back_no_more_than_they_got(build):
    env, out = build()
    s, action = Records(env.state)[0], np.zeros((1, 2, 4), np.float32)
    create_bodies(s, env.loaded.data, 8.0, 4.0, 5.0, 6.0)
    s.linear_velocity[2] = 0.0, 20.0
    lowest = 20.0
    for t in range(20):
        env.step(action, out, t)
        lowest = min(lowest, s.linear_velocity[2, 1])
        assert s.position[2, 1] < 7.12
    assert -0.95 * 20.0 - 1e-4 <= lowest < -15.0


def test_half_a_turn_and_swapped_players_are_the_same_game(build):
    env, out = build()
    twin, seen = build()
    create_bodies(Records(env.state)[0], env.loaded.data, 8.0, 4.0, 4.0, 4.25)
    create_bodies(Records(twin.state)[0], env.loaded.data, 8.0, 4.0, 6.0, 3.75)
    draw = np.random.default_rng(4)
    for t in range(25):
        if t % 8 == 0:
            action = draw.uniform(-1, 1, (1, 2, 4)).astype(np.float32)
        env.step(action, out, t)
        twin.step(np.ascontiguousarray(action[:, ::-1]), seen, t)
        assert np.allclose(out.obs[:, ::-1], seen.obs, atol=2e-4), t
        assert np.allclose(out.reward[:, ::-1], seen.reward, atol=1e-4)


def test_closeness_counts_in_the_own_half_only(build):
    env, _ = build()
    s = Records(env.state)[0]
    create_bodies(s, env.loaded.data, 8.0, 4.0, 4.0, 4.0)
    assert closeness(s, 0) == pytest.approx(-2.0 * 0.0576) and closeness(s, 1) == 0.0
    s.linear_velocity[2, 0] = 1.0
    assert closeness(s, 0) == 0.0


def test_settings_are_checked():
    kernel = load_kernel("hockey")
    for wrong in ({"mode": "NORMAL2"}, {"player1": {"clever": 1.0}}, {"player2": {"weak": -1.0}}):
        with pytest.raises(ConfigError):
            kernel.configure(wrong)
    with pytest.raises(ConfigError, match="weight"):
        kernel.configure({"player1": {"agent": 0.0}})


@pytest.mark.slow
def test_neighbours_change_nothing(build):
    """Some copies alone play what they play among others, bit for bit, whatever mode is drawn."""
    config = {**BOTS, "mode": {"normal": 1.0, "train_defense": 1.0}}
    every, seen = build(config, copies=6)
    some, shown = build(config, copies=6, lo=2, hi=4)
    action = np.zeros((6, 2, 4), np.float32)
    for t in range(60):
        every.step(action, seen, t)
        some.step(action[2:4], shown, t)
        assert np.array_equal(seen.obs[2:4], shown.obs) and np.isfinite(seen.obs).all()
        assert np.array_equal(seen.reward[2:4], shown.reward)
