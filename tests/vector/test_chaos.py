"""Kills and hangs at random over trainings: they finish, and nothing is left."""

import pytest

from slipstream.bench.ours.vector_chaos import measure
from slipstream.bench.ours.vector_layer import crashing


def test_copies_that_crash_now_and_then_lose_hardly_more_than_those_rows():
    found = crashing(num_envs=8, steps=3000)
    assert found["faults"] > 50 and found["real"] >= 0.95


@pytest.mark.long
@pytest.mark.parametrize(("faults", "steps"), [(10, 4_000), (1_000, 20_000)])
@pytest.mark.timeout(7200)
def test_training_survives(faults, steps):
    found = measure(faults, seed=faults, workers=2, steps=steps)
    assert found["faults"] >= faults and found["steps"] > 0
    assert (found["runs_lost"], found["processes_left"], found["memory_files_left"]) == (0, 0, 0)
