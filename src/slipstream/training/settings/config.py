"""Config of a run: its sections, targets, and the frozen `RunConfig`.

`read_target` and `read_sections` return plain sections with unchecked keys. `resolve` applies
overrides and validates the result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from slipstream.core.bounds import Count, Seed, Share
from slipstream.core.child_process import FaultPolicy, hang_timeout
from slipstream.core.config import Config, set_by_path, validate
from slipstream.core.errors import ConfigError
from slipstream.core.field_names import agent_setting
from slipstream.core.plugins import iter_offers, load
from slipstream.core.safe_io import path_exists, read_text
from slipstream.core.storage import yaml_file
from slipstream.core.text import did_you_mean
from slipstream.kernels.kernel_registry import list_kernels, load_kernel
from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.agents.agent_registry import load_config
from slipstream.training.environments.curriculum import CurriculumConfig
from slipstream.training.environments.environment import SteppingConfig
from slipstream.training.environments.factory import get_game_class, get_kind

Backend = Literal["auto", "serial", "compiled", "process"]

RETIRED = {"double_buffer": False}
"""Removed settings of `training` and their defaults, which occur in stored configs. They changed
no result."""

ADDED = {"precision": "float32"}
"""Settings of `training` that stored configs may lack, and the values that applied then."""
SECTIONS = ("env", "agent", "training", "evaluation", "curriculum")
CONFIGS = (".yaml", ".yml", ".json")
STUDY = "study"  # a sixth section, read by `slipstream tune` and ignored by a run
CRYPTO = "crypto"  # Cappuccino's name of a portfolio of coins
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Mapping of dotted paths to values, or ``a.b=c`` strings with YAML values."""
_AUTO_NUM_ENVS = 8  # allowed for every environment; used to check sizes before `auto` is resolved


class TrainingConfig(Config):
    """Training budget, population, execution and output."""

    num_envs: Count | Literal["auto"] = Field(
        "auto",
        description="Sub-environments per member; auto: by budget and time limit.",
    )
    members: Count = Field(
        1, description="Independent learners trained together, with seeds seed + m."
    )
    total_timesteps: Count = Field(500_000, description="Environment steps per member.")
    seed: Seed = Field(0, description="Seed of member 0.")
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field(
        "cpu", description="Device of the learner: cpu, or a GPU such as cuda or cuda:1."
    )
    learner: Literal["auto", "compiled", "torch"] = Field(
        "auto", description="Implementation; auto: torch for images and GPUs, else compiled."
    )
    precision: Literal["float32", "tf32", "bfloat16_products"] = Field(
        "float32",
        description="Precision of hidden layers' products in torch; tf32: all products, GPU only.",
    )
    backend: Backend = Field(
        "auto",
        description="Backend that steps the environments; changes no result. auto compiles "
        "kernels; process uses worker processes for gym:.",
    )
    backend_fallback: tuple[Backend, ...] = Field(
        (),
        description="Backends to try in this order if `backend` does not work here; empty: raise.",
    )
    workers: Count | Literal["auto"] = Field(
        "auto",
        description="Worker processes of backend process; auto: one per core, one per shard.",
    )
    on_fault: Literal["restart", "raise"] = Field(
        "restart", description="Reaction to a failing environment or worker of backend process."
    )
    hang_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0, description="Seconds of a call after which backend process restarts an environment."
    )
    faults_per_minute: Count = Field(
        100,
        description="Maximum faults per minute of backend process. More stop the run if they cost "
        "over 5 % of its steps.",
    )
    shards: Count | Literal["auto"] = Field(
        "auto", description="Worker processes that members are split into; changes no result."
    )
    checkpoint_every: Share = Field(0.1, description="Share of the budget between checkpoints.")
    keep_last: Count = Field(2, description="Number of checkpoints kept.")
    policy_every_episodes: Count | None = Field(
        None,
        description="Episodes between policies of member 0, written beside the run as "
        "RUN_epNNNNNN and at the end.",
    )
    out: str | None = Field(None, description="Run directory; null: runs/<env>-<date>-<time>.")

    @property
    def stepping(self) -> SteppingConfig:
        """Options for stepping foreign environments."""
        return SteppingConfig(
            workers=None if self.workers == "auto" else self.workers,
            policy=FaultPolicy(self.on_fault, self.hang_seconds, self.faults_per_minute),
            in_process=self.backend == "serial",
        )

    @property
    def resolved_backend(self) -> str:
        """The backend if it is settled.

        Raises:
            ConfigError: `backend_fallback` names others.
        """
        if not self.backend_fallback:
            return self.backend
        raise ConfigError(
            f"`training.backend_fallback` names {', '.join(self.backend_fallback)}, which only "
            "`slipstream train` tries. Leave it out here."
        )


