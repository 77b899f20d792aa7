import json

import numpy as np
import pytest
import torch

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.jit import rng
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack
from slipstream.rl.nets.torch_distributions import make_distribution


@pytest.mark.parametrize("action", ["discrete", "multi", "box"])
def test_an_exported_member_acts_the_same(experience, action):
    agent, _ = experience.train(range(3), experience.spec((5,), action))
    obs = np.random.default_rng(0).standard_normal((3, 20, 5)).astype(np.float32)
    together = agent.policy.act_rows(obs.reshape(60, 5)).reshape(3, 20, -1)
    for m in range(3):
        tensors, manifest = pack(agent.policy, m)
        alone = unpack(tensors, json.loads(json.dumps(manifest)))
        assert (alone.act_rows(obs[m]) == together[m]).all()
        assert (alone.act_rows(obs[m, 4:5]) == together[m, 4:5]).all()
        keys = rng.member_keys([9], rng.ACT, 0)
        assert alone.act_rows(obs[m], keys=keys).shape == together[m].shape


@pytest.mark.parametrize("action", ["discrete", "multi", "box"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_most_likely_action_is_the_distributions_mode(experience, action, activation):
    """Whatever the number of rows, beside NumPy's and torch's."""
    spec = experience.spec((5,), action)
    policy = Policy([spec] * 3, range(3), net_arch=(16, 8), activation=activation)
    policy.parameters.flat *= 3.0
    draw = np.random.default_rng(0)
    for rows in (1, 2, 7, 64, 131):
        obs = 4 * draw.standard_normal((3 * rows, 5)).astype(np.float32)
        mask = None
        if action != "box":
            mask = draw.random((3 * rows, policy.actions.head_width)) < 0.5
            mask[:, np.cumsum(policy.actions.sizes) - 1] = True
        head = torch.from_numpy(policy.actor(rows).head(obs))
        allowed = None if mask is None else torch.from_numpy(mask).view(3, rows, -1)
        log_std = policy.parameters.weights.get("log_std")
        log_std = None if log_std is None else torch.from_numpy(log_std)
        mode = make_distribution(policy.actions, head, log_std, allowed).mode()
        expected = np.zeros((3 * rows, policy.actions.width), policy.actions.dtype)
        policy.actions.to_environment(mode.reshape(3 * rows, -1).numpy(), expected)
        found = policy.act_rows(obs, mask=mask)
        assert found.dtype == expected.dtype and (found == expected).all()
        assert len(np.unique(found)) > 1
        one = np.concatenate(
            [
                policy.act_rows(obs[r::rows], mask=None if mask is None else mask[r::rows])
                for r in range(rows)
            ]
        )
        assert (one.reshape(rows, 3, -1).transpose(1, 0, 2).reshape(found.shape) == found).all()


def test_images_are_exported_too(experience):
    agent, _ = experience.train(
        [0], experience.spec((1, 10, 10), "discrete", np.uint8), iterations=1
    )
    obs = np.random.default_rng(0).integers(0, 256, (8, 1, 10, 10), np.uint8)
    alone = unpack(*pack(agent.policy))
    assert (alone.act_rows(obs) == agent.policy.act_rows(obs)).all()


@pytest.mark.parametrize("damage", ["weight", "scale", "description", "format"])
def test_a_changed_policy_is_refused(experience, damage):
    policy = Policy([experience.spec()], [0])
    tensors, manifest = pack(policy)
    if damage == "weight":
        tensors["weights.actor.0.weight"][0, 0] += 1
    elif damage == "scale":
        tensors["observation.mean"][0] += 1
    elif damage == "format":
        manifest["format"] = 99
    else:
        manifest["network"]["net_arch"] = [32, 64]
    with pytest.raises(CheckpointError):
        unpack(tensors, manifest)


def test_fixed_columns_keep_their_scale_and_others_learn(experience):
    mean, std = np.array([1, np.nan, 3], np.float32), np.array([2, np.nan, 4], np.float32)
    spec = experience.spec((3,), fixed_mean=mean, fixed_std=std)
    other = experience.spec((3,), fixed_mean=mean * 10, fixed_std=std)
    agent, _ = experience.train([0, 1], [spec, other], iterations=2)
    scale = agent.policy.scale
    assert scale.mean[:, [0, 2]].tolist() == [[1, 3], [10, 30]]
    np.testing.assert_allclose(1 / scale.inverse_std[:, [0, 2]], [[2, 4]] * 2)
    np.testing.assert_allclose(scale.mean[:, 1], 1.0, atol=0.5)  # conftest draws 1 + 3 z
    np.testing.assert_allclose(1 / scale.inverse_std[:, 1], 3.0, atol=0.5)


def test_scaled_observations_are_clipped(experience):
    policy = Policy([experience.spec((2,))], [0])
    out = np.zeros((1, 1, 8), np.float32)
    policy.scale.apply(np.array([[[1e6, -1e6]]], np.float32), out)
    assert out[0, 0, :2].tolist() == [10, -10]


@pytest.mark.parametrize("normalised", [True, False])
def test_only_normalised_columns_are_clipped(experience, normalised):
    fixed = np.array([np.nan, 0.0, np.nan], np.float32)
    spec = experience.spec((3,), fixed_mean=fixed, fixed_std=fixed + 1)
    policy = Policy([spec], [0], observation_normalization=normalised)
    out = np.zeros((1, 1, 8), np.float32)
    policy.scale.apply(np.array([[[1e6, -1e6, -50]]], np.float32), out)
    assert out[0, 0, :3].tolist() == ([10, -10, -10] if normalised else [1e6, -10, -50])


def test_nobody_acts_outside_the_bounds(experience):
    policy = Policy([experience.spec((4,), "box")], [0], init_std=5.0)
    obs = np.random.default_rng(0).standard_normal((100, 4)).astype(np.float32)
    actions = policy.act_rows(obs, keys=rng.member_keys([0], rng.ACT, 0))
    assert actions.dtype == np.float32 and np.abs(actions).max() == 2.0


def test_masks_are_honoured(experience):
    policy = Policy([experience.spec((4,))], [0])
    obs = np.zeros((30, 4), np.float32)
    mask = np.tile([False, True, False], (30, 1))
    assert (policy.act_rows(obs, mask=mask) == 1).all()
    assert (policy.act_rows(obs, keys=rng.member_keys([0], rng.ACT, 0), mask=mask) == 1).all()


def test_unknown_action_spaces_are_refused(experience):
    import gymnasium

    spec = experience.spec()
    strange = EnvSpec(spec.observation_space, gymnasium.spaces.MultiBinary(3))
    with pytest.raises(ConfigError, match="MultiDiscrete"):
        Policy([strange], [0])
