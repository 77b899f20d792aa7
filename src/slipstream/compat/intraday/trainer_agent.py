"""IntradayJules' calls: `EnvBuilder` makes trading environments, `TrainerAgent` trains on them."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from slipstream import api
from slipstream.adapters import gymnasium_vector
from slipstream.adapters.gymnasium_env import EnvAdapter
from slipstream.compat.intraday.config import (
    Vectorized,
    complete_config,
    differences,
    env_section,
    to_sections,
)
from slipstream.core.bounds import check_count
from slipstream.core.config import validate
from slipstream.core.errors import ConfigError
from slipstream.core.extras import install_command
from slipstream.core.text import print_to_stderr
from slipstream.gym.gymnasium_environment import measure_step_seconds
from slipstream.gym.object_environment import register
from slipstream.rl.nets.policy import Policy
from slipstream.training.callbacks.console import ConsoleCallback
from slipstream.training.callbacks.events import Callback, Event, Updated
from slipstream.training.callbacks.output import is_interactive
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

KEYWORDS = ("drawdown", "turnover", "sharpe_ratio", "max_drawdown")


class EnvBuilder:
    """Builds environments from a section `environment` or a complete IntradayJules config.

    Sub-environment i trades symbol i modulo their number. Prices are ``{SYMBOL}.parquet`` (or .csv)
    files. `logger` is ignored.
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
        """Build an SB3 `VecEnv`; without SB3 a Gymnasium `VectorEnv`, with a notice.

        Args:
            symbols: symbols to trade.
            data_dir: folder of the price files.
            config: IntradayJules config.
            n_envs: number of sub-environments; None: one per symbol.
            monitor_path: ``PATH.monitor.csv`` receives a row per episode with drawdown, turnover,
                sharpe_ratio and max_drawdown, also when a `TrainerAgent` trains on this
                environment. None: no file.
            use_shared_memory: ignored, because sub-environments run in this process.

        Raises:
            SlipstreamError: prices or settings are not valid.
        """
        config = complete_config(config)
        symbols = [symbols] if isinstance(symbols, str) else symbols
        if n_envs is None:
            n_envs = Vectorized.from_config(config).num_envs(symbols)
        num_envs = check_count("n_envs", n_envs)
        if num_envs == 1:
            print_to_stderr(
                "Building a single environment: there is one symbol, `n_envs` or `max_envs` is 1, "
                "or `enabled` is false."
            )
        target = {"env": env_section(config, symbols, data_dir)}
        if importlib.util.find_spec("stable_baselines3") is None:
            monitor = f" without {monitor_path}.monitor.csv" if monitor_path else ""
            print_to_stderr(
                f"Stable-Baselines3 is not installed. Building Gymnasium's VectorEnv{monitor} "
                f"instead of SB3's VecEnv; to get the latter, run `{install_command('sb3')}`."
            )
            env: Any = gymnasium_vector.make_vec(target, num_envs)
        else:
            from stable_baselines3.common.vec_env import VecMonitor

            from slipstream.adapters import sb3

            env = sb3.make_vec(target, num_envs)
            if monitor_path is not None:
                Path(monitor_path).parent.mkdir(parents=True, exist_ok=True)
                # It warns that the environment has episode statistics, which are the same.
                with warnings.catch_warnings(action="ignore"):
                    env = VecMonitor(env, str(monitor_path), KEYWORDS)
        env.intraday_env = target["env"]  # `TrainerCore.train` trains on this section
        return env

    @staticmethod
    def build_single_env(
        symbol: str, data_dir: str | Path, config: Mapping[str, Any], logger: Any = None
    ) -> EnvAdapter:
        """Build a Gymnasium `Env` that trades one symbol."""
        return EnvAdapter({"env": env_section(complete_config(config), [symbol], data_dir)})

    @staticmethod
    def make_env(config: Mapping[str, Any], logger: Any = None) -> EnvAdapter:
        """Build a Gymnasium `Env` for the first symbol of a complete config.

        Raises:
            ConfigError: `vectorized_training` has no `data_dir` or no `symbols`.
        """
        vectorized = Vectorized.from_config(config)
        if vectorized.data_dir is None or vectorized.symbols is None:
            raise ConfigError(
                "`make_env` requires `training.vectorized_training.data_dir` and `.symbols`, of "
                "which it trades the first. Or call build_single_env(symbol, data_dir, config)."
            )
        return EnvBuilder.build_single_env(vectorized.symbols[0], vectorized.data_dir, config)

    @staticmethod
    def get_optimal_n_envs(symbols: Sequence[str], max_envs: int | None = None) -> int:
        """Return one sub-environment per symbol, at most `max_envs`."""
        vectorized = validate(Vectorized, {"max_envs": max_envs})
        return check_count("symbols", vectorized.num_envs(symbols))

    @staticmethod
    def validate_environment_config(config: Mapping[str, Any], logger: Any = None) -> bool:
        """Validate a config and return True; raise ConfigError if it is not valid."""
        values = complete_config(config)
        resolve(to_sections(values, env_section(values, None, ".")))
        return True


def monitor(env: Any, event: Event) -> None:
    """Write episodes of training into the ``monitor.csv`` of an environment of `build_vec_env`.

    `drawdown` is nan, because training does not read it at the end of an episode. At most the last
    100 episodes of an iteration are written.
    """
    if not isinstance(event, Updated) or event.ended is None:
        return
    from slipstream.adapters import sb3

    spec, since = env.venv.batch.spec, round(time.time() - env.t_start, 6)
    for member in event.members:
        for episode in event.ended(member):
            metrics = {name: np.array([value]) for name, value in episode.items()}
            metrics |= sb3.market_metrics(spec, metrics, np.array([np.nan]))
            row = {"r": episode["return"], "l": int(episode["length"]), "t": since}
            env.results_writer.write_row({**row, **{name: metrics[name][0] for name in KEYWORDS}})


