"""Evaluation games by opponent: in evaluations.csv, and on the page."""

import numpy as np
import pytest

import slipstream
from slipstream.games.report import game_sections
from slipstream.games.report import outcomes as outcomes_from_evaluation
from slipstream.games.report import outcomes_from_evaluation as met_in
from slipstream.games.self_play.opponents import OpponentPool
from slipstream.report.run_page import evaluate_run
from slipstream.training.environments.parts import group_by_opponent, outcome_shares
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.matches import read_match_results


def game(won, lost, opponent):
    return EpisodeResult("game", 0.0, 9, {"won": won, "lost": lost, "opponent": float(opponent)})


NAMES = {0: "first", -1: "weak"}


def test_shares_by_hand():
    rows = [[game(1, 0, 0), game(0, 1, 0), game(0, 0, -1)], [game(1, 0, 0)] * 2 + [game(1, 0, -1)]]
    assert list(group_by_opponent(rows[0], NAMES)) == ["first", "weak"]
    shares = outcome_shares(rows, NAMES)
    assert {name: share.tolist() for name, share in shares.items()} == {
        "won_first": [0.5, 1.0],
        "lost_first": [0.5, 0.0],
        "won_weak": [0.0, 1.0],
        "lost_weak": [0.0, 0.0],
    }


def test_one_opponent_or_none_needs_no_columns():
    assert outcome_shares([[game(1, 0, 0)] * 2], NAMES) == {}
    assert outcome_shares([[EpisodeResult("episode", 1.0, 9, {})]], {}) == {}


def test_metrics_of_these_names_are_no_game_where_nobody_is_named():
    assert group_by_opponent([game(1, 0, float("nan"))], {}) == {}


@pytest.mark.parametrize(("several", "expected"), [(True, 0.25), (False, 0.75)])
def test_curves_are_those_against_who_is_named(several, expected):
    """Fresh games met `weak` alone: `won` is against it only if validations met nobody else."""
    table = {"member": [0.0], "steps": [64.0], "won": [0.75], "lost": [0.0]}
    if several:
        table |= {"won_weak": [0.25], "lost_weak": [0.5], "won_first": [1.0], "lost_first": [0.0]}
    (found,) = outcomes_from_evaluation(table, 0, [game(1, 0, -1)], NAMES)
    assert found.opponent == "weak" and found.shares[0, 0] == expected


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return slipstream.train(
        "tictactoe",
        out=tmp_path_factory.mktemp("outcomes") / "run",
        overrides={
            "env.self_play": {"evaluation": {"random": 1, "snapshots": 1}},
            "agent.n_steps": 8,
            "agent.batch_size": 32,
            "agent.net_arch": [8],
            "training.num_envs": 8,
            "training.total_timesteps": 256,
            "evaluation.every": 0.5,
            "evaluation.episodes": 20,
        },
        report=False,
    )


def test_a_table_has_shares_by_opponent(run):
    table = run.evaluations()
    assert not {"player", "opponent", "snapshot"} & set(table)
    met = ("random", "snapshots")
    both = np.array([[table[f"won_{who}"], table[f"lost_{who}"]] for who in met], float)
    assert ((both >= 0.0) & (both.sum(axis=1, keepdims=True) <= 1.0)).all()


def test_a_page_has_a_table_and_a_curve_for_each(tmp_path):
    """Whole games that were played later stand beside them."""
    found = slipstream.train(
        "hockey",
        out=tmp_path / "run",
        overrides={
            "env.opponents": {"weak": 1, "idle": 1},
            "env.mode": "train_defense",
            "agent.n_steps": 8,
            "agent.batch_size": 32,
            "agent.net_arch": [8],
            "training.num_envs": 4,
            "training.total_timesteps": 64,
            "evaluation.every": 0.5,
            "evaluation.episodes": 12,
        },
        report=False,
    )
    slipstream.evaluate_games(found, ["idle"], games=4)
    assert read_match_results(found)[0]["player2"] == "idle"
    evaluation = evaluate_run(found)
    assert {"won", "catches"} <= {curve.name for curve in evaluation.episodes}
    assert "opponent" not in {curve.name for curve in evaluation.episodes}
    outcomes = met_in(evaluation.environment, evaluation)
    assert [one.opponent for one in outcomes] == ["idle", "weak"]
    assert sum(one.won + one.drawn + one.lost for one in outcomes) == 12
    for one in outcomes:
        np.testing.assert_allclose(one.shares.sum(axis=1), 1.0)
    (shown,) = game_sections(outcomes, read_match_results(found))
    fresh, played = shown.tables
    assert [row[0] for row in fresh.rows] == ["idle", "weak"] and played.rows[0][1] == "4"
    assert shown.pictures[0].name == "outcomes"


def test_who_was_trained_meets_the_others_of_a_line_up():
    """Snapshots belong to training: its fresh episodes, and all later ones, do without them."""
    opponent_pool = OpponentPool(("snapshots", "random"), (2.0, 1.0)).without_snapshots()
    assert (opponent_pool.names, opponent_pool.weights) == (("snapshots", "random"), (0.0, 1.0))
    alone = OpponentPool(("snapshots",), (2.0,)).without_snapshots()
    assert (alone.names, alone.weights) == (("snapshots", "random"), (0.0, 1.0))


def test_its_fresh_games_are_those(run):
    found = evaluate_run(run)
    fresh = met_in(found.environment, found)
    assert [one.opponent for one in fresh] == ["random"]
