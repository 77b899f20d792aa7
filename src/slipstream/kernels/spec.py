"""Specification of an environment, and the context that its policies depend on.

A policy trained on prices has a `TrainingContext`, which must match where the policy acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError

_MOST_ACTIONS = 100_000  # network outputs per step


class Metric(NamedTuple):
    """A STATE field copied out when an episode ends."""

    name: str
    unit: str = ""


class Symmetry(NamedTuple):
    """Mirror image of an environment that follows the same rules.

    Attributes:
        observation: indices of observation values whose sign flips.
        action: Box actions: indices whose sign flips; their bounds must be symmetric.
        action_permutation: Discrete actions: the mirrored action of each action.
    """

    observation: tuple[int, ...]
    action: tuple[int, ...] = ()
    action_permutation: tuple[int, ...] = ()


@dataclass(frozen=True)
class MarketSpec:
    """Properties of a market environment that reports and annualisation need.

    Attributes:
        symbols: one name per symbol, in the order of the data.
        account_currency: currency of equity and costs.
        initial_equity: equity at the start of an episode, account currency.
        bar_seconds: length of a bar.
        bars_per_year: bars of an average year by the market's calendar.
        days_per_year: trading days of a year, for annualised daily figures.
        day_roll: end of a trading day, ``"17:00 America/New_York"`` or ``"00:00 UTC"``.
        cost_fields: STATE fields of cumulative costs by kind, account currency.
        benchmark: the trace has `benchmark`, the equity of equal weights on the same bars; set when
            an environment is loaded for a study. Without it, cash is the only benchmark.
    """

    symbols: tuple[str, ...]
    account_currency: str
    initial_equity: float
    bar_seconds: int
    bars_per_year: float
    days_per_year: float
    day_roll: str
    cost_fields: tuple[str, ...] = ()
    benchmark: bool = False


@dataclass(frozen=True)
class EnvSpec:
    """Specification of an environment: spaces, metrics, limits.

    Attributes:
        observation_space: space of one observation; the batch flattens it to one row, images stay
            uint8.
        action_space: Discrete, MultiDiscrete or Box; an action is always a row ``action[k]``.
        metrics: STATE fields copied out when an episode ends.
        trace: STATE fields recorded after every step of an evaluation.
        players: rows per environment if more than one agent acts.
        winner: two-player games: the metric that names the winner, > 0 for player 0, < 0 for player
            1.
        symmetry: a mirror image that follows the same rules; agents may learn from both.
        max_episode_steps: time limit, at least 1, applied by the batch loop; None for none.
        stagger_episodes: draw the first episode's length uniformly in 1..max_episode_steps during
            training, so that environments do not reset together.
        scale_reward: divide training rewards by a running deviation of the discounted return.
        fixed_mean, fixed_std: float32 [D], known before training; NaN for columns with running
            statistics. None: running statistics for all columns.
        market: set by market environments.
        has_action_mask: the environment has an action mask; set when a kernel is loaded. None: its
            first `reset` failed or timed out, and the environment is stepped without a mask.
        native_observation_space, native_action_space: the environment's own spaces if the batch
            converts them (`kernels/space_codec.py`); None: the same.

    Raises:
        KernelError: `max_episode_steps` is not a positive integer.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metrics: tuple[Metric, ...] = ()
    trace: tuple[str, ...] = ()
    players: int = 1
    winner: str | None = None
    symmetry: Symmetry | None = None
    max_episode_steps: int | None = None
    stagger_episodes: bool = False
    scale_reward: bool = False
    fixed_mean: NDArray[np.float32] | None = None
    fixed_std: NDArray[np.float32] | None = None
    market: MarketSpec | None = None
    has_action_mask: bool | None = False
    native_observation_space: gymnasium.Space[Any] | None = None
    native_action_space: gymnasium.Space[Any] | None = None

    def __post_init__(self) -> None:
        limit = self.max_episode_steps
        is_integer = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
        if limit is not None and not (is_integer and limit >= 1):
            raise KernelError(
                f"`max_episode_steps` must be a positive integer, got {limit!r}. Set the time "
                "limit in steps, or None (the default) for no time limit."
            )
        kinds = gymnasium.spaces
        if isinstance(self.action_space, (kinds.Discrete, kinds.MultiDiscrete, kinds.Box)):
            count = self.num_actions or self.action_dim
            if count > _MOST_ACTIONS:
                raise KernelError(
                    f"The action space has {count:,} actions or numbers, the maximum is "
                    f"{_MOST_ACTIONS:,}: a network has one output per action. Split the action "
                    "into components (MultiDiscrete), or remove some."
                )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation row in the batch."""
        shape = self.observation_space.shape
        if shape is None:
            raise TypeError(
                f"{self.observation_space} must be flattened to a Box before it can be batched"
            )
        return tuple(shape)

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """uint8 for images, float32 for everything else."""
        return np.dtype(np.uint8 if self.observation_space.dtype == np.uint8 else np.float32)

    @property
    def is_image(self) -> bool:
        """Return true if observations are uint8 images (C, H, W)."""
        return self.observation_dtype == np.uint8 and len(self.observation_shape) == 3

    @property
    def action_dim(self) -> int:
        """Number of values in one action row (K)."""
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            return 1
        shape = self.action_space.shape
        assert shape is not None
        return int(np.prod(shape)) if shape else 1

    @property
    def nvec(self) -> tuple[int, ...]:
        """Number of actions per component: (n,) for Discrete, nvec of MultiDiscrete, () for Box."""
        if isinstance(self.action_space, gymnasium.spaces.Discrete):
            return (int(self.action_space.n),)
        if isinstance(self.action_space, gymnasium.spaces.MultiDiscrete):
            return tuple(int(n) for n in self.action_space.nvec.ravel())
        return ()

    @property
    def num_actions(self) -> int:
        """Number of discrete actions that an action mask covers, summed over components."""
        return sum(self.nvec)

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """float32 for Box, int64 for Discrete and MultiDiscrete."""
        return np.dtype(
            np.float32 if isinstance(self.action_space, gymnasium.spaces.Box) else np.int64
        )


ACCOUNT_METRICS = ("total_return", "mean_exposure", "fills")
ACCOUNT_TRACE = ("equity",)


def check_market_spec(spec: EnvSpec, name: str) -> None:
    """Check that a market has the metrics and traces that scores, studies and reports read.

    Args:
        spec: spec of a kernel.
        name: name of its file, for the message.

    Raises:
        KernelError: `market` is set and a metric or trace is missing.
    """
    names = {metric.name for metric in spec.metrics}
    absent = [
        f"the metric {metric_name}" for metric_name in ACCOUNT_METRICS if metric_name not in names
    ]
    absent += [
        f"the trace {metric_name}" for metric_name in ACCOUNT_TRACE if metric_name not in spec.trace
    ]
    if spec.market is not None and absent:
        raise KernelError(
            f"{name}: an EnvSpec with `market` must report the account; it lacks "
            f"{', '.join(absent)}. Store each in a STATE field (total_return: fraction of the "
            "initial equity; mean_exposure: multiple of equity; fills: their number; equity: "
            "account currency), name it in EnvSpec(metrics=...) or EnvSpec(trace=...), or leave "
            "`market` out."
        )


# Keys that may differ between training and use; all others must match.
_FREE = ("environment", "symbols", "data_sha256", "settings")


@dataclass(frozen=True)
class TrainingContext:
    """Data properties that a policy's observations and orders depend on.

    Attributes:
        bar_seconds: length of a bar.
        symbols: in the order of the data.
        symbols_at_once: number of symbols in one observation.
        features: `name` and parameters of each feature, in the order of the observation.
        warm_up_bars: bars before the first one with all features.
        lookback: bars of features in an observation.
        fill: where an order decided on a bar fills.
        decide_every: bars between two decisions.
        data_sha256: hash of the prices.
        settings: all other settings of the environment, except data location and splits.
    """

    bar_seconds: int
    symbols: tuple[str, ...]
    symbols_at_once: int
    features: tuple[Mapping[str, Any], ...]
    warm_up_bars: int
    lookback: int
    fill: str
    decide_every: int
    data_sha256: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_mapping(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def check_training_context(trained: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Check that a policy acts under the context that it was trained in.

    Args:
        trained, here: plain values; keys that only one of them has are not compared.

    Raises:
        ConfigError: has every difference, with the value in training and here.
    """
    keys = [key for key in trained if key in here and key not in _FREE]
    differing = [_named(key, trained[key], here[key]) for key in keys if trained[key] != here[key]]
    if differing:
        raise ConfigError(
            f"The policy was trained in another context: {'; '.join(differing)}. Its inputs would "
            "have another meaning. Use the data and settings of training, or train a policy on "
            "these."
        )


