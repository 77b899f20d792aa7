"""Pendulum follows Gymnasium's own environment step for step."""

import gymnasium
import numpy as np


def test_steps_are_gymnasiums(single):
    theirs = gymnasium.make("Pendulum-v1").unwrapped
    draw = np.random.default_rng(1)
    ours = single("pendulum")
    theirs.reset(seed=1)
    for t in range(3000):
        if t % 200 == 0:
            theirs.state = np.array([draw.uniform(-20, 20), draw.uniform(-8, 8)])
        before = ours.set(angle=theirs.state[0], speed=theirs.state[1])
        np.testing.assert_allclose(before, theirs._get_obs(), rtol=1e-6, atol=1e-7)
        action = draw.uniform(-3, 3, 1).astype(np.float32)  # beyond the limits too
        # Gymnasium rounds the acceleration of a float32 torque to float32; float64 does not.
        observation, reward, terminated, _, _ = theirs.step(action.astype(np.float64))
        mine, my_reward, my_end, _ = ours.step(action)
        assert not my_end and not terminated
        np.testing.assert_allclose(my_reward, reward, rtol=1e-6, atol=1e-7)
        if t % 200 == 199:  # cut off: the copy has begun again
            continue
        state = ours.get("angle", "speed")
        np.testing.assert_allclose(state, theirs.state, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(mine, observation, rtol=1e-6, atol=1e-7)


def test_whole_episodes_are_gymnasiums(single):
    """200 steps from one start: rounding grows slowly enough to stay far below 1e-9."""
    theirs = gymnasium.make("Pendulum-v1")
    draw = np.random.default_rng(2)
    ours = single("pendulum")
    for seed in range(3):
        theirs.reset(seed=seed)
        inner = theirs.unwrapped
        ours.env.reset(ours.out.obs)
        ours.set(angle=inner.state[0], speed=inner.state[1])
        for t in range(200):
            action = draw.uniform(-2, 2, 1)
            action = action.astype(np.float32).astype(np.float64)
            _, reward, _, truncated, _ = theirs.step(action)
            _, my_reward, my_end, my_cut = ours.step(action)
            assert (my_end, my_cut) == (False, truncated) == (False, t == 199)
            np.testing.assert_allclose(my_reward, reward, rtol=1e-5, atol=1e-6)
            if not my_cut:
                np.testing.assert_allclose(
                    ours.get("angle", "speed"), inner.state, rtol=1e-9, atol=1e-9
                )


def test_starts(single):
    ours = single("pendulum")
    starts = []
    for _ in range(400):
        ours.env.reset(ours.out.obs)
        starts.append(ours.get("angle", "speed"))
    angle, speed = np.array(starts).T
    assert np.pi * 0.97 < np.abs(angle).max() <= np.pi and 0.97 < np.abs(speed).max() <= 1.0
    assert abs(angle.mean()) < 4 * np.pi / np.sqrt(3 * 400)


def test_spaces_are_gymnasiums(single):
    theirs, spec = gymnasium.make("Pendulum-v1"), single("pendulum").env.spec
    assert (
        spec.observation_space == theirs.observation_space
        and spec.action_space == theirs.action_space
    )
    assert spec.max_episode_steps == theirs.spec.max_episode_steps
