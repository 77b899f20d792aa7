"""Scores of defaults beside SB3's: stored cells, fresh episodes, intervals over seeds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, measurements
from benchmarks.fresh_episodes import FIRST_SEED, fresh_returns
from benchmarks.row import Row
from benchmarks.suite import FULL, run_suite
from benchmarks.suites import gym_defaults as case
from benchmarks.suites.gym_defaults import GAMES, Cell, GymGame
from benchmarks.worker import WorkerError
from slipstream.core.errors import ConfigError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Return the measured arguments; a slipstream seed scores 10 more than SB3's, less its seed."""
    seen: list[dict[str, Any]] = []

    def worker(module: str, settings: dict[str, Any], **_: Any) -> dict[str, Any]:
        seen.append({"module": module, **settings})
        score = 10.0 - settings["seed"] if module.startswith("ours") else 0.0
        return {"returns": [score - 1.0, score + 1.0], "seconds": 1.0}

    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(case, "run_worker", worker)
    return seen


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> None:
    one = GymGame("CartPole-v1", 0, 100, (1000, 5000), 5000, episodes=2)
    monkeypatch.setattr(case, "GAMES", (one,))
    monkeypatch.setattr(case, "threads", lambda: 1)  # so that the order is one


def test_a_cell_runs_once_until_something_it_depends_on_changes(
    asked: list[dict[str, Any]],
) -> None:
    one = Cell("ours.x", "ours.y.x", {"seed": 1}, {"numpy": "2"})
    assert one.kept() is None
    assert one.run() == one.run() == one.kept()
    assert len(asked) == 1
    assert Cell("ours.x", "ours.y.x", {"seed": 1}, {"numpy": "3"}).kept() is None
    one.path.write_text("cut sho")
    assert one.kept() is None
    one.run()
    assert len(asked) == 2


def test_rows_have_the_interval_over_seeds_and_every_cell(
    asked: list[dict[str, Any]], games: None
) -> None:
    short, long = case.gym_defaults(FULL)
    assert len(asked) == 2 * 2 * 5  # budgets, sides, seeds
    assert [one["steps"] for one in asked[:10]] == [1000] * 10  # short budgets come first
    low, high = case.interval([9.0, 8.0, 7.0, 6.0, 5.0])
    assert (low + high) / 2 == pytest.approx(7.0)
    # half-width t(0.975, 4) s / sqrt 5 with s^2 = 2.5
    assert high - 7.0 == pytest.approx(2.776445 * (2.5 / 5) ** 0.5, abs=1e-5)
    assert (short.ours, short.peer, short.holds, short.runs) == (7.0, 0.0, True, 5)
    assert "the RL Zoo's budget is 5,000" in short.unit and "the RL Zoo's budget)" in long.unit
    assert len(short.cells) == 10
    assert {one["side"] for one in short.cells} == {"slipstream", "SB3"}
    assert short.cells[0]["mean"] == statistics.mean([8.0, 10.0])
    list(case.gym_defaults(FULL))
    assert len(asked) == 20  # everything was kept


def test_cells_of_the_results_file_are_not_measured_again(
    asked: list[dict[str, Any]], games: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "gym-defaults.json"

    def rows() -> list[dict[str, Any]]:
        found = run_suite("train", full=True, only=["gym_defaults"], path=file)
        assert measurements.read(file)[0]["rows"] == json.loads(json.dumps(found))
        return found

    first = rows()
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "another"))  # the cells are lost
    assert rows() == first and len(asked) == 20
    newer = {**machine.versions(), "stable-baselines3": "another"}
    monkeypatch.setattr(case, "versions", lambda: newer)
    rows()
    assert len(asked) == 30 and {one["module"] for one in asked[20:]} == {"peers.sb3.ppo_gym"}
    file.write_text("cut sho")
    with pytest.raises(ConfigError, match="Name another file, or delete it"):
        rows()


def test_what_was_cut_for_time_is_said_and_nothing_is_judged(
    asked: list[dict[str, Any]], games: None
) -> None:
    case._pair(case.GAMES[0], 1000, 1)[0].run()
    settings = type(FULL)(full=True, hours=0.0)
    short, long = case.gym_defaults(settings)
    assert len(asked) == 1
    assert "0 of 5 seeds were run, the rest was cut" in short.unit
    assert (short.ours, short.holds, short.runs, len(short.cells)) == (None, None, 0, 1)
    assert long.cells == ()


def test_an_environment_that_cannot_be_made_leaves_the_others_alone(
    asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    games = (GymGame("CartPole-v1", 0, 9, (10,)), GymGame("Acrobot-v1", 0, 9, (10,)))
    monkeypatch.setattr(case, "GAMES", games)
    measured = case.run_worker

    def worker(module: str, settings: dict[str, Any], **more: Any) -> dict[str, Any]:
        if settings["env_id"] == "CartPole-v1":
            raise WorkerError("it ended with exit code 2. It said:\nCartPole needs a package")
        return measured(module, settings, **more)

    monkeypatch.setattr(case, "run_worker", worker)
    broken, whole = case.gym_defaults(FULL)
    assert "0 of 5 seeds were run, the others failed: CartPole needs a package" in broken.unit
    assert (broken.holds, whole.runs, whole.holds) == (None, 5, True)


def test_a_row_without_cells_is_written_without_them() -> None:
    assert "cells" not in Row("a", "s", 1.0).as_json()
    assert Row("a", "s", 1.0, cells=({"seed": 1},)).as_json()["cells"] == ({"seed": 1},)


def test_it_takes_hours_and_runs_only_when_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Add --full"):
        run_suite("train", only=["gym_defaults"])
    with pytest.raises(ConfigError, match="hours"):
        run_suite("train", hours=1.0)


def test_games_have_ranges_and_two_are_held_out() -> None:
    assert sum(game.held_out for game in GAMES) == 2
    for game in GAMES:
        assert game.low < game.high and list(game.budgets) == sorted(game.budgets)
        assert game.zoo is None or game.budgets[-1] == game.zoo


class Counted:
    """Environment of `number` steps; the reward is the action, the observation the steps left."""

    def __init__(self, number: int) -> None:
        self.number = number

    def reset(self, *, seed: int) -> tuple[int, dict[str, Any]]:
        self.seed, self.left = seed, self.number
        return self.left, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.left > 0, "an episode that ended is not stepped"
        self.left -= 1
        return self.left, float(action), self.left == 0, False, {}


def test_both_sides_meet_the_same_fresh_episodes() -> None:
    one, other = [Counted(n) for n in (3, 1, 2)], [Counted(n) for n in (3, 1, 2)]
    seen: list[list[int]] = []

    def act(observations: list[int]) -> list[int]:
        seen.append(observations)
        return [10 * left for left in observations]

    assert fresh_returns(one, act, seed=2) == [60.0, 10.0, 30.0]
    assert seen == [[3, 1, 2], [2, 1], [1]]  # who has ended is no longer asked
    fresh_returns(other, act, seed=3)
    assert [env.seed for env in one] == [FIRST_SEED + 6 + j for j in range(3)]
    assert not {env.seed for env in one} & {env.seed for env in other}
