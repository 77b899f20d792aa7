"""RunConfig: everything that decides a run, resolved and frozen before training begins."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from slipstream.agents.ppo_config import PER_MEMBER, PPOConfig
from slipstream.core.config import Config, nearest, validate
from slipstream.core.errors import ConfigError
from slipstream.core.kernel import list_kernels, load_kernel
from slipstream.training import yaml_file

GYMNASIUM = "gym:"
AGENTS: dict[str, type[PPOConfig]] = {"ppo": PPOConfig}
Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Dotted path -> value, or ``a.b=c`` strings whose right side is YAML."""

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class TrainingConfig(Config):
    """How much is trained, with what, and where it is kept."""

    num_envs: Count | Literal["auto"] = Field(
        "auto", description="copies of the environment, per member; auto measures and chooses"
    )
    members: Count = Field(1, description="independent learners trained together, seeds seed + m")
    total_steps: Count = Field(500_000, description="environment steps, per member")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="of member 0")
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field(
        "cpu", description="cpu, cuda or cuda:0"
    )
    backend: Literal["auto", "serial", "compiled"] = Field(
        "auto", description="how copies are stepped; auto compiles kernels"
    )
    shards: Count | Literal["auto"] = Field(
        "auto", description="workers that members are dealt to; changes no result"
    )
    checkpoint_every: Share = Field(0.1, description="share of the budget between checkpoints")
    keep_last: Count = Field(2, description="checkpoints kept")
    out: str | None = Field(None, description="run directory; null: runs/<env>-<date>-<time>")


class EvaluationConfig(Config):
    """How policies are scored while training."""

    every: Share = Field(0.1, description="share of the budget between validations")
    episodes: Count = Field(100, description="episodes a score is the mean of (not in markets)")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        1_000_003, description="the same episodes every time"
    )
    deterministic: bool = Field(True, description="the most likely action instead of a drawn one")


class GymnasiumConfig(Config):
    """The `env` section of a ``gym:ID`` target."""

    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to gymnasium.make")


_SECTIONS = ("env", "agent", "training", "evaluation")


