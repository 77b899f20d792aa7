"""What looking at a study costs, and what its exports may hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slipstream.studies.record.status import _guarded


def test_looking_at_a_study_loads_no_library_for_training():
    code = (
        "import sys, slipstream.studies.record.status as s;"
        "print([m for m in ('torch', 'numba', 'optuna', 'sqlalchemy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_is_never_a_formula(text):
    assert _guarded(text) == f"'{text}"


@pytest.mark.parametrize("value", [-0.5, -3, True, None, "plain", "a=b", ""])
def test_numbers_and_plain_text_stay(value):
    assert _guarded(value) == value