class EvaluationConfig(Config):
    """Evaluation of policies during training."""

    every: Share = Field(0.1, description="Share of the budget between validations.")
    every_steps: Count | None = Field(
        None, description="Steps of a member between validations, instead of `every`."
    )
    every_episodes: Count | None = Field(
        None,
        description="Training episodes of every member between validations, instead of `every`.",
    )
    episodes: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        "auto",
        description="Complete episodes per score (not in markets); auto: 100, or as many as fit "
        "into `share` of the budget.",
    )
    share: Share = Field(
        0.2, description="Maximum share of the budget's steps for validation if `episodes` is auto."
    )
    deterministic: bool = Field(
        True,
        description="Evaluate with deterministic actions; false samples actions as in training.",
    )
    seed: Seed = Field(1_000_003, description="Seed of the evaluation episodes.")
    max_steps: Count | Literal["auto"] = Field(
        "auto",
        description="Step limit of an evaluation episode if the environment has none (not in "
        "markets); auto: 1/500 of the budget, 100 to 10,000.",
    )

    @model_validator(mode="after")
    def _one_measure(self) -> EvaluationConfig:
        if self.every_steps is not None and self.every_episodes is not None:
            raise ValueError("give `every_steps` or `every_episodes`, not both")
        return self

    @property
    def max_episodes(self) -> int:
        """Maximum number of episodes per score."""
        return 100 if self.episodes == "auto" else self.episodes

    @property
    def test_seed(self) -> int:
        """Seed of the new episodes that measure a game's result and select nothing."""
        return (self.seed + 2**32) % 2**63


def read_target(target: str) -> dict[str, Any]:
    """Return the sections of a YAML file, a name, a ``.py`` file or ``gym:ID``."""
    if target.endswith(CONFIGS):
        return read_config(Path(target))
    if target == CRYPTO:
        return {"env": {"name": "portfolio"}}
    if get_kind(target).is_known:
        return {"env": {"name": target}}
    if path_exists(Path(target)):
        raise ConfigError(
            f"{target} cannot be trained. Give a .yaml file, a kernel's .py file, the name of an "
            "environment (`slipstream list`), or gym:ID."
        )
    load_kernel(target)  # raises an error that lists the alternatives
    return {"env": {"name": target}}


def read_config(path: Path) -> dict[str, Any]:
    """Return the sections of a YAML or JSON file."""
    return read_sections(parsed(path))


def read_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mutable copy of the sections; those of another project are translated."""
    foreign = _format_of(values)
    if foreign is None:
        return copied(values)
    sections: dict[str, Any] = foreign.to_sections(values)
    return sections


def _format_of(values: Mapping[str, Any]) -> ModuleType | None:
    """Return the module that reads another project's sections; None for our own."""
    names = (name for names in iter_offers("formats") for name in names)
    modules = (load("formats", name) for name in names)
    return next((module for module in modules if module.recognizes(values)), None)


def parsed(path: Path) -> dict[str, Any]:
    """Return the parsed content of the file."""
    text = read_text(path, "The config file")
    parse = yaml_file.parse_json if path.suffix == ".json" else yaml_file.parse
    values = parse(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} must hold the sections {', '.join(SECTIONS)}, each with keys below it; "
            "`slipstream init cartpole` prints one to start from."
        )
    return values


def ignored_keys(target: object) -> str | None:
    """Return a notice about parts of a file that training ignores or handles differently, or
    None.
    """
    if isinstance(target, (str, Path)) and str(target).endswith(CONFIGS):
        target = parsed(Path(target))
    if not isinstance(target, Mapping):
        return None
    foreign = _format_of(target)
    if foreign is not None:
        reader = foreign.__name__.removesuffix(".config")
        return f"`{reader}` reads this config. {foreign.differences(target) or ''}".strip()
    if STUDY in target:
        return "The section `study` is read by `slipstream tune` and ignored by a run."
    return None


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """Parse ``["agent.n_epochs=2"]`` to ``{"agent.n_epochs": 2}``; a mapping is returned
    unchanged.
    """
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            raise ConfigError(
                f"--set {override}: write it as section.key=value, such as agent.n_epochs=2."
            )
        if path.strip() in parsed:
            raise ConfigError(f"{path.strip()} is set twice. Remove one of them.")
        parsed[path.strip()] = yaml_file.parse(text, f"--set {override}")
    return parsed


