"""A test that a missing package skips fails in `make test-all`; markers name what tests need."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PEERS = {"stable_baselines3", "envpool", "elegantrl", "pettingzoo", "minigrid", "ale_py", "skfolio"}
MARKERS = {**dict.fromkeys(PEERS, "peers"), "playwright": "browser", "ray": "ray"}
SKIPS = """
import pytest

def test_inside():
    pytest.importorskip("nobody_has_this", reason="pip install nobody")

def test_machine():
    pytest.skip("only Linux gives orphans away")

def test_elsewhere():
    pytest.skip("the original environment is not installed (docs/guides/hockey.md says how)")
"""
WHOLE_FILE = 'import pytest\npytest.importorskip("nobody_has_this")\n'


@pytest.mark.slow
def test_a_missing_package_fails_where_all_are_asked_for(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_skips.py").write_text(SKIPS)
    (tmp_path / "test_whole_file.py").write_text(WHOLE_FILE)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "4 skipped" in run().stdout
    told = run("--all-packages", "-n", "2")
    assert told.returncode == 1 and "2 skipped" in told.stdout
    assert "test_skips.py::test_inside: Skipped: pip install nobody" in told.stdout
    assert "could not import 'nobody_has_this'" in told.stdout


def unmarked(source: str) -> list[str]:
    """Tests that skip if a peer or the browser is absent, and have no such marker."""
    tree, found = ast.parse(source), []
    whole = [ast.unparse(one) for one in tree.body if ast.unparse(one).startswith("pytestmark")]
    for node in [tree, *(one for one in tree.body if isinstance(one, ast.FunctionDef))]:
        test = isinstance(node, ast.FunctionDef)
        if test and not node.name.startswith("test_"):
            continue  # a helper; its tests are marked by their parameters
        body = (
            [node] if test else [one for one in node.body if not isinstance(one, ast.FunctionDef)]
        )
        marks = " ".join(whole + [ast.unparse(one) for one in getattr(node, "decorator_list", ())])
        for call in (one for part in body for one in ast.walk(part) if isinstance(one, ast.Call)):
            if ast.unparse(call.func) != "pytest.importorskip":
                continue
            package = str(getattr(call.args[0], "value", "")).partition(".")[0]
            if package in MARKERS and f"mark.{MARKERS[package]}" not in marks:
                found.append(f"{getattr(node, 'name', 'the file')}: {MARKERS[package]}")
    return found


def test_what_needs_a_peer_or_a_browser_is_marked():
    for path in sorted(TESTS.rglob("test_*.py")):
        assert unmarked(path.read_text("utf-8")) == [], path


def test_a_missing_marker_is_found():
    skip = 'pytest.importorskip("envpool")'
    assert unmarked(f"def test_one():\n    {skip}\n") == ["test_one: peers"]
    assert unmarked(f"@pytest.mark.peers\ndef test_one():\n    {skip}\n") == []
    assert unmarked(f"x = {skip}\n") == ["the file: peers"]
    assert unmarked(f"x = {skip}\npytestmark = pytest.mark.peers\n") == []
