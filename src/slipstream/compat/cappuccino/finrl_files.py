"""FinRL_Crypto's pickled arrays as price files: `slipstream data import-finrl`.

A pickle is a program, and somebody else's must not run here: the unpickler below knows NumPy's
arrays and what a pandas DatetimeIndex is made of, and refuses everything else by its name. Parts of
an index are kept as what was said of them; pandas is not needed.
"""

from __future__ import annotations

import io
import pickle
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from slipstream.compat.cappuccino.crypto_env import names_of
from slipstream.core.errors import ConfigError, DataError
from slipstream.core.reader import content, is_there
from slipstream.core.storage.files import disk_errors, make_folder, write_bytes
from slipstream.markets.data.bars import timeframe_seconds

_MOST = 2**31  # bytes of a file


class _Part:
    """A part of an index: what it was made from, in place of the thing itself."""

    parts: list[Any]

    def __new__(cls, *parts: Any) -> _Part:
        part = object.__new__(cls)
        part.parts = list(parts)
        return part

    def __call__(self, *parts: Any) -> _Part:
        return _Part(*parts)

    def __setstate__(self, state: Any) -> None:
        self.parts.append(state)


class _Zone(_Part):
    """The type of stamps that have a zone; they are kept in UTC."""


# What NumPy's own functions of these names do with an array.
_NUMPY: dict[tuple[str, str], Callable[..., Any]] = {
    ("multiarray", "_reconstruct"): lambda kind, shape, dtype: np.ndarray(shape, dtype),
    ("numeric", "_frombuffer"): lambda raw, dtype, shape, order: np.frombuffer(raw, dtype).reshape(
        shape, order=order
    ),
}
_PARTS = {
    *("_new_Index", "Index", "RangeIndex", "Int64Index", "_new_DatetimeIndex", "DatetimeIndex"),
    *("DatetimeArray", "__pyx_unpickle_NDArrayBacked", "DatetimeTZDtype"),
    *("Minute", "Hour", "Day", "_UTC", "_p", "UTC", "timezone", "timedelta", "ZoneInfo", "getattr"),
}
_MODULES = ("pandas", "pytz", "datetime", "zoneinfo", "builtins", "__builtin__")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """NumPy's own, or a part that does nothing; no module is imported for it."""
        package, _, last = module.rpartition(".")
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if package in ("numpy.core", "numpy._core") and (last, name) in _NUMPY:
            return _NUMPY[last, name]
        if (module, name) == ("_codecs", "encode"):  # how protocol 2 writes bytes
            return lambda text, encoding: str(text).encode("latin1")
        if name in _PARTS and module.partition(".")[0] in _MODULES:
            return _Zone if name == "DatetimeTZDtype" else _Part
        raise DataError(f"it asks for {module}.{name}, no part of an array or a DatetimeIndex")


