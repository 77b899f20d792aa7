"""Batches of members: fair shares, sizes by measured speed, shapes."""

from __future__ import annotations

import pytest

from slipstream.training.population.batches import (
    SIZES,
    MemberBatch,
    QueuedTask,
    SpeedModel,
    effective_members,
    next_batch,
)
from slipstream.training.population.training_segment import Task


def jobs(count, shape="a", load=100, memory=1):
    return [QueuedTask(Task(None, 1), shape, load, memory, 0) for _ in range(count)]


def waves(waiting, workers, group_size=None):
    """Sizes of the batches that idle workers take, one after another."""
    sizes, others = [], []
    for _ in range(workers):
        batch = next_batch(waiting, others, workers, group_size)
        if batch is None:
            break
        waiting = [job for job in waiting if all(job is not taken for taken in batch.jobs)]
        others.append(float(batch.load))
        sizes.append(len(batch.jobs))
    return sizes


def test_ready_members_are_split_evenly():
    assert waves(jobs(96), 2) == [48, 48]
    assert waves(jobs(96), 4) == [24, 24, 24, 24]
    assert waves(jobs(40), 2, group_size=6) == [6, 6]


def test_large_shapes_first_and_together_a_fair_share():
    assert waves(jobs(30, "a") + jobs(34, "b"), 2) == [32, 30]


def test_few_members_are_not_spread_thin():
    assert waves(jobs(8), 2) == [6, 2]
    assert waves(jobs(6), 2) == [6]
    assert waves(jobs(14), 2) == [7, 7]


def test_a_worker_that_is_alone_idle_leaves_the_share_of_one_that_is_soon_done():
    assert len(next_batch(jobs(48), [0.0], 2, None).jobs) == 24
    assert len(next_batch(jobs(48), [5000.0], 2, None).jobs) == 48


def test_nobody_is_left_over_because_another_worker_began_a_moment_ago():
    assert len(next_batch(jobs(48), [4799.0], 2, None).jobs) == 48
    assert len(next_batch(jobs(48), [4600.0], 2, None).jobs) == 47


def test_memory_limits_a_batch():
    assert len(next_batch(jobs(48, memory=100 * 2**20), [], 1, None).jobs) == 5
    assert len(next_batch(jobs(2, memory=2**40), [], 1, None).jobs) == 1


def test_members_that_are_only_scored_are_spread_too():
    assert waves(jobs(48, load=1), 2) == [24, 24]


def test_halves():
    assert [len(half.jobs) for half in MemberBatch(jobs(5)).halves()] == [3, 2]
    assert [len(half.jobs) for half in MemberBatch(jobs(1)).halves()] == [1]


def test_nothing_waits():
    assert next_batch([], [], 2, None) is None


def trained(pace: SpeedModel, speeds: dict[int, float], rounds: int = 20) -> list[int]:
    """Sizes that are tried when a batch of a size always has its speed."""
    sizes = []
    for _ in range(rounds):
        most = pace.most("", "a")
        pace.add("", "a", most, 10, 1000, 1000 / speeds[most])
        sizes.append(most)
    return sizes


def test_every_size_is_tried_and_the_fastest_kept():
    tried = trained(SpeedModel(), {64: 100.0, 32: 150.0, 16: 120.0})
    assert tried[:9] == [64] * 3 + [32] * 3 + [16] * 3
    assert set(tried[9:]) == {32}


def test_the_largest_of_equally_fast_ones_is_kept():
    assert set(trained(SpeedModel(), {64: 97.0, 32: 100.0, 16: 99.0})[9:]) == {64}
    assert set(trained(SpeedModel(), {64: 50.0, 32: 97.0, 16: 100.0})[9:]) == {32}


def test_one_slow_batch_says_nothing():
    pace = SpeedModel()
    pace.add("", "a", 64, 10, 1000, 1000.0)  # somebody else was at work
    assert set(trained(pace, {64: 100.0, 32: 99.0, 16: 98.0})[8:]) == {64}


def test_short_and_odd_batches_are_not_counted():
    pace = SpeedModel()
    for _ in range(10):
        pace.add("", "a", 64, 1, 100, 1.0)  # assembling is what counted
        pace.add("", "a", 20, 10, 100, 0.0)
        pace.add("", "a", 200, 10, 100, 1.0)
    assert pace.most("", "a") == SIZES[0]


def test_shapes_and_machines_are_apart():
    pace = SpeedModel()
    trained(pace, {64: 1.0, 32: 2.0, 16: 4.0})
    assert pace.most("", "a") == 16
    assert pace.most("", "b") == pace.most("other", "a") == SIZES[0]


def test_a_batch_keeps_to_the_pace_unless_a_size_is_given():
    waiting = [QueuedTask(Task(None, 1), "a", 100, 1, 0) for _ in range(96)]
    assert len(next_batch(waiting, [], 1, None, lambda shape: 16).jobs) == 16
    assert len(next_batch(waiting, [], 1, 48, lambda shape: 16).jobs) == 48


@pytest.mark.parametrize(
    ("members", "workers", "expected"),
    [(0, 4, 0.0), (1, 1, 1.0), (5, 2, 10.0), (6, 2, 12.0), (12, 2, 12.0), (30, 8, 48.0)],
)
def test_few_members_count_for_the_workers_that_they_leave_idle(members, workers, expected):
    assert effective_members(members, workers) == expected
