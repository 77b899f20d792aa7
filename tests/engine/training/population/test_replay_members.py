"""A study's members keep their replays between stretches: nothing changes when they are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.timeline import FoldPlan
from slipstream.rl.nets import networks
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.population.member import Member
from slipstream.training.population.member_state import LiveStates
from slipstream.training.population.training_segment import Task, run_training_segment
from slipstream.training.settings.config import resolve

Q_LEARNING = Path(__file__).parents[2] / "samples/q_learning.py"
ROWS = 4 * 64  # steps of an iteration


@pytest.fixture
def members():
    settings = {
        "env": {"name": "cartpole", "max_steps": 50},
        "agent": {"name": str(Q_LEARNING), "buffer_size": 300, "alpha": 0.5},
        "training": {"num_envs": 4, "total_timesteps": 8 * ROWS},
    }
    return [
        Member(f"search-0000{k}-0", resolve(settings, {"agent.gamma": 0.9 + k / 100}),
               "fold0", None, 7 + k, 8 * ROWS)
        for k in range(3)
    ]  # fmt: skip


def states_of(members, pieces, folder):
    """Tensors of members that were trained in stretches: (who, up to which iteration)."""
    live = LiveStates(folder)
    for who, until in pieces:
        run_training_segment(
            [Task(members[k], until) for k in who], EnvironmentSource(FoldPlan(), 6), live
        )
    return [live.load(member) for member in members]


def test_a_stretch_may_be_cut_anywhere(members, tmp_path):
    whole = states_of(members, [((0, 1, 2), 6)], tmp_path / "whole")
    cut = [((0, 1), 2), ((1, 2), 4), ((0,), 3), ((0, 1, 2), 6)]
    pieces = states_of(members, cut, tmp_path / "pieces")
    for one, other in zip(whole, pieces, strict=True):
        assert one.iteration == other.iteration == 6
        assert any(name.startswith("bulk.") for name in one.tensors)
        assert one.tensors.keys() == other.tensors.keys()
        for name, value in one.tensors.items():
            assert value.tobytes() == other.tensors[name].tobytes(), name


@pytest.mark.parametrize(
    "agent", ["ppo", "dqn", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sac", "td3"))]
)
def test_members_that_go_on_need_no_first_weights(agent, tmp_path, monkeypatch):
    """All that the agents shipped begin with is in a state: weights, targets, statistics."""
    env = "cartpole" if agent in ("ppo", "dqn") else "pendulum"
    settings = {
        "env": {"name": env},
        "agent": {"name": agent, "net_arch": [16]},
        "training": {"num_envs": 2, "total_timesteps": 10_000},
    }
    if agent != "ppo":
        settings["agent"]["learning_starts"] = 64
    member = Member("search-00000-0", resolve(settings), "fold0", None, 7, 10_000)
    (whole,) = states_of([member], [((0,), 2)], tmp_path / "whole")
    states_of([member], [((0,), 1)], tmp_path / "pieces")
    monkeypatch.setattr(networks.rng, "member_keys", None)  # drawing one would fail
    (pieces,) = states_of([member], [((0,), 2)], tmp_path / "pieces")
    assert any(name.startswith("agent.") for name in whole.tensors)
    assert whole.tensors.keys() == pieces.tensors.keys()
    for name, value in whole.tensors.items():
        assert value.tobytes() == pieces.tensors[name].tobytes(), name


def test_a_finished_member_keeps_its_policy_and_no_replay(members, tmp_path):
    (state, *_) = states_of(members[:1], [((0,), 8)], tmp_path)
    assert state.policy is not None and not state.bulk
    assert np.isfinite(state.tensors["agent.weights"]).all()


def test_a_finished_member_is_scored_again_without_its_replay(members, tmp_path):
    member, live = replace(members[0], test="fold0/test"), LiveStates(tmp_path)
    source = EnvironmentSource(FoldPlan(), 6)
    first, second = (run_training_segment([Task(member, 8)], source, live)[0] for _ in range(2))
    assert first.backtests.returns.tobytes() == second.backtests.returns.tobytes()
    assert first.seconds["update"] > 0.0 == second.seconds["update"]
