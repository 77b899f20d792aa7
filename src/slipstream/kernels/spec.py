"""What the rest of the system must know about an environment, and what its policies rest on.

A policy for prices was trained under `TrainingContext`, which must hold where it acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, KernelError

_MOST_ACTIONS = 100_000  # outputs of a network for one decision


class Metric(NamedTuple):
    """A STATE field copied out when an episode ends."""

    name: str
    unit: str = ""


class Symmetry(NamedTuple):
    """What a mirror image of an environment looks like that follows the same rules.

    Attributes:
        observation: which numbers change their sign.
        action: of a Box whose bounds there lie symmetrically: which numbers change their sign.
        choices: of a Discrete space: what each choice becomes.
    """

    observation: tuple[int, ...]
    action: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()


@dataclass(frozen=True)
class MarketSpec:
    """What reports and annualisation need to know about a market environment.

    Attributes:
        symbols: one name per symbol, in the order of the data.
        account_currency: currency of equity and costs.
        initial_equity: equity at the start of an episode, account currency.
        bar_seconds: length of a bar.
        bars_per_year: bars of an average year by the market's calendar.
        days_per_year: trading days of a year, for annualised daily figures.
        day_roll: where a trading day ends, ``"17:00 America/New_York"`` or ``"00:00 UTC"``.
        cost_fields: STATE fields of cumulative costs by kind, account currency.
        benchmark: the trace has `benchmark`, equal weight's equity on the same bars; set by what
            loads an environment for a study. Without one there is only cash to be compared with.
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
    """The outside of an environment.

    Attributes:
        observation: space of one observation; the batch flattens it to one row, images stay uint8.
        action: Discrete, MultiDiscrete or Box; an action is always a row ``action[k]``.
        metrics: STATE fields copied out when an episode ends.
        trace: STATE fields recorded after every step of an evaluation.
        players: rows per environment when more than one agent acts.
        winner: of a game of two, the metric that says who won: above 0 player 0, below 0 player 1.
        reflection: a mirror image that follows the same rules; agents may learn from both.
        max_episode_steps: time limit, at least 1, kept by the batch loop; None for none.
        stagger: draw the first episode's length uniformly in 1..max_episode_steps while training,
            so that copies do not reset together.
        scale_reward: divide training rewards by a running deviation of the discounted return.
        fixed_mean, fixed_std: float32 [D], known before training; NaN where the policy shall keep
            running statistics. None: running statistics everywhere.
        market: set by market environments.
        masked: the environment has a mask of allowed choices; set where a kernel is loaded. None:
            its first `reset` did not return in time or failed; the environment is stepped without
            a mask.
        native_observation, native_action: the environment's own spaces, where `observation` and
            `action` are what the batch made of them (`kernels/space_codec.py`); None: the same.

    Raises:
        KernelError: `max_episode_steps` is no number of steps.
    """

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]
    metrics: tuple[Metric, ...] = ()
    trace: tuple[str, ...] = ()
    players: int = 1
    winner: str | None = None
    symmetry: Symmetry | None = None
    max_episode_steps: int | None = None
    stagger: bool = False
    scale_reward: bool = False
    fixed_mean: NDArray[np.float32] | None = None
    fixed_std: NDArray[np.float32] | None = None
    market: MarketSpec | None = None
    masked: bool | None = False
    native_observation: gymnasium.Space[Any] | None = None
    native_action: gymnasium.Space[Any] | None = None

    def __post_init__(self) -> None:
        limit = self.max_episode_steps
        whole = isinstance(limit, (int, np.integer)) and not isinstance(limit, bool)
        if limit is not None and not (whole and limit >= 1):
            raise KernelError(
                f"`max_episode_steps` is {limit!r}, and an episode has at least 1 step: give a "
                "whole number from 1 on, or None (the default) where there is no time limit."
            )
        kinds = gymnasium.spaces
        if isinstance(self.action, (kinds.Discrete, kinds.MultiDiscrete, kinds.Box)):
            count = self.choices or self.action_width
            if count > _MOST_ACTIONS:
                raise KernelError(
                    f"The action space has {count:,} choices or numbers, and {_MOST_ACTIONS:,} are "
                    "the most: a network puts out one number for each. Split the action into "
                    "components (MultiDiscrete), or leave some out."
                )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one observation row as the batch stores it."""
        shape = self.observation.shape
        if shape is None:
            raise TypeError(
                f"{self.observation} must be flattened to a Box before it can be batched"
            )
        return tuple(shape)

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """uint8 for images, float32 for everything else."""
        return np.dtype(np.uint8 if self.observation.dtype == np.uint8 else np.float32)

    @property
    def is_image(self) -> bool:
        """Whether observations are uint8 images (C, H, W)."""
        return self.observation_dtype == np.uint8 and len(self.observation_shape) == 3

    @property
    def action_width(self) -> int:
        """Numbers in one action row (K)."""
        if isinstance(self.action, gymnasium.spaces.Discrete):
            return 1
        shape = self.action.shape
        assert shape is not None
        return int(np.prod(shape)) if shape else 1

    @property
    def components(self) -> tuple[int, ...]:
        """Choices of each component of the action: (n,), or all n of MultiDiscrete, () of a box."""
        if isinstance(self.action, gymnasium.spaces.Discrete):
            return (int(self.action.n),)
        if isinstance(self.action, gymnasium.spaces.MultiDiscrete):
            return tuple(int(n) for n in self.action.nvec.ravel())
        return ()

    @property
    def choices(self) -> int:
        """Allowed or forbidden choices that an action mask covers: n, or the sum of all n."""
        return sum(self.components)

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """float32 for Box, int64 for Discrete and MultiDiscrete."""
        return np.dtype(np.float32 if isinstance(self.action, gymnasium.spaces.Box) else np.int64)


ACCOUNT_METRICS = ("total_return", "mean_exposure", "fills")
ACCOUNT_TRACE = ("equity",)


def check_account(spec: EnvSpec, name: str) -> None:
    """Scores, studies and reports read these of every market.

    Args:
        spec: of a kernel; name: of its file, for the message.

    Raises:
        KernelError: it has `market`, and does not show them.
    """
    shown = {metric.name for metric in spec.metrics}
    absent = [f"the metric {one}" for one in ACCOUNT_METRICS if one not in shown]
    absent += [f"the trace {one}" for one in ACCOUNT_TRACE if one not in spec.trace]
    if spec.market is not None and absent:
        raise KernelError(
            f"{name}: a EnvSpec with `market` shows the account, and this one lacks "
            f"{', '.join(absent)}. Keep each as a STATE field (total_return: fraction of the "
            "initial equity; mean_exposure: multiple of equity; fills: their number; equity: "
            "account currency), name it in EnvSpec(metrics=...) or EnvSpec(trace=...), or leave "
            "`market` out."
        )


# What may differ where a policy acts; everything else must agree.
_FREE = ("environment", "symbols", "data_sha256", "settings")


@dataclass(frozen=True)
class TrainingContext:
    """What a policy's observations and orders rest on, for those who let it act elsewhere.

    Attributes:
        bar_seconds: length of a bar.
        symbols: in the order of the data.
        symbols_at_once: how many of them one observation covers.
        features: each one's `name` and parameters, in the order of the observation.
        warm_up_bars: before the first bar at which all features are there.
        lookback: bars of features in an observation.
        fill: where an order that was decided on a bar fills.
        decide_every: bars between two decisions.
        data_sha256: of the prices as they were read.
        settings: all others of the environment, but for where its data are and how they are split.
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
        """Plain values."""
        return asdict(self)


