"""Races and pictures of the vector suite."""

from dataclasses import replace

import pytest

from benchmarks import measurements
from benchmarks.page import illustrate, throughput
from benchmarks.row import Ratio, Row
from benchmarks.suite import QUICK, SuiteOptions, specs_of
from benchmarks.suites import vector

SYSTEMS = [
    {
        "case": "systems",
        "cells": [
            {"system": name, "env": "1 ms", "copies": copies, "steps_per_second": rate}
            for name, rate in (("slipstream auto", 900.0 * copies), ("EnvPool", None))
        ],
    }
    for copies in (1, 4)
]


def test_lines_are_those_of_the_rows():
    (axes,) = throughput(SYSTEMS).axes
    (line,) = axes.get_lines()  # what is not installed has none
    assert line.get_label() == "slipstream auto"
    assert line.get_xydata().tolist() == [[1.0, 900.0], [4.0, 3600.0]]


def test_a_page_gets_its_pictures(tmp_path):
    measurements.write(tmp_path / "vector.json", "vector", {"case": "systems", "rows": SYSTEMS})
    page = "".join(
        f"<!-- figure benchmarks/results/{file}.json {name} -->\nstale\n<!-- end -->\n"
        for file, name in (
            ("vector", "throughput"),
            ("no", "throughput"),
        )
    )
    text = illustrate(page, tmp_path, tmp_path / "figures")
    assert "stale" not in text and text.count("Not measured yet.") == 1
    assert "](../figures/vector-throughput.png)" in text
    assert (tmp_path / "figures/vector-throughput.png").stat().st_size > 5_000
    assert illustrate(text, tmp_path, tmp_path / "figures") == text


def test_one_learner_races_on_each_kind_of_envs(monkeypatch):
    seconds = {"ours": 1.0, "DummyVecEnv": 2.0, "SubprocVecEnv": 3.0, "serial": 4.0, "process": 5.0}

    def answer(worker, asked, **_):
        if worker == "peers.sb3.learn":
            vector, game = asked["vector"], asked["game"]
        else:
            vector = asked["config"]["training"].get("backend", "ours")
            game = asked["config"]["env"]["name"].removeprefix("gym:")
        assert game == ("cartpole" if vector == "ours" else "CartPole-v1")
        return {"seconds": seconds[vector], "reached": 1.0}

    monkeypatch.setattr(vector, "run_worker", answer)
    spec = specs_of("vector")["to_score"]
    rows = list(vector.to_score(replace(QUICK, case="to_score", spec=spec)))
    assert [row.ratio.median for row in rows] == [2.0, 3.0, 4.0, 5.0]
    assert "SB3's PPO" in rows[0].unit and rows[0].peer_name.endswith("envs, DummyVecEnv")


@pytest.mark.parametrize("case", ["few_copies", "systems", "heavy"])
def test_rows_of_tables_fill_their_texts(monkeypatch, case):
    spec = specs_of("vector")[case]
    options = SuiteOptions(runs=1, seconds=0.1, full=False, case=case, spec=spec)
    measured = Row(ours=1.0, peer=2.0, ratio=Ratio.of([0.5]))
    table = [("CartPole", 2, {spec["systems"][0]: [1.0]}, measured, "EnvPool")]
    monkeypatch.setattr(vector, "_tables", lambda settings: table)
    (row,) = getattr(vector, case)(options)
    assert "CartPole" in row.unit and "2 envs" in row.unit
    assert row.cells[0]["copies"] == 2
