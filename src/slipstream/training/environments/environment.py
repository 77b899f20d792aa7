"""What everything that trains, evaluates and searches knows of an environment.

An `EnvironmentKind` is what a name means before anything is loaded, and `factory.kind_of` chooses
it: `KernelKind`, `GymnasiumKind` or, of other libraries' vector environments, `VectorKind`; and of
the latter two those that a program made itself (`object_environment.py`). It loads an
`Environment`; what only some of these have is a `Part`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.fold_plan import FoldPlan
from slipstream.core.plugins import offered
from slipstream.core.process import FaultPolicy
from slipstream.kernels.kernel import Kernel
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import VectorEnv

LONGEST = 10_000  # steps of an evaluation episode that nothing else ends

Sections: TypeAlias = Mapping[str, Mapping[str, Any]]
PartT = TypeVar("PartT", bound="Part")

_REASONS = {
    "compiled": "only kernels can be compiled",
    "process": "a kernel is compiled, and processes would only add to what a step costs",
    "cuda": "stepping on a GPU does not exist yet",
}


class Stepping(NamedTuple):
    """What a run says about how copies of somebody else's rules are stepped.

    Attributes:
        workers: processes of backend `process`; None: by the cores.
        policy: what follows when one of its copies fails there.
        here: first steps are taken in this process.
    """

    workers: int | None = None
    policy: FaultPolicy = FaultPolicy()
    here: bool = False


class PriceWindow(NamedTuple):
    """One window of a market's prices, or of others of the same kind.

    Attributes:
        data: folder of other prices.
        symbols: which of them; those of the section `env` unless given.
        start, stop: half-open range of bars, UTC seconds.
        carried: settings measured on the training window, which belong to the policy and not to
            the chosen bars; see `carried_settings`.
        market: prices that are in memory, in place of those of any folder.
    """

    data: str | Path | None = None
    symbols: Sequence[str] | None = None
    start: int | None = None
    stop: int | None = None
    carried: Mapping[str, Any] | None = None
    market: Any = None

    @property
    def asked(self) -> dict[str, Any]:
        """Arguments of a kernel's `load_window`; empty if the section's own splits hold."""
        given = self._asdict()
        return {k: v for k, v in given.items() if v is not None and k != "carried"}


class Part:
    """Something that only some environments offer: `environment.part(Kind)` returns it or None.

    Each kind is a subclass. It is a base class of the environments that offer it, or it overrides
    `of` and makes itself from what it finds there, such as optional functions of a kernel, or a
    plugin makes it; see `core/plugins.py`.
    """

    @classmethod
    def of(cls, environment: Environment) -> Self | None:
        """The part of an environment; None if it does not offer it."""
        if isinstance(environment, cls):
            return environment
        found = (part(cls, environment) for part in offered("part"))
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
    leaves: ClassVar[bool] = True
    resumable: ClassVar[bool] = False

    @property
    @abstractmethod
    def known(self) -> bool:
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
    def divisible(self) -> bool:
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
    def section(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A name that holds everywhere, and complete settings."""

    def seated(self, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        """A complete section with somebody in a game's second seat, where it leaves that open.

        Returns:
            The section, and a sentence that says who it is; None where nothing was open.
        """
        return settings, None

    @abstractmethod
    def suggested(self, agent_name: str) -> Sections:
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

    def load_window(self, settings: Mapping[str, Any], window: PriceWindow) -> Environment:
        """Load an environment with one window of (other) prices as its only test data.

        Raises:
            ConfigError: it has no prices to choose from.
        """
        raise ConfigError(
            f"Chosen bars were asked for, but {self.short_name} has no prices to choose from; "
            "leave out --data, --symbols, --from and --to."
        )

    @abstractmethod
    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        """Run a kernel under watch; refuse what is none."""

    @abstractmethod
    def renderer(self, settings: Mapping[str, Any]) -> Any:
        """An object with Gymnasium's interface whose `render` returns pictures."""

    @abstractmethod
    def most_copies(self, spec: Spec) -> tuple[int, str]:
        """The most copies of a member if `num_envs` is left open, and of what, such as "a game"."""

    def chosen_backend(self, backend: str) -> str:
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
    spec: Spec

    @property
    def name(self) -> str:
        """The name that it was loaded by."""
        return self.kind.name

    def part(self, kind: type[PartT]) -> PartT | None:
        """Its part of one kind; None if it does not offer that."""
        return kind.of(self)

    @property
    @abstractmethod
    def varied(self) -> bool:
        """Whether copies in one batch may have different settings."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences the user must see."""
        return ()

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Facts about its data, plain values."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """What decides its numbers besides the config; `sources` are hashes of files."""
        return {"name": self.name}

    @property
    def conditions(self) -> dict[str, Any]:
        """What a policy that is trained here takes along, plain values; see `Conditions`."""
        return {"environment": self.kind.short_name}

    def prepared(self, stepping: Stepping) -> Environment:
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
    def copies(
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
    def evaluation(
        self,
        split: str,
        copies: int,
        members: int = 1,
        backend: str = "auto",
        longest: int = LONGEST,
    ) -> VectorEnv:
        """Copies that hold at the end of an episode; see `run_episodes`.

        There may be fewer of a member than `copies`, which changes nothing but speed. A game
        without a time limit of its own is cut after `longest` steps, a market's pass never.
        """

    @abstractmethod
    def joined(self, records: Sequence[tuple[Any, ...]]) -> Environment:
        """Copies of several members in one batch, each member with its own records.

        Args:
            records: [M], as `records` gives them.
        """

    def records(self, split: str) -> tuple[Any, ...]:
        """Params records of a split; nothing where there are no records.

        What is no market gives its records of "train" for a split that it lacks: see `splits`.

        Raises:
            ConfigError: a market has no such split.
        """
        return ()

    def spec_of(self, records: tuple[Any, ...]) -> Spec:
        """The spec that some records have: folds differ in scales, settings in time limits."""
        return self.spec

    def splits(self) -> tuple[str, ...]:
        """Names of the data's splits, each of which can be evaluated.

        A market's are ranges of time. What is no market (a game, CartPole) mostly declares "train"
        alone, and its records serve for every split. There the names choose the seed from which
        episodes start: "train" those by which the best policy is chosen, "test" fresh ones.
        """
        return ("train",)
