"""The forex account by the book: a plain, slow reading of the trading rules, for comparison.

Written from the rules and not from the kernel: prices are quotes with a bid and an ask, an order is
sized by bisection instead of a formula, and so is the stop-out level. Every fill is kept in a list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

LONG, SHORT = 1, -1


@dataclass
class Quote:
    """State of the market at one moment."""

    mid: float
    spread: float
    rate: float  # account currency per unit of quote currency


@dataclass
class Fill:
    """One executed order."""

    bar: int
    units: float  # signed
    price: float
    reason: str


@dataclass
class ForexOracle:
    """One account on one symbol.

    Args:
        bars: dictionaries of lists are too clever: objects with open, high, low, close, spread,
            rolled, nights, flat, atr, rate_open, rate_close.
        config: the environment's config.
        pip: price units.
        inverse: the account currency is the pair's base.
        evaluation: the last leg is closed and paid.
        base_variance: B0 of the differential Sharpe ratio.
        bars_per_day: for its decay.
    """

    bars: list[Any]
    config: Any
    pip: float
    inverse: bool
    evaluation: bool
    base_variance: float
    bars_per_day: float
    bar: int = 0
    units: float = 0.0
    entry: float = 0.0
    stop: float | None = None
    target: float | None = None
    fills: list[Fill] = field(default_factory=list)
    both_touched: int = 0

    def __post_init__(self) -> None:
        self.cash = self.equity = self.peak = self.day_start = self.config.initial_equity
        self.banned_from = False
        self.last_fill = -(10**9)
        self.last_exit = {LONG: -(10**9), SHORT: -(10**9)}
        self.paid = {"spread": 0.0, "slippage": 0.0, "commission": 0.0, "swap": 0.0}
        self.traded = 0.0
        self.moments = (0.0, self.base_variance)

    # -- one step -------------------------------------------------------------------------------

    def step(self, action: float) -> tuple[float, bool, bool]:
        config, old, new = self.config, self.bars[self.bar], self.bars[self.bar + 1]
        self.bar += 1
        before, traded_before = self.equity, self.traded
        must_be_flat = new.flat or self.banned_from
        if config.fill == "compat_same_close":
            self._trade(action, must_be_flat, Quote(old.close, old.spread, old.rate_close), new.atr)

        if new.rolled:
            self._pay_swap(old, new.nights)
            self.day_start = self._worth(old.close, old.rate_close)
            self.banned_from = False

        at_open = Quote(new.open, new.spread, new.rate_open)
        out = self._exit_at_open(at_open)
        if config.fill == "next_open" and out is None:
            changed = self._trade(action, must_be_flat, at_open, new.atr)
            if changed:
                out = self._exit_at_open(at_open)
        if out is None:
            out = self._exit_inside(new)
        if config.fill == "next_close" and out is None:
            self._trade(action, must_be_flat, Quote(new.close, new.spread, new.rate_close), new.atr)

        worth = self._worth(new.close, new.rate_close)
        terminated = out == "stop-out"
        if config.max_daily_drawdown is not None and not self.banned_from:
            lost = (self.day_start - worth) / self.day_start
            if lost >= config.max_daily_drawdown:
                self.banned_from = True
                terminated = terminated or config.on_breach == "terminate"
        truncated = self.bar == len(self.bars) - 1 and not terminated
        if self.evaluation and (terminated or truncated):
            self._execute(-self.units, Quote(new.close, new.spread, new.rate_close), "end", True)
            worth = self._worth(new.close, new.rate_close)
        self.equity = worth
        self.peak = max(self.peak, worth)
        exposure = self.units * new.close * new.rate_close / worth if worth > 0 else 0.0
        reward = self._reward(before, worth)
        reward -= config.turnover_penalty * (self.traded - traded_before)
        reward -= config.holding_penalty * abs(exposure)
        reward -= config.drawdown_penalty * (1 - worth / self.peak)
        return reward, terminated, truncated

    # -- the account ----------------------------------------------------------------------------

    def _worth(self, mid: float, rate: float) -> float:
        return self.cash + self.units * (mid - self.entry) * rate

    def _execute(self, change: float, quote: Quote, reason: str, slips: bool) -> None:
        """Buys at the ask or sells at the bid, worse by the slippage."""
        if change == 0.0:
            return
        slip = self.config.slippage_pips * self.pip if slips else 0.0
        sign = math.copysign(1.0, change)
        price = quote.mid + sign * (quote.spread / 2 + slip)
        size = abs(change)
        notional = size * quote.mid * quote.rate
        floor = 1e-6 * self.config.initial_equity
        self.traded += notional / max(self._worth(quote.mid, quote.rate), floor)
        commission = notional * self.config.commission_per_million / 1e6
        self.paid["spread"] += size * quote.spread / 2 * quote.rate
        self.paid["slippage"] += size * slip * quote.rate
        self.paid["commission"] += commission
        self.cash -= commission
        self.fills.append(Fill(self.bar, change, price, reason))
        self.last_fill = self.bar
        # First what closes, then what opens.
        closing = 0.0
        if self.units * change < 0:
            closing = sign * min(size, abs(self.units))
            self.cash += -closing * (price - self.entry) * quote.rate
            self.units += closing
        opening = change - closing
        if opening != 0.0:
            total = self.units + opening
            self.entry = (self.units * self.entry + opening * price) / total
            self.units = total
        if self.units == 0.0:
            self.entry, self.stop, self.target = 0.0, None, None

    def _pay_swap(self, old: Any, nights: int) -> None:
        if self.units == 0.0 or nights == 0:
            return
        percent = self.config.swap_long if self.units > 0 else self.config.swap_short
        notional = abs(self.units) * old.close * old.rate_close
        credit = notional * percent / 100 / 365 * nights
        self.cash += credit
        self.paid["swap"] -= credit

    # -- orders ---------------------------------------------------------------------------------

    def _trade(self, action: float, must_be_flat: bool, quote: Quote, atr: float) -> bool:
        wanted = self._wanted(action, must_be_flat, quote)
        if wanted is None:
            return False
        wanted = self._allowed(wanted, quote)
        change = wanted - self.units
        if abs(change) < self.config.unit_step / 2:
            return False
        side_before = (self.units > 0) - (self.units < 0)
        self._execute(change, quote, "order", True)
        side = (self.units > 0) - (self.units < 0)
        if side != 0 and side != side_before:
            size = {"pips": self.pip, "atr": atr, "fraction": quote.mid}[self.config.stop_unit]
            if self.config.stop_loss is not None:
                self.stop = quote.mid - side * self.config.stop_loss * size
            if self.config.take_profit is not None:
                self.target = quote.mid + side * self.config.take_profit * size
        return True

    def _wanted(self, action: float, must_be_flat: bool, quote: Quote) -> float | None:
        """Units that the action asks for, None for "leave it as it is"."""
        worth, value = self._worth(quote.mid, quote.rate), quote.mid * quote.rate
        if must_be_flat or worth <= 0:
            return 0.0
        if self.config.action == "discrete":
            side = int(action) - 1
            if side == (self.units > 0) - (self.units < 0):
                return None
            exposure = side * self.config.exposure
        else:
            exposure = max(-1.0, min(1.0, action)) * self.config.max_exposure
            held = self.units * value / worth
            changes_side = exposure == 0.0 or exposure * held < 0
            if not changes_side and abs(exposure - held) < self.config.rebalance_threshold:
                return None
        step = self.config.unit_step
        return math.trunc(exposure * worth / value / step) * step

    def _allowed(self, wanted: float, quote: Quote) -> float:
        """Applies cooldowns and leverage to a wish."""
        side = (wanted > 0) - (wanted < 0)
        held = abs(self.units) if side * self.units > 0 else 0.0
        if abs(wanted) <= held:
            return wanted
        resting = self.bar - self.last_fill <= self.config.cooldown
        banned = self.bar - self.last_exit[side] <= self.config.stop_cooldown
        if resting or banned:
            return side * held
        step = self.config.unit_step
        low, high = 0, round(abs(wanted) / step)
        while low < high:  # the largest affordable number of steps
            middle = (low + high + 1) // 2
            if self._affordable(side * middle * step, quote):
                low = middle
            else:
                high = middle - 1
        return side * max(low * step, held)

    def _affordable(self, units: float, quote: Quote) -> bool:
        change = abs(units - self.units)
        value = quote.mid * quote.rate
        slip = self.config.slippage_pips * self.pip
        costs = change * (quote.spread / 2 + slip) * quote.rate
        costs += change * value * self.config.commission_per_million / 1e6
        worth = self._worth(quote.mid, quote.rate) - costs
        return abs(units) * value / self.config.leverage <= worth

    # -- exits ----------------------------------------------------------------------------------

    def _exit_at_open(self, quote: Quote) -> str | None:
        if self.units == 0.0:
            return None
        side = LONG if self.units > 0 else SHORT
        exit_price = quote.mid - side * quote.spread / 2
        if self._margin_call(quote.mid, quote.rate):
            return self._leave(quote, "stop-out")
        if self.stop is not None and side * exit_price <= side * self.stop:
            return self._leave(quote, "stop")
        if self.target is not None and side * exit_price >= side * self.target:
            return self._leave(quote, "target")
        return None

    def _exit_inside(self, bar: Any) -> str | None:
        if self.units == 0.0:
            return None
        side = LONG if self.units > 0 else SHORT
        bad, good = (bar.low, bar.high) if side == LONG else (bar.high, bar.low)
        half = bar.spread / 2
        # Levels as mids, with their distance from the open: the nearest adverse one comes first.
        adverse = []
        if self.stop is not None and side * (bad - side * half) <= side * self.stop:
            adverse.append((abs(bar.open - (self.stop + side * half)), 0, "stop"))
        if self._margin_call(bad, self._rate_inside(bar, bad)):
            level = self._stop_out_mid(bar, bad)
            adverse.append((abs(bar.open - level), 1, "stop-out"))
        hit_target = self.target is not None and side * (good - side * half) >= side * self.target
        if adverse and hit_target:
            self.both_touched += 1
        if hit_target and (self.config.intrabar_fill == "favourable_first" or not adverse):
            mid = self.target + side * half
            return self._leave(Quote(mid, bar.spread, self._rate_inside(bar, mid)), "target")
        if not adverse:
            return None
        reason = min(adverse)[2]
        mid = self.stop + side * half if reason == "stop" else level
        return self._leave(Quote(mid, bar.spread, self._rate_inside(bar, mid)), reason)

    def _rate_inside(self, bar: Any, mid: float) -> float:
        return 1 / mid if self.inverse else bar.rate_open

    def _margin_call(self, mid: float, rate: float) -> bool:
        used = abs(self.units) * mid * rate / self.config.leverage
        return self._worth(mid, rate) < used / 2

    def _stop_out_mid(self, bar: Any, bad: float) -> float:
        """Locate the margin call between the open and the worst price, by bisection."""
        safe, called = bar.open, bad
        for _ in range(200):
            middle = (safe + called) / 2
            if self._margin_call(middle, self._rate_inside(bar, middle)):
                called = middle
            else:
                safe = middle
        return called

    def _leave(self, quote: Quote, reason: str) -> str:
        self.last_exit[LONG if self.units > 0 else SHORT] = self.bar
        self._execute(-self.units, quote, reason, slips=reason != "target")
        return reason

    # -- rewards --------------------------------------------------------------------------------

    def _reward(self, before: float, after: float) -> float:
        first = self.config.initial_equity
        if self.config.reward == "pnl":
            return (after - before) / first
        before, after = max(before, 1e-6 * first), max(after, 1e-6 * first)
        if self.config.reward == "log_return":
            return math.log(after / before)
        a, b = self.moments
        ret = after / before - 1
        da, db = ret - a, ret**2 - b
        spread = max(b - a**2, 0.01 * self.base_variance)
        eta = 1 / self.bars_per_day
        self.moments = (a + eta * da, b + eta * db)
        return (b * da - a * db / 2) / spread**1.5
