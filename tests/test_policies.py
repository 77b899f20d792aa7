"""The policies of examples/policies are what their cards say, measured again."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream import portable
from slipstream.core.storage import checkpoint
from slipstream.report.run_evaluation import evaluate_deployed
from slipstream.report.run_page import build_page

FOLDER = Path(__file__).parents[1] / "examples/policies"
# Mean returns that are at least to be reached, whatever a card says.
LEAST = {
    **{"cartpole": 495.0, "pendulum": -200.0, "acrobot": -100.0},
    **{"tictactoe": 0.85, "hockey": 8.5},  # 1 and 10 for a game that is won
}


def test_every_policy_is_measured_and_listed() -> None:
    folders = {path.name for path in FOLDER.iterdir() if (path / checkpoint.MANIFEST).is_file()}
    assert folders == set(LEAST)
    listed = (FOLDER / "README.md").read_text()
    assert folders == set(re.findall(r"^\| \[(\w+)\]", listed, re.MULTILINE))
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 3e6


@pytest.mark.parametrize("name", LEAST)
def test_scores_are_those_of_the_card(name: str) -> None:
    known = checkpoint.read_manifest(FOLDER / name)["test"]
    tracks = slipstream.evaluate(FOLDER / name).episodes
    returns = np.array([track.episode_return for track in tracks])
    assert len(returns) == known["episodes"]
    assert returns.mean() > LEAST[name]
    # The same episodes; on another processor the last bits of an action may end one otherwise.
    assert returns.mean() == pytest.approx(known["score"], abs=2.0 * known["error"] + 1e-9)
    headline = re.search(r"^\*\*(.*)\*\*$", (FOLDER / name / "README.md").read_text(), re.MULTILINE)
    counts = re.findall(r"(\d+) fresh", headline[1] if headline else "")
    assert sum(map(int, counts)) == len(returns)


def test_the_report_of_a_game_says_who_is_beaten_as_its_card_does() -> None:
    page = build_page(evaluate_deployed(FOLDER / "tictactoe"))
    assert page.headline.startswith("Wins ") and page.headline.endswith(" against random.")
    assert f"**{page.headline}**" in (FOLDER / "tictactoe/README.md").read_text()


def test_hockey_is_won_against_both_bots() -> None:
    """In whole games from both sides, as the table of the folder's README says."""
    for games in slipstream.evaluate_games(FOLDER / "hockey", ["weak", "strong"], games=400):
        assert len(games.result) == 400 and games.win_rate >= 0.95, games.player2


@pytest.mark.parametrize("name", LEAST)
def test_they_act_without_the_rest_of_slipstream(name: str) -> None:
    assert portable.load(FOLDER / name)  # which refuses what is not as it was written
