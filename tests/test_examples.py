"""Every example runs, at its smallest setting."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
KERNELS = sorted((FOLDER / "kernels").glob("*.py"))
SMALLEST = {"07_planted_forex": ["3072", "3000"]}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), *SMALLEST.get(path.stem, ["2048"])])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_examples_are_short_and_numbered() -> None:
    assert EXAMPLES
    for number, path in enumerate(EXAMPLES, 1):
        assert path.name.startswith(f"{number:02d}_")
    for path in (*EXAMPLES, *KERNELS):
        assert len(path.read_text().splitlines()) < 60
