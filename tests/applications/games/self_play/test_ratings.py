"""Ratings of a learner against its own snapshots: in the tables, in the state, on the page."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from slipstream.games import ratings, report
from slipstream.games.ratings import INITIAL_DEVIATION, INITIAL_MEAN, Ratings
from slipstream.training.episode_result import EpisodeResult

pytest.importorskip("openskill")


def games(snapshot, result, count=10):
    metrics = {"won": float(result > 0), "lost": float(result < 0), "snapshot": float(snapshot)}
    return [EpisodeResult("", result, 1, metrics)] * count


def test_members_are_rated_by_their_own_games():
    made = Ratings(2, 3)
    found = made.update([games(0, 1), games(0, -1) + games(-1, 1)])  # -1: against somebody else
    (winner, loser), deviation = found["rating"], found["rating_deviation"]
    assert winner > INITIAL_MEAN > loser and (deviation < INITIAL_DEVIATION).all()
    assert winner - INITIAL_MEAN == pytest.approx(INITIAL_MEAN - loser)
    assert made.snapshots[0, 0, 0] < INITIAL_MEAN < made.snapshots[1, 0, 0]
    np.testing.assert_array_equal(
        made.snapshots[:, 1:], np.tile([INITIAL_MEAN, INITIAL_DEVIATION], (2, 2, 1))
    )
    made.add_snapshots(np.array([True, False]), np.array([1, 1]))
    assert made.snapshots[0, 1].tolist() == [winner, INITIAL_DEVIATION]
    assert made.snapshots[1, 1].tolist() == [INITIAL_MEAN, INITIAL_DEVIATION]
    again = Ratings(2, 3)
    again.load_state_dict(made.state_dict())
    drawn = [games(1, 0), games(1, 0)]
    np.testing.assert_array_equal(again.update(drawn)["rating"], made.update(drawn)["rating"])


def train(out):
    settings = {
        **{
            "agent.n_steps": 16,
            "agent.batch_size": 64,
            "agent.net_arch": [16],
            "agent.n_epochs": 2,
        },
        "env.self_play": {"snapshot_iterations": 4, "opponents": {"snapshots": 1.0}},
        **{"evaluation.every": 0.5, "evaluation.episodes": 4, "training.num_envs": 64},
    }
    return slipstream.train(
        "tictactoe", out=out, total_timesteps=16_384, overrides=settings, report=False
    )


def test_a_training_has_a_curve_and_its_pool_a_matrix(tmp_path, monkeypatch):
    run = train(tmp_path / "run")
    found = report.league_from_run(run)
    assert found.players == ("snapshot 0", *(f"snapshot {i}" for i in range(1, 5)), "best policy")
    off = ~np.eye(6, dtype=bool)
    assert np.isnan(np.diag(found.won)).all() and ((found.won + found.won.T)[off] <= 1.0).all()
    table = run.evaluations()
    np.testing.assert_array_equal(
        found.rating.T, [table[name] for name in ("steps", "rating", "rating_deviation")]
    )
    assert found.rating[-1, 1] > INITIAL_MEAN  # of who once knew nothing
    (section,) = report.league_sections(found)
    assert [row[0] for row in section.tables[0].rows] == list(found.players)
    assert section.pictures[0].name == "rating"
    # Who lacks openskill trains the same weights, and is told.
    monkeypatch.setattr(ratings, "find_spec", lambda name: None)
    other = train(tmp_path / "other")
    assert "rating" not in other.evaluations()
    assert any("openskill is not installed" in note for note in other.provenance["notes"])
    ours, theirs = (slipstream.load_policy(one).parameters.flat for one in (run, other))
    np.testing.assert_array_equal(ours, theirs)
    assert len(report.league_from_run(other).rating) == 0
