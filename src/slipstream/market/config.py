"""DataConfig: where the prices are and how to read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, field_validator

from slipstream.core.bounds import Factor, SpreadPips
from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.market import timeframe as timeframes
from slipstream.market.zone import validate_zone


class DataConfig(Config):
    """The `data:` section of a config file.

    Attributes:
        folder: folder with one file a symbol, a single file, or ``package:NAME/sub/folder`` for
            data that came inside an installed Python package.
        symbols: which symbols to load, None for all files of the folder.
        files: file name by symbol, for files that are not called ``{SYMBOL}.parquet|csv|feather``.
        timeframe: asserted bar length (``15m``); bars are never resampled.
        columns: the file's column names -> time, date, open, high, low, close, volume, spread,
            spread_points, or any other name for an extra column.
        time_format: strptime format of the time column, where detection fails.
        time_zone: zone of stamps that carry none, such as ``UTC`` or ``America/New_York+7``.
        separator: field separator of CSV files, where detection fails.
        time_is: whether stamps mark the bar's open or its close (shifted by one bar).
        price_side: what the prices are; bid and ask are shifted to mid by half the spread.
        price_scale: factor that turns the file's prices into prices (0.00001 for points).
        spread_pips: full spread in pips where the file has no spread column.
        point: price units of one point for `spread_points`, default a tenth of a pip.
        bad_bars: whether bars with missing, non-positive or impossible prices stop loading or are
            dropped.
        market: trading hours; ``auto`` = ``fx`` for two fiat currencies, else ``24/7``.
    """

    folder: str
    symbols: tuple[str, ...] | None = None
    files: dict[str, str] = Field(default_factory=dict)
    timeframe: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    time_format: str | None = None
    time_zone: str | None = None
    separator: str | None = None
    time_is: Literal["open", "close"] = "open"
    price_side: Literal["mid", "bid", "ask"] = "mid"
    price_scale: Factor = 1.0
    spread_pips: SpreadPips | None = None
    point: Annotated[float, Field(ge=1e-12, le=1e6)] | None = None
    bad_bars: Literal["refuse", "drop"] = "refuse"
    market: Literal["auto", "fx", "24/7"] = "auto"

    @field_validator("symbols", mode="before")
    @classmethod
    def _some_symbols(cls, value: object) -> object:
        if isinstance(value, str):
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError("name at least one symbol, or leave it out for all files")
            if len(set(value)) != len(value):
                raise ValueError("each symbol may be named once")
        return value

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        value = "\t" if value in ("tab", "\\t") else value
        if value is not None and len(value) != 1:
            raise ValueError("must be one character, such as ',' or ';', or 'tab'")
        return value

    @field_validator("timeframe")
    @classmethod
    def _known_timeframe(cls, value: str | None) -> str | None:
        return _checked(timeframes.seconds, value)

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        return _checked(validate_zone, value)


def _checked(check: Callable[[str], object], value: str | None) -> str | None:
    if value is not None:
        try:
            check(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return value
