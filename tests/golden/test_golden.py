"""What trainings and a study compute stays the same bits, however the code is arranged."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
assert _spec is not None and _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)


LONG = ("portfolio", "resumed", "study", "forex_folds", "paper_account")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.slow) if c in LONG else c for c in golden.CASES]
)
def test_bits_are_the_recorded_ones(case):
    recorded = json.loads(golden.HASHES.read_text()).get(golden.machine(), {})
    if case not in recorded:
        pytest.skip(
            f"no hash of {case} is recorded for {golden.machine()}; compare two trees on this "
            "machine: python tests/golden/golden.py compare TREE"
        )
    assert golden.hash_of(case) == recorded[case]


PLAIN = ("cartpole", "dqn_masked", "sac", "forex", "portfolio_units")


@pytest.mark.parametrize(
    "case", [c if c in PLAIN else pytest.param(c, marks=pytest.mark.slow) for c in golden.CASES]
)
def test_bits_are_the_same_without_short_cuts_in_compiling(case, tmp_path_factory):
    recorded = json.loads(golden.HASHES.read_text()).get(golden.machine(), {})
    if case not in recorded:
        pytest.skip(f"no hash of {case} is recorded for {golden.machine()}")
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    plain = {"SLIPSTREAM_PLAIN_NUMBA": "1", "SLIPSTREAM_CACHE": str(shared / "plain")}
    code = f"import golden; print(golden.hash_of({case!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **plain, "PYTHONPATH": str(Path(golden.__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == recorded[case]
    if case != "resumed":  # its commands keep their own messages
        assert "SLIPSTREAM_PLAIN_NUMBA is set" in done.stderr
