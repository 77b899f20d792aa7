"""A pass over all assets' bars, as reports see it."""

from __future__ import annotations

import numpy as np

from slipstream.core.market_pass import PortfolioPass
from slipstream.envs.portfolio.record import CHANGE, SIMPLEX, Data, Params
from slipstream.envs.portfolio.spec import names_of

_NO_RULES = {
    "unit_orders": False,
    "action_map": SIMPLEX,
    "band": 0.0,
    "decide_every": 1,
    "min_holding": 0,
    "max_position": 1.0,
    "trailing_stop": 0.0,
}


def market_pass(p: Params, d: Data) -> PortfolioPass:
    """What the pass of an evaluation record could trade at, and what that costs."""
    start, stop = d.segments[p.first_segment]
    first, last, n = int(start), int(stop) - 1 - p.early_end, p.assets
    close, opened = d.prices[:, :n], d.prices[:, n : 2 * n]
    followed = p._replace(**_NO_RULES)
    tier = int(np.searchsorted(d.fee_tiers[:, 0], p.start_volume, side="right")) - 1
    flat = np.zeros(n + (not p.unit_orders), np.float32)
    if not (p.unit_orders or p.action_map == CHANGE):
        flat[:], flat[-1] = -1.0, 1.0
    return PortfolioPass(
        names=names_of(d),
        first=first,
        last=last,
        time=d.time,
        close=close,
        opened=opened,
        fill=close if p.unit_orders else np.where(opened > 0.0, opened, close),
        half_spread=d.prices[:, 2 * n : 3 * n],
        initial_equity=p.initial_equity,
        fee=float(d.fee_tiers[0, 1]) if p.tiered else p.fee,
        start_fee=float(d.fee_tiers[tier, 1]),
        slippage=p.slippage,
        cost_multiple=p.cost_multiple,
        reserve=p.reserve,
        flat=flat,
        band=None if p.unit_orders else p.band,
        followed=followed,
        held=followed._replace(min_holding=last - first + 1, reserve=0.0),
        # Fees that follow volume, and a reserve, make mixes better; assets that come and go are
        # sold at times that no plan sees.
        corner=not (p.tiered or p.reserve > 0.0 or p.union),
    )
