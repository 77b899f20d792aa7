"""Sizes of batches follow measured speeds."""

from slipstream.studies.engine.batches import SIZES, Job, Pace, next_batch
from slipstream.studies.engine.stretch import Task


def trained(pace: Pace, speeds: dict[int, float], rounds: int = 20) -> list[int]:
    """Sizes that are tried when a batch of a size always has its speed."""
    sizes = []
    for _ in range(rounds):
        most = pace.most("", "a")
        pace.add("", "a", most, 10, 1000, 1000 / speeds[most])
        sizes.append(most)
    return sizes


def test_every_size_is_tried_and_the_fastest_kept():
    tried = trained(Pace(), {64: 100.0, 32: 150.0, 16: 120.0})
    assert tried[:9] == [64] * 3 + [32] * 3 + [16] * 3
    assert set(tried[9:]) == {32}


def test_the_largest_of_equally_fast_ones_is_kept():
    assert set(trained(Pace(), {64: 97.0, 32: 100.0, 16: 99.0})[9:]) == {64}
    assert set(trained(Pace(), {64: 50.0, 32: 97.0, 16: 100.0})[9:]) == {32}


def test_one_slow_batch_says_nothing():
    pace = Pace()
    pace.add("", "a", 64, 10, 1000, 1000.0)  # somebody else was at work
    assert set(trained(pace, {64: 100.0, 32: 99.0, 16: 98.0})[8:]) == {64}


def test_short_and_odd_batches_are_not_counted():
    pace = Pace()
    for _ in range(10):
        pace.add("", "a", 64, 1, 100, 1.0)  # assembling is what counted
        pace.add("", "a", 20, 10, 100, 0.0)
        pace.add("", "a", 200, 10, 100, 1.0)
    assert pace.most("", "a") == SIZES[0]


def test_shapes_and_machines_are_apart():
    pace = Pace()
    trained(pace, {64: 1.0, 32: 2.0, 16: 4.0})
    assert pace.most("", "a") == 16
    assert pace.most("", "b") == pace.most("other", "a") == SIZES[0]


def test_a_batch_keeps_to_the_pace_unless_a_size_is_given():
    waiting = [Job(Task(None, 1), "a", 100, 1, 0) for _ in range(96)]
    assert len(next_batch(waiting, [], 1, None, lambda shape: 16).jobs) == 16
    assert len(next_batch(waiting, [], 1, 48, lambda shape: 16).jobs) == 48
