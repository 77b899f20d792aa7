"""Systems and interpreters that cannot run slipstream are told so, in words."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipstream.core.platform_check import NEWEST, OLDEST, unsupported_message

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("version", "system", "words"),
    [
        ((3, 10, 13), "linux", r"needs Python 3\.11 to 3\.13, and this is Python 3\.10"),
        ((3, 14, 0), "linux", r"this is Python 3\.14"),
        ((3, 12, 1), "win32", r"this is win32.*WSL 2"),
    ],
)
def test_what_cannot_run_it_is_told(version, system, words):
    assert re.search(words, unsupported_message(version, system))


def test_what_can_run_it_is_let_in():
    assert unsupported_message() is None
    assert all(unsupported_message((3, minor, 0), "darwin") is None for minor in (11, 12, 13))


def test_the_range_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = f"{NEWEST[0]}.{NEWEST[1] + 1}"
    assert project["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]},<{newest}"
    named = {one.rpartition(" ")[2] for one in project["classifiers"] if ":: Python ::" in one}
    assert named == {f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)}


@pytest.mark.parametrize("how", ["cli", "api"])
def test_the_refusal_comes_before_anything_fails(how):
    use = {
        "cli": "from slipstream.cli import main",
        "api": "import slipstream; slipstream.train",
    }[how]
    code = f"import sys; sys.platform = 'win32'; {use}"
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert "inside WSL 2" in done.stderr
    assert done.returncode == {"cli": 2, "api": 1}[how]
    assert how == "api" or done.stderr.count("\n") == 1


@pytest.mark.parametrize("threads", ["0", "-3", " 0 "])
def test_a_number_of_threads_that_numba_refuses_is_told(threads):
    told = unsupported_message(variables={"NUMBA_NUM_THREADS": threads})
    assert re.search(r"NUMBA_NUM_THREADS must be .* from 1 on, got -?\d\. Unset it", told)
    assert unsupported_message(variables={"NUMBA_NUM_THREADS": "2"}) is None
