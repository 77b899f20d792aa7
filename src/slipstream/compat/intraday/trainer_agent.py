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
        config, symbols = (
            complete_config(config),
            [symbols] if isinstance(symbols, str) else symbols,
        )
        asked = Vectorized.from_config(config).num_envs(symbols) if n_envs is None else n_envs
        copies = check_count("n_envs", asked)
        if copies == 1:
            print_to_stderr(
                "One environment: one symbol, n_envs or max_envs of 1, or `enabled: false`."
            )
        target = {"env": env_section(config, symbols, data_dir)}
        if importlib.util.find_spec("stable_baselines3") is None:
            lost = f", and no {monitor_path}.monitor.csv is written" if monitor_path else ""
            print_to_stderr(
                f"Stable-Baselines3 is not installed: this is Gymnasium's VectorEnv{lost}. "
                f"`{install_command('sb3')}` makes it SB3's VecEnv."
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
    ) -> EnvAdapter:
        """One copy that trades one symbol, as Gymnasium's `Env`."""
        return EnvAdapter({"env": env_section(complete_config(config), [symbol], data_dir)})

    @staticmethod
    def make_env(config: Mapping[str, Any], logger: Any = None) -> EnvAdapter:
        """The same of the first symbol of a whole config, whose `vectorized_training` has prices.

        Raises:
            ConfigError: it says neither where prices are nor whose.
        """
        vectorized = Vectorized.from_config(config)
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
        return check_count("symbols", asked.num_envs(symbols))

    @staticmethod
    def validate_environment_config(config: Mapping[str, Any], logger: Any = None) -> bool:
        """True; what cannot be used is raised in a paragraph, where theirs returned False."""
        values = complete_config(config)
        resolve(to_sections(values, env_section(values, None, ".")))
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
            told |= sb3.market_metrics(spec, told, np.array([np.nan]))
            row = {"r": own["return"], "l": int(own["length"]), "t": since}
            env.results_writer.write_row({**row, **{name: told[name][0] for name in KEYWORDS}})


class TrainerCore:
    """Trains what it is given as their config says.

    Args:
        config: theirs, whole; read when `train` is called.
        logger: makes no difference: what is said goes to standard error and into the run's log.

    Attributes:
        run: what `train` made; None before.
    """

    def __init__(self, config: Mapping[str, Any], logger: Any = None) -> None:
        self.config = config
        self._env: Any = None
        self.run: Run | None = None
        self._vectorized = Vectorized.from_config(config)  # what it names wrongly is said now

    def create_vectorized_environment(
        self,
        symbols: Sequence[str],
        data_dir: str | Path,
        n_envs: int | None = None,
        use_shared_memory: bool = False,
    ) -> Any:
        """Copies of the trading environment; see `EnvBuilder.build_vec_env`.

        Args:
            symbols, data_dir: prices.
            n_envs: the config's unless given, else one for each symbol.
            use_shared_memory: makes no difference.
        """
        monitor = self._vectorized.monitor
        path = monitor.log_path if monitor.enabled else None
        return EnvBuilder.build_vec_env(symbols, data_dir, self.config, n_envs, path)

    def set_environment(self, env: Any) -> None:
        """What is trained on: `create_vectorized_environment`'s, or any environment object.

        An SB3 `VecEnv`, a Gymnasium `VectorEnv` or `Env`, a function that makes one: those are
        stepped in Python, see `slipstream.register`.
        """
        self._env = env

    def train(self, out: str | Path | None = None, **training: Any) -> str:
        """Trains to the end of `total_timesteps` and writes the report.

        Args:
            out: run directory, ``runs/<env>-<date>-<time>`` unless given.
            **training: fields of our `training` section that win over the config's.

        Returns:
            Path of the run's directory: `slipstream.load_policy(path)` gives its best policy.
        """
        made = self._made
        if self._env is None and self._vectorized.data_dir is None:
            raise ConfigError(
                "There is nothing to train on: call set_env(create_vectorized_env(symbols, "
                "data_dir)) first, or name `training.vectorized_training.data_dir` and `.symbols`."
            )
        if self._env is not None and made is None:
            sections = to_sections(self.config, {"name": register(self._env)})
            sections["training"].pop("num_envs", None)  # the environment has its own
        else:
            sections = to_sections(self.config, made)
            sections["training"] |= {"num_envs": self._env.num_envs} if made else {}
            print_to_stderr(differences(self.config, monitored=True))
        callbacks: list[Callback] = [ConsoleCallback()] if is_interactive() else []
        if getattr(self._env, "results_writer", None) is not None and made is not None:
            callbacks.append(partial(monitor, self._env))
        self.run = api.train(sections, out=out, callbacks=callbacks, **training)
        return str(self.run.path)

    @property
    def model(self) -> Policy | None:
        """The policy that validation chose; None before training."""
        return None if self.run is None else api.load_policy(self.run)

    def get_training_performance_info(self, measure: bool = False) -> dict[str, Any]:
        """What the training took, as measured here; None before it, and for what nobody measured.

        Args:
            measure: step the copies for a moment, together and one alone: `expected_speedup` is
                how many times as many steps a second they make together.

        Returns:
            timestamp, environment_type, num_workers (copies), expected_speedup, shared_memory;
            steps_per_second, cpu_percent, memory_gib of the training.
        """
        run, made, copies = self.run, self._made, getattr(self._env, "num_envs", 1)
        taken = {} if run is None else run.resource_usage() | (run.result or {}) | run.provenance
        speedup = None
        if measure and made is not None:
            seconds = []
            for number in (1, copies):
                with api.make_vec({"env": made}, number) as env:
                    seconds.append(measure_step_seconds(env))  # of one copy
            speedup = seconds[0] / seconds[1]
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "environment_type": taken.get("backend"),
            "num_workers": copies,
            "expected_speedup": speedup,
            "shared_memory": made is not None,
            **{name: taken.get(name) for name in ("steps_per_second", "cpu_percent", "memory_gib")},
        }

    @property
    def _made(self) -> dict[str, Any] | None:
        """Our section `env` of what `EnvBuilder` made."""
        found: dict[str, Any] | None = getattr(self._env, "intraday_env", None)
        return found


class TrainerAgent(TrainerCore):
    """The same by their shorter names.

    ::

        trainer = TrainerAgent(config)
        trainer.set_env(trainer.create_vectorized_env(["EURUSD"], "data/forex"))
        model_path = trainer.train()

    Args:
        config: theirs: `algorithm`, `environment`, `training`, `algo_params`.
        training_env: as for `set_env`.
    """

    create_vectorized_env = TrainerCore.create_vectorized_environment
    set_env = TrainerCore.set_environment

    def __init__(self, config: Mapping[str, Any], training_env: Any = None) -> None:
        super().__init__(config)
        self.set_env(training_env)

    @property
    def trainer_core(self) -> TrainerCore:
        """Itself."""
        return self

    def get_recommended_n_envs(self, symbols: Sequence[str]) -> int:
        """One copy for each symbol, the config's `max_envs` at most."""
        return EnvBuilder.get_optimal_n_envs(symbols, self._vectorized.max_envs)
