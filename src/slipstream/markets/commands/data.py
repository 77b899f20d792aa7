"""`slipstream data`: check price files, import them, and generate synthetic markets."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.core.terminal import print_text

_MAX_LOG_GROWTH = 600.0  # exp(709) is the largest float64

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    epilog="Example: slipstream data check data/eurusd",
)


@app.callback(rich_help_panel="Trading")
def data() -> None:
    """Check, import or generate price files."""


# Long: one parameter per option.
@app.command(epilog="Example: slipstream data check data/eurusd --timeframe 15m")
def check(
    folder: Annotated[
        str, typer.Argument(help="Folder of price files, one price file, or a config file.")
    ],
    symbols: Annotated[
        str | None, typer.Option(help="Check only these symbols, separated by commas.")
    ] = None,
    timeframe: Annotated[
        str | None, typer.Option(help="Require this bar length, such as 15m.")
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(help="Read timestamps without a zone in this time zone, such as UTC."),
    ] = None,
    time_format: Annotated[
        str | None, typer.Option(help="Parse timestamps with this strptime format.")
    ] = None,
    timestamp_label: Annotated[
        str | None,
        typer.Option(help="Treat a timestamp as the open (left) or close (right) of its bar."),
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Split the fields of CSV files at this character.")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Read this character in numbers as the decimal mark.")
    ] = None,
    row_spacing: Annotated[
        str | None,
        typer.Option(help="Rebuild rounded timestamps with this spacing of rows, such as 15m."),
    ] = None,
    price_side: Annotated[
        str | None, typer.Option(help="Treat the prices as mid, bid or ask prices.")
    ] = None,
    price_scale: Annotated[
        str | None,
        typer.Option(
            help="Multiply prices by a number, or by one per symbol: EURUSD=0.00001,USDJPY=0.001."
        ),
    ] = None,
    spread_pips: Annotated[
        float | None, typer.Option(help="Use this full bid-ask spread in pips.")
    ] = None,
    point: Annotated[
        str | None,
        typer.Option(help="Set the price units of one point: a number, or one per symbol."),
    ] = None,
    bad_bars: Annotated[
        str | None, typer.Option(help="Treat impossible bars this way: refuse or drop.")
    ] = None,
    allow_issues: Annotated[
        str | None,
        typer.Option(help="Load the prices despite these kinds of issues, separated by commas."),
    ] = None,
    market: Annotated[
        str | None, typer.Option(help="Set the trading hours: auto, fx or 24/7.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=OURS", help="Map a column of the files, such as Last=close; repeatable."
        ),
    ] = None,
) -> None:
    """Check price files and print every issue with its fix.

    The options are those of the config's `data:` section. The exit status is 0 if the prices can
    be loaded, with or without warnings, and 2 if `train` would refuse them.
    """
    from slipstream.core.config import validate
    from slipstream.core.errors import ConfigError
    from slipstream.markets.data.check import check as check_data
    from slipstream.markets.data.check import render
    from slipstream.markets.data.config import DataConfig
    from slipstream.training.settings.config import CONFIGS, read_config

    options: dict[str, Any] = {
        "symbols": symbols,
        "timeframe": timeframe,
        "time_zone": time_zone,
        "time_format": time_format,
        "timestamp_label": timestamp_label,
        "separator": separator,
        "decimal": decimal,
        "row_spacing": row_spacing,
        "price_side": price_side,
        "price_scale": _by_symbol("price-scale", price_scale),
        "spread_pips": spread_pips,
        "point": _by_symbol("point", point),
        "bad_bars": bad_bars,
        "allow_issues": allow_issues and tuple(name.strip() for name in allow_issues.split(",")),
        "market": market,
    }
    columns = {}
    for text in column or []:
        theirs, equals, ours = text.partition("=")
        if not equals:
            raise ConfigError(f"--column {text} has no `=`. Write THEIRS=OURS, such as Last=close.")
        columns[theirs] = ours
    values = {name: value for name, value in options.items() if value is not None}
    section: dict[str, Any] = {"folder": folder}
    if folder.endswith(CONFIGS):
        env = read_config(Path(folder)).get("env")
        data = env.get("data") if isinstance(env, dict) else None
        if not isinstance(data, dict):
            raise ConfigError(
                f"{folder} has no mapping `env.data`, so there are no prices to check. Give the "
                "config of a market, a folder of price files or one price file."
            )
        section = data
    columns = {**(section.get("columns") or {}), **columns}
    report = check_data(validate(DataConfig, {**section, **values, "columns": columns}, "data"))
    print_text(render(report))
    if not report.loadable:
        raise typer.Exit(2)


def _by_symbol(option: str, text: str | None) -> Any:
    """Parse a number, or ``EURUSD=0.00001,USDJPY=0.001`` as a mapping."""
    from slipstream.core.errors import ConfigError

    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        if "=" not in text:
            return float(text)
        return {symbol.strip(): float(value) for symbol, _, value in pairs}
    except ValueError:
        raise ConfigError(
            f"--{option} {text} is not a number. Write a number, or one per symbol, such as "
            "EURUSD=0.00001."
        ) from None


@app.command("import-finrl", epilog="Example: slipstream data import-finrl theirs data/crypto")
def import_finrl(
    folder: Annotated[
        Path, typer.Argument(help="Folder with price_array, tech_array and time_array.")
    ],
    out: Annotated[Path, typer.Argument(help="Output folder; gets one file per asset.")],
    symbols: Annotated[
        str | None, typer.Option(help="Name the columns, separated by commas.")
    ] = None,
    time_zone: Annotated[
        str, typer.Option(help="Read timestamps without a zone in this time zone.")
    ] = "UTC",
    start: Annotated[
        str | None, typer.Option(help="Set the first bar's time if time_array counts rows.")
    ] = None,
    timeframe: Annotated[str | None, typer.Option(help="Set the bar length, with --start.")] = None,
) -> None:
    """Convert FinRL_Crypto's pickled arrays to price files.

    Pickled code is not executed.
    """
    finrl = import_module("slipstream.compat.cappuccino")  # nothing imports compat
    names = None if symbols is None else [name.strip() for name in symbols.split(",")]
    stamps = {"time_zone": time_zone, "start": start, "timeframe": timeframe}
    for sentence in finrl.import_finrl(folder, out, symbols=names, **stamps):
        print_text(sentence)


@app.command("synthetic-forex", epilog="Example: slipstream data synthetic-forex data/forex")
def synthetic_forex(
    folder: Annotated[Path, typer.Argument(help="Output folder; gets EURUSD.parquet.")],
    bars: Annotated[
        int, typer.Option(min=2, help="Generate this many bars of 15 minutes.")
    ] = 60_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed the price path.")] = 0,
) -> None:
    """Generate EURUSD prices with a known optimal return."""
    from slipstream.core.storage.atomic_io import disk_errors
    from slipstream.markets.synthetic import SyntheticForex

    with disk_errors(folder):
        (file,) = SyntheticForex().write(folder, bars, seed)
    best = SyntheticForex().optimal_gain
    print_text(f"{file}: {bars:,} bars; the best policy earns {best * 1e4:.4f} basis points a bar.")


@app.command("synthetic-crypto", epilog="Example: slipstream data synthetic-crypto data/crypto")
def synthetic_crypto(
    folder: Annotated[Path, typer.Argument(help="Output folder; gets one file per asset.")],
    bars: Annotated[
        int, typer.Option(min=2, help="Generate this many bars of 5 minutes.")
    ] = 125_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed the price path.")] = 0,
    strength: Annotated[
        float, typer.Option(min=0.0, help="Set the hot asset's drift in basis points; 0: no edge.")
    ] = 20.0,
) -> None:
    """Generate seven assets with a known optimal return."""
    from slipstream.core.errors import ConfigError
    from slipstream.core.storage.atomic_io import disk_errors
    from slipstream.markets.synthetic import SyntheticCrypto

    market = SyntheticCrypto(strength=strength * 1e-4)
    if bars * market.strength > _MAX_LOG_GROWTH:
        raise ConfigError(
            f"--strength {strength:g} over {bars:,} bars exceeds the range of float64 prices. Use "
            f"at most {_MAX_LOG_GROWTH / bars * 1e4:g} basis points, or fewer --bars."
        )
    with disk_errors(folder):
        files = market.write(folder, bars, seed)
    best = market.optimal_gain
    print_text(
        f"{folder}: {len(files)} assets, {bars:,} bars; the best policy earns {best * 1e4:.2f} "
        f"basis points a bar at a fee of {market.fee * 1e4:g} basis points a side."
    )


@app.command(
    "synthetic-reversion", epilog="Example: slipstream data synthetic-reversion data/reversion"
)
def synthetic_reversion(
    folder: Annotated[Path, typer.Argument(help="Output folder; gets one file per asset.")],
    bars: Annotated[
        int, typer.Option(min=2, help="Generate this many bars of 5 minutes.")
    ] = 125_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed the price path.")] = 0,
    share: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, help="Revert this fraction of a move one bar later; 0: no edge."
        ),
    ] = 0.3,
) -> None:
    """Generate seven mean-reverting assets.

    The optimal return is known.
    """
    from dataclasses import replace

    from slipstream.core.storage.atomic_io import disk_errors
    from slipstream.markets.synthetic import SyntheticReversion

    market = SyntheticReversion(share=share)
    with disk_errors(folder):
        files = market.write(folder, bars, seed)
    best = [1e4 * replace(market, fee=fee).optimal_gain for fee in (1e-4, 10e-4)]
    print_text(
        f"{folder}: {len(files)} assets, {bars:,} bars; the best policy earns {best[0]:.2f} basis "
        f"points a bar at a fee of 1 basis point a side, {best[1]:.2f} at 10."
    )
