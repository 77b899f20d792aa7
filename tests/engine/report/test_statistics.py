"""Statistics against hand-computed values and against empyrical."""

import math

import empyrical
import numpy as np
import pytest

from slipstream.report import statistics as st

RETURNS = np.array([0.01, -0.02, 0.03, 0.0])
DAY = 86_400


def noise(seed=0, days=400):
    return np.random.default_rng(seed).normal(2e-4, 6e-3, days)


def test_sharpe_by_hand():
    mean = 0.005
    deviation = math.sqrt(sum((r - mean) ** 2 for r in RETURNS) / 3)
    assert st.sharpe(RETURNS, 260) == pytest.approx(mean / deviation * math.sqrt(260))


def test_sortino_counts_gains_as_zero_over_all_returns():
    assert st.sortino(RETURNS, 260) == pytest.approx(
        0.005 / math.sqrt(0.02**2 / 4) * math.sqrt(260)
    )


def test_drawdown_by_hand():
    equity = np.array([100.0, 120.0, 90.0, 110.0, 121.0])
    assert st.max_drawdown(equity) == pytest.approx(-0.25)
    assert st.drawdowns(equity).tolist() == pytest.approx([0, 0, -0.25, 110 / 120 - 1, 0])


def test_calmar_by_hand():
    returns = np.array([0.10, -0.05])
    growth = (1.1 * 0.95) ** (260 / 2) - 1
    assert st.calmar(returns, 260) == pytest.approx(growth / 0.05)


@pytest.mark.parametrize("returns", [np.zeros(50), np.full(50, 0.25), np.array([0.1]), np.empty(0)])
def test_no_deviation_is_none(returns):
    assert st.sharpe(returns, 260) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("periods", [260, 365])
def test_agrees_with_empyrical(seed, periods):
    returns = noise(seed)
    kwargs = {"annualization": periods}
    assert st.sharpe(returns, periods) == pytest.approx(empyrical.sharpe_ratio(returns, **kwargs))
    assert st.sortino(returns, periods) == pytest.approx(empyrical.sortino_ratio(returns, **kwargs))
    assert st.calmar(returns, periods) == pytest.approx(empyrical.calmar_ratio(returns, **kwargs))
    assert st.annual_growth(returns, periods) == pytest.approx(
        empyrical.annual_return(returns, **kwargs)
    )
    assert st.volatility(returns, periods) == pytest.approx(
        empyrical.annual_volatility(returns, **kwargs)
    )
    equity = np.concatenate([[1.0], np.cumprod(1 + returns)])
    assert st.max_drawdown(equity) == pytest.approx(empyrical.max_drawdown(returns))


def test_alpha_beta_recover_a_planted_line():
    market = noise(1, 5_000)
    own = 3e-4 + 0.5 * market
    alpha, beta = st.alpha_beta(own, market, 260)
    assert beta == pytest.approx(0.5)
    assert alpha == pytest.approx(3e-4 * 260)
    assert beta == pytest.approx(empyrical.beta(own, market))


def test_alpha_beta_need_a_moving_market():
    assert st.alpha_beta(noise(), np.zeros(400), 260) is None


def test_daily_equity_takes_the_last_mark_of_each_day():
    equity = np.array([100.0, 101, 102, 103, 104, 105])
    day = np.array([5, 5, 6, 6, 8])
    assert st.daily_equity(equity, day).tolist() == [100, 102, 104, 105]


def test_monthly_returns_compound_to_the_total():
    time = np.arange("2024-01-15", "2024-04-02", dtype="datetime64[D]").astype("int64") * DAY
    equity = 100 * np.cumprod(np.concatenate([[1.0], 1 + noise(2, len(time))]))
    months = st.monthly_returns(equity, time)
    assert list(months) == [(2024, 1), (2024, 2), (2024, 3), (2024, 4)]
    assert np.prod([1 + r for r in months.values()]) == pytest.approx(equity[-1] / equity[0])


def test_worst_drawdowns_are_separate_and_ordered():
    equity = np.array([10.0, 9, 10, 8, 9, 12, 11])
    found = st.worst_drawdowns(equity, np.arange(7) * DAY)
    assert [round(d.depth, 6) for d in found] == [-0.2, -0.1, round(-1 / 12, 6)]
    deepest = found[0]
    assert [str(d) for d in (deepest.peak, deepest.trough, deepest.recovered)] == [
        "1970-01-03",
        "1970-01-04",
        "1970-01-06",
    ]
    assert found[2].recovered is None
    assert len(st.worst_drawdowns(equity, np.arange(7) * DAY, count=2)) == 2


def test_a_curve_that_falls_at_once_peaks_at_its_start():
    found = st.worst_drawdowns(np.array([10.0, 9.0]), np.array([0, DAY]))
    assert str(found[0].peak) == "1970-01-01"


def test_rolling_sharpe_matches_each_window():
    returns = noise(3, 30)
    rolled = st.rolling_sharpe(returns, 260, 10)
    assert np.isnan(rolled[:9]).all()
    assert rolled[20] == pytest.approx(st.sharpe(returns[11:21], 260))
