"""Forecasts by hand, and what they refuse or warn of."""

from __future__ import annotations

import re
import shutil
import time
from collections import namedtuple
from dataclasses import replace

import pytest
from fake_pool import MARKET, FakePool, plan

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.rl.agents.agent_registry import get_agent_class
from slipstream.studies.search.forecast import (
    MeasuredSpeed,
    check_memory,
    estimate_resources,
    forecast,
    forecast_other_space,
    format_minutes,
    mean_round_trip_cost,
    measure_speed,
    num_confirmation_members,
)
from slipstream.studies.search.session import Throughput
from slipstream.studies.search.study_plan import StudyPlan
from slipstream.studies.space import SearchSpace
from slipstream.studies.start import base_config, prepare_study
from slipstream.studies.study import parse_hours
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import parse_overrides, resolve

SPEC = resolve_environment("cartpole", {}).spec
RATES = {"low": 0.9, "high": 0.99}


def test_minutes_follow_from_steps_and_passes(tmp_path):
    """10 trials x 3 folds x 640 steps at 100 steps/s, one end each and two rungs at 2 s a pass."""
    setup = plan(n_trials=10, confirmation={"top": 2, "seeds": 5}, final_seeds=4)
    assert setup.mean_steps == 640
    assert sum(num_confirmation_members(setup, 10)) == 2 * 5 * 3 + 4
    measured = MeasuredSpeed(100.0, 2.0, None, 12)
    found = forecast(setup, SPEC, measured, {}, tmp_path, workers=1)
    assert found.search_minutes == pytest.approx(30 * (6.4 + 3 * 2.0) / 60)
    assert found.confirm_minutes == pytest.approx(34 * (6.4 + 2.0) / 60)
    found = forecast(setup, SPEC, measured, {}, tmp_path, workers=3)  # four seeds busy one of them
    assert found.confirm_minutes == pytest.approx((30 + 3 * 4) * (6.4 + 2.0) / 60)
    assert "10 trials x 3 folds x 640 steps" in found.sentences[0]


def test_a_rival_space_is_forecast_by_the_speed_of_the_slice():
    """Half of the time is spent on learning, which networks of more numbers make longer."""
    setup, shares = plan(n_trials=10), {"env": 0.5, "update": 0.5}
    space = {
        "agent.net_arch": {"choices": [[512, 512]]},
        "training.total_timesteps": {"choices": [1280]},
    }
    rival = replace(setup, space=SearchSpace.from_mapping(space, setup.base))
    speed = MeasuredSpeed(0.1, 0.0, None, 12, shares)
    told = forecast_other_space("cappuccino", rival, setup, SPEC, speed)
    numbers = (5 * 512 + 512 * 512 + 512 * 2) / (5 * 64 + 64 * 64 + 64 * 2)
    days = 10 * 3 * 1280 / 0.1 * (0.5 + 0.5 * numbers) / 86_400
    match = re.search(r"`--space cappuccino`: ([\d.]+) days \(1,280 steps", told)
    assert match and float(match[1]) == pytest.approx(days, rel=0.05)


