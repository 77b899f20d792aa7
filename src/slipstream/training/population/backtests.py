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
from slipstream.training.population.environment_source import MemberEnv, joined
from slipstream.training.population.member import DailyReturns
from slipstream.training.settings.sizing import EvaluationPlan

Floats = NDArray[np.float64]
_ADDED = (
    "count",
    "account currency",
    "bars",
)  # units of metrics that are summed; others are averaged
_NOTED: tuple[str, ...] = ("equity", "benchmark")
_EXPOSURE = "exposure"  # signed notional / equity; recorded if the backtest is one position
_NO_TIMING = 0.1  # std of timing / std of returns; a held position drifts by as much
_MAX_GAMES = 128  # maximum number of parallel games per member
_LOOK = 1_000  # steps between two stop checks


# Bound by the code generator.
advance: Any = None  # of the kernel's batch loop
decide: Any = None  # of `rl/nets/action_selection.py`
note: Any = None  # (s, row): copies what is recorded after each step; written for the kernel


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
    own = _factors(np.concatenate([[market.initial_equity], values["equity"]])) - 1.0
    own = np.pad(own, (0, len(returns) - len(own)))  # zero after an account was closed
    first = np.concatenate([[0], last[:-1] + 1])
    exposure = float(np.sum(values[_EXPOSURE]))
    return DailyMoves(
        np.add.reduceat(own, first),
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
    parts, facts, numbers, beside = [], [], [], []
    moves = [one.moves for one in accounts if one.moves is not None]
    timed = bool(moves) and len(moves) == len(accounts)
    for number in sorted(set(groups)):
        own = [one for one, group in zip(accounts, groups, strict=True) if group == number]
        days = np.unique(np.concatenate([one.days for one in own]))
        growth = _together(days, own, [one.growth for one in own])
        benchmark = _together(days, own, [one.benchmark for one in own])
        parts.append((days, growth - 1.0, benchmark - 1.0))
        numbers.append(np.full(len(days), number, np.int64))
        facts.append(_combined(own, growth, benchmark, units))
        if timed:
            each = [one.moves for one in own if one.moves is not None]
            facts[-1]["net_exposure"] = sum(m.exposure for m in each) / sum(m.bars for m in each)
            market = _together(days, own, [m.growth for m in each]) - 1.0
            beside.append((_timing(days, own, _mean_exposures(accounts)), market))
    returns = np.concatenate([part[1] for part in parts])
    timing = np.concatenate([one for one, _ in beside]) if timed else None
    if timing is not None and not np.std(timing) > _NO_TIMING * np.std(returns):
        timing = np.zeros(len(timing))
    return DailyReturns(
        days=np.concatenate([part[0] for part in parts]),
        returns=returns,
        benchmark=np.concatenate([part[2] for part in parts]),
        group=np.concatenate(numbers),
        metrics=facts,
        timing=timing,
        market=np.concatenate([one for _, one in beside]) if timed else None,
    )


def _mean_exposures(accounts: Sequence[BacktestGrowth]) -> dict[tuple[str, ...], float]:
    """Return the mean net exposure in each symbol over all backtests."""
    sums: dict[tuple[str, ...], tuple[float, int]] = {}
    for one in accounts:
        if one.moves is not None:
            total, bars = sums.get(one.symbols, (0.0, 0))
            sums[one.symbols] = (total + one.moves.exposure, bars + one.moves.bars)
    return {symbols: total / bars for symbols, (total, bars) in sums.items()}


def _timing(
    days: NDArray[np.int64],
    accounts: Sequence[BacktestGrowth],
    exposure: Mapping[tuple[str, ...], float],
) -> Floats:
    """Return the daily return minus mean net exposure times market return, for the sum of accounts.

    Accounts are weighted by their share of the equity at the start of the day.
    """
    worth = {one.symbols: np.ones(len(days) + 1) for one in accounts}
    timing = {one.symbols: np.zeros(len(days)) for one in accounts}
    for one in accounts:
        assert one.moves is not None
        places = np.searchsorted(days, one.days)
        worth[one.symbols][places + 1] *= one.growth
        timing[one.symbols][places] += one.moves.own - exposure[one.symbols] * one.moves.market
    start = np.array([np.cumprod(one)[:-1] for one in worth.values()])
    total = start.sum(axis=0)
    share = np.divide(start, total, out=np.zeros_like(start), where=total > 0.0)
    return np.asarray((share * np.array(list(timing.values()))).sum(axis=0))


def _together(
    days: NDArray[np.int64], accounts: Sequence[BacktestGrowth], factors: Sequence[Floats]
) -> Floats:
    """Return daily growth factors of the sum of all accounts."""
    each = {one.symbols: np.ones(len(days)) for one in accounts}
    for one, own in zip(accounts, factors, strict=True):
        each[one.symbols][np.searchsorted(days, one.days)] *= own
    if len(each) == 1:
        return next(iter(each.values()))
    worth = np.mean([np.cumprod(column) for column in each.values()], axis=0)
    return _factors(np.concatenate([[1.0], worth]))


def _factors(worth: Floats) -> Floats:
    """Return the ratio of each value to the previous one; 1 after the value reaches zero."""
    before, after = worth[:-1], worth[1:]
    return np.divide(after, before, out=np.ones(len(after)), where=before > 0.0)


def _combined(
    accounts: Sequence[BacktestGrowth], growth: Floats, benchmark: Floats, units: Mapping[str, str]
) -> dict[str, float]:
    """Return the metrics of a group: counts and money are summed, others averaged by steps."""
    if len(accounts) == 1:
        return dict(accounts[0].metrics)
    found = {}
    for name in accounts[0].metrics:
        values = [one.metrics[name] for one in accounts]
        if units.get(name) in _ADDED:
            found[name] = float(np.sum(values))
        else:
            found[name] = float(np.average(values, weights=[one.steps for one in accounts]))
    for name, factors in (("total_return", growth), ("benchmark_return", benchmark)):
        if name in found:
            found[name] = float(np.prod(factors) - 1.0)
    return found


def score(
    places: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None] = lambda: None
) -> list[DailyReturns]:
    """Score every member of a policy on its own test split with its most likely actions.

    Args:
        places: [M], members of the policy; each has a `test` split, and they are `alike`.
        policy: policy of all members.
        check_stop: called regularly; may raise to stop.
    """
    if places[0].environment.spec.market is None:
        return _games(places, policy, check_stop)
    return _market(places, policy, check_stop)


