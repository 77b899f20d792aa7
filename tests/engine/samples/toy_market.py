"""A market of two symbols in a few lines: hold -1, 0 or 1 units of capital for one bar."""

from itertools import combinations, pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config as Base
from slipstream.core.errors import DataError
from slipstream.core.random import integer
from slipstream.core.timeline import FoldPlan
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.spec import EnvSpec, MarketSpec, Metric, TrainingContext

SECONDS = 21_600  # four bars a day
CAPITAL = 1000.0
LOADS: list[int] = []  # of bars, each time data are made


class Config(Base):
    fee: float = 0.0
    bars: int = 600
    ruin: float = 0.0


class Params(NamedTuple):
    symbol: int
    first: int
    last: int
    evaluation: bool
    scale: int
    fee: float
    ruin: float


class Data(NamedTuple):
    prices: NDArray[np.float64]
    time: NDArray[np.int64]


STATE = np.dtype(
    [
        ("key", "u8"),
        ("counter", "u8"),
        ("bar", "i8"),
        ("held", "f8"),
        ("equity", "f8"),
        ("benchmark", "f8"),
        ("total_return", "f8"),
        ("mean_exposure", "f8"),
        ("fills", "f8"),
        ("broke", "?"),
    ],
    align=True,
)


def load(config: Config) -> KernelData:
    raise AssertionError("a study loads folds")


def load_folds(config: Config, plan: Any) -> KernelData:
    LOADS.append(config.bars)
    draw = np.random.default_rng(config.bars)
    growth = 0.01 * draw.standard_normal((config.bars, 2))
    growth[1:] += 0.3 * growth[:-1]  # learnable
    prices = 100 * np.exp(np.cumsum(growth, axis=0))
    time = 1_700_006_400 + SECONDS * np.arange(config.bars)  # a midnight
    data = Data(prices, time)
    split = _divide(config.bars, plan)
    facts = {"folds": _facts(split, plan, time), "bars": config.bars}
    return KernelData(
        data, _records(config, split), provenance=facts, training_context=_training_context(config)
    )


class Fold(NamedTuple):
    train: list[tuple[int, int]]
    test: list[tuple[int, int]]
    groups: tuple[int, ...]


class Split(NamedTuple):
    folds: list[Fold]
    groups: list[tuple[int, int]]
    development: tuple[int, int]
    holdout: tuple[int, int]


def _divide(rows: int, plan: FoldPlan) -> Split:
    """Combinatorial folds; training leaves out one bar before and two after a tested group."""
    first = rows - round(plan.holdout * rows)
    edges = [(first - 2) * k // plan.groups for k in range(plan.groups + 1)]
    groups = list(pairwise(edges))
    folds = []
    for tested in combinations(range(plan.groups), plan.test_groups):
        train, start = [], 0
        for k in tested:
            if groups[k][0] > start + 1:
                train.append((start, groups[k][0] - 1))
            start = groups[k][1] + 2
        if tested[-1] < plan.groups - 1:
            train.append((start, edges[-1]))
        folds.append(Fold(train, [groups[k] for k in tested], tested))
    if min(high - low for fold in folds for low, high in fold.train) < 10:
        raise DataError(f"{rows} bars are too few for {plan.groups} groups")
    return Split(folds, groups, (0, first - 2), (first, rows))


def _facts(split: Split, plan: FoldPlan, time: NDArray[np.int64]) -> dict[str, Any]:
    def seconds(low: int, high: int) -> list[int]:
        return [int(time[low]), int(time[high - 1]) + SECONDS]

    numbers = range(plan.groups)
    testing = [[k for k, fold in enumerate(split.folds) if g in fold.groups] for g in numbers]
    return {
        "plan": plan.model_dump(),
        "groups": [seconds(*group) for group in split.groups],
        "holdout": seconds(*split.holdout),
        "folds": [
            {
                "groups": list(fold.groups),
                "train_bars": sum(high - low for low, high in fold.train),
                "test": [seconds(*group) for group in fold.test],
            }
            for fold in split.folds
        ],
        "paths": [list(path) for path in zip(*testing, strict=True)],
    }


def _training_context(config: Config) -> TrainingContext:
    settings = config.model_dump()
    return TrainingContext(SECONDS, ("A", "B"), 1, (), 0, 1, "close", 1, "of nothing", settings)


def with_params(loaded: KernelData, config: Config) -> KernelData | None:
    if loaded.provenance["bars"] != config.bars:
        return None
    plan = FoldPlan(**loaded.provenance["folds"]["plan"])
    split = _divide(config.bars, plan)
    facts = loaded.provenance
    own = _training_context(config)
    return KernelData(loaded.data, _records(config, split), provenance=facts, training_context=own)


def timeline(p: Params, d: Data) -> NDArray[np.int64]:
    return d.time[p.first + 1 : p.last + 1] + SECONDS


def _records(config: Config, split: Any) -> dict[str, tuple[Params, ...]]:
    def both(ranges: Any, evaluation: bool, scale: int) -> tuple[Params, ...]:
        return tuple(
            Params(k, lo + 1, hi - 1, evaluation, scale, config.fee, config.ruin)
            for lo, hi in ranges
            for k in (0, 1)
        )

    found = {}
    for k, fold in enumerate(split.folds):
        found[f"fold{k}/train"] = both(fold.train, False, k)
        found[f"fold{k}/test"] = both(fold.test, True, k)
    found["development/train"] = both([split.development], False, 97)
    found["holdout"] = both([split.holdout], True, 97)
    found["everything/train"] = both([(0, config.bars)], False, 98)
    return {"train": found["fold0/train"], **found}


def reset(s: Any, p: Any, d: Any) -> None:
    start = 0
    if not p.evaluation:
        start = integer(s, p.last - p.first - 4)
    s.bar = p.first + start
    s.equity = 1000.0
    s.benchmark = 1000.0


def step(s: Any, action: Any, p: Any, d: Any) -> tuple[float, bool, bool]:
    wish = float(int(action[0]) - 1)
    before = s.equity
    growth = d.prices[s.bar + 1, p.symbol] / d.prices[s.bar, p.symbol] - 1.0
    s.equity *= 1.0 + wish * growth - p.fee * abs(wish - s.held)
    s.benchmark *= 1.0 + growth
    if wish != s.held:
        s.fills += 1.0
    s.held = wish
    s.bar += 1
    s.mean_exposure = abs(wish)
    s.total_return = s.equity / 1000.0 - 1.0
    terminal = p.ruin > 0.0 and s.equity < p.ruin * 1000.0
    return 100.0 * (s.equity / before - 1.0), terminal, s.bar >= p.last and not terminal


def observe(s: Any, p: Any, d: Any, out: Any) -> None:
    out[0] = d.prices[s.bar, p.symbol] / d.prices[s.bar - 1, p.symbol] - 1.0
    out[1] = s.held
    out[2] = float(p.symbol)


def spec(p: Params, d: Data) -> EnvSpec:
    return EnvSpec(
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        action_space=gymnasium.spaces.Discrete(3),
        metrics=(
            Metric("total_return"),
            Metric("mean_exposure"),
            Metric("fills"),
        ),
        trace=("bar", "equity", "benchmark"),
        max_episode_steps=None if p.evaluation else 60,
        stagger_episodes=not p.evaluation,
        fixed_mean=np.array([0.0, 0.0, np.nan], np.float32),
        fixed_std=np.array([0.01 + 0.001 * p.scale, 1.0, np.nan], np.float32),
        market=MarketSpec(
            (("AAA", "BBB")[p.symbol],), "USD", 1000.0, 21_600, 1460.0, 365.0, "00:00 UTC"
        ),
    )
