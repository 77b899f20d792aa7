"""Who is trained beside whom: fair shares, sizes, shapes."""

from slipstream.studies.engine.batches import Job, MemberBatch, next_batch
from slipstream.studies.engine.stretch import Task


def jobs(count, shape="a", load=100, memory=1):
    return [Job(Task(None, 1), shape, load, memory, 0) for _ in range(count)]


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