def check_training_context(trained: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuses to let a policy act under other conditions, where they change what it sees or does.

    Args:
        trained, here: plain values; keys that one of them does not have are not compared.

    Raises:
        ConfigError: names what differs, what it was in training and what it is here.
    """
    keys = [key for key in trained if key in here and key not in _FREE]
    differing = [_named(key, trained[key], here[key]) for key in keys if trained[key] != here[key]]
    if differing:
        raise ConfigError(
            f"The policy was trained under other conditions than these: {'; '.join(differing)}. "
            "It would act on numbers that mean something else. Give it data and settings as in "
            "training, or train a policy on these."
        )


def differences(
    trained: Mapping[str, Any], here: Mapping[str, Any], same_data: bool = False
) -> list[str]:
    """Sentences about what differs and need not agree.

    Args:
        trained, here: as for `check_training_context`.
        same_data: no other prices were asked for.
    """
    found = []
    before, now = list(trained.get("symbols", ())), list(here.get("symbols", ()))
    if before and now and before != now:
        words = f"The policy was trained on {', '.join(before)} and acts on {', '.join(now)} here"
        if trained.get("symbols_at_once", 1) > 1:
            words += ": what it learned of one symbol it does to the one in its place"
        found.append(f"{words}.")
    key = "data_sha256"
    if same_data and key in trained and key in here and trained[key] != here[key]:
        found.append("The prices have changed since the policy was trained (their hash differs).")
    return found


def _named(key: str, trained: Any, here: Any) -> str:
    if key != "features":
        return f"{key} was {trained} and is {here} here"
    before, now = _names(trained), _names(here)
    if before == now:
        k = next(k for k, one in enumerate(trained) if one != here[k])
        return f"feature {before[k]} was {dict(trained[k])} and is {dict(here[k])} here"
    if sorted(before) == sorted(now):
        k = next(k for k, name in enumerate(before) if name != now[k])
        return f"features are in another order: number {k + 1} was {before[k]} and is {now[k]} here"
    return f"features were {', '.join(before)} and are {', '.join(now)} here"


def _names(features: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(one["name"]) for one in features]
