"""Config files of IntradayJules, read as they are: their keys, and what each becomes here.

A key is renamed (`keys.yaml` beside this file), or passed over and said so, or refused because it
means something else here. Keys of ours may stand among theirs; one thing said by both is refused.
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
    """Their section `training.vectorized_training`."""

    enabled: bool = True
    n_envs: Count | None = None
    max_envs: Count | None = None
    use_shared_memory: bool = True
    symbols: tuple[str, ...] | None = Field(None, min_length=1)
    data_dir: str | None = None
    monitor: _Monitor = _Monitor()

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> Vectorized:
        """The section of a config of theirs."""
        found = section_of(section_of(complete_config(values), "training"), "vectorized_training")
        return validate(cls, found, "training.vectorized_training")

    def num_envs(self, symbols: Sequence[str] | None) -> int | None:
        """How many are asked for: one for each symbol, unless the section has a number.

        Cores have no say, for copies are compiled and no processes.
        """
        if not self.enabled:
            return 1
        if symbols is not None and not symbols:
            raise ConfigError('`symbols` names none: name at least one, such as ["EURUSD"].')
        if self.n_envs is not None or symbols is None:
            return self.n_envs
        return min(len(symbols), self.max_envs or len(symbols))


class _Network(Config):
    net_arch: tuple[Count, ...] | None = None


class _SB3(Config):
    """What is calculated with, or has no counterpart: curves are always written."""

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
    found: dict[str, Any] = yaml_file.parse(text, "keys.yaml")
    return found


def complete_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A whole config of theirs, of which a section `environment` is a part.

    Raises:
        ConfigError: it is no mapping.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"A config of IntradayJules is a mapping of its sections, not {config!r:.80}: read a "
            "file of theirs by yaml.safe_load, or give it to `slipstream train`."
        )
    known = ("environment", "training", "algorithm", "algo_params")
    return config if any(key in config for key in known) else {"environment": config}


def recognizes(values: Mapping[str, Any]) -> bool:
    """Whether the sections are theirs and not ours."""
    training = values.get("training")
    vectorized = isinstance(training, Mapping) and "vectorized_training" in training
    return vectorized or "environment" in values or "algo_params" in values


def differences(values: Mapping[str, Any], monitored: bool = False) -> str:
    """Return sentences on what a file of theirs asks for and is done otherwise here.

    Args:
        values: theirs.
        monitored: whether the caller writes the file of `monitor`.
    """
    environment, training = section_of(values, "environment"), section_of(values, "training")
    said = ["Orders fill at the next bar's open, where theirs filled at the close just seen."]
    if environment.get("fill") == "compat_same_close":
        said = []
    unread = [f"{key} ({ours})" for key, ours in _keys()["unread"].items() if environment.get(key)]
    if unread:
        said += [
            f"Passed over, for nothing there read them; ours in brackets: {', '.join(unread)}."
        ]
    if Vectorized.from_config(values).monitor.enabled and not monitored:
        said += [
            "`monitor.enabled` is passed over: `slipstream train` writes metrics.csv and no "
            "monitor.csv. For that write `from slipstream.compat.intraday import TrainerAgent` "
            "(docs/guides/older-systems.md)."
        ]
    given = section_of(values, "algo_params") or section_of(training, "algo_params")
    if (logs := given.get("tensorboard_log")) is not None:
        said += [
            f"`tensorboard_log: {logs}` is passed over: curves are in the folder `tensorboard` of "
            "the run."
        ]
    gone = [key for key in _keys()["passed_over"] if key in values]
    gone += ["log_interval"] if "log_interval" in training else []
    if gone:
        said += [f"Passed over: {', '.join(gone)}."]
    return " ".join(said)


def to_sections(values: Mapping[str, Any], env: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Our sections for their file.

    Args:
        values: theirs.
        env: our section `env`; by the file, which then says where the prices are, unless given.

    Raises:
        ConfigError: a key that nobody reads, or that means something else here.
    """
    for theirs, ours in {
        "environment": "env",
        "algorithm": "agent",
        "algo_params": "agent",
    }.items():
        if theirs in values and ours in values:
            raise ConfigError(
                f"`{theirs}`, IntradayJules', and `{ours}`, slipstream's, say the same: keep one."
            )
    vectorized, training = Vectorized.from_config(values), section_of(values, "training")
    if env is None:
        if vectorized.data_dir is None:
            raise ConfigError(
                "`training.vectorized_training.data_dir` is missing: it says where the prices are, "
                "a folder with SYMBOL.parquet (or .csv). From Python "
                "`create_vectorized_env(symbols, data_dir)` says it."
            )
        env = env_section(values, vectorized.symbols, vectorized.data_dir)
    read = ("algorithm", "algo_params", "vectorized_training", "log_interval")
    trained = {key: value for key, value in training.items() if key not in read}
    if "num_envs" in trained and vectorized.n_envs is not None:
        raise ConfigError("`training.num_envs` and `vectorized_training.n_envs`: keep one.")
    copies = vectorized.num_envs(section_of(env, "data").get("symbols"))
    trained |= {} if copies is None or "num_envs" in trained else {"num_envs": copies}
    given = section_of(values, "algo_params") or section_of(training, "algo_params")
    sb3 = validate(_SB3, {k: v for k, v in given.items() if k in _SB3.model_fields}, "algo_params")
    trained |= {} if sb3.seed is None else {"seed": sb3.seed}
    trained |= {"device": sb3.device} if (sb3.device or "").startswith("cuda") else {}
    agent = values.get("agent")
    if agent is None:
        algorithm = str(values.get("algorithm", training.get("algorithm", "DQN"))).upper()
        agent = _agent(algorithm, given, sb3, trained.get("total_timesteps", 500_000))
    read = ("environment", "algorithm", "algo_params", *_keys()["passed_over"])
    more = {key: value for key, value in values.items() if key not in read}
    return {**more, "env": dict(env), "agent": agent, "training": trained}


