"""A growing CSV table that survives a kill: one unbuffered write per batch of rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.training.files import AppendedFile, write_text

Row = Mapping[str, Any]


class Table:
    """Rows appended to a CSV file; the header grows when a row brings a new column.

    NaN and None are empty cells; floats are written with all their digits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []
        self._file: AppendedFile | None = None
        if path.exists():
            self._columns = _split(path)[0]

    def append(self, rows: Sequence[Row]) -> None:
        """Hands all rows to the system at once.

        Raises:
            ResourceError: the disk is full.
        """
        if not rows:
            return
        fresh = [name for name in rows[0] if name not in self._columns]
        if fresh:
            self._widen(fresh)
        lines = [",".join(_cell(row.get(name)) for name in self._columns) for row in rows]
        if self._file is None:
            self._file = AppendedFile(self.path)
        self._file.write(("\n".join(lines) + "\n").encode())

    def cut(self, column: str, last: float) -> None:
        """Drops rows whose `column` is beyond `last`, and a line that a kill left unfinished."""
        self.close()
        if not self.path.exists():
            return
        columns, rows = _split(self.path)
        place = columns.index(column) if column in columns else -1
        kept = [
            row
            for row in rows
            if len(row) == len(columns) and place >= 0 and _number(row[place]) <= last
        ]
        self._rewrite(columns, kept)

    def close(self) -> None:
        """Closes the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _widen(self, fresh: list[str]) -> None:
        self.close()
        columns, rows = _split(self.path) if self.path.exists() else ([], [])
        padding = [""] * len(fresh)
        self._rewrite(columns + fresh, [row + padding for row in rows if len(row) == len(columns)])

    def _rewrite(self, columns: list[str], rows: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows] if columns else rows)
        write_text(self.path, text.getvalue())
        self._columns = columns


def read(path: Path) -> dict[str, list[float | str | None]]:
    """Columns of a table by name: numbers where a cell is one, None where it is empty.

    Rows that a kill left unfinished are left out.
    """
    if not path.exists():
        return {}
    columns, rows = _split(path)
    whole = [row for row in rows if len(row) == len(columns)]
    return {name: [_value(row[place]) for row in whole] for place, name in enumerate(columns)}


def _split(path: Path) -> tuple[list[str], list[list[str]]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]  # a kill may cut the last line anywhere
    rows = list(csv.reader(io.StringIO(whole)))
    return (rows[0], rows[1:]) if rows else ([], [])


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    text = repr(float(value)) if isinstance(value, float) else str(value)
    return f'"{text}"' if "," in text else text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.inf


def _value(text: str) -> float | str | None:
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return text
