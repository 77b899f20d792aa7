"""RunConfig: everything that decides a run, resolved and frozen before training begins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError
from slipstream.core.process import patience
from slipstream.core.storage import yaml_file
from slipstream.kernels.discover import list_kernels
from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.agents.discover import load_config
from slipstream.training.environments.curriculum import NO_CURRICULUM, CurriculumConfig
from slipstream.training.environments.factory import kind_of
from slipstream.training.settings.sections import ADDED, RETIRED, EvaluationConfig, TrainingConfig
from slipstream.training.settings.target import (
    SECTIONS,
    STUDY,
    Overrides,
    copied,
    override,
    parse_overrides,
    read_sections,
    read_target,
    unknown_section,
)

_COPIES_OF_AUTO = 8  # what every environment may have; where it divides, `auto` finds a number


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
    curriculum: CurriculumConfig = NO_CURRICULUM
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
        kind = kind_of(env_name)
        env_name, env = kind.section(env)
        agent_name, agent = _named_section(values.get("agent"), "agent", "ppo")
        agent_name, agent_config = load_config(agent_name)
        suggested = kind.suggested(agent_name)
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
        patience.set(config.training.hang_seconds)
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
        if plan is not None and plan.starts >= budget.total_steps:
            raise ConfigError(
                f"agent.learning_starts is {plan.starts:,} and training.total_steps "
                f"{budget.total_steps:,}: the run would end before its first update. Set "
                f"agent.learning_starts={budget.total_steps // 10}, or train longer."
            )

    def with_training(self, **changes: Any) -> RunConfig:
        """The same config with some fields of the `training` section changed and checked again."""
        values = {**self.training.model_dump(), **changes}
        config = replace(self, training=validate(TrainingConfig, values, "training"))
        config.check_sizes()
        return config

    def with_copies(self, num_envs: int) -> RunConfig:
        """The same with N copies per member; a minibatch that then does not fit gives way.

        Raises:
            ConfigError: the agent's other sizes do not fit.
        """
        agent = self.agent.give_way(num_envs, ())
        return replace(self, agent=agent).with_training(num_envs=num_envs)

    def seated(self) -> tuple[RunConfig, str | None]:
        """The same with somebody in a game's second seat, where the section `env` leaves it open.

        Returns:
            The config, and a sentence that says who it is; None where nothing was open.
        """
        env, sentence = kind_of(self.env_name).seated(self.env_settings)
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
        return kind_of(self.env_name).preset_note(self.agent_name, self.as_mapping())

    @property
    def short_name(self) -> str:
        """The environment's name as part of a file name."""
        name = kind_of(self.env_name).short_name
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
        before, after = (kind_of(env).suggested(n).get("training", {}) for n in (old, new))
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
