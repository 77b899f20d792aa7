"""Versions, the one in force, gates with their figures, and the audit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from live_markets import GATES, Make, momentum, save_study, table, week, write

from slipstream import load_policy, portable
from slipstream.cli import main
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.storage import checkpoint
from slipstream.core.timeline import HOLDOUT
from slipstream.markets.evaluation.market_backtest import replay
from slipstream.markets.live import deployment_gates as deploying
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.deployment_gates import (
    Gate,
    _holdout_gate,
    _statistic_gate,
    deploy_policy,
)
from slipstream.markets.live.price_replay import ReplayPass
from slipstream.studies.record.folder import StudyFolder
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.runs.policies import DeployedPolicy

FEATURES = ["log_return_1", "rsi_14"]
FORCED = dict.fromkeys(GATES[:5], "a test")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    return write(tmp_path / "prices", {"EURUSD": table(week(420), 1.1, 0)})


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    return int(str(left.value.code))


def test_versions_are_switched_and_rolled_back(make: Make, prices: Path) -> None:
    found = make("forex", prices, features=FEATURES)
    assert make("forex", prices, features=FEATURES).current == 2
    assert found.versions == [1, 2] and found.policy().path == found.version(2)
    assert make("forex", prices, features=FEATURES).current == 3
    assert command("rollback", "demo", "--to", 1) == 0
    assert command("rollback", "demo", "--to", 7) == 2
    assert command("rollback", "demo") == 0
    assert found.current == 3  # which was in force before version 1, as version 2 was not
    found.append_audit("rollback", 2, {})  # and killed before the switch
    assert found.previous == 1
    assert command("rollback", "demo") == 0
    events = [(line["event"], line["to"]) for line in found.audit()]
    deployed = [("deploy", 1), ("deploy", 2), ("deploy", 3)]
    back = [("rollback", 1), ("rollback", 3), ("rollback", 2), ("not switched", 3), ("rollback", 1)]
    assert events == deployed + back and found.previous == 3


def test_a_gate_that_fails_deploys_nothing(make: Make, prices: Path, tmp_path: Path) -> None:
    found = make("forex", prices, features=FEATURES)
    study, said = tmp_path / "studies" / "first", list[str]()
    with pytest.raises(ConfigError, match=r"confirmed, holdout, pbo, dsr, costs failed"):
        deploy_policy(study, "demo", {}, notify=said.append)
    assert found.versions == [1] and len(found.audit()) == 1
    assert [line.split()[0] for line in said] == ["FAILED"] * 5 + ["passed"]
    assert "cuts of the last year are bit-identical" in said[-1]
    with pytest.raises(ConfigError, match=r"no such gate. Choose from confirmed, holdout"):
        deploy_policy(study, "demo", {"luck": "why not"})
    assert command("deploy", study, "--name", "demo", "--force", "pbo") == 2  # without a reason


def test_a_cut_that_differs_in_a_bit_fails(
    make: Make, prices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = make("forex", prices, features=FEATURES), list[str]()
    assert command("rollback", "demo") == 2  # nothing was before
    own, calls = deploying.replay_passes, iter(range(1_000))

    def leaking(*arguments: Any) -> list[ReplayPass]:
        made, bit = own(*arguments), 2.0**-40 * (next(calls) == 1)  # in the first cut's equity
        return [one._replace(equity=one.equity * (1.0 + bit)) for one in made]

    monkeypatch.setattr(deploying, "replay_passes", leaking)
    with pytest.raises(ConfigError, match="Nothing was deployed: cuts failed"):
        deploy_policy(tmp_path / "studies" / "first", "demo", FORCED, notify=said.append)
    assert found.versions == [1]
    assert re.match(r"FAILED  cuts: (\d+) of (\d+) cuts .*, not 2025", said[-1])


@pytest.mark.parametrize(("follows", "passed"), [(1.0, True), (-1.0, False)])
def test_costs_are_the_hold_outs_return_under_three_times_the_costs(
    tmp_path: Path, follows: float, passed: bool
) -> None:
    """Other prices and another config have them; the gate asks the rules to multiply."""
    frame, costs = momentum(week(3_000, 3_600)), {"slippage_pips": 0.1, "commission_per_million": 5}
    once = write(tmp_path / "once", {"EURUSD": frame})
    dear = write(tmp_path / "dear", {"EURUSD": frame.with_columns(pl.col("spread") * 3.0)})
    more: dict[str, Any] = {"follows": follows, "features": ["log_return_1"]}
    folder = StudyFolder(save_study(tmp_path / "first", "forex", once, **more, **costs))
    tripled = {name: 3 * cost for name, cost in costs.items()}
    other = StudyFolder(save_study(tmp_path / "other", "forex", dear, **more, **tripled))
    source = EnvironmentSource(folder.study.folds, 1)
    environment, expensive = source.environment(folder.base), source.environment(other.base)
    folder.update_provenance(environment={"market_sha256": environment.provenance["market_sha256"]})
    policy = DeployedPolicy.open(folder.policy)
    tracks = Evaluator(environment, HOLDOUT, backend="serial").run(policy.policy, record=True)[0]
    (account,) = replay(expensive, HOLDOUT, [one.actions for one in tracks], backend="serial")
    figure = f"{100 * account.metrics['total_return']:+.2f} % on the hold-out at costs x 3"
    assert deploying._cost_gate(folder, {}, policy) == Gate("costs", passed, figure)
    assert account.metrics["total_return"] < tracks[0].metrics["total_return"] - 0.001


def test_a_version_acts_in_numpy_and_is_exported_once_it_has_bars(
    make: Make, prices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = make("forex", prices, features=FEATURES).version(1)
    alone, whole = portable.load(version), load_policy(version)
    for row in np.random.default_rng(0).normal(size=(20, *whole.observation_shape)):
        assert np.array_equal(alone.act(row.astype("f4")), whole.act(row.astype("f4")))
    assert command("export", "demo", "--onnx", "demo.onnx") == 2
    assert "Run it with `slipstream paper start demo" in " ".join(capsys.readouterr().err.split())


def test_what_was_forced_stays_written(make: Make, prices: Path) -> None:
    found = make("forex", prices, features=FEATURES)
    gates: list[dict[str, Any]] = checkpoint.read_manifest(found.version(1))["gates"]
    assert [gate["name"] for gate in gates] == list(GATES)
    assert [gate["forced"] for gate in gates] == ["a test"] * 5 + [None]
    assert all(gate["figure"].startswith("not computed") for gate in gates[:5])
    assert gates[5]["passed"]
    assert found.audit()[0]["gates"] == gates


def test_an_audit_that_was_changed_is_refused(make: Make, prices: Path) -> None:
    found = make("forex", prices, features=FEATURES)
    found.switch(1, "rollback")
    path = found.path / "audit.jsonl"
    lines = path.read_text().splitlines()
    changed = json.loads(lines[0]) | {"source": "elsewhere"}
    path.write_text("\n".join([json.dumps(changed), *lines[1:]]) + "\n")
    with pytest.raises(CheckpointError, match="line 2 does not continue"):
        found.audit()


def test_a_kill_between_the_audit_and_the_switch_is_written_down(make: Make, prices: Path) -> None:
    found = make("forex", prices, features=FEATURES)
    found.append_audit("deploy", 2, {})  # and no more
    with (found.path / "audit.jsonl").open("a") as file:
        file.write('{"half a line')
    assert found.current == 1
    found.switch(1, "rollback")
    assert [line["event"] for line in found.audit()] == [
        *("deploy", "deploy", "not switched", "rollback")
    ]


def test_what_a_study_measured_is_judged() -> None:
    config = Path("studies/first/study.yaml")
    assert _statistic_gate("pbo", {"value": 0.2}, "at most", 0.2, config).passed
    assert not _statistic_gate("pbo", {"value": 0.21}, "at most", 0.2, config).passed
    few = _statistic_gate("dsr", {"reason": "few days"}, "at least", 0.95, config)
    assert not few.passed and "few days" in few.figure and str(config) in few.figure
    facts = {"mean_return": 0.02, "beats_cash": True, "lcb": 0.1, "fresh_days": 70}

    def gate(**more: object) -> Gate:
        return _holdout_gate({"holdout": {**facts, **more}, "winner": {"forced": False}}, "first")

    assert gate(promoted=True).passed
    # What the study did not promote is not deployed, whatever its mean return is.
    assert not gate(promoted=False).passed
    again = gate(promoted=False, opening=2, lcb=None, fresh_days=0)
    assert "0 fresh days are too few for a bound" in again.figure
    assert "opening 2 of these days" in again.figure
    violates = gate(promoted=False, violates="drawdown is 0.2 (at most 0.1)")
    assert not violates.passed and "drawdown is 0.2" in violates.figure
    closed = _holdout_gate({}, "first")
    assert not closed.passed and "`slipstream resume first --force-deploy`" in closed.figure


def test_names_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"There is no deployment demo .*slipstream deploy"):
        Deployment.open("demo")
    assert command("paper", "start", "demo", "--feed", "replay:here") == 2
    assert command("paper", "report", "demo") == 2


def test_a_run_is_told_what_would_measure_it(make: Make, prices: Path, tmp_path: Path) -> None:
    make("forex", prices, features=FEATURES)
    study = tmp_path / "studies" / "first"
    said: list[str] = []
    with pytest.raises(ConfigError, match="failed"):
        deploy_policy(study, "demo", {}, notify=said.append)
    assert all("`slipstream resume first` completes it" in line for line in said[:5])
    alone = tmp_path / "alone"
    (study / "policy").rename(alone)
    with pytest.raises(ConfigError, match="failed"):
        deploy_policy(alone, "demo", {}, notify=said.append)
    assert "Deploy the folder of its study" in said[6]
    facts = {"reason": "5 trials finished, at least 20 are needed"}
    figure = _statistic_gate("pbo", facts, "at most", 0.2, Path("x/study.yaml")).figure
    assert "5 trials finished" in figure and "`slipstream tune x/study.yaml" in figure


def test_cuts_hold_where_a_symbol_ends_before_another(make: Make, tmp_path: Path) -> None:
    tables = {"EURUSD": table(week(420), 1.1, 0)[:330], "USDJPY": table(week(420), 150.0, 1)}
    found = make("forex", write(tmp_path / "uneven", tables), features=FEATURES)
    gate = checkpoint.read_manifest(found.version(1))["gates"][5]
    assert gate["passed"] and "of the last year are bit-identical" in gate["figure"]
