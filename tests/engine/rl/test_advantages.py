import numpy as np

from slipstream.rl.compiled_loops import b1, compile_loops, f4, i8
from slipstream.rl.experience.advantages import gae as interpreted

COPIES = (
    *(0, 1, f4(2), f4(2), b1(2), b1(2), b1(2)),
    *(f4(1), i8(2), f4(1), f4(1), f4(2), f4(2)),
)


def column(*values, dtype=np.float32):
    return np.array(values, dtype)[:, None]


def flags(*values):
    return column(*values, dtype=np.bool_)


def gae(reward, value, terminated, truncated, valid, finals, index, gamma, lam):
    """Advantages and targets, compiled; the interpreter's are close (it rounds sums twice)."""
    out = np.empty((2, 2, *reward.shape), np.float32)
    given = (reward, value, terminated, truncated, valid, finals, index, gamma, lam)
    compiled = compile_loops("advantages_test", {interpreted: COPIES})["gae"]
    copies = reward.shape[1]
    for lo, hi in ((0, copies // 2), (copies // 2, copies)):
        compiled(lo, hi, *given, *out[0])
    interpreted(0, copies, *given, *out[1])
    np.testing.assert_allclose(out[0], out[1], rtol=1e-6, atol=1e-6)
    return out[0]


def run(reward, value, terminated, truncated, valid=None, finals=(), index=(), gamma=0.5, lam=0.5):
    t = len(reward)
    return gae(
        reward,
        value,
        terminated,
        truncated,
        np.ones((t, 1), np.bool_) if valid is None else valid,
        np.array(finals, np.float32),
        np.array(index, np.int64).reshape(-1, 2),
        np.array([gamma], np.float32),
        np.array([lam], np.float32),
    )


def test_plain_rows_by_hand():
    # delta = 1 + .5*2 - 1, 2 + .5*4 - 2, 3 + .5*8 - 4 = 1, 2, 3; A = 3, 2 + .25*3, 1 + .25*2.75
    no = flags(0, 0, 0)
    advantage, target = run(column(1, 2, 3), column(1, 2, 4, 8), no, no)
    assert advantage[:, 0].tolist() == [1.6875, 2.75, 3.0]
    assert target[:, 0].tolist() == [2.6875, 4.75, 7.0]


def test_termination_is_worth_nothing_and_truncation_the_final_value():
    reward, value = column(1, 1, 1, 1), column(2, 2, 2, 2, 2)
    terminated, truncated = flags(0, 1, 0, 0), flags(0, 0, 0, 1)
    advantage, _ = run(reward, value, terminated, truncated, finals=[10.0], index=[(3, 0)])
    # row 3: 1 + .5*10 - 2 = 4; row 2: 0 + .25*4 = 1; row 1: 1 + 0 - 2 = -1; row 0: 0 + .25*-1
    assert advantage[:, 0].tolist() == [-0.25, -1.0, 1.0, 4.0]


def test_termination_wins_over_truncation():
    advantage, _ = run(column(1), column(2, 9), flags(1), flags(1), finals=[10.0], index=[(0, 0)])
    assert advantage.item() == -1.0


def test_invalid_rows_have_no_advantage_and_pass_nothing_on():
    no = flags(0, 0, 0)
    valid = flags(1, 0, 1)
    advantage, _ = run(column(1, 100, 1), column(0, 0, 0, 0), no, no, valid)
    assert advantage[:, 0].tolist() == [1.0, 0.0, 1.0]


def test_members_discount_by_their_own_numbers():
    rng = np.random.default_rng(0)
    t, e = 20, 3
    gamma = np.array([0.9, 0.99, 0.5], np.float32)
    lam = np.array([0.95, 0.0, 1.0], np.float32)
    reward = rng.standard_normal((t, e)).astype(np.float32)
    value = rng.standard_normal((t + 1, e)).astype(np.float32)
    terminated = rng.random((t, e)) < 0.1
    truncated = (rng.random((t, e)) < 0.1) & ~terminated
    index = np.ascontiguousarray(np.argwhere(truncated))
    finals = np.arange(len(index), dtype=np.float32)
    valid = np.ones((t, e), np.bool_)
    advantage, target = gae(reward, value, terminated, truncated, valid, finals, index, gamma, lam)

    following = value[1:].copy()
    following[index[:, 0], index[:, 1]] = finals
    expected = np.zeros((t, e), np.float32)
    for i in range(e):
        carried = 0.0
        for s in range(t - 1, -1, -1):
            bootstrap = 0.0 if terminated[s, i] else float(following[s, i])
            delta = float(reward[s, i]) + float(gamma[i]) * bootstrap - float(value[s, i])
            ended = bool(terminated[s, i] | truncated[s, i])
            carried = delta + (0.0 if ended else float(gamma[i] * lam[i]) * carried)
            expected[s, i] = carried
    np.testing.assert_allclose(advantage, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(target, expected + value[:-1], rtol=1e-5, atol=1e-5)


def test_a_sick_neighbour_in_time_stays_behind_an_end():
    no, nan = flags(0, 0), float("nan")
    for terminated, truncated, valid in (
        (flags(1, 0), no, flags(1, 1)),
        (no, flags(1, 0), flags(1, 1)),
        (no, no, flags(0, 1)),
    ):
        index = np.argwhere(truncated)
        finals = np.ones(len(index))
        reward = column(1, nan)
        advantage, _ = run(reward, column(0, 0, 0), terminated, truncated, valid, finals, index)
        assert np.isfinite(advantage[0, 0]) and np.isnan(advantage[1, 0])
