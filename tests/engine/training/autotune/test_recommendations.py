"""Saturation point, speed-up limit, memory and the fastest way, from figures by hand."""

import pytest

from slipstream.training import autotuner
from slipstream.training.autotuner import BenchmarkCase, LearnSpeed, Measurements, StepSpeed
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve


@pytest.fixture
def measurements():
    config = resolve("gym:CartPole-v1", {"training.num_envs": 4})
    return Measurements(config, resolve_environment("gym:CartPole-v1", {}))


def stepped(measurements, backend, copies, workers, rate, memory=0.0, waiting=0.0):
    measurements.step_speeds[BenchmarkCase(backend, copies, workers)] = StepSpeed(
        rate, 1.0, waiting, memory
    )


def test_the_ceiling_is_amdahls(measurements):
    stepped(measurements, "serial", 4, 1, 1000.0)
    measurements.learn_speeds[4, 1] = LearnSpeed(
        300, 0.0, 0.1, 0.5, 0.1
    )  # and 0.3 s of environments
    own = autotuner.iteration(measurements, 4)
    assert own.rate == pytest.approx(300.0) and own.max_speedup == pytest.approx(1 / 0.7)
    assert own.shares == pytest.approx({"env": 0.3, "policy": 0.1, "update": 0.5, "other": 0.1})
    text = " ".join(autotuner.recommendations(measurements))
    assert "cannot give more than 1.4x; the update takes 50%" in text
    assert "Training runs at about 300 steps/s" in text


def test_processes_must_be_clearly_faster(measurements):
    stepped(measurements, "serial", 4, 1, 1000.0)
    stepped(measurements, "process", 4, 2, 1040.0)
    assert autotuner.fastest_case(measurements, 4) == BenchmarkCase("serial", 4, 1)
    stepped(measurements, "process", 4, 4, 1100.0)
    assert autotuner.fastest_case(measurements, 4) == BenchmarkCase("process", 4, 4)
    assert autotuner.fastest_case(measurements, 8) is None
    assert autotuner.to_cache_entry(measurements).configs == {4: ("process", 4)}


def test_the_saturation_point_is_the_fewest_copies_that_are_nearly_fastest():
    assert autotuner.saturation_point({4: 80.0, 8: 95.0, 16: 100.0}) == 8


def test_a_busy_machine_is_said_before_anything_else(measurements):
    stepped(measurements, "serial", 4, 1, 1000.0)
    assert not any("Other programs" in one for one in autotuner.recommendations(measurements))
    measurements.other_cores = 1.4
    first = autotuner.recommendations(measurements)[0]
    assert first.startswith("Other programs used 1.4 of ") and "Measure again" in first


def test_time_that_others_took_is_no_waiting(monkeypatch):
    """One stepper on two cores, of which others took 1.75: of its time 0.75 was not its to use."""
    monkeypatch.setattr(autotuner, "usable_cores", lambda: 2)
    monkeypatch.setattr(autotuner.psutil, "cpu_count", lambda: 2)
    now = {"machine": 10.0, "own": 5.0, "clock": 0.0}
    monkeypatch.setattr(autotuner, "_machine_cpu_seconds", lambda: now["machine"])
    monkeypatch.setattr(autotuner, "_own_cpu_seconds", lambda: now["own"])
    monkeypatch.setattr(autotuner.time, "perf_counter", lambda: now["clock"])
    other_load = autotuner.OtherLoad()
    now.update(machine=30.0, own=7.5, clock=10.0)
    assert other_load.cores() == pytest.approx(1.75)
    assert autotuner.other_load_notice(other_load.cores()) and not autotuner.other_load_notice(0.1)


def test_copies_on_a_card_are_those_whose_rollout_fits(measurements):
    each = autotuner.rollout_bytes_per_env(measurements)
    agent, spec = measurements.config.agent, measurements.environment.spec
    assert each == pytest.approx((agent.bytes(spec, 1, 2048) - agent.bytes(spec, 1, 1024)) / 1024)
    most = autotuner.envs_on_gpu(measurements, 16 * 2**30)
    assert agent.bytes(spec, 1, most) < 16 * 2**30 < agent.bytes(spec, 1, 2 * most)
    replay = resolve("gym:CartPole-v1", {"agent.name": "dqn", "training.num_envs": 4})
    assert autotuner.envs_on_gpu(Measurements(replay, measurements.environment), 16 * 2**30) is None


def test_memory_of_a_copy_is_what_one_more_takes(measurements, monkeypatch):
    stepped(measurements, "serial", 2, 1, 10.0, memory=100e6)
    stepped(measurements, "serial", 12, 1, 10.0, memory=150e6)
    assert autotuner.bytes_per_env(measurements, BenchmarkCase("serial", 12, 1)) == pytest.approx(
        5e6
    )
    assert autotuner.bytes_per_env(measurements, BenchmarkCase("serial", 2, 1)) is None
    monkeypatch.setattr(autotuner, "free_memory", lambda: 2**29)
    copies, each, bounded = autotuner.fit_to_memory(measurements)
    assert 5e6 < each < 5.1e6 and bounded == 2**29 and copies == int(0.8 * 2**29 / each)


def test_long_waiting_is_explained(measurements):
    stepped(measurements, "serial", 4, 1, 10.0, waiting=0.9)
    measurements.learn_speeds[4, 1] = LearnSpeed(40, 0.0, 0.1, 0.1, 0.0)
    assert any("overlap" in sentence for sentence in autotuner.recommendations(measurements))