def import_finrl(
    folder: str | Path,
    out: str | Path,
    *,
    symbols: Sequence[str] | None = None,
    time_zone: str = "UTC",
    start: str | None = None,
    timeframe: str | None = None,
) -> list[str]:
    """Writes one Parquet file for each column of `price_array`, which any market reads.

    Open, high and low are the close, and there is no volume: the arrays have closes alone. So an
    order fills at the close of the bar after the decision, whatever its kind. `tech_array` becomes
    the columns `tech_0`, `tech_1`, ... of each asset. Bars without a price are left out.

    Args:
        folder: with price_array, tech_array and time_array, as FinRL_Crypto pickles them.
        out: where the files are written.
        symbols: names of the columns, in their order; FinRL_Crypto's ten or Cappuccino's seven.
        time_zone: of stamps that carry none.
        start, timeframe: of the first bar and between two, where time_array counts rows.

    Returns:
        Sentences for the user.

    Raises:
        ConfigError, DataError: one paragraph that says what to do; nothing was written.
    """
    source, target = Path(folder).expanduser(), Path(out).expanduser()
    price, tech = _numbers(source, "price_array"), _numbers(source, "tech_array")
    names = names_of(symbols, price.shape[1])
    time, zoned = _moments(source, len(price), start, timeframe)
    if len(tech) != len(price) or tech.shape[1] % len(names):
        raise DataError(
            "tech_array must have the rows of price_array and equally many columns for each of its "
            f"{len(names)} assets; their shapes are {tech.shape} and {price.shape}. Where one "
            "symbol is missing in one of them, make both from the same symbols."
        )
    stamps = pl.Series(time.astype("datetime64[us]"))
    try:
        stamps = stamps.dt.replace_time_zone("UTC" if zoned else time_zone)
        stamps = stamps.dt.convert_time_zone("UTC")
    except pl.exceptions.PolarsError as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"--time-zone {time_zone}: the stamps do not fit it ({why}).") from None
    with disk_errors(target):
        make_folder(target)
        left_out = 0
        for a, columns in enumerate(np.split(tech, len(names), axis=1)):
            known = np.isfinite(price[:, a]) & (price[:, a] > 0.0)
            left_out += int((~known).sum())
            frame = {"timestamp": stamps}
            frame |= {name: pl.Series(price[:, a]) for name in ("open", "high", "low", "close")}
            frame |= {f"tech_{k}": pl.Series(column) for k, column in enumerate(columns.T)}
            file = io.BytesIO()
            pl.DataFrame(frame).filter(pl.Series(known)).write_parquet(file)
            write_bytes(target / f"{names[a]}.parquet", file.getvalue())
    listed = ",".join(f"tech_{k}" for k in range(tech.shape[1] // len(names)))
    return [
        f"{target}: {len(price):,} bars of {len(names)} assets ({', '.join(names)}); "
        f"{left_out:,} without a price were left out.",
        "Open, high and low are the close and there is no volume, for the arrays have closes "
        "alone: every order fills at the close of the bar after it was decided. Leave out features "
        "of ranges and volume.",
        *(
            []
            if zoned
            else [
                f"Stamps without a zone were taken as {time_zone}; FinRL_Crypto's "
                "processor writes the local time of its machine, which --time-zone names."
            ]
        ),
        f"Search on them: slipstream tune crypto --data-dir {shlex.quote(str(target))} "
        f"--set env.orders=units --set env.features=[{listed}]",
    ]


def _read(folder: Path, name: str) -> Any:
    """What one of their files holds."""
    path = next((one for one in (folder / name, folder / f"{name}.pkl") if is_there(one)), None)
    if path is None:
        raise DataError(
            f"{folder} must hold FinRL_Crypto's files price_array, tech_array and time_array; "
            f"{name} is not there. Name the folder that its 0_dl_trainval_data.py wrote."
        )
    try:
        return _Unpickler(io.BytesIO(content(path, _MOST))).load()
    except DataError as error:
        raise DataError(
            f"{path} is not read: {error}. A pickle may run programs, so arrays alone are taken: "
            "pickle numpy.asarray of what it should hold."
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        why = " ".join(str(error).split())
        raise DataError(f"{path} holds no pickled array ({why}): make it again.") from None


def _numbers(folder: Path, name: str) -> NDArray[np.float64]:
    found = _read(folder, name)
    if not (isinstance(found, np.ndarray) and found.ndim == 2 and found.dtype.kind in "fiu"):
        said = getattr(found, "shape", type(found).__name__)
        raise DataError(f"{folder / name} must be an array of numbers [bars, columns], got {said}.")
    return found.astype(np.float64)


def _moments(
    folder: Path, rows: int, start: str | None, timeframe: str | None
) -> tuple[NDArray[np.datetime64], bool]:
    """Stamps of all bars, and whether they are UTC because they had a zone."""
    parts = list(_inside(_read(folder, "time_array")))
    found = [one for one in parts if isinstance(one, np.ndarray) and one.dtype.kind == "M"]
    if start is not None and timeframe is not None:
        try:
            first = np.datetime64(start, "s")
        except ValueError:
            raise ConfigError(f"--start {start}: write a moment, such as 2022-01-01.") from None
        return first + timeframe_seconds(timeframe) * np.arange(rows), True
    if not found:
        raise DataError(
            f"{folder / 'time_array'} counts rows and has no moments (their processor loses "
            "them): say when the first bar opens and how long bars are, --start 2022-01-01 "
            "--timeframe 5m."
        )
    if found[0].shape != (rows,):
        raise DataError(
            f"time_array has {found[0].size:,} stamps, price_array {rows:,} rows: make both anew."
        )
    return found[0], any(isinstance(one, _Zone) for one in parts)


def _inside(part: Any) -> Iterator[Any]:
    """The thing and everything in it."""
    yield part
    inner = part.parts if isinstance(part, _Part) else part
    inner = list(inner.values()) if isinstance(inner, dict) else inner
    if isinstance(inner, (list, tuple)):
        for one in inner:
            yield from _inside(one)
