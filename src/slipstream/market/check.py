"""The data check: says what is odd in the files and what loading will do."""

from __future__ import annotations

from slipstream.market.clean import kind_of
from slipstream.market.config import DataConfig
from slipstream.market.finding import CheckReport, Finding, render
from slipstream.market.inspect import facts, inspect
from slipstream.market.source import resolve_folder

__all__ = ["CheckReport", "Finding", "check", "render"]


def check(config: DataConfig) -> CheckReport:
    """Checks the prices that `config` names; never stops at the first problem.

    Raises:
        DataError: only when there is nothing to check: no folder, no files.
    """
    found = inspect(config)
    kinds = [kind_of(symbol, config) for symbol in found.files]
    return CheckReport(
        str(resolve_folder(config.folder)),
        found.findings,
        tuple(found.files),
        tuple(facts(one) for one in found.inspected),
        found.ways,
        # A single coin cannot be balanced against others.
        "portfolio" if len(kinds) > 1 and set(kinds) == {"24/7"} else "forex",
    )
