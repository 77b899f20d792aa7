import gymnasium
import numpy as np
import pytest
import torch

from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.torch_distributions import Categorical, DiagonalGaussian, MultiCategorical


def cases():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 50, 5, generator=generator)
    log_std = torch.randn(2, 5, generator=generator) * 0.3
    choice = torch.randint(0, 5, (2, 50, 1), generator=generator)
    pair = torch.stack([choice[..., 0] % 2, choice[..., 0] % 3], -1)
    real = torch.randn(2, 50, 5, generator=generator)
    normal = torch.distributions.Normal
    return {
        "categorical": (logits, None, choice, lambda z, s: Categorical(z)),
        "multi": (logits, None, pair, lambda z, s: MultiCategorical(z, (2, 3))),
        "gaussian": (logits, log_std, real, lambda z, s: DiagonalGaussian(z, s)),
    }, {
        "categorical": lambda z, s, a: (
            torch.distributions.Categorical(logits=z).log_prob(a[..., 0]),
            torch.distributions.Categorical(logits=z).entropy(),
        ),
        "multi": lambda z, s, a: tuple(
            map(
                sum,
                zip(
                    *(
                        (d.log_prob(a[..., i]), d.entropy())
                        for i, d in enumerate(
                            [
                                torch.distributions.Categorical(logits=z[..., :2]),
                                torch.distributions.Categorical(logits=z[..., 2:]),
                            ]
                        )
                    ),
                    strict=True,
                ),
            )
        ),
        "gaussian": lambda z, s, a: (
            normal(z, s[:, None].exp()).log_prob(a).sum(-1),
            normal(z, s[:, None].exp()).entropy().sum(-1),
        ),
    }


@pytest.mark.parametrize("kind", ["categorical", "multi", "gaussian"])
def test_density_and_entropy_agree_with_torch(kind):
    ours, theirs = cases()
    head, log_std, action, make = ours[kind]
    expected_log_prob, expected_entropy = theirs[kind](head, log_std, action)
    distribution = make(head, log_std)
    torch.testing.assert_close(distribution.log_prob(action), expected_log_prob)
    torch.testing.assert_close(distribution.entropy(), expected_entropy)


def test_gumbel_noise_samples_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(1, 40000, 3)
    noise = -torch.log(
        -torch.log(torch.rand(1, 40000, 3, generator=torch.Generator().manual_seed(3)))
    )
    counts = torch.bincount(Categorical(logits).sample(noise).flatten(), minlength=3) / 40000
    torch.testing.assert_close(counts, torch.softmax(logits[0, 0], 0), atol=0.01, rtol=0)


def test_masked_choices_are_never_taken():
    mask = torch.tensor([True, False, True]).expand(1, 1000, 3)
    distribution = Categorical(torch.tensor([0.0, 50.0, 0.0]).expand(1, 1000, 3), mask)
    noise = torch.randn(1, 1000, 3)
    assert (distribution.sample(noise) != 1).all()
    assert (distribution.mode() != 1).all()
    torch.testing.assert_close(distribution.entropy(), torch.full((1, 1000), float(np.log(2))))


def test_bounded_components_are_mapped_and_clipped_unbounded_pass():
    space = gymnasium.spaces.Box(
        np.array([-2, 0, -np.inf, 0], np.float32), np.array([2, 10, np.inf, np.inf], np.float32)
    )
    actions = ActionMap(space)
    out = np.zeros((3, 4), np.float32)
    actions.to_environment(np.array([[0.0] * 4, [0.5] * 4, [-3.0] * 4], np.float32), out)
    np.testing.assert_allclose(out, [[0, 5, 0, 0], [1, 7.5, 0.5, 0.5], [-2, 0, -3, 0]])
    assert out.dtype == np.float32


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3, start=-1),
        gymnasium.spaces.MultiDiscrete([2, 3]),
        gymnasium.spaces.Box(
            np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32)
        ),
    ],
)
def test_an_action_map_survives_its_description(space):
    assert ActionMap.space(ActionMap(space).description()) == space


def test_discrete_start_is_added():
    actions = ActionMap(gymnasium.spaces.Discrete(3, start=-1))
    out = np.zeros((3, 1), np.int64)
    actions.to_environment(np.array([[0], [1], [2]]), out)
    assert out[:, 0].tolist() == [-1, 0, 1]