def override(values: dict[str, Any], path: str, value: Any) -> None:
    """Set the dotted `path` in nested sections, creating missing ones."""
    first, dot, _ = path.partition(".")
    if not dot and first not in SECTIONS:
        raise ConfigError(unknown_section(first))
    if dot and isinstance(values.get(first), str):
        values[first] = {
            "name": values[first]
        }  # `env: cartpole` is short for `env: {name: cartpole}`
    set_by_path(values, path, value)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mutable copy of nested mappings."""
    return {
        str(key): copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def unknown_section(name: str) -> str:
    """Return an error message with the nearest known section."""
    if (setting := agent_setting(name)) is not None:
        return f"`{name}` is not a known section; did you mean `{setting}`?"
    return f"`{name}` is not a known section; {did_you_mean(name, SECTIONS)}"


@dataclass(frozen=True)
class RunConfig:
    """Frozen config of M members.

    Attributes:
        env_name: a kernel's name, the absolute path of a user's kernel file, or ``gym:ID``.
        env_settings: rest of the `env` section, complete: every field of the kernel's Config as
            plain values.
        agent_name: name of the algorithm.
        agent, training, evaluation: their sections.
        curriculum: phases with other settings of the environment; mostly empty.
        note: notice about ignored settings, or None.
    """

    env_name: str
    env_settings: Mapping[str, Any]
    agent_name: str
    agent: AgentConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    note: str | None = field(default=None, compare=False)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Validate the five sections; removed settings are ignored.

        Raises:
            ConfigError: unknown keys (with the nearest known one), bad values, impossible sizes.
        """
        unknown = [str(key) for key in values if key not in SECTIONS]
        if unknown:
            raise ConfigError(unknown_section(unknown[0]))
        env_name, env = _named_section(values.get("env"), "env", None)
        kind = get_kind(env_name)
        env_name, env = kind.resolve_settings(env)
        agent_name, agent = _named_section(values.get("agent"), "agent", "ppo")
        agent_name, agent_config = load_config(agent_name)
        suggested = kind.default_hyperparams(agent_name)
        training = section_of(values, "training")
        training = {name: value for name, value in training.items() if name not in RETIRED}
        config = cls(
            env_name=env_name,
            env_settings=env,
            agent_name=agent_name,
            agent=validate(agent_config, {**suggested.get("agent", {}), **agent}, "agent"),
            training=validate(
                TrainingConfig, {**suggested.get("training", {}), **training}, "training"
            ),
            evaluation=validate(EvaluationConfig, section_of(values, "evaluation"), "evaluation"),
            curriculum=validate(CurriculumConfig, section_of(values, "curriculum"), "curriculum"),
        )
        n = config.training.num_envs
        relaxed = config.agent.relax_sizes(_AUTO_NUM_ENVS if n == "auto" else n, agent)
        config = replace(config, agent=relaxed)
        config.check_sizes()
        hang_timeout.set(config.training.hang_seconds)
        return config

    @property
    def iteration_steps(self) -> int:
        """Steps of a member per iteration, over all environments; `num_envs` must be a number."""
        return self.agent.iteration_steps(self.num_envs) * self.num_envs

    @property
    def num_envs(self) -> int:
        """Sub-environments per member, N; `num_envs` must not be ``auto``."""
        assert isinstance(self.training.num_envs, int)
        return self.training.num_envs

    def check_sizes(self) -> None:
        """Validate per-member lists, sizes of the agent, and that the budget allows an update.

        With `num_envs: auto` only the lists are checked, as the automatic choice will fit.
        """
        for name in self.agent.PER_MEMBER:
            self.agent.check_length(name, self.training.members)
        n = self.training.num_envs
        if n != "auto":
            self.agent.check(n)
        plan, budget = self.agent.replay(_AUTO_NUM_ENVS if n == "auto" else n), self.training
        if plan is not None and plan.learning_starts >= budget.total_timesteps:
            raise ConfigError(
                f"agent.learning_starts is {plan.learning_starts:,} and training.total_timesteps "
                f"{budget.total_timesteps:,}: the run would end before its first update. Set "
                f"agent.learning_starts={budget.total_timesteps // 10}, or train longer."
            )

    def with_training(self, **changes: Any) -> RunConfig:
        """Return the config with some fields of the `training` section changed and validated."""
        values = {**self.training.model_dump(), **changes}
        config = replace(self, training=validate(TrainingConfig, values, "training"))
        config.check_sizes()
        return config

    def with_num_envs(self, num_envs: int) -> RunConfig:
        """Return the config with N sub-environments per member; the batch size is adapted if
        needed.

        Raises:
            ConfigError: the agent's other sizes do not fit.
        """
        agent = self.agent.relax_sizes(num_envs, ())
        return replace(self, agent=agent).with_training(num_envs=num_envs)

    def with_opponent(self) -> tuple[RunConfig, str | None]:
        """Return the config with a default opponent if the section `env` of a game names none.

        Returns:
            The config, and a message that names the opponent; None if none was missing.
        """
        players = get_game_class(self.env_name)
        if players is None:
            return self, None
        env, sentence = players.with_opponent(self.env_name, self.env_settings)
        return replace(self, env_settings=env), sentence

    def as_mapping(self) -> dict[str, Any]:
        """Return complete plain values from which `from_mapping` creates the identical config."""
        phases = self.curriculum.model_dump(mode="json")
        return {
            "env": {"name": self.env_name, **self.env_settings},
            "agent": {"name": self.agent_name, **self.agent.model_dump(mode="json")},
            "training": self.training.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
            **({"curriculum": phases} if self.curriculum.phases else {}),
        }

    def to_yaml(self) -> str:
        """Return the resolved config as YAML."""
        return yaml_file.dump(self.as_mapping())

    @property
    def hash(self) -> str:
        """sha256 of everything that determines the result; paths and workers do not."""
        values = self.as_mapping()
        for name in ("out", "shards", "keep_last", "policy_every_episodes"):
            del values["training"][name]
        for name, before in ADDED.items():  # earlier runs without it can be resumed
            if values["training"][name] == before:
                del values["training"][name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def preset_note(self) -> str | None:
        """Notice about unexpected presets in force; None without any."""
        return get_kind(self.env_name).preset_note(self.agent_name, self.as_mapping())

    @property
    def short_name(self) -> str:
        """Name of the environment for use in file names."""
        name = get_kind(self.env_name).short_name
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def resolve(
    target: str | Path | Mapping[str, Any] | RunConfig, overrides: Overrides = ()
) -> RunConfig:
    """Create the config of a run.

    Args:
        target: a YAML file, a kernel's name, a ``.py`` kernel file, ``gym:ID``, the sections as a
            mapping, or a config to change.
        overrides: applied before validation, each path once.

    Raises:
        ConfigError: one paragraph with the problem and its fix.
    """
    if isinstance(target, RunConfig):
        values = copied(target.as_mapping())  # `target` must not change
    elif isinstance(target, Mapping):
        values = read_sections(target)
    else:
        values = read_target(str(target))
    values.pop(STUDY, None)  # the section of a study is not part of a run
    changes = parse_overrides(overrides)
    note = switch_agent(values, changes)
    for path, value in changes.items():
        override(values, path, value)
    refuse_retired(values)
    return replace(RunConfig.from_mapping(values), note=note)


def switch_agent(values: dict[str, Any], overrides: Mapping[str, Any]) -> str | None:
    """Remove settings of another agent than the one that `overrides` select from `values`.

    Returns:
        A notice that lists the keys; None without any.
    """
    new = overrides.get("agent.name")
    old, agent = _named_section(values.get("agent"), "agent", "ppo")
    if not isinstance(new, str) or new == old:
        return None
    removed = {f"agent.{key}": value for key, value in agent.items()}
    training = values.get("training")
    if "env" in values and isinstance(training, Mapping):
        env, _ = _named_section(values["env"], "env", None)
        before, after = (
            get_kind(env).default_hyperparams(n).get("training", {}) for n in (old, new)
        )
        untouched = {**validate(TrainingConfig, {}).model_dump(mode="json"), **before}
        same = {
            key: training[key]
            for key in (*before, *after)
            if key in training and training[key] == untouched[key]
        }
        removed |= {f"training.{key}": value for key, value in same.items()}
        values["training"] = {key: value for key, value in training.items() if key not in same}
    values["agent"] = {"name": old}
    if not removed:
        return None
    listed = ", ".join(f"{key}={value}" for key, value in removed.items())
    return (
        f"`agent.name` is {new} now: settings of {old} in the config are ignored, and {new} uses "
        f"its own defaults ({listed})."
    )


def refuse_retired(values: Mapping[str, Any]) -> None:
    """Raise a ConfigError if a user sets a removed setting to other than its default."""
    training = section_of(values, "training")
    for name, default in RETIRED.items():
        if training.get(name, default) != default:
            raise ConfigError(
                f"`training.{name}` was removed: it changed no result and made nothing faster. "
                "Remove it."
            )


def section_of(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the plain section of that name; empty if it is missing.

    Raises:
        ConfigError: it is not a mapping.
    """
    section = values.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"`{name}` must be a section with keys below it (got {section!r}).")
    return {str(key): value for key, value in section.items()}


def _named_section(section: Any, where: str, default: str | None) -> tuple[str, dict[str, Any]]:
    values = {"name": section} if isinstance(section, str) else section_of({where: section}, where)
    name = values.pop("name", default)
    if name is None:
        raise ConfigError(
            f"`{where}.name` is required and missing; built-in environments: "
            f"{', '.join(list_kernels())}."
        )
    if not isinstance(name, str):
        raise ConfigError(f"`{where}.name` must be a name (got {name!r}).")
    return name, values
