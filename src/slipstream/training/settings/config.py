"""Config of a run: its sections, what a target stands for, and the frozen `RunConfig`.

`read_target` and `read_sections` give plain sections in which no key is checked. `resolve` applies
overrides to them and validates the result.
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
from slipstream.rl.agents.discover import load_config
from slipstream.training.environments.curriculum import CurriculumConfig
from slipstream.training.environments.environment import SteppingConfig
from slipstream.training.environments.factory import get_game_class, get_kind

Backend = Literal["auto", "serial", "compiled", "process"]

RETIRED = {"double_buffer": False}
"""Settings of `training` that are gone, and their defaults: files that we wrote have them. They
changed no result."""

ADDED = {"precision": "float32"}
"""Settings of `training` that files which we wrote may lack, and what those were trained with."""
SECTIONS = ("env", "agent", "training", "evaluation", "curriculum")
CONFIGS = (".yaml", ".yml", ".json")
STUDY = "study"  # a sixth section, which `slipstream tune` reads and a run passes over
CRYPTO = "crypto"  # what Cappuccino's command calls a portfolio of coins
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Dotted path -> value, or ``a.b=c`` strings whose right side is YAML."""
_COPIES_OF_AUTO = 8  # what every environment may have; where it divides, `auto` finds a number


class TrainingConfig(Config):
    """How much is trained, with what, and where it is kept."""

    num_envs: Count | Literal["auto"] = Field(
        "auto",
        description="copies of the environment, per member; auto: by budget and time limit",
    )
    members: Count = Field(1, description="independent learners trained together, seeds seed + m")
    total_timesteps: Count = Field(500_000, description="environment steps, per member")
    seed: Seed = Field(0, description="of member 0")
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field(
        "cpu", description="cpu, or a card that learns: cuda, cuda:1"
    )
    learner: Literal["auto", "compiled", "torch"] = Field(
        "auto", description="form of the algorithm; auto: torch for images and cards, else compiled"
    )
    precision: Literal["float32", "tf32", "bfloat16_products"] = Field(
        "float32",
        description="of hidden layers' products in the torch form; tf32: of all, on cards only",
    )
    backend: Backend = Field(
        "auto",
        description="how copies are stepped, changes no result; auto compiles kernels; process: "
        "gym: in worker processes",
    )
    backend_fallback: tuple[Backend, ...] = Field(
        (),
        description="Backends to try in this order if `backend` does not work here; empty: raise.",
    )
    workers: Count | Literal["auto"] = Field(
        "auto", description="processes of backend process; auto: one a core, one in each shard"
    )
    on_fault: Literal["restart", "raise"] = Field(
        "restart", description="what follows when a copy or worker of backend process fails"
    )
    hang_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0, description="of one call, after which backend process gives a copy up"
    )
    faults_per_minute: Count = Field(
        100,
        description="of copies and workers of backend process; more end the run where they cost "
        "more than a twentieth of its steps",
    )
    shards: Count | Literal["auto"] = Field(
        "auto", description="workers that members are dealt to; changes no result"
    )
    checkpoint_every: Share = Field(0.1, description="share of the budget between checkpoints")
    keep_last: Count = Field(2, description="checkpoints kept")
    policy_every_episodes: Count | None = Field(
        None,
        description="episodes after which member 0's policy is written beside the run, as "
        "RUN_epNNNNNN, and at the end",
    )
    out: str | None = Field(None, description="run directory; null: runs/<env>-<date>-<time>")

    @property
    def stepping(self) -> SteppingConfig:
        """How copies of somebody else's rules are stepped."""
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
    """How policies are scored while training."""

    every: Share = Field(0.1, description="share of the budget between validations")
    every_steps: Count | None = Field(
        None, description="instead of `every`: environment steps of a member between validations"
    )
    every_episodes: Count | None = Field(
        None, description="instead of `every`: training episodes of every member between them"
    )
    episodes: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        "auto",
        description="whole episodes a score is the mean of (not in markets); auto: 100, or as many "
        "as end within `share` of the budget",
    )
    share: Share = Field(
        0.2, description="of the budget's steps, that validation may take where `episodes` is auto"
    )
    deterministic: bool = Field(
        True,
        description="Score the most likely actions; false samples actions as in training.",
    )
    seed: Seed = Field(1_000_003, description="the same episodes every time")
    max_steps: Count | Literal["auto"] = Field(
        "auto",
        description="cuts an episode of an environment without a time limit (not in markets); "
        "auto: 1/500 of the budget, 100 to 10,000",
    )

    @model_validator(mode="after")
    def _one_measure(self) -> EvaluationConfig:
        if self.every_steps is not None and self.every_episodes is not None:
            raise ValueError("give `every_steps` or `every_episodes`, not both")
        return self

    @property
    def max_episodes(self) -> int:
        """That a score is the mean of, however short they are."""
        return 100 if self.episodes == "auto" else self.episodes

    @property
    def test_seed(self) -> int:
        """Of the fresh episodes that a game's result is measured on and nothing is chosen by."""
        return (self.seed + 2**32) % 2**63


