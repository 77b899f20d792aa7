import pytest
import torch

from slipstream.agents.losses import clipped_surrogate, value_error


def rows():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 200, generator=generator) for _ in range(4)]


def test_clipped_surrogate_by_hand():
    # ratios 1.5 and 0.5, clip 0.2, advantages +1 and -1: gain stops at 1.2, loss at 0.8
    log_ratio = torch.tensor([[1.5, 1.5, 0.5, 0.5]]).log()
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    loss, d, kl, outside = clipped_surrogate(
        log_ratio, advantage, torch.ones(1, 4), torch.tensor([[0.2]])
    )
    torch.testing.assert_close(loss, torch.tensor([[-1.2, 1.5, -0.5, 0.8]]))
    torch.testing.assert_close(d, torch.tensor([[0.0, 1.5, -0.5, 0.0]]))
    torch.testing.assert_close(kl, torch.tensor([[0.5, 0.5, -0.5, -0.5]]) - log_ratio)
    assert outside.tolist() == [[1, 1, 1, 1]]


def test_surrogate_derivative_agrees_with_autograd():
    log_prob, advantage, weight, _ = rows()
    log_prob = (0.3 * log_prob).requires_grad_()
    clip = torch.tensor([[0.2], [0.1]])
    ratio = log_prob.exp()
    limited = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip)
    (weight * -torch.minimum(ratio * advantage, limited * advantage)).sum().backward()
    _, d, _, _ = clipped_surrogate(log_prob.detach(), advantage, weight, clip)
    torch.testing.assert_close(d, log_prob.grad)


@pytest.mark.parametrize("clip", [None, torch.tensor([[0.2], [float("inf")]])])
def test_value_derivative_agrees_with_autograd(clip):
    value, target, old, weight = rows()
    value = value.requires_grad_()
    loss = (value - target) ** 2
    if clip is not None:
        change = torch.minimum(torch.maximum(value - old, -clip), clip)
        loss = torch.maximum(loss, (old + change - target) ** 2)
    (weight * loss).sum().backward()
    ours, d = value_error(value.detach(), target, old, weight, clip)
    torch.testing.assert_close(d, value.grad)
    torch.testing.assert_close(ours, loss.detach())
