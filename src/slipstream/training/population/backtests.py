"""Backtests of members on their test splits, run together, and their daily returns by group.

If kernel and network allow it, backtests run without a step of Python: networks and environments
in one compiled loop, a template like `kernels/loop.py` rendered once for each kernel. A member
runs many steps before the next one, so that its weights stay in the nearest CPU cache. The policy
is compiled into the loop, because a call by symbol passes a hundred array descriptors, which takes
5 % of a step of two rows. Results are bit-identical to `Policy.act` and the environments' own loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import KernelError
from slipstream.core.random import derive_seed
from slipstream.core.timeline import FOLD, DayRoll, day_closes, day_number, test_split
from slipstream.jit import codegen
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import (
    BATCH_COUNTS,
    BATCH_STATE,
    FAULT,
    HOLD,
    OUT_ACTIONS,
    OUT_MASK,
    OUT_OBS,
)
from slipstream.kernels.spec import MarketSpec
from slipstream.kernels.vector_env import Episodes, allocate_buffers
from slipstream.rl.nets.action_selection import act_greedy_box, act_greedy_discrete
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments import evaluator
from slipstream.training.environments.evaluator import PolicyInput, run_episodes
from slipstream.training.environments.kernel_environment import KernelEnvironment, Timeline
from slipstream.training.population.environment_source import MemberEnv, join_envs
from slipstream.training.population.member import DailyReturns
from slipstream.training.settings.sizing import EvaluationPlan

Floats = NDArray[np.float64]
_SUMMED_UNITS = (
    "count",
    "account currency",
    "bars",
)  # units of metrics that are summed; others are averaged
_RECORDED: tuple[str, ...] = ("equity", "benchmark")
_EXPOSURE = "exposure"  # signed notional / equity; recorded if the backtest is one position
_NO_TIMING = 0.1  # std of timing / std of returns; a held position drifts by as much
_MAX_GAMES = 128  # maximum number of parallel games per member
_STOP_CHECK_STEPS = 1_000  # steps between two stop checks


# Bound by the code generator.
advance: Any = None  # of the kernel's batch loop
decide: Any = None  # of `rl/nets/action_selection.py`
record_row: Any = None  # (s, row): writes the recorded fields of a step; generated per kernel


class DailyMoves(NamedTuple):
    """Movements of the account and its market in one backtest.

    Attributes:
        own, market: float64 [n], daily sums over bars of the returns of the account and the market.
        growth: float64 [n], daily growth factors of the market.
        exposure: signed exposure, summed over the bars.
        bars: number of bars.
    """

    own: Floats
    market: Floats
    growth: Floats
    exposure: float
    bars: int


class BacktestGrowth(NamedTuple):
    """Daily growth of one account in one backtest.

    Attributes:
        symbols: symbols that it trades.
        days: int64 [n], day numbers.
        growth, benchmark: float64 [n], daily growth factors of equity and the equal-weight
            portfolio; all 1 (cash) if the environment has no equal-weight portfolio.
        metrics: metrics of the environment at the end.
        steps: number of bars.
        moves: movements of account and market; None if the backtest is not one position.
    """

    symbols: tuple[str, ...]
    days: NDArray[np.int64]
    growth: Floats
    benchmark: Floats
    metrics: Mapping[str, float]
    steps: int
    moves: DailyMoves | None = None


def backtest_growth(
    time: NDArray[np.int64],
    values: Mapping[str, Floats],
    market: MarketSpec,
    metrics: Mapping[str, float],
    steps: int,
    returns: Floats | None = None,
) -> BacktestGrowth:
    """Compute daily growth factors. All days are included, even after an account was closed.

    Args:
        time: int64 [n], UTC seconds of the ends of the bars.
        values: `equity`, and optionally `benchmark` and `exposure`, after each step, [k], k <= n.
        market: initial capital and day roll.
        metrics: metrics at the end.
        steps: k.
        returns: market return of each bar [n]; required, with `exposure`, for `moves`.
    """
    # A bar that ends at the end of a day belongs to that day.
    day = day_number(time - 1, cast(DayRoll, market.day_roll))
    last = day_closes(day)
    marks = np.minimum(last, steps - 1)

    def growth(name: str) -> Floats:
        if name not in values:
            return np.ones(len(last))
        return _factors(np.concatenate([[market.initial_equity], values[name][marks]]))

    moves = None
    if returns is not None and _EXPOSURE in values and len(returns) == len(time):
        moves = _moves(last, market, values, returns)
    return BacktestGrowth(
        market.symbols, day[last], growth("equity"), growth("benchmark"), metrics, steps, moves
    )


def _moves(
    last: NDArray[np.int64], market: MarketSpec, values: Mapping[str, Floats], returns: Floats
) -> DailyMoves:
    """Sum the bars of each day.

    Args:
        last: last bar of each day.
        market, values, returns: see `backtest_growth`.
    """
    account_returns = _factors(np.concatenate([[market.initial_equity], values["equity"]])) - 1.0
    account_returns = np.pad(
        account_returns, (0, len(returns) - len(account_returns))
    )  # zero after an account was closed
    first = np.concatenate([[0], last[:-1] + 1])
    exposure = float(np.sum(values[_EXPOSURE]))
    return DailyMoves(
        np.add.reduceat(account_returns, first),
        np.add.reduceat(returns, first),
        np.multiply.reduceat(1.0 + returns, first),
        exposure,
        len(returns),
    )


def join_backtests(
    accounts: Sequence[BacktestGrowth], groups: Sequence[int], units: Mapping[str, str]
) -> DailyReturns:
    """Join all backtests of a member, group by group.

    Backtests of one account follow each other within a group. Accounts of other symbols run in
    parallel, start the group with equal capital and are summed.

    Args:
        accounts: the backtests.
        groups: tested group of each.
        units: unit of each metric by name.
    """
    daily_columns, group_metrics, group_column, timing_and_market = [], [], [], []
    moves = [account.moves for account in accounts if account.moves is not None]
    timed = bool(moves) and len(moves) == len(accounts)
    for number in sorted(set(groups)):
        group_accounts = [
            account for account, group in zip(accounts, groups, strict=True) if group == number
        ]
        days = np.unique(np.concatenate([account.days for account in group_accounts]))
        growth = _joint_growth(days, group_accounts, [account.growth for account in group_accounts])
        benchmark = _joint_growth(
            days, group_accounts, [account.benchmark for account in group_accounts]
        )
        daily_columns.append((days, growth - 1.0, benchmark - 1.0))
        group_column.append(np.full(len(days), number, np.int64))
        group_metrics.append(_combine_metrics(group_accounts, growth, benchmark, units))
        if timed:
            group_moves = [account.moves for account in group_accounts if account.moves is not None]
            group_metrics[-1]["net_exposure"] = sum(m.exposure for m in group_moves) / sum(
                m.bars for m in group_moves
            )
            market = _joint_growth(days, group_accounts, [m.growth for m in group_moves]) - 1.0
            timing_and_market.append(
                (_timing(days, group_accounts, _mean_exposures(accounts)), market)
            )
    returns = np.concatenate([part[1] for part in daily_columns])
    timing = np.concatenate([account for account, _ in timing_and_market]) if timed else None
    if timing is not None and not np.std(timing) > _NO_TIMING * np.std(returns):
        timing = np.zeros(len(timing))
    return DailyReturns(
        days=np.concatenate([part[0] for part in daily_columns]),
        returns=returns,
        benchmark=np.concatenate([part[2] for part in daily_columns]),
        group=np.concatenate(group_column),
        metrics=group_metrics,
        timing=timing,
        market=np.concatenate([account for _, account in timing_and_market]) if timed else None,
    )


def _mean_exposures(accounts: Sequence[BacktestGrowth]) -> dict[tuple[str, ...], float]:
    """Return the mean net exposure in each symbol over all backtests."""
    sums: dict[tuple[str, ...], tuple[float, int]] = {}
    for account in accounts:
        if account.moves is not None:
            total, bars = sums.get(account.symbols, (0.0, 0))
            sums[account.symbols] = (total + account.moves.exposure, bars + account.moves.bars)
    return {symbols: total / bars for symbols, (total, bars) in sums.items()}


def _timing(
    days: NDArray[np.int64],
    accounts: Sequence[BacktestGrowth],
    exposure: Mapping[tuple[str, ...], float],
) -> Floats:
    """Return the daily return minus mean net exposure times market return, for the sum of accounts.

    Accounts are weighted by their share of the equity at the start of the day.
    """
    equity = {account.symbols: np.ones(len(days) + 1) for account in accounts}
    timing = {account.symbols: np.zeros(len(days)) for account in accounts}
    for account in accounts:
        assert account.moves is not None
        rows = np.searchsorted(days, account.days)
        equity[account.symbols][rows + 1] *= account.growth
        timing[account.symbols][rows] += (
            account.moves.own - exposure[account.symbols] * account.moves.market
        )
    start = np.array([np.cumprod(account)[:-1] for account in equity.values()])
    total = start.sum(axis=0)
    share = np.divide(start, total, out=np.zeros_like(start), where=total > 0.0)
    return np.asarray((share * np.array(list(timing.values()))).sum(axis=0))


def _joint_growth(
    days: NDArray[np.int64], accounts: Sequence[BacktestGrowth], factors: Sequence[Floats]
) -> Floats:
    """Return daily growth factors of the sum of all accounts."""
    factors_by_symbols = {account.symbols: np.ones(len(days)) for account in accounts}
    for account, account_factors in zip(accounts, factors, strict=True):
        factors_by_symbols[account.symbols][np.searchsorted(days, account.days)] *= account_factors
    if len(factors_by_symbols) == 1:
        return next(iter(factors_by_symbols.values()))
    equity = np.mean([np.cumprod(column) for column in factors_by_symbols.values()], axis=0)
    return _factors(np.concatenate([[1.0], equity]))


def _factors(values: Floats) -> Floats:
    """Return the ratio of each value to the previous one; 1 after the value reaches zero."""
    previous, current = values[:-1], values[1:]
    return np.divide(current, previous, out=np.ones(len(current)), where=previous > 0.0)


def _combine_metrics(
    accounts: Sequence[BacktestGrowth], growth: Floats, benchmark: Floats, units: Mapping[str, str]
) -> dict[str, float]:
    """Return the metrics of a group: counts and money are summed, others averaged by steps."""
    if len(accounts) == 1:
        return dict(accounts[0].metrics)
    metrics = {}
    for name in accounts[0].metrics:
        values = [account.metrics[name] for account in accounts]
        if units.get(name) in _SUMMED_UNITS:
            metrics[name] = float(np.sum(values))
        else:
            metrics[name] = float(
                np.average(values, weights=[account.steps for account in accounts])
            )
    for name, factors in (("total_return", growth), ("benchmark_return", benchmark)):
        if name in metrics:
            metrics[name] = float(np.prod(factors) - 1.0)
    return metrics


def score(
    members: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None] = lambda: None
) -> list[DailyReturns]:
    """Score every member of a policy on its own test split with its most likely actions.

    Args:
        members: [M], members of the policy; each has a `test` split, and they are `alike`.
        policy: policy of all members.
        check_stop: called regularly; may raise to stop.
    """
    if members[0].environment.spec.market is None:
        return _games(members, policy, check_stop)
    return _market(members, policy, check_stop)


def batch_key(member_env: MemberEnv) -> tuple[int, ...]:
    """Return a key: members with equal keys can be scored together."""
    settings = member_env.member.config.evaluation
    if member_env.environment.spec.market is not None:
        return len(_records(member_env)), settings.deterministic, settings.seed
    purpose = str(member_env.member.test).rpartition("/")[2]  # all folds use the same episodes
    max_steps = EvaluationPlan.from_config(
        member_env.member.config, member_env.environment
    ).max_steps
    return derive_seed(settings.seed, purpose), settings.max_episodes, max_steps


def _records(member_env: MemberEnv) -> tuple[Any, ...]:
    assert member_env.member.test is not None
    return member_env.environment.records(member_env.member.test)


def _backend(member_env: MemberEnv) -> str:
    return member_env.member.config.training.resolved_backend


def _market(
    places: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None]
) -> list[DailyReturns]:
    member_records = [_records(place) for place in places]
    kernel_env = places[0].environment.part(KernelEnvironment)
    assert kernel_env is not None
    batch_env = kernel_env.batched(member_records)
    timeline = batch_env.part(Timeline)
    assert timeline is not None
    records = batch_env.records("train")
    per_member, total = len(member_records[0]), len(records)
    times = [timeline.ends(record) for record in records]
    market_returns = timeline.market_returns(set(records))
    env = batch_env.make_eval_envs("train", per_member, len(places), _backend(places[0]))
    assert isinstance(env, KernelVectorEnv)  # markets have one player
    max_steps = max(len(time) for time in times)
    settings = places[0].member.config.evaluation
    recorded = _RECORDED if market_returns is None else (*_RECORDED, _EXPOSURE)
    values, ended = _run(
        env,
        policy,
        recorded,
        max_steps,
        check_stop,
        None if settings.deterministic else settings.seed,
    )
    accounts: list[BacktestGrowth | None] = [None] * total
    units = {metric.name: metric.unit for metric in env.spec.metrics}
    markets = {record: batch_env.spec_for((record,)).market for record in set(records)}
    for row, e in enumerate(ended.e.tolist()):
        market = markets[records[e]]
        assert market is not None
        steps = int(ended.length[row])
        series = {name: series[:steps, e] for name, series in values.items()}
        metrics = {name: float(column[row]) for name, column in ended.metrics.items()}
        returns = None if market_returns is None else market_returns[records[e]]
        accounts[e] = backtest_growth(times[e], series, market, metrics, steps, returns)
    results = []
    for m, place in enumerate(places):
        rows = slice(m * per_member, (m + 1) * per_member)
        member_accounts = [account for account in accounts[rows] if account is not None]
        results.append(join_backtests(member_accounts, _groups_of(place, times[rows]), units))
    return results


def _run(
    env: KernelVectorEnv,
    policy: Policy,
    recorded: tuple[str, ...],
    max_steps: int,
    check_stop: Callable[[], None],
    seed: int | None,
) -> tuple[dict[str, Floats], Episodes]:
    """Step all environments to the end of their backtests.

    Returns:
        Recorded fields after every step, [max_steps, E] by name, and all completed episodes.
    """
    spec, e = env.spec, env.num_envs
    recorded = tuple(name for name in recorded if name in spec.trace)
    values = np.zeros((max_steps, e, len(recorded)))
    if seed is None and BacktestLoop.is_supported(env, policy):
        loop = BacktestLoop(env, policy, recorded)
        loop.reset()
        for begin in range(0, max_steps, _STOP_CHECK_STEPS):
            loop.run(begin, min(begin + _STOP_CHECK_STEPS, max_steps), values)
            check_stop()
    else:
        step_backtests(env, policy, recorded, values, check_stop, seed)
    ended = env.drain_episodes()
    running = np.setdiff1d(np.arange(e), ended.e)
    if len(running):
        raise KernelError(
            f"Kernel `{env.kernel.name}` does not end an evaluation at the end of its `timeline`: "
            f"environment {int(running[0])} continues after {max_steps:,} steps."
        )
    return {name: values[..., k] for k, name in enumerate(recorded)}, ended


def run_backtests(
    begin: int, end: int, num_envs: int, ctx: Any, mask: Any, batch: Any, out: Any, values: Any
) -> None:
    """Run steps `begin` to `end` of all members, `num_envs` environments each.

    Args:
        begin, end: range of steps.
        num_envs: environments per member.
        ctx, mask: policy arrays and action mask; see `rl/nets/action_selection.py`.
        batch, out: arrays of the kernel's loop; `kernels/loop.py` defines their indices.
        values: float64 [steps, E, noted], written.
    """
    state, counts, observations = batch[BATCH_STATE], batch[BATCH_COUNTS], out[OUT_OBS]
    obs = observations.reshape(len(observations), observations.size // len(observations))
    for m in range(values.shape[1] // num_envs):
        lo, hi = m * num_envs, (m + 1) * num_envs
        for t in range(begin, end):
            decide(ctx, m, lo, hi, obs, mask, out[OUT_ACTIONS])
            advance(lo, hi, t, HOLD, batch, out)
            if counts[FAULT] != 0:  # a reward is NaN or infinite; reported later
                return
            for e in range(lo, hi):
                record_row(state[e], values[t, e])


class BacktestLoop:
    """Compiled loop of environments and the policies that act in them.

    Args:
        env: M x R environments that hold at the end of an episode.
        policy: policy of M members.
        recorded: STATE fields recorded after each step.
    """

    def __init__(self, env: KernelVectorEnv, policy: Policy, recorded: tuple[str, ...]) -> None:
        self._env, self._envs_per_member = env, env.num_envs // policy.members
        self._actor = policy.actor(self._envs_per_member).greedy_actor
        batch, self._out = env.loop_arguments()
        self._mask = self._out[OUT_MASK] if env.mask_size else np.zeros((0, 0), np.bool_)
        lines = ["def record_row(s, row):"]
        lines += [f"    row[{k}] = s.{name}" for k, name in enumerate(recorded)]
        text = "\n\n\n".join(["\n".join(lines), codegen.get_source([run_backtests])]) + "\n"
        examples = (0, 0, 0, self._actor, self._mask, batch, self._out, np.zeros((1, 1, 1)))
        decide = act_greedy_box if policy.actions.continuous else act_greedy_discrete
        module = codegen.compile_module(
            f"{env.kernel.name}_backtests",
            text,
            {"run_backtests": examples},
            {"decide": cast(FunctionType, decide)},
            {
                **{"Any": Any, "HOLD": HOLD, "FAULT": FAULT},
                **{"BATCH_STATE": BATCH_STATE, "BATCH_COUNTS": BATCH_COUNTS},
                **{"OUT_ACTIONS": OUT_ACTIONS, "OUT_OBS": OUT_OBS},
            },
            linked={"advance": env.loop.advance},
        )
        self._run = module["run_backtests"]

    @staticmethod
    def is_supported(env: KernelVectorEnv, policy: Policy) -> bool:
        """Return whether the loop supports this kernel and network."""
        return env.backend == "compiled" and env.spec.players == 1 and not policy.is_image

    def reset(self) -> None:
        """Start all backtests."""
        self._env.reset(self._out[OUT_OBS], self._mask if self._env.mask_size else None)

    def run(self, begin: int, end: int, values: NDArray[np.float64]) -> None:
        """Run steps `begin` to `end` and record into values [steps, E, noted].

        Raises:
            KernelError: an environment returned NaN or infinity, or indexed beyond an array.
        """
        batch, _ = self._env.loop_arguments()
        try:
            self._run(
                begin,
                end,
                self._envs_per_member,
                self._actor,
                self._mask,
                batch,
                self._out,
                values,
            )
        except Exception as error:
            raise self._env.explain_error(error, self._out[OUT_ACTIONS]) from error
        self._env.raise_fault(self._out[OUT_ACTIONS])


def step_backtests(
    env: KernelVectorEnv,
    policy: Policy,
    recorded: tuple[str, ...],
    values: Floats,
    check_stop: Callable[[], None] = lambda: None,
    seed: int | None = None,
) -> None:
    """Step-by-step equivalent of `BacktestLoop`; with a seed, actions are sampled."""
    out, e = allocate_buffers(env), env.num_envs
    env.reset(out.obs, out.mask)
    episode = np.tile(np.arange(e // policy.members), policy.members)
    for t in range(len(values)):
        inputs = PolicyInput(out.obs, out.mask, episode, np.full(e, t))
        env.step(evaluator.predict(policy, inputs, seed), out, t)
        for k, column in enumerate(env.read(recorded).values()):
            values[t, :, k] = column
        if t % _STOP_CHECK_STEPS == 0:
            check_stop()


def _groups_of(member_env: MemberEnv, times: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the tested group of each record, counted within the fold."""
    member = member_env.member
    fold = member.fold.removeprefix(FOLD)
    if not (fold.isdigit() and member.test == test_split(member.fold)):
        return [0] * len(times)
    ranges = member_env.environment.provenance["folds"]["folds"][int(fold)]["test"]
    firsts = np.array([lo for lo, _ in ranges])
    return [int(np.searchsorted(firsts, time[0], side="right")) - 1 for time in times]


