"""Results files: the last measurement of each case of a suite, with its machine and commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.core.storage.atomic_io import disk_errors, write_json

Measurement = Mapping[str, Any]  # case, command, commit, machine, versions, rows


def read(path: Path) -> list[Measurement]:
    """Return the measurements of a file, one a case; an empty list if there is no file."""
    if not path.is_file():
        return []
    try:
        measured: list[Measurement] = json.loads(path.read_text(encoding="utf-8"))["measured"]
        return measured
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a results file of this version. Name another file, or delete it."
        ) from error


def write(path: Path, suite: str, measured: Measurement) -> None:
    """Replace a case's measurement in the file, or append it."""
    by_case = {case["case"]: case for case in read(path)} | {measured["case"]: measured}
    write_json(path, {"suite": suite, "measured": list(by_case.values())})


def find(path: Path, row: str) -> tuple[Measurement, Mapping[str, Any]]:
    """Return the first row of this name, and the measurement that contains it."""
    for measured in read(path):
        for candidate in measured["rows"]:
            if candidate["case"] == row:
                return measured, candidate
    raise ConfigError(f"{path} has no row {row}. Measure it, or name another row.")


def check_writable(path: Path) -> None:
    """Raise an error before measuring starts if the file cannot be written."""
    read(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            empty = file.tell() == 0
        if empty:
            path.unlink()
