"""A policy outside the project: what the environment shows goes in, what it takes comes out."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.errors import ConfigError
from slipstream.gym.env_factory import flatten_spaces
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack

BOX = spaces.Box(-1, 1, (3,), np.float32)
OBSERVATIONS = [
    BOX,
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(-1, 1, (2, 3), np.float64),
    spaces.Box(0, 255, (4,), np.uint8),
    spaces.Box(0, 255, (12, 10, 3), np.uint8),
    spaces.Discrete(4, start=5),
    spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 7]]),
    spaces.MultiBinary((2, 2)),
    spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Tuple((BOX, spaces.Discrete(2, start=1)))}),
    spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
]
ACTIONS = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=5),
    spaces.MultiDiscrete([[3, 2], [2, 2]]),
    spaces.MultiDiscrete([3, 2], start=[1, 4]),
    spaces.MultiBinary(3),
    spaces.Box(-2, 2, (2, 2), np.float64),
    spaces.Box(-2, 2, (), np.float32),
]


def policy_of(observation, action=ACTIONS[0], members=1, masked=False):
    flat, rows = flatten_spaces("X", observation, action)
    native = {"native_observation_space": observation, "native_action_space": action}
    spec = EnvSpec(flat, rows, has_action_mask=masked, **native)
    policy = Policy(
        [spec] * members, range(members), net_arch=(16,), observation_normalization=False
    )
    policy.parameters.flat *= 5.0  # preferences that no rounding decides
    return policy


def stacked(space, samples):
    """A batch as Gymnasium's vector environments show it."""
    if isinstance(space, spaces.Dict):
        return {k: stacked(part, [s[k] for s in samples]) for k, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [s[i] for s in samples]) for i, part in enumerate(space.spaces))
    return np.stack([np.asarray(sample) for sample in samples])


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_one_observation_and_a_batch(space):
    """Equal to what rows by Gymnasium's own rule give, one by one and together."""
    policy = policy_of(space)
    space.seed(1)
    samples = [space.sample() for _ in range(9)]
    batch = stacked(space, samples)
    together = policy.act(batch)
    assert policy.act(samples).tolist() == together.tolist(), "a list of observations is a batch"
    assert together.shape == (9,) and together.dtype == np.int64
    alone = [policy.act(sample) for sample in samples]
    assert all(type(action) is int for action in alone) and alone == together.tolist()
    if policy.is_image:
        rows = np.stack([np.moveaxis(sample, -1, 0) for sample in samples])
    else:
        rows = np.stack([spaces.flatten(space, s) for s in samples]).astype(np.float32)
    assert policy.act_rows(rows)[:, 0].tolist() == alone
    shown = policy.native.observation_codec.decode(rows)
    for part, whole in zip(_leaves(shown), _leaves(batch), strict=True):
        np.testing.assert_allclose(part, whole, atol=1e-6)


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    if isinstance(tree, tuple):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [tree]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_actions_are_the_environments_own(space, deterministic):
    policy = policy_of(BOX, space)
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    one = policy.act(observations[0], deterministic=deterministic)
    assert space.contains(one), one
    many = policy.act(observations, deterministic=deterministic)
    assert many.shape == (5, *(space.shape or ()))
    assert all(space.contains(np.asarray(action, space.dtype)) for action in many)
    assert policy.act(observations[:0]).shape == (0, *(space.shape or ()))


def test_drawn_actions_follow_from_a_seed():
    policy, observations = policy_of(BOX), np.zeros((200, 3), np.float32)
    policy.parameters.flat *= 0.01
    first = [policy.act(observations, deterministic=False).tolist() for _ in range(3)]
    assert first[0] != first[1] and len(set(first[0])) == 3
    policy.reseed(policy.seeds[0])
    assert [policy.act(observations, deterministic=False).tolist() for _ in range(3)] == first
    policy.reseed(7)
    assert policy.act(observations, deterministic=False).tolist() not in first


def test_the_outside_travels_with_an_exported_policy():
    for observation, action in zip(OBSERVATIONS, [*ACTIONS, *ACTIONS], strict=False):
        policy = policy_of(observation, action)
        tensors, manifest = pack(policy)
        again = unpack(tensors, json.loads(json.dumps(manifest)))
        observation.seed(3)
        sample = observation.sample()
        assert np.array_equal(again.act(sample), policy.act(sample))
        assert pack(again)[1] == manifest


