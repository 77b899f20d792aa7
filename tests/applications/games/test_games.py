"""Whole games: both sides, bots and runs, intervals, one copy at a time or all at once."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.training.runs import matches as games_file
from slipstream.training.runs.matches import (
    BestResponse,
    GamesResult,
    MatchResult,
    Player,
    list_bots,
    load_opponent,
    load_player,
    play,
    read_match_results,
    wilson,
    write_match_results,
)

SMALL = {
    "env": {"name": "hockey", "opponents": {"weak": 1.0}},
    "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 8, "total_timesteps": 256},
    "evaluation": {"episodes": 2, "every": 1.0},
}

FLAT = {
    f"{section}.{key}": value
    for section in ("agent", "training", "evaluation")
    for key, value in SMALL[section].items()
}
PENNIES = Path(__file__).parents[3] / "examples/kernels/pennies.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games")
    return [
        slipstream.train(SMALL, out=folder / f"run{seed}", seed=seed, report=False)
        for seed in (0, 1)
    ]


def test_wilson_by_hand():
    share, low, high = wilson(8, 10, z=2.0)
    # (0.8 + 0.2 -+ 2 sqrt(0.8 0.2 / 10 + 0.1 / 10)) / 1.4, with z^2 / n = 0.4
    assert share == 0.8
    half = 2.0 * np.sqrt(0.016 + 4.0 / 400.0)
    assert low == pytest.approx((1.0 - half) / 1.4) and high == pytest.approx((1.0 + half) / 1.4)
    assert wilson(0, 5)[1] == 0.0 and wilson(5, 5)[2] == pytest.approx(1.0)


@pytest.mark.slow
def test_all_copies_at_once_equal_one_at_a_time(runs):
    one = load_player(runs[0])
    for two in (Player("strong"), load_player(runs[1])):
        every = play("hockey", one, two, 7, 3)
        single = play("hockey", one, two, 7, 3, num_envs=1)
        assert np.array_equal(every.result, single.result)
        assert np.array_equal(every.length, single.length)
        assert every.left.tolist() == [True, False] * 3 + [True]


@pytest.mark.slow
def test_a_table_is_written_and_bots_are_the_default(runs):
    played = slipstream.evaluate_games(runs[0], games=4)
    assert [games.player2 for games in played] == ["weak", "strong", "random", "idle"]
    written = json.loads((runs[0].path / "games.json").read_text())
    assert written["games"][1]["player2"] == "strong" and written["games"][1]["games"] == 4
    strong = played[1]
    assert (strong.result < 1).all()  # nobody wins after 256 steps of training


def test_a_table_without_a_seal_is_read_and_another_shape_is_refused(tmp_path, monkeypatch):
    """Those of older versions have none."""
    best = ["first"]
    monkeypatch.setattr(games_file, "_weights_of", lambda run, member=None: best[0])
    run, path = SimpleNamespace(path=tmp_path), tmp_path / "games.json"
    write_match_results(
        run, [MatchResult("run", "weak", np.array([1, 0]), np.array([True, False]), np.ones(2))], 0
    )
    written = json.loads(path.read_text())
    best[0] = "better"  # the games were another policy's
    assert read_match_results(run) == []
    path.write_text(json.dumps({key: written[key] for key in ("seed", "games")}))
    assert read_match_results(run) == written["games"] and written["games"][0]["player2"] == "weak"
    written["games"][0]["won"] = 0.5
    path.write_text(json.dumps({"games": written["games"]}))
    with pytest.raises(CheckpointError, match=r"`won` is 0\.5, not a list"):
        read_match_results(run)


def test_a_match_has_named_rates_and_a_short_repr():
    result = np.array([1, 1, 1, 0, -1])
    match = MatchResult("run", "weak", result, np.ones(5, bool), np.full(5, 9))
    assert (match.win_rate, match.draw_rate, match.loss_rate) == (0.6, 0.2, 0.2)
    assert match.interval == pytest.approx((0.2307, 0.8824), abs=1e-4)  # Wilson
    assert repr(match) == (
        "<MatchResult: players run against weak, games 5, won 60.0 %, "
        "95 % interval 23.1 % to 88.2 %, drawn 20.0 %, lost 20.0 %>"
    )
    fixed = replace(match, deterministic=True)
    assert fixed.interval is None and "interval" not in repr(fixed)
    games = GamesResult([match, replace(fixed, player2="strong")])
    assert games.by_opponent["weak"] is match and games[0] is match
    assert [line.split() for line in str(games).splitlines()[1:]] == [
        ["weak", "5", "60.0", "%", "23.1", "%", "to", "88.2", "%", "20.0", "%", "20.0", "%", "9"],
        ["strong", "5", "60.0", "%", "n/a", "20.0", "%", "20.0", "%", "9"],
    ]
    response = BestResponse(SimpleNamespace(path="runs/response"), match)
    assert response.win_rate == 0.6 and response.interval == match.interval
    assert repr(response).startswith("<BestResponse: run runs/response, players run against weak")


@pytest.fixture(scope="module")
def other_game(tmp_path_factory):
    """A run of tic-tac-toe, a game whose kernel has no players of its own."""
    values = {**SMALL, "env": {"name": "tictactoe", "self_play": {}}}
    return slipstream.train(values, out=tmp_path_factory.mktemp("other") / "run", report=False)


def test_any_game_of_two_is_played(other_game):
    """Against who moves at random, and against itself: who begins alternates."""
    one = load_player(other_game)
    random, self = slipstream.evaluate_games(other_game, ["random", str(other_game.path)], games=9)
    assert random.left.tolist() == [True, False] * 4 + [True]
    assert (random.length <= 9).all() and (random.length >= 5).all()
    single = play(
        "tictactoe", one, Player("random"), 9, other_game.config.evaluation.test_seed, num_envs=1
    )
    assert np.array_equal(random.result, single.result)
    # Nothing is drawn where both take their likeliest move: every game is the same one, and what
    # the beginner gets in it the other one loses.
    assert set(self.result[self.left] + self.result[~self.left][0]) == {0}
    assert self.as_dict()["player2"] == "run" and self.deterministic and not random.deterministic
    assert len(set(self.shares()["drawn"])) == 1 and len(set(random.shares()["drawn"])) > 1


def test_a_policys_own_folder_is_an_opponent(other_game):
    folder = other_game.best.folder_of(0)
    [games] = slipstream.evaluate_games(other_game, [str(folder)], games=4)
    [run] = slipstream.evaluate_games(other_game, [str(other_game.path)], games=4)
    assert np.array_equal(games.result, run.result) and games.player2 == "run/member-000"
    [own] = slipstream.evaluate_games(folder, games=4)
    assert (
        own.player1 == "run/member-000" and read_match_results(other_game)[0]["player2"] == "random"
    )
    with pytest.raises(ConfigError, match="games=0 is not valid"):
        slipstream.best_response(other_game, games=0)


def test_a_policy_that_was_handed_on_plays_the_same_games(other_game, tmp_path):
    [own] = slipstream.evaluate_games(other_game, games=6)
    card = slipstream.write_model_card(other_game, out=tmp_path / "given").read_text()
    won, drawn, lost = (f"{100 * share:.1f} % [" for share, _, _ in own.shares().values())
    (line,) = [line for line in card.splitlines() if "6 whole games against random" in line]
    assert f"won {won}" in line and f"drawn {drawn}" in line and f"lost {lost}" in line
    files = set((tmp_path / "given").iterdir())
    [given] = slipstream.evaluate_games(tmp_path / "given", games=6)
    assert np.array_equal(own.result, given.result) and given.player1 == "given"
    assert set((tmp_path / "given").iterdir()) == files
    with pytest.raises(ConfigError, match="no opponent `snapshots`"):
        slipstream.evaluate_games(tmp_path / "given", ["snapshots"])


def test_a_runs_own_snapshots_are_an_opponent(other_game):
    """Those in its last checkpoint: 256 steps with a snapshot after 10 iterations of 128 leave the
    first one, untrained weights."""
    [games] = slipstream.evaluate_games(other_game, ["snapshots"], games=6)
    assert games.player2 == "snapshots" and len(games.result) == 6
    again = slipstream.evaluate_games(other_game, ["snapshots"], games=6)[0]
    assert np.array_equal(games.result, again.result)


@pytest.mark.slow
def test_opponents_of_another_game_or_shape_are_refused(runs, other_game, tmp_path):
    with pytest.raises(ConfigError, match="trained on tictactoe, and this game is hockey"):
        slipstream.evaluate_games(runs[0], [str(other_game.path)], games=2)
    without = {**SMALL, "env": {"name": "hockey", "opponents": {"weak": 1.0}, "puck_hold": False}}
    other = slipstream.train(without, out=tmp_path / "without", report=False)
    with pytest.raises(ConfigError, match=r"sees \(16,\)"):
        slipstream.evaluate_games(runs[0], [str(other.path)], games=2)
    with pytest.raises(ConfigError, match="not trained against its own snapshots"):
        slipstream.evaluate_games(runs[0], ["snapshots"], games=2)
    one = load_player(runs[0])
    with pytest.raises(ConfigError, match="18"):
        play("hockey", one, Player("weak"), 1, 0, settings={"puck_hold": False})
    with pytest.raises(ConfigError, match="has observations"):
        play("hockey", one, Player("weak"), 1, 0, settings={"num_action_levels": 3})


@pytest.mark.slow
def test_a_game_must_say_who_won(tmp_path):
    text = PENNIES.read_text().replace('        winner="winner",\n', "")
    (tmp_path / "pennies.py").write_text(text)
    run = slipstream.train(
        str(tmp_path / "pennies.py"), out=tmp_path / "run", overrides=FLAT, report=False
    )
    with pytest.raises(ConfigError, match="does not say who won"):
        slipstream.evaluate_games(run, games=2)


def test_what_cannot_be_played_is_refused(other_game):
    assert list_bots("cartpole") == [] and list_bots("gym:CartPole-v1") == []
    assert list_bots("tictactoe") == ["random"]
    with pytest.raises(ConfigError, match="did you mean `strong`"):
        load_opponent("hockey", "strnog")
    one = load_player(other_game)
    with pytest.raises(ConfigError, match="at least 1"):
        play("tictactoe", one, Player("random"), 0, 0)
    with pytest.raises(ConfigError, match="not a game for two players"):
        play("cartpole", one, Player("weak"), 1, 0)
