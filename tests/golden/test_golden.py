"""What trainings and a study compute stays the same bits, however the code is arranged."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
assert _spec is not None and _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)


LONG = ("portfolio", "resumed", "study", "forex_folds", "paper_account")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.long) if c in LONG else c for c in golden.CASES]
)
def test_bits_are_the_recorded_ones(case):
    recorded = json.loads(golden.HASHES.read_text()).get(golden.machine(), {})
    if case not in recorded:
        pytest.skip(
            f"no hash of {case} is recorded for {golden.machine()}; compare two trees on this "
            "machine: python tests/golden/golden.py compare TREE"
        )
    assert golden.hash_of(case) == recorded[case]
