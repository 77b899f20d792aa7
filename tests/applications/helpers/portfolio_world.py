"""Small portfolio markets and an interpreted copy of the environment to step through them."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream.core.random import stream
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel import KernelData, params_table
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.markets.data.calendar import get_calendar
from slipstream.markets.data.panel import Panel
from slipstream.markets.features.panel_features import PanelFeatures
from slipstream.markets.portfolio import kernel as portfolio
from slipstream.markets.portfolio.portfolio_loader import PanelTable, build_arrays
from slipstream.markets.portfolio.portfolio_state import params_by_split, state_dtype
from slipstream.markets.shared_rules import SegmentList

BAR = 300
KERNEL = load_kernel("portfolio")
COINS = ("AAVE", "AVAX", "BTC", "LINK", "ETH", "LTC", "UNI")


def make_panel(
    close: Any,
    open: Any = None,
    tradable: Any = None,
    listed: Any = None,
    spread: float = 0.0,
    start: int = 0,
    segments: Any = None,
) -> Panel:
    """A panel of closes [T, A]; opens are the closes before unless given."""
    close = np.asarray(close, dtype=np.float64)
    rows, assets = close.shape
    if open is None:
        open = np.concatenate([close[:1], close[:-1]])
    yes = np.ones((rows, assets), dtype=np.bool_)
    opened = np.asarray(open, dtype=np.float64)
    return Panel(
        symbols=COINS[:assets],
        time=start + BAR * np.arange(rows, dtype=np.int64),
        open=opened,
        high=np.maximum(opened, close),
        low=np.minimum(opened, close),
        close=close,
        volume=np.ones((rows, assets)),
        listed=yes if listed is None else np.asarray(listed),
        tradable=yes if tradable is None else np.asarray(tradable),
        segments=np.array([[0, rows]] if segments is None else segments),
        bar_seconds=BAR,
        notes=(),
        hash="-",
        spread=np.full((rows, assets), float(spread)),
        extra={},
        kind="24/7",
    )


def random_panel(rows: int, assets: int, seed: int, **more: Any) -> Panel:
    """Walks of prices of very different sizes, with gaps between close and open."""
    draw = np.random.default_rng(seed)
    moves = 0.004 * draw.standard_normal((rows, assets))
    close = 10.0 ** draw.uniform(-0.5, 4.5, assets) * np.exp(moves.cumsum(axis=0))
    gap = np.exp(0.001 * draw.standard_normal((rows, assets)))
    return make_panel(close, np.concatenate([close[:1], close[:-1]]) * gap, **more)


def build(panel: Panel, columns: int = 2, seed: int = 0, **settings: Any) -> KernelData:
    """The kernel's arrays and records for a panel with random features."""
    config = KERNEL.configure({"data": {"folder": "-"}, **settings})
    shape = (*panel.close.shape, columns)
    values = np.random.default_rng(seed).standard_normal(shape)
    values[~panel.listed] = np.nan
    table = PanelTable(panel, PanelFeatures(values, 0, (), ("noise",) * columns))
    layout, older = SegmentList(), config.lookback - 1
    picked: dict[str, list[int]] = {"train": [], "window": []}
    for low, high in panel.segments.tolist():
        picked["train"].append(layout.add((low + older, high), 0, training=True))
    for low, high in panel.segments.tolist():
        picked["window"].append(layout.add((low + older, high), 0, training=False))
    data = build_arrays(table, layout, config)
    params = params_by_split(config, data, picked, BAR, get_calendar("24/7", BAR))
    return KernelData(data, params, state=state_dtype(len(panel.symbols)))


class World:
    """One interpreted copy of the environment.

    Args:
        panel: prices.
        split: `train`, or `window` for an evaluation that is liquidated at its end.
        settings: fields of `portfolio.Config`.
    """

    def __init__(self, panel: Panel, split: str = "window", seed: int = 0, **settings: Any) -> None:
        self.loaded = build(panel, seed=seed, **settings)
        kernel = KERNEL.specialize(self.loaded)
        record = self.loaded.params[split][0]
        self.d = self.loaded.data
        self.spec = kernel.spec(record, self.d)
        self.p = Records(params_table(kernel, (record,)))[0]
        self._state = np.zeros(1, kernel.STATE)
        self.s = Records(self._state)[0]
        with np.errstate(over="ignore"):
            self.s.key = stream(np.uint64(1), np.uint64(2), np.uint64(seed))
            portfolio.reset(self.s, self.p, self.d)

    def step(self, action: Any) -> tuple[float, bool, bool]:
        """Steps with an action row."""
        row = np.asarray(action, dtype=np.float32)
        reward, terminated, truncated = portfolio.step(self.s, row, self.p, self.d)
        portfolio.finalize_episode(self.s, self.p, self.d)  # so that a test may look after any step
        return float(reward), bool(terminated), bool(truncated)

    def observe(self) -> np.ndarray:
        """The observation row."""
        out = np.full(self.spec.observation_shape, np.nan, np.float32)
        portfolio.observe(self.s, self.p, self.d, out)
        return out

    def random_action(self, draw: np.random.Generator) -> np.ndarray:
        """Uniform within the space."""
        return draw.uniform(-1.0, 1.0, self.spec.action_dim).astype(np.float32)
