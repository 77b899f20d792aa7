"""Configs to start from, made for a folder of prices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slipstream.core.config import model_in, validate
from slipstream.core.errors import ConfigError, DataError, SlipstreamError
from slipstream.core.text import stamp
from slipstream.kernels.discover import load_kernel
from slipstream.markets.data.bars import timeframe_name
from slipstream.markets.data.checks.check import check
from slipstream.markets.data.checks.discover import (
    FileDescription,
    FolderDescription,
    Proposal,
    describe_folder,
    missing_pairs,
    propose,
)
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.symbols import FIAT, market_kind, parse
from slipstream.markets.features.registry import expand, warm_up_rows
from slipstream.training.environments.factory import kind_of

_MANY = 20_000  # bars of which any split holds what an observation remembers
_LONGER = {"train": 0.4, "validation": 0.3, "test": 0.3}
_FEE_PER_MILLION = 1_000.0  # of notional: what exchanges of coins usually take from each side


def _reads_prices(environment: str) -> bool:
    """Whether the environment's config has a `data` section of prices."""
    data = kind_of(environment).model.model_fields.get("data")
    return data is not None and model_in(data.annotation) is DataConfig


def start(environment: str, folder: str | None) -> tuple[dict[str, Any], list[str]] | None:
    """Return the sections of a config for a folder of prices, and the lines above them.

    Returns:
        None if the environment reads no prices.

    Raises:
        ConfigError: there is no folder.
        DataError: no file in the folder can be traded.
    """
    if not _reads_prices(environment):
        return None
    if folder is None:
        raise ConfigError(
            f"`slipstream init {environment}` needs a folder of prices: "
            f"slipstream init {environment} DIR > my.yaml."
        )
    found = describe_folder(folder, "fx" if environment == "forex" else None)
    _refuse_unread(found)
    names = [one.symbol for one in found.usable]
    env: dict[str, Any] = {"name": environment}
    values: dict[str, Any] = {"env": env}
    head: list[str] = []
    reasons: dict[str, str] = {}
    if environment == "forex":
        env["account_currency"], reasons = _account(found, names)
        if env["account_currency"] != "USD":
            head.append(
                f"account_currency is {env['account_currency']}: nothing here turns all profits "
                "into USD."
            )
        values["agent"] = {
            "horizon": 256,
            "minibatch": 1024,
            "discount": 0.95,
            "entropy_coef": 0.005,
        }
    elif environment == "portfolio":
        env["account_currency"], reasons = _one_quote(names)
    kept = _without(found, reasons)
    head = [*(f"Left out: {sentence}" for sentence in reasons.values()), *head]
    section = kept.data_section
    head += _without_pips(section, env)
    proposal = propose(section)
    env["data"] = proposal.section
    head += _fit_bars(env, min(one.rows for one in kept.usable))
    return values, [*_files_head(found), *head, *_data_head(proposal)]


def _fit_bars(env: dict[str, Any], bars: int) -> list[str]:
    """Choose features and splits with which `train` accepts so few bars; return what was chosen.

    Args:
        env: the section, which gets `features` and `split` if the defaults do not fit.
        bars: of the symbol that has the fewest.
    """
    kernel = load_kernel(env["name"])
    data = {"time_zone": "UTC", **env["data"]}  # any zone has as many bars
    usual = kernel.configure({**{key: env[key] for key in env if key != "name"}, "data": data})
    names = getattr(usual, "features", ())
    if bars > _MANY or not names or not hasattr(usual, "split"):
        return []
    if not check(validate(DataConfig, data, "data")).loadable:
        return []
    refused = ""
    for split in (usual.split.model_dump(), _LONGER):
        most = int(split["test"] * bars) // 2
        quick = [name for name in expand(names) if warm_up_rows([name]) <= most]
        for chosen in (list(names), quick):
            try:
                settings = {**usual.model_dump(), "split": split, "features": chosen or names}
                kernel.load(kernel.configure(settings))
            except SlipstreamError as error:
                refused = refused or str(error)
                continue
            lines = []
            if chosen != list(names):
                env["features"] = chosen
                lines.append(f"Of {bars:,} bars: features that remember at most {most:,} bars.")
            if split is _LONGER:
                env["split"] = split
                lines.append(f"Of {bars:,} bars: longer validation and test, after their embargo.")
            return lines
    return [
        "STILL OPEN, and `slipstream train` refuses until it is settled:",
        f"  {bars:,} bars are too few for any choice of features and splits. {refused}",
    ]


