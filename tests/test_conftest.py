"""What `conftest.py` promises: tests depend on no folder and no shell, and leave nothing behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

HARMLESS = """
import os, signal
from pathlib import Path

def test_settings_of_the_shell_are_gone():
    assert not {"http_proxy", "HTTPS_PROXY", "GIT_DIR", "COLUMNS", "RAY_ADDRESS"} & set(os.environ)

def test_the_folder_is_empty_although_pytest_began_beside_runs():
    assert not os.listdir()

def test_text_files_are_utf_8_in_every_locale(tmp_path):
    (tmp_path / "text").write_text("\\u00b1")
    assert (tmp_path / "text").read_bytes() == b"\\xc2\\xb1"

def test_a_forked_child_crashes():
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGSEGV)
    assert os.waitpid(child, 0)[1] & 127 == signal.SIGSEGV
"""
HARMFUL = """
import os
from pathlib import Path

def test_of_a_relative_path():
    Path("runs").mkdir()

def test_of_another_folder(tmp_path):
    os.chdir(tmp_path)

def test_after_them():
    assert not os.listdir()

def test_of_the_checkout():
    (Path(__file__).parents[1] / "left").touch()
"""


def suite(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a checkout of their own, with this conftest and another shell's settings."""
    (folder / "tests").mkdir()
    (folder / "runs").mkdir()
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "tests")
    (folder / "tests/test_it.py").write_text(text)
    shell = {"http_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "x", "GIT_DIR": "x"}
    shell |= {"COLUMNS": "9", "RAY_ADDRESS": "x", "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "tests"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **shell}, capture_output=True, text=True
    )


def test_settings_of_a_shell_and_folders_change_nothing(tmp_path):
    done = suite(tmp_path, HARMLESS)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert "Fatal" not in done.stdout + done.stderr and "File" not in done.stderr


def test_what_is_left_behind_fails_the_test_that_left_it(tmp_path):
    done = suite(tmp_path, HARMFUL)
    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert "4 passed, 3 errors" in done.stdout, done.stdout
    names = [line.partition("::")[2].partition(" ")[0] for line in errors]
    assert names == ["test_of_a_relative_path", "test_of_another_folder", "test_of_the_checkout"]
    assert "/left'" in done.stdout
