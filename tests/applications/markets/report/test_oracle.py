"""The hindsight bound against brute force over every sequence of positions."""

import itertools

import numpy as np
import pytest

from slipstream.markets.evaluation.oracle import optimal_positions


def replay(positions, mid, leg, rate):
    """Equity from 1 by the account rules: sized at the fill's mid before costs, then held."""
    cash, units, entry = 1.0, 0.0, 0.0
    for fill, target in enumerate([*positions, 0]):
        side = np.sign(units)
        if target != side:
            equity = cash + units * (mid[fill] - entry) * rate[fill]
            new = target * equity / (mid[fill] * rate[fill])
            cash = equity - abs(new - units) * leg[fill]
            units, entry = new, mid[fill]
    return cash


def market(seed, steps, kind):
    random = np.random.default_rng(seed)
    mid = 100.0 * np.exp(np.cumsum(random.normal(0, 0.01, steps + 1)))
    leg_fraction = random.uniform(0.0, 0.006, steps + 1)
    rate = {
        "quote": np.ones(steps + 1),
        "base": 1.0 / mid,
        "cross": np.exp(np.cumsum(random.normal(0, 0.004, steps + 1))),
    }[kind]
    return mid, leg_fraction * mid * rate, rate


@pytest.mark.parametrize("kind", ["quote", "base", "cross"])
@pytest.mark.parametrize("seed", range(5))
def test_equals_brute_force(kind, seed):
    mid, leg, rate = market(seed, 7, kind)
    best = max(replay(p, mid, leg, rate) for p in itertools.product((-1, 0, 1), repeat=7))
    plan = optimal_positions(mid, leg, rate)
    assert plan.growth == pytest.approx(best, rel=1e-12)
    assert replay(plan.positions, mid, leg, rate) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("kind", ["quote", "base", "cross"])
def test_pruning_keeps_the_optimum(kind, monkeypatch):
    mid, leg, rate = market(11, 400, kind)
    full = optimal_positions(mid, leg, rate)
    monkeypatch.setattr("slipstream.markets.evaluation.oracle._FIRST_PRUNE", 8)
    pruned = optimal_positions(mid, leg, rate)
    assert pruned.growth == pytest.approx(full.growth, rel=1e-12)
    assert replay(pruned.positions, mid, leg, rate) == pytest.approx(full.growth, rel=1e-12)


def test_stays_flat_when_costs_exceed_every_move():
    mid, _, rate = market(3, 50, "quote")
    plan = optimal_positions(mid, np.full(51, 1000.0), rate)
    assert plan.growth == 1.0
    assert not plan.positions.any()


def test_without_costs_takes_every_bar():
    mid = np.array([1.0, 1.1, 1.0, 1.2])
    plan = optimal_positions(mid, np.zeros(4))
    assert plan.positions.tolist() == [1, -1, 1]
    assert plan.growth == pytest.approx(1.1 * (2 - 1.0 / 1.1) * 1.2)
