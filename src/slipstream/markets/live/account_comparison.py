"""Account comparison: an account against `evaluate` on its bars, and against a broker's fills."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.errors import CheckpointError
from slipstream.core.storage.atomic_io import to_jsonable, write_json
from slipstream.markets.backtest_spec import PortfolioBacktestSpec
from slipstream.markets.data.bars import IntArray
from slipstream.markets.live.deployment import Deployment
from slipstream.markets.live.journal import BarExecution, Decision, Journal, PlannedOrder
from slipstream.markets.live.paper_account import JOURNAL
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.policies import DeployedPolicy

RERUN = "rerun.json"
_MAX_CURVE_POINTS, _MAX_CHANGES = 1_000, 200  # points and changes stored for the dashboard


class ComparedPass(NamedTuple):
    """One pass of the account compared with `evaluate` on the same bars.

    Attributes:
        name: name of the pass.
        rows: decisions of the journal.
        num_equal: number of compared decisions with equal action and equity.
        num_compared: number of decisions that both contain.
        first_difference: open of the first bar that differs, None if there is none.
        curve: open of a bar and equity at its close, by `evaluate`, thinned.
        position_changes: newest changes of units: open, units before, units after.
        fills, costs: totals by `evaluate`; costs in account currency.
        liquidated_equity: equity by `evaluate` after closing all positions at the last close,
            account currency.
    """

    name: str
    rows: list[Decision]
    num_equal: int
    num_compared: int
    first_difference: int | None
    curve: list[tuple[int, float]]
    position_changes: list[tuple[int, Any, Any]]
    fills: int
    costs: float
    liquidated_equity: float


class Execution(NamedTuple):
    """Execution by a broker compared with the fills of the rules.

    Attributes:
        orders, filled: numbers of sent orders, and of those filled at least in part.
        bars: number of traded bars; superseded: those whose orders the next bar replaced.
        slippage: adverse difference between fills and the rules' mid price, as a fraction of the
            filled value; None if nothing can be compared yet.
        assumed: the same by the rules' assumption of half the spread and `slippage_bp`.
        tracking_error: standard deviation of the broker's return minus the rules', per bar; None
            before the third bar.
    """

    orders: int
    filled: int
    bars: int
    superseded: int
    slippage: float | None
    assumed: float | None
    tracking_error: float | None


class AccountComparison(NamedTuple):
    """Comparison of one account.

    Attributes:
        policy: the deployed policy.
        passes: each pass compared with `evaluate`.
        execution: execution by the broker; None if no bar was traded.
    """

    policy: DeployedPolicy
    passes: list[ComparedPass]
    execution: Execution | None


def compare(name: str, trust: bool = False) -> AccountComparison:
    """Compare the journal with `slipstream evaluate NAME` on the stored files.

    The result of `evaluate` is written to the account's folder for the dashboard.
    """
    deployment = Deployment.open(name)
    policy = deployment.policy(trust)
    bars, start = deployment.stored_bars()
    environment = policy.environment(bars, None, start).part(KernelEnvironment)
    assert environment is not None
    episodes = policy.evaluate(environment).splits["window"].episodes
    path = deployment.account(deployment.current) / JOURNAL
    with closing(Journal(path)) as journal:
        decided = [journal.decisions(episode.name) for episode in episodes]
        orders, executed = journal.orders(), journal.executed_bars()
        unexpected = {*journal.pass_names()} ^ {episode.name for episode in episodes}
    unexpected |= {order.symbol for order in orders} - {*environment.training_context["symbols"]}
    if unexpected or (executed and policy.config.env_name != "portfolio"):
        what = (
            f"other passes or symbols, {min(unexpected)}"
            if unexpected
            else "orders of a policy without a broker"
        )
        raise CheckpointError(
            f"{path} was not written by slipstream: it has {what}. Restore the file "
            "from a backup, or deploy again, which starts a new account."
        )
    opens = environment.loaded.data.time
    passes = [_compare_pass(*pair, opens) for pair in zip(episodes, decided, strict=True)]
    summaries = [{**compared._asdict(), "rows": len(compared.rows)} for compared in passes]
    write_json(
        deployment.account(deployment.current) / RERUN,
        to_jsonable({"at": time.time(), "passes": summaries}),
    )
    return AccountComparison(
        policy, passes, _execution_stats(environment, orders, executed) if executed else None
    )


def _compare_pass(episode: EpisodeResult, rows: list[Decision], opens: IntArray) -> ComparedPass:
    """Compare a pass of `evaluate` with the journal's decisions.

    Args:
        episode: result of `evaluate`.
        rows: decisions of the journal.
        opens: int64 [bars] of the environment.
    """
    step_by_time = {int(opens[bar - 1]): k for k, bar in enumerate(episode.trace["bar"])}
    equity = episode.trace["equity"]
    num_compared, num_equal, first_difference = 0, 0, None
    for row in rows:
        k = step_by_time.get(row.time)
        if k is None:  # the last decision: `evaluate` has no bar after it
            continue
        num_compared += 1
        is_equal = tuple(episode.actions[k].tolist()) == row.action
        is_equal &= k == 0 or float(equity[k - 1]) == row.equity
        num_equal += is_equal
        if first_difference is None and not is_equal:
            first_difference = row.time
    at, stride = opens[episode.trace["bar"]], -(-len(equity) // _MAX_CURVE_POINTS)
    units = episode.trace["units"].tolist() if "units" in episode.trace else []
    changes = [
        (int(at[k]), units[k - 1], units[k])
        for k in range(1, len(units))
        if units[k] != units[k - 1]
    ]
    return ComparedPass(
        episode.name,
        rows,
        num_equal,
        num_compared,
        first_difference,
        curve=[(int(at[k]), float(equity[k])) for k in range(0, len(equity), stride)],
        position_changes=changes[-_MAX_CHANGES:],
        fills=int(episode.trace["fills"][-1]),
        costs=sum(float(episode.trace[name][-1]) for name in episode.trace if "cost_" in name),
        liquidated_equity=float(equity[-1]),
    )


def _execution_stats(
    environment: KernelEnvironment, orders: Sequence[PlannedOrder], bars: Sequence[BarExecution]
) -> Execution:
    """Compare the broker's fills and equity with those of the rules."""
    declared = environment.kernel.hook("backtest_spec")
    backtest = declared(environment.records("window")[0], environment.loaded.data)
    assert isinstance(backtest, PortfolioBacktestSpec)
    paid, assumed, value = 0.0, 0.0, 0.0
    for order in orders:
        row = int(
            np.searchsorted(backtest.time, order.time, "right")
        )  # orders fill in the next bar
        if order.filled == 0.0 or row > backtest.last:
            continue
        column = backtest.names.index(order.symbol)
        mid = float(backtest.fill[row, column])
        paid += order.filled * (order.average - mid)
        assumed += abs(order.filled) * (
            float(backtest.half_spread[row, column]) + backtest.slippage * mid
        )
        value += abs(order.filled) * mid
    broker_equity, rules = np.array([(bar.equity, bar.rules_equity) for bar in bars]).T
    differences = broker_equity[1:] / broker_equity[:-1] - rules[1:] / rules[:-1]
    return Execution(
        orders=len(orders),
        filled=sum(order.filled != 0.0 for order in orders),
        bars=len(bars),
        superseded=sum(bar.outcome not in ("traded", "") for bar in bars),
        slippage=paid / value if value else None,
        assumed=assumed / value if value else None,
        tracking_error=float(np.std(differences, ddof=1)) if len(differences) > 1 else None,
    )
