"""Tables that are written whole: what a spreadsheet makes of their cells."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.core.storage.csv_table import csv_text


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_is_never_a_formula(text):
    """Neither as a cell nor as a heading."""
    assert csv_text([{"n": 1, text: text}]).count(f"'{text}") == 2


def test_numbers_and_plain_text_stay():
    row = {"a": -0.5, "b": -3, "c": True, "d": "plain", "e": 'a="b", c', "f": None, "g": np.nan}
    text = csv_text([{"z": np.int64(-2)}, row])
    assert text == 'z,a,b,c,d,e,f,g\n-2,,,,,,,\n,-0.5,-3,True,plain,"a=""b"", c",,\n'
