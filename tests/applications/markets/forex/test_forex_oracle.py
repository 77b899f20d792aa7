"""The kernel against a plain reading of the rules, step for step, random markets and settings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forex_oracle import ForexOracle
from forex_world import Bar, World, random_bars

from slipstream.markets.forex.forex_state import FLAT, NIGHT, ROLL, VARIANCE


def random_settings(draw: np.random.Generator) -> dict[str, Any]:
    """Settings in which every rule is on about every other time."""

    def maybe(value: Any, otherwise: Any = None) -> Any:
        return value if draw.random() < 0.5 else otherwise

    leverage = float(draw.choice([2.0, 10.0, 30.0, 200.0]))
    exposure = min(float(draw.choice([0.5, 1.0, 1.9, 9.9, 30.0, 150.0])), leverage)
    unit = str(draw.choice(["pips", "atr", "fraction"]))
    size = {"pips": 1.0, "atr": 0.15, "fraction": 0.0001}[unit]
    return {
        "action": str(draw.choice(["discrete", "continuous"])),
        "exposure": exposure,
        "max_exposure": exposure,
        "rebalance_threshold": float(draw.choice([0.0, 0.1, 0.3])),
        "unit_step": float(draw.choice([1.0, 1000.0, 0.01])),
        "initial_equity": float(draw.choice([10_000.0, 1_000_000.0])),
        "leverage": leverage,
        "fill": str(draw.choice(["next_open", "next_open", "next_close", "compat_same_close"])),
        "slippage_pips": maybe(0.3, 0.0),
        "commission_per_million": maybe(35.0, 0.0),
        "stop_loss": maybe(float(draw.choice([0.3, draw.uniform(2.0, 20.0)])) * size),
        "take_profit": maybe(float(draw.choice([0.3, draw.uniform(2.0, 20.0)])) * size),
        "stop_unit": unit,
        "intrabar_fill": str(draw.choice(["adverse_first", "favourable_first"])),
        "stop_cooldown": int(draw.choice([0, 1, 3])),
        "cooldown": int(draw.choice([0, 0, 1, 4])),
        "max_daily_drawdown": maybe(float(draw.uniform(0.001, 0.02))),
        "on_breach": str(draw.choice(["block", "terminate"])),
        "swap_long": maybe(-3.0, 0.0),
        "swap_short": maybe(1.0, 0.0),
        "reward": str(draw.choice(["log_return", "pnl", "differential_sharpe"])),
        "turnover_penalty": maybe(0.01, 0.0),
        "holding_penalty": maybe(1e-5, 0.0),
        "drawdown_penalty": maybe(1e-3, 0.0),
    }


def oracle_of(
    world: World, bars: list[Bar], pip: float, inverse: bool, evaluation: bool
) -> ForexOracle:
    rows = [
        SimpleNamespace(
            open=bar.open,
            high=bar.high,
            low=bar.low,
            close=bar.close,
            spread=bar.spread,
            atr=bar.atr,
            rate_open=1.0 / bar.open if inverse else bar.rate_open,
            rate_close=1.0 / bar.close if inverse else bar.rate_close,
            rolled=bool(bar.flag & ROLL),
            flat=bool(bar.flag & FLAT),
            nights=bar.flag // NIGHT,
        )
        for bar in bars
    ]
    variance = float(world.d.constants[0, VARIANCE])
    return ForexOracle(rows, world.config, pip, inverse, evaluation, variance, 96.0)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(100)]
)
def test_every_step_equals_the_oracle(seed: int) -> None:
    draw = np.random.default_rng(seed)
    settings = random_settings(draw)
    inverse, evaluation = bool(draw.random() < 0.4), bool(draw.random() < 0.5)
    price, pip = (150.0, 0.01) if inverse else (1.1, 0.0001)
    volatility = float(draw.choice([4e-4, 4e-3]))
    bars = random_bars(90, seed, price, volatility, spread=float(draw.choice([0.0, 1.0])) * pip)
    world = World(bars, pip, inverse, evaluation, **settings).begin_at(0)
    oracle = oracle_of(world, bars, pip, inverse, evaluation)
    action = 1.0
    scale = settings["initial_equity"]
    for _ in range(len(bars) - 1):
        if draw.random() < 0.4:
            discrete = settings["action"] == "discrete"
            action = (
                int(draw.integers(3))
                if discrete
                else float(draw.choice([0.0, draw.uniform(-1, 1)]))
            )
        action = int(action) if settings["action"] == "discrete" else float(np.float32(action))
        reward, terminated, truncated = world.step(action)
        expected, ended, cut = oracle.step(action)
        s = world.s
        assert (terminated, truncated) == (ended, cut)
        assert s.units == pytest.approx(oracle.units, abs=1e-6)
        assert s.cash == pytest.approx(oracle.cash, abs=1e-9 * scale)
        assert s.equity == pytest.approx(oracle.equity, abs=1e-9 * scale)
        assert reward == pytest.approx(expected, rel=1e-7, abs=1e-8)
        assert s.fills == len(oracle.fills)
        if terminated or truncated:
            break
    for kind, paid in oracle.paid.items():
        assert world.s[f"cost_{kind}"] == pytest.approx(paid, abs=1e-9 * scale)
    reasons = [fill.reason for fill in oracle.fills]
    assert world.s.stop_exits == reasons.count("stop")
    assert world.s.target_exits == reasons.count("target")
    assert world.s.stop_outs == reasons.count("stop-out")
    assert world.s.both_touched == oracle.both_touched
    assert world.s.turnover == pytest.approx(oracle.traded, rel=1e-9)


def test_the_random_markets_reach_every_rule() -> None:
    reached = {"stop": 0, "target": 0, "stop-out": 0, "order": 0, "end": 0}
    both = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        settings = random_settings(draw)
        bars = random_bars(110, seed, volatility=4e-3)
        world = World(bars, evaluation=True, **settings).begin_at(0)
        oracle = oracle_of(world, bars, 0.0001, False, True)
        discrete = settings["action"] == "discrete"
        for _ in range(len(bars) - 1):
            action = int(draw.integers(3)) if discrete else float(draw.uniform(-1, 1))
            if any(oracle.step(action)[1:]):
                break
        for fill in oracle.fills:
            reached[fill.reason] += 1
        both += oracle.both_touched
    assert min(reached.values()) > 0 and both > 0, reached
