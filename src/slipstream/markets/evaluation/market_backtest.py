"""Backtest: the continuous passes of one split, with baselines replayed on the same bars.

Every baseline is a sequence of actions that the same kernel replays on the agent's bars. For single
positions they are flat, buy and hold, short, moving-average cross and oracle, at exposure 1 and
without the agent's own stops, cooldowns and loss limits. For portfolios they are cash, equal weight
bought once (the benchmark), equal weight rebalanced, each asset bought and held, and the oracle if
fees are constant and there is no cash reserve. The matched random draws and the stress tests keep
the agent's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, cycle
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.kernels.kernel import Kernel, KernelData
from slipstream.kernels.spec import MarketSpec
from slipstream.markets.backtest_spec import PortfolioBacktestSpec
from slipstream.markets.evaluation.oracle import optimal_positions, optimal_weights
from slipstream.report import inputs
from slipstream.report.inputs import RANDOM_DRAWS, Backtest
from slipstream.report.statistics import Floats
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluator import PolicyInput, episode_names, run_episodes
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind
from slipstream.training.episode_result import EpisodeResult

Actions = NDArray[Any]
ORACLE_REBALANCE_THRESHOLD = 0.05  # of the oracle, whose weights are 0 or 1
COST_MULTIPLES = (0.0, 0.5, 1.0, 2.0, 3.0)
_SEED = 20_260_102
_MOST_ACTIONS = 4_000_000  # values replayed in one batch: 32 MB


def replay(
    environment: KernelEnvironment,
    split: str,
    actions: Sequence[NDArray[Any]],
    *,
    params: tuple[Any, ...] | None = None,
    backend: str = "compiled",
    record: bool = True,
) -> list[EpisodeResult]:
    """Replay given actions in a kernel's evaluation episodes; the last action is repeated.

    Args:
        environment: the rules and their data.
        split: split with the Params records: sequence i uses record i % P.
        actions: one [n, K] array per episode.
        params: records to use instead of those of the split, such as other costs.
        backend: of the sub-environments.
        record: keep actions and traces.
    """
    if not actions:
        return []
    if params is not None:
        environment = environment.with_records(split, params)
    env = environment.make_eval_envs(split, len(actions), backend=backend, max_steps=None)
    dtype, width = env.spec.action_dtype, env.spec.action_dim
    if any(len(sequence) == 0 or sequence.shape[1] != width for sequence in actions):
        raise ConfigError(f"Every sequence of actions must be a non-empty array [n, {width}].")
    longest = max(len(sequence) for sequence in actions)
    padded = [
        np.pad(record_actions, ((0, longest - len(record_actions)), (0, 0)), "edge")
        for record_actions in actions
    ]
    table = np.stack(padded, axis=1).astype(dtype)
    rows = np.arange(len(actions))

    def act(inputs: PolicyInput) -> NDArray[Any]:
        return np.ascontiguousarray(table[np.minimum(inputs.step, longest - 1), rows])

    symbols = episode_names(environment, split)
    names = [symbols[i % len(symbols)] for i in range(len(actions))] if symbols else None
    return run_episodes(env, act, len(actions), 0, record=record, names=names)[0]


@dataclass(frozen=True)
class SymbolSplitBacktest:
    """Continuous passes of one split through a market kernel, one per record.

    Attributes:
        kernel, loaded: the rules and their data; the kernel declares `backtest_spec`.
        split: split with the records.
        backend: of the sub-environments.
    """

    kernel: Kernel
    loaded: KernelData
    split: str
    backend: str = "compiled"

    @property
    def params(self) -> tuple[Any, ...]:
        """The split's records."""
        return self.loaded.params[self.split]

    @cached_property
    def environment(self) -> KernelEnvironment:
        """The rules and their data."""
        return KernelEnvironment.from_loaded(KernelKind(self.kernel.name), self.kernel, self.loaded)

    @property
    def data(self) -> Any:
        """The kernel's arrays."""
        return self.loaded.data

    @cached_property
    def is_discrete(self) -> bool:
        """True if actions are short / flat / long, not exposures in [-1, 1]."""
        return isinstance(self.kernel.spec(self.params[0], self.data).action_space, spaces.Discrete)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Symbol of each pass."""
        specs = [self.kernel.spec(p, self.data).market for p in self.params]
        return tuple(market.symbols[0] for market in specs if market is not None)

    @property
    def market(self) -> MarketSpec:
        """Market of all passes together; one record contains its own symbol only."""
        market = self.kernel.spec(self.params[0], self.data).market
        assert market is not None
        return replace(market, symbols=self.symbols)

    @property
    def prices(self) -> inputs.Prices:
        """Clock and closes of all symbols."""
        return inputs.Prices(self.specs[0].time, self.specs[0].close)

    @property
    def is_comparable(self) -> bool:
        """True if an action is one position that can be replayed under other costs."""
        action = self.kernel.spec(self.params[0], self.data).action_space
        is_position = action.n == 3 if isinstance(action, spaces.Discrete) else action.shape == (1,)
        scaled = "cost_multiple" in self.params[0]._fields
        return (
            bool(is_position)
            and scaled
            and all(record is not None for record in self.baseline_params())
        )

    def round_trips(self) -> list[inputs.RoundTripCost]:
        """Return the mean cost of opening and closing in each symbol, over the bars of its pass."""
        round_trips = []
        for spec, symbol in zip(self.specs, self.symbols, strict=True):
            quote = 2.0 * spec.cost / spec.rate
            points = float(np.mean(quote / spec.mid)) * 1e4
            round_trips.append(
                inputs.RoundTripCost(symbol, float(np.mean(quote)) / spec.pip, points)
            )
        return round_trips

    @cached_property
    def specs(self) -> tuple[Any, ...]:
        """Backtest spec of each pass."""
        declared = self.kernel.hook("backtest_spec")
        return tuple(declared(p, self.data) for p in self.params)

    @property
    def start_time(self) -> int:
        """UTC second at which the first bar opens."""
        return min(int(spec.time[spec.first]) for spec in self.specs)

    @property
    def has_financing(self) -> bool:
        """True if positions pay overnight financing."""
        return any(spec.financing for spec in self.specs)

    def window(self, record: int) -> tuple[int, int]:
        """Return the first decision row and the last row of a pass: decisions at [first, last)."""
        return self.specs[record].first, self.specs[record].last

    def encode_positions(self, positions: NDArray[Any]) -> Actions:
        """Return actions [n, 1] of positions [n] in {-1, 0, 1}, at exposure 1 if so replayed."""
        if self.is_discrete:
            return (np.asarray(positions, np.int64) + 1)[:, None]
        return np.asarray(positions, np.float32)[:, None]

    def flat_actions(self, count: int) -> Actions:
        """Return actions [count, K] without a position, under the agent's own rules."""
        return self.encode_positions(np.zeros(count))

    def shuffle_actions(self, actions: Actions, random: np.random.Generator) -> Actions:
        """Return the agent's own decisions at random places; see `shuffle_positions`."""
        return shuffle_positions(actions, random)

    def baseline_params(self) -> tuple[Any, ...]:
        """Return the records at exposure 1 and without the agent's exit rules; costs are kept."""
        return tuple(spec.baseline_params for spec in self.specs)

    def replay(
        self,
        actions: Sequence[Actions],
        params: tuple[Any, ...] | None = None,
        record: bool = True,
    ) -> list[EpisodeResult]:
        """Replay one action sequence per record, or several sets of them, named by symbol.

        Args:
            actions: D sets of one sequence per record, one after another.
            params: records to use instead of the split's, one set or D of them.
            record: keep actions and traces.
        """
        kernel, split, backend = self.environment, self.split, self.backend
        played = replay(kernel, split, actions, params=params, backend=backend, record=record)
        return self.name_tracks(played)

    def name_tracks(self, tracks: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        """Return the tracks, one per record or several sets of them, named by symbol."""
        return [replace(t, name=name) for t, name in zip(tracks, cycle(self.symbols))]

    def replay_growth(
        self, actions: Sequence[Actions], params: tuple[Any, ...] | None = None
    ) -> Floats:
        """Return final equity over the start [D], without traces; see `combine_returns`."""
        returns = [t.metrics["total_return"] for t in self.replay(actions, params, record=False)]
        return self.combine_returns(np.array(returns).reshape(-1, len(self.params)))

    def combine_returns(self, returns: Floats) -> Floats:
        """Return final equity over the start [D] of parallel passes with returns [D, records]."""
        return np.asarray(returns.mean(axis=1) + 1.0)

    def rule_baselines(self) -> inputs.Baselines:
        """Replay fixed rules that a trader could have followed."""
        records = range(len(self.params))
        lengths = [last - first for first, last in map(self.window, records)]
        positions: dict[str, list[NDArray[Any]]] = {
            inputs.FLAT: [np.zeros(n) for n in lengths],
            inputs.BUY_AND_HOLD: [np.ones(n) for n in lengths],
            inputs.SHORT: [-np.ones(n) for n in lengths],
            inputs.EMA_CROSS: [ema_cross(self, record) for record in records],
        }
        every = [
            self.encode_positions(rule_positions)
            for rule in positions.values()
            for rule_positions in rule
        ]
        tracks = self.replay(every, self.baseline_params())
        count = len(lengths)
        return inputs.Baselines(
            {name: tracks[k * count : (k + 1) * count] for k, name in enumerate(positions)}
        )

    def oracle(self) -> tuple[Mapping[str, Sequence[EpisodeResult]], float | None]:
        """Return the oracle's tracks by name, and the growth computed by its dynamic programme.

        The programme ignores swaps and calendar rules.
        """
        plans = [optimal_positions(spec.mid, spec.cost, spec.rate) for spec in self.specs]
        tracks = self.replay(
            [self.encode_positions(plan.positions) for plan in plans], self.baseline_params()
        )
        return {inputs.ORACLE: tracks}, float(np.mean([plan.growth for plan in plans]))

    def buy_and_hold_by_asset(self) -> dict[str, list[EpisodeResult]]:
        """Return buy and hold of each asset of a portfolio."""
        return {}

    def rebalanced_tracks(self) -> list[EpisodeResult] | None:
        """Return equal weight, restored on every bar; None if there are no weights."""
        return None

    def stress_test(self, agent: Sequence[EpisodeResult]) -> inputs.StressTest:
        """Replay the agent's decisions with scaled costs and one bar late."""
        return run_stress_test(self, agent)

    def random_percentile(self, agent: Sequence[EpisodeResult], draws: int) -> float:
        """Return the percentile of the agent among matched random traders."""
        agent_return = float(self.replay_growth(pad_actions(self, agent))[0]) - 1.0
        rank = percentile(agent_return, random_returns(self, agent, draws))
        assert rank is not None
        return rank

    def compare(
        self, agent: Sequence[EpisodeResult], draws: int = RANDOM_DRAWS
    ) -> inputs.Baselines:
        """Replay all baselines of one split, the oracle and the matched random traders."""
        best, growth = self.oracle()
        tracks = {**self.rule_baselines().tracks, **best}
        return inputs.Baselines(
            tracks, random_returns(self, agent, draws), growth, self.buy_and_hold_by_asset()
        )


def shuffle_positions(actions: Actions, random: np.random.Generator) -> Actions:
    """Return the agent's own positions and holding times at random places.

    The sequence is cut where the action changes. The order of the kinds (short, flat, long) is
    kept, rotated to a random piece, so the number of trades is kept; the pieces of each kind are
    shuffled among themselves. Exposure and holding times keep their exact distribution.
    """
    starts = np.flatnonzero(np.append(True, (actions[1:] != actions[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(actions)))
    kind = actions[starts, 0]
    if actions.dtype.kind == "f":
        kind = np.sign(np.where(np.abs(kind) < 0.05, 0.0, kind))
    kind = kind.astype(int)
    offset = int(random.integers(len(starts)))
    order = (np.arange(len(starts)) + offset) % len(starts)
    for value in np.unique(kind):
        rows = np.flatnonzero(kind[order] == value)
        order[rows] = random.permutation(order[rows])
    return np.repeat(actions[starts[order]], lengths[order], axis=0)


def pad_actions(passes: SymbolSplitBacktest, agent: Sequence[EpisodeResult]) -> list[Actions]:
    """Return the agent's actions, padded with flat actions if its pass ended early."""
    out = []
    for record, track in enumerate(agent):
        first, last = passes.window(record)
        rest = passes.flat_actions(max(last - first - len(track.actions), 0))
        out.append(np.concatenate([track.actions, rest.astype(track.actions.dtype)]))
    return out


def ema(values: Floats, span: int) -> Floats:
    """Return the exponential moving average, weight 2 / (span + 1), started at the first value."""
    weight = 2.0 / (span + 1.0)
    parts = (weight * values).tolist()
    averages = accumulate(parts, lambda mean, part: (1.0 - weight) * mean + part, initial=values[0])
    return np.array(list(averages)[1:])


def ema_cross(passes: SymbolSplitBacktest, record: int) -> NDArray[np.int64]:
    """Return positions: long while the average of 20 closes is above that of 50, else short.

    The averages start up to 1,000 bars before the pass, if the symbol has these bars.
    """
    first, last = passes.window(record)
    start = max(first - 1_000, passes.specs[record].first_symbol_row)
    close = passes.specs[record].close[start:last]
    return np.sign(ema(close, 20) - ema(close, 50)).astype(np.int64)[first - start :]


def run_stress_test(
    passes: SymbolSplitBacktest, agent: Sequence[EpisodeResult]
) -> inputs.StressTest:
    """Replay the agent's decisions with scaled costs and one bar late."""
    actions = pad_actions(passes, agent)

    def net(multiples: Floats) -> Floats:
        """Return the total return under each cost multiple."""
        records = tuple(
            p._replace(cost_multiple=p.cost_multiple * float(multiple))
            for multiple in multiples
            for p in passes.params
        )
        return passes.replay_growth(actions * len(multiples), records) - 1.0

    first = passes.flat_actions(1)
    late = [np.concatenate([first.astype(a.dtype), a[:-1]]) for a in actions]
    returns = net(np.array(COST_MULTIPLES))
    return inputs.StressTest(
        multiples=tuple(zip(COST_MULTIPLES, returns.tolist(), strict=True)),
        break_even=break_even(net),
        delayed=float(passes.replay_growth(late)[0]) - 1.0,
    )


def break_even(net: Callable[[Floats], Floats]) -> float | None:
    """Return the cost multiple at which the return reaches zero, to about a thousandth.

    The multiple is bracketed by doubling; the bracket is then divided into nine, three times.

    Args:
        net: total returns under several cost multiples at once.
    """
    ladder = np.concatenate([[0.0], 2.0 ** np.arange(8)])
    for _ in range(4):
        lost = np.flatnonzero(net(ladder) <= 0.0)
        if not len(lost):
            return float("inf")
        if lost[0] == 0:
            return None
        ladder = np.linspace(ladder[lost[0] - 1], ladder[lost[0]], 10)
    return float(ladder.mean())


def percentile(value: float, draws: Floats) -> float | None:
    """Return the share of draws below `value`, ties counted half, in percent."""
    if not len(draws):
        return None
    below = np.count_nonzero(draws < value - 1e-12)
    ties = np.count_nonzero(np.abs(draws - value) <= 1e-12)
    return 100.0 * (below + 0.5 * ties) / len(draws)


def random_returns(
    passes: SymbolSplitBacktest, agent: Sequence[EpisodeResult], draws: int = RANDOM_DRAWS
) -> NDArray[np.float64]:
    """Return total returns [draws] of matched random traders under the agent's own rules."""
    random = np.random.Generator(np.random.PCG64(_SEED))
    full = pad_actions(passes, agent)
    returns = []
    at_once = max(_MOST_ACTIONS // sum(a.size for a in full), 1)
    for done in range(0, draws, at_once):
        sets = range(min(at_once, draws - done))
        shuffled = [passes.shuffle_actions(a, random) for _ in sets for a in full]
        returns.append(passes.replay_growth(shuffled) - 1.0)
    return np.concatenate(returns or [np.empty(0)])


@dataclass(frozen=True)
class PortfolioSplitBacktest(SymbolSplitBacktest):
    """Sequential passes of one split, one per segment of bars without a hole.

    Attributes:
        kernel, loaded: the rules and their data; the kernel declares a `PortfolioBacktestSpec`.
        split: split with the records.
        backend: of the sub-environments.
    """

    @property
    def assets(self) -> tuple[str, ...]:
        """Name of the assets."""
        names: tuple[str, ...] = self.specs[0].names
        return names

    @property
    def symbols(self) -> tuple[str, ...]:
        """Name of each pass."""
        count = len(self.params)
        return ("portfolio",) if count == 1 else tuple(f"segment {k + 1}" for k in range(count))

    @property
    def market(self) -> MarketSpec:
        """Market of all assets."""
        market = self.kernel.spec(self.params[0], self.data).market
        assert market is not None
        return market

    @property
    def prices(self) -> inputs.Prices:
        """Close and fills of all assets; untradable assets have their last close."""
        spec = self.specs[0]
        return inputs.Prices(spec.time, spec.close, self.assets, spec.fill)

    @property
    def is_comparable(self) -> bool:
        """Always True: weights are replayed unchanged."""
        return True

    @property
    def has_financing(self) -> bool:
        """Always False: coins have no overnight financing."""
        return False

    def round_trips(self) -> list[inputs.RoundTripCost]:
        """Return the mean cost of buying and selling each asset, with the fee at the start."""
        spec = self.specs[0]
        rows = slice(spec.first + 1, spec.last + 1)
        round_trips = []
        for name, close, half in zip(
            self.assets, spec.close[rows].T, spec.half_spread[rows].T, strict=True
        ):
            is_listed = close > 0.0
            if is_listed.any():  # assets of a union may be delisted, or not yet listed
                spread = float(np.mean(half[is_listed] / close[is_listed]))
                cost = 2.0 * (spec.start_fee + spec.slippage + spread) * spec.cost_multiple
                round_trips.append(inputs.RoundTripCost(name, float("nan"), cost * 1e4))
        return round_trips

    def flat_actions(self, count: int) -> Actions:
        """Return actions [count, K] that hold cash, under the agent's own rules."""
        return np.tile(self.specs[0].cash_action, (count, 1))

    def shuffle_actions(self, actions: Actions, random: np.random.Generator) -> Actions:
        """Return the agent's own decisions, started at a random place and dealt to other assets.

        Exposure, turnover and holding times are kept; timing and choice of assets are random.
        """
        count = len(self.assets)
        order = np.concatenate([random.permutation(count), np.arange(count, actions.shape[1])])
        return np.roll(actions, int(random.integers(len(actions))), axis=0)[:, order]

    def combine_returns(self, returns: Floats) -> Floats:
        """Return final equity over the start [D] of sequential passes."""
        return np.asarray(np.prod(1.0 + returns, axis=1))

    def buy_and_hold(self, masks: Sequence[NDArray[np.bool_]]) -> list[EpisodeResult]:
        """Buy equal shares of the chosen assets [A] of each pass once.

        Each asset is bought at its own first tradable fill, as in the environment's benchmark
        (docs/explanation/market-rules.md, section 10); until then its share is cash.
        """
        plans = [self._bought(record, yes) for record, yes in enumerate(masks)]
        return self._weighted(plans, tuple(spec.buy_and_hold_params for spec in self.specs))

    def follow_weights(self, weights: Sequence[Floats], band: float) -> list[EpisodeResult]:
        """Keep weights [n, A + 1] of each pass within a threshold, decided on every bar."""
        params = (spec.weights_params._replace(rebalance_threshold=band) for spec in self.specs)
        return self._weighted(weights, tuple(params))

    def listed_assets(self, record: int) -> NDArray[np.bool_]:
        """Return a mask of assets that are listed when a pass begins, [A]."""
        spec = self.specs[record]
        return np.asarray(spec.close[spec.first] > 0.0)

    def tradable_assets(self) -> NDArray[np.bool_]:
        """Return a mask of assets listed at the start of a pass and tradable in it, [A]."""
        tradable = [
            self.listed_assets(record)
            & (spec.opened[spec.first + 1 : spec.last + 1] > 0.0).any(axis=0)
            for record, spec in enumerate(self.specs)
        ]
        return np.asarray(np.any(tradable, axis=0))

    def rule_baselines(self) -> inputs.Baselines:
        """Replay baselines that a trader could have held."""
        records = range(len(self.params))
        nothing = np.zeros(len(self.assets), np.bool_)
        return inputs.Baselines(
            {
                inputs.CASH: self.buy_and_hold([nothing for _ in records]),
                inputs.EQUAL_WEIGHT: self.buy_and_hold(
                    [self.listed_assets(record) for record in records]
                ),
                inputs.REBALANCED: self.rebalanced_tracks(),
            }
        )

    def rebalanced_tracks(self) -> list[EpisodeResult]:
        """Return equal weight of the assets listed at the start, restored on every bar."""
        steady = []
        for record in range(len(self.params)):
            first, last = self.window(record)
            listed = self.listed_assets(record).astype(np.float64)
            equal = np.append(listed / max(listed.sum(), 1.0), 0.0 if listed.any() else 1.0)
            steady.append(np.repeat(equal[None], last - first, axis=0))
        return self.follow_weights(steady, 0.0)

    @property
    def has_oracle(self) -> bool:
        """True if a single asset, or cash, is as good as any mix at every bar.

        With costs in proportion to notional, final wealth is linear in the holdings, so the best
        plan is at a corner. This does not hold with volume-dependent fees or a reserve. The
        programme cannot anticipate sales of delisted assets.
        """
        return all(spec.is_corner_optimal for spec in self.specs)

    def oracle(self) -> tuple[Mapping[str, Sequence[EpisodeResult]], float | None]:
        """Return the oracle's tracks by name and its growth; empty if it is not computable."""
        if not self.has_oracle:
            return {}, None
        plans = [optimal_weights(spec) for spec in self.specs]
        tracks = self.follow_weights([plan.positions for plan in plans], ORACLE_REBALANCE_THRESHOLD)
        return {inputs.ORACLE: tracks}, float(np.prod([plan.growth for plan in plans]))

    def buy_and_hold_by_asset(self) -> dict[str, list[EpisodeResult]]:
        """Return buy and hold of each tradable asset; cash in passes before its listing."""
        episodes, listed = {}, [self.listed_assets(record) for record in range(len(self.params))]
        for asset, name in enumerate(self.assets):
            if self.tradable_assets()[asset]:
                alone = np.arange(len(self.assets)) == asset
                episodes[name] = self.buy_and_hold([alone & mask for mask in listed])
        return episodes

    def _bought(self, record: int, mask: NDArray[np.bool_]) -> Floats:
        """Return target weights [n, A + 1] that buy each chosen asset's share, including costs."""
        spec, n = self.specs[record], len(self.assets)
        rows = slice(spec.first + 1, spec.last + 1)
        close, opened, half = spec.close[rows], spec.opened[rows], spec.half_spread[rows]
        weights = np.zeros((spec.last - spec.first, n + 1))
        weights[:, n] = 1.0
        share = spec.initial_equity * (1.0 - spec.cash_reserve) / max(int(mask.sum()), 1)
        waiting, cash, units = mask.copy(), spec.initial_equity, np.zeros(n)
        for t in range(len(close)):
            gone = (close[t] <= 0.0) & (waiting | (units > 0.0))
            if gone.any():  # delisted: sold at the last close
                price, spread = close[t - 1, gone], half[t - 1, gone]
                cash += float(units[gone] @ (price - self._cost(record, price, spread)))
                units[gone], waiting[gone] = 0.0, False
            buys = waiting & (opened[t] > 0.0)
            if buys.any():
                price = opened[t, buys]
                units[buys] = share / (price + self._cost(record, price, half[t, buys]))
                cash -= share * int(buys.sum())
                waiting[buys] = False
                mid = np.where(opened[t] > 0.0, opened[t], close[t])
                value = units * mid
                weights[t] = np.append(value, cash) / (value.sum() + cash)
            if not waiting.any():
                break
        return weights

    def _cost(self, record: int, price: Floats, half_spread: Floats) -> Floats:
        """Return the cost of buying or selling one unit at these prices, account currency, [k]."""
        spec = self.specs[record]
        return np.asarray(((spec.fee + spec.slippage) * price + half_spread) * spec.cost_multiple)

    def _weighted(self, weights: Sequence[Floats], params: tuple[Any, ...]) -> list[EpisodeResult]:
        """Replay target weights with the agent's costs, without its other rules."""
        return self.replay([w.astype(np.float32) for w in weights], params)


@dataclass(frozen=True)
class MarketBacktest(Backtest):
    """Backtests of a market whose kernel declares a `backtest_spec`.

    Attributes:
        kernel, loaded: the rules and their data.
    """

    kernel: Kernel
    loaded: KernelData

    @classmethod
    def from_environment(cls, environment: Environment) -> Self | None:
        rules = environment.part(KernelEnvironment)
        if rules is None or rules.spec.market is None or rules.kernel.hook("backtest_spec") is None:
            return None
        return cls(rules.kernel, rules.loaded)

    def for_split(self, split: str, backend: str = "compiled") -> SymbolSplitBacktest:
        record, declares = self.loaded.params[split][0], self.kernel.hook("backtest_spec")
        several = isinstance(declares(record, self.loaded.data), PortfolioBacktestSpec)
        kind = PortfolioSplitBacktest if several else SymbolSplitBacktest
        return kind(self.kernel, self.loaded, split, backend)
