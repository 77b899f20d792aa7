"""File discovery: folders, single files, folders inside installed packages.

Files of one symbol that differ only in dates (``BTCUSDT-1h-2024-11.csv``, ``...-12.csv``) are
parts of one logical file. Its path is a pattern, ``BTCUSDT-1h-20*.csv``, as `files` may contain.
The same applies to numbered parts, to ``X_train`` and ``X_test``, and to files of bid and of ask.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from slipstream.core.config import validate
from slipstream.core.errors import DataError
from slipstream.core.safe_io import resolve_folder
from slipstream.core.text import did_you_mean
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.data_issue import FixableDataError
from slipstream.markets.data.symbols import find_pair

SUFFIXES = (".parquet", ".csv", ".feather")
_PACKED = (".gz", ".zip", ".7z", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".rar")
_DATE = r"(?:\d{2}\.\d{2}\.)?(?:19|20)\d{2}[-_.\d]*"
_PART = re.compile(rf"(?P<head>.*?[A-Za-z].*?[-_. ]){_DATE}")  # 2024-11, 201901_202012, ...
# EURUSD_0-2k and EURUSD_2-4k, EURUSD_part1, EURUSD_1 and EURUSD_2, X_train and X_test.
_RANGE = r"\d+[kKmM]?[-_]\d+[kKmM]?"
_NUMBERED = re.compile(
    rf"(?P<head>.*?[A-Za-z].*?[-_. ])(?:{_RANGE}|(?:part|chunk|split)[-_. ]?\d+|(?P<number>\d+))",
    re.IGNORECASE,
)
_SPLITS = re.compile(
    r"(?P<head>.*?[A-Za-z].*?[-_. ])(?:train|training|val|valid|validation|eval|dev|test|testing|"
    r"oos|holdout|trade)",
    re.IGNORECASE,
)
_SIDE = re.compile(r"bid|ask", re.IGNORECASE)
_ANY_SIDE = "[BbAa][IiSs][DdKk]"
_LENGTH = re.compile(r"[-_. ](?:\d+[a-z]+|[MHDW]\d+)$", re.IGNORECASE)  # -1h, _M15


def find_files(config: DataConfig) -> dict[str, Path]:
    """Return the file of every symbol to load, in the config's order (else alphabetical).

    Raises:
        DataError: missing or empty folder, missing symbol, a symbol with two files.
    """
    root = resolve_folder(config.folder)
    if not root.exists():
        raise DataError(
            f"Data folder {str(root)!r} does not exist: `folder` must name a folder with one "
            f"{{SYMBOL}}.parquet, .csv or .feather file for each symbol."
        )
    named = {symbol: _inside(root, file) for symbol, file in config.files.items()}
    if root.is_file():
        alone = config.symbols if config.symbols and len(config.symbols) == 1 else (root.stem,)
        files = {alone[0]: [root]}
    else:
        files = _folder_files(root, set(config.symbols or ()) - set(named))
    if config.symbols is None:
        symbols = tuple(named) if named else tuple(sorted(files))
    else:
        symbols = config.symbols
    if not symbols:
        raise no_files_error(root)
    return {symbol: named.get(symbol) or _pick(symbol, files, root) for symbol in symbols}


def no_files_error(root: Path) -> DataError:
    """Create the error for a folder without price files; it names packed ones."""
    packed = [path for path in sorted(root.iterdir()) if path.suffix.lower() in _PACKED]
    do = "put one file for each symbol there, or name another folder"
    if packed:
        do = f"{packed[0].name} is packed: unpack it there, and others like it"
    if (root / "price_array").is_file():
        command = f"slipstream data import-finrl {shlex.quote(str(root))} prices"
        do = f"FinRL_Crypto's arrays become such files by `{command}`"
    return DataError(f"Data folder {str(root)!r} holds no .parquet, .csv or .feather file: {do}.")


def _folder_files(root: Path, symbols: set[str]) -> dict[str, list[Path]]:
    """Return files by symbol. A name is a symbol as it is spelt, or as the config spells it."""
    spelling = {symbol.upper(): symbol for symbol in symbols}
    files: dict[str, list[Path]] = {}
    for symbol, path in price_files(root, symbols):
        files.setdefault(spelling.get(symbol.upper(), symbol), []).append(path)
    return files


def price_files(root: Path, whole_names: Iterable[str] = ()) -> list[tuple[str, Path]]:
    """Return the files of a folder, each with its symbol; parts as one pattern.

    Args:
        root: the folder.
        whole_names: names of files that were requested and are therefore not parts.
    """
    paths = [
        path
        for path in sorted(root.iterdir())
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    whole_names = set(whole_names)
    parts: dict[tuple[str, str], list[Path]] = {}
    for spelling in (_PART, _NUMBERED, _SPLITS):
        joined = {path for group in parts.values() for path in group}
        groups: dict[tuple[str, str], list[Path]] = {}
        for path in paths:
            match = spelling.fullmatch(path.stem)
            if match and path not in joined and path.stem not in whole_names:
                groups.setdefault((match["head"], path.suffix), []).append(path)
        for key, group in groups.items():
            if len(group) > 1 and (spelling is not _NUMBERED or _is_sequence(group)):
                parts.setdefault(key, group)
    joined = {path for group in parts.values() for path in group}
    files = [(path.stem, path) for path in paths if path not in joined]
    heads = [_LENGTH.sub("", head[:-1]) for head, _ in parts]
    for symbol, ((head, suffix), group) in zip(heads, parts.items(), strict=True):
        # Bars of two lengths are two symbols; the check reports them.
        name = symbol if heads.count(symbol) == 1 else head[:-1]
        files.append((name, root / _pattern(head, suffix, group)))
    return sorted(_pair_sides(files, whole_names), key=lambda file: file[1].name)


def override_data_config(
    config: DataConfig, folder: str | Path | None, symbols: Sequence[str] | None
) -> DataConfig:
    """Return the section with another folder or other symbols; None keeps the present value."""
    section: dict[str, Any] = config.model_dump()
    if folder is not None:
        root = Path(folder).expanduser().resolve()
        section["folder"] = str(root)
        present = (
            {symbol for symbol, _ in price_files(root)} if root.is_dir() else set(symbols or ())
        )
        for key in ("price_scale", "point"):  # units of absent symbols are errors
            if isinstance(section[key], dict):
                section[key] = {s: value for s, value in section[key].items() if s in present}
    if symbols is not None:
        section["symbols"] = list(symbols)
        section["files"] = {s: f for s, f in section["files"].items() if s in symbols}
    return validate(DataConfig, section, "env.data")


def _is_sequence(group: list[Path]) -> bool:
    """Return True if numbers count parts: EURUSD_1 and EURUSD_2, not the lengths 15 and 60."""
    matches = [_NUMBERED.fullmatch(path.stem) for path in group]
    plain = sorted(int(match["number"]) for match in matches if match and match["number"])
    return not plain or plain in ([*range(len(group))], [*range(1, len(group) + 1)])


def _pattern(head: str, suffix: str, group: list[Path]) -> str:
    """Return the narrowest pattern that fits the files of a group and no others of their folder."""
    prefixes = {path.stem[len(head) :][:2] for path in group}
    starts = [prefixes.pop() if prefixes in ({"19"}, {"20"}) else "[0-9]", "[A-Za-z0-9]"]
    patterns = [f"{glob.escape(head)}{start}*{suffix}" for start in starts]
    return next(
        (pattern for pattern in patterns if sorted(group[0].parent.glob(pattern)) == sorted(group)),
        patterns[0],
    )


def _pair_sides(files: list[tuple[str, Path]], whole_names: set[str]) -> list[tuple[str, Path]]:
    """Return the files with each pair of a bid and an ask file as one pattern."""
    pairs: dict[str, list[tuple[str, Path]]] = {}
    for symbol, path in files:
        if _SIDE.search(symbol) and symbol not in whole_names and path.stem not in whole_names:
            name = path.name if glob.has_magic(path.name) else glob.escape(path.name)
            undated = re.sub(rf"{_DATE}(?=[^*]*$)", "*", _SIDE.sub(_ANY_SIDE, name))
            pairs.setdefault(undated, []).append((symbol, path))
    pairs = {pattern: pair for pattern, pair in pairs.items() if len(pair) == 2}
    alone = [file for file in files if not any(file in pair for pair in pairs.values())]
    for pattern, ((symbol, path), _) in pairs.items():
        bare = re.sub(rf"[-_. ]+{_DATE}.*|[-_. ]*(?:bid|ask)(?=[-_. ]|$)", "", symbol, flags=re.I)
        name = find_pair(bare) or _SIDE.sub("", _LENGTH.sub("", bare)).strip("-_. ")
        alone.append((name or symbol, path.with_name(pattern)))
    return alone


def detect_side(path: Path) -> str:
    """Return the side in a file's name, ``bid`` or ``ask``; empty if there is none."""
    sides = {match.lower() for match in _SIDE.findall(path.stem)}
    return sides.pop() if len(sides) == 1 else ""


