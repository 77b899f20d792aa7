"""Plugin of the markets: commands, kernels, report pages and starter configs.

See `core/plugins.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.report.inputs import RunEvaluation
    from slipstream.report.page import Page
    from slipstream.training.environments.environment import Environment, Part

commands = {
    "data": "slipstream.markets.commands.data",
    "deploy": "slipstream.markets.commands.deploy",
    "paper": "slipstream.markets.commands.paper",
}
folders = {"current": "slipstream.markets.deployment_folder"}
kernels = {
    "forex": "slipstream.markets.forex.kernel",
    "portfolio": "slipstream.markets.portfolio.kernel",
}


def part(kind: type[Part], environment: Environment) -> Part | None:
    """Return the backtests of a market environment, or its hold-out register."""
    if kind.__name__ == "Backtest":
        from slipstream.markets.evaluation.market_backtest import MarketBacktest

        return MarketBacktest.from_environment(environment)
    if kind.__name__ == "HoldoutRegister" and environment.spec.market is not None:
        from slipstream.markets.evaluation.holdout_register import PriceRegister

        return PriceRegister(environment)
    return None


def pages(environment: Environment | None, evaluation: RunEvaluation) -> Page | None:
    """Return the page of a run that was evaluated on prices."""
    if evaluation.market is None:
        return None
    from slipstream.markets.report.market_page import market_page
    from slipstream.markets.report.portfolio_page import portfolio_page

    return portfolio_page(evaluation) if evaluation.is_portfolio else market_page(evaluation)


def init(environment: str, folder: str | None) -> tuple[dict[str, Any], list[str]] | None:
    """Return a starter config for a folder of prices."""
    from slipstream.markets.starter_config import build_config

    return build_config(environment, folder)
