"""Pictures of the vector suite, and one small training on two layers."""

import json

from slipstream.bench.page import illustrate
from slipstream.bench.suites import vector_convergence
from slipstream.bench.suites.vector_convergence import thinned
from slipstream.bench.vector_figures import convergence, throughput
from slipstream.bench.worker import run_worker

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
CURVE = {"system": "slipstream serial", "seconds": [1.0, 2.0], "scores": [9.0, 20.0]}
CONVERGENCE = {"case": "convergence", "cells": [CURVE, {**CURVE, "system": "EnvPool"}]}


def test_lines_are_those_of_the_rows():
    (axes,) = throughput(SYSTEMS).axes
    (line,) = axes.get_lines()  # what is not installed has none
    assert line.get_label() == "slipstream auto"
    assert line.get_xydata().tolist() == [[1.0, 900.0], [4.0, 3600.0]]
    (axes,) = convergence([CONVERGENCE]).axes
    assert [line.get_label() for line in axes.get_lines()] == ["slipstream serial", "EnvPool"]
    assert axes.get_lines()[0].get_ydata().tolist() == [9.0, 20.0]
    assert throughput([CONVERGENCE]) is None and convergence(SYSTEMS) is None


def test_a_page_gets_its_pictures(tmp_path):
    (tmp_path / "vector.json").write_text(json.dumps({"rows": SYSTEMS}))
    page = "".join(
        f"<!-- figure results/{file}.json {name} -->\nstale\n<!-- end -->\n"
        for file, name in (
            ("vector", "throughput"),
            ("vector", "convergence"),
            ("no", "throughput"),
        )
    )
    text = illustrate(page, tmp_path, tmp_path / "figures")
    assert "stale" not in text and text.count("Not measured yet.") == 2
    assert "](figures/vector-throughput.png)" in text
    assert (tmp_path / "figures/vector-throughput.png").stat().st_size > 5_000
    assert illustrate(text, tmp_path, tmp_path / "figures") == text


def test_one_agent_on_our_layer_and_on_another():
    asked = {"env": "CartPole-v1", "num_envs": 4, "steps": 2048, "seed": 0, "score": 1e9}
    for layer in ("serial", "gym_sync"):
        found = run_worker("ours.vector_convergence", {"layer": layer, **asked})
        assert not found["reached"] and found["steps"][-1] == 2048
        assert len(found["scores"]) == len(found["seconds"]) and min(found["scores"]) > 5


def test_the_fastest_layer_is_the_one_that_reaches_the_score_soonest(monkeypatch):
    seconds = {"serial": 3.0, "process": 5.0, "compiled": 1.0, "gym_sync": 4.0, "gym_async": 9.0}

    def answer(module, asked, **_):
        layer = asked["layer"]
        curve = {
            "seconds": [1.0, seconds.get(layer, 20.0)],
            "steps": [1, 2],
            "scores": [1.0, 400.0],
        }
        return {**curve, "reached": layer != "compiled"}

    monkeypatch.setattr(vector_convergence, "run_worker", answer)
    (row,) = vector_convergence.convergence(vector_convergence.SuiteOptions())
    assert (row.ours, row.peer) == (3.0, 4.0)
    assert "slipstream serial" in row.unit and "Gymnasium SyncVectorEnv" in row.peer_name
    assert len(row.cells) == 8 and thinned(3) == [0, 1, 2] and thinned(601)[-1] == 600
