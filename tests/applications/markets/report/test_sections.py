"""Sentences of the sections on costs and calendar."""

import math

import numpy as np
import pytest

from slipstream.markets.report.market_sections import (
    break_even_sentence,
    largest_t_value,
    round_trip_sentences,
)


@pytest.mark.parametrize(
    ("multiple", "part"), [(None, "lose even"), (math.inf, "up to 100"), (1.5, "1.50 times")]
)
def test_break_even(multiple, part):
    assert part in break_even_sentence(multiple)


def test_round_trip_in_pips_and_basis_points():
    assert round_trip_sentences({"EURUSD": (1.234, 1.08)}) == [
        "Round trip: EURUSD 1.23 pips (1.08 bp)."
    ]
    assert round_trip_sentences({"EURUSD_H1": (1.2, 1.1)}) == [
        "Round trip: EURUSD_H1 1.20 pips (1.10 bp)."
    ]


def test_an_ounce_and_a_coin_have_no_pips():
    """Gold's round trip was "4,292.30 pips"."""
    trips = {"XAUUSD": (4292.3, 2.26), "BTCUSDT": (300_000.0, 10.0)}
    assert round_trip_sentences(trips) == [
        "Round trip: XAUUSD 0.429 USD (2.26 bp), BTCUSDT 30 USDT (10.00 bp)."
    ]


def test_the_largest_of_many_t_values_is_put_in_its_place():
    """24 hours without any effect: how often the largest is as large, against a simulation."""
    hours = [0.3, -3.27, None, float("nan"), *[1.0] * 22]
    (sentence,) = largest_t_value("hour", hours)
    assert "By hour the largest t value is 3.27, of 24 tries" in sentence
    largest = np.abs(np.random.default_rng(0).standard_normal((100_000, 24))).max(axis=1)
    said = float(sentence.rpartition(", ")[2].split(" ")[0])
    assert said == pytest.approx(100 * (largest >= 3.27).mean(), abs=0.2)
    assert largest_t_value("weekday", [None, 2.0]) == []