def read_target(target: str) -> dict[str, Any]:
    """The sections that a YAML file, a name, a ``.py`` file or ``gym:ID`` stands for."""
    if target.endswith(CONFIGS):
        return read_config(Path(target))
    if target == CRYPTO:
        return {"env": {"name": "portfolio"}}
    if get_kind(target).is_known:
        return {"env": {"name": target}}
    if path_exists(Path(target)):
        raise ConfigError(
            f"{target} is not something to train: give a .yaml file, a kernel's .py file, the "
            "name of an environment (`slipstream list`), or gym:ID."
        )
    load_kernel(target)  # says what would work
    return {"env": {"name": target}}


def read_config(path: Path) -> dict[str, Any]:
    """The sections in a YAML or JSON file."""
    return read_sections(parsed(path))


def read_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of our sections that may be changed; another project's are translated into them."""
    foreign = _format_of(values)
    if foreign is None:
        return copied(values)
    sections: dict[str, Any] = foreign.to_sections(values)
    return sections


def _format_of(values: Mapping[str, Any]) -> ModuleType | None:
    """The module that reads the sections of another project; None where they are ours."""
    names = (name for names in iter_offers("formats") for name in names)
    modules = (load("formats", name) for name in names)
    return next((module for module in modules if module.recognizes(values)), None)


def parsed(path: Path) -> dict[str, Any]:
    """What the file says, in its own words."""
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
    """A sentence for whoever trains a file that also describes a study, or that asks for what is
    done otherwise; None for others."""
    if isinstance(target, (str, Path)) and str(target).endswith(CONFIGS):
        target = parsed(Path(target))
    if not isinstance(target, Mapping):
        return None
    foreign = _format_of(target)
    if foreign is not None:
        reader = foreign.__name__.removesuffix(".config")
        return f"`{reader}` reads this config. {foreign.differences(target) or ''}".strip()
    if STUDY in target:
        return "The section `study` is read by `slipstream tune`; a run passes over it."
    return None


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """``["agent.n_epochs=2"]`` -> ``{"agent.n_epochs": 2}``; a mapping is taken as it is."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for one in overrides:
        path, equals, text = one.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            raise ConfigError(
                f"--set {one}: write it as section.key=value, such as agent.n_epochs=2."
            )
        if path.strip() in parsed:
            raise ConfigError(f"{path.strip()} is set twice; leave one of the two out.")
        parsed[path.strip()] = yaml_file.parse(text, f"--set {one}")
    return parsed


def override(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets the dotted `path` in nested sections, making those that are missing."""
    first, dot, _ = path.partition(".")
    if not dot and first not in SECTIONS:
        raise ConfigError(unknown_section(first))
    if dot and isinstance(values.get(first), str):
        values[first] = {"name": values[first]}  # `env: cartpole` is short for its name
    set_by_path(values, path, value)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested mappings that may be changed."""
    return {
        str(key): copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def unknown_section(name: str) -> str:
    """Says which section was meant."""
    if (setting := agent_setting(name)) is not None:
        return f"`{name}` is not a known section; did you mean `{setting}`?"
    return f"`{name}` is not a known section; {did_you_mean(name, SECTIONS)}"


@dataclass(frozen=True)
class RunConfig:
    """One frozen config of M members.

    Attributes:
        env_name: a kernel's name, the absolute path of a user's kernel file, or ``gym:ID``.
        env_settings: the rest of the `env` section, complete: every field of the kernel's Config as
            plain values.
        agent_name: which algorithm.
        agent, training, evaluation: their sections.
        curriculum: phases of other settings of the environment; most runs have none.
        note: a sentence about what was passed over on the way here; None where nothing was.
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
        """Validates the five sections; what is retired is passed over.

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
        training = {name: one for name, one in training.items() if name not in RETIRED}
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
        yielding = config.agent.give_way(_COPIES_OF_AUTO if n == "auto" else n, agent)
        config = replace(config, agent=yielding)
        config.check_sizes()
        hang_timeout.set(config.training.hang_seconds)
        return config

    @property
    def iteration_steps(self) -> int:
        """Steps of a member in an iteration, all copies together; `num_envs` is a number."""
        return self.agent.iteration_steps(self.num_envs) * self.num_envs

    @property
    def num_envs(self) -> int:
        """Copies of a member, N; it is not left to ``auto``."""
        assert isinstance(self.training.num_envs, int)
        return self.training.num_envs

    def check_sizes(self) -> None:
        """Refuses per-member lists of a wrong length, sizes of the agent that do not fit, and a
        budget that ends before the first update.

        With `num_envs: auto` only the lists are checked: the choice will fit.
        """
        for name in self.agent.PER_MEMBER:
            self.agent.check_length(name, self.training.members)
        n = self.training.num_envs
        if n != "auto":
            self.agent.check(n)
        plan, budget = self.agent.replay(_COPIES_OF_AUTO if n == "auto" else n), self.training
        if plan is not None and plan.starts >= budget.total_timesteps:
            raise ConfigError(
                f"agent.learning_starts is {plan.starts:,} and training.total_timesteps "
                f"{budget.total_timesteps:,}: the run would end before its first update. Set "
                f"agent.learning_starts={budget.total_timesteps // 10}, or train longer."
            )

    def with_training(self, **changes: Any) -> RunConfig:
        """The same config with some fields of the `training` section changed and checked again."""
        values = {**self.training.model_dump(), **changes}
        config = replace(self, training=validate(TrainingConfig, values, "training"))
        config.check_sizes()
        return config

    def with_num_envs(self, num_envs: int) -> RunConfig:
        """The same with N copies per member; a minibatch that then does not fit gives way.

        Raises:
            ConfigError: the agent's other sizes do not fit.
        """
        agent = self.agent.give_way(num_envs, ())
        return replace(self, agent=agent).with_training(num_envs=num_envs)

    def with_opponent(self) -> tuple[RunConfig, str | None]:
        """The same with somebody in a game's second seat, where the section `env` leaves it open.

        Returns:
            The config, and a sentence that says who it is; None where nothing was open.
        """
        players = get_game_class(self.env_name)
        if players is None:
            return self, None
        env, sentence = players.with_opponent(self.env_name, self.env_settings)
        return replace(self, env_settings=env), sentence

    def as_mapping(self) -> dict[str, Any]:
        """Plain values, complete: what `from_mapping` makes the identical config from."""
        phases = self.curriculum.model_dump(mode="json")
        return {
            "env": {"name": self.env_name, **self.env_settings},
            "agent": {"name": self.agent_name, **self.agent.model_dump(mode="json")},
            "training": self.training.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
            **({"curriculum": phases} if self.curriculum.phases else {}),
        }

    def to_yaml(self) -> str:
        """The resolved config file."""
        return yaml_file.dump(self.as_mapping())

    @property
    def hash(self) -> str:
        """sha256 of everything that decides the result, which place and workers do not."""
        values = self.as_mapping()
        for name in ("out", "shards", "keep_last", "policy_every_episodes"):
            del values["training"][name]
        for name, before in ADDED.items():  # runs from before it was there are gone on with
            if values["training"][name] == before:
                del values["training"][name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def preset_note(self) -> str | None:
        """A sentence about suggestions in force that nobody would look for; None without any."""
        return get_kind(self.env_name).preset_note(self.agent_name, self.as_mapping())

    @property
    def short_name(self) -> str:
        """The environment's name as part of a file name."""
        name = get_kind(self.env_name).short_name
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def resolve(
    target: str | Path | Mapping[str, Any] | RunConfig, overrides: Overrides = ()
) -> RunConfig:
    """Makes the config of a run.

    Args:
        target: a YAML file, a kernel's name, a ``.py`` kernel file, ``gym:ID``, the sections as a
            mapping, or a config to change.
        overrides: applied before validation, each path once.

    Raises:
        ConfigError: one paragraph that says what to write instead.
    """
    if isinstance(target, RunConfig):
        values = copied(target.as_mapping())  # nested settings stay as they are in `target`
    elif isinstance(target, Mapping):
        values = read_sections(target)
    else:
        values = read_target(str(target))
    values.pop(STUDY, None)  # what a study varies is no part of a run
    changes = parse_overrides(overrides)
    note = switch_agent(values, changes)
    for path, value in changes.items():
        override(values, path, value)
    refuse_retired(values)
    return replace(RunConfig.from_mapping(values), note=note)


