"""Studies that end while a deployment is in force: one takes over, others do not, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from live_markets import Make, momentum, save_study, week, write

from slipstream.cli import main
from slipstream.core.errors import ConfigError
from slipstream.core.storage import logbook
from slipstream.core.storage.atomic_io import make_folder, write_hashed
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.core.storage.status_file import LOG, read_status
from slipstream.markets.evaluation.holdout_register import price_series, record_opening
from slipstream.markets.live import auto_promotion, deployment
from slipstream.markets.live import deployment_gates as deploying
from slipstream.markets.live.account_runner import run_account
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.deployment_gates import Gate

HOUR, BARS = 3_600, 2_000
TIMES = week(BARS, HOUR)
FIRST, SECOND = int(TIMES[300]), int(TIMES[330])  # where the bars of both studies end
FOREX: dict[str, Any] = {"features": ["log_return_1"]}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return write(tmp_path / "prices", {"EURUSD": momentum(TIMES)})


@pytest.fixture
def running(make: Make, prices: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A policy that buys what falls, and an account that has followed it for months."""
    monkeypatch.setattr(
        deploying, "_cost_gate", lambda *_: Gate("costs", True, "+1.00 % at costs x 3")
    )
    found = make("forex", prices, follows=-1.0, until=FIRST, **FOREX)
    run_account("demo", f"tail:{prices}", start=FIRST, once=True, max_gap=1_000_000)
    return found


def new_study(
    tmp_path: Path, prices: Path, follows: float, name: str = "night-2", pbo: float = 0.1
) -> Path:
    """A complete study whose confirmation and hold-out say what gates ask for."""
    study = save_study(
        tmp_path / "studies" / name, "forex", prices, follows=follows, until=SECOND, **FOREX
    )
    result = {
        "study": name,
        "market": True,
        "objective": "sharpe",
        "folds": 6,
        "trials": dict.fromkeys(("started", "complete", "pruned", "failed"), 30),
        "rungs": [],
        "confirmation": {"candidates": [], "seeds": 5, "winner": 3},
        "winner": {"trial": 3, "forced": False},
        "holdout": {"mean_return": 0.02, "beats_cash": True, "promoted": True},
        "evidence": {"pbo": {"value": pbo}, "deflated_sharpe": {"value": 0.97}},
        "seconds": {"workers": {}},
        "steps": {},
        "sentences": [],
    }
    write_hashed(study / "result.json", result)
    return study


def look(said: list[str] | None = None) -> Deployment:
    auto_promotion.watch_studies(
        "night*", "demo", once=True, notify=(said if said is not None else []).append
    )
    return Deployment.open("demo")


def lines(found: Deployment) -> list[str]:
    return [one["why"] for one in found.audit() if one["event"] == auto_promotion.UNCHANGED]


@pytest.mark.slow
def test_a_better_one_takes_over_once(running: Deployment, prices: Path, tmp_path: Path) -> None:
    new_study(tmp_path, prices, follows=1.0)
    said: list[str] = []
    assert look(said).current == 2
    last = running.audit()[-1]
    assert last["event"] == "deploy" and "days since" in last["why"] and last["why"] in said[0]
    assert all(gate["passed"] and gate["forced"] is None for gate in last["gates"])
    assert look().current == 2 and "night-2: it was in force before" in lines(running)[0]
    running.switch(1, "rollback")  # by somebody who knows more: it stays
    assert look().current == 1


@pytest.mark.slow
def test_a_gate_that_fails_keeps_what_is_in_force(
    running: Deployment, prices: Path, tmp_path: Path
) -> None:
    new_study(tmp_path, prices, follows=1.0, pbo=0.3)
    assert look().current == 1
    assert lines(running) == ["night-2: pbo: 0.300, at most 0.2"]
    assert "Version 1 remains current: night-2: pbo" in (running.path / LOG).read_text()
    look()
    assert len(lines(running)) == 2  # each look is a line