@dataclass(frozen=True)
class RunConfig:
    """One frozen config of M members.

    Attributes:
        env_name: a kernel's name, the absolute path of a user's kernel file, or ``gym:ID``.
        env_settings: the rest of the `env` section, complete: every field of the kernel's Config as
            plain values.
        agent_name: which algorithm.
        agent, training, evaluation: their sections.
    """

    env_name: str
    env_settings: Mapping[str, Any]
    agent_name: str
    agent: PPOConfig
    training: TrainingConfig
    evaluation: EvaluationConfig

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Validates the four sections.

        Raises:
            ConfigError: unknown keys (with the nearest known one), bad values, impossible sizes.
        """
        unknown = [str(key) for key in values if key not in _SECTIONS]
        if unknown:
            raise ConfigError(_unknown_section(unknown[0]))
        env_name, env = _named_section(values.get("env"), "env", None)
        env_name, env = _environment(env_name, env)
        suggested = suggested_settings(env_name)
        agent_name, agent = _named_section(values.get("agent"), "agent", "ppo")
        if agent_name not in AGENTS:
            guess = nearest(agent_name, AGENTS)
            advice = f"did you mean `{guess}`?" if guess else f"known: {', '.join(AGENTS)}."
            raise ConfigError(f"There is no agent `{agent_name}`; {advice}")
        config = cls(
            env_name=env_name,
            env_settings=env,
            agent_name=agent_name,
            agent=validate(AGENTS[agent_name], {**suggested.get("agent", {}), **agent}, "agent"),
            training=validate(
                TrainingConfig,
                {**suggested.get("training", {}), **_section(values, "training")},
                "training",
            ),
            evaluation=validate(EvaluationConfig, _section(values, "evaluation"), "evaluation"),
        )
        if "minibatch" not in agent:
            config = config._with_fitting_minibatch()
        config.check_sizes()
        return config

    def _with_fitting_minibatch(self) -> RunConfig:
        """A suggested minibatch that does not divide gives way: it is not the user's to mend."""
        n, rows = self.training.num_envs, self.agent.minibatch
        if n == "auto" or rows is None or (self.agent.horizon * n) % rows == 0:
            return self
        return replace(self, agent=self.agent.model_copy(update={"minibatch": None}))

    def check_sizes(self) -> None:
        """Refuses per-member lists of a wrong length and minibatches that do not divide the rollout.

        With `num_envs: auto` only the lists are checked: the choice will fit.
        """
        for name in PER_MEMBER:
            self.agent.per_member(name, self.training.members)
        if self.training.num_envs != "auto":
            self.agent.rows(self.training.num_envs)
            self.agent.parts(self.training.members, self.training.num_envs)

    def with_training(self, **changes: Any) -> RunConfig:
        """The same config with some fields of the `training` section changed and checked again."""
        values = {**self.training.model_dump(), **changes}
        config = replace(self, training=validate(TrainingConfig, values, "training"))
        config.check_sizes()
        return config

    def with_environment(self, **changes: Any) -> RunConfig:
        """The same config with some fields of the `env` section changed and checked again."""
        _, settings = _environment(self.env_name, {**self.env_settings, **changes})
        return replace(self, env_settings=settings)

    def as_mapping(self) -> dict[str, Any]:
        """Plain values, complete: what `from_mapping` makes the identical config from."""
        return {
            "env": {"name": self.env_name, **self.env_settings},
            "agent": {"name": self.agent_name, **self.agent.model_dump(mode="json")},
            "training": self.training.model_dump(mode="json"),
            "evaluation": self.evaluation.model_dump(mode="json"),
        }

    def to_yaml(self) -> str:
        """The resolved config file."""
        return yaml_file.dump(self.as_mapping())

    @property
    def hash(self) -> str:
        """sha256 of everything that decides the result: where it is kept and by how many workers does not."""
        values = self.as_mapping()
        for name in ("out", "shards", "keep_last"):
            del values["training"][name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def short_name(self) -> str:
        """The environment's name as part of a file name."""
        name = Path(self.env_name).stem if self.env_name.endswith(".py") else self.env_name
        return "".join(
            c if c.isalnum() or c in "-_." else "-" for c in name.removeprefix(GYMNASIUM)
        )


def resolve(
    target: str | Path | Mapping[str, Any] | RunConfig, overrides: Overrides = ()
) -> RunConfig:
    """Makes the config of a run.

    Args:
        target: a YAML file, a kernel's name, a ``.py`` kernel file, ``gym:ID``, the sections as a
            mapping, or a config to change.
        overrides: applied before validation, later ones win.

    Raises:
        ConfigError: one paragraph that says what to write instead.
    """
    if isinstance(target, RunConfig):
        values: dict[str, Any] = target.as_mapping()
    elif isinstance(target, Mapping):
        values = _copied(target)
    else:
        values = _read_target(str(target))
    for path, value in parse_overrides(overrides).items():
        _set(values, path, value)
    return RunConfig.from_mapping(values)


def load(path: Path) -> RunConfig:
    """The config in a YAML file."""
    return RunConfig.from_mapping(_read_yaml(path))


def parse_overrides(overrides: Overrides) -> dict[str, Any]:
    """``["agent.epochs=2"]`` -> ``{"agent.epochs": 2}``; a mapping is taken as it is."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed: dict[str, Any] = {}
    for one in overrides:
        path, equals, text = one.partition("=")
        if not equals or not all(part.strip() for part in path.split(".")):
            raise ConfigError(
                f"--set {one}: write it as section.key=value, such as agent.epochs=2."
            )
        parsed[path.strip()] = yaml_file.parse(text, f"--set {one}")
    return parsed


def _read_target(target: str) -> dict[str, Any]:
    if target.endswith((".yaml", ".yml")):
        return _read_yaml(Path(target))
    if target.startswith(GYMNASIUM) or target.endswith(".py") or target in list_kernels():
        return {"env": {"name": target}}
    if Path(target).exists():
        raise ConfigError(
            f"{target} is not something to train: give a .yaml file, a kernel's .py file, the name of an "
            "environment (`slipstream list`), or gym:ID."
        )
    load_kernel(target)  # says what would work
    return {"env": {"name": target}}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The config file {path} cannot be read: {reason}.") from None
    values = yaml_file.parse(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} must hold the sections {', '.join(_SECTIONS)}, each with keys below it; "
            "`slipstream init cartpole` prints one to start from."
        )
    return values


def _set(values: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    if not sections and key not in _SECTIONS:
        raise ConfigError(_unknown_section(key))
    at = values
    for depth, name in enumerate(sections):
        below = at.get(name)
        if isinstance(below, str) and depth == 0:
            below = {"name": below}  # `env: cartpole` is short for its name
        if below is None:
            below = {}
        if not isinstance(below, dict):
            where = ".".join(sections[: depth + 1])
            raise ConfigError(
                f"`{path}` cannot be set: `{where}` is the value {below!r}, not a section."
            )
        at[name] = below
        at = below
    at[key] = value


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"`{name}` must be a section with keys below it (got {section!r}).")
    return {str(key): value for key, value in section.items()}


def _named_section(section: Any, where: str, default: str | None) -> tuple[str, dict[str, Any]]:
    values = {"name": section} if isinstance(section, str) else _section({where: section}, where)
    name = values.pop("name", default)
    if name is None:
        raise ConfigError(
            f"`{where}.name` is required and missing; built-in environments: {', '.join(list_kernels())}."
        )
    if not isinstance(name, str):
        raise ConfigError(f"`{where}.name` must be a name (got {name!r}).")
    return name, values


def _environment(name: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and complete settings; the name of a user's file becomes absolute."""
    if name.startswith(GYMNASIUM):
        return name, validate(GymnasiumConfig, settings, "env").model_dump(mode="json")
    if name.endswith(".py"):
        name = str(Path(name).resolve())
    model = load_kernel(name).configure(settings)
    return name, _anchored(model.model_dump(mode="json"))


def suggested_settings(env_name: str) -> Mapping[str, Mapping[str, Any]]:
    """What a kernel's file suggests (`SETTINGS`) for sections that a user leaves open."""
    if env_name.startswith(GYMNASIUM):
        return {}
    return getattr(load_kernel(env_name).module, "SETTINGS", {})


def _anchored(settings: dict[str, Any]) -> dict[str, Any]:
    """Relative data folders made absolute, so that a run can be resumed from anywhere."""
    data = settings.get("data")
    if isinstance(data, dict) and isinstance(data.get("folder"), str):
        folder = data["folder"]
        if ":" not in folder.split("/")[0]:  # `package:NAME` stays as it is
            data["folder"] = str(Path(folder).expanduser().resolve())
    return settings


def _unknown_section(name: str) -> str:
    guess = nearest(name, _SECTIONS)
    advice = f"did you mean `{guess}`?" if guess else f"known sections: {', '.join(_SECTIONS)}."
    return f"`{name}` is not a known section; {advice}"


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): _copied(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }
