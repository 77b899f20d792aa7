"""Games of kernels as pictures."""

import numpy as np
import pytest

from slipstream.cli.video import Film
from slipstream.core.errors import ConfigError
from slipstream.training.environments.kernel_environment import KernelKind


def test_a_hockey_game_is_drawn_to_its_end():
    settings = {"opponents": {"strong": 1.0}, "side": "left", "mode": "train_defense"}
    film = Film(KernelKind("hockey").load(settings))
    observation, _ = film.reset(3)
    pictures, ended = [film.render()], False
    while not ended:
        observation, _, terminated, truncated, _ = film.step(np.zeros(4, np.float32))
        ended = terminated or truncated
        pictures.append(film.render())
    film.close()
    assert observation.shape == (18,) and 4 < len(pictures) <= 82
    assert {picture.shape for picture in pictures} == {(480, 600, 3)}
    # The puck is a dark disc: some 530 pixels, which move.
    dark = [(picture == 20).all(axis=2) for picture in pictures]
    assert all(300 < one.sum() < 700 for one in dark[1:3])
    assert (dark[0] != dark[2]).any()


@pytest.mark.long
def test_a_game_against_a_policy_or_in_self_play_is_drawn():
    """The second seat's copies hold the game whose picture is meant."""
    settings = {"self_play": {"opponents": {"random": 1}, "evaluation": {"random": 1}}}
    film = Film(KernelKind("hockey").load(settings))
    film.reset(0)
    before = film.render()
    film.step(np.ones(4, np.float32))
    assert (film.render() != before).any() and film.mask is None


def test_what_draws_nothing_is_refused():
    with pytest.raises(ConfigError, match="draws no pictures"):
        Film(KernelKind("cartpole").load({}))
    with pytest.raises(ConfigError, match="two players"):
        Film(KernelKind("hockey").load({}))
