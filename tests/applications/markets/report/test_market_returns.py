"""The market's return in the currency of the account."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream.markets.backtest_spec import SymbolBacktestSpec


def test_the_markets_return_is_in_the_accounts_currency():
    """A dollar account holds USDJPY: 150 to 135 loses 1/9 of the notional, not 1/10."""
    close = np.array([140.0, 150.0, 135.0])
    blank = np.zeros(2)
    one = SymbolBacktestSpec(1, 2, np.arange(3), close, blank, blank, blank, 0)
    assert one.market_returns == pytest.approx([-0.1])
    assert replace(one, close_rate=1.0 / close).market_returns == pytest.approx([-1.0 / 9.0])
