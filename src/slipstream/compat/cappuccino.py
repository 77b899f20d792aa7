"""Environment classes and files of Cappuccino and FinRL_Crypto, based on `portfolio`.

The classes take arrays of prices. `import_finrl` converts the pickled files to price files.
docs/guides/older-systems.md lists the differences.
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
_BAR = 300  # seconds; the arrays have no timestamps, and no rule of a step depends on them

# Keys of `env_params` and their names in `portfolio`.
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
# Keys with another or no meaning in slipstream, and the fix; ignored if they are off or empty.
_SAMPLED = "it had no effect there, but in slipstream it is paid every bar. To use it, pass"
_OTHER_PARAMS = {
    "trailing_stop_pct": "slipstream sells at the close after the fall. To use it, pass the "
    "argument trailing_stop={}",
    "max_drawdown_penalty": f"{_SAMPLED} the argument drawdown_penalty={{}}",
    "volatility_penalty": f"{_SAMPLED} the argument volatility_penalty={{}}",
    "n_envs": "",
}
_OTHER_ARGUMENTS = {
    "use_sentiment": "add its columns to `tech_array`",
    "use_dynamic_fees": "pass the argument fee_tiers=[(0, 0.006), (10_000, 0.004)]",
    "use_timeframe_constraint": "cut the arrays at the end of the episode",
    **dict.fromkeys(("sentiment_service", "fee_mode", "fee_interval", "timeframe"), ""),
    **dict.fromkeys(("data_interval", "if_log"), ""),
}
# Attributes of the original environment, and fields of STATE.
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
    """A single environment with NumPy arrays; the caller resets it.

    Steps are those of `portfolio` with `orders: units` and the original's rules: an episode begins
    at the first row and ends `lookback` rows before the last one, and the last reward is the
    discounted return. Actions are clipped to [-1, 1] and never modified. The arrays are copied
    once.

    Args:
        config: `price_array` [T, D], closes, and `tech_array` [T, D F], ordered by asset.
        env_params: lookback, norm_cash, norm_stocks, norm_tech, norm_reward, norm_action (default:
            FinRL_Crypto's), time_decay_floor, min_cash_reserve, concentration_penalty,
            max_position_pct.
        initial_capital: initial cash; None: 1,000,000.
        buy_cost_pct, sell_cost_pct: fee as a fraction of notional, equal for both sides; None: the
            fee of `rules`.
        gamma: discount factor of the discounted return.
        if_log: ignored; the info of the last step has the fees.
        tickers: names of the assets, which determine the minimum orders; None: the original's seven
            or ten.
        rules: `cappuccino` or `finrl_crypto`, the settings of the search space of that name.
        seed: seed of random starts.
        backend: `compiled` or `serial`.
        **more: fields of `portfolio`'s Config, such as ``units={"start": "random"}``.

    Attributes:
        env_name, env_num, num_envs, n_envs, state_dim, action_dim, max_step, if_discrete,
        target_return: attributes for ElegantRL.
        price_array, tech_array, lookback, initial_total_asset, initial_cash, crypto_num: as in the
            original.
        time, cash, stocks, stocks_cooldown, total_asset, total_asset_eqw, gamma_return,
        total_fees_paid: current state; [n_envs] in a vectorized environment.

    Raises:
        ConfigError, DataError: settings or arrays are not valid.
    """

    _vectorization: tuple[int, AutoresetMode] = (1, AutoresetMode.DISABLED)

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
        n_envs, autoreset = self._vectorization
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
        self._device: Any = None  # device of returned tensors; None: return arrays
        if n_envs > 1 and find_spec("torch") is not None:  # as the original's first states
            cuda = import_optional("torch", "A tensor", "torch").cuda.is_available()
            self._device = "cuda:0" if cuda else "cpu"

    def reset(self) -> Any:
        """Start new episodes; return the states [state_dim], or [n_envs, state_dim]."""
        return self._convert(self.batch.reset([None] * self.env_num))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any]:
        """Step every environment.

        Args:
            actions: [action_dim], or [n_envs, action_dim]; an array or a tensor.

        Returns:
            State, reward, done and info. In a vectorized environment the first three are new arrays
            [n_envs, ...], or tensors if `actions` is one, and info is a list of dicts. If an
            episode ended, info has `total_fees_paid`, `episode_return_net`, `episode_return_gross`,
            `fee_impact_pct` and `final_state`.
        """
        self._device = getattr(actions, "device", None) if hasattr(actions, "detach") else None
        array = actions.detach().cpu() if hasattr(actions, "detach") else actions
        array = np.atleast_2d(np.asarray(array, np.float32))
        if not np.isfinite(array).all():
            raise ActionError("`actions` must be finite, got NaN or infinity.")
        result = self.batch.step(np.clip(array, -1.0, 1.0))
        infos: list[dict[str, Any]] = [{} for _ in range(self.env_num)]
        for k, index in enumerate(result.ended.tolist()):
            fees = float(result.episodes.metrics["cost_fee"][k])
            net = 1.0 + float(result.episodes.metrics["total_return"][k])
            infos[index] = {
                "total_fees_paid": fees,
                "episode_return_net": net,
                "episode_return_gross": net + fees / self.initial_cash,
                "fee_impact_pct": 100.0 * fees / self.initial_cash,
                "final_state": result.final_obs[k],
            }
        done = result.terminated | result.truncated
        if self.env_num == 1:
            return result.obs[0], float(result.reward[0]), bool(done[0]), infos[0]
        states, rewards = self._convert(result.obs), self._convert(result.reward)
        return states, rewards, self._convert(done), infos

    def close(self) -> None:
        """Close the environment; may be called again."""
        self.batch.close()

    def _convert(self, array: NDArray[Any]) -> Any:
        if self.env_num == 1 or self._device is None:
            return array[0] if self.env_num == 1 else array
        return import_optional("torch", "A tensor", "torch").from_numpy(array).to(self._device)

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS or "batch" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        values = self.batch.env.state[_FIELDS[name]].copy()
        return values[0] if self.env_num == 1 else values


class VectorizedCryptoEnvAlpaca(CryptoEnvAlpaca):
    """Vectorized environment with auto-reset; arguments as for `CryptoEnvAlpaca`.

    All sub-environments begin at the first row, as in the original, unless
    ``units={"start": "random"}`` is passed. ElegantRL passes only the arguments named here.
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
        self._vectorization = n_envs, AutoresetMode.SAME_STEP
        money = (initial_capital, buy_cost_pct, sell_cost_pct, gamma)
        super().__init__(config, env_params, *money, tickers=tickers, rules=rules, **more)


class VectorizedCryptoEnvAlpacaOptimized(VectorizedCryptoEnvAlpaca):
    """Alias of `VectorizedCryptoEnvAlpaca`, which already reuses its arrays."""


def _array(config: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    """Return a read-only copy of an array of the config, [T, columns]."""
    try:
        array = np.array(config[name], np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"`config` must have an array of numbers `{name}` ({error!r}).") from None
    if array.ndim != 2 or not array.size:
        raise DataError(f"`{name}` must have the shape [bars, columns], got {array.shape}.")
    bad = ~np.isfinite(array) | ((array <= 0.0) & (name == "price_array"))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"`{name}` has {int(bad.sum()):,} values that are not valid, the first one "
            f"{array[row, column]} in row {row}, column {column}. Remove those rows, or convert "
            "the arrays with `slipstream data import-finrl`, which skips such bars."
        )
    array.flags.writeable = False
    return array


def names_of(tickers: Sequence[str] | None, assets: int) -> tuple[str, ...]:
    """Return the names of the columns of `price_array`, which determine the minimum orders."""
    named = tickers is not None and len(tickers) > 0
    if tickers is None or not named:
        tickers = SEVEN[:assets] if assets <= len(SEVEN) else TEN[:assets]
    names = tuple(str(name).replace("/", "").replace("-", "") for name in tickers)
    if len(names) != assets:
        raise DataError(
            f"`price_array` has {assets} columns, but there are {len(names)} names "
            f"({', '.join(names)}). Give one name per column, in order, as `tickers` or "
            "--symbols. If a symbol is missing from the arrays, omit its name."
        )
    if not named:
        print_to_stderr(
            f"The {assets} columns of `price_array` have no names. Assuming the original order, "
            "which determines the minimum orders. To choose the names, pass "
            f"tickers={list(names)} in the order of the columns, or --symbols."
        )
    return names


def _settings(
    env_params: Mapping[str, Any], rules: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert arguments of the original and of slipstream to settings of `portfolio`.

    Raises:
        ConfigError: a key is unknown, missing, given twice, or has another meaning in slipstream.
    """
    if not (rule_settings := space_settings(rules)):
        raise ConfigError(f"`rules` must be cappuccino or finrl_crypto, got {rules!r}.")
    arguments, ours = dict[str, Any](), dict[str, Any]()
    for name, value in given.items():
        theirs = name in _ARGUMENTS or name in _OTHER_ARGUMENTS or name == "sell_cost_pct"
        (arguments if theirs else ours)[name] = value
    ours |= {f"units.{name}": value for name, value in ours.pop("units", {}).items()}
    fees = arguments.get("buy_cost_pct"), arguments.pop("sell_cost_pct", None)
    if fees[1] is not None and fees[0] != fees[1]:
        raise ConfigError(
            f"`buy_cost_pct` {fees[0]} and `sell_cost_pct` {fees[1]} differ, but `portfolio` has "
            "one fee for both sides. Set both to their mean, which costs the same per round trip."
        )
    renamed = _rename(env_params, _PARAMS, _OTHER_PARAMS, ours)
    renamed |= _rename(arguments, _ARGUMENTS, _OTHER_ARGUMENTS, ours)
    original = {"units.start": "first", "units.anchor": "first_row", "units.ending": "original"}
    decay = float(rules != "cappuccino")  # Cappuccino's default is 0
    values: dict[str, Any] = {"data": {"folder": "-"}}
    settings = {**original, "time_decay_floor": decay, **rule_settings, **renamed, **ours}
    for path, value in settings.items():
        set_by_path(values, path.removeprefix("env."), value)
    values.pop("features", None)  # `tech_array` contains them
    return values


def _rename(
    values: Mapping[str, Any],
    names: Mapping[str, str],
    others: Mapping[str, str],
    ours: Mapping[str, Any],
) -> dict[str, Any]:
    """Return values of the original by slipstream's dotted paths."""
    renamed = {}
    for name, value in values.items():
        if name in others:
            if value and others[name]:
                raise ConfigError(
                    f"`{name}` has another meaning in slipstream: {others[name].format(value)}."
                )
        elif name not in names:
            raise ConfigError(f"Unknown key `{name}`; {did_you_mean(name, [*names, *others])}")
        elif value is not None:
            if (path := names[name]) in ours:
                raise ConfigError(
                    f"`{name}: {value}` and `{path}: {ours[path]}` are the same. Remove one."
                )
            renamed[path] = value
    return renamed


def _loaded(
    config: Config, price: NDArray[np.float64], tech: NDArray[np.float64], names: tuple[str, ...]
) -> KernelData:
    """Return the data of `portfolio` from arrays: prices without gaps, spread or volume."""
    rows, assets = price.shape
    if len(tech) != rows or tech.shape[1] % assets or rows < 2 * config.lookback + 1:
        raise DataError(
            f"`tech_array` must have the rows of `price_array` and equally many columns for each "
            f"of its {assets} assets, and both at least {2 * config.lookback + 1} rows for "
            f"`lookback` {config.lookback}, got {price.shape} and {tech.shape}. Create both from "
            "the same symbols and bars."
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


_MAX_BYTES = 2**31  # of a file


class _Part:
    """Placeholder for an object in a pickle: the arguments that it would be made from."""

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
    """Placeholder for the dtype of timestamps with a time zone, which are stored in UTC."""


# Safe versions of NumPy's functions that construct arrays.
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
    """Loads arrays only, because a pickle can execute code.

    Parts of a pandas DatetimeIndex become placeholders, so pandas is not required.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return a NumPy constructor or a placeholder, without importing a module."""
        package, _, last = module.rpartition(".")
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if package in ("numpy.core", "numpy._core") and (last, name) in _NUMPY:
            return _NUMPY[last, name]
        if (module, name) == ("_codecs", "encode"):  # bytes in protocol 2
            return lambda text, encoding: str(text).encode("latin1")
        if name in _PARTS and module.partition(".")[0] in _MODULES:
            return _Zone if name == "DatetimeTZDtype" else _Part
        raise DataError(f"it contains {module}.{name}, no part of an array or a DatetimeIndex")


def import_finrl(
    folder: str | Path,
    out: str | Path,
    *,
    symbols: Sequence[str] | None = None,
    time_zone: str = "UTC",
    start: str | None = None,
    timeframe: str | None = None,
) -> list[str]:
    """Write one Parquet price file for each column of `price_array`.

    The arrays contain closes only, so open, high and low equal the close and there is no volume.
    Orders therefore fill at the close of the bar after the decision. `tech_array` becomes the
    columns `tech_0`, `tech_1`, ... of each asset. Bars without a price are skipped.

    Args:
        folder: folder with FinRL_Crypto's pickles price_array, tech_array and time_array.
        out: folder of the price files.
        symbols: names of the columns, in order; None: FinRL_Crypto's ten or Cappuccino's seven.
        time_zone: time zone of timestamps without one.
        start: time of the first bar, if time_array contains row numbers.
        timeframe: length of a bar, if time_array contains row numbers.

    Returns:
        Messages for the user.

    Raises:
        ConfigError, DataError: files or arguments are not valid; nothing was written.
    """
    source, target = Path(folder).expanduser(), Path(out).expanduser()
    price, tech = _read_numbers(source, "price_array"), _read_numbers(source, "tech_array")
    names = names_of(symbols, price.shape[1])
    time, zoned = _read_timestamps(source, len(price), start, timeframe)
    if len(tech) != len(price) or tech.shape[1] % len(names):
        raise DataError(
            "tech_array must have the rows of price_array and equally many columns for each of its "
            f"{len(names)} assets, got {tech.shape} and {price.shape}. If a symbol is missing "
            "from one of them, create both from the same symbols."
        )
    stamps = pl.Series(time.astype("datetime64[us]"))
    try:
        stamps = stamps.dt.replace_time_zone("UTC" if zoned else time_zone)
        stamps = stamps.dt.convert_time_zone("UTC")
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"--time-zone {time_zone} does not match the timestamps ({reason}). Give another one."
        ) from None
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
        f"{left_out:,} without a price were skipped.",
        "The arrays contain closes only: open, high and low equal the close, and there is no "
        "volume. Every order fills at the close of the bar after the decision. Do not use features "
        "of ranges and volume.",
        *(
            []
            if zoned
            else [
                f"Timestamps without a time zone were read as {time_zone}. FinRL_Crypto's "
                "processor writes the local time of its machine: set it by --time-zone."
            ]
        ),
        f"Next: slipstream tune crypto --data-dir {shlex.quote(str(target))} "
        f"--set env.orders=units --set env.features=[{listed}]",
    ]


def _read(folder: Path, name: str) -> Any:
    """Load one of FinRL_Crypto's files."""
    paths = (folder / name, folder / f"{name}.pkl")
    path = next((path for path in paths if path_exists(path)), None)
    if path is None:
        raise DataError(
            f"{folder} must contain FinRL_Crypto's files price_array, tech_array and time_array, "
            f"but {name} is missing. Give the folder that its 0_dl_trainval_data.py wrote."
        )
    try:
        return _Unpickler(io.BytesIO(read_bytes(path, _MAX_BYTES))).load()
    except DataError as error:
        raise DataError(
            f"{path} cannot be loaded: {error}. A pickle can execute code, so only arrays are "
            "accepted. Pickle numpy.asarray of its content."
        ) from None
    except Exception as error:  # a damaged pickle may raise anything
        reason = " ".join(str(error).split())
        raise DataError(f"{path} is no pickled array ({reason}). Create it again.") from None


def _read_numbers(folder: Path, name: str) -> NDArray[np.float64]:
    array = _read(folder, name)
    if not (isinstance(array, np.ndarray) and array.ndim == 2 and array.dtype.kind in "fiu"):
        value = getattr(array, "shape", type(array).__name__)
        raise DataError(
            f"{folder / name} must be an array of numbers [bars, columns], got {value}."
        )
    return array.astype(np.float64)


def _read_timestamps(
    folder: Path, rows: int, start: str | None, timeframe: str | None
) -> tuple[NDArray[np.datetime64], bool]:
    """Return the timestamps of all bars, and whether they had a time zone and are UTC."""
    parts = list(_walk(_read(folder, "time_array")))
    arrays = [part for part in parts if isinstance(part, np.ndarray) and part.dtype.kind == "M"]
    if start is not None and timeframe is not None:
        try:
            first = np.datetime64(start, "s")
        except ValueError:
            raise ConfigError(f"--start must be a date such as 2022-01-01, got {start}.") from None
        return first + timeframe_seconds(timeframe) * np.arange(rows), True
    if not arrays:
        raise DataError(
            f"{folder / 'time_array'} has no timestamps, only row numbers. Give the time of the "
            "first bar and the length of bars: --start 2022-01-01 --timeframe 5m."
        )
    if arrays[0].shape != (rows,):
        raise DataError(
            f"time_array has {arrays[0].size:,} timestamps, but price_array has {rows:,} rows. "
            "Create both again."
        )
    return arrays[0], any(isinstance(part, _Zone) for part in parts)


def _walk(part: Any) -> Iterator[Any]:
    """Yield an object and everything in it."""
    yield part
    inner = part.parts if isinstance(part, _Part) else part
    inner = list(inner.values()) if isinstance(inner, dict) else inner
    if isinstance(inner, (list, tuple)):
        for item in inner:
            yield from _walk(item)
