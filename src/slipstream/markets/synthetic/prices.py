"""PlantedMarket: prices with an edge whose best return is known, drawn, and written as files.

Every open is the close before; a bar's growth is what the signal of a subclass promised, and noise.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.reader import UnreadableError, content, resolve_folder
from slipstream.core.storage.files import sha256
from slipstream.markets.data.bars import Bars, FloatArray, IntArray
from slipstream.markets.data.reading.source import SUFFIXES

if TYPE_CHECKING:  # whoever asks whether files are planted loads no panel
    from slipstream.markets.data.panel import Panel

BASIS_POINT = 1e-4
LOG_VOLUME = 10.0  # mean logarithm of a bar's volume
_START = 1_640_995_200  # 2022-01-01 00:00 UTC
_MARK = ".planted"  # beside the files: the sha256 of each that a generator wrote


class Drawn(NamedTuple):
    """One draw of a signal and of what it moves.

    Attributes:
        growth: log(close / open) of each bar, float64 [T, A].
        log_volume: float64 [T, A].
        extra: columns that hold the state, float64 [T, A], by name.
    """

    growth: FloatArray
    log_volume: FloatArray
    extra: Mapping[str, FloatArray]


@dataclass(frozen=True)
class PlantedMarket(ABC):
    """A generator of prices; what differs between the markets is the signal.

    Attributes:
        name: what it is called, as in `slipstream data planted-forex`.
        column: the extra column that holds the state.
        stream: number of its random stream.
        symbols, bars, bar_seconds, first_price: what it writes unless asked for something else.
        fee: fraction of what is bought or sold.
    """

    name: ClassVar[str]
    column: ClassVar[str]
    stream: ClassVar[int]
    symbols: ClassVar[tuple[str, ...]] = ("AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI")
    bars: ClassVar[int] = 125_000
    bar_seconds: ClassVar[int] = 300
    first_price: ClassVar[float] = 100.0
    fee: float = 0.0

    @abstractmethod
    def draw(self, bars: int, assets: int, random: np.random.Generator) -> Drawn:
        """Draws the signal and what it moves."""

    @abstractmethod
    def drift(self, state: FloatArray) -> FloatArray:
        """Log drift in the bar after each of these states, float64 of their shape."""

    @property
    @abstractmethod
    def gain(self) -> float:
        """What the best policy that sees the state earns a bar."""

    def times(self, bars: int, bar_seconds: int) -> IntArray:
        """The stamps of the bars, UTC seconds."""
        return _START + bar_seconds * np.arange(bars, dtype=np.int64)

    def path(
        self, bars: int, seed: int, symbols: Sequence[str] = (), bar_seconds: int = 0
    ) -> tuple[Bars, ...]:
        """Draws one path of `bars` bars a symbol.

        Equal arguments give equal bars; a longer path is another one.
        """
        symbols = symbols or self.symbols
        random = np.random.default_rng(np.random.SeedSequence([seed, self.stream]))
        growth, log_volume, extra = self.draw(bars, len(symbols), random)
        close = self.first_price * np.exp(np.cumsum(growth, axis=0))
        opens = np.concatenate([np.full((1, len(symbols)), self.first_price), close[:-1]])
        time = self.times(bars, bar_seconds or self.bar_seconds)
        return tuple(
            Bars(
                symbol,
                time,
                open=opens[:, a],
                high=np.maximum(opens, close)[:, a],
                low=np.minimum(opens, close)[:, a],
                close=close[:, a],
                volume=np.exp(log_volume[:, a]),
                spread=np.zeros(bars),
                extra={name: column[:, a] for name, column in extra.items()},
            )
            for a, symbol in enumerate(symbols)
        )

    def write(
        self,
        folder: str | Path,
        bars: int = 0,
        seed: int = 0,
        symbols: Sequence[str] = (),
        bar_seconds: int = 0,
    ) -> tuple[Path, ...]:
        """Writes one path as ``{symbol}.parquet`` files into `folder` and returns them.

        Raises:
            OSError: the folder cannot be written, or its disk is full.
        """
        drawn = self.path(bars or self.bars, seed, symbols, bar_seconds)
        return tuple(_write(Path(folder), one) for one in drawn)

    def state(self, panel: Panel) -> FloatArray:
        """The state at each row of a planted panel, float64 [T, A].

        Raises:
            DataError: the panel has no such column.
        """
        if self.column not in panel.extra:
            raise DataError(
                f"The files must have the column `{self.column}` that the generator of "
                f"{self.name} writes; these have "
                f"{', '.join(panel.extra) or 'no columns beside prices and volume'}."
            )
        return panel.extra[self.column]

    def earned(self, held: FloatArray, state: FloatArray) -> FloatArray:
        """What shares of equity earn in expectation in the bar after each state, before fees."""
        return held * self.drift(state)

    def score(self, held: FloatArray, state: FloatArray, traded: FloatArray | None = None) -> float:
        """What a policy earns in expectation: conditional drift, not the noisy return.

        Args:
            held: shares of equity held through bar t + 1, decided on bar t, [n, A], or [n] of one
                symbol; the rest is cash.
            state: of the bars on which they were decided, of the same shape.
            traded: share of equity bought plus sold at each bar, [n]. None: what the shares
                change, from cash alone before the first bar, without the drift of shares that
                nobody trades.

        Returns:
            Sum over bars of what is earned - fee x traded.
        """
        held = np.asarray(held, dtype=np.float64)
        if traded is None:
            traded = np.abs(np.diff(held, axis=0, prepend=0.0))
        return float(self.earned(held, state).sum() - self.fee * np.sum(traded))


def _write(folder: Path, bars: Bars) -> Path:
    """Writes stamps in UTC and all columns but the spread; returns the file.

    Raises:
        OSError: the folder cannot be written, or its disk is full; then there is no such file.
    """
    import polars as pl  # a quarter of a second, which trainings without prices do not wait for

    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: pl.Series(column) for name, column in bars.columns().items()}
    moments = pl.from_epoch(columns.pop("time"), "s").dt.replace_time_zone("UTC")
    del columns["spread"]
    content = io.BytesIO()  # polars itself would not say what the system said
    pl.DataFrame({"timestamp": moments, **columns}).write_parquet(content)
    file = folder / f"{bars.symbol}.parquet"
    try:
        file.write_bytes(content.getvalue())
        with (folder / _MARK).open("a") as mark:
            mark.write(hashlib.sha256(content.getvalue()).hexdigest() + "\n")
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file


def is_planted(folder: str) -> bool:
    """Whether generators wrote every file of prices in a folder as it is: nothing is traded there.

    Args:
        folder: as a config's `env.data.folder` names it.
    """
    root = resolve_folder(folder)
    place = root if root.is_dir() else root.parent
    files = [path for path in place.iterdir() if path.suffix.lower() in SUFFIXES]
    if not (files and (place / _MARK).is_file()):
        return False
    try:
        known = set(content(place / _MARK).decode(errors="replace").split())
        return all(sha256(path) in known for path in files)
    except UnreadableError:
        return False
