"""Benchmark harness: pairing, contention, workers, results files, tables."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import alternate as alternating
from benchmarks import measurements
from benchmarks import suite as suites
from benchmarks.alternate import alternate
from benchmarks.machine import Neighbours, commit, describe, threads, versions
from benchmarks.page import _stamp, render
from benchmarks.record_test_run import record_test_run
from benchmarks.row import Goal, Ratio, Row, cells, markdown
from benchmarks.suite import SuiteOptions, cases_of, run_suite, specs_of
from benchmarks.suites import SUITES
from benchmarks.worker import WorkerError, elsewhere, run_worker
from slipstream.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
ROW_KEYS = {
    *("case", "unit", "ours", "peer", "peer_name", "ratio"),
    *("runs", "others_cpu", "goal", "holds", "forecast"),
}


class _Quiet:
    shares: tuple[float, ...] = (0.0,)
    used = 0

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        self.share = type(self).shares[min(type(self).used, len(type(self).shares) - 1)]
        type(self).used += 1


@pytest.fixture
def neighbours(monkeypatch: pytest.MonkeyPatch) -> type[_Quiet]:
    class Fresh(_Quiet):
        pass

    monkeypatch.setattr(alternating, "Neighbours", Fresh)
    return Fresh


def test_sides_alternate_and_each_goes_first_in_turn(neighbours: type[_Quiet]) -> None:
    order: list[str] = []

    def side(name: str, figure: float) -> float:
        order.append(name)
        return figure

    measured = alternate(lambda: side("a", 30.0), lambda: side("b", 10.0), runs=3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert (measured.ours, measured.peer, measured.runs) == (30.0, 10.0, 3)
    assert measured.ratio == Ratio(3.0, 3.0, 3.0)


def test_ratios_are_of_pairs(neighbours: type[_Quiet]) -> None:
    ours, theirs = iter([10.0, 40.0, 30.0]), iter([10.0, 10.0, 10.0])
    measured = alternate(lambda: next(ours), lambda: next(theirs), runs=3)
    assert measured.ratio == Ratio(3.0, 1.0, 4.0)


def test_where_less_is_better_the_ratio_is_turned_over(neighbours: type[_Quiet]) -> None:
    measured = alternate(lambda: 2.0, lambda: 10.0, runs=1, less_is_better=True)
    assert measured.ratio == Ratio(5.0, 5.0, 5.0)


ORPHANS = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE, start_new_session=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives orphans away")
def test_orphans_of_a_worker_are_ours(tmp_path: Path) -> None:
    """Regression: environments of SB3's fork server, for which no process waits."""
    with Neighbours() as neighbours:
        parent = psutil.Process()
        subprocess.run([sys.executable, "-c", ORPHANS], check=True)
        orphans = parent.children()
        psutil.wait_procs(orphans, timeout=60)
    assert orphans
    assert neighbours.own >= 0.5


def test_a_contended_measurement_is_made_again_and_the_quieter_one_counts(
    neighbours: type[_Quiet],
) -> None:
    neighbours.shares = (0.5, 0.02)
    figures = iter([1.0, 2.0])
    measured = alternate(lambda: next(figures), runs=1)
    assert (measured.ours, measured.others_cpu) == (2.0, 0.02)


def test_there_is_no_second_measurement_when_time_is_up(neighbours: type[_Quiet]) -> None:
    neighbours.shares = (0.5, 0.0)
    measured = alternate(lambda: 1.0, runs=1, until=0.0)
    assert measured.others_cpu == 0.5


def test_a_row_contended_twice_says_so(neighbours: type[_Quiet]) -> None:
    neighbours.shares = (0.5, 0.7)
    figures = iter([1.0, 2.0])
    measured = alternate(lambda: next(figures), runs=1)
    assert (measured.ours, measured.others_cpu) == (1.0, 0.5)
    row = Row(case="x", unit="steps/s", ours=1.0, others_cpu=0.5).as_json()
    assert "contended" in cells(row)[0]


