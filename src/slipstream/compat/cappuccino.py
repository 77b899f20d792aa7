"""Cappuccino's and FinRL_Crypto's environment classes and files, on our `portfolio`.

Arrays of prices go in, copies of `portfolio` step behind. Their pickled files become price files.
What differs from theirs, and why: docs/guides/older-systems.md.
"""

from __future__ import annotations

import io
import pickle
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from slipstream.adapters.batch import ActionError, KernelBatch
from slipstream.core.bounds import check_count
from slipstream.core.config import set_by_path
from slipstream.core.errors import ConfigError, DataError
from slipstream.core.extras import import_optional
from slipstream.core.safe_io import path_exists, read_bytes
from slipstream.core.storage.atomic_io import disk_errors, make_folder, write_bytes
from slipstream.core.text import did_you_mean, print_to_stderr
from slipstream.kernels.kernel import KernelData
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD, RESET_KEEP_ALL
from slipstream.kernels.vector_env import member_indices
from slipstream.markets.data.bars import timeframe_seconds
from slipstream.markets.data.calendar import get_calendar
from slipstream.markets.data.panel import Panel
from slipstream.markets.features.panel_features import PanelFeatures
from slipstream.markets.portfolio.config import Config
from slipstream.markets.portfolio.portfolio_loader import PanelTable, build_arrays
from slipstream.markets.portfolio.portfolio_state import params_by_split, state_dtype
from slipstream.markets.shared_rules import SegmentList
from slipstream.studies.config import space_settings

SEVEN = ("AAVE", "AVAX", "BTC", "LINK", "ETH", "LTC", "UNI")  # Cappuccino's, in its order
TEN = ("AAVE", "AVAX", "BTC", "NEAR", "LINK", "ETH", "LTC", "MATIC", "UNI", "SOL")  # FinRL_Crypto's
_BAR = 300  # seconds; the arrays have no stamps, and no rule of a step depends on them

# Keys of `env_params`, and what `portfolio` calls them.
_PARAMS = {
    "lookback": "lookback",
    **{f"norm_{name}": f"units.norm_{name}" for name in ("cash", "stocks", "tech", "action")},
    "norm_reward": "norm_reward",
    "time_decay_floor": "time_decay_floor",
    "min_cash_reserve": "cash_reserve",
    "concentration_penalty": "concentration_penalty",
    "max_position_pct": "max_position",
}
_ARGUMENTS = {
    "initial_capital": "initial_equity",
    "buy_cost_pct": "fee",
    "gamma": "units.gamma",
}
# What means something else here, or nothing, and what to write instead; off, it is passed over.
_SAMPLED = "there it was sampled and read by nothing, here it is paid every bar: ask for it with"
_OTHER_PARAMS = {
    "trailing_stop_pct": "ours sells at the close after the one that shows the fall: ask for it "
    "with the argument trailing_stop={}",
    "max_drawdown_penalty": f"{_SAMPLED} the argument drawdown_penalty={{}}",
    "volatility_penalty": f"{_SAMPLED} the argument volatility_penalty={{}}",
    "n_envs": "",
}
_OTHER_ARGUMENTS = {
    "use_sentiment": "put its columns into `tech_array`",
    "use_dynamic_fees": "give the argument fee_tiers=[(0, 0.006), (10_000, 0.004)]",
    "use_timeframe_constraint": "cut the arrays where the episode is to end",
    **dict.fromkeys(("sentiment_service", "fee_mode", "fee_interval", "timeframe"), ""),
    **dict.fromkeys(("data_interval", "if_log"), ""),
}
# Their names of what a copy holds, and the fields of its record.
_FIELDS = {
    "time": "bar",
    "cash": "cash",
    "stocks": "units",
    "stocks_cooldown": "held",
    "total_asset": "equity",
    "total_asset_eqw": "benchmark",
    "gamma_return": "discounted",
    "total_fees_paid": "cost_fee",
}


