import numpy as np
import pytest

from slipstream.rl.experience.running_mean_std import RewardScaler, RunningMeanStd


def test_merged_batches_equal_one_sample():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((100, 2 * 10, 3)) * [1.0, 1e-3, 50.0] + [0.0, 7.0, -1e4]
    rows = rows.astype(np.float32)
    valid = rng.random((100, 20)) < 0.9
    valid[:, :10] = False  # member 0 has seen nothing
    moments = RunningMeanStd(2, 3)
    for part in (slice(0, 1), slice(1, 11), slice(11, 100)):
        moments.merge(rows[part], valid[part])
    sample = rows[valid].astype(np.float64)
    np.testing.assert_allclose(moments.mean[1], sample.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.std[1], sample.std(0), rtol=1e-9)
    assert moments.count.tolist() == [0.0, len(sample)]
    assert moments.std[0].tolist() == [1.0, 1.0, 1.0] and moments.mean[0].tolist() == [0.0] * 3


def test_reward_scale_is_the_deviation_of_the_discounted_return():
    gamma, t, n = 0.9, 50, 4
    rng = np.random.default_rng(2)
    reward = rng.standard_normal((2, t, n)).astype(np.float32)
    ended = rng.random((2, t, n)) < 0.1
    scale = RewardScaler(1, n)
    returns, carried = [], np.zeros(n)
    for block in range(2):
        out = scale.scale(
            reward[block], ended[block], np.ones((t, n), bool), np.full(n, gamma, np.float32)
        )
        for s in range(t):
            carried = gamma * carried + reward[block, s]
            returns.append(carried.copy())
            carried = np.where(ended[block, s], 0.0, carried)
    np.testing.assert_allclose(out, reward[1] / np.std(returns), rtol=1e-4)


def test_reward_scale_goes_on_from_its_state():
    reward = np.random.default_rng(0).standard_normal((10, 6)).astype(np.float32)
    ended, gamma = np.zeros((10, 6), bool), np.full(6, 0.99, np.float32)
    valid = ~ended
    one, other = RewardScaler(2, 3), RewardScaler(2, 3)
    one.scale(reward, ended, valid, gamma)
    other.load_state_dict(one.state_dict())
    assert np.array_equal(
        one.scale(reward, ended, valid, gamma), other.scale(reward, ended, valid, gamma)
    )


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_constant_rewards_stay_finite(value):
    scale = RewardScaler(1, 2)
    reward, flags = np.full((5, 2), value, np.float32), np.ones((5, 2), bool)
    out = scale.scale(reward, flags, flags, np.ones(2, np.float32))
    assert out.dtype == np.float32 and np.isfinite(out).all()


def test_the_first_reward_of_many_steps_is_ten_at_most():
    """One reward of 1 in 100,000 steps: their deviation alone would make it 316."""
    scale, quiet = RewardScaler(2, 10), np.zeros((10_000, 20), bool)
    reward, gamma = np.zeros((10_000, 20), np.float32), np.full(20, 0.99, np.float32)
    reward[9_999, 0] = 1.0  # member 0's
    out = scale.scale(reward, quiet, ~quiet, gamma)
    assert out[9_999, 0] == 10.0 and scale.largest.tolist() == [1.0, 0.0]
    again = RewardScaler(2, 10)
    again.load_state_dict(scale.state_dict())
    assert again.divisor.tolist() == scale.divisor.tolist()
    reward[:, 0] = 1.0  # no longer rare: the deviation is what counts
    many = scale.scale(reward, quiet, ~quiet, gamma)[:, 0]
    assert 1 / many[0] == pytest.approx(scale.moments.std[0, 0]) and many[0] < 1.0