def test_goals() -> None:
    def judged(goal: Goal, ours: float | None, ratio: Ratio | None = None) -> object:
        row = Row(ours=ours, ratio=ratio).judged(goal)
        return row.goal, row.holds

    assert judged(Goal(">=", 100), 100.0) == (">= 100", True)
    assert judged(Goal("<", 400), 413.0) == ("< 400", False)
    assert judged(Goal(">=", 2), None) == (">= 2", None)
    assert judged(Goal(">=", 2), 1.0, Ratio(3.0, 1.0, 4.0)) == (">= 2", True)


def test_a_row_has_the_keys_of_the_file_format() -> None:
    row = Row(case="x", unit="steps/s", ours=1.0, ratio=Ratio(2.0, 1.0, 3.0)).as_json()
    assert set(row) == ROW_KEYS
    assert row["ratio"] == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_the_machine_is_described() -> None:
    assert describe()["cores"] >= 1
    assert threads() >= 1
    assert versions()["numpy"] is not None
    with Neighbours() as neighbours:
        sum(range(10_000))
    assert 0.0 <= neighbours.share <= 1.0


def test_a_worker_answers_in_json() -> None:
    answer = run_worker("ours.kernels.step", {**_SMALL, "num_envs": 4}, threads=1)
    assert answer["steps_per_second"] > 0
    assert answer["observation_numbers"] == 4


_SMALL = {"name": "cartpole", "settings": {}, "threads": 1, "seconds": 0.01, "rows": 4}


def test_a_failed_worker_says_what_it_said() -> None:
    with pytest.raises(WorkerError, match="no_such_worker"):
        run_worker("no_such_worker", {})


def test_a_suite_writes_its_file_and_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(settings: SuiteOptions) -> list[Row]:
        raise WorkerError("the peer is not here")

    def works(settings: SuiteOptions) -> list[Row]:
        return [Row(case="works", unit="steps/s", ours=float(settings.runs))]

    monkeypatch.setattr(suites, "cases_of", lambda suite: {"fails": fails, "works": works})
    path = tmp_path / "deep" / "env.json"
    rows = run_suite("env", path=path)
    first, second = measurements.read(path)
    assert first["rows"] + second["rows"] == json.loads(json.dumps(rows))
    assert set(first) == {"case", "command", "commit", "machine", "versions", "rows"}
    assert [one["case"] for one in (first, second)] == ["fails", "works"]
    assert first["rows"][0]["ours"] is None
    assert "not measured" in first["rows"][0]["unit"]
    assert "the peer is not here" in capsys.readouterr().err


def test_a_case_that_is_measured_again_leaves_the_others_of_its_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(settings: SuiteOptions) -> list[Row]:
        return [Row(case=settings.case, unit="s", ours=float(settings.runs))]

    monkeypatch.setattr(suites, "cases_of", lambda suite: {"one": measured, "two": measured})
    monkeypatch.setattr(suites, "specs_of", lambda suite: {"one": {}, "two": {}})
    path = tmp_path / "env.json"
    run_suite("env", path=path)
    former = measurements.read(path)
    run_suite("env", path=path, only=["one"], full=True)
    first, second = measurements.read(path)
    assert first["rows"][0]["ours"] == 11.0 != former[0]["rows"][0]["ours"]
    assert second == former[1]
    assert measurements.find(path, "two") == (second, second["rows"][0])
    with pytest.raises(ConfigError, match="has no row three"):
        measurements.find(path, "three")


def test_suites_have_the_cases_that_are_asked_for() -> None:
    assert list(cases_of("env")) == [
        *("forex_vs_sb3", "paper_decision", "forex_bandwidth", "cartpole_vs_envpool"),
        *("cartpole_single", "scaling", "memory"),
    ]
    assert {"cheap_vs_async", "few_copies", "systems", "footprint"} < set(cases_of("vector"))
    assert "hockey_step" in cases_of("hockey")
    assert list(cases_of("train")) == [
        *("ppo_vs_sb3_default", "ppo_vs_sb3_tuned", "time_to_score"),
        *("population_16", "population_96"),
        *("ppo_lone", "ppo_vs_rlox", "train_peak"),
        *("warm_start", "cold_start", "jobs_four", "gym_defaults", "policy_load", "act_one"),
    ]


