"""Code in the documents runs, in order, in one folder a page; links and names of files exist."""

from __future__ import annotations

import io
import re
import tokenize
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import slipstream
from slipstream.core.storage import yaml_file
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.training.settings.config import resolve

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/tutorials/first-training.md",
    "docs/tutorials/your-environment.md",
    "docs/guides/custom-environment.md",
    "docs/guides/custom-market.md",
    "docs/guides/custom-features.md",
    "docs/guides/custom-agent.md",
    "docs/guides/callbacks.md",
    "docs/guides/studies.md",
    "docs/guides/portfolio.md",
    "docs/guides/worker-processes.md",
    "docs/guides/older-systems.md",
)
ALL_PAGES = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
BLOCK = re.compile(r"(?:<!-- file: (?P<file>[\w.]+) -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)


LONG = (
    "docs/guides/studies.md",
    "docs/guides/custom-environment.md",
    "docs/guides/custom-market.md",
    "docs/guides/worker-processes.md",
)


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow) if p in LONG else p for p in PAGES]
)
def test_python_blocks_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__docs__"}
    # As written, but for the length of training: the first iterations show that it runs.
    text = re.sub(
        r"total_timesteps=[\d_]+", "total_timesteps=2048, num_envs=8", (ROOT / page).read_text()
    )
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["code"])
        else:
            exec(compile(block["code"], page, "exec"), names)


def test_the_kernel_of_the_readme_trains(tmp_path: Path) -> None:
    blocks = (block["code"] for block in BLOCK.finditer((ROOT / "README.md").read_text()))
    path = tmp_path / "corridor.py"
    path.write_text(next(code for code in blocks if "STATE" in code))
    check_environment(load_kernel(str(path)), {})
    run = slipstream.train(str(path), total_timesteps=30_000, out=tmp_path / "run", report=False)
    assert slipstream.evaluate(run).mean_return > 0.75  # the best policy: 0.84 from the mean start


def test_the_algorithm_of_the_docs_is_the_tested_one() -> None:
    text = (ROOT / "docs/guides/custom-agent.md").read_text()
    shown = next(block["code"] for block in BLOCK.finditer(text) if block["file"] == "reinforce.py")
    assert shown == (ROOT / "tests/engine/samples/reinforce.py").read_text()


def test_no_two_studies_of_the_docs_and_examples_share_a_name() -> None:
    """Whoever tries one after the other would be told that the second is another study."""
    places = [ROOT / page for page in ALL_PAGES] + sorted((ROOT / "examples").glob("*.py"))
    found: dict[str, Path] = {}
    for place in places:
        for name in set(re.findall(r"study_name=\"([^\"]+)\"", place.read_text())):
            assert name not in found, f"{name} is in {found.get(name)} and in {place}"
            found[name] = place
    assert len(found) >= 2


