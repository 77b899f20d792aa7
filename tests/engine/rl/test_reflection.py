"""Batches whose rows are turned into mirror images: by hand, half of them, in both forms."""

import numpy as np
import pytest
from gymnasium import spaces

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec, Symmetry
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.experience.replay.ring import NO_REFLECTION, Batch, loops, make_reflection
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
NUMBERS = EnvSpec(BOX, spaces.Box(-1, 1, (2,), np.float32), symmetry=Symmetry((1,), (0,)))
CHOICES = EnvSpec(BOX, spaces.Discrete(3), symmetry=Symmetry((0, 2), action_permutation=(0, 2, 1)))


def batch_of(action, rows=4000):
    obs = np.tile(np.array([1.0, 2.0, 3.0], np.float32), (rows, 1))
    none = np.ones((0, 0), np.bool_)
    one = np.ones(rows, np.float32)
    return Batch(obs, none, np.tile(action, (rows, 1)), one, one.copy(), 10 * obs, none)


@pytest.mark.parametrize(
    ("spec", "action", "image", "turned"),
    [
        (NUMBERS, [0.5, 0.25], [1.0, -2.0, 3.0], [-0.5, 0.25]),
        (CHOICES, [1.0], [-1.0, 2.0, -3.0], [2.0]),
    ],
)
def test_half_of_the_rows_are_mirror_images(spec, action, image, turned):
    batch = batch_of(np.array(action, np.float32))
    loops()["reflect"](make_reflection(spec), np.uint64(7), batch)
    changed = (batch.obs != [1.0, 2.0, 3.0]).any(axis=1)
    assert abs(changed.mean() - 0.5) < 0.04  # five standard deviations
    assert (batch.obs[changed] == image).all()
    assert (batch.obs_next == 10 * batch.obs).all()
    assert (batch.action[changed] == turned).all()
    assert (batch.action[~changed] == np.array(action, np.float32)).all()


def test_nothing_is_reflected_unless_asked():
    batch = batch_of(np.array([1.0], np.float32), rows=9)
    loops()["reflect"](NO_REFLECTION, np.uint64(7), batch)
    assert (batch.obs == [1.0, 2.0, 3.0]).all()


@pytest.mark.parametrize("config", [DQNConfig, SACConfig])
def test_who_has_no_image_is_refused(config):
    with pytest.raises(ConfigError, match="symmetry"):
        config(reflect=True).check_spaces(EnvSpec(BOX, CHOICES.action_space))


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "name"), [("dqn", "cartpole"), ("sac", "pendulum")])
def test_both_forms_learn_from_the_same_images(agent, name):
    """The compiled form draws and reflects in its own loop, the torch form by `Replay.sample`."""
    own = {"name": agent, "batch_size": 16, "net_arch": [8], "learning_starts": 64, "iteration": 64}
    weights = {}
    for form, reflected in (("compiled", True), ("torch", True), ("compiled", False)):
        config = resolve(
            {
                "env": name,
                "agent": {**own, "utd_ratio": 0.25, "reflect": reflected},
                "training": {"num_envs": 2, "learner": form},
            }
        )
        environment = resolve_environment(config.env_name, config.env_settings)
        shard = Shard(environment, config.agent, [0], range(1), 2, learner=form)
        shard.reset()
        shard.iterate(0.0)
        shard.iterate(0.1)
        weights[form, reflected] = shard.agent.policy.parameters.flat.copy()
    np.testing.assert_allclose(weights["compiled", True], weights["torch", True], atol=1e-4)
    assert np.abs(weights["compiled", True] - weights["compiled", False]).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "fields"),
    [("cartpole", ("x", "v", "angle", "spin")), ("pendulum", ("angle", "speed"))],
)
def test_a_kernels_mirror_image_follows_its_rules(name, fields):
    """From states with the opposite signs, by the opposite actions."""
    declared = resolve_environment(name, {}).spec.symmetry
    envs = [slipstream.make_vec(name, 50, seed=2) for _ in range(2)]
    seen = [env.reset(seed=2) for env in envs]
    for field in fields:
        envs[1].state[field] *= -1.0
    sign = np.ones(seen[0].shape[1], np.float32)
    sign[list(declared.observation)] = -1.0
    draw = np.random.default_rng(1)
    for _ in range(20):
        action = (
            draw.integers(0, 2, 50) if declared.action_permutation else draw.uniform(-1, 1, (50, 1))
        )
        image = (
            np.array(declared.action_permutation)[action]
            if declared.action_permutation
            else -action
        )
        (here, got, *ends), (there, also, *others) = (
            env.step(np.asarray(a, env.spec.action_dtype))
            for env, a in zip(envs, (action, image), strict=True)
        )
        going = ~(ends[0] | ends[1])  # what begins anew has its own start
        np.testing.assert_allclose(here[going] * sign, there[going], atol=1e-5)
        np.testing.assert_allclose(got, also, atol=1e-5)
        assert (ends[0] == others[0]).all()
        if not going.all():
            break
