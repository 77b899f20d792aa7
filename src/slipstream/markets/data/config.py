"""DataConfig: location and format of the prices."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from slipstream.core.bounds import Factor, SpreadPips
from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.text import did_you_mean
from slipstream.core.timeline import validate_zone
from slipstream.markets.data import symbols as names
from slipstream.markets.data.bars import timeframe_seconds
from slipstream.markets.data.data_issue import ACCEPTABLE, CATALOGUE

Point = Annotated[float, Field(ge=1e-12, le=1e6)]


def _checked(check: Callable[[str], object]) -> AfterValidator:
    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


BarLength = Annotated[str, _checked(timeframe_seconds)]
TimeZone = Annotated[str, _checked(validate_zone)]


class DataConfig(Config):
    """The `data:` section of a config file.

    Attributes:
        folder: folder with one file per symbol, a single file, or ``package:NAME/sub/folder`` for
            data in an installed Python package.
        symbols: symbols to load; null loads all files of the folder.
        files: file name by symbol, for files that are not called ``{SYMBOL}.parquet|csv|feather``.
            Several symbols may share one file. A pattern matches the parts of one symbol, such as
            ``BTCUSDT-1h-20*.csv``.
        timeframe: required bar length (``15m``); bars are never resampled.
        columns: map from the file's column names to time, date, open, high, low, close, volume,
            spread, spread_points, spread_pips, or any other name for an extra column.
        time_format: strptime format of the time column, if detection fails.
        row_spacing: time between rows (``1h``) if their timestamps are too coarse to distinguish
            them. Times are rebuilt from the order of the rows, which must have no holes.
        time_zone: zone of timestamps without one, such as ``UTC`` or ``America/New_York+7``.
        separator: field separator of CSV files, if detection fails.
        decimal: decimal mark of numbers in text, ``.`` or ``,``, if detection fails.
        timestamp_label: left if timestamps mark a bar's open, right if they mark its close
            (shifted by one bar), as in pandas' `resample(label=...)`.
        price_side: side of the prices; bid and ask are shifted to mid by half the spread.
        price_scale: factor on the file's prices (0.00001 for points), one for all symbols or by
            symbol ({EURUSD: 0.00001, USDJPY: 0.001}; others keep theirs).
        spread_pips: full spread in pips if the file has no spread column.
        point: price units of one point for `spread_points`, one for all symbols or by symbol; by
            default a tenth of a pip.
        bad_bars: action on bars with missing, non-positive or impossible prices: refuse to load,
            or drop them.
        allow_issues: kinds of issues that do not stop loading; the report lists them first.
        market: trading hours; ``auto`` is ``fx`` for two fiat currencies, else ``24/7``.
    """

    folder: str
    symbols: tuple[str, ...] | None = None
    files: dict[str, str] = Field(default_factory=dict)
    timeframe: BarLength | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    time_format: str | None = None
    row_spacing: BarLength | None = None
    time_zone: TimeZone | None = None
    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    timestamp_label: Literal["left", "right"] = "left"
    price_side: Literal["mid", "bid", "ask"] = "mid"
    price_scale: Factor | dict[str, Factor] = 1.0
    spread_pips: SpreadPips | None = None
    point: Point | dict[str, Point] | None = None
    bad_bars: Literal["refuse", "drop"] = "refuse"
    allow_issues: tuple[str, ...] = ()
    market: Literal["auto", "fx", "24/7"] = "auto"

    @classmethod
    def require_folder(cls, section: Mapping[str, Any], name: str) -> None:
        """Raise ConfigError if no folder is set.

        Args:
            section: the `data` section as written.
            name: name of the environment, for the message.
        """
        if "folder" not in section:
            raise ConfigError(
                f"`env.data.folder` is missing: {name} reads prices. Set the folder of the "
                "files with `slipstream tune ... --data-dir DIR`, or --set env.data.folder=DIR for "
                "other commands, or create a config from it with "
                f"`slipstream init {shlex.quote(name)} DIR > my.yaml`."
            )

    @field_validator("symbols", mode="before")
    @classmethod
    def _some_symbols(cls, value: object) -> object:
        if isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError("name at least one symbol, or leave it out for all files")
            if len({str(symbol) for symbol in value}) != len(value):  # one may be a list
                raise ValueError("each symbol may be listed only once")
        return value

    def price_scale_for(self, symbol: str) -> float:
        """Return the price factor of one symbol."""
        if isinstance(self.price_scale, dict):
            return self.price_scale.get(symbol, 1.0)
        return self.price_scale

    def point_size_for(self, symbol: str) -> float:
        """Return the price units of one symbol's point."""
        point = self.point.get(symbol) if isinstance(self.point, dict) else self.point
        return names.point_size(symbol) if point is None else point

    @field_validator("allow_issues", mode="before")
    @classmethod
    def _acceptable(cls, value: object) -> object:
        value = (value,) if isinstance(value, str) else value
        for name in value if isinstance(value, (list, tuple)) else ():
            if name in ACCEPTABLE:
                continue
            if isinstance(name, str) and name in CATALOGUE:
                entry = CATALOGUE[name]
                how = f"its fix is {entry.fix}" if entry.fix else "it is not an error"
                raise ValueError(f"{name} cannot be allowed: {how}")
            advice = did_you_mean(str(name), ACCEPTABLE)
            raise ValueError(f"{name!r} is not an issue that can be allowed; {advice}")
        return value

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = "\t" if value in ("tab", "\\t") else value
        if value is not None and len(value) != 1:
            raise ValueError("must be one character, such as ',' or ';', or 'tab'")
        return value