def test_what_the_code_refers_to_can_be_opened_by_everybody() -> None:
    pages = ("market-rules", "statistics")
    page = "\n".join((ROOT / f"docs/explanation/{name}.md").read_text() for name in pages)
    sections = dict(
        re.findall(r"^## (\d+)\. .*?\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    )
    assert list(sections) == [str(k) for k in range(1, 17)]
    assert all(re.search(r"^Held by `tests/", text, re.MULTILINE) for text in sections.values())
    referred: set[str] = set()
    files = [one for part in ("src", "tests", "examples") for one in (ROOT / part).rglob("*.py")]
    for file in files:
        text = file.read_text(encoding="utf-8")
        for private in ("rading" + "-rules", "DESIGN" + ".md"):
            assert private not in text, f"{file} refers to {private}"
        for numbers in re.findall(
            r"(?:market-rules|statistics)\.md,\s+sections? (\d+(?: (?:and|to) \d+)?)", text
        ):
            referred |= set(re.findall(r"\d+", numbers))
    assert referred and referred <= set(sections), referred - set(sections)


def test_players_are_counted_from_zero_on_every_page() -> None:
    """As rows, seats, `observe`'s player and PettingZoo's agents are."""
    games = (ROOT / "src/slipstream/games").rglob("*.py")
    for place in (*(ROOT / "docs").rglob("*.md"), *games, ROOT / "src/slipstream/kernels/spec.py"):
        assert not re.search(r"player (2|two)\b", place.read_text(), re.IGNORECASE), place


@pytest.mark.parametrize("page", ALL_PAGES)
def test_links_and_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target
    # Paths of the source, written `training/trainer.py`, and of the tests.
    for path in re.findall(r"`((?:tests/)?[a-z_]+/[\w/]*\.(?:py|yaml))`", text):
        at_home = [ROOT / path, ROOT / "src/slipstream" / path]
        assert any(place.exists() for place in at_home), path


# Names of files that a docstring or comment makes up, or that are another project's.
EXAMPLES = {"my_agent.py", "my_env.py", "environment_Alpaca.py"}


def test_files_that_the_code_names_exist() -> None:
    """Of `a.py` and `a/b.py` in docstrings and comments, which readers follow."""
    folders = ("src/slipstream", "tests", "examples", "benchmarks")
    there = {f"/{file.relative_to(ROOT)}" for one in folders for file in (ROOT / one).rglob("*.py")}
    found = set[str]()
    for file in (ROOT / "src").rglob("*.py"):
        for token in tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                for name in re.findall(r"`{1,2}([\w/.-]+\.py)`", token.string):
                    found.add(name)
                    known = any(path.endswith(f"/{name}") for path in there)
                    assert known or name in EXAMPLES, f"{file}:{token.start[0]} names {name}"
    assert len(found) > 20 and found >= EXAMPLES


def test_the_portfolio_page_has_the_defaults_of_unit_orders() -> None:
    text = (ROOT / "docs/reference/portfolio.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^|]*)` \| `([^|]*)` \|$", text, re.MULTILINE)
    found = {
        orders: {row[0]: row[k] for row in rows} for k, orders in ((1, "weights"), (2, "units"))
    }
    defaults = {
        orders: load_kernel("portfolio")
        .configure({"data": {"folder": "."}, "orders": orders})
        .model_dump(mode="json")
        for orders in found
    }
    differ = {key for key, value in defaults["weights"].items() if value != defaults["units"][key]}
    assert {row[0] for row in rows} == differ - {"orders"}
    for orders, cells in found.items():
        for key, cell in cells.items():
            assert yaml_file.parse(cell, key) == defaults[orders][key], key


FROM_SB3 = "docs/guides/from-sb3.md"
CODE = re.compile(r"`([^`]+)`")
# Calls that need an optional library.
EXTRA = {".export(": "onnx", ".to_sb3(": "stable_baselines3"}
# First words of cells on the right that are no code.
WORDS = ("Not", "Every", "Selected", "Shown")


def rows_of(page: str) -> list[tuple[str, str]]:
    """Both columns of the tables of a page."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert all(len(row) == 2 for row in cells), [row for row in cells if len(row) != 2]
    return [(left, right) for left, right in cells if left != "SB3"]


@pytest.mark.slow
def test_calls_beside_those_of_stable_baselines3_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that are code run in their order; a mapping is a config's; the others are words."""
    monkeypatch.chdir(tmp_path)
    whole = slipstream.train
    small = {"total_timesteps": 1_536, "num_envs": 8, "report": False}
    monkeypatch.setattr(slipstream, "train", lambda *given, **named: whole(*given, **named | small))
    (block,) = BLOCK.finditer((ROOT / FROM_SB3).read_text())
    names: dict[str, Any] = {}
    exec(block["code"], names)
    ran = configs = commands = 0
    for left, right in rows_of(FROM_SB3):
        assert CODE.search(left) or left[0].islower(), left
        code = CODE.fullmatch(right)
        if code is None:  # what is not there, or needs no call
            assert right.split()[0] in WORDS or right.startswith("`gymnasium.wrappers:"), right
        elif code[1].startswith("{"):
            resolve("gym:CartPole-v1", eval(code[1], names))
            configs += 1
        elif code[1].startswith("slipstream "):  # tests/interfaces/cli/test_documented_commands.py
            commands += 1
        elif any(part in code[1] and not find_spec(name) for part, name in EXTRA.items()):
            continue
        else:
            exec(code[1], names)
            ran += 1
    assert ran >= 30 and configs >= 25 and commands >= 3
    names["env"].close()
