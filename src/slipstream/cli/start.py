"""`slipstream init`: a commented config to start from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from slipstream.market.discover import FileDescription, FolderDescription


def init(
    environment: Annotated[str, typer.Argument(help="forex, another name, a .py file, or gym:ID.")],
    folder: Annotated[str | None, typer.Argument(help="Folder of prices, for markets.")] = None,
) -> None:
    """Prints a commented config: slipstream init forex DIR > my.yaml."""
    from slipstream.cli.annotated import annotated
    from slipstream.training.config import resolve

    if environment == "forex":
        if folder is None:
            raise ConfigError(
                "`slipstream init forex` needs a folder of prices: "
                "slipstream init forex DIR > my.yaml."
            )
        typer.echo(_forex(folder), nl=False)
        return
    if folder is not None:
        raise ConfigError(f"{environment} reads no prices: leave the folder {folder} away.")
    config = resolve(environment)
    head = [f"slipstream train FILE reproduces `slipstream train {environment}`; every key may go."]
    typer.echo(annotated(config, head, ["training.out"]), nl=False)


def _forex(folder: str) -> str:
    from slipstream.cli.annotated import annotated
    from slipstream.market.discover import describe_folder
    from slipstream.training.config import resolve

    found = describe_folder(folder)
    section, left_out = _data_section(found)
    horizon = {"horizon": 256, "minibatch": 1024, "discount": 0.95, "entropy_coef": 0.005}
    config = resolve({"env": {"name": "forex", "data": section}, "agent": horizon})
    head = [f"Prices found in {folder}:"]
    head += [f"  {_file_line(one)}" for one in found.files]
    head += [f"Left out: {sentence}" for sentence in left_out]
    if "spread_pips" in section:
        head.append(
            "No spread column everywhere: spread_pips below is a guess, write your broker's."
        )
    if "time_zone" in section:
        head.append(
            "The stamps carry no zone: time_zone below is the format's usual one, check it."
        )
    head.append("Look at the data first: slipstream data check FOLDER.")
    return annotated(config, head, ["training.out"])


def _data_section(found: FolderDescription) -> tuple[dict[str, Any], list[str]]:
    """The `data` section without the symbols whose profits cannot be converted, and why."""
    from slipstream.market.symbols import parse

    section: dict[str, Any] = dict(found.data_section)
    if not found.usable:
        problems = " ".join(f"{one.file}: {one.problem}" for one in found.files if one.problem)
        advice = "Give a folder of CSV, Parquet or Feather files of bars."
        if "column" in problems:  # there is a table, its columns are not known
            advice = (
                "Name the columns with `slipstream data check --column THEIRS=OURS` until they can."
            )
        raise DataError(
            f"{found.folder} holds no file of prices that can be read. {problems} {advice}"
        )
    kept, left_out = [], []
    for symbol in section["symbols"]:
        pair = parse(symbol)
        lacking = [m for m in found.missing_pairs if pair is not None and pair.quote in m]
        if lacking and pair is not None and "USD" not in pair:
            left_out.append(f"{symbol}: its profits need {lacking[0]} to become USD.")
        else:
            kept.append(symbol)
    if not kept:
        raise DataError(f"{found.folder} has no symbol that can be traded. {' '.join(left_out)}")
    section["symbols"] = kept
    if "files" in section:
        section["files"] = {s: f for s, f in section["files"].items() if s in kept}
    return section, left_out


def _file_line(one: FileDescription) -> str:
    if one.problem is not None:
        return f"{one.file}: cannot be read: {one.problem}"
    first, last = (
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (one.first, one.last)
    )
    bars = f"{one.rows:,} bars of {one.bar_seconds // 60} min"
    line = f"{one.file}: {one.symbol}, {bars}, {first} to {last}"
    if one.extra:
        line += f"; columns usable as features: {', '.join(one.extra)}"
    return line
