"""Sums of priorities; what is drawn by them, weighted, says the same as all that is held."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from slipstream.jit.simd import least_of, place_of, sum_of
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.compiled_loops import compile_loops, f4, f8, i8
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.replay.replay_config import ReplayConfig
from slipstream.rl.experience.replay.ring import power
from slipstream.rl.experience.replay.sum_tree import (
    find_leaves,
    min_priority,
    rebuild,
    set_leaf,
    total_priority,
    tree_levels,
    update_parents,
)
from slipstream.rl.experience.rollout import Rollout

HELD = 200


@pytest.mark.parametrize("leaves", [3, 8, 70, 600, 5000])
def test_sums_are_those_of_the_leaves(leaves):
    levels, nodes = tree_levels(leaves)
    tree = np.zeros(nodes, np.float32)
    least = np.full(nodes - levels[1], np.inf, np.float32)
    rng, known = np.random.default_rng(leaves), np.zeros(leaves, np.float32)
    for _ in range(leaves):  # one at a time, and several in any order, some of them twice
        some = rng.integers(leaves, size=3)
        known[some] = rng.random(3) * (rng.random(3) < 0.8)
        set_leaf(tree, least, levels, int(some[0]), known[some[0]])
        tree[some] = known[some]
        update_parents(tree, least, levels, some)
    assert total_priority(tree, levels) == pytest.approx(known.sum(dtype=np.float64), rel=1e-6)
    assert min_priority(least, levels) == known[known > 0].min()
    edges = np.cumsum(known.astype(np.float64))
    target = rng.random(200) * edges[-1]
    found = np.zeros(200, np.int64)
    find_leaves(tree[None], 0, levels, target.copy(), found)
    # to the rounding of sums
    assert (np.searchsorted(edges, target - 1e-6 * edges[-1], side="right") <= found).all()
    assert (np.searchsorted(edges, target + 1e-6 * edges[-1], side="right") >= found).all()
    beyond = np.full(1, edges[-1] * 1.01)
    find_leaves(tree[None], 0, levels, beyond, found[:1])
    assert known[found[0]] > 0  # rounding never leads to a leaf that cannot be drawn
    again, low = np.zeros_like(tree), np.full_like(least, np.inf)
    again[:leaves] = known
    rebuild(again, low, levels)
    assert again.tobytes() == tree.tobytes() and low.tobytes() == least.tobytes()


def test_a_target_that_float32_takes_up_finds_a_leaf_that_can_be_drawn():
    """Just below the end of 16 leaves it becomes that end, where an empty leaf follows."""
    levels, nodes = tree_levels(40)
    tree = np.zeros(nodes, np.float32)
    tree[:40] = 1.0
    tree[16] = 0.0
    rebuild(tree, np.full(nodes - levels[1], np.inf, np.float32), levels)
    target = np.nextafter([16.0, 31.0, 39.0], 0.0)
    found = np.zeros(3, np.int64)
    find_leaves(tree[None], 0, levels, target, found)
    assert found.tolist() == [17, 32, 39]


def filled(alpha):
    """A member's 200 transitions, each with a reward of its own."""
    box = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    spec = EnvSpec(box, gymnasium.spaces.Discrete(2))
    replay = Replay(ReplayConfig(HELD, 32, 0, 1, 1.0, alpha=alpha), spec, 1, 2)
    rollout, nobody = Rollout(spec, HELD // 2, 1, 2), np.full(2, -1)
    rollout.reward[:] = np.random.default_rng(1).standard_normal(rollout.reward.shape) ** 3
    replay.begin(rollout.obs[0], None)
    for t in range(HELD // 2):
        finals = FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64))
        replay.write(rollout, t, finals, nobody)
    return replay, rollout.reward.ravel().astype(np.float64)


def draws(replay, beta, times=4_000, rows=32):
    """All rewards, weights and places of that many batches."""
    keys = np.arange(times, dtype=np.uint64)
    batch, index = replay.make_batch(rows), np.zeros(rows, np.int64)
    weight, found = np.zeros(rows, np.float32), []
    for key in keys:
        replay.sample_into(0, key, 1, 1.0, beta, index, weight, batch)
        found.append(np.stack([batch.reward, weight, index]))
    return np.stack(found, 1).astype(np.float64)  # [3, times, rows]


def prioritised(replay):
    """Gives every transition an error of its own, over three orders of magnitude; p by place."""
    places = np.flatnonzero(replay.ring.tree[0, : 2 * replay.slots] > 0)
    assert len(places) == HELD
    error = np.exp(np.random.default_rng(2).uniform(-4, 3, HELD)).astype(np.float32)
    replay.update_priorities(0, places, error)
    p = np.zeros(2 * replay.slots)
    p[places] = (error.astype(np.float64) + 1e-6) ** replay.config.alpha
    return p


