"""Config files of IntradayJules: their keys and the counterparts in slipstream.

A key is renamed (`keys.yaml`), ignored with a notice, or an error because it has another meaning.
A file may also contain slipstream's keys. Setting the same thing by both is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from slipstream.core.bounds import Count, Fraction
from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError
from slipstream.core.storage import yaml_file
from slipstream.training.settings.config import section_of

_ALGORITHMS = ("DQN", "SAC", "TD3", "PPO")
_NEUTRAL = {"reward_scaling": 1.0, "holding_penalty": 0.0}


class _Monitor(Config):
    enabled: bool = False
    log_path: str = "logs/vec_monitor"
    info_keywords: tuple[str, ...] = ()


class Vectorized(Config):
    """Section `training.vectorized_training` of an IntradayJules config."""

    enabled: bool = True
    n_envs: Count | None = None
    max_envs: Count | None = None
    use_shared_memory: bool = True
    symbols: tuple[str, ...] | None = Field(None, min_length=1)
    data_dir: str | None = None
    monitor: _Monitor = _Monitor()

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Vectorized:
        """Validate the section of an IntradayJules config."""
        training = section_of(complete_config(values), "training")
        section = section_of(training, "vectorized_training")
        return validate(cls, section, "training.vectorized_training")

    def num_envs(self, symbols: Sequence[str] | None) -> int | None:
        """Return the number of sub-environments; one per symbol if the section has none.

        The number of cores does not matter, because sub-environments are no processes.
        """
        if not self.enabled:
            return 1
        if symbols is not None and not symbols:
            raise ConfigError('`symbols` is empty. Give at least one, such as ["EURUSD"].')
        if self.n_envs is not None or symbols is None:
            return self.n_envs
        return min(len(symbols), self.max_envs or len(symbols))


class _Network(Config):
    net_arch: tuple[Count, ...] | None = None


class _SB3(Config):
    """SB3 arguments that are converted, or ignored because they have no counterpart."""

    policy: Literal["MlpPolicy"] = "MlpPolicy"
    policy_kwargs: _Network = _Network()
    train_freq: Count | tuple[Count, Literal["step"]] | None = None
    gradient_steps: int | None = Field(None, ge=-1)
    target_update_interval: Count | None = None
    exploration_fraction: Fraction | None = None
    verbose: int | None = None
    tensorboard_log: str | None = None
    device: str | None = None
    seed: int | None = None


class _Cost(Config):
    transaction_cost: Fraction


@cache
def _keys() -> dict[str, Any]:
    text = files(__package__).joinpath("keys.yaml").read_text(encoding="utf-8")
    keys: dict[str, Any] = yaml_file.parse(text, "keys.yaml")
    return keys


def complete_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a complete config; a section `environment` alone is wrapped in one.

    Raises:
        ConfigError: it is not a mapping.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"A config of IntradayJules must be a mapping of sections, got {config!r:.80}. Load "
            "the file with yaml.safe_load, or pass its path to `slipstream train`."
        )
    sections = ("environment", "training", "algorithm", "algo_params")
    return config if any(key in config for key in sections) else {"environment": config}


def recognizes(values: Mapping[str, Any]) -> bool:
    """Return whether a config is IntradayJules'."""
    training = values.get("training")
    vectorized = isinstance(training, Mapping) and "vectorized_training" in training
    return vectorized or "environment" in values or "algo_params" in values


def differences(values: Mapping[str, Any], monitored: bool = False) -> str:
    """Return notices about keys that are ignored or have another effect in slipstream.

    Args:
        values: IntradayJules config.
        monitored: the caller writes the file of `monitor`.
    """
    environment, training = section_of(values, "environment"), section_of(values, "training")
    notices = ["Orders fill at the next bar's open; IntradayJules filled at the last close."]
    if environment.get("fill") == "compat_same_close":
        notices = []
    unread = [f"{key} ({ours})" for key, ours in _keys()["unread"].items() if environment.get(key)]
    if unread:
        notices += [
            "Ignored, because IntradayJules did not read them (slipstream's key in brackets): "
            f"{', '.join(unread)}."
        ]
    if Vectorized.from_config(values).monitor.enabled and not monitored:
        notices += [
            "`monitor.enabled` is ignored: `slipstream train` writes metrics.csv and no "
            "monitor.csv. To write it, use `from slipstream.compat.intraday import TrainerAgent` "
            "(docs/guides/older-systems.md)."
        ]
    algo_params = section_of(values, "algo_params") or section_of(training, "algo_params")
    if (logs := algo_params.get("tensorboard_log")) is not None:
        notices += [
            f"`tensorboard_log: {logs}` is ignored: curves are in the folder `tensorboard` of the "
            "run."
        ]
    ignored = [key for key in _keys()["ignored"] if key in values]
    ignored += ["log_interval"] if "log_interval" in training else []
    if ignored:
        notices += [f"Ignored: {', '.join(ignored)}."]
    return " ".join(notices)


