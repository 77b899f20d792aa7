"""Records as the interpreter reads them."""

import numpy as np
import pytest

from slipstream.kernels.interpreter import Records


def test_fields_hide_nothing_and_nothing_hides_fields():
    """A field may have the name of a method of NumPy's own records."""
    array = np.zeros(
        2,
        np.dtype([("size", "f8"), ("sum", "i8"), ("max", "f8", (2,)), ("T", "?"), ("_row", "i8")]),
    )
    records = Records(array)
    s = records[1]
    s.size, s.sum, s.T, s._row = 1.5, 3, True, 7
    s.max[1] = 2.5
    assert array["size"].tolist() == [0.0, 1.5] and array["max"].tolist() == [[0, 0], [0, 2.5]]
    assert array["sum"].tolist() == [0, 3] and array["T"].tolist() == [False, True]
    assert (s.size, s.sum, s.T, s._row) == (1.5, 3, True, 7)
    assert isinstance(s.size, np.float64) and isinstance(s.sum, np.int64)


def test_unknown_fields_are_errors():
    s = Records(np.zeros(1, np.dtype([("x", "f8")])))[0]
    with pytest.raises(AttributeError, match="no field `y` among x"):
        _ = s.y
    with pytest.raises(AttributeError, match="no field `y` among x"):
        s.y = 1.0
