"""What everything that trains, evaluates and searches knows of an environment.

An `EnvironmentKind` is what a name means before anything is loaded, and `factory.kind_of` chooses
it. It loads an `Environment`. What only some of these have is a `Part`.
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

MAX_EVAL_STEPS = 10_000  # steps of an evaluation episode that nothing else ends

PartT = TypeVar("PartT", bound="Part")


Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
_FILE = "gymnasium.yaml"  # suggestions for Gymnasium environments
_REASONS = {
    "compiled": "only kernels can be compiled",
    "process": "a kernel is compiled, and processes would only add to what a step costs",
    "cuda": "stepping on a GPU does not exist yet",
}


class SteppingConfig(NamedTuple):
    """What a run says about how copies of somebody else's rules are stepped.

    Attributes:
        workers: processes of backend `process`; None: by the cores.
        policy: what follows when one of its copies fails there.
        here: first steps are taken in this process.
    """

    workers: int | None = None
    policy: FaultPolicy = FaultPolicy()
    in_process: bool = False


class Part:
    """Something that only some environments offer: `environment.part(Kind)` returns it or None.

    Each kind is a subclass. It is a base class of the environments that offer it, or it overrides
    `of` and makes itself from what it finds there, such as optional functions of a kernel, or a
    plugin makes it; see `core/plugins.py`.
    """

    @classmethod
    def from_environment(cls, environment: Environment) -> Self | None:
        """The part of an environment; None if it does not offer it."""
        if isinstance(environment, cls):
            return environment
        found = (part(cls, environment) for part in iter_offers("part"))
        return next((one for one in found if one is not None), None)


@dataclass(frozen=True)
class EnvironmentKind(ABC):
    """What the name of an environment means, before anything is loaded.

    Attributes:
        name: a kernel's name or path, or ``gym:ID``.
        compiled: its rules are a kernel, which threads step.
        backends: how its copies can be stepped; a further one is named here and made in `copies`.
        open_section: below this key of `env`, nobody knows beforehand which keys there are.
        leaves: a copy can leave an episode before its end and begin another one.
        resumable: its copies can be saved and come back to where they stood, at every step.
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
        """Whether the name says by itself that an environment is meant."""

    @property
    def kernel(self) -> Kernel | None:
        """The rules, loaded; None if they are no kernel."""
        return None

    @property
    @abstractmethod
    def model(self) -> type[Config]:
        """Fields of the section `env`, besides the name."""

    @property
    @abstractmethod
    def short_name(self) -> str:
        """The name as part of a file's name."""

    @property
    def has_folds(self) -> bool:
        """Whether its data can be divided into folds."""
        return False

    @property
    def code(self) -> Mapping[str, str | None]:
        """What it imports by a user's words: absolute paths with None, or words with a module."""
        return {}

    @property
    @abstractmethod
    def module(self) -> ModuleType | None:
        """The user's module that defines it; None if slipstream or a library has it.

        Raises:
            ConfigError: only this process can make it.
        """

    @abstractmethod
    def resolve_settings(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A name that holds everywhere, and complete settings."""

    @abstractmethod
    def default_hyperparams(self, agent_name: str) -> Sections:
        """Suggestions for the sections `agent` and `training`, if this agent is trained."""

    def preset_note(self, agent_name: str, resolved: Sections) -> str | None:
        """A sentence about suggestions that nobody would look for; None without any in force."""
        return None

    @abstractmethod
    def load(self, settings: Mapping[str, Any]) -> Environment:
        """Load what the section `env` names, besides the name."""

    def load_folds(
        self, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> Environment:
        """Load an environment whose splits are a study's folds.

        Args:
            settings: of the section `env`.
            plan: how markets are divided.
            known: environments of other settings, whose data may serve.
        """
        return self.load(settings)

    @abstractmethod
    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        """Run a kernel under watch; refuse what is none."""

    def renderer(self, settings: Mapping[str, Any]) -> Any:
        """An object with Gymnasium's interface whose `render` returns pictures; None: a kernel."""
        return None

    @abstractmethod
    def max_envs(self, spec: EnvSpec) -> tuple[int, str]:
        """The most copies of a member if `num_envs` is left open, and of what, such as "a game"."""

    def select_backend(self, backend: str) -> str:
        """The backend that is meant.

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
    """One environment, ready to be stepped in any number of copies that share its data.

    Attributes:
        kind: what its name means.
        spec: its outside.
    """

    kind: EnvironmentKind
    spec: EnvSpec

    @property
    def name(self) -> str:
        """The name that it was loaded by."""
        return self.kind.name

    def part(self, kind: type[PartT]) -> PartT | None:
        """Its part of one kind; None if it does not offer that."""
        return kind.from_environment(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences the user must see."""
        return ()

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Facts about its data, plain values."""
        return {}

    @property
    def metadata(self) -> dict[str, Any]:
        """What decides its numbers besides the config; `sources` are hashes of files."""
        return {"name": self.name}

    @property
    def training_context(self) -> dict[str, Any]:
        """What a policy that is trained here takes along, plain values; see `TrainingContext`."""
        return {"environment": self.kind.short_name}

    def with_stepping(self, stepping: SteppingConfig) -> Environment:
        """A copy that is stepped as a run's config says."""
        return self

    def check(
        self, settings: Mapping[str, Any], say: Callable[[str], None] = lambda sentence: None
    ) -> bool | None:
        """Runs rules that a user wrote under watch, unless they have passed before.

        Args:
            settings: of the section `env`.
            say: told when they pass.

        Returns:
            Whether they were run now; None: there is nothing to check.

        Raises:
            KernelError: the first rule found broken, with file, line and remedy.
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
        """Training copies with the given member seeds and indices, each uint64 [E].

        Args:
            seeds, indices: of each copy.
            backend: one of `backends`.
            stagger: first episodes may be cut short, so that copies do not end together.
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
        """Copies that hold at the end of an episode; see `run_episodes`.

        There may be fewer of a member than `copies`, which changes nothing but speed. A game
        without a time limit of its own is cut after `longest` steps, a market's pass never.
        """

    def records(self, split: str) -> tuple[Any, ...]:
        """Params records of a split; nothing where there are no records.

        What is no market gives its records of "train" for a split that it lacks: see `splits`.

        Raises:
            ConfigError: a market has no such split.
        """
        return ()

    def splits(self) -> tuple[str, ...]:
        """Names of the data's splits, each of which can be evaluated.

        A market's are ranges of time. What is no market (a game, CartPole) mostly declares "train"
        alone, and its records serve for every split. There the names choose the seed from which
        episodes start: "train" those by which the best policy is chosen, "test" fresh ones.
        """
        return ("train",)


def for_gymnasium(env_id: str, agent_name: str) -> Sections:
    """For the sections `agent` and `training`: a default for all, presets for some ids."""
    default = _gymnasium()["default"].get(agent_name, {})
    preset = gymnasium_preset(env_id, agent_name) or {}
    return {
        section: {**default.get(section, {}), **preset.get(section, {})}
        for section in ("agent", "training")
    }


def gymnasium_preset(env_id: str, agent_name: str) -> Sections | None:
    """What replaces the default for this id; None where nothing does."""
    presets: Mapping[str, Mapping[str, Sections]] = _gymnasium()["ids"]
    found = presets.get(env_id.rpartition(":")[2], {})  # `module:ID` imports first
    return found.get(agent_name)


@cache
def _gymnasium() -> dict[str, Any]:
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml_file.parse(text, _FILE)
    return values
