"""The sentences: exact where they are specified, and silent where the data is."""

import math

import numpy as np
import pytest

from slipstream.core.text import span
from slipstream.report import summary_text as wo
from slipstream.report.number_format import format_number
from slipstream.report.statistics import Interval

LOUD = ("profitable", "outperforms")


def test_headline_as_specified():
    assert wo.headline("test", 0.8, (-1.1, 2.7), 302, 260.0, 500) == (
        "Test Sharpe 0.8, 95 % interval -1.1 to 2.7 (1.16 years). The smallest Sharpe that this "
        "much data could confirm is 1.5. The best of 500 trials without skill is expected to reach "
        "2.8."
    )


def test_a_sample_without_a_large_loss_does_not_know_what_one_costs():
    quiet = np.tile([0.01, -0.005], 40)
    (text,) = wo.rare_loss_warning(quiet)
    assert text.startswith("Rare large losses cannot be judged from these 80 days")
    assert "0.50 %" in text and "0.75 %" in text
    assert wo.rare_loss_warning(np.append(quiet, -0.03)) == []  # 3 times 0.778 %
    assert wo.rare_loss_warning(np.full(80, 0.01)) and not wo.rare_loss_warning(np.zeros(80))


def test_a_headline_names_the_method_of_each_end():
    interval = Interval((-1.1, 2.7))
    interval.methods = ("stationary bootstrap", "Mertens' error")
    text = wo.headline("test", 0.8, interval, 302, 260)
    assert "-1.1 to 2.7 (1.16 years), by stationary bootstrap below, Mertens' error above." in text


def test_headline_of_one_trial_claims_nothing_about_many():
    assert wo.headline("test", 0.8, (-1.1, 2.7), 302, 260.0).endswith("could confirm is 1.5.")


@pytest.mark.parametrize(("sharpe", "interval"), [(None, None), (1.0, None)])
def test_headline_without_figures(sharpe, interval):
    text = wo.headline("test", sharpe, interval, 13, 260.0)
    assert "(13 trading days)" in text
    assert "n/a" in text or "no interval" in text


def test_not_beating_as_specified():
    lines = wo.baseline_sentences(-0.031, {"buy and hold": 0.02}, (-1.1, 2.7), {})
    assert lines == ["The agent does not beat buy and hold: -3.1 % against +2.0 %."]


@pytest.mark.parametrize("proven", [(), ("flat",)])
@pytest.mark.parametrize(
    ("interval", "difference", "loud"),
    [
        ((0.1, 2.0), (0.2, 3.0), True),
        ((0.1, 2.0), (-0.2, 3.0), False),
        ((0.1, 2.0), None, False),
        ((-0.1, 2.0), (0.2, 3.0), False),
        ((0.0, 2.0), (0.2, 3.0), False),
        ((-2.0, -0.1), (-3.0, -0.2), False),
        (None, (0.2, 3.0), False),
        (None, None, False),
    ],
)
def test_outperforms_only_when_proven_and_intervals_exclude_zero(
    interval, difference, loud, proven
):
    (line,) = wo.baseline_sentences(0.05, {"flat": 0.0}, interval, {"flat": difference}, proven)
    assert ("outperforms" in line) == (loud and bool(proven))
    assert ("may be chance" in line) == (not loud and interval is not None)
    assert ("too few days to exclude chance" in line) == (interval is None)


@pytest.mark.parametrize("proven", [False, True])
@pytest.mark.parametrize("interval", [(0.5, 2.0), (-0.5, 2.0), (-2.0, -0.5), (0.0, 1.0), None])
@pytest.mark.parametrize("total", [0.05, 0.0, -0.05])
def test_profitable_only_when_proven_and_the_interval_excludes_zero(interval, total, proven):
    text = wo.verdict("test", total, interval, proven=proven)
    allowed = proven and interval is not None and interval[0] > 0 and total > 0
    assert ("profitable" in text) == allowed


def test_a_run_proves_nothing_and_says_why():
    text = wo.verdict("test", 0.5, (1.0, 2.0))
    assert (
        "excludes zero. That is no proof: these bars may be evaluated any number of times" in text
    )


def test_nothing_is_proved_on_bars_that_were_used():
    text = wo.verdict("validation", 0.5, (1.0, 2.0), unseen=False)
    assert "profitable" not in text
    assert "no proof" in text
    (line,) = wo.baseline_sentences(0.5, {"flat": 0.0}, None, {"flat": (1.0, 2.0)}, unseen=False)
    assert line.endswith("but these bars prove nothing.") and "chance" not in line


@pytest.mark.parametrize("name", ["flat", "buy and hold", "always short", "EMA 20/50 cross"])
@pytest.mark.parametrize("interval", [(0.5, 2.0), (-0.5, 2.0), None])
def test_equal_is_not_beaten(name, interval):
    (line,) = wo.baseline_sentences(0.0, {name: 0.0}, interval, {name: (0.5, 1.0)})
    assert line == f"The agent does not beat {name}: +0.0 % against +0.0 %."
    assert not any(word in line for word in LOUD)


def test_close_returns_get_the_digits_that_tell_them_apart():
    assert wo.compare_returns(0.01231, 0.01234) == "+1.231 % against +1.234 %"
    assert wo.compare_returns(-0.031, 0.02) == "-3.1 % against +2.0 %"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.84, 1, "0.8"),
        (-0.04, 1, "0.0"),
        (None, 1, "n/a"),
        (math.nan, 1, "n/a"),
        (12345.6, 0, "12,346"),
        (-1.25, 2, "-1.25"),
        (1.7408030492307885e30, 0, "1.74e+30"),
        (999_999_999_999.0, 0, "999,999,999,999"),
    ],
)
def test_number(value, digits, text):
    assert format_number(value, digits) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.02, "+2.0 %"), (-0.031, "-3.1 %"), (-0.0001, "+0.0 %"), (None, "n/a")]
)
def test_percent(value, text):
    assert wo.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9_999.0, "+999,900.0 %"),
        (1e4, "+1.0e+06 %"),
        (17_408_030_492_307_884_605.44, "+1.7e+21 %"),
        (-2e4, "-2.0e+06 %"),
    ],
)
def test_large_percentages_are_scientific(value, text):
    assert wo.percent(value) == text


@pytest.mark.parametrize("percentile", [0.0, 50.0, 94.9, 95.0, 100.0])
def test_random_traders_are_beaten_from_the_95th_percentile(percentile):
    (text,) = wo.random_trader_sentence(percentile, 200)
    assert ("no evidence" in text) == (percentile < 95.0)


@pytest.mark.parametrize(
    ("days", "per_year", "text"),
    [
        (42, 260.0, "42 trading days"),
        (1, 260.0, "1 trading day"),
        (260, 260.0, "1.00 years"),
        (302, 260.0, "1.16 years"),
        (120, 365.0, "120 days"),
    ],
)
def test_less_than_a_year_is_told_in_days(days, per_year, text):
    assert span(days, per_year) == text