def expand_parts(path: Path) -> list[Path]:
    """Return the files of a path: itself, or the matches of a pattern, sorted by name."""
    if glob.has_magic(path.name) and not os.path.lexists(path):
        return sorted(path.parent.glob(path.name)) or [path]
    return [path]


def _inside(root: Path, file: str) -> Path:
    path = Path(file).expanduser()
    folder = root.parent if root.is_file() else root
    return path if path.is_absolute() else folder / path


def _pick(symbol: str, files: dict[str, list[Path]], root: Path) -> Path:
    paths = files.get(symbol, [])
    if len(paths) == 1:
        return paths[0]
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        fix = {"files": {symbol: paths[0].name}}
        raise FixableDataError(
            "file",
            f"Symbol {symbol} must have one file in {str(root)!r}, it has {len(paths)} "
            f"({names}): remove all but one, or name one in `files`.",
            fix,
        )
    named = [paths for name, paths in files.items() if find_pair(name) == symbol.upper()]
    if len(named) == 1 and len(named[0]) == 1:
        file = named[0][0].name
        raise FixableDataError(
            "file",
            f"Symbol {symbol} must have a file of its name in {str(root)!r}, and {file} contains "
            "it.",
            {"files": {symbol: file}},
        )
    have = ", ".join(sorted(files)[:20]) or "no data files"
    advice = did_you_mean(symbol, files, "")
    raise DataError(
        f"Symbol {symbol} must have a file {symbol}.parquet, .csv or .feather in {str(root)!r}, "
        f"which holds {have}{f'; {advice}' if advice else '.'} Correct `symbols`, or name the file "
        "in `files`."
    )