class CryptoEnvAlpaca:
    """One copy, NumPy in and out; its caller resets it.

    Steps are those of `portfolio` with `orders: units` and the original's switches: an episode
    begins at the first row and ends `lookback` rows before the last one, the last reward is the
    discounted return. Actions are clipped to [-1, 1] and never written to. The caller's arrays are
    copied once, whatever the number of copies.

    Args:
        config: `price_array` [T, D], closes, and `tech_array` [T, D F], asset after asset.
        env_params: lookback, norm_cash, norm_stocks, norm_tech, norm_reward, norm_action
            (FinRL_Crypto's where left out); and time_decay_floor, min_cash_reserve,
            concentration_penalty, max_position_pct.
        initial_capital: 1,000,000 unless given.
        buy_cost_pct, sell_cost_pct: of notional, equal; those of `rules` unless given.
        gamma: of the discounted return.
        if_log: passed over; the last step's info has the fees.
        tickers: names of the assets, which decide their smallest orders; the original's seven or
            ten unless given.
        rules: `cappuccino` or `finrl_crypto`: the settings of the search space of that name.
        seed: of random starts; backend: compiled or serial.
        **more: fields of `portfolio`'s Config, such as ``units={"start": "random"}``.

    Attributes:
        env_name, env_num, num_envs, n_envs, state_dim, action_dim, max_step, if_discrete,
        target_return: what ElegantRL's protocols read.
        price_array, tech_array, lookback, initial_total_asset, initial_cash, crypto_num: as theirs.
        time, cash, stocks, stocks_cooldown, total_asset, total_asset_eqw, gamma_return,
        total_fees_paid: of the copy now; [n_envs] of several.

    Raises:
        ConfigError, DataError: one paragraph that says what to write instead.
    """

    _copies: tuple[int, AutoresetMode] = (1, AutoresetMode.DISABLED)

    def __init__(
        self,
        config: Mapping[str, Any],
        env_params: Mapping[str, Any],
        initial_capital: float | None = None,
        buy_cost_pct: float | None = None,
        sell_cost_pct: float | None = None,
        gamma: float | None = None,
        if_log: bool = False,
        *,
        tickers: Sequence[str] | None = None,
        rules: str = "cappuccino",
        seed: int = 0,
        backend: str = "compiled",
        **more: Any,
    ) -> None:
        n_envs, autoreset = self._copies
        given = {"initial_capital": initial_capital, "buy_cost_pct": buy_cost_pct, **more}
        given |= {"sell_cost_pct": sell_cost_pct, "gamma": gamma}
        price, tech = _array(config, "price_array"), _array(config, "tech_array")
        kernel = load_kernel("portfolio")
        own: Any = kernel.configure(_settings(env_params, rules, given))
        loaded = _loaded(own, price, tech, names_of(tickers, price.shape[1]))
        hold = HOLD if autoreset is AutoresetMode.DISABLED else RESET_KEEP_ALL
        seeds = member_indices([seed], check_count("n_envs", n_envs))
        env = KernelVectorEnv(
            kernel, loaded, *seeds, backend=backend, stagger=False, autoreset_mode=hold
        )
        self.batch = KernelBatch(env, "portfolio", autoreset)
        self.env_num = self.num_envs = self.n_envs = n_envs
        self.env_name = "MulticryptoEnv" if n_envs == 1 else f"VectorizedMulticryptoEnv_x{n_envs}"
        self.price_array, self.tech_array, self.env_params = price, tech, env_params
        self.initial_total_asset = self.initial_cash = own.initial_equity
        self.lookback, self.if_discrete, self.target_return = own.lookback, False, 10**8
        self.action_dim = self.crypto_num = price.shape[1]
        self.state_dim = self.batch.spec.observation_shape[0]
        self.max_step = len(price) - own.lookback - 1
        self._device: Any = None  # of the tensors to answer with; None: with arrays
        if n_envs > 1 and find_spec("torch") is not None:  # where theirs has its first states
            cuda = import_optional("torch", "A tensor", "torch").cuda.is_available()
            self._device = "cuda:0" if cuda else "cpu"

    def reset(self) -> Any:
        """Begins new episodes: states [state_dim], or [n_envs, state_dim]."""
        return self._answer(self.batch.reset([None] * self.env_num))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """Steps every copy.

        Args:
            actions: [action_dim], or [n_envs, action_dim]; an array or a tensor.

        Returns:
            State, reward, whether the episode ended, and info. Of several copies the first three
            are fresh arrays [n_envs, ...], or tensors where the actions are one, and info is a list
            of dicts. Where an episode ended, info has `total_fees_paid`, `episode_return_net`,
            `episode_return_gross`, `fee_impact_pct` and `final_state`.
        """
        self._device = getattr(actions, "device", None) if hasattr(actions, "detach") else None
        array = actions.detach().cpu() if hasattr(actions, "detach") else actions
        array = np.atleast_2d(np.asarray(array, np.float32))
        if not np.isfinite(array).all():
            raise ActionError("Actions must be numbers within -1 and 1, and some are not finite.")
        came = self.batch.step(np.clip(array, -1.0, 1.0))
        infos: list[dict[str, Any]] = [{} for _ in range(self.env_num)]
        for k, copy in enumerate(came.ended.tolist()):
            fees = float(came.episodes.metrics["cost_fee"][k])
            net = 1.0 + float(came.episodes.metrics["total_return"][k])
            infos[copy] = {
                "total_fees_paid": fees,
                "episode_return_net": net,
                "episode_return_gross": net + fees / self.initial_cash,
                "fee_impact_pct": 100.0 * fees / self.initial_cash,
                "final_state": came.final_obs[k],
            }
        ends = came.terminated | came.truncated
        if self.env_num == 1:
            return came.obs[0], float(came.reward[0]), bool(ends[0]), infos[0]
        return self._answer(came.obs), self._answer(came.reward), self._answer(ends), infos

    def close(self) -> None:
        """Ends the copies; may be called again."""
        self.batch.close()

    def _answer(self, array: NDArray[Any]) -> Any:
        if self.env_num == 1 or self._device is None:
            return array[0] if self.env_num == 1 else array
        return import_optional("torch", "A tensor", "torch").from_numpy(array).to(self._device)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS or "batch" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        now = self.batch.env.state[_FIELDS[name]].copy()
        return now[0] if self.env_num == 1 else now


