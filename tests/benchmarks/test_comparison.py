"""Pictures of README.md: the chart of the results, and the command of the report's."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import comparison, measurements
from benchmarks.report_picture import HEIGHT, WIDTH, take_picture
from slipstream.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PAIRS = [pair for _, pairs in comparison.ROWS for pair in pairs]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_chart_is_that_of_the_results():
    """Compare with the file that `make docs` writes."""
    found = (ROOT / "docs/figures/comparison.svg").read_text("utf-8")
    assert found == comparison.comparison(RESULTS)


def test_bars_are_the_measured_ratios():
    drawing = ElementTree.fromstring(comparison.comparison(RESULTS))
    bars = [one for one in drawing.iter(f"{SVG}rect") if one.get("height") == "16"]
    labels = [text.text for text in drawing.iter(f"{SVG}text") if re.match(r"\d.*x  ", text.text)]
    one = comparison._place(1.0)
    assert len(bars) == len(labels) == len(PAIRS)
    for bar, label, pair in zip(bars, labels, PAIRS, strict=True):
        _, row = measurements.find(RESULTS / f"{pair.file}.json", pair.case)
        ratio = row["ratio"]["median"]
        left, width = float(bar.get("x")), float(bar.get("width"))
        assert left == pytest.approx(min(one, comparison._place(ratio)), abs=0.1)
        assert width == pytest.approx(abs(comparison._place(ratio) - one), abs=0.1)
        number, _, task = label.partition("x  ")
        assert math.isclose(float(number), ratio, rel_tol=0.05) and task == pair.task
        assert {"sb3": "SB3", "jax": "jax"}[bar.get("class")] in row["peer_name"]
        assert comparison._LOW < row["ratio"]["min"] <= row["ratio"]["max"] < comparison._HIGH
        # What the notes below the chart state.
        assert "equal work" in row["unit"] or pair.file == "study"


def test_a_row_that_was_not_measured_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no row ppo_vs_sb3_tuned"):
        comparison.comparison(tmp_path)


@pytest.mark.browser
def test_a_picture_of_a_report_is_taken(tmp_path):
    pytest.importorskip("playwright", reason="playwright is not installed")
    with pytest.raises(ConfigError, match="is not a file"):
        take_picture(tmp_path / "none.html", tmp_path / "none.png")
    if shutil.which("chromium") is None and shutil.which("chromium-browser") is None:
        pytest.skip("there is no Chromium on this machine")
    from PIL import Image

    report = tmp_path / "report.html"
    report.write_text("<body style='background: #0072b2'>text</body>")
    take_picture(report, tmp_path / "report.png")
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.size == (WIDTH, HEIGHT)
        assert picture.convert("RGB").getpixel((WIDTH - 1, HEIGHT - 1)) == (0x00, 0x72, 0xB2)


@pytest.mark.parametrize("name", ["comparison.svg", "logo.svg"])
def test_drawings_have_both_color_schemes_and_load_nothing(name):
    text = (ROOT / "docs/figures" / name).read_text("utf-8")
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?://[^\"]+|url\(|href", text) == ["http://www.w3.org/2000/svg"]