@pytest.mark.parametrize("package", ["ours", "suites", "peers"])
def test_what_measures_can_be_imported(package: str) -> None:
    """Workers run in their own processes, so a moved name would fail only at the next run."""
    folder = importlib.import_module(f"benchmarks.{package}")
    for module in pkgutil.iter_modules(folder.__path__):
        try:
            importlib.import_module(f"{folder.__name__}.{module.name}")
        except ModuleNotFoundError as error:
            assert package == "peers" and error.name in {"stable_baselines3", "rlox", "jax"}


def worker_of(name: str) -> ast.FunctionDef:
    """Parse a worker's function; most of them need peers that are not installed."""
    *module, function = name.split(".")
    tree = ast.parse((ROOT / "benchmarks" / "/".join(module)).with_suffix(".py").read_text())
    found = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == function]
    assert found, name
    return found[0]


def test_workers_that_suites_ask_for_exist() -> None:
    asked: set[str] = set()
    for file in (ROOT / "benchmarks").rglob("*.py"):
        asked |= set(re.findall(r'"((?:(?:ours|peers)\.\w+|layers)\.\w+)"', file.read_text()))
    assert len(asked) > 15
    for name in asked:
        worker_of(name)


def sides() -> list[dict[str, Any]]:
    """Return the sides of all declared rows."""
    known = [one for suite in SUITES for one in specs_of(suite).values()]
    specs = [one for one in known if isinstance(one, dict)]
    rows = [row for spec in specs for row in spec.get("rows", [spec])]
    found = [row[side] for row in rows for side in ("ours", "peer") if side in row]
    return [side for side in found if "worker" in side]


def test_workers_take_what_declared_sides_ask_of_them() -> None:
    assert len(sides()) > 40
    for side in sides():
        arguments = worker_of(side["worker"]).args
        names = [one.arg for one in arguments.args]
        needed = set(names[: len(names) - len(arguments.defaults)])
        best_of = side.get("best_of", [{}])
        choices = [dict.fromkeys(best_of)] if isinstance(best_of, dict) else best_of
        for choice in choices:
            given = {*side.get("asked", {}), *side.get("look", {}), *choice} - {"called"}
            given |= set() if side.get("untimed") else {"seconds"}
            assert needed <= given, (side, needed - given)
            assert given <= set(names) or arguments.kwarg is not None, (side, given - set(names))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean `train`"):
        cases_of("trian")
    with pytest.raises(ConfigError, match="no case `nothing`"):
        run_suite("env", only=["nothing"])


