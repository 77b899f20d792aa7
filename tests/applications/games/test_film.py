"""Games of kernels as pictures."""

import numpy as np
import pytest

from slipstream.cli.video import RenderableEnv
from slipstream.core.errors import ConfigError
from slipstream.training.environments.kernel_environment import KernelKind


def test_a_hockey_game_is_drawn_to_its_end():
    settings = {"opponents": {"strong": 1.0}, "side": "left", "mode": "train_defense"}
    record_video = RenderableEnv(KernelKind("hockey").load(settings))
    observation, _ = record_video.reset(3)
    pictures, ended = [record_video.render()], False
    while not ended:
        observation, _, terminated, truncated, _ = record_video.step(np.zeros(4, np.float32))
        ended = terminated or truncated
        pictures.append(record_video.render())
    record_video.close()
    assert observation.shape == (18,) and 4 < len(pictures) <= 82
    assert {picture.shape for picture in pictures} == {(480, 600, 3)}
    # The puck is a dark disc: some 530 pixels, which move.
    dark = [(picture == 20).all(axis=2) for picture in pictures]
    assert all(300 < one.sum() < 700 for one in dark[1:3])
    assert (dark[0] != dark[2]).any()


@pytest.mark.slow
def test_a_game_against_a_policy_or_in_self_play_is_drawn():
    """`SelfPlayEnv` holds the game that is rendered."""
    settings = {"self_play": {"opponents": {"random": 1}, "evaluation": {"random": 1}}}
    record_video = RenderableEnv(KernelKind("hockey").load(settings))
    record_video.reset(0)
    before = record_video.render()
    record_video.step(np.ones(4, np.float32))
    assert (record_video.render() != before).any() and record_video.mask is None


def test_what_draws_nothing_is_refused():
    with pytest.raises(ConfigError, match="cannot render"):
        RenderableEnv(KernelKind("cartpole").load({}))
    with pytest.raises(ConfigError, match="two players"):
        RenderableEnv(KernelKind("hockey").load({}))
