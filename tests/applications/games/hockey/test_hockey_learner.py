"""One learner against bots: its seat, its view, shaped rewards, mixtures of modes and opponents."""

import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import allocate_buffers, member_indices

MIXED = {"opponents": {"weak": 1.0, "strong": 1.0}, "mode": {"normal": 3.0, "train_defense": 1.0}}


@pytest.fixture
def build():
    def make(config, copies=1, backend="serial"):
        kernel = load_kernel("hockey")
        loaded = kernel.load(kernel.configure(config))
        env = KernelVectorEnv(kernel, loaded, *member_indices([3], copies), backend=backend)
        out = allocate_buffers(env)
        env.reset(out.obs)
        return env, out

    return make


@pytest.mark.slow
def test_rules_hold_with_one_player():
    check_environment(load_kernel("hockey"), MIXED, steps=30, num_envs=2)


def test_seats_modes_and_opponents_are_drawn_by_weight(build):
    env, out = build(MIXED, copies=400)
    assert env.spec.players == 1 and out.obs.shape == (400, 18)
    seat, kind, mode = (env.state[name] for name in ("learner", "kind", "mode"))
    rows = np.arange(400)
    assert 150 < seat.sum() < 250
    assert (kind[rows, seat] == 0).all()
    assert 150 < (kind[rows, 1 - seat] == 1).sum() < 250
    assert 60 < (mode == 2).sum() < 140
    assert ((env.state["time_limit"] == 80) == (mode == 2)).all()
    left, _ = build({**MIXED, "side": "left"}, copies=20)
    assert not left.state["learner"].any()


@pytest.mark.slow
def test_the_learner_sees_and_acts_as_its_seat_does(build):
    """A game of the one-player form is a game of the two-player form with the same bot in it."""
    env, out = build({"opponents": {"strong": 1.0}}, copies=8)
    both, seen = build({"opponents": {"strong": 1.0, "agent": 1e-9}}, copies=8)
    assert both.spec.players == 2
    names = [name for name in env.state.dtype.names if name != "key"]
    for name in names:
        both.state[name] = env.state[name]
    both.state["key"] = env.state["key"]
    seat, rows, draw = env.state["learner"].copy(), np.arange(8), np.random.default_rng(0)
    for t in range(60):
        action = draw.uniform(-1, 1, (8, 4)).astype(np.float32)
        pair = draw.uniform(-1, 1, (8, 2, 4)).astype(np.float32)
        pair[rows, seat] = action
        env.step(action, out, t)
        both.step(pair, seen, t)
        running = ~(out.terminated | out.truncated)
        assert np.array_equal(out.obs[running], seen.obs[rows, seat][running])
        assert np.array_equal(out.reward, seen.reward[rows, seat])
        if not running.all():
            return


@pytest.mark.slow
def test_shaping_adds_by_weight_and_scales_the_sum(build):
    shaped = {"closeness": 2.0, "touch": 3.0, "direction": 5.0, "scale": 0.5}
    plain, out = build({"player1": {"strong": 1.0}, "player2": {"weak": 1.0}}, copies=64)
    env, seen = build(
        {"player1": {"strong": 1.0}, "player2": {"weak": 1.0}, "reward": shaped}, copies=64
    )
    action, before = np.zeros((64, 2, 4), np.float32), plain.read(("closeness", "touches_player1"))
    for t in range(100):
        direction = plain.read(("direction",))["direction"]
        plain.step(action, out, t)
        env.step(action, seen, t)
        going = ~(out.terminated | out.truncated)
        now = plain.read(("closeness", "touches_player1"))
        forward = plain.read(("direction",))["direction"] - direction
        near = now["closeness"] - before["closeness"]
        touch = now["touches_player1"] - before["touches_player1"]
        expected = 0.5 * (out.reward[:, 0] + 2.0 * near + 3.0 * touch + 5.0 * forward)
        assert np.allclose(seen.reward[going, 0], expected[going], atol=1e-5)
        before = now


@pytest.mark.slow
def test_a_game_is_counted_as_the_learner_sees_it(build):
    env, out = build({"opponents": {"strong": 1.0}}, copies=64)
    action, done = np.zeros((64, 4), np.float32), []
    for t in range(600):
        env.step(action, out, t)
        done.append(env.drain_episodes())
    won = np.concatenate([one.metrics["won"] for one in done])
    lost = np.concatenate([one.metrics["lost"] for one in done])
    ret = np.concatenate([one.returns for one in done])
    assert lost.sum() > 20 and (won * lost == 0).all()
    assert (ret[lost == 1] < -9).all() and (ret[won == 1] > -9).all()


def test_settings_that_contradict_are_refused():
    kernel = load_kernel("hockey")
    for wrong in (
        {"opponents": {"weak": 1.0}, "player1": {"strong": 1.0}},
        {"mode": {"normal": 0.0}},
        {"opponents": {"weak": 0.0}},
        {"reward": {"scale": 0.0}},
    ):
        with pytest.raises(ConfigError):
            kernel.load(kernel.configure(wrong))
