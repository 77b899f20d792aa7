"""Whole confirmations of studies whose truth is known: without skill, and with a true Sharpe of 3.

A study is N settings; each has days of its own, partly shared by all, and a seed sees them with
noise of its own. The search ranks one seed of each, the confirmation trains fresh ones.
"""

from __future__ import annotations

import numpy as np
import pytest
from fake_pool import plan
from scipy.stats import binom

from slipstream.studies.outcome.confirmation import confirm, confirmation_slots
from slipstream.training.population.member import DailyReturns, Outcome

FACTS = {"paths": [[0]], "folds": [{"groups": [0]}]}
ACTIVE = [{"mean_exposure": 0.5, "fills": 50.0}]
PERIODS = 365.0


def study(random, trials, days, *, seeds, alike=0.0, skill=0.0, flat=False, heavy=False):
    """Return the confirmation of a simulated study.

    Args:
        random: draws.
        trials, days: how many.
        seeds, alike: correlation of a setting's seeds, and of settings.
        skill: true annual Sharpe ratio of the first setting, own and in excess.
        flat: equal weight earns nothing, so that returns in excess are own ones.
        heavy: Student's t(4) instead of normal days.
    """
    setup = plan(folds=1, confirmation={"bootstrap": 500})

    def draw(*size):
        return random.standard_t(4, size) / 2**0.5 if heavy else random.standard_normal(size)

    market = np.zeros(days) if flat else 0.005 * draw(days)
    noise = 0.01 if flat else 0.01 * (15 / 16) ** 0.5
    own = alike**0.5 * draw(1, days) + (1 - alike) ** 0.5 * draw(trials, days)
    drift = np.where(np.arange(trials) == 0, skill / PERIODS**0.5, 0.0)

    def backtests(trial):
        mine = seeds**0.5 * own[trial] + (1 - seeds) ** 0.5 * draw(days)
        # Half in the market: own returns and those in excess have one deviation, and one ratio.
        returns = noise * mine + 0.01 * drift[trial] + 0.5 * market
        group = np.zeros(days, np.int64)
        return DailyReturns(np.arange(days), returns, market, group, ACTIVE)

    full = {trial: [backtests(trial)] for trial in range(trials)}
    excess = np.array([folds[0].returns - market for folds in full.values()])
    scores = excess.mean(axis=1) / excess.std(axis=1)
    chosen = np.argsort(-scores, kind="stable")[: setup.study.confirmation.top].tolist()
    outcomes = {
        slot: Outcome(slot.name, 1, backtests(slot.trial))
        for slot in confirmation_slots(setup, chosen)
    }
    ranked = {trial: float(scores[trial]) for trial in chosen}
    return confirm(setup, chosen, ranked, outcomes, FACTS, full, trials)


def confirmed(count, seed, *args, **kwargs):
    """Return the numbers of studies confirmed, and of those confirmed by the bound alone."""
    random = np.random.default_rng(seed)
    found = [study(random, *args, **kwargs) for _ in range(count)]
    by_bound = sum(one.chance is not None for one in found)
    return sum(one.winner is not None for one in found), by_bound


def test_many_trials_without_skill_are_hardly_ever_confirmed():
    """The bound alone "confirmed" most of them."""
    true, by_bound = confirmed(12, 0, 300, 300, seeds=0.9, flat=True)
    assert true <= 1 and by_bound >= 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("alike", [0.0, 0.8])
@pytest.mark.parametrize("seeds", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("trials", [40, 500])
def test_studies_without_skill_are_not_confirmed_more_often_than_said(
    trials, seeds, alike, flat, heavy
):
    true, _ = confirmed(80, trials, trials, 315, seeds=seeds, alike=alike, flat=flat, heavy=heavy)
    assert true <= binom.ppf(0.99, 80, 0.05), true


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("alike", [0.0, 0.8])
@pytest.mark.parametrize("seeds", [0.3, 0.9])
def test_a_true_sharpe_of_three_is_confirmed_in_half_of_the_studies(seeds, alike, flat):
    true, _ = confirmed(60, 1, 40, 500, seeds=seeds, alike=alike, flat=flat, skill=3.0)
    assert true >= 30, true