def env_section(
    values: Mapping[str, Any], symbols: Sequence[str] | None, data_dir: str | Path
) -> dict[str, Any]:
    """Our section `env` for their section `environment`, with these prices."""
    theirs, keys = section_of(values, "environment"), _keys()
    for key, neutral in _NEUTRAL.items():
        if theirs.get(key, neutral) != neutral:
            meaning = keys["other_meaning"][key]
            raise ConfigError(f"`environment.{key}` is {theirs[key]!r}: {meaning}. Leave it out.")
    env = _renamed(theirs, "environment", keys["environment"], (*keys["unread"], *_NEUTRAL))
    cost = theirs.get("transaction_cost")
    if cost is not None:
        validate(_Cost, {"transaction_cost": cost}, "environment")
        env["commission_per_million"] = 1e6 * cost
    data = {"folder": str(data_dir), **({} if symbols is None else {"symbols": list(symbols)})}
    return {"name": "forex", "data": data, **env}


def _agent(algorithm: str, given: Mapping[str, Any], sb3: _SB3, total: Any) -> dict[str, Any]:
    if algorithm not in _ALGORITHMS:
        raise ConfigError(
            f"`algorithm: {algorithm}` is not here; known: {', '.join(_ALGORITHMS)} "
            "(docs/guides/agents.md)."
        )
    own = {key: value for key, value in given.items() if key not in _SB3.model_fields}
    agent = {"name": algorithm.lower(), **own}  # hyper-parameters have SB3's names here
    if sb3.policy_kwargs.net_arch is not None:
        agent["net_arch"] = sb3.policy_kwargs.net_arch
    every, each = sb3.train_freq, sb3.gradient_steps
    if every is not None or each is not None:
        every = every[0] if isinstance(every, tuple) else every or 1
        agent["utd_ratio"] = 1.0 if each == -1 else (1 if each is None else each) / every
    if sb3.target_update_interval is not None:  # environment steps there, updates here
        pace = agent.get("utd_ratio", 0.25)
        agent["target_update_interval"] = max(1, round(sb3.target_update_interval * pace))
    if sb3.exploration_fraction is not None and isinstance(total, int | float):
        agent["exploration_steps"] = round(sb3.exploration_fraction * total)
    return agent


def _renamed(
    values: Mapping[str, Any], where: str, names: Mapping[str, str], read: Any
) -> dict[str, Any]:
    """Keys of theirs by our names; those of ours stay, those `read` elsewhere do not.

    Raises:
        ConfigError: both say the same.
    """
    found: dict[str, Any] = {}
    for key in (key for key in values if key not in read):
        ours = names.get(key, key)
        if ours in found:
            raise ConfigError(
                f"`{where}.{key}` and another key there say `{ours}`, in IntradayJules' words and "
                "in slipstream's: keep one."
            )
        found[ours] = values[key]
    return found
