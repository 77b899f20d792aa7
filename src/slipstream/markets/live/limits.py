"""Limits: what keeps an order from being sent, whatever the policy wants; and the kill switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError
from slipstream.core.reader import UnreadableError, content, is_there
from slipstream.core.storage.files import write_text
from slipstream.markets.live.ranges import Outside

KILL = "KILL"
STOP, FLAT = "stop", "flat"
_DUST = 1e-9  # of equity: rounding
_MOST_BYTES = 64  # of the switch's file

Share = Annotated[float, Field(gt=0.0, le=10.0)]


class Limits(Config):
    """Limits of an account that sends orders; `--limit NAME=VALUE`.

    `exposure`, `order` and `daily_loss` forbid purchases alone: sales make all three smaller. The
    others forbid every order.

    Attributes:
        exposure: most that may be held, as a share of the account's equity by the rules.
        order: largest purchase, as a share of that equity.
        orders_a_day: of a UTC day.
        daily_loss: fall of the broker's equity since the day's first bar, as a share of that.
        stale: seconds after a bar's end from which on nothing is sent for it; None: a bar's length.
        skew: seconds between this machine's clock and the broker's.
        outside: how far a feature may lie outside its range in training, as a share of that range.
            Markets make new highs: those are remarked on; what lies far beyond was never seen.
    """

    exposure: Share = 1.0
    order: Share = 1.0
    orders_a_day: Annotated[int, Field(ge=1, le=100_000)] = 200
    daily_loss: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    stale: Annotated[float, Field(gt=0.0)] | None = None
    skew: Annotated[float, Field(gt=0.0)] = 30.0
    outside: Annotated[float, Field(ge=0.0)] = 0.5

    def oldest(self, bar_seconds: int) -> float:
        """Seconds after a bar's end from which on nothing is sent for it."""
        return float(bar_seconds) if self.stale is None else self.stale

    @classmethod
    def of(cls, words: Sequence[str]) -> Limits:
        """From `NAME=VALUE` words.

        Raises:
            ConfigError: one is no limit, or has no such value.
        """
        values = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name not in cls.model_fields:
                raise ConfigError(
                    f"--limit {word!r} is no limit: write NAME=VALUE with one of "
                    f"{', '.join(cls.model_fields)}."
                )
            values[name] = value
        return validate(cls, values, "limits")


class Situation(NamedTuple):
    """What limits look at.

    Attributes:
        worth: equity by the rules, account currency.
        fallen: of the broker's equity since the day's first bar, as a share of that.
        age: seconds since the bar's end, by the broker's clock.
        skew: seconds between both clocks.
        outside: as for `Pass`, at the bar.
        sent: orders of the UTC day so far.
        prices: closes, by symbol.
        held: coins, by symbol.
    """

    worth: float
    fallen: float
    age: float
    skew: float
    outside: Outside
    sent: int
    prices: Mapping[str, float]
    held: Mapping[str, float]


def forbidden(limits: Limits, bar_seconds: int, now: Situation) -> str:
    """Why no order at all may be sent now; empty where one may."""
    if now.skew > limits.skew:
        return f"this machine's clock and the broker's are {now.skew:.0f} s apart"
    if now.age > limits.oldest(bar_seconds):
        return f"the bar ended {now.age:.0f} s ago"
    if now.outside.share > limits.outside:
        return str(now.outside)
    return ""


def forbidden_orders(limits: Limits, orders: Mapping[str, float], now: Situation) -> dict[str, str]:
    """Why some orders may not be sent, by symbol.

    Args:
        limits: the account's.
        orders: coins, sales negative, by symbol.
        now: the situation.
    """
    why = dict[str, str]()
    if now.sent + len(orders) > limits.orders_a_day:
        return dict.fromkeys(orders, f"{now.sent} orders were sent today")
    after = {name: held + orders.get(name, 0.0) for name, held in now.held.items()}
    exposure = sum(after[name] * now.prices[name] for name in after) / now.worth
    for name, quantity in orders.items():
        if quantity <= 0.0:
            continue
        share = quantity * now.prices[name] / now.worth
        if now.fallen > limits.daily_loss:
            why[name] = f"the broker's equity fell by {100 * now.fallen:.1f} % today"
        elif share > limits.order + _DUST:
            why[name] = f"the order is {100 * share:.1f} % of equity"
        elif exposure > limits.exposure + _DUST:
            why[name] = f"{100 * exposure:.1f} % of equity would be held"
    return why


def kill(deployment: Path, flat: bool) -> None:
    """Throws the kill switch of a deployment: nothing is sent from now on but what closes it.

    Args:
        deployment: its folder.
        flat: sell what is held.
    """
    write_text(deployment / KILL, f"{FLAT if flat else STOP}\n")


def killed(deployment: Path) -> str | None:
    """`flat` or `stop` where the switch was thrown; an empty or strange file says `stop`."""
    path = deployment / KILL
    if not is_there(path):
        return None
    try:
        return FLAT if content(path, _MOST_BYTES).strip() == FLAT.encode() else STOP
    except FileNotFoundError:  # a link to nothing, or it was removed meanwhile
        return STOP if is_there(path) else None
    except UnreadableError:
        return STOP