def alike(place: MemberEnv) -> tuple[int, ...]:
    """Return a key: members with equal keys can be scored together."""
    settings = place.member.config.evaluation
    if place.environment.spec.market is not None:
        return len(_records(place)), settings.deterministic, settings.seed
    purpose = str(place.member.test).rpartition("/")[2]  # all folds use the same episodes
    max_steps = EvaluationPlan.from_config(place.member.config, place.environment).max_steps
    return derive_seed(settings.seed, purpose), settings.max_episodes, max_steps


def _records(place: MemberEnv) -> tuple[Any, ...]:
    assert place.member.test is not None
    return place.environment.records(place.member.test)


def _backend(place: MemberEnv) -> str:
    return place.member.config.training.resolved_backend


def _market(
    places: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None]
) -> list[DailyReturns]:
    own = [_records(place) for place in places]
    rules = places[0].environment.part(KernelEnvironment)
    assert rules is not None
    together = rules.batched(own)
    timeline = together.part(Timeline)
    assert timeline is not None
    records = together.records("train")
    each, total = len(own[0]), len(records)
    times = [timeline.ends(record) for record in records]
    moved = timeline.market_returns(set(records))
    env = together.make_eval_envs("train", each, len(places), _backend(places[0]))
    assert isinstance(env, KernelVectorEnv)  # markets have one player
    max_steps = max(len(time) for time in times)
    settings = places[0].member.config.evaluation
    noted = _NOTED if moved is None else (*_NOTED, _EXPOSURE)
    values, ended = _run(
        env, policy, noted, max_steps, check_stop, None if settings.deterministic else settings.seed
    )
    accounts: list[BacktestGrowth | None] = [None] * total
    units = {metric.name: metric.unit for metric in env.spec.metrics}
    markets = {record: together.spec_for((record,)).market for record in set(records)}
    for row, e in enumerate(ended.e.tolist()):
        market = markets[records[e]]
        assert market is not None
        steps = int(ended.length[row])
        marks = {name: series[:steps, e] for name, series in values.items()}
        metrics = {name: float(column[row]) for name, column in ended.metrics.items()}
        returns = None if moved is None else moved[records[e]]
        accounts[e] = backtest_growth(times[e], marks, market, metrics, steps, returns)
    found = []
    for m, place in enumerate(places):
        mine = slice(m * each, (m + 1) * each)
        passes = [one for one in accounts[mine] if one is not None]
        found.append(join_backtests(passes, _groups_of(place, times[mine]), units))
    return found


def _run(
    env: KernelVectorEnv,
    policy: Policy,
    noted: tuple[str, ...],
    max_steps: int,
    check_stop: Callable[[], None],
    seed: int | None,
) -> tuple[dict[str, Floats], Episodes]:
    """Step all environments to the end of their backtests.

    Returns:
        Recorded fields after every step, [max_steps, E] by name, and all completed episodes.
    """
    spec, e = env.spec, env.num_envs
    noted = tuple(name for name in noted if name in spec.trace)
    values = np.zeros((max_steps, e, len(noted)))
    if seed is None and BacktestLoop.fits(env, policy):
        loop = BacktestLoop(env, policy, noted)
        loop.reset()
        for begin in range(0, max_steps, _LOOK):
            loop.run(begin, min(begin + _LOOK, max_steps), values)
            check_stop()
    else:
        step_backtests(env, policy, noted, values, check_stop, seed)
    ended = env.drain_episodes()
    running = np.setdiff1d(np.arange(e), ended.e)
    if len(running):
        raise KernelError(
            f"Kernel `{env.kernel.name}` does not end an evaluation at the end of its `timeline`: "
            f"environment {int(running[0])} continues after {max_steps:,} steps."
        )
    return {name: values[..., k] for k, name in enumerate(noted)}, ended


