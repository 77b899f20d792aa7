"""What a run or a study took of its machine, drawn on its page."""

from __future__ import annotations

import numpy as np
import pytest
import study_world

from slipstream import api
from slipstream.core.storage import csv_table, resource_monitor
from slipstream.core.storage.resource_monitor import COLUMNS, ResourceTable, ResourceUsage
from slipstream.report import plot_style
from slipstream.report.history import resource_columns, resource_pictures
from slipstream.report.run_evaluation import evaluate_run
from slipstream.report.run_page import build_page
from slipstream.report.study.study_page import study_page
from slipstream.report.study.study_view import read_view


@pytest.fixture(autouse=True)
def lively(monkeypatch):
    """A new look whenever one is asked for; small pictures."""
    monkeypatch.setattr(resource_monitor, "_SECONDS", 0.0)
    monkeypatch.setattr(plot_style, "DPI", 40)


def names(page):
    return [picture.name for picture in page.pictures]


def test_rows_without_a_look_and_second_members_are_left_out():
    found = resource_columns(
        {
            "member": [0.0, 1.0, 0.0, 1.0, 0.0, 1.0],
            "wall": [1.0, 1.0, 2.0, 2.0, 12.0, 12.0],
            "cpu_percent": [90.0, 90.0, None, None, 180.0, "odd"],
            "memory_gib": [1.0, 1.0, None, None, 1.5, 1.5],
        }
    )
    assert {name: values.tolist() for name, values in found.items()} == {
        "wall": [1.0, 12.0],
        "cpu_percent": [90.0, 180.0],
        "memory_gib": [1.0, 1.5],
    }
    assert resource_columns({"wall": [1.0], "cpu_percent": [3.0], "memory_gib": [1.0]}) == {}
    assert resource_columns({"wall": [1.0, 2.0]}) == {} and resource_pictures({}) == []


def test_cards_have_panels_of_their_own(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "slipstream.report.history.make_picture", lambda *words: drawn.append(words[2])
    )
    resource_pictures({"wall": np.arange(3.0), **{name: np.ones(3) for name in COLUMNS}})
    assert [axes.get_ylabel() for axes in drawn[0].axes][2:] == ["GPU (%)", "VRAM (GiB)", "GPU (W)"]


def test_a_runs_page_shows_it(tmp_path):
    run = api.train("cartpole", total_timesteps=16_000, out=tmp_path / "run", report=False, log=str)
    found = evaluate_run(run)
    assert len(found.resources["wall"]) > 1 and (found.resources["memory_gib"] > 0.0).all()
    assert "machine" in names(build_page(found))


@pytest.mark.slow
def test_a_studys_page_shows_it_over_all_sessions(tmp_path):
    folder = study_world.run_study(tmp_path / "one", trials=8, market=None)
    walls = csv_table.read_table(folder.machine)["wall"]
    later = ResourceTable(folder.machine, print)  # of a second session
    later.add(seen := ResourceUsage(120.0, 2**30), 5.0, phase="confirmation")
    later.add(seen, 6.0, phase="confirmation")  # nothing new
    both = csv_table.read_table(folder.machine)
    assert both["wall"] == [*walls, pytest.approx(walls[-1] + 5.0)] and len(walls) > 1
    assert both["phase"][0] == "search" and both["memory_gib"][-1] == 1.0
    assert "machine" in names(study_page(read_view(folder)))
    folder.machine.write_bytes(b"\x00 no table")
    assert "machine" not in names(study_page(read_view(folder)))
