"""Append-only CSV table that survives kills: one unbuffered write per batch of rows.

After a power cut it has the rows of the last `sync`. A run syncs before each checkpoint, and
resumes from one with the rows up to it.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from slipstream.core.errors import CheckpointError
from slipstream.core.safe_io import UnreadableError, path_exists, read_bytes
from slipstream.core.storage.atomic_io import AppendOnlyFile, disk_errors, write_text

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[float | str | None]]  # columns of a table by name
_LIMIT = 1 << 33  # bytes of a table
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of spreadsheet formulas


class CsvTable:
    """Rows appended to a CSV file; the header grows when a row has a new column.

    NaN and None are empty cells; floats are written with all digits.

    Args:
        path: of the file.
        log: receives a message if a damaged file was moved aside.
    """

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self.path, self._log = path, log
        self._columns: list[str] | None = None  # None: not read yet
        self._file: AppendOnlyFile | None = None

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows in a single write.

        Raises:
            ResourceError: the disk is full.
        """
        if not rows:
            return
        if self._columns is None:
            self._columns = self._split()[0]
        fresh = [name for name in rows[0] if name not in self._columns]
        if fresh:
            self._widen(fresh)
        lines = [",".join(_cell(row.get(name)) for name in self._columns) for row in rows]
        if self._file is None:
            self._file = AppendOnlyFile(self.path)
        self._file.write(("\n".join(lines) + "\n").encode())

    def truncate(self, column: str, last: float) -> None:
        """Drop rows whose `column` exceeds `last`, and a line that a kill left incomplete.

        Nothing else is lost: a file with invalid rows or header is moved aside first.
        """
        self.close()
        if not path_exists(self.path):
            return
        columns, rows = self._split()
        if rows and column not in columns:
            self._move_aside(f"its header has no column `{column}`")
            columns, rows = [], []
        place = columns.index(column) if rows else 0
        whole = [row for row in rows if len(row) == len(columns) and not _odd(row[place])]
        if len(whole) < len(rows):
            self._move_aside(f"{len(rows) - len(whole)} of its lines cannot be read")
        self._rewrite(columns, [row for row in whole if float(row[place]) <= last])

    def sync(self) -> None:
        """Wait until all rows are on disk.

        Raises:
            ResourceError: the disk is full.
        """
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _widen(self, fresh: list[str]) -> None:
        self.close()
        columns, rows = self._split()
        padding = [""] * len(fresh)
        self._rewrite(columns + fresh, [row + padding for row in rows if len(row) == len(columns)])

    def _rewrite(self, columns: list[str], rows: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows] if columns else rows)
        write_text(self.path, text.getvalue())
        self._columns = columns

    def _split(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows; an invalid file is moved aside."""
        try:
            return _split(self.path)
        except UnreadableError as error:
            self._move_aside(str(error))
            return [], []

    def _move_aside(self, why: str) -> None:
        number = 1
        while path_exists(aside := self.path.with_name(f"{self.path.name}.damaged-{number}")):
            number += 1
        with disk_errors(aside):
            os.replace(self.path, aside)
        self._log(
            f"{self.path} is damaged: {why}. It is kept as {aside.name}, and the table continues "
            "with the readable rows."
        )


def csv_text(rows: Sequence[Row]) -> str:
    """Return a complete table with every column that a row has.

    Text that a spreadsheet would evaluate as a formula is prefixed with an apostrophe.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines: list[list[Any]] = [columns, *([row.get(name) for name in columns] for row in rows)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_guarded, line) for line in lines)
    return text.getvalue()


def _guarded(value: Any) -> Any:
    """Return finite numbers unchanged, and text that is never a formula."""
    if isinstance(value, Real):
        return value if math.isfinite(value) else None
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def read_table(
    path: Path, numbers: Collection[str] = (), names: Collection[str] = ()
) -> dict[str, list[float | str | None]]:
    """Return columns of a table by name: numbers, text, None for empty cells.

    Incomplete rows are omitted.

    Args:
        path: of the table; a missing file has no columns.
        numbers: required columns that hold numbers or nothing.
        names: required columns.

    Raises:
        CheckpointError: it cannot be read, or is damaged.
    """
    try:
        columns, rows = _split(path)
        lacking = [name for name in (*numbers, *names) if columns and name not in columns]
        if lacking:
            raise UnreadableError(f"it has no column `{lacking[0]}`")
        whole = [row for row in rows if len(row) == len(columns)]
        table = {name: [_value(row[place]) for row in whole] for place, name in enumerate(columns)}
        for name in numbers:
            odd = [value for value in table.get(name, []) if isinstance(value, str)]
            if odd:
                raise UnreadableError(f"its column `{name}` holds {odd[0][:40]!r}, not a number")
    except UnreadableError as error:
        raise CheckpointError(
            f"The table {path} cannot be read: {error}. Move it away, or restore it."
        ) from error
    return table


def _split(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of a table; empty without a file."""
    try:
        text = read_bytes(path, _LIMIT).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], []
    whole = text[: text.rfind("\n") + 1]  # a kill may cut the last line anywhere
    try:
        rows = list(csv.reader(io.StringIO(whole)))
    except csv.Error as error:
        raise UnreadableError(f"it is no table ({error})") from error
    return (rows[0], rows[1:]) if rows else ([], [])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else ""
    if value is None:
        return ""
    text = str(value)
    return f'"{text}"' if "," in text else text


def _odd(text: str) -> bool:
    """Return true if a cell is not a finite number."""
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return True


def _value(text: str) -> float | str | None:
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text
