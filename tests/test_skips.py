"""In `make test-all`, a test that a missing package skips has failed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
