"""The replay beside a list of everything that happened."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.replay.replay_config import ReplayConfig, updates_due
from slipstream.rl.experience.rollout import Rollout

D, CHOICES = 3, 4


def spec_of(**fields):
    box = gymnasium.spaces.Box(-np.inf, np.inf, (D,), np.float32)
    return EnvSpec(box, gymnasium.spaces.Discrete(CHOICES), **fields)


def is_lost(step):
    return isinstance(step[3], str) and step[3] == "lost"


class History:
    """Random steps of E copies, written into a replay and into lists of whole episodes.

    Every observation has a number of its own in column 0.
    """

    def __init__(self, replay, seed=0, ends=0.15, lost=0.05, limit=None):
        self.replay, self.rng = replay, np.random.default_rng(seed)
        self.ends, self.lost, self.limit = ends, lost, limit
        copies = len(replay.ring.head)
        self.number, self.copies = 0, copies
        self.rollout = Rollout(replay.spec, 1, replay.members, replay.num_envs, CHOICES)
        self.lines = [[] for _ in range(copies)]  # of each copy: (obs, action, reward, end, mask)
        self.rollout.obs[1], self.rollout.mask[1] = self.observations(copies), self.masks()
        replay.begin(self.rollout.obs[1], self.rollout.mask[1])

    def observations(self, n):
        rows = self.rng.standard_normal((n, D)).astype(np.float32)
        rows[:, 0] = np.arange(self.number, self.number + n)
        self.number += n
        return rows

    def masks(self):
        allowed = self.rng.random((self.copies, CHOICES)) < 0.7
        allowed[:, 0] = True
        return allowed

    def step(self):
        rollout, rng, e = self.rollout, self.rng, self.copies
        rollout.start_next()
        rollout.actions[0] = rng.integers(0, CHOICES, (e, 1))
        rollout.reward[0] = rng.standard_normal(e)
        rollout.terminated[0] = rng.random(e) < self.ends
        rollout.truncated[0] = rng.random(e) < self.ends
        if self.limit and len(self.lines[0]) % self.limit == self.limit - 1:
            rollout.truncated[0] = True
        rollout.valid[0] = rng.random(e) >= self.lost
        rollout.obs[1], rollout.mask[1] = self.observations(e), self.masks()
        cut = rollout.truncated[0] & ~rollout.terminated[0]
        final_of = np.where(cut, np.cumsum(cut) - 1, -1)
        finals = self.observations(int(cut.sum()))
        self.replay.write(rollout, 0, FinalObs(finals, np.zeros((0, 2), np.int64)), final_of)
        for i in range(e):
            end = "lost" if not rollout.valid[0, i] else "on"
            if end == "on" and rollout.terminated[0, i]:
                end = "terminated"
            elif end == "on" and rollout.truncated[0, i]:
                end = finals[final_of[i]]
            action, reward = int(rollout.actions[0, i, 0]), float(rollout.reward[0, i])
            own = (rollout.obs[0, i].copy(), action, reward, end, rollout.mask[0, i].copy())
            self.lines[i].append(own)

    def expected(self, e, i, n, gamma):
        """(obs, mask, action, reward, discount, obs_next) of step i of copy e."""
        line, reward, discount, k = self.lines[e], 0.0, 1.0, i
        after = None
        while k < i + n and after is None:
            if k == len(line) or is_lost(line[k]):
                break
            reward += discount * line[k][2]
            discount *= gamma
            end = line[k][3]
            if isinstance(end, np.ndarray):
                after = end
            elif isinstance(end, str) and end == "terminated":
                discount, after = 0.0, "nothing"
            k += 1
        if after is None:
            after = line[k][0] if k < len(line) else self.rollout.obs[1, e]
        return (line[i][0], line[i][4], line[i][1], reward, discount, after)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize(("capacity", "steps"), [(200, 30), (60, 100)])
@pytest.mark.parametrize("n", [1, 3])
def test_batches_are_what_happened(alpha, capacity, steps, n):
    members, copies = 2, 3
    replay = Replay(
        ReplayConfig(capacity, 8, 0, 1, 1.0, n, alpha), spec_of(), members, copies, CHOICES
    )
    history = History(replay)
    for _ in range(steps):
        history.step()
    by_number = {
        int(own[0][0]): (e, i) for e, line in enumerate(history.lines) for i, own in enumerate(line)
    }
    seen = [set(), set()]
    for k in range(60):
        keys = np.array([2 * k + 1, 2 * k], np.uint64)
        sample = replay.sample(np.array([1, 0]), keys, 32, n, np.array([0.9, 0.8]))
        for row, (m, gamma) in enumerate(((1, 0.9), (0, 0.8))):
            for b in range(32):
                got = [column[row, b] for column in sample.batch]
                e, i = by_number[int(got[0][0])]
                assert e // copies == m and not is_lost(history.lines[e][i])
                obs, mask, action, reward, discount, after = history.expected(e, i, n, gamma)
                assert got[0].tobytes() == obs.tobytes()
                assert (got[1] == mask).all() and got[2][0] == action
                assert got[3] == pytest.approx(reward, rel=1e-5, abs=1e-6)
                assert got[4] == pytest.approx(discount, rel=1e-6)
                if discount:
                    assert got[5].tobytes() == after.tobytes()
                seen[m].add((e, i))
    held = [
        sum(not is_lost(one) for line in own for one in line)
        for own in (history.lines[:copies], history.lines[copies:])
    ]
    if capacity == 200:  # everything is still there, and everything is drawn
        assert replay.num_valid.tolist() == held == [len(one) for one in seen]
    else:
        assert (replay.num_valid < held).all() and [
            len(one) for one in seen
        ] == replay.num_valid.tolist()
    assert replay.steps.tolist() == [steps * copies] * members


def test_a_ring_holds_its_capacity_whatever_the_time_limit_cuts():
    for limit in (None, 5):
        replay = Replay(
            ReplayConfig(40, 8, 0, 1, 1.0), spec_of(max_episode_steps=limit), 1, 2, CHOICES
        )
        history = History(replay, ends=0.0, lost=0.0, limit=limit)
        for _ in range(100):
            history.step()
        assert replay.num_valid[0] >= 40, limit


def test_updates_are_counted_exactly():
    ten = ReplayConfig(100, 8, 0, 1, 0.1).schedule
    assert [updates_due(ten, steps) for steps in (9, 10, 30, 10**9)] == [0, 1, 3, 10**8]
    zoo = ReplayConfig(100, 8, 1_000, 256, 0.5).schedule  # 128 updates every 256 steps
    assert [updates_due(zoo, steps) for steps in (1_000, 1_024, 1_279, 1_280)] == [0, 12, 12, 140]


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="20 transitions is smaller than a batch of 32"):
        ReplayConfig(20, 32, 0, 1, 1.0).check(1)
    with pytest.raises(ConfigError, match=r"agent\.buffer_size=40 or more"):
        ReplayConfig(32, 32, 0, 1, 1.0, n_step=5).check(8)
    ReplayConfig(40, 32, 0, 1, 1.0, n_step=5).check(8)