def test_weights_undo_the_preference():
    """With beta = 1 the weighted mean of any quantity is its mean over all that is held.

    Of 4,000 batches the mean lies within 4 standard errors of the truth; without the weights it
    lies far away.
    """
    replay, reward = filled(0.7)
    p = prioritised(replay)
    found, weight, _ = draws(replay, 1.0)
    scale = p[p > 0].min() / (p.sum() / HELD)  # 1 / max w, the same for all: w_i = scale / (R P_i)
    quantities = ((found, reward.mean()), (found**2, (reward**2).mean()), (0 * found + 1, 1.0))
    for value, truth in quantities:
        means = (weight * value).mean(1) / scale
        error = means.std() / np.sqrt(len(means))
        assert abs(means.mean() - truth) < 4 * error, (means.mean(), truth, error)
    plain = (found**2).mean(1)
    away = abs(plain.mean() - (reward**2).mean()) / (plain.std() / np.sqrt(len(plain)))
    assert away > 10


def test_transitions_are_drawn_in_proportion_to_their_priorities():
    replay, _ = filled(0.7)
    p = prioritised(replay)
    _, _, index = draws(replay, 0.4)
    counts = np.bincount(index.astype(int).ravel(), minlength=len(p))
    expected = p / p.sum() * index.size
    assert (counts[p == 0] == 0).all()
    often = expected > 20
    # Each of 32 equal parts of the sum gives one draw: the variance is below Poisson's.
    z = (counts[often] - expected[often]) / np.sqrt(expected[often])
    assert np.abs(z).max() < 4.5


def test_uniform_draws_are_uniform():
    replay, reward = filled(0.0)
    found, weight, index = draws(replay, 1.0)
    counts = np.bincount(index.astype(int).ravel())
    counts = counts[counts > 0]
    assert len(counts) == HELD and (weight == 1).all()
    expected = index.size / HELD
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < HELD - 1 + 4 * np.sqrt(2 * (HELD - 1))
    assert abs(found.mean() - reward.mean()) < 4 * reward.std() / np.sqrt(index.size)


def test_new_transitions_have_the_greatest_priority_so_far():
    replay, _ = filled(1.0)
    place = int(np.flatnonzero(replay.ring.tree[0, : replay.slots] > 0)[0])
    replay.update_priorities(0, np.array([place]), np.array([7.0], np.float32))
    assert replay.ring.max_priority[0] == pytest.approx(7.0)
    replay.update_priorities(0, np.array([place]), np.array([np.nan], np.float32))  # passed over
    assert replay.ring.tree[0, place] == pytest.approx(7.0)
    rollout = Rollout(replay.spec, 1, 1, 2)
    finals = FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64))
    head = int(replay.ring.head[0])
    replay.write(rollout, 0, finals, np.full(2, -1))
    assert replay.ring.tree[0, head] == pytest.approx(7.0)


def test_powers_are_those_of_the_library():
    rng = np.random.default_rng(0)
    for x, y in zip(np.exp(rng.uniform(-60, 60, 500)), rng.uniform(-1, 1, 500), strict=True):
        assert power(float(x), float(y)) == pytest.approx(float(x) ** float(y), rel=3e-9)
    assert power(1e-6, 0.0) == 1.0 and power(1.0, 0.7) == 1.0


def find_sixteen(row, sought, sums, least, chosen, begin):
    for i in range(len(sought)):
        sums[i], least[i] = sum_of(row, 16 * i), least_of(row, 16 * i)
        chosen[i], begin[i] = place_of(row, 16 * i, sought[i])


def test_sixteen_numbers_at_once_are_those_of_the_definition():
    rng, n = np.random.default_rng(1), 300
    row = (rng.random(16 * n) * (rng.random(16 * n) < 0.7)).astype(np.float32)
    row[:16] = 0.0
    sought = (rng.random(n) * 9).astype(np.float32)  # some of them beyond the end
    loop = compile_loops(
        "sixteen_test",
        {
            find_sixteen: (
                *(f4(1), f4(1), f4(1), f4(1)),
                *(i8(1), f8(1)),
            )
        },
    )["find_sixteen"]
    found = []
    for run in (find_sixteen, loop):
        out = np.zeros(n, np.float32), np.zeros(n, np.float32), np.zeros(n, np.int64), np.zeros(n)
        run(row, sought, *out)
        found.append(b"".join(x.tobytes() for x in out))
    assert found[0] == found[1]
