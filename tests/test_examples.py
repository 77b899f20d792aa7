"""Every example runs, at its smallest setting."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
KERNELS = sorted((FOLDER / "kernels").glob("*.py"))
SMALLEST = {
    "06_gymnasium": ["1024"],
    "07_synthetic_forex": ["3072", "3000"],
    "10_adapters": ["40000"],
}
# Parts of lines whose words depend on the length of training.
DEPENDS = {
    "01_train_cartpole": ("push", "steps in"),
    "08_study": ("winner", "final seeds", "Policy", "gamma"),
}
OLDER = sorted((FOLDER / "older_systems").glob("*.*"))
SHORT = {
    "hockey.py": ["2"],
    "intraday.py": ["2048"],
    "service.py": ["2048"],
    "crypto.sh": [
        *("--total-timesteps", "3_072", "--set", "study.confirmation={top: 1, seeds: 1}"),
        *("--set", "study.final_seeds=1", "--no-report"),
    ],
}


def mask_numbers(line: str) -> str:
    """The words of a line; each number is #, whatever its length, and each path is /."""
    line = re.sub(r"/\S*", "/", line)
    return " ".join(re.sub(r"[+-]?\d[\d.,]*(e[+-]\d+)?", "#", line).split())


def read_output(path: Path) -> list[str]:
    """Lines of the block `Output` in an example's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    found = re.search(r"\n\nOutput(?: \(shortened\))?:\n\n((?:    .*\n?)+)$", text)
    return [line.strip() for line in found[1].splitlines()] if found else []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_what_its_head_shows(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), *SMALLEST.get(path.stem, ["2048"])])
    runpy.run_path(str(path), run_name="__main__")
    # Shorter training gives other numbers, not other lines.
    printed = [mask_numbers(line) for line in capsys.readouterr().out.splitlines()]
    shown = [line for line in read_output(path) if line != "..."]
    assert shown
    for line in shown:
        words = mask_numbers(line.removesuffix(" ..."))
        if not any(word in line for word in DEPENDS.get(path.stem, ())):
            same = [one for one in printed if one.startswith(words)]
            assert same if line.endswith(" ...") else words in same, line


@pytest.mark.slow
@pytest.mark.parametrize("path", OLDER, ids=lambda path: path.name)
def test_examples_of_older_systems_run(path: Path, tmp_path: Path) -> None:
    """By themselves, as those who come from these systems run them; no prices are needed."""
    runner = {".py": sys.executable, ".sh": "sh"}.get(path.suffix)
    if runner is None:
        pytest.skip("a program beside it reads this file")
    tools = str(Path(sys.executable).parent)
    environ = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "BARS": "9000", "TRIALS": "2"}
    done = subprocess.run(
        [runner, str(path), *SHORT.get(path.name, [])],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    if path.name == "crypto.sh":
        assert re.search(r"Forecast: search .*(s|min) \(2 trials x 6 folds", said), said
        assert "Forecast of the same search with `--space cappuccino`" in said


def test_examples_are_short_and_numbered() -> None:
    assert EXAMPLES
    for number, path in enumerate(EXAMPLES, 1):
        assert path.name.startswith(f"{number:02d}_")
    for path in (*EXAMPLES, *KERNELS, *OLDER):
        assert len(path.read_text().splitlines()) < 70
