"""Forecasts by hand, and what they refuse or warn of."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from dataclasses import replace

import pytest
from fake_pool import MARKET, FakePool, plan

from slipstream.core.errors import ResourceError
from slipstream.environments.factory import resolve_environment
from slipstream.settings.config import resolve
from slipstream.settings.target import parse_overrides
from slipstream.studies.search.forecast import (
    SliceSpeed,
    check_memory,
    confirm_members,
    forecast,
    measure,
    minutes,
    rival_sentence,
    round_trip,
)
from slipstream.studies.search.plan import StudyPlan
from slipstream.studies.search.session import Meter
from slipstream.studies.space.space import SearchSpace
from slipstream.studies.start import base_config, prepare

SPEC = resolve_environment("cartpole", {}).spec
RATES = {"low": 0.9, "high": 0.99}


def test_minutes_follow_from_steps_and_passes(tmp_path):
    """10 trials x 3 folds x 640 steps at 100 steps/s, one end each and two rungs at 2 s a pass."""
    setup = plan(n_trials=10, confirmation={"top": 2, "seeds": 5}, final_seeds=4)
    assert setup.mean_steps == 640
    assert confirm_members(setup, 10) == 2 * 5 * 3 + 4
    found = forecast(setup, SPEC, SliceSpeed(100.0, 2.0, None, 12), {}, tmp_path)
    assert found.search_minutes == pytest.approx(30 * (6.4 + 3 * 2.0) / 60)
    assert found.confirm_minutes == pytest.approx(34 * (6.4 + 2.0) / 60)
    assert "10 trials x 3 folds x 640 steps" in found.sentences[0]


def test_a_rival_space_is_forecast_by_the_speed_of_the_slice():
    """Half of the time is spent on learning, which networks of more numbers make longer."""
    setup, shares = plan(n_trials=10), {"env": 0.5, "update": 0.5}
    space = {"agent.widths": {"choices": [[512, 512]]}, "training.total_steps": {"choices": [1280]}}
    rival = replace(setup, space=SearchSpace.from_mapping(space, setup.base))
    speed = SliceSpeed(0.1, 0.0, None, 12, shares)
    told = rival_sentence("cappuccino", rival, setup, SPEC, speed)
    numbers = (5 * 512 + 512 * 512 + 512 * 2) / (5 * 64 + 64 * 64 + 64 * 2)
    days = 10 * 3 * 1280 / 0.1 * (0.5 + 0.5 * numbers) / 86_400
    match = re.search(r"`--space cappuccino`: ([\d.]+) days \(1,280 steps", told)
    assert match and float(match[1]) == pytest.approx(days, rel=0.05)


def test_few_updates_are_warned_of(tmp_path):
    """10 iterations x 4 epochs x 1 minibatch are 40 updates, with one epoch 10."""
    setup = plan()
    agent = setup.base.agent.model_copy(update={"minibatch": 64, "epochs": 4})
    few = replace(setup, base=replace(setup.base, agent=agent))
    (warning,) = forecast(few, SPEC, SliceSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings
    assert "Some member makes only 10 updates" in warning  # the space has 1 to 8 epochs
    fixed = replace(few, space=SearchSpace.from_mapping({"agent.discount": RATES}, few.base))
    (warning,) = forecast(fixed, SPEC, SliceSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings
    assert "Each member makes only 40 updates" in warning
    many = replace(setup, space=SearchSpace.from_mapping({"agent.discount": RATES}, setup.base))
    assert not forecast(many, SPEC, SliceSpeed(1e5, 0.1, None, 12), {}, tmp_path).warnings


def test_a_space_of_larger_members_takes_longer_and_needs_more(tmp_path):
    """All else equal, twice the steps take twice as long; wider networks cost by their numbers."""
    setup = plan()

    def told(**space):
        own = replace(setup, space=SearchSpace.from_mapping(space, setup.base))
        shares = {"env": 0.2, "policy": 0.2, "update": 0.6}
        return forecast(own, SPEC, SliceSpeed(100.0, 0.0, None, 12, shares), {}, tmp_path)

    same = told(**{"agent.discount": RATES})
    longer = told(**{"training.total_steps": {"choices": [1280]}})
    assert longer.search_minutes == pytest.approx(2 * same.search_minutes)
    assert "1,280 steps" in longer.sentences[0]
    either = told(**{"training.total_steps": {"choices": [640, 1280]}})
    assert "640 to 1,280 steps" in either.sentences[0]
    assert same.search_minutes < either.search_minutes < longer.search_minutes
    wide = told(**{"agent.widths": {"choices": [[512, 512]]}})
    ratio = (5 * 512 + 512 * 512 + 512 * 2) / (5 * 64 + 64 * 64 + 64 * 2)
    assert wide.search_minutes == pytest.approx((0.2 + 0.8 * ratio) * same.search_minutes, rel=0.02)
    assert wide.disk_bytes > 20 * same.disk_bytes and wide.memory_bytes > 5 * same.memory_bytes
    assert "scaled by size" in wide.sentences[0]


def test_a_batch_is_limited_by_its_networks_too():
    """Weights, gradients and Adam's moments of actor and critic, float32."""
    base = resolve("cartpole", {"training.num_envs": 8, "agent.horizon": 8, "agent.minibatch": 32})
    wide = resolve(base, {"agent.widths": [1024, 1024]})
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
    speed = measure(pool, setup)
    said = " ".join(forecast(setup, SPEC, speed, facts, tmp_path).sentences)
    assert "2.0 passes" in said
    # Ten candidates share 0.05: 2.576 / sqrt(4). The hold-out is shown to one: 1.645 / sqrt(1).
    assert "1.3 on the folds for one of 10 candidates (4.00 years)" in said
    assert "1.6 on the hold-out (1.00 years)" in said
    assert "A round trip costs 20.0 basis points" in said
    assert round_trip(facts) == 20.0
    assert round_trip({}) is None


