"""A pass over one pair's bars, as reports see it."""

from __future__ import annotations

import numpy as np

from slipstream.core.market_pass import SymbolPass
from slipstream.envs.forex.record import (
    CLOSE,
    NEXT_CLOSE,
    NEXT_OPEN,
    OPEN,
    PIP,
    RATE_CLOSE,
    RATE_OPEN,
    SPREAD,
    Data,
    Params,
)

_NO_RULES = {
    "exposure": 1.0,
    "stop_loss": 0.0,
    "take_profit": 0.0,
    "max_daily_drawdown": 0.0,
    "cooldown": 0,
    "stop_cooldown": 0,
}


def market_pass(p: Params, d: Data) -> SymbolPass:
    """What the pass of an evaluation record could trade at, and what that costs."""
    start, stop = d.segments[p.first_segment]
    first, last, bars = int(start), int(stop) - 1, d.bars
    rows = np.arange(first + 1, last + 1)
    if p.fill_at == NEXT_OPEN:
        mid, rate = bars[rows, OPEN], bars[rows, RATE_OPEN]
    else:
        rows = rows if p.fill_at == NEXT_CLOSE else rows - 1
        mid, rate = bars[rows, CLOSE], bars[rows, RATE_CLOSE]
    mid = np.append(mid, bars[last, CLOSE])
    rate = np.append(rate, bars[last, RATE_CLOSE])
    half = 0.5 * np.append(bars[rows, SPREAD], bars[last, SPREAD])
    pip = float(d.constants[p.first_segment, PIP])
    mine = d.segment_symbol == d.segment_symbol[p.first_segment]
    return SymbolPass(
        first=first,
        last=last,
        time=d.time,
        close=bars[:, CLOSE],
        mid=mid,
        rate=rate,
        cost=p.cost_multiple * rate * (half + p.slippage_pips * pip + mid * p.commission),
        history=int(d.segments[mine, 0].min()),
        pip=pip,
        plain=p._replace(**_NO_RULES),
        financing=bool(p.swap_long or p.swap_short),
    )
