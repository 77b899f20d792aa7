"""Action masks and several players: other lines of the same loop."""

import numpy as np
import pytest

from slipstream.kernels.compiler import loop_source
from slipstream.kernels.loop import HOLD, RESET_KEEP_ALL


def test_an_episodes_metrics_are_concluded_where_it_ends(make, steps, backend):
    """At its own end after 3 steps, or at the time limit after 4; and at no other step."""
    run = steps(make("average", num_envs=1, backend=backend))
    run.reset()
    outs = [run.step(action) for action in (1, 2, 4, 3, 3, 3)]
    assert run.env.drain_episodes().metrics["mean"].tolist() == [7 / 3, 3.0]
    assert not any(out.reward.any() or out.obs.any() for out in outs)
    run = steps(make("average", num_envs=1, backend=backend, config={"length": 9}))
    run.reset()
    for action in (1, 2, 4, 4):
        run.step(action)
    assert run.env.drain_episodes().metrics["mean"].tolist() == [11 / 4]


def test_masks_stand_beside_observations(make, steps, backend):
    run = steps(make("masked", num_envs=4, backend=backend))
    assert run.env.mask_size == 5
    out = run.reset()
    for _ in range(12):
        assert (out.mask == (np.arange(5) <= np.maximum(out.obs, 2))).all()
        out = run.step()


def test_masks_may_be_left_out(make, steps, backend):
    one, two = [steps(make("masked", num_envs=4, backend=backend)) for _ in range(2)]
    one.reset()
    obs = two.fresh().obs
    two.env.reset(obs)
    for t in range(6):
        out = two.fresh()._replace(mask=None)
        two.env.step(np.zeros((4, 2), np.int64), out, t)
        assert (out.obs == one.step().obs).all()


def test_masks_of_restored_and_begun_copies(make, steps, backend):
    run = steps(make("masked", num_envs=3, backend=backend, autoreset_mode=HOLD))
    run.reset()
    now = run.step()
    other = steps(make("masked", num_envs=3, backend=backend, autoreset_mode=HOLD)).fresh()
    run.env.set_state(run.env.get_state(), other.obs, other.mask)
    assert (other.obs == now.obs).all() and (other.mask == now.mask).all()
    out = run.fresh()
    run.env.begin(np.array([1]), np.array([0]), 3, out.obs, out.mask)
    assert (out.mask[1] == (np.arange(5) <= np.maximum(out.obs[1], 2))).all()
    assert not out.mask[[0, 2]].any()


def test_no_mask_costs_no_line(make):
    env = make("clock")
    assert env.mask_size == 0
    assert "mask" not in loop_source(env.kernel, env.spec)


def test_two_players(make, steps, backend):
    env = make("duel", num_envs=3, backend=backend, autoreset_mode=RESET_KEEP_ALL)
    run = steps(env)
    out = run.reset()
    assert out.obs.shape == (3, 2, 2) and out.mask.shape == (3, 2, 4)
    assert (out.obs[:, 0] == out.obs[:, 1, ::-1]).all()
    out = run.step([[2], [1]])
    assert out.reward.tolist() == [[1.0, -1.0]] * 3
    assert out.obs[0].tolist() == [[2.0, 1.0], [1.0, 2.0]]
    assert out.mask[0].tolist() == [[True, False, True, True], [True, True, False, True]]
    actions = np.array([[[3], [0]], [[0], [1]], [[0], [1]]])
    out = run.step(actions)
    assert out.terminated.tolist() == [True, False, False]
    run.step([[0], [0]])
    done, finals = env.drain_episodes(), env.drain_final_obs()
    assert done.e.tolist() == [0, 1, 2] and done.length.tolist() == [2, 3, 3]
    assert done.returns.tolist() == [[4.0, -4.0], [0.0, 0.0], [0.0, 0.0]]
    assert done.metrics["total"].tolist() == [4.0, 2.0, 2.0]
    assert finals.obs.shape == (3, 2, 2) and finals.obs[0].tolist() == [[3.0, 0.0], [0.0, 3.0]]


@pytest.mark.parametrize("name", ["duel", "masked"])
def test_backends_agree(make, steps, name):
    runs = [steps(make(name, num_envs=5, backend=b)) for b in ("serial", "compiled")]
    rng = np.random.default_rng(0)
    outs = [run.reset() for run in runs]
    for _ in range(30):
        for mine, theirs in zip(*outs, strict=True):
            assert np.array_equal(mine, theirs)
        actions = rng.integers(0, 2, (5, 2, 1) if name == "duel" else (5, 2))
        outs = [run.step(actions) for run in runs]
    states = [run.env.get_state() for run in runs]
    assert all((states[0][key] == states[1][key]).all() for key in states[0])