def test_each_look_names_every_study_and_why(
    tmp_path: Path, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any deployment too, and what has no policy or is not complete."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deploying, "NUM_CUTS", 1)
    auto_promotion.watch_studies("night*", "new", once=True)
    found = Deployment.from_name("new")
    assert not found.exists and lines(found) == ["no study matches night*"]
    new_study(tmp_path, prices, follows=1.0, pbo=0.3)
    for name, left in {"night-1": "result.json", "night-3": "ledger.db"}.items():
        folder = tmp_path / "studies" / name
        folder.mkdir()
        (folder / "ledger.db").touch()
        (folder / left).touch()
    auto_promotion.watch_studies("night*", "new", once=True)
    assert not found.exists
    (line,) = lines(found)[1:]
    assert "night-2: pbo: 0.300, at most 0.2" in line
    assert "night-1: it has no winner" in line and "night-3: it is not complete" in line
    log = (found.path / LOG).read_text().splitlines()
    assert len(log) == 2 and "Nothing was deployed: night-2" in log[1]


def test_one_that_is_not_better_is_refused(
    running: Deployment, prices: Path, tmp_path: Path
) -> None:
    new_study(tmp_path, prices, follows=-1.0)
    assert look().current == 1
    assert "night-2: not better: information ratio 0.00 against version 1" in lines(running)[0]


@pytest.mark.slow
def test_days_that_an_opening_saw_show_nothing(
    running: Deployment, prices: Path, tmp_path: Path
) -> None:
    new_study(tmp_path, prices, follows=1.0)
    folder, _ = running.stored_bars()
    seen = price_series(running.policy().environment(folder, None, SECOND), "window")
    record_opening(seen, "elsewhere", "elsewhere", tmp_path, 1)
    assert look().current == 1
    assert "not shown to be better: 0 days" in lines(running)[0]
    assert "a bound needs 60" in lines(running)[0]


@pytest.mark.slow
def test_what_is_no_newer_or_not_complete_is_left(
    running: Deployment, prices: Path, tmp_path: Path
) -> None:
    new_study(tmp_path, prices, follows=1.0)
    older = save_study(
        tmp_path / "studies" / "night-1", "forex", prices, follows=1.0, until=FIRST - HOUR, **FOREX
    )
    result = json.loads((tmp_path / "studies" / "night-2" / "result.json").read_text())
    result.pop("sha256")
    (tmp_path / "studies" / "night-2" / "result.json").unlink()
    write_hashed(older / "result.json", result)
    assert look().current == 1
    assert "night-1: its prices are not known to end later" in lines(running)[0]


@pytest.mark.parametrize(
    "where", [pytest.param("before the audit's line", marks=pytest.mark.slow), "behind it"]
)
def test_killed_between_it_goes_on(
    running: Deployment,
    prices: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    new_study(tmp_path, prices, follows=1.0)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "behind it":
            patch.setattr(deployment, "write_text", killed)
        else:
            patch.setattr(Deployment, "switch", killed)
        with pytest.raises(KeyboardInterrupt):
            look()
    assert running.current == 1
    assert look().current == 3  # the second version is whole, and was never in force
    events = [line["event"] for line in running.audit()]
    between = ["deploy", "not switched"] if where == "behind it" else []
    assert events == ["deploy", *between, "deploy"]


@pytest.mark.slow
def test_the_first_one_needs_its_gates_alone(
    running: Deployment, prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = new_study(tmp_path, prices, follows=1.0, pbo=0.3)
    said: list[str] = []
    auto_promotion.watch_studies(f"{study.parent}/night*", "other", once=True, notify=said.append)
    assert not Deployment.from_name("other").exists and "pbo: 0.300" in said[0]
    new_study(tmp_path, prices, follows=1.0)
    with pytest.raises(SystemExit) as left:
        main(["deploy", "--watch", "night*", "--name", "other", "--run-once"])
    assert not left.value.code and Deployment.open("other").current == 1


@pytest.mark.parametrize(
    "words",
    [[], ["first", "--watch", "x*"], ["--watch", "x*", "--force", "pbo"], ["x", "--run-once"]],
)
def test_what_deploy_is_not_given_together(words: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["deploy", *words, "--name", "demo", "--reason", "none"])
    assert left.value.code == 2


def test_what_a_watch_logs_is_its_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leftover request to stop is not followed, and minutes without news leave no line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto_promotion, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(logbook, "_LOG_SECONDS", 0.0)
    rounds, folder = list[int](), auto_promotion.watch_folder(Deployment.from_name("new"))
    make_folder(folder)
    request_stop(folder)

    def complete(pattern: str) -> list[Path]:
        rounds.append(len(rounds))
        if len(rounds) == 5:
            request_stop(folder)
        return []

    def busy(*_: Any) -> None:
        raise ConfigError("Another process deploys new: wait for it.")

    monkeypatch.setattr(auto_promotion, "_complete_studies", complete)
    monkeypatch.setattr(auto_promotion, "promote_first_passing", busy)
    with pytest.raises(Interrupted, match="slipstream deploy --name new --watch 'night"):
        auto_promotion.watch_studies("night*", "new")
    log = (folder / LOG).read_text().splitlines()
    assert len(rounds) == 5 and len(log) == 3  # begun, one refusal, stopped
    status = read_status(folder)
    assert status is not None and (status.completed, status.pattern) == (0, "night*")
