import numpy as np
import torch

from slipstream.experience.advantages import gae


def column(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)[:, None]


def flags(*values):
    return column(*values, dtype=torch.bool)


def run(reward, value, terminated, truncated, valid=None, finals=(), index=(), gamma=0.5, lam=0.5):
    t = len(reward)
    return gae(
        reward,
        value,
        terminated,
        truncated,
        torch.ones((t, 1), dtype=torch.bool) if valid is None else valid,
        torch.tensor(finals, dtype=torch.float32),
        torch.tensor(index, dtype=torch.int64).reshape(-1, 2),
        torch.tensor([gamma]),
        torch.tensor([lam]),
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
    gamma, lam = torch.tensor([0.9, 0.99, 0.5]), torch.tensor([0.95, 0.0, 1.0])
    reward = torch.from_numpy(rng.standard_normal((t, e)).astype(np.float32))
    value = torch.from_numpy(rng.standard_normal((t + 1, e)).astype(np.float32))
    terminated = torch.from_numpy(rng.random((t, e)) < 0.1)
    truncated = torch.from_numpy(rng.random((t, e)) < 0.1) & ~terminated
    index = torch.nonzero(truncated)
    finals = torch.arange(len(index), dtype=torch.float32)
    valid = torch.ones((t, e), dtype=torch.bool)
    advantage, target = gae(reward, value, terminated, truncated, valid, finals, index, gamma, lam)

    following = value[1:].clone()
    following[index[:, 0], index[:, 1]] = finals
    expected = torch.zeros(t, e)
    for i in range(e):
        carried = 0.0
        for s in range(t - 1, -1, -1):
            bootstrap = 0.0 if terminated[s, i] else float(following[s, i])
            delta = float(reward[s, i]) + float(gamma[i]) * bootstrap - float(value[s, i])
            ended = bool(terminated[s, i] | truncated[s, i])
            carried = delta + (0.0 if ended else float(gamma[i] * lam[i]) * carried)
            expected[s, i] = carried
    torch.testing.assert_close(advantage, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(target, expected + value[:-1], rtol=1e-5, atol=1e-5)