class TrainerCore:
    """Trains an agent as an IntradayJules config defines.

    Args:
        config: complete config; validated when `train` is called.
        logger: ignored: messages go to standard error and to the run's log.

    Attributes:
        run: run of the last `train`; None before.
    """

    def __init__(self, config: Mapping[str, Any], logger: Any = None) -> None:
        self.config = config
        self._env: Any = None
        self.run: Run | None = None
        self._vectorized = Vectorized.from_config(config)  # raises errors early

    def create_vectorized_environment(
        self,
        symbols: Sequence[str],
        data_dir: str | Path,
        n_envs: int | None = None,
        use_shared_memory: bool = False,
    ) -> Any:
        """Build the vectorized trading environment; see `EnvBuilder.build_vec_env`.

        Args:
            symbols: symbols to trade.
            data_dir: folder of the price files.
            n_envs: number of sub-environments; None: the config's, else one per symbol.
            use_shared_memory: ignored.
        """
        monitor = self._vectorized.monitor
        path = monitor.log_path if monitor.enabled else None
        return EnvBuilder.build_vec_env(symbols, data_dir, self.config, n_envs, path)

    def set_environment(self, env: Any) -> None:
        """Set the training environment, from `create_vectorized_environment` or any object.

        An SB3 `VecEnv`, a Gymnasium `VectorEnv` or `Env`, or a function that makes one is stepped
        in Python; see `slipstream.register`.
        """
        self._env = env

    def train(self, out: str | Path | None = None, **training: Any) -> str:
        """Train for `total_timesteps` and write the report.

        Args:
            out: run directory; None: ``runs/<env>-<date>-<time>``.
            **training: fields of the `training` section; they override the config's.

        Returns:
            Path of the run directory; `slipstream.load_policy(path)` loads its best policy.
        """
        section = self._env_section
        if self._env is None and self._vectorized.data_dir is None:
            raise ConfigError(
                "There is no training environment. Call set_env(create_vectorized_env(symbols, "
                "data_dir)) first, or set `training.vectorized_training.data_dir` and `.symbols`."
            )
        if self._env is not None and section is None:
            sections = to_sections(self.config, {"name": register(self._env)})
            sections["training"].pop("num_envs", None)  # the environment defines it
        else:
            sections = to_sections(self.config, section)
            sections["training"] |= {"num_envs": self._env.num_envs} if section else {}
            print_to_stderr(differences(self.config, monitored=True))
        callbacks: list[Callback] = [ConsoleCallback()] if is_interactive() else []
        if getattr(self._env, "results_writer", None) is not None and section is not None:
            callbacks.append(partial(monitor, self._env))
        self.run = api.train(sections, out=out, callbacks=callbacks, **training)
        return str(self.run.path)

    @property
    def model(self) -> Policy | None:
        """Best policy on validation; None before training."""
        return None if self.run is None else api.load_policy(self.run)

    def get_training_performance_info(self, measure: bool = False) -> dict[str, Any]:
        """Return measurements of the training; a value that was not measured is None.

        Args:
            measure: measure `expected_speedup`: steps per second of all sub-environments relative
                to a single one.

        Returns:
            timestamp, environment_type, num_workers (sub-environments), expected_speedup and
            shared_memory; steps_per_second, cpu_percent and memory_gib of the training.
        """
        run, section, num_envs = self.run, self._env_section, getattr(self._env, "num_envs", 1)
        values = {} if run is None else run.resource_usage() | (run.result or {}) | run.provenance
        speedup = None
        if measure and section is not None:
            seconds = []
            for number in (1, num_envs):
                with api.make_vec({"env": section}, number) as env:
                    seconds.append(measure_step_seconds(env))  # per sub-environment
            speedup = seconds[0] / seconds[1]
        usage = ("steps_per_second", "cpu_percent", "memory_gib")
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "environment_type": values.get("backend"),
            "num_workers": num_envs,
            "expected_speedup": speedup,
            "shared_memory": section is not None,
            **{name: values.get(name) for name in usage},
        }

    @property
    def _env_section(self) -> dict[str, Any] | None:
        """Section `env` of an environment that `EnvBuilder` built."""
        section: dict[str, Any] | None = getattr(self._env, "intraday_env", None)
        return section


class TrainerAgent(TrainerCore):
    """`TrainerCore` with shorter method names.

    ::

        trainer = TrainerAgent(config)
        trainer.set_env(trainer.create_vectorized_env(["EURUSD"], "data/forex"))
        model_path = trainer.train()

    Args:
        config: IntradayJules config: `algorithm`, `environment`, `training`, `algo_params`.
        training_env: environment, as for `set_env`.
    """

    create_vectorized_env = TrainerCore.create_vectorized_environment
    set_env = TrainerCore.set_environment

    def __init__(self, config: Mapping[str, Any], training_env: Any = None) -> None:
        super().__init__(config)
        self.set_env(training_env)

    @property
    def trainer_core(self) -> TrainerCore:
        """The trainer itself."""
        return self

    def get_recommended_n_envs(self, symbols: Sequence[str]) -> int:
        """Return one sub-environment per symbol, at most the config's `max_envs`."""
        return EnvBuilder.get_optimal_n_envs(symbols, self._vectorized.max_envs)