def switch_agent(values: dict[str, Any], overrides: Mapping[str, Any]) -> str | None:
    """Takes out of `values` what stands there for another agent than the one that `overrides` name.

    Returns:
        A sentence that names the keys; None where there are none.
    """
    new = overrides.get("agent.name")
    old, agent = _named_section(values.get("agent"), "agent", "ppo")
    if not isinstance(new, str) or new == old:
        return None
    gone = {f"agent.{key}": value for key, value in agent.items()}
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
        gone |= {f"training.{key}": value for key, value in same.items()}
        values["training"] = {key: value for key, value in training.items() if key not in same}
    values["agent"] = {"name": old}
    if not gone:
        return None
    listed = ", ".join(f"{key}={value}" for key, value in gone.items())
    return (
        f"`agent.name` is {new} now: what the config says for {old} is passed over, and {new} has "
        f"its own settings ({listed})."
    )


def refuse_retired(values: Mapping[str, Any]) -> None:
    """Raises ConfigError where a user asks for a setting that is gone; its default asks nothing."""
    training = section_of(values, "training")
    for name, default in RETIRED.items():
        if training.get(name, default) != default:
            raise ConfigError(
                f"`training.{name}` is gone: it made nothing faster where it was measured, and "
                "never changed a result. Take it out."
            )


def section_of(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The plain section of that name; empty where there is none.

    Raises:
        ConfigError: it is no section.
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