def context_differences(
    trained: Mapping[str, Any], here: Mapping[str, Any], same_data: bool = False
) -> list[str]:
    """Describe differences that are allowed.

    Args:
        trained, here: as for `check_training_context`.
        same_data: the data of training are expected here.
    """
    differences = []
    before, now = list(trained.get("symbols", ())), list(here.get("symbols", ()))
    if before and now and before != now:
        words = f"The policy was trained on {', '.join(before)} and acts on {', '.join(now)} here"
        if trained.get("symbols_at_once", 1) > 1:
            words += ": it treats each symbol like the one in the same position"
        differences.append(f"{words}.")
    key = "data_sha256"
    if same_data and key in trained and key in here and trained[key] != here[key]:
        differences.append(
            "The prices have changed since the policy was trained (their hash differs)."
        )
    return differences


def _named(key: str, trained: Any, here: Any) -> str:
    if key != "features":
        return f"{key} was {trained} and is {here} here"
    before, now = _names(trained), _names(here)
    if before == now:
        k = next(k for k, trained_name in enumerate(trained) if trained_name != here[k])
        return f"feature {before[k]} was {dict(trained[k])} and is {dict(here[k])} here"
    if sorted(before) == sorted(now):
        k = next(k for k, name in enumerate(before) if name != now[k])
        return f"features are in another order: number {k + 1} was {before[k]} and is {now[k]} here"
    return f"features were {', '.join(before)} and are {', '.join(now)} here"


def _names(features: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(feature["name"]) for feature in features]
