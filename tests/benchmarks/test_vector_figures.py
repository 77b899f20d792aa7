"""Pictures of the vector suite."""

from benchmarks import results
from benchmarks.page import illustrate, throughput

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
    results.write(tmp_path / "vector.json", "vector", {"case": "systems", "rows": SYSTEMS})
    page = "".join(
        f"<!-- figure results/{file}.json {name} -->\nstale\n<!-- end -->\n"
        for file, name in (
            ("vector", "throughput"),
            ("no", "throughput"),
        )
    )
    text = illustrate(page, tmp_path, tmp_path / "figures")
    assert "stale" not in text and text.count("Not measured yet.") == 1
    assert "](figures/vector-throughput.png)" in text
    assert (tmp_path / "figures/vector-throughput.png").stat().st_size > 5_000
    assert illustrate(text, tmp_path, tmp_path / "figures") == text
