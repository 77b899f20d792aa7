"""CartPole follows Gymnasium's own environment step for step."""

import gymnasium
import numpy as np
import pytest

FIELDS = ("x", "v", "angle", "spin")


def test_steps_are_gymnasiums(single):
    """Each step starts from Gymnasium's state; NumPy's sine may differ in its last bit."""
    theirs = gymnasium.make("CartPole-v1").unwrapped
    draw = np.random.default_rng(1)
    ours = single("cartpole")
    ended = exact = 0
    theirs.reset(seed=1)
    for _ in range(3000):
        ours.set(**dict(zip(FIELDS, theirs.state, strict=True)))
        action = int(draw.integers(2))
        observation, reward, terminated, _, _ = theirs.step(action)
        mine, my_reward, my_end, cut = ours.step(action)
        assert (my_reward, my_end, cut) == (reward, terminated, False)
        if terminated:
            ended += 1
            theirs.reset()
            continue
        state = np.array(ours.get(*FIELDS))
        np.testing.assert_allclose(state, theirs.state, rtol=1e-14, atol=1e-16)
        np.testing.assert_allclose(mine, observation, rtol=2e-7)
        exact += bool((state == theirs.state).all())
    assert ended > 50 and exact > 1500


@pytest.mark.parametrize("policy", ["random", "balance"])
def test_whole_episodes_are_gymnasiums(single, policy):
    """From one start to the end of the episode, time limit included."""
    theirs = gymnasium.make("CartPole-v1")
    draw = np.random.default_rng(2)
    ours = single("cartpole")
    lengths = []
    for seed in range(3 if policy == "balance" else 20):
        theirs.reset(seed=seed)
        first = ours.set(**dict(zip(FIELDS, theirs.unwrapped.state, strict=True)))
        # A fresh episode: the copy's clock starts with the state that was set.
        state = ours.env.get_state()
        state["episode_state.length"][:] = 0
        ours.env.set_state(state, ours.out.obs)
        np.testing.assert_array_equal(first, theirs.unwrapped.state.astype(np.float32))
        for length in range(1, 502):
            _, _, angle, spin = theirs.unwrapped.state
            action = int(angle + 0.5 * spin > 0) if policy == "balance" else int(draw.integers(2))
            _, _, terminated, truncated, _ = theirs.step(action)
            _, _, my_end, my_cut = ours.step(action)
            assert (my_end, my_cut) == (terminated, truncated), f"step {length} of {seed}"
            if terminated or truncated:
                break
        lengths.append(length)
    assert max(lengths) == 500 if policy == "balance" else max(lengths) < 200


def test_starts_are_uniform(single):
    ours = single("cartpole")
    starts = []
    for _ in range(400):
        ours.env.reset(ours.out.obs)
        starts.append(ours.get(*FIELDS))
    starts = np.array(starts)
    assert np.abs(starts).max() < 0.05 and np.abs(starts).max() > 0.049
    assert np.abs(starts.mean(axis=0)).max() < 4 * 0.1 / np.sqrt(12 * 400)


def test_spaces_are_gymnasiums(single):
    theirs, spec = gymnasium.make("CartPole-v1"), single("cartpole").env.spec
    assert (
        spec.observation_space == theirs.observation_space
        and spec.action_space == theirs.action_space
    )
    assert spec.max_episode_steps == theirs.spec.max_episode_steps


def test_settings(single):
    heavy = single("cartpole", {"gravity": 20.0, "force": 5.0, "max_steps": 3})
    theirs = gymnasium.make("CartPole-v1").unwrapped
    theirs.gravity, theirs.force_mag = 20.0, 5.0
    theirs.reset(seed=0)
    heavy.set(**dict(zip(FIELDS, theirs.state, strict=True)))
    for t in range(3):
        theirs.step(1)
        _, _, _, cut = heavy.step(1)
        assert cut == (t == 2)
        if not cut:
            np.testing.assert_allclose(heavy.get(*FIELDS), theirs.state, rtol=1e-14)