@pytest.mark.parametrize(
    ("space", "given", "words"),
    [
        (BOX, np.zeros(4), r"shape \(4,\) instead of float32 of shape \(3,\).*batch axis first"),
        (BOX, np.zeros((3, 2)), r"shape \(3, 2\).*batch axis first"),
        (BOX, np.zeros((2, 2, 3)), r"axes \(2, 2\).*batch axis"),
        (BOX, None, "None"),
        (BOX, "abc", "'abc'"),
        (BOX, [[1.0, 2.0], [3.0]], "lengths"),
        (BOX, 1.0, r"shape \(\)"),
        (BOX, [np.nan, 0, 0], "NaN"),
        (spaces.Discrete(3), 3, "integer from 0 to 2"),
        (spaces.Discrete(3, start=5), 2, "integer from 5 to 7"),
        (spaces.Discrete(3), 1.0, "float64"),
        (OBSERVATIONS[8], {"b": 1}, "without the part"),
        (OBSERVATIONS[9], np.zeros(3, int), "without the part"),
        (OBSERVATIONS[9], [(1, 2, 1), (1, 2)], "without the part"),
        (OBSERVATIONS[9], [([1, 2], [1, 2], [0, 1])], "a list of batches"),
        (OBSERVATIONS[8], {"b": [1, 2], "a": (np.zeros((3, 3)), [1, 2, 2])}, "batch sizes"),
        (OBSERVATIONS[4], np.zeros((12, 10, 3)), "uint8"),
    ],
)
def test_misfits_are_explained(space, given, words):
    with pytest.raises(ConfigError, match=words):
        policy_of(space).act(given)


def test_a_masked_policy_refuses_to_act_without_its_mask():
    policy = policy_of(BOX, masked=True)
    observations = np.zeros((4, 3), np.float32)
    with pytest.raises(ConfigError, match=r"mask.*\(4, 3\)"):
        policy.act(observations)
    with pytest.raises(ConfigError, match=r"mask.*\(3,\)"):
        policy.act(observations[0])
    again = unpack(*pack(policy))
    with pytest.raises(ConfigError, match="mask"):
        again.act(observations)
    for choice in range(3):
        mask = np.tile(np.arange(3) == choice, (4, 1))
        assert again.act(observations, mask=mask).tolist() == [choice] * 4
        assert again.act(observations[0], mask[0]) == choice
        assert again.act(observations[0], mask[0], deterministic=False) == choice


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones(3, bool), "batch axis"),
        (np.ones((4, 2), bool), "batch axis"),
        (np.ones((4, 3)), "float64"),
        (np.array([[True] * 3] * 3 + [[False] * 3]), "allows nothing in row 3"),
    ],
)
def test_masks_of_another_form_are_explained(mask, words):
    with pytest.raises(ConfigError, match=words):
        policy_of(BOX, masked=True).act(np.zeros((4, 3), np.float32), mask=mask)


def test_a_box_has_no_mask():
    with pytest.raises(ConfigError, match="Box"):
        policy_of(BOX, ACTIONS[5]).act(np.zeros(3), mask=np.ones(2, bool))


def test_a_population_has_the_member_axis_first():
    policy = policy_of(BOX, members=2)
    observations = np.random.default_rng(0).uniform(-1, 1, (2, 6, 3))
    actions = policy.act(observations)
    assert actions.shape == (2, 6)
    for m in range(2):
        alone = unpack(*pack(policy, m))
        assert alone.act(observations[m]).tolist() == actions[m].tolist()
    assert policy.act(observations[:, 0]).tolist() == actions[:, 0].tolist()
    with pytest.raises(ConfigError, match="members first"):
        policy.act(observations[0])


def test_kernels_show_their_own_rows():
    spec = replace(EnvSpec(BOX, spaces.Discrete(2)))
    policy = Policy([spec], [0])
    assert policy.act(np.zeros(3)) in (0, 1)
    assert policy.act(np.zeros((2, 3), np.float32)).shape == (2,)


def test_buffers_of_many_batch_sizes_are_not_kept():
    policy = policy_of(BOX)
    for rows in range(1, 40):
        policy.act(np.zeros((rows, 3), np.float32))
    assert len(policy._actors) <= 8