def to_sections(values: Mapping[str, Any], env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Convert an IntradayJules config to slipstream's sections.

    Args:
        values: IntradayJules config.
        env: section `env`; None: from the file, which must contain the path of the prices.

    Raises:
        ConfigError: a key is unknown or has another meaning in slipstream.
    """
    for theirs, ours in {
        "environment": "env",
        "algorithm": "agent",
        "algo_params": "agent",
    }.items():
        if theirs in values and ours in values:
            raise ConfigError(
                f"`{theirs}` of IntradayJules and `{ours}` of slipstream are the same section. "
                "Remove one of them."
            )
    vectorized, training = Vectorized.from_config(values), section_of(values, "training")
    if env is None:
        if vectorized.data_dir is None:
            raise ConfigError(
                "`training.vectorized_training.data_dir` is missing. Set it to a folder with "
                "SYMBOL.parquet (or .csv) files. In Python, call "
                "`create_vectorized_env(symbols, data_dir)`."
            )
        env = env_section(values, vectorized.symbols, vectorized.data_dir)
    converted = ("algorithm", "algo_params", "vectorized_training", "log_interval")
    section = {key: value for key, value in training.items() if key not in converted}
    if "num_envs" in section and vectorized.n_envs is not None:
        raise ConfigError(
            "`training.num_envs` and `vectorized_training.n_envs` are the same key. Remove one of "
            "them."
        )
    num_envs = vectorized.num_envs(section_of(env, "data").get("symbols"))
    section |= {} if num_envs is None or "num_envs" in section else {"num_envs": num_envs}
    algo_params = section_of(values, "algo_params") or section_of(training, "algo_params")
    sb3_values = {k: v for k, v in algo_params.items() if k in _SB3.model_fields}
    sb3 = validate(_SB3, sb3_values, "algo_params")
    section |= {} if sb3.seed is None else {"seed": sb3.seed}
    section |= {"device": sb3.device} if (sb3.device or "").startswith("cuda") else {}
    agent = values.get("agent")
    if agent is None:
        algorithm = str(values.get("algorithm", training.get("algorithm", "DQN"))).upper()
        agent = _agent(algorithm, algo_params, sb3, section.get("total_timesteps", 500_000))
    converted = ("environment", "algorithm", "algo_params", *_keys()["ignored"])
    others = {key: value for key, value in values.items() if key not in converted}
    return {**others, "env": dict(env), "agent": agent, "training": section}


def env_section(
    values: Mapping[str, Any], symbols: Sequence[str] | None, data_dir: str | Path
) -> dict[str, Any]:
    """Convert the section `environment` to a section `env` with these prices."""
    theirs, keys = section_of(values, "environment"), _keys()
    for key, neutral in _NEUTRAL.items():
        if theirs.get(key, neutral) != neutral:
            meaning = keys["other_meaning"][key]
            raise ConfigError(f"`environment.{key}` is {theirs[key]!r}: {meaning}. Remove it.")
    env = _rename_keys(theirs, "environment", keys["environment"], (*keys["unread"], *_NEUTRAL))
    cost = theirs.get("transaction_cost")
    if cost is not None:
        validate(_Cost, {"transaction_cost": cost}, "environment")
        env["commission_per_million"] = 1e6 * cost
    data = {"folder": str(data_dir), **({} if symbols is None else {"symbols": list(symbols)})}
    return {"name": "forex", "data": data, **env}


def _agent(
    algorithm: str, algo_params: Mapping[str, Any], sb3: _SB3, total_timesteps: Any
) -> dict[str, Any]:
    if algorithm not in _ALGORITHMS:
        raise ConfigError(
            f"`algorithm` must be one of {', '.join(_ALGORITHMS)}, got {algorithm} "
            "(docs/guides/agents.md)."
        )
    others = {key: value for key, value in algo_params.items() if key not in _SB3.model_fields}
    agent = {"name": algorithm.lower(), **others}  # these have SB3's names in slipstream too
    if sb3.policy_kwargs.net_arch is not None:
        agent["net_arch"] = sb3.policy_kwargs.net_arch
    train_freq, gradient_steps = sb3.train_freq, sb3.gradient_steps
    if train_freq is not None or gradient_steps is not None:
        train_freq = train_freq[0] if isinstance(train_freq, tuple) else train_freq or 1
        updates = 1 if gradient_steps is None else gradient_steps
        agent["utd_ratio"] = 1.0 if gradient_steps == -1 else updates / train_freq
    if sb3.target_update_interval is not None:  # in timesteps there, in updates here
        utd_ratio = agent.get("utd_ratio", 0.25)
        agent["target_update_interval"] = max(1, round(sb3.target_update_interval * utd_ratio))
    if sb3.exploration_fraction is not None and isinstance(total_timesteps, int | float):
        agent["exploration_steps"] = round(sb3.exploration_fraction * total_timesteps)
    return agent


def _rename_keys(
    values: Mapping[str, Any], where: str, names: Mapping[str, str], exclude: Any
) -> dict[str, Any]:
    """Return the values by slipstream's keys, without `exclude`.

    Raises:
        ConfigError: a key is given by both names.
    """
    renamed: dict[str, Any] = {}
    for key in (key for key in values if key not in exclude):
        ours = names.get(key, key)
        if ours in renamed:
            raise ConfigError(
                f"`{where}.{key}` sets `{ours}`, which another key of `{where}` sets already. "
                "Remove one of them."
            )
        renamed[ours] = values[key]
    return renamed
