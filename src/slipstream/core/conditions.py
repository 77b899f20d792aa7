"""What a policy for prices was trained under, and whether it finds the same elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.core.errors import ConfigError

# What may differ where a policy acts; everything else must agree.
_FREE = ("environment", "symbols", "data_sha256", "settings")


@dataclass(frozen=True)
class Conditions:
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


def check_conditions(trained: Mapping[str, Any], here: Mapping[str, Any]) -> None:
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
        trained, here: as for `check_conditions`.
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
