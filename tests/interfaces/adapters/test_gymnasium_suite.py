"""Gymnasium's own tests of vector environments, with our face in `AsyncVectorEnv`'s place.

They are in its repository, not in its wheel: point SLIPSTREAM_GYMNASIUM_SOURCES at a clone.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = os.environ.get("SLIPSTREAM_GYMNASIUM_SOURCES")
SECONDS = 1800


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(
    not SOURCES,
    reason="SLIPSTREAM_GYMNASIUM_SOURCES is not set to a clone of Gymnasium's repository",
)
def test_gymnasiums_own_vector_tests_pass():
    sources = Path(SOURCES).expanduser()
    assert (sources / "tests" / "vector").is_dir(), f"{sources} is no clone of Gymnasium"
    folders = [str(sources), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    pytest_options = ["-q", "-p", "gymnasium_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/vector", *pytest_options],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    summary = done.stdout.splitlines()[-1]
    print(summary)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", summary)
    assert passed and int(passed[1]) > 1000, summary
