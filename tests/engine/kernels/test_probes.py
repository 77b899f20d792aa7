"""The probes do what their descriptions say: other tests lean on their known values."""

import gymnasium
import numpy as np
import pytest


@pytest.fixture
def probe(single):
    return lambda name, **config: single("probes", {"probe": name, **config}, backend="serial")


def test_one(probe):
    run = probe("one")
    for _ in range(5):
        assert run.step(0)[1:] == (1.0, True, False)


def test_observed(probe):
    run = probe("observed")
    seen = []
    for _ in range(60):
        before = run.out.obs[0, 0]
        _, reward, terminated, _ = run.step(0)
        assert terminated and reward == before
        seen.append(before)
    assert set(seen) == {-1.0, 1.0} and 10 < seen.count(1.0) < 50


def test_delayed(probe):
    run = probe("delayed")
    for _ in range(3):
        assert run.out.obs[0, 0] == 0.0
        obs, reward, terminated, _ = run.step(1)
        assert (obs[0], reward, terminated) == (1.0, 0.0, False)
        _, reward, terminated, _ = run.step(0)
        assert (reward, terminated) == (1.0, True)


def test_action(probe):
    run = probe("action")
    assert run.step(1)[1:3] == (1.0, True)
    assert run.step(0)[1:3] == (-1.0, True)


def test_matched(probe):
    run = probe("matched")
    for _ in range(20):
        right = int(run.out.obs[0, 0] > 0)
        assert run.step(right)[1] == 1.0
        right = int(run.out.obs[0, 0] > 0)
        assert run.step(1 - right)[1] == -1.0


def test_endless(probe):
    run = probe("endless", max_steps=4)
    flags = [run.step(0)[1:] for _ in range(8)]
    assert flags == ([(1.0, False, False)] * 3 + [(1.0, False, True)]) * 2
    assert len(run.env.drain_final_obs().obs) == 2


def test_switches(probe):
    run = probe("switches")
    assert isinstance(run.env.spec.action_space, gymnasium.spaces.MultiDiscrete)
    for _ in range(10):
        right = (run.out.obs[0] > 0).astype(np.int64)
        assert run.step(right)[1] == 3.0
        right = (run.out.obs[0] > 0).astype(np.int64)
        right[1] = 1 - right[1]
        assert run.step(right)[1] == 2.0


def test_target(probe):
    run = probe("target")
    for _ in range(10):
        aim = run.out.obs[0, 0]
        assert abs(aim) <= 0.8
        assert run.step(aim)[1] == pytest.approx(0.0, abs=1e-12)
        aim = run.out.obs[0, 0]
        assert run.step(aim - 0.5)[1] == pytest.approx(-0.25, rel=1e-5)
