"""TrainerAgent and TrainerCore: IntradayJules' trainer, a facade over `slipstream.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from slipstream import api
from slipstream.compat.intraday.config import Vectorized, otherwise, sections_of
from slipstream.compat.intraday.env_builder import EnvBuilder, monitor
from slipstream.core.errors import ConfigError
from slipstream.core.text import to_stderr
from slipstream.gym.gymnasium_environment import step_seconds
from slipstream.gym.object_environment import register
from slipstream.rl.nets.policy import Policy
from slipstream.training.callbacks.console import ConsoleListener
from slipstream.training.callbacks.events import Listener
from slipstream.training.callbacks.output import somebody_watches
from slipstream.training.runs.run import Run


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
        self._vectorized = Vectorized.of(config)  # what it names wrongly is said now

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
            sections = sections_of(self.config, {"name": register(self._env)})
            sections["training"].pop("num_envs", None)  # the environment has its own
        else:
            sections = sections_of(self.config, made)
            sections["training"] |= {"num_envs": self._env.num_envs} if made else {}
            to_stderr(otherwise(self.config, monitored=True))
        listeners: list[Listener] = [ConsoleListener()] if somebody_watches() else []
        if getattr(self._env, "results_writer", None) is not None and made is not None:
            listeners.append(partial(monitor, self._env))
        self.run = api.train(sections, out=out, listeners=listeners, **training)
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
        taken = {} if run is None else run.taken() | (run.result or {}) | run.provenance
        speedup = None
        if measure and made is not None:
            seconds = []
            for number in (1, copies):
                with api.make_vec({"env": made}, number) as env:
                    seconds.append(step_seconds(env))  # of one copy
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