def _games(
    places: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None] = lambda: None
) -> list[DailyReturns]:
    """Return episode returns; every member plays the same episodes."""
    seed, episodes, max_steps = batch_key(places[0])
    num_envs = min(_MAX_GAMES, episodes)
    batch_env = join_envs(places)
    members, backend = len(places), _backend(places[0])

    def act(inputs: PolicyInput) -> NDArray[Any]:
        return evaluator.predict(
            policy, inputs, None if places[0].member.config.evaluation.deterministic else seed
        )

    with batch_env.make_eval_envs("train", num_envs, members, backend, max_steps) as env:
        tracks = run_episodes(
            env, act, episodes, seed, members=members, record=False, check_stop=check_stop
        )
    numbers = np.arange(episodes)
    results = []
    for member_tracks in tracks:
        # A lost episode counts as the mean of the others.
        returns = np.full(episodes, np.mean([track.episode_return for track in member_tracks]))
        returns[[int(track.name.split()[-1]) for track in member_tracks]] = [
            track.episode_return for track in member_tracks
        ]
        names = member_tracks[0].metrics
        means = {
            name: float(np.mean([track.metrics[name] for track in member_tracks])) for name in names
        }
        zeros = np.zeros(episodes)
        results.append(DailyReturns(numbers, returns, zeros, np.zeros(episodes, np.int64), [means]))
    return results
