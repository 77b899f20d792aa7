"""Adapters around other people's environments, and adapters of ours made by Gymnasium."""

from __future__ import annotations

import functools
from pathlib import Path

import gymnasium
import pytest

import slipstream
from slipstream.adapters.gymnasium_vector import ForeignVectorAdapter
from slipstream.core.errors import ConfigError
from slipstream.training.environments.factory import make_environment

HALF = {
    "name": "gymnasium.wrappers:ClipReward",
    "kwargs": {"min_reward": -0.5, "max_reward": 0.5},
}


def test_what_wraps_its_copies_itself_is_refused():
    own = {"training_wrappers": [HALF]}
    with pytest.raises(ConfigError, match=r"`env.training_wrappers` requires gym:ID"):
        make_environment("vec:batched_world:gymnasium_vec", own)
    with pytest.raises(ConfigError, match=r"`env.training_wrappers` is for `slipstream train`"):
        slipstream.make_adapter("envpool", "gym:CartPole-v1", **own)


def test_our_own_face_has_a_mask_only_if_its_kernel_has():
    face = functools.partial(
        gymnasium.make, "slipstream.adapters.registration:slipstream/cartpole-v0"
    )
    face.__qualname__ = face.__name__ = "face"
    assert not make_environment(slipstream.register(face, "face"), {}).spec.has_action_mask


def test_masks_of_our_own_kernels_pass_through_our_faces():
    shop = str(Path(__file__).parents[3] / "examples/kernels/shop.py")
    with slipstream.make_vec(slipstream.make_adapter("gymnasium", shop, 2), 2) as env:
        env.reset(seed=1)
        assert env.spec.has_action_mask
        for _ in range(130):  # an action that is not allowed would raise, also after an end
            env.step(env.mask.argmax(1))


@pytest.mark.parametrize("wrap", [lambda env: env, gymnasium.Wrapper], ids=["bare", "wrapped"])
def test_an_adapter_refuses_environments_that_are_one_object(wrap):
    env = gymnasium.make("CartPole-v1")
    for options in ({"backend": "serial"}, {"workers": 2}):
        with pytest.raises(
            ConfigError, match=r"the same environment twice.*instead of `lambda: env`"
        ):
            ForeignVectorAdapter([lambda: wrap(env)] * 4, **options).close()
            pytest.fail(options)
