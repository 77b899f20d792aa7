"""The game with up and down swapped is the same game: states, steps, and what agents are told."""

import numpy as np
import pytest

from slipstream.games.hockey.kernel import create_bodies, decode_action
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import allocate_buffers, member_indices

CENTER_Y = 4.0


def games(starts, **config):
    """Copies that begin with player 2 at (x, y) and the puck at (px, py), [n, 4]."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure(config))
    env = KernelVectorEnv(kernel, loaded, *member_indices([0], len(starts)), autoreset_mode=HOLD)
    out = allocate_buffers(env)
    env.reset(out.obs)
    key = env.state["key"].copy()
    env.state[:] = 0
    env.state["key"], env.state["time_limit"] = key, 250
    for i, start in enumerate(starts):
        create_bodies(Records(env.state)[i], loaded.data, *start)
    return env, out


def mirrored(declared, obs, actions):
    """Observations and actions of the mirror image."""
    obs, actions = obs.copy(), actions.copy()
    obs[..., list(declared.observation)] *= -1.0
    actions[..., list(declared.action)] *= -1.0
    return obs, actions


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"puck_hold": False}])
def test_the_mirror_image_of_a_game_is_a_game(config):
    """Both sides see and do the opposite up and down; only the last bits of their numbers differ,
    and collisions enlarge those, so that the median copy is compared for longer than the worst."""
    draw, n = np.random.default_rng(3), 64
    x, px = draw.uniform(7.5, 8.5, n), draw.uniform(3.0, 6.5, n)
    y, py = draw.uniform(-1.5, 1.5, n), draw.uniform(-1.0, 1.0, n)
    here, out = games(np.stack([x, CENTER_Y + y, px, CENTER_Y + py], axis=1), **config)
    there, image = games(np.stack([x, CENTER_Y - y, px, CENTER_Y - py], axis=1), **config)
    declared = here.spec.symmetry
    moves = np.zeros((n, 2, here.spec.action_dim), here.spec.action_dtype)
    ends = np.zeros((2, n), bool)
    for t in range(60):
        if t % 5 == 0:
            moves = draw.uniform(-1, 1, moves.shape).astype(np.float32)
        same, opposite = mirrored(declared, out.obs, moves)
        here.step(moves, out, t)
        there.step(np.ascontiguousarray(opposite, moves.dtype), image, t)
        ends |= [out.terminated, image.terminated]
        same, _ = mirrored(declared, out.obs, moves)
        apart = np.abs(same - image.obs).max(axis=(1, 2))
        if t == 3:
            assert apart.max() < 1e-4
    assert np.median(apart) < 1e-2
    assert (ends[0] == ends[1]).mean() > 0.9 and np.abs(out.obs[..., 13]).max() > 0.1
    np.testing.assert_allclose(np.median(np.abs(out.reward - image.reward), axis=0), 0.0, atol=1e-3)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("fineness", [2, 3])
def test_a_choice_becomes_the_one_that_means_the_mirrored_action(fineness, keep):
    """Left and right stay as they are, which the hockey project had the wrong way round."""
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure({"num_action_levels": fineness, "puck_hold": keep}))
    p = loaded.params["train"][0]
    choices = kernel.spec(p, loaded.data).symmetry.action_permutation
    sign = np.array([1.0, -1.0, -1.0, 1.0])
    for choice, image in enumerate(choices):
        acts = []
        for one in (choice, image):
            s = Records(np.zeros(1, kernel.STATE))[0]
            decode_action(s, p, np.array([one]), 0)
            acts.append(np.array(list(s.actions[0])))
        np.testing.assert_array_equal(acts[0] * sign, acts[1])
    assert choices[1 : 2 * fineness - 1] == tuple(range(1, 2 * fineness - 1))  # left, right
