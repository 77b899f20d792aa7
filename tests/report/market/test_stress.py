"""Matched random traders, scaled costs, delays."""

import math

import numpy as np
import pytest

from slipstream.report.market import passes as sr
from slipstream.report.market.passes import matched_random


@pytest.fixture(scope="module")
def passes(forex, passes_of):
    return passes_of(forex)


def runs(actions):
    """Sorted (position, length) pieces, circular: the seam is where the sequence was turned."""
    starts = np.flatnonzero(np.append(True, (actions[1:] != actions[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(actions)))
    return sorted(zip(actions[starts, 0].tolist(), lengths.tolist(), strict=True))


def test_matched_random_keeps_pieces_and_exposure():
    random = np.random.default_rng(0)
    actions = np.repeat([0, 1, 2, 1, 2, 0, 2, 1], [3, 5, 2, 7, 4, 1, 6, 2])[:, None]
    seen = set()
    for _ in range(50):
        drawn = matched_random(actions, random)
        assert np.bincount(drawn[:, 0]).tolist() == np.bincount(actions[:, 0]).tolist()
        assert runs(drawn) == runs(actions)
        seen.add(tuple(drawn[:, 0]))
    assert len(seen) > 10


def test_matched_random_of_a_constant_is_itself():
    actions = np.full((20, 1), 2)
    assert (matched_random(actions, np.random.default_rng(0)) == actions).all()


def test_matched_random_keeps_continuous_actions():
    random = np.random.default_rng(1)
    actions = random.uniform(-1, 1, (40, 1)).astype(np.float32)
    drawn = matched_random(actions, random)
    assert sorted(drawn[:, 0].tolist()) == sorted(actions[:, 0].tolist())
    assert drawn.dtype == np.float32


def test_random_returns_are_reproducible(passes, some_agent):
    agent = some_agent(passes)
    first, again = (sr.random_returns(passes, agent, 4) for _ in range(2))
    assert first.tolist() == again.tolist()
    assert len(set(first.tolist())) == 4


def test_random_returns_do_not_depend_on_the_batch(passes, monkeypatch, some_agent):
    agent = some_agent(passes)
    together = sr.random_returns(passes, agent, 3)
    monkeypatch.setattr(sr, "_MOST_ACTIONS", 1)
    assert sr.random_returns(passes, agent, 3).tolist() == together.tolist()


@pytest.mark.parametrize(("value", "percent"), [(0.0, 0.0), (5.0, 100.0), (2.0, 37.5), (2.5, 50.0)])
def test_percentile_counts_ties_half(value, percent):
    assert sr.percentile(value, np.array([1.0, 2.0, 3.0, 4.0])) == percent


def test_percentile_of_nothing():
    assert sr.percentile(1.0, np.empty(0)) is None


def test_stress_of_the_agents_decisions(passes, some_agent):
    agent = some_agent(passes)
    found = sr.stress(passes, agent)
    returns = dict(found.multiples)
    assert list(returns) == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert sorted(returns.values(), reverse=True) == list(returns.values())
    own = np.mean([t.metrics["total_return"] for t in agent])
    assert returns[1.0] == pytest.approx(own)
    costless = np.mean([t.metrics["costs"] for t in agent]) / 100_000.0
    assert returns[0.0] == pytest.approx(own + costless, abs=0.1 * costless)
    assert found.delayed != own


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (lambda m: 0.03 - 0.02 * m, 1.5),
        (lambda m: m * 0 - 0.01, None),
        (lambda m: m * 0, None),
        (lambda m: m * 0 + 0.01, math.inf),
        (lambda m: 0.03 - 0.001 * m, 30.0),
    ],
)
def test_break_even(net, expected):
    found = sr.break_even(net)
    assert found == (pytest.approx(expected, rel=2e-3) if expected else expected)
