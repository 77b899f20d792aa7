"""The comparison of pruning rules: by hand on a small ledger, and what docs/rules.md says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from recorded_study import record

from slipstream.bench.ours.study_replay import replay
from slipstream.bench.pruning_rules import RULES, behind, compare, main, table
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.search.rungs import CHOSEN, RECENT, Reached

ROOT = Path(__file__).parents[2]


def reached(scores: list[float], finished: list[bool] | None = None) -> Reached:
    done = np.zeros(len(scores), np.bool_) if finished is None else np.array(finished)
    return Reached(np.array(scores, np.float64), done)


def test_rules_by_hand() -> None:
    earlier = reached([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [False, False, False, True, True, True])
    assert behind(1 / 2)(3.4, earlier) == "" and behind(1 / 2)(2.9, earlier)
    assert behind(1 / 3)(4.9, earlier) == "" and behind(1 / 3)(3.9, earlier)
    assert behind(1 / 2, 2)(5.5, earlier) == "" and behind(1 / 2, 2)(4.5, earlier)
    assert behind(1 / 2, finished=True)(4.5, earlier) and not behind(1 / 2)(4.5, earlier)
    assert not behind(1 / 2)(0.0, reached([]))


def test_all_rules_are_compared_over_a_recorded_ledger(tmp_path: Path) -> None:
    first = [float(k) for k in range(16)]
    later = [value for k in range(8) for value in (20.0 + k, 0.5)]
    folder = StudyFolder(tmp_path / "study")
    record(folder, [(score, score) for score in first + later])
    main(["compare", str(folder.path), "--json", str(tmp_path / "out.json")])
    told = json.loads((tmp_path / "out.json").read_text())
    (study,) = told["studies"]
    assert study["trials"] == 32 and str(tmp_path) not in json.dumps(told)
    rows = {row["rule"]: row for row in study["rules"]}
    assert set(rows) == set(RULES)
    none, half = rows["behind in every fold only"], rows["lower half of all earlier"]
    # Eight stop after a third of their iterations: (24 x 3 + 8) / (32 x 3).
    assert half["stopped"] == 8 and half["iterations"] == pytest.approx(80 / 96)
    assert none["iterations"] >= half["iterations"] and half["top_left"] == 5
    assert half["regret"] == 0.0


def test_a_late_bloomer_is_lost_and_counted(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    record(folder, [*((float(k), float(k)) for k in range(16)), (1.5, 99.0), (30.0, 30.0)])
    found = replay(folder.path, behind(1 / 2))
    assert (found.stopped, found.top_left, found.candidates_left) == (1, 4, 9)
    assert found.regret == pytest.approx(69.0)


def test_the_rule_in_force_is_one_of_those_compared() -> None:
    mine = RULES[f"lower half of the last {RECENT}"]
    random = np.random.default_rng(0)
    for _ in range(200):
        earlier = reached(random.normal(size=int(random.integers(0, 150))).tolist())
        score = float(random.normal())
        assert bool(CHOSEN(score, earlier)) == bool(mine(score, earlier))


def shown_and_recorded(name: str) -> tuple[str, str]:
    """The page's table of a results file, and the one that it would make."""
    page = (ROOT / "docs/rules.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- results/{name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert found is not None
    return found[1].strip(), table(json.loads((ROOT / "results" / name).read_text())["studies"])


def test_the_page_shows_the_recorded_comparison() -> None:
    shown, recorded = shown_and_recorded("pruning-rules.json")
    assert shown == recorded
    assert compare([]) == []


def test_the_page_shows_some_rules_on_real_prices() -> None:
    shown, recorded = shown_and_recorded("pruning-real.json")
    lines = shown.splitlines()
    assert len(lines) > 4 and set(lines) <= set(recorded.splitlines())