def test_the_command_refuses_in_one_paragraph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, told in (
        (["trian"], "did you mean `train`"),
        (["env", "--case", "nothing"], "no case `nothing`"),
        (["env", "--hours", "1"], "Remove it"),
        (["env", "--json", str(tmp_path)], "may not be written"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        # As in a process of its own, which has not imported it.
        monkeypatch.delitem(sys.modules, "benchmarks.__main__", raising=False)
        with pytest.raises(SystemExit) as left:
            runpy.run_module("benchmarks", run_name="__main__")
        said = capsys.readouterr().err
        assert left.value.code == 2 and told in said and said.count("\n") == 1, said


def test_another_checkout_takes_the_peers_place(
    neighbours: type[_Quiet], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    seen: list[str | None] = []
    figures = iter([4.0, 2.0, 2.0, 4.0])

    def ours() -> float:
        seen.append(os.environ.get("PYTHONPATH"))
        return next(figures)

    options = SuiteOptions(case="x", runs=2, against=tmp_path)
    spec = {"unit": "steps/s", "goal": ">= 9", "peer_name": "{nobody}"}
    row = options.told(options.measure(ours, None, spec), spec)
    there = os.pathsep.join([str(tmp_path), str(tmp_path / "src")])
    assert seen == [None, there, there, None]
    assert (row.peer_name, row.goal) == (f"slipstream of {tmp_path}", None)
    assert row.ratio == Ratio(2.0, 2.0, 2.0)

    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/__init__.py").touch()
    (tmp_path / "benchmarks/worker.py").write_text('print(\'{"place": "there"}\')')
    with elsewhere(tmp_path):
        assert run_worker("ours.kernels.step", {}) == {"place": "there"}
    assert "PYTHONPATH" not in os.environ


def test_what_can_be_compared_with_another_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    cases = dict.fromkeys(cases_of("vector"), lambda settings: ())
    monkeypatch.setattr(suites, "cases_of", lambda suite: cases)
    run_suite("vector", against=ROOT, say=said.append)
    assert {"cheap_vs_async", "face_cost", "infos"} <= set(said)
    assert not {"systems", "few_copies", "footprint", "start_stop"} & set(said)
    with pytest.raises(ConfigError, match="requires cases with alternating runs"):
        run_suite("vector", only=["systems"], against=ROOT)


def test_the_page_is_filled_from_results(tmp_path: Path) -> None:
    row = Row(
        case="cartpole_single",
        unit="steps/s",
        ours=2.5e5,
        peer=1e5,
        peer_name="Gymnasium",
        ratio=Ratio(2.5, 2.4, 2.6),
    ).judged(Goal(">=", 2))
    machine = {"processor": "P", "cores": 2, "memory_gib": 8.0, "python": "3.11.7", "date": "today"}
    measured = {"case": "cartpole_single", "machine": machine, "rows": [row.as_json()]}
    measured["command"] = "python -m benchmarks env"
    later = {**measured, "machine": machine | {"date": "later"}}
    measurements.write(tmp_path / "env.json", "env", measured)
    measurements.write(tmp_path / "env.json", "env", later | {"case": "scaling"})
    page = (
        "# P\n<!-- benchmarks/results/env.json -->\nstale\n<!-- end -->\nrest\n"
        "<!-- benchmarks/results/env.json scaling -->\n<!-- end -->\n"
        "<!-- benchmarks/results/train.json -->\n<!-- end -->\n"
    )
    text = render(page, tmp_path)
    assert "stale" not in text and "rest" in text
    row = "250 k; peer 100 k Gymnasium; ratio 2.5 (2.4 to 2.6); goal >= 2: met."
    assert row in " ".join(text.split())
    assert (text.count("; today:"), text.count("; later:")) == (1, 2)
    assert "Not measured yet." in text
    assert render(text, tmp_path) == text
    assert markdown(measured["rows"]).startswith("- **")
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_study_takes_is_its_steps_by_the_measured_speed(tmp_path: Path) -> None:
    page = "<!-- what a study takes -->\nstale\n<!-- end -->\n"
    assert "Not measured yet." in render(page, tmp_path)
    for file, row, speed in (
        ("study", "study_widths 64x64x64", 1e5),
        ("hockey", "hockey_dqn_large", 100.0),
    ):
        case = row.split()[0]
        rows = [Row(row, "steps/s", speed).as_json()]
        measurements.write(tmp_path / f"{file}.json", file, {"case": case, "rows": rows})
    text = render(page, tmp_path)
    assert "| network | steps/s | 100 x 1 x 100,000 | 100 x 6 x 100,000 |" in text
    assert "| ppo, 64x64x64 | 100,000 | 1.7 min | 10 min | 50 min | 4.5 h |" in text
    assert "| dqn, 256x512x256 | 100 | 28 h | 6.94 days |" in text


def test_tables_of_the_docs_are_those_of_results() -> None:
    page = (ROOT / "docs/reference/performance.md").read_text(encoding="utf-8")
    assert "<!-- benchmarks/results/" in page
    assert render(page, ROOT / "benchmarks/results") == page, "run `make docs`"


def test_a_pass_is_written_down(tmp_path: Path) -> None:
    record_test_run(tmp_path / "test-all.json", "make test-all")
    written = json.loads((tmp_path / "test-all.json").read_text())
    assert written["command"] == "make test-all"
    assert written["passed"].endswith("Z")
    assert written["commit"] == commit()


def test_a_result_names_its_commit_and_whether_the_sources_differ_from_it() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    assert (commit() or "").partition("-")[0] == head  # both empty outside a checkout
    measured = {"machine": describe() | {"date": "2026-01-31"}}
    commits = (None, "0123456789", "0123456789-dirty")
    told = [_stamp(measured | {"commit": one}) for one in commits]
    assert [one.partition("2026-01-31")[2] for one in told] == [
        *("", " at 0123456", " at 0123456-dirty")
    ]
