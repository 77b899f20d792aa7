"""Curricula: phases with other settings of the same environment, and annealed parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from slipstream.core.bounds import Count, Natural
from slipstream.core.config import Config, set_by_path
from slipstream.core.errors import ConfigError
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment


class Anneal(Config):
    """A parameter of the environment that changes within a phase, by a member's own episodes."""

    start: float = Field(description="Value during the first `hold` episodes.")
    final: float = Field(
        description="Value reached linearly over the next `over` episodes, and kept."
    )
    hold: Natural = Field(0, description="Episodes of the phase before the change starts.")
    over: Natural = Field(0, description="Episodes over which the value changes.")

    def share(self, episodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the fraction of the change completed after that many episodes, [m]."""
        past = (episodes - self.hold).astype(np.float64)
        return np.clip(past / self.over, 0.0, 1.0) if self.over else (past >= 0).astype(np.float64)


class Phase(Config):
    """Settings of the environment for part of the training."""

    name: str = Field("", description="Name of the phase in tables.")
    episodes: Count | None = Field(None, description="Episodes of a member that end the phase.")
    steps: Count | None = Field(None, description="Steps of a member that end the phase instead.")
    env: dict[str, Any] = Field(
        default_factory=dict, description="Settings that override the section `env`."
    )
    anneal: dict[str, Anneal] = Field(
        default_factory=dict,
        description="Annealed numbers of `env` by dotted name, such as reward.touch.",
    )
    clear_replay: bool = Field(
        False, description="Clear the replay buffer at the start of the phase."
    )

    @model_validator(mode="after")
    def _one_end(self) -> Phase:
        if self.episodes is not None and self.steps is not None:
            raise ValueError("a phase ends after `episodes` or after `steps`: give one of them")
        return self


class CurriculumConfig(Config):
    """Training phases in sequence; evaluations use the section `env`."""

    phases: tuple[Phase, ...] = Field((), description="Phases in order.")

    @property
    def episodes(self) -> int | None:
        """Episodes of a member in all phases; None if any phase does not end by episodes."""
        episodes = [phase.episodes for phase in self.phases if phase.episodes is not None]
        return sum(episodes) if episodes and len(episodes) == len(self.phases) else None

    @model_validator(mode="after")
    def _all_but_the_last_end(self) -> CurriculumConfig:
        for i, phase in enumerate(self.phases[:-1]):
            if phase.episodes is None and phase.steps is None:
                raise ValueError(
                    f"phase {i + 1} has no end and is not the last: give it `episodes` or `steps`"
                )
        return self


@dataclass(frozen=True)
class _Records:
    """A phase as Params records.

    Attributes:
        first: record with all annealed numbers at their start.
        changes: for each annealed number, the change of the record's fields from start to final.
    """

    first: Any
    changes: Mapping[str, Mapping[str, float]]


class Curriculum:
    """Current phase of each of m members, and their Params.

    A phase changes only between iterations. The member's environments then start new episodes, and
    the aborted episodes are not counted.

    Args:
        config: the phases.
        environment: kernel environment of the section `env`.
        settings: settings of that section.
        members: m.

    Attributes:
        phase: int64 [m], index of the phase; the number of phases if all are completed.
    """

    def __init__(
        self,
        config: CurriculumConfig,
        environment: Environment,
        settings: Mapping[str, Any],
        members: int,
    ) -> None:
        self.config = config
        self._records = [_records(environment, settings, phase) for phase in config.phases]
        self.phase = np.zeros(members, np.int64)
        self._episodes = np.zeros(members, np.int64)  # at the start of the phase
        self._steps = np.zeros(members, np.int64)

    def for_members(self, members: int) -> Curriculum:
        """Return the same curriculum at its start, for another number of members."""
        curriculum = copy.copy(self)
        curriculum.phase, curriculum._episodes, curriculum._steps = np.zeros((3, members), np.int64)
        return curriculum

    def advance(self, episodes: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """End the phases that have reached their length.

        Args:
            episodes, steps: int64 [m], totals of each member.

        Returns:
            Members that entered another phase.
        """
        changed = []
        for m in range(len(self.phase)):
            number = int(self.phase[m])
            if number == len(self.config.phases):
                continue
            phase = self.config.phases[number]
            over = phase.episodes is not None and episodes[m] - self._episodes[m] >= phase.episodes
            if over or (phase.steps is not None and steps[m] - self._steps[m] >= phase.steps):
                self.phase[m] += 1
                self._episodes[m], self._steps[m] = episodes[m], steps[m]
                if self.phase[m] < len(self.config.phases):
                    changed.append(m)
        return np.array(changed, np.int64)

    def clears_replay(self, member: int) -> bool:
        """Return whether the member's phase starts with an empty replay buffer."""
        return self.config.phases[int(self.phase[member])].clear_replay

    def params(self, member: int, episodes: int) -> Any:
        """Return the Params record of a member after that many episodes."""
        number = min(int(self.phase[member]), len(self._records) - 1)
        records, phase = self._records[number], self.config.phases[number]
        start = self._episodes[member] if number == self.phase[member] else 0
        values = records.first._asdict()
        for name, anneal in phase.anneal.items():
            share = float(anneal.share(np.array([episodes - start]))[0])
            for field, move in records.changes[name].items():
                values[field] = values[field] + share * move
        return type(records.first)(**values)

    def get_state(self) -> dict[str, NDArray[np.int64]]:
        """Return the state of the members, [m] by name."""
        return {
            "phase": self.phase.copy(),
            "episodes": self._episodes.copy(),
            "steps": self._steps.copy(),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `get_state()`."""
        self.phase[:], self._episodes[:] = state["phase"], state["episodes"]
        self._steps[:] = state["steps"]


def check_curriculum(
    config: CurriculumConfig, environment: Environment, settings: Mapping[str, Any]
) -> None:
    """Validate that all phases can be trained.

    Raises:
        ConfigError: the environment is not a game's kernel, or a phase changes spaces or limits.
    """
    Curriculum(config, environment, settings, 1)


def _records(environment: Environment, settings: Mapping[str, Any], phase: Phase) -> _Records:
    kernel_env = environment.part(KernelEnvironment)
    if kernel_env is None or kernel_env.spec.market is not None:
        raise ConfigError(
            f"`curriculum` requires a kernel that is a game, and {environment.name} is not one. "
            "Remove the section."
        )
    starts = {name: anneal.start for name, anneal in phase.anneal.items()}
    first = _params(kernel_env, settings, phase, starts)
    changes = {}
    for name, anneal in phase.anneal.items():
        final = _params(kernel_env, settings, phase, {**starts, name: anneal.final})
        before, after = first._asdict(), final._asdict()
        changes[name] = {f: after[f] - before[f] for f in before if after[f] != before[f]}
        if anneal.start != anneal.final and not changes[name]:
            raise ConfigError(f"`curriculum`: `anneal.{name}` changes nothing in this environment.")
        if any(not isinstance(before[f], float) for f in changes[name]):
            raise ConfigError(
                f"`curriculum`: `anneal.{name}` cannot change gradually. Set it in the `env` of a "
                "phase."
            )
    return _Records(first, changes)


def _params(
    environment: KernelEnvironment,
    settings: Mapping[str, Any],
    phase: Phase,
    numbers: Mapping[str, float],
) -> Any:
    changed = {**settings, **phase.env}  # a phase replaces mappings as a whole
    try:
        for path, value in numbers.items():
            set_by_path(changed, path, value)
        changed_env = environment.kind.load(changed)
    except ConfigError as error:
        raise ConfigError(f"`curriculum`, phase `{phase.name}`: {error}") from error
    same = changed_env.spec.players == environment.spec.players
    same = same and changed_env.spec.observation_space == environment.spec.observation_space
    same = same and changed_env.spec.max_episode_steps == environment.spec.max_episode_steps
    if not (same and changed_env.spec.action_space == environment.spec.action_space):
        raise ConfigError(
            f"`curriculum`, phase `{phase.name}` changes observations, actions or the time limit. "
            "Phases may change rules, opponents and rewards, but not spaces, limits or the number "
            "of players."
        )
    return changed_env.loaded.params["train"][0]
