"""EnvBuilder: trading environments by IntradayJules' calls."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.adapters import gymnasium_vector
from slipstream.adapters.gymnasium_env import EnvFace
from slipstream.compat.intraday.config import Vectorized, environment_of, sections_of, whole
from slipstream.core.bounds import check_count
from slipstream.core.config import validate
from slipstream.core.errors import ConfigError
from slipstream.core.extras import install
from slipstream.core.text import to_stderr
from slipstream.training.callbacks.events import Event, Updated
from slipstream.training.settings.config import resolve

KEYWORDS = ("drawdown", "turnover", "sharpe_ratio", "max_drawdown")


class EnvBuilder:
    """Makes environments from their section `environment`, or from a whole config of theirs.

    Copy i trades symbol i modulo their number. Prices are ``{SYMBOL}.parquet`` (or .csv). `logger`
    makes no difference.
    """

    @staticmethod
    def build_vec_env(
        symbols: Sequence[str],
        data_dir: str | Path,
        config: Mapping[str, Any],
        n_envs: int | None = None,
        monitor_path: str | Path | None = "logs/vec_monitor",
        use_shared_memory: bool = True,
        logger: Any = None,
    ) -> Any:
        """An SB3 `VecEnv` of compiled copies; without SB3 Gymnasium's `VectorEnv`, which is said.

        Args:
            symbols: whose prices lie in `data_dir`.
            data_dir: a folder.
            config: theirs.
            n_envs: copies; one for each symbol unless given.
            monitor_path: ``PATH.monitor.csv`` gets a row for each episode that ends while these
                copies are stepped, or while a `TrainerAgent` trains on them, with drawdown,
                turnover, sharpe_ratio and max_drawdown; None: none.
            use_shared_memory: makes no difference: copies are compiled and share this process's
                memory.

        Raises:
            SlipstreamError: prices or settings that cannot be used, in a paragraph.
        """
        config, symbols = whole(config), [symbols] if isinstance(symbols, str) else symbols
        asked = Vectorized.of(config).copies(symbols) if n_envs is None else n_envs
        copies = check_count("n_envs", asked)
        if copies == 1:
            to_stderr("One environment: one symbol, n_envs or max_envs of 1, or `enabled: false`.")
        target = {"env": environment_of(config, symbols, data_dir)}
        if importlib.util.find_spec("stable_baselines3") is None:
            lost = f", and no {monitor_path}.monitor.csv is written" if monitor_path else ""
            to_stderr(
                f"Stable-Baselines3 is not installed: this is Gymnasium's VectorEnv{lost}. "
                f"`{install('sb3')}` makes it SB3's VecEnv."
            )
            made: Any = gymnasium_vector.make_vec(target, copies)
        else:
            from stable_baselines3.common.vec_env import VecMonitor

            from slipstream.adapters import sb3

            made = sb3.make_vec(target, copies)
            if monitor_path is not None:
                Path(monitor_path).parent.mkdir(parents=True, exist_ok=True)
                with warnings.catch_warnings(action="ignore"):  # its own statistics are the same
                    made = VecMonitor(made, str(monitor_path), KEYWORDS)
        made.intraday_env = target["env"]  # what it is a view of
        return made

    @staticmethod
    def build_single_env(
        symbol: str, data_dir: str | Path, config: Mapping[str, Any], logger: Any = None
    ) -> EnvFace:
        """One copy that trades one symbol, as Gymnasium's `Env`."""
        return EnvFace({"env": environment_of(whole(config), [symbol], data_dir)})

    @staticmethod
    def make_env(config: Mapping[str, Any], logger: Any = None) -> EnvFace:
        """The same of the first symbol of a whole config, whose `vectorized_training` has prices.

        Raises:
            ConfigError: it says neither where prices are nor whose.
        """
        vectorized = Vectorized.of(config)
        if vectorized.data_dir is None or vectorized.symbols is None:
            raise ConfigError(
                "`make_env` needs `training.vectorized_training.data_dir` and `.symbols`, whose "
                "first one it trades; or call build_single_env(symbol, data_dir, config)."
            )
        return EnvBuilder.build_single_env(vectorized.symbols[0], vectorized.data_dir, config)

    @staticmethod
    def get_optimal_n_envs(symbols: Sequence[str], max_envs: int | None = None) -> int:
        """One copy for each symbol, `max_envs` at most."""
        asked = validate(Vectorized, {"max_envs": max_envs})
        return check_count("symbols", asked.copies(symbols))

    @staticmethod
    def validate_environment_config(config: Mapping[str, Any], logger: Any = None) -> bool:
        """True; what cannot be used is raised in a paragraph, where theirs returned False."""
        values = whole(config)
        resolve(sections_of(values, environment_of(values, None, ".")))
        return True


def monitor(env: Any, event: Event) -> None:
    """Writes episodes of training into the ``monitor.csv`` of what `build_vec_env` made.

    Rows are in its own columns; `drawdown` at an episode's end is nan, for only copies that are
    stepped here are asked for it. Of more than 100 episodes of an iteration the last ones.
    """
    if not isinstance(event, Updated) or event.ended is None:
        return
    from slipstream.adapters import sb3

    spec, since = env.venv.batch.spec, round(time.time() - env.t_start, 6)
    for member in event.members:
        for own in event.ended(member):
            told = {name: np.array([value]) for name, value in own.items()}
            told |= sb3.of_market(spec, told, np.array([np.nan]))
            row = {"r": own["return"], "l": int(own["length"]), "t": since}
            env.results_writer.write_row({**row, **{name: told[name][0] for name in KEYWORDS}})