def _files_head(found: FolderDescription) -> list[str]:
    """What is in the folder, and what of it is left out and why."""
    used = {(one.symbol, one.file) for one in found.usable}
    head = [f"Prices found in {found.folder}:"]
    head += [f"  {_file_line(one)}" for one in found.files]
    head += [
        f"Left out: {one.file}: of another market or other bars than those used, or a second file "
        "of its symbol."
        for one in found.files
        if one.problem is None and (one.symbol, one.file) not in used
    ]
    unread = [one for one in found.files if one.problem is not None]
    return head + [f"Left out: {one.file}: it cannot be read (see above)." for one in unread]


def _data_head(proposal: Proposal) -> list[str]:
    """What the files prove, what is a guess, and what is left to write."""
    head = [f"Written because the files prove it: {reason}" for reason in proposal.reasons]
    if "spread_pips" in proposal.section:
        head.append(
            "No spread column everywhere: spread_pips below is a guess, write your broker's."
        )
    if proposal.open:
        head.append("STILL OPEN, and `slipstream train` refuses until it is settled:")
        head += [f"  {sentence}" for sentence in proposal.open]
    head.append("Look at the data first: slipstream data check FOLDER.")
    return head


def _refuse_unread(found: FolderDescription) -> None:
    """Raises DataError where no file can be read."""
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


def _account(found: FolderDescription, names: list[str]) -> tuple[str, dict[str, str]]:
    """The currency that an account is kept in, and why some symbols cannot be traded in it.

    US dollars where they serve any symbol, else the currency that serves most; a coin that is only
    bought and sold comes last.
    """
    pairs = [pair for name in names if (pair := parse(name)) is not None]
    others = dict.fromkeys([pair.base for pair in pairs] + [pair.quote for pair in pairs])
    reasons = {one: _convertible(found, names, one) for one in ("USD", *others)}
    if len(reasons["USD"]) < len(names):
        return "USD", reasons["USD"]
    money = FIAT | {pair.quote for pair in pairs}
    account = min(reasons, key=lambda one: (len(reasons[one]), one not in money))
    return account, reasons[account]


def _convertible(found: FolderDescription, names: list[str], account: str) -> dict[str, str]:
    """Why some symbols cannot be traded: nothing here turns their profits into `account`."""
    missing = missing_pairs(found.usable, account)
    reasons = {}
    for symbol in names:
        pair = parse(symbol)
        lacking = [m for m in missing if pair is not None and pair.quote in m]
        if lacking and pair is not None and account not in pair:
            reasons[symbol] = f"{symbol}: its profits need {lacking[0]} to become {account}."
    return reasons


def _one_quote(names: list[str]) -> tuple[str, dict[str, str]]:
    """The currency that most prices are in, and why the other symbols cannot join them."""
    quotes = {symbol: pair.quote for symbol in names if (pair := parse(symbol)) is not None}
    currency = max(["USD", *quotes.values()], key=list(quotes.values()).count)
    return currency, {
        symbol: f"{symbol}: its prices are in {quote}, those of the portfolio in {currency}."
        for symbol, quote in quotes.items()
        if quote != currency
    }


def _without(found: FolderDescription, reasons: dict[str, str]) -> FolderDescription:
    """The same without the symbols for which there is a reason."""
    kept = replace(found, left_out=frozenset(reasons))
    if not kept.usable:
        raise DataError(
            f"{found.folder} has no symbol that can be traded. {' '.join(reasons.values())}"
        )
    return kept


def _without_pips(section: dict[str, Any], env: dict[str, Any]) -> list[str]:
    """Takes the guess of a spread in pips away where none means anything, and says what remains.

    Of a coin's price a pip is next to nothing. The portfolio has a fee of its own.

    Args:
        section: of `data`.
        env: the forex environment gets a commission instead, as exchanges of coins take it.
    """
    kinds = {market_kind(symbol) for symbol in section["symbols"]}
    if kinds == {"fx"} or "spread_pips" not in section:
        return []
    if env["name"] != "forex":
        del section["spread_pips"]
        return []
    del section["spread_pips"]
    env["commission_per_million"] = _FEE_PER_MILLION
    return [
        "No spread column everywhere, and pips mean nothing here: commission_per_million "
        f"{_FEE_PER_MILLION:g} ({_FEE_PER_MILLION / 1e4:g} % a side) is a guess, write your "
        "exchange's fee."
    ]


def _file_line(one: FileDescription) -> str:
    if one.problem is not None:
        return f"{one.file}: cannot be read: {one.problem}"
    bars = f"{one.rows:,} bars of {timeframe_name(one.bar_seconds)}"
    line = f"{one.file}: {one.symbol}, {bars}, {stamp(one.first)} to {stamp(one.last)}"
    if one.extra:
        line += f"; columns usable as features: {', '.join(one.extra)}"
    return line