def run_backtests(
    begin: int, end: int, num_envs: int, by: Any, mask: Any, batch: Any, out: Any, values: Any
) -> None:
    """Run steps `begin` to `end` of all members, `num_envs` environments each.

    Args:
        by, mask: policy arrays and action mask; see `rl/nets/action_selection.py`.
        batch, out: arrays of the kernel's loop; `kernels/loop.py` defines their indices.
        values: float64 [steps, E, noted], written.
    """
    state, counts, shown = batch[BATCH_STATE], batch[BATCH_COUNTS], out[OUT_OBS]
    obs = shown.reshape(len(shown), shown.size // len(shown))
    for m in range(values.shape[1] // num_envs):
        lo, hi = m * num_envs, (m + 1) * num_envs
        for t in range(begin, end):
            decide(by, m, lo, hi, obs, mask, out[OUT_ACTIONS])
            advance(lo, hi, t, HOLD, batch, out)
            if counts[FAULT] != 0:  # a reward is NaN or infinite; reported later
                return
            for e in range(lo, hi):
                note(state[e], values[t, e])


class BacktestLoop:
    """Compiled loop of environments and the policies that act in them.

    Args:
        env: M x R environments that hold at the end of an episode.
        policy: policy of M members.
        noted: STATE fields recorded after each step.
    """

    def __init__(self, env: KernelVectorEnv, policy: Policy, noted: tuple[str, ...]) -> None:
        self._env, self._envs_per_member = env, env.num_envs // policy.members
        self._decider = policy.actor(self._envs_per_member).greedy_actor
        batch, self._out = env.loop_arguments()
        self._mask = self._out[OUT_MASK] if env.mask_size else np.zeros((0, 0), np.bool_)
        lines = ["def note(s, row):"]
        lines += [f"    row[{k}] = s.{name}" for k, name in enumerate(noted)]
        text = "\n\n\n".join(["\n".join(lines), codegen.get_source([run_backtests])]) + "\n"
        examples = (0, 0, 0, self._decider, self._mask, batch, self._out, np.zeros((1, 1, 1)))
        decide = act_greedy_box if policy.actions.continuous else act_greedy_discrete
        module = codegen.compile_module(
            f"{env.kernel.name}_passes",
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
    def fits(env: KernelVectorEnv, policy: Policy) -> bool:
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
                self._decider,
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
    noted: tuple[str, ...],
    values: Floats,
    check_stop: Callable[[], None] = lambda: None,
    seed: int | None = None,
) -> None:
    """Step-by-step equivalent of `BacktestLoop`; with a seed, actions are sampled."""
    out, e = allocate_buffers(env), env.num_envs
    env.reset(out.obs, out.mask)
    episode = np.tile(np.arange(e // policy.members), policy.members)
    for t in range(len(values)):
        seen = PolicyInput(out.obs, out.mask, episode, np.full(e, t))
        env.step(evaluator.predict(policy, seen, seed), out, t)
        for k, now in enumerate(env.read(noted).values()):
            values[t, :, k] = now
        if t % _LOOK == 0:
            check_stop()


def _groups_of(place: MemberEnv, times: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the tested group of each record, counted within the fold."""
    member = place.member
    fold = member.fold.removeprefix(FOLD)
    if not (fold.isdigit() and member.test == test_split(member.fold)):
        return [0] * len(times)
    ranges = place.environment.provenance["folds"]["folds"][int(fold)]["test"]
    firsts = np.array([lo for lo, _ in ranges])
    return [int(np.searchsorted(firsts, time[0], side="right")) - 1 for time in times]


def _games(
    places: Sequence[MemberEnv], policy: Policy, check_stop: Callable[[], None] = lambda: None
) -> list[DailyReturns]:
    """Return episode returns; every member plays the same episodes."""
    seed, episodes, max_steps = alike(places[0])
    num_envs = min(_MAX_GAMES, episodes)
    together = joined(places)
    members, backend = len(places), _backend(places[0])

    def act(seen: PolicyInput) -> NDArray[Any]:
        return evaluator.predict(
            policy, seen, None if places[0].member.config.evaluation.deterministic else seed
        )

    with together.make_eval_envs("train", num_envs, members, backend, max_steps) as env:
        tracks = run_episodes(
            env, act, episodes, seed, members=members, record=False, check_stop=check_stop
        )
    numbers = np.arange(episodes)
    found = []
    for own in tracks:
        # A lost episode counts as the mean of the others.
        returns = np.full(episodes, np.mean([track.episode_return for track in own]))
        returns[[int(track.name.split()[-1]) for track in own]] = [
            track.episode_return for track in own
        ]
        names = own[0].metrics
        means = {name: float(np.mean([track.metrics[name] for track in own])) for name in names}
        zeros = np.zeros(episodes)
        found.append(DailyReturns(numbers, returns, zeros, np.zeros(episodes, np.int64), [means]))
    return found
