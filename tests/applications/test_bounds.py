"""Numbers that can only be a slip of the keyboard are refused, with key and range."""

from __future__ import annotations

from typing import Any

import pytest

from slipstream.core.bounds import BarCount
from slipstream.core.config import Config, find_model, validate
from slipstream.core.errors import ConfigError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.rl.agents.ppo.config import PPOConfig

KERNELS = ("forex", "portfolio", "cartpole", "pendulum")
DATA = {"forex": {"data": {"folder": "-"}}, "portfolio": {"data": {"folder": "-"}}}


def settings_of(kernel: str, path: str, value: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {**DATA.get(kernel, {})}
    if path.startswith("units."):
        settings["orders"] = "units"
    place = settings
    *sections, key = path.split(".")
    for section in sections:
        place[section] = dict(place.get(section, {}))
        place = place[section]
    place[key] = value
    return settings


@pytest.mark.parametrize(
    ("kernel", "path", "value"),
    [
        ("forex", "data.spread_pips", 1e6),
        ("forex", "data.point", 1e300),
        ("forex", "data.price_scale", 1e300),
        ("forex", "slippage_pips", 1e9),
        ("forex", "leverage", 1e300),
        ("forex", "exposure", 1e300),
        ("forex", "stop_loss", 1e300),
        ("forex", "initial_equity", 1e-300),
        ("forex", "turnover_penalty", 1e300),
        ("forex", "max_steps", 10**15),
        ("portfolio", "min_notional", 1e300),
        ("portfolio", "units.norm_action", 1e300),
        ("portfolio", "drawdown_penalty", 1e9),
        ("portfolio", "decide_every", 10**12),
        ("cartpole", "time_step", 1e308),
        ("cartpole", "gravity", -1e300),
        ("pendulum", "time_step", 1e308),
        ("pendulum", "mass", 1e-300),
    ],
)
def test_slips_of_the_keyboard(kernel: str, path: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"`env.{path}` must be at (most|least) "):
        load_kernel(kernel).configure(settings_of(kernel, path, value))


def test_agents_too() -> None:
    for name in ("learning_rate", "clip_range", "ent_coef", "vf_coef", "init_std"):
        with pytest.raises(ConfigError, match=f"`agent.{name}`"):
            validate(PPOConfig, {name: 1e300}, "agent")


def numbers_in(model: type[Config], before: str = "") -> list[str]:
    """Dotted paths of all fields that take one number."""
    found = []
    for name, field in model.model_fields.items():
        inner = find_model(field.annotation)
        if inner is not None:
            found += numbers_in(inner, f"{before}{name}.")  # type: ignore[arg-type]
        elif any(kind in str(field.annotation) for kind in ("int", "float")):
            found.append(f"{before}{name}")
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_number_of_every_environment_has_a_range(kernel: str) -> None:
    """The class of the defect: a new setting without bounds fails here."""
    model = load_kernel(kernel).Config
    for path in numbers_in(model):
        for value in (1e300, 10**300):
            with pytest.raises(ConfigError):
                load_kernel(kernel).configure(settings_of(kernel, path, value))


def test_whole_numbers_of_bars_fit_into_int64() -> None:
    class Some(Config):
        bars: BarCount = 0

    assert validate(Some, {"bars": 10**9}).bars == 10**9
