"""A kernel's section of a config, made complete before anything is loaded, and a study's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.environments.self_play.line_up import anchored
from slipstream.market.config import DataConfig
from slipstream.market.folds import FoldPlan
from slipstream.market.reading.source import price_files


def complete_section(name: str, kernel: Kernel, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the kernel's Config as plain values, what is on disk by absolute paths.

    Args:
        name: of the kernel, for messages.
        kernel: whose Config it is.
        settings: what was written.

    Raises:
        ConfigError: unknown keys, bad values, or no prices for a market.
    """
    if "data" not in settings and _needs_prices(kernel):
        raise ConfigError(
            f"`env.data` is required and missing: {name} reads prices. `slipstream init {name} "
            "DIR > my.yaml` writes a config from a folder of price files; train that."
        )
    return _anchored(kernel.configure(settings).model_dump(mode="json"))


def window_section(
    settings: Mapping[str, Any],
    data: str | Path | None,
    symbols: Sequence[str] | None,
    carried: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A market's section with other prices; see `training.factory.chosen_environment`."""
    chosen: dict[str, Any] = dict(settings)
    for key, value in (carried or {}).items():
        if chosen.get(key) is None:  # left to the data
            chosen[key] = value
    section = dict(chosen["data"])
    if data is not None:
        root = Path(data).expanduser().resolve()
        section["folder"] = str(root)
        here = {symbol for symbol, _ in price_files(root)} if root.is_dir() else set(symbols or ())
        for key in ("price_scale", "point"):  # units of what is not there concern nobody
            if isinstance(section.get(key), dict):
                section[key] = {s: one for s, one in section[key].items() if s in here}
    if symbols is not None:
        section["symbols"] = list(symbols)
        section["files"] = {s: f for s, f in section["files"].items() if s in symbols}
    chosen["data"] = section
    return chosen


def check_divisible(kernel: Kernel) -> None:
    """Refuses a market whose data cannot be divided into folds.

    Raises:
        ConfigError: says what to define.
    """
    if kernel.load_folds is None:
        raise ConfigError(
            f"`{kernel.name}` has prices and no `load_folds`: a study needs folds that leave "
            "out what an observation remembers. Define it as docs/extending.md shows, or train "
            "with `slipstream train`."
        )


def divided(kernel: Kernel, config: Config, plan: FoldPlan, known: Sequence[Loaded]) -> Loaded:
    """What a kernel loads for a study's folds, from what was read for other settings if it can.

    Args:
        kernel: whose data they are.
        config: its settings.
        plan: how markets are divided.
        known: what was loaded for other settings.
    """
    if kernel.vary is not None:
        for other in known:
            varied = kernel.vary(other, config)
            if varied is not None:
                return varied
    return kernel.load(config) if kernel.load_folds is None else kernel.load_folds(config, plan)


def _needs_prices(kernel: Kernel) -> bool:
    data = kernel.Config.model_fields.get("data")
    return data is not None and data.is_required() and data.annotation is DataConfig


def _anchored(settings: dict[str, Any]) -> dict[str, Any]:
    """Relative paths made absolute, so that a run can be resumed from anywhere."""
    seats = settings.get("self_play")
    for key in ("opponents", "evaluation"):
        if seats is not None and seats[key] is not None:
            seats[key] = anchored(seats[key])
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("folder"), str):
        folder = data["folder"]
        if ":" not in folder.split("/")[0]:  # `package:NAME` stays as it is
            data["folder"] = str(Path(folder).expanduser().resolve())
    return settings
