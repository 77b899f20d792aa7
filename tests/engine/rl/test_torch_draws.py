"""The streams in torch are those of the compiled draws."""

import numpy as np
import pytest
import torch

from slipstream.core.random import word
from slipstream.jit import rng
from slipstream.rl.nets import torch_distributions


def test_words_are_equal_bit_for_bit(device):
    keys = rng.member_keys([0, 1, 2**63 + 5], rng.ACT, 12345)
    ours = torch_distributions.random_bits(
        torch_distributions.keys_to_tensor(keys, torch.device(device)), 2**40 + 3, 5000
    ).cpu()
    places = np.arange(5000, dtype=np.uint64) + np.uint64(2**40 + 3)
    with np.errstate(over="ignore"):
        expected = np.stack([word(key, places) for key in keys])
    assert (ours.numpy().view(np.uint64) == expected).all()
    assert len(np.unique(expected)) == expected.size  # a bijection of places, so nothing repeats


@pytest.mark.parametrize("kind", ["gumbel", "normal"])
def test_noise_is_that_of_the_compiled_draws(kind, device):
    """Logarithm and cosine are each library's own, in float64; few float32 round otherwise."""
    keys = rng.member_keys(range(4), rng.ACT, 7)
    expected = np.zeros((4, 3000), np.float32)
    getattr(rng, f"fill_{kind}")(keys, 11, expected)
    streams = torch_distributions.keys_to_tensor(keys, torch.device(device))
    ours = getattr(torch_distributions, kind)(streams, 11, 3000).cpu().numpy()
    np.testing.assert_array_max_ulp(ours, expected, 1)
    assert (ours == expected).mean() > 0.999
