"""Interface of environments for training, evaluation and search.

An `EnvironmentKind` is the meaning of a name before anything is loaded; `factory.get_kind` selects
it. It loads an `Environment`. Features of only some environments are `Part`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.child_process import FaultPolicy
from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import iter_offers
from slipstream.core.storage import yaml_file
from slipstream.core.timeline import FoldPlan
from slipstream.kernels.kernel import Kernel
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import VectorEnv

MAX_EVAL_STEPS = 10_000  # default limit of evaluation episodes without a time limit

PartT = TypeVar("PartT", bound="Part")


Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
_FILE = "gymnasium.yaml"  # suggestions for Gymnasium environments
_REASONS = {
    "compiled": "only kernels can be compiled",
    "process": "a kernel is compiled, and processes would only add overhead",
    "cuda": "stepping on a GPU is not implemented",
}


class SteppingConfig(NamedTuple):
    """Options for stepping foreign environments.

    Attributes:
        workers: processes of backend `process`; None for a number by cores.
        policy: handling of failing environments.
        in_process: first steps are taken in this process.
    """

    workers: int | None = None
    policy: FaultPolicy = FaultPolicy()
    in_process: bool = False


class Part:
    """Optional feature of an environment: `environment.part(Kind)` returns it or None.

    Each kind is a subclass. It is a base class of the environments that offer it, or it overrides
    `from_environment` and builds itself, for example from optional functions of a kernel, or a
    plugin creates it; see `core/plugins.py`.
    """

    @classmethod
    def from_environment(cls, environment: Environment) -> Self | None:
        """Return the part of an environment; None if it does not offer it."""
        if isinstance(environment, cls):
            return environment
        parts = (part(cls, environment) for part in iter_offers("part"))
        return next((offered for offered in parts if offered is not None), None)


@dataclass(frozen=True)
class EnvironmentKind(ABC):
    """Meaning of an environment's name before anything is loaded.

    Attributes:
        name: a kernel's name or path, or ``gym:ID``.
        compiled: True if it is a kernel, which threads step.
        backends: backends that can step it, implemented in `make_envs`.
        open_section: key of `env` below which any keys are allowed.
        can_abort: True if an episode can be aborted and another one started.
        resumable: True if its state can be saved and restored at every step.
    """

    name: str

    compiled: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]]
    open_section: ClassVar[str | None] = None
    can_abort: ClassVar[bool] = True
    resumable: ClassVar[bool] = False

    @property
    @abstractmethod
    def is_known(self) -> bool:
        """True if the name alone identifies an environment."""

    @property
    def kernel(self) -> Kernel | None:
        """The loaded kernel; None if it is not a kernel."""
        return None

    @property
    @abstractmethod
    def model(self) -> type[Config]:
        """Model of the section `env`, without the name."""

    @property
    @abstractmethod
    def short_name(self) -> str:
        """Name for use in file names."""

    @property
    def has_folds(self) -> bool:
        """True if its data can be divided into folds."""
        return False

    @property
    def code(self) -> Mapping[str, str | None]:
        """User code that it imports: absolute paths mapped to None, or setting values to a
        module.
        """
        return {}

    @property
    @abstractmethod
    def module(self) -> ModuleType | None:
        """User module that defines it; None if slipstream or a library does.

        Raises:
            ConfigError: it exists only in this process.
        """

    @abstractmethod
    def resolve_settings(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return a name that is valid everywhere, and complete settings."""

    @abstractmethod
    def default_hyperparams(self, agent_name: str) -> Sections:
        """Return defaults of the sections `agent` and `training` for this agent."""

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        """Return a notice about unexpected presets in force; None without any."""
        return None

    @abstractmethod
    def load(self, settings: Mapping[str, Any]) -> Environment:
        """Load the environment with the settings of section `env`, without the name."""

    def load_folds(
        self, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> Environment:
        """Load an environment whose splits are a study's folds.

        Args:
            settings: settings of section `env`.
            plan: division of markets.
            known: environments of other settings, whose data may be reused.
        """
        return self.load(settings)

    @abstractmethod
    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        """Run the checks of a kernel; raise if it is not a kernel."""

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        """Return an object with Gymnasium's interface whose `render` returns images; None for a
        kernel.
        """
        return None

    @abstractmethod
    def max_envs(self, spec: EnvSpec) -> tuple[int, str]:
        """Return the maximum automatic num_envs and its scope, such as "a game"."""

    def select_backend(self, backend: str) -> str:
        """Return the backend that steps it for a value of `training.backend`.

        Raises:
            ConfigError: it is not one of `backends`.
        """
        if backend not in self.backends:
            reason = _REASONS.get(backend, "there is no such backend")
            raise ConfigError(
                f"`{self.name}` cannot run on backend `{backend}`: {reason}. It runs on "
                f"{' or '.join(self.backends)}."
            )
        return self.backends[1] if backend == "auto" else backend


@dataclass(frozen=True)
class Environment(ABC):
    """A loaded environment; any number of sub-environments share its data.

    Attributes:
        kind: kind of environment.
        spec: its spec.
    """

    kind: EnvironmentKind
    spec: EnvSpec

    @property
    def name(self) -> str:
        """Name that it was loaded by."""
        return self.kind.name

    def part(self, kind: type[PartT]) -> PartT | None:
        """Return its part of a kind; None if it does not offer one."""
        return kind.from_environment(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices for the user."""
        return ()

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Metadata about its data as plain values."""
        return {}

    @property
    def metadata(self) -> dict[str, Any]:
        """Everything besides the config that determines results; `sources` are file hashes."""
        return {"name": self.name}

    @property
    def training_context(self) -> dict[str, Any]:
        """Plain values stored with a policy trained here; see `TrainingContext`."""
        return {"environment": self.kind.short_name}

    def with_stepping(self, stepping: SteppingConfig) -> Environment:
        """Return a copy with the stepping config of a run."""
        return self

    def check(
        self, settings: Mapping[str, Any], log: Callable[[str], None] = lambda sentence: None
    ) -> bool | None:
        """Run the checks of user code, unless it has passed them before.

        Args:
            settings: settings of section `env`.
            log: called with a message when it passes.

        Returns:
            True if the checks ran now; None if there is nothing to check.

        Raises:
            KernelError: the first broken rule, with file, line and fix.
        """
        return None

    @abstractmethod
    def make_envs(
        self,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        backend: str = "auto",
        *,
        stagger: bool = True,
    ) -> VectorEnv:
        """Create training environments with the given member seeds and indices, each uint64 [E].

        Args:
            seeds, indices: seed and index of each environment.
            backend: one of `backends`.
            stagger: shorten first episodes at random, so that environments do not end together.
        """

    @abstractmethod
    def make_eval_envs(
        self,
        split: str,
        num_envs: int,
        members: int = 1,
        backend: str = "auto",
        max_steps: int = MAX_EVAL_STEPS,
    ) -> VectorEnv:
        """Create environments that hold at the end of an episode; see `run_episodes`.

        A member may get fewer than `num_envs`, which changes only speed. A game without a time
        limit is truncated after `max_steps` steps, a market's backtest never.
        """

    def records(self, split: str) -> tuple[Any, ...]:
        """Return the Params records of a split; empty if there are no records.

        An environment that is not a market returns its "train" records for splits that it lacks,
        see `splits`.

        Raises:
            ConfigError: a market has no such split.
        """
        return ()

    def splits(self) -> tuple[str, ...]:
        """Names of the splits that can be evaluated.

        Splits of a market are time ranges. Other environments (a game, CartPole) mostly declare
        only "train", whose records serve for every split. There the split selects the seed of the
        episodes: "train" those that select the best policy, "test" new ones.
        """
        return ("train",)


def for_gymnasium(env_id: str, agent_name: str) -> Sections:
    """Return defaults of sections `agent` and `training`, with presets for some ids."""
    default = _gymnasium()["default"].get(agent_name, {})
    preset = gymnasium_preset(env_id, agent_name) or {}
    return {
        section: {**default.get(section, {}), **preset.get(section, {})}
        for section in ("agent", "training")
    }


def gymnasium_preset(env_id: str, agent_name: str) -> Sections | None:
    """Return the preset of an id; None if there is none."""
    presets: Mapping[str, Mapping[str, Sections]] = _gymnasium()["ids"]
    presets_by_agent = presets.get(
        env_id.rpartition(":")[2], {}
    )  # `module:ID` imports the module first
    return presets_by_agent.get(agent_name)


@cache
def _gymnasium() -> dict[str, Any]:
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml_file.parse(text, _FILE)
    return values
