import math

import numpy as np
import pytest
import torch

from slipstream.rl.agents.ppo.losses import clipped_surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "derivative"),
    [(1.5, 1.0, -1.2, 0.0), (1.5, -1.0, 1.5, 1.5), (0.5, 1.0, -0.5, -0.5), (0.5, -1.0, 0.8, 0.0)],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, derivative):
    # Beyond 1 +- 0.2 an improvement earns nothing more; a worsening still costs.
    result = clipped_surrogate(math.log(ratio), advantage, 0.2)
    np.testing.assert_allclose(result, [loss, derivative, ratio - 1 - math.log(ratio), 1.0])


def test_surrogate_derivative_agrees_with_autograd():
    rng = np.random.default_rng(0)
    for log_ratio, advantage in rng.standard_normal((200, 2)) * [0.3, 1.0]:
        x = torch.tensor(log_ratio, requires_grad=True)
        ratio = x.exp()
        (-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).backward()
        _, derivative, _, _ = clipped_surrogate(log_ratio, advantage, 0.2)
        np.testing.assert_allclose(derivative, x.grad, rtol=1e-12)


def test_a_nan_is_passed_on():
    assert math.isnan(clipped_surrogate(math.nan, 1.0, 0.2)[1])
    assert math.isnan(clipped_surrogate(0.0, math.nan, 0.2)[1])