def test_a_single_bar_is_not_bars(tmp_path):
    facts = {"round_trip": {"A": {"basis_points": 3.0}}, "bar_move": {"A": 4.0}}
    setup = plan(market=MARKET)
    said = forecast(setup, SPEC, SliceSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert said[-1].endswith("against its cost once held about 1 bar (0.1 h).")


def test_a_market_without_equal_weight_tells_how_a_bar_moves(tmp_path):
    """(12 / 4)^2 = 9 bars of five minutes."""
    facts = {
        "round_trip": {"A": {"basis_points": 10.0}, "B": {"basis_points": 14.0}},
        "bar_move": {"A": 3.0, "B": 5.0},
    }
    setup = plan(market=MARKET)
    said = forecast(setup, SPEC, SliceSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert said[-1] == (
        "A round trip costs 12.0 basis points and a bar moves 4.0: a position breaks even against "
        "its cost once held about 9 bars (0.8 h)."
    )
    del facts["bar_move"]
    told = forecast(setup, SPEC, SliceSpeed(1e5, 0.1, None, 12), facts, tmp_path).sentences
    assert not any("breaks even" in one for one in told)


def test_measuring_can_be_left(tmp_path):
    def leave():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(FakePool(), plan(), leave)


def test_measuring_leaves_nothing_behind(tmp_path):
    pool = FakePool()
    speed = measure(pool, plan(n_trials=2))
    assert speed.members == 6 and speed.steps > 0 and speed.passes is not None
    assert {name for name, _ in pool.trained} == pool.dropped


def test_a_short_disk_is_refused(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 300 * 2**20))
    with pytest.raises(ResourceError, match=r"0\.29 GiB are free"):
        forecast(plan(n_trials=500), SPEC, SliceSpeed(1e5, 0.1, None, 12), {}, tmp_path / "new")


REPLAY = {"env": "cartpole", "agent": {"name": "dqn"}, "training": {"total_steps": 200_000}}


def _with_replay(**agent):
    base, study, space = prepare({**REPLAY, "agent": {"name": "dqn", **agent}}, {}, {})
    return StudyPlan(base, study, space, 3, None)


def test_what_replays_keep_and_take_is_told(tmp_path):
    (told,) = (
        sentence
        for sentence in forecast(
            _with_replay(), SPEC, SliceSpeed(1e5, 0.1, None, 12), {}, tmp_path
        ).sentences
        if "replays" in sentence
    )
    assert "its last 100,000 transitions, and learns no more from older ones" in told
    # rows of an observation of 4 numbers, an action, a reward and an ending, float32: and a head
    size = float(re.search(r"([\d.]+) MiB at most", told)[1])
    assert size == pytest.approx(100_000 * 7 * 4 / 2**20, abs=0.05)
    assert "agent.replay_size says how many" in told


def test_a_study_keeps_less_than_a_run_unless_told():
    sac = {"env": "pendulum", "agent": {"name": "sac"}}
    assert base_config(sac).agent.replay_size == 100_000
    given = {**sac, "agent": {"name": "sac", "replay_size": 500_000}}
    assert base_config(given).agent.replay_size == 500_000


def test_a_replay_that_memory_cannot_hold_is_refused():
    setup = _with_replay(replay_size=10**12)
    with pytest.raises(ResourceError, match=r"one member needs .* GiB.*Lower agent.replay_size"):
        check_memory(setup, SPEC, None)
    check_memory(_with_replay(), SPEC, None)


@pytest.mark.parametrize("setting", ["training.num_envs=1_000_000_000", "agent.widths=[9e5,9e5]"])
def test_a_member_that_memory_cannot_hold_is_refused(setting):
    base, study, space = prepare("cartpole", parse_overrides([setting]), {})
    with pytest.raises(ResourceError, match=r"One member of the study needs .*training.num_envs"):
        check_memory(StudyPlan(base, study, space, 3, None), SPEC, None)


@pytest.mark.parametrize(("value", "told"), [(0.5, "30 s"), (12.2, "12 min"), (150, "2.5 h")])
def test_minutes_are_told(value, told):
    assert minutes(value) == told


def test_speed_counts_only_this_session():
    now = [0.0]
    meter = Meter(lambda: now[0])
    now[0] = 10.0
    meter.add("a", 300, 100, {"env": 1.0, "update": 3.0})
    meter.add("a", 500, 100, {})
    meter.add("b", 100, 0, {})
    assert meter.speed == pytest.approx((400 + 100) / 10)
    assert meter.seconds == {"env": 1.0, "update": 3.0}