def test_few_updates_are_warned_of(tmp_path):
    """10 iterations x 4 epochs x 1 minibatch are 40 updates, with one epoch 10."""
    setup = plan()
    agent = setup.base.agent.model_copy(update={"batch_size": 64, "n_epochs": 4})
    few = replace(setup, base=replace(setup.base, agent=agent))
    (warning,) = forecast(few, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings
    assert "Some member makes only 10 updates" in warning  # the space has 1 to 8 epochs
    fixed = replace(few, space=SearchSpace.from_mapping({"agent.gamma": RATES}, few.base))
    (warning,) = forecast(fixed, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings
    assert "Each member makes only 40 updates" in warning
    many = replace(setup, space=SearchSpace.from_mapping({"agent.gamma": RATES}, setup.base))
    assert not forecast(many, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings


def test_a_space_of_larger_members_takes_longer_and_needs_more(tmp_path):
    """All else equal, twice the steps take twice as long; wider networks cost by their numbers."""
    setup = plan()

    def told(**space):
        own = replace(setup, space=SearchSpace.from_mapping(space, setup.base))
        shares = {"env": 0.2, "policy": 0.2, "update": 0.6}
        return forecast(own, SPEC, MeasuredSpeed(100.0, 0.0, None, 12, shares), {}, tmp_path)

    same = told(**{"agent.gamma": RATES})
    longer = told(**{"training.total_timesteps": {"choices": [1280]}})
    assert longer.search_minutes == pytest.approx(2 * same.search_minutes)
    assert "1,280 steps" in longer.sentences[0]
    either = told(**{"training.total_timesteps": {"choices": [640, 1280]}})
    assert "640 to 1,280 steps" in either.sentences[0]
    assert same.search_minutes < either.search_minutes < longer.search_minutes
    wide = told(**{"agent.net_arch": {"choices": [[512, 512]]}})
    ratio = (5 * 512 + 512 * 512 + 512 * 2) / (5 * 64 + 64 * 64 + 64 * 2)
    assert wide.search_minutes == pytest.approx((0.2 + 0.8 * ratio) * same.search_minutes, rel=0.02)
    assert wide.disk_bytes > 10 * same.disk_bytes and wide.memory_bytes > 5 * same.memory_bytes
    assert "scaled by size" in wide.sentences[0]


def test_a_batch_is_limited_by_its_networks_too():
    """Weights, gradients and Adam's moments of actor and critic, float32."""
    base = resolve("cartpole", {"training.num_envs": 8, "agent.n_steps": 8, "agent.batch_size": 32})
    wide = resolve(base, {"agent.net_arch": [1024, 1024]})
    numbers = 2 * (5 * 1024 + 1024 * 1024 + 1024 * 2 - (5 * 64 + 64 * 64 + 64 * 2))
    assert wide.agent.bytes(SPEC, 1, 8) - base.agent.bytes(SPEC, 1, 8) == pytest.approx(
        4 * 4 * numbers, rel=0.01
    )


def test_passes_over_the_data_and_the_smallest_effect(tmp_path):
    facts = {
        "folds": {
            "holdout": [0, 365.25 * 86_400],
            "groups": [[0, 365.25 * 86_400], [0, 3 * 365.25 * 86_400]],
            "folds": [{"train_bars": 320, "groups": [0, 1]}] * 3,  # each group counts once
        },
        "round_trip": {"A": {"basis_points": 20.0}, "B": {"basis_points": 20.0}},
    }
    setup = plan(market=MARKET)
    pool = FakePool()
    speed = measure_speed(pool, setup)
    said = " ".join(forecast(setup, SPEC, speed, facts, tmp_path).sentences)
    assert "2.0 passes" in said
    # Ten candidates share 0.05: 2.576 / sqrt(4). The hold-out is shown to one: 1.645 / sqrt(1).
    assert "1.3 on the folds for one of 10 candidates (4.00 years)" in said
    assert "1.6 on the hold-out (1.00 years)" in said
    assert "A round trip costs 20.0 basis points" in said
    assert mean_round_trip_cost(facts) == 20.0
    assert mean_round_trip_cost({}) is None


def test_a_single_bar_is_not_bars(tmp_path):
    facts = {"round_trip": {"A": {"basis_points": 3.0}}, "bar_move": {"A": 4.0}}
    setup = plan(market=MARKET)
    said = forecast(setup, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert said[-1].endswith("against its cost once held about 1 bar (0.1 h).")


def test_a_market_without_equal_weight_tells_how_a_bar_moves(tmp_path):
    """(12 / 4)^2 = 9 bars of five minutes."""
    facts = {
        "round_trip": {"A": {"basis_points": 10.0}, "B": {"basis_points": 14.0}},
        "bar_move": {"A": 3.0, "B": 5.0},
    }
    setup = plan(market=MARKET)
    said = forecast(setup, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert said[-1] == (
        "A round trip costs 12.0 basis points and a bar moves 4.0: a position breaks even against "
        "its cost once held about 9 bars (0.8 h)."
    )
    del facts["bar_move"]
    told = forecast(setup, SPEC, MeasuredSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert not any("breaks even" in one for one in told)


class TimedPool(FakePool):
    """Its clock goes on by 0.2 s a stretch, 0.1 s a test pass and so many seconds an iteration."""

    def __init__(self, iteration):
        super().__init__()
        self.iteration, self.now, self.spent, self.at = iteration, 0.0, {}, 0

    def submit(self, members, until):
        more, tested = until[0] - self.at, any(member.test for member in members)
        self.spent = {"update": more * self.iteration, "evaluate": 0.1 * tested, "overhead": 0.2}
        self.now += sum(self.spent.values())
        self.at = until[0]
        super().submit(members, until)

    def _outcome(self, member, milestone):
        return replace(super()._outcome(member, milestone), seconds=self.spent)


@pytest.mark.parametrize(("iteration", "measured"), [(0.02, 4), (0.5, 2), (3.0, 0)])
def test_what_a_stretch_takes_beside_its_iterations_is_told_apart(monkeypatch, iteration, measured):
    """A second of training is measured, at most the 4 iterations of a first stretch.

    No further one is waited for where the first took longer.
    """
    pool, setup = TimedPool(iteration), plan(n_trials=2)
    monkeypatch.setattr(time, "perf_counter", lambda: pool.now)
    speed = measure_speed(pool, setup)
    assert speed.steps_per_second == pytest.approx(6 * 64 / iteration)
    assert speed.test_seconds == pytest.approx(0.3 / 6)
    assert pool.at == 2 + measured and speed.phase_shares["update"] == 1.0


def test_measuring_can_be_left(tmp_path):
    def leave():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_speed(FakePool(), plan(), leave)


def test_measuring_leaves_nothing_behind(tmp_path):
    pool = FakePool()
    speed = measure_speed(pool, plan(n_trials=2))
    assert speed.members == 6 and speed.steps_per_second > 0 and speed.backtests is not None
    assert {name for name, _ in pool.trained} == pool.dropped


def test_a_short_disk_is_refused(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 300 * 2**20))
    with pytest.raises(ResourceError, match=r"0\.29 GiB are free"):
        forecast(plan(n_trials=500), SPEC, MeasuredSpeed(1e5, 0.1, None, 12), {}, tmp_path / "new")


def test_a_refusal_names_its_main_term_and_what_would_mend_it(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    setup = plan(n_trials=20, confirmation={"top": 10, "seeds": 10})
    free = 256 * 2**20 + estimate_resources(setup, SPEC, None, 2).disk // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, free))
    with pytest.raises(ResourceError) as refused:
        forecast(setup, SPEC, MeasuredSpeed(1.0, 0.1, None, 12), {}, tmp_path / "new", workers=2)
    text = " ".join(str(refused.value).split())
    assert "states of 305 members of the confirmation (top x seeds x folds)" in text
    assert "For 24 h: " in text  # beside what would end in time
    told = dict(re.findall(r"(study\.[\w.]+) to ([\d,]+)", text))
    assert {"study.n_trials", "study.confirmation.seeds"} <= told.keys()
    for path, most in told.items():
        less = setup.with_limit(path, int(most.replace(",", "")))
        assert (
            estimate_resources(less, SPEC, None, 2).disk
            <= estimate_resources(setup, SPEC, None, 2).disk // 2
        )


def test_a_refusal_offers_to_keep_no_weights_of_the_search(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    setup = plan(n_trials=3_000, confirmation={"top": 1, "seeds": 2})
    lean = plan(n_trials=3_000, confirmation={"top": 1, "seeds": 2}, keep_weights=False)
    free = 256 * 2**20 + estimate_resources(lean, SPEC, None, 2).disk
    assert (
        estimate_resources(setup, SPEC, None, 2).disk
        > estimate_resources(lean, SPEC, None, 2).disk + 2**20
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, free))
    speed = MeasuredSpeed(1e5, 0.1, None, 12)
    with pytest.raises(ResourceError, match=r"--set study\.keep_weights=false` is enough too"):
        forecast(setup, SPEC, speed, {}, tmp_path / "new", workers=2)
    forecast(lean, SPEC, speed, {}, tmp_path / "new", workers=2)


def test_a_state_on_the_disk_is_budgeted_once(tmp_path):
    """A worker replaces a file at a time; of whom nobody trains now, what acts is kept."""
    setup = plan(n_trials=10, confirmation={"top": 10, "seeds": 10})
    weights = setup.base.agent.weight_bytes(SPEC)
    small = estimate_resources(setup, SPEC, None, workers=1).on_disk
    (states,) = (size for name, size in small.items() if "confirmation" in name)
    assert "of which 64 are trained at a time" in " ".join(small)
    assert states == pytest.approx(65 * 3 * weights + 241 * 2.5 * weights, rel=0.05)
    assert estimate_resources(setup, SPEC, None, workers=2).disk > sum(small.values())


@pytest.mark.parametrize(
    ("env", "name"),
    [("cartpole", "ppo"), ("cartpole", "dqn"), ("pendulum", "sac"), ("pendulum", "td3")],
)
def test_networks_of_a_state_are_forecast_as_they_are(env, name):
    """Weights, moments and targets; every tensor begins on a line of the cache."""
    config = resolve({"env": env, "agent": {"name": name, "net_arch": [256, 256]}}).agent
    spec = resolve_environment(env, {}).spec
    state = get_agent_class(config)(config, spec, [0], 8).state_dict()
    real = sum(array.nbytes for array in state.values())
    assert config.state_bytes(spec) <= real <= 1.1 * config.state_bytes(spec)


def test_what_a_state_has_beside_networks_is_as_measured():
    setup = plan(n_trials=4, max_concurrent_trials=4)
    known = estimate_resources(setup, SPEC, None, 2).disk
    state = setup.base.agent.state_bytes(SPEC)
    speed = MeasuredSpeed(1e5, 0.1, None, 12, state_bytes=state + 50_000)
    assert (
        estimate_resources(setup, SPEC, None, 2, speed).disk - known == (65 + 2) * 50_000
    )  # one more a worker


def test_what_would_end_in_time_is_told(tmp_path):
    """30 trials of 3 folds, 1,200 steps at 10 steps/s: 3 h, and the confirmation on top."""
    setup = plan(n_trials=30, confirmation={"top": 1, "seeds": 1}, final_seeds=1)
    speed = MeasuredSpeed(10.0, 0.0, None, 12, {"env": 0.1, "policy": 0.1, "update": 0.8})
    whole = forecast(setup, SPEC, speed, {}, tmp_path, workers=1, hours=24)
    assert whole.fit_suggestion == ""
    hours = (whole.search_minutes + whole.confirm_minutes) / 60 / 2
    found = forecast(setup, SPEC, speed, {}, tmp_path, workers=1, hours=hours).fit_suggestion
    assert found in forecast(setup, SPEC, speed, {}, tmp_path, workers=1, hours=hours).sentences
    trials, steps, width = re.findall(
        r"([\d,]+) trials, or ([\d,]+) steps a fold, or width (\d+)", found
    )[0]
    assert int(trials) == 14 and int(width) == 32  # 93 members are 46 at most: 14 x 3 + 4
    assert int(steps.replace(",", "")) <= 320 and found.endswith(
        f"these settings need {format_minutes(2 * hours * 60)}."
    )
    assert setup.base.training.total_timesteps == 640  # nothing was changed


@pytest.mark.parametrize(("time", "hours"), [("24h", 24), ("90min", 1.5), ("2d", 48), (3, 3)])
def test_times_of_fit(time, hours):
    assert parse_hours(time) == hours


@pytest.mark.parametrize("time", ["", "soon", "-3h", "0h", "1.2.3h", "2m"])
def test_what_is_no_time_is_refused(time):
    with pytest.raises(ConfigError, match=r"unit s, min, h, d \(default: hours\), such as 90min"):
        parse_hours(time)


REPLAY = {"env": "cartpole", "agent": {"name": "dqn"}, "training": {"total_timesteps": 200_000}}


def _with_replay(**agent):
    base, study, space = prepare_study({**REPLAY, "agent": {"name": "dqn", **agent}}, {}, {})
    return StudyPlan(base, study, space, 3, None)


def test_what_replays_keep_and_take_is_told(tmp_path):
    (told,) = (
        sentence
        for sentence in forecast(
            _with_replay(), SPEC, MeasuredSpeed(1e5, 0.1, None, 12), {}, tmp_path
        ).sentences
        if "replays" in sentence
    )
    assert "its last 100,000 transitions, and learns no more from older ones" in told
    # rows of an observation of 4 numbers, an action, a reward and an ending, float32: and a head
    size = float(re.search(r"([\d.]+) MiB at most", told)[1])
    assert size == pytest.approx(100_000 * 7 * 4 / 2**20, abs=0.05)
    assert "agent.buffer_size sets the number" in told


def test_a_study_keeps_less_than_a_run_unless_told():
    sac = {"env": "pendulum", "agent": {"name": "sac"}}
    assert base_config(sac).agent.buffer_size == 100_000
    given = {**sac, "agent": {"name": "sac", "buffer_size": 500_000}}
    assert base_config(given).agent.buffer_size == 500_000


def test_a_replay_that_memory_cannot_hold_is_refused():
    setup = _with_replay(buffer_size=10**12)
    with pytest.raises(ResourceError, match=r"for its replay.*reduce agent.buffer_size to \d"):
        check_memory(setup, SPEC, None)
    check_memory(_with_replay(), SPEC, None)


@pytest.mark.parametrize(
    ("setting", "main"),
    [("training.num_envs=1_000_000_000", "rollouts"), ("agent.net_arch=[9e5,9e5]", "networks")],
)
def test_a_member_that_memory_cannot_hold_is_refused(setting, main):
    base, study, space = prepare_study("cartpole", parse_overrides([setting]), {})
    path = setting.partition("=")[0]
    with pytest.raises(
        ResourceError, match=rf"One member of the study needs .* of it for its {main}.*{path} to \d"
    ):
        check_memory(StudyPlan(base, study, space, 3, None), SPEC, None)


@pytest.mark.parametrize(
    ("value", "told"), [(0.5, "30 s"), (12.2, "12 min"), (150, "2.5 h"), (46_080, "32.0 days")]
)
def test_minutes_are_told(value, told):
    assert format_minutes(value) == told


def test_speed_counts_only_this_session():
    now = [0.0]
    meter = Throughput(lambda: now[0])
    now[0] = 10.0
    meter.record("a", 300, 100, {"env": 1.0, "update": 3.0})
    meter.record("a", 500, 100, {})
    meter.record("b", 100, 0, {})
    assert meter.speed == pytest.approx((400 + 100) / 10)
    assert meter.seconds == {"env": 1.0, "update": 3.0}
