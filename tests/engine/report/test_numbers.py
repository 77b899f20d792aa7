"""Numbers of reports against an independent library."""

import pytest
from scipy import stats

from slipstream.training.evaluation_result import student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 101, 10_000])
def test_students_quantile(freedom):
    assert student_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-11)
