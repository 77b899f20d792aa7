"""`SelfPlayEnv`: observations and rewards are the game's, opponents follow the config."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.games.self_play.opponent_networks import uniform_at
from slipstream.games.self_play.self_play_env import sample_index
from slipstream.kernels.vector_env import allocate_buffers
from slipstream.training.environments.factory import resolve_environment

DUEL = str(Path(__file__).parents[3] / "engine/samples/duel.py")
PENNIES = str(Path(__file__).parents[4] / "examples/kernels/pennies.py")


def seats(num_envs=6, backend="auto", target=DUEL, **self_play):
    env = slipstream.make_vec(
        target,
        num_envs,
        seed=3,
        backend=backend,
        self_play={"opponents": {"random": 1.0}, **self_play},
    )
    return env


def choices(mask, t):
    """Some allowed choice of each copy, another one from step to step."""
    return np.array([[np.flatnonzero(row)[t % row.sum()]] for row in mask])


def test_the_seat_shows_what_the_game_shows_its_player():
    env, out = seats(), allocate_buffers(seats())
    env.reset_rows(out.obs, out.mask)
    finals = 0
    for t in range(20):
        seat = env._matches.learner.copy()
        both = np.arange(6), seat
        np.testing.assert_array_equal(out.obs, env._obs[both])
        np.testing.assert_array_equal(out.mask, env._mask[both])
        before = env.game.get_state()
        actions = choices(out.mask, t)
        env.step_rows(actions, out, t)
        np.testing.assert_array_equal(env._joint_actions[both], actions)
        np.testing.assert_array_equal(out.reward, env._reward[both])
        # The opponent was allowed what it did.
        assert env_mask(before, env)[
            np.arange(6), 1 - seat, env._joint_actions[np.arange(6), 1 - seat, 0]
        ].all()
        final = env.drain_final_obs()
        ended = np.flatnonzero(out.truncated & ~out.terminated)
        assert final.index[:, 1].tolist() == ended.tolist()
        taken = env._joint_actions[ended, :, 0]
        expected = np.stack(
            [
                taken[np.arange(len(ended)), seat[ended]],
                taken[np.arange(len(ended)), 1 - seat[ended]],
            ],
            1,
        )
        np.testing.assert_array_equal(final.obs, expected)
        finals += len(ended)
        episodes = env.drain_episodes()
        np.testing.assert_array_equal(episodes.metrics["player"], seat[episodes.e])
    assert finals > 5


def env_mask(state, env):
    """[E, 2, 4]: a choice just taken by the other one is forbidden."""
    taken = state["state.taken"]
    return np.arange(4)[None, None] != taken[:, ::-1, None]


def test_seats_follow_from_the_episode_alone():
    """A batch of 3 equals the first 3 of 6 sub-environments, and both backends agree."""
    runs = []
    for num_envs, backend in ((6, "compiled"), (3, "compiled"), (3, "serial")):
        env = seats(num_envs, backend)
        out, kept = allocate_buffers(env), []
        env.reset_rows(out.obs, out.mask)
        for t in range(12):
            env.step_rows(choices(out.mask, t), out, t)
            kept.append((out.obs.copy(), out.reward.copy(), env._matches.learner.copy()))
        runs.append(kept)
    for six, three, serial in zip(*runs, strict=True):
        for a, b, c in zip(six, three, serial, strict=True):
            np.testing.assert_array_equal(a[:3], b)
            np.testing.assert_array_equal(b, c)


def test_both_seats_are_drawn_equally_often():
    env = seats(2_000, "serial", PENNIES)  # seats are drawn beside the loop
    env.reset()
    assert abs(env._matches.learner.mean() - 0.5) < 0.05
    first = env._matches.learner.copy()
    env.step(np.zeros(2_000, np.int64))
    assert 0.4 < (first == env._matches.learner).mean() < 0.6
    results = env.episodes.metrics["won"] - env.episodes.metrics["lost"]
    assert set(results) == {1.0, -1.0}
    np.testing.assert_array_equal(results, env.episodes.returns)


def test_a_place_is_found_by_its_share():
    shares = np.array([0.25, 0.25, 1.0])
    assert [sample_index(shares, u) for u in (0.0, 0.2499, 0.25, 0.9999)] == [0, 0, 2, 2]
    with np.errstate(over="ignore"):
        u = [uniform_at(np.uint64(5), i) for i in range(1_000)]
    assert 0.45 < np.mean(u) < 0.55


@pytest.mark.parametrize(
    ("self_play", "words"),
    [
        ({"opponents": {"snapshots": 1}}, "requires a learner"),
        ({"opponents": {"rondom": 1}}, "did you mean `random`"),
        ({"opponents": {"runs/nowhere": 1}}, "unknown opponent"),
        ({"opponents": {"nowhere.onnx": 1}}, "does not exist"),
        ({"opponents": {"random": 0}}, "All weights"),
        ({"opponents": {}}, "opponents"),
        ({"opponents": {"random": -1}}, "must be at least 0, got -1"),
        ({"slots": 0}, "slots"),
        ({"pool": 3}, "pool"),
        ({"sampling": "pfsp"}, "duel declares no winner"),
        ({"opponents": {"snapshots": 1}, "snapshot_iterations": None}, "never takes one"),
    ],
)
def test_what_cannot_play_is_refused(self_play, words):
    with pytest.raises(ConfigError, match=words):
        seats(**self_play)


def test_a_game_of_one_has_no_other_seat():
    with pytest.raises(ConfigError, match="self_play"):
        slipstream.make_vec("cartpole", 2, self_play={})
    with pytest.raises(ConfigError, match=r"env.self_play: \{\}"):
        resolve_environment(DUEL, {})