class VectorizedCryptoEnvAlpaca(CryptoEnvAlpaca):
    """`n_envs` copies, which begin a new episode by themselves; arguments of `CryptoEnvAlpaca`.

    All copies begin at the first row, as theirs: ``units={"start": "random"}`` changes that.
    ElegantRL hands on what is named here and drops all else of its `env_args`.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        env_params: Mapping[str, Any],
        n_envs: int = 8,
        initial_capital: float | None = None,
        buy_cost_pct: float | None = None,
        sell_cost_pct: float | None = None,
        gamma: float | None = None,
        *,
        tickers: Sequence[str] | None = None,
        rules: str = "cappuccino",
        **more: Any,
    ) -> None:
        self._copies = n_envs, AutoresetMode.SAME_STEP
        money = (initial_capital, buy_cost_pct, sell_cost_pct, gamma)
        super().__init__(config, env_params, *money, tickers=tickers, rules=rules, **more)


class VectorizedCryptoEnvAlpacaOptimized(VectorizedCryptoEnvAlpaca):
    """The same: both step in arrays that are made once, and hand out copies of them."""


def _array(config: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    """One of their two arrays, a read-only copy [T, columns]."""
    try:
        array = np.array(config[name], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"`config` must have an array of numbers `{name}` ({error!r}).") from None
    if array.ndim != 2 or not array.size:
        raise DataError(f"`{name}` must be an array [bars, columns], its shape is {array.shape}.")
    bad = ~np.isfinite(array) | ((array <= 0.0) & (name == "price_array"))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"`{name}` is {array[row, column]} in row {row}, column {column}, and unusable in "
            f"{int(bad.sum()):,} places: cut those rows, or make price files of the arrays with "
            "`slipstream data import-finrl`, which leaves such bars out."
        )
    array.flags.writeable = False
    return array


def names_of(tickers: Sequence[str] | None, assets: int) -> tuple[str, ...]:
    """Of the columns of `price_array`; a name decides the smallest order."""
    named = tickers is not None and len(tickers) > 0
    if tickers is None or not named:
        tickers = SEVEN[:assets] if assets <= len(SEVEN) else TEN[:assets]
    names = tuple(str(name).replace("/", "").replace("-", "") for name in tickers)
    if len(names) != assets:
        raise DataError(
            f"`price_array` has {assets} columns, and {len(names)} names belong to them "
            f"({', '.join(names)}): give one for each in the columns' order, as `tickers`, or "
            "--symbols of the command; where one symbol is missing from the arrays, leave it out "
            "of the names, too."
        )
    if not named:
        print_to_stderr(
            f"The {assets} columns of `price_array` have no names: they are taken in the original "
            f"order, which decides their smallest orders. Write tickers={list(names)}, in the "
            "columns' own order; for the command --symbols."
        )
    return names


def _settings(
    env_params: Mapping[str, Any], rules: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """`portfolio`'s settings for what is said in their words and in ours.

    Raises:
        ConfigError: a key that is unknown, missing, of another meaning here, or said twice.
    """
    if not (needed := space_settings(rules)):
        raise ConfigError(f"`rules` must be cappuccino or finrl_crypto, it is {rules!r}.")
    arguments, ours = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        theirs = name in _ARGUMENTS or name in _OTHER_ARGUMENTS or name == "sell_cost_pct"
        (arguments if theirs else ours)[name] = value
    ours |= {f"units.{name}": value for name, value in ours.pop("units", {}).items()}
    fees = arguments.get("buy_cost_pct"), arguments.pop("sell_cost_pct", None)
    if fees[1] is not None and fees[0] != fees[1]:
        raise ConfigError(
            f"`buy_cost_pct` {fees[0]} and `sell_cost_pct` {fees[1]} differ, and `portfolio` has "
            "one fee for both sides: give both their mean, which a round trip costs as well."
        )
    said = _said(env_params, _PARAMS, _OTHER_PARAMS, ours)
    said |= _said(arguments, _ARGUMENTS, _OTHER_ARGUMENTS, ours)
    original = {"units.start": "first", "units.anchor": "first_row", "units.ending": "original"}
    decay = float(rules != "cappuccino")  # 0 is its default
    values: dict[str, Any] = {"data": {"folder": "-"}}
    every = {**original, "time_decay_floor": decay, **needed, **said, **ours}
    for path, value in every.items():
        set_by_path(values, path.removeprefix("env."), value)
    values.pop("features", None)  # they are at hand
    return values


def _said(
    given: Mapping[str, Any],
    words: Mapping[str, str],
    others: Mapping[str, str],
    ours: Mapping[str, Any],
) -> dict[str, Any]:
    """What their words say, by our dotted path."""
    found = {}
    for name, value in given.items():
        if name in others:
            if value and others[name]:
                raise ConfigError(f"`{name}` is another thing here: {others[name].format(value)}.")
        elif name not in words:
            raise ConfigError(f"Nothing reads `{name}`; {did_you_mean(name, [*words, *others])}")
        elif value is not None:
            if (path := words[name]) in ours:
                raise ConfigError(
                    f"`{name}: {value}` and `{path}: {ours[path]}` say the same thing: give one."
                )
            found[path] = value
    return found


def _loaded(
    config: Config, price: NDArray[np.float64], tech: NDArray[np.float64], names: tuple[str, ...]
) -> KernelData:
    """What `portfolio` loads of files, of arrays: prices without gaps, spread or volume."""
    rows, assets = price.shape
    if len(tech) != rows or tech.shape[1] % assets or rows < 2 * config.lookback + 1:
        raise DataError(
            f"`tech_array` must have the rows of `price_array` and equally many columns for each "
            f"of its {assets} assets, and both at least {2 * config.lookback + 1} rows, for "
            f"`lookback` {config.lookback}; their shapes are {price.shape} and {tech.shape}. Make "
            "both from the same symbols and bars."
        )
    everywhere, nothing = np.ones((rows, assets), np.bool_), np.zeros((rows, assets))
    panel = Panel(
        names,
        _BAR * np.arange(rows, dtype=np.int64),
        *(price, price, price, price, nothing),
        *(everywhere, everywhere),
        segments=np.array([[0, rows]], np.int64),
        bar_seconds=_BAR,
        notes=(),
        hash="-",
        spread=nothing,
        extra={},
        kind="24/7",
    )
    columns = tuple(f"tech_{k}" for k in range(tech.shape[1] // assets))
    features = PanelFeatures(tech.reshape(rows, assets, -1), 0, (), columns)
    layout = SegmentList()
    layout.add((config.lookback - 1, rows), 0, training=True)
    data = build_arrays(PanelTable(panel, features), layout, config)
    params = params_by_split(config, data, {"train": [0]}, _BAR, get_calendar("24/7", _BAR))
    return KernelData(data, params, state=state_dtype(assets))


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
    """Reads arrays, and refuses everything else by its name: a pickle is a program.

    Parts of a pandas DatetimeIndex are kept as what was said of them; pandas is not needed.
    """

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
    path = next((one for one in (folder / name, folder / f"{name}.pkl") if path_exists(one)), None)
    if path is None:
        raise DataError(
            f"{folder} must hold FinRL_Crypto's files price_array, tech_array and time_array; "
            f"{name} is not there. Name the folder that its 0_dl_trainval_data.py wrote."
        )
    try:
        return _Unpickler(io.BytesIO(read_bytes(path, _MOST))).load()
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
