"""What markets add to slipstream; see `core/plugins.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.environments.environment import Environment, Part


def part(kind: type[Part], environment: Environment) -> Part | None:
    """Return what reports compare the decisions in a market with."""
    if kind.__name__ != "Backtest":
        return None
    from slipstream.report.portfolio.passes import MarketBacktest

    return MarketBacktest.of(environment)
