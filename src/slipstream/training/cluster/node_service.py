"""What a node must have to work for a run or study, and the services that work there.

The owner sends its `Premises`: slipstream, arrays and user's files must be the same. The files
travel: `lay_out` copies them for nodes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import platform
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.storage import provenance
from slipstream.kernels.kernel_registry import USER_MODULE_PREFIX, import_file
from slipstream.kernels.source_files import is_user_file, source_files, source_hashes
from slipstream.training.cluster.cluster import ClusterWork, Shared, arrays_digest
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import get_kind
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.settings.config import RunConfig

_DECIDING = ("slipstream", "torch", "numba", "numpy", "TA-Lib", "gymnasium")  # make numbers
Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class NodeCompatibility:
    """What an owner has.

    Attributes:
        env, settings: of its config.
        file, agent: names of a user's kernel and agent among the files that are laid out on a node;
            None: it is none of theirs.
        sources: hashes of these files and of what they import, by module.
        digest: of the environment's arrays.
        versions: of the libraries that decide numbers.
        code: sha256 of slipstream's own files.
        host, processor, instructions: of the owner.
    """

    env: str
    settings: Mapping[str, Any]
    file: str | None
    agent: str | None
    sources: Mapping[str, str]
    digest: str
    versions: Mapping[str, Any]
    code: str
    host: str
    processor: str
    instructions: Sequence[str]

    @classmethod
    def from_environment(cls, environment: Environment, config: RunConfig) -> NodeCompatibility:
        """This process's.

        Args:
            environment: of the config, loaded.
            config: what is trained.

        Raises:
            ConfigError: it is made by code that cannot be laid out elsewhere.
        """
        agent = config.agent_name if config.agent_name.endswith(".py") else None
        return cls(
            env=environment.name,
            settings=config.env_settings,
            file=kernel_file(environment.name),
            agent=None if agent is None else Path(agent).name,
            sources=_hashes(required_modules(environment.name, agent)),
            digest=arrays_digest(arrays_of(environment)),
            versions=_versions(),
            code=_code_hash(),
            host=platform.node(),
            processor=provenance.cpu_model(),
            instructions=provenance.instruction_sets(),
        )

    def parcel(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, parcel: bytes) -> NodeCompatibility:
        """As it was sent."""
        return cls(**json.loads(parcel))

    def compare(self, arrays: Sequence[NDArray[Any]]) -> list[str]:
        """Compares them with this node's, where the user's files are in the working directory.

        Args:
            arrays: as they came here.

        Returns:
            Sentences about what may change the last bits.

        Raises:
            ConfigError: other versions or files, or an environment that cannot be made here.
            DataError: other arrays.
        """
        self._compare_versions()
        if not get_kind(self.env).compiled:
            get_kind(self.env).load(self.settings)  # says what is missing
        own = _hashes(required_modules(self.file or self.env, self.agent))
        changed = provenance.changed_keys({"sources": self.sources}, {"sources": own})
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} on {platform.node()} differ from those of {self.host}: "
                "start again if they were edited meanwhile."
            )
        if arrays_digest(arrays) != self.digest:
            raise DataError(
                f"The arrays of {self.env} that came to {platform.node()} are not those that "
                f"{self.host} sent: their sha256 differ."
            )
        mine = provenance.instruction_sets()
        differing = sorted(set(mine) ^ set(self.instructions))
        if not differing:
            return []
        return [
            f"{platform.node()} ({provenance.cpu_model()}) and {self.host} ({self.processor}) have "
            f"other instruction sets ({', '.join(differing)}): last bits may depend on who trained."
        ]

    def _compare_versions(self) -> None:
        mine, theirs = _versions(), self.versions
        changed = [
            f"{name} {mine.get(name)} where {self.host} has {theirs.get(name)}"
            for name in sorted({*mine, *theirs})
            # Without torch a node trains what needs none; it refuses the rest by itself.
            if mine.get(name) != theirs.get(name) and (name != "torch" or {*mine} >= {"torch"})
        ]
        if changed:
            raise ConfigError(
                f"{platform.node()} has {', '.join(changed)}: other versions may give other bits. "
                "Install the same ones on all nodes."
            )
        if _code_hash() != self.code:
            raise ConfigError(
                f"The files of slipstream {mine['slipstream']} on {platform.node()} are not those "
                f"of {self.host}: install the same ones, and start again if they were edited."
            )


def work_for(
    owner: str, service: str, environment: Environment, config: RunConfig, folder: Path
) -> ClusterWork:
    """What a cluster is asked for.

    Args:
        owner: who asks; with a digest of the config nobody else may under that name.
        service: see `ClusterWork`.
        environment: of the config, loaded.
        config: what is trained.
        folder: empty; for the user's source files.

    Raises:
        ConfigError: nodes cannot run the environment, or not on that device.
    """
    gpu = config.training.device != "cpu"
    if gpu and config.training.device != "cuda:0":
        raise ConfigError(
            f"training.device is {config.training.device}: each worker of a cluster sees its own "
            "card as cuda:0: give --device cuda:0."
        )
    return ClusterWork(
        owner=f"{owner} ({config.hash[:12]})",
        service=service,
        needs=NodeCompatibility.from_environment(environment, config).parcel(),
        arrays=arrays_of(environment),
        files=stage_files(environment.name, folder, config.agent_name),
        gpu=gpu,
    )


def _hashes(modules: Sequence[ModuleType]) -> dict[str, str]:
    return {name: hashed for one in modules for name, hashed in source_hashes(one).items()}


def _versions() -> dict[str, Any]:
    found = provenance.versions()
    return {name: found[name] for name in _DECIDING if name in found}


@functools.cache
def _code_hash() -> str:
    """Hash of all source files, in the order of their names."""
    root = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def stage_files(name: str, folder: Path, agent: str | None = None) -> Path | None:
    """Copies the user's source files of an environment and an agent for nodes.

    Returns:
        The folder; None where nothing is the user's.

    Raises:
        ConfigError: they cannot be laid out, or two of them not side by side.
    """
    modules = required_modules(name, agent)
    for module in modules:
        for known, path in source_files(module).items():
            if known == module.__name__ and known.startswith(
                USER_MODULE_PREFIX
            ):  # named by its path
                _copy(path, folder)
            elif is_user_file(path):
                parts = known.split(".")
                packages = [".".join(parts[:depth]) for depth in range(1, len(parts))]
                origins = [getattr(sys.modules.get(one), "__file__", None) for one in packages]
                for depth, source in enumerate([*origins, path], 1):
                    if source is not None:
                        inner = Path(source).name == "__init__.py"
                        _copy(source, folder.joinpath(*parts[: depth if inner else depth - 1]))
    return folder if modules else None


def _copy(source: str | Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place, content = folder / Path(source).name, Path(source).read_bytes()
    if place.exists() and place.read_bytes() != content:
        raise ConfigError(
            f"{source} and another of your files are both called {place.name}, and on the nodes of "
            "a cluster they lie side by side: rename one of them."
        )
    place.write_bytes(content)


def required_modules(name: str, agent: str | None = None) -> list[ModuleType]:
    """The user's modules of an environment and an agent."""
    found = [get_kind(name).module]
    if agent is not None and agent.endswith(".py"):
        found.append(import_file(Path(agent), "agent"))
    return [one for one in found if one is not None]


def arrays_of(environment: Environment) -> tuple[Any, ...]:
    """Arrays that an environment's copies share; none of a Gymnasium environment."""
    rules = environment.part(KernelEnvironment)
    return () if rules is None else rules.data


def kernel_file(name: str) -> str | None:
    """What a user's kernel is called among the files that are laid out; None: it is none."""
    own = name.endswith(".py") and get_kind(name).compiled
    return Path(name).name if own else None


class NodeService(ABC):
    """What `ClusterWork.service` makes for an actor; another thread asks for news meanwhile.

    Args:
        needs: `Premises` of the owner.
        arrays: of its environment.

    Attributes:
        notes: sentences about what may differ here.

    Raises:
        SlipstreamError: this node lacks something.
    """

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        self._premises = NodeCompatibility.read(needs)
        self.notes = self._premises.compare(arrays)
        file, name = self._premises.file, self._premises.env
        # Loaded here and now: Ray may take the folder away when another node of this machine goes.
        self._kernel = get_kind(file or name).kernel
        self._first = arrays
        self._data: dict[str, Arrays] = {}  # by their digests, as this process uses them
        self._leaving = threading.Event()

    @abstractmethod
    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """Does what is asked."""

    def news(self) -> bytes:
        """What the owner should have before the answer comes; empty where there is nothing."""
        return b""

    def leave(self) -> None:
        """The owner waits for the answer under way."""
        self._leaving.set()

    def restored(self, sent: Mapping[str, Any], arrays: Sequence[Arrays]) -> Environment:
        """The environment of `environment_payload`, with the arrays and rules that are here.

        Raises:
            DataError: the arrays are not those that were sent.
        """
        bare: Environment = pickle.loads(sent["bare"])
        rules = bare.part(KernelEnvironment)
        if self._kernel is None or rules is None:
            return bare
        if sent["digest"] not in self._data:
            self._take(sent["digest"], sent["writable"], [self._first, *arrays])
        return rules.with_rules(self._kernel, self._data[sent["digest"]])

    def _take(self, digest: str, writable: Sequence[bool], arrays: Sequence[Arrays]) -> None:
        """Takes up the arrays of that digest.

        Those that might be written are copied, because types decide what is compiled, and what
        lies in an object store may not be.
        """
        found = next((one for one in arrays if arrays_digest(one) == digest), None)
        if found is None:
            raise DataError(
                f"Arrays of {self._premises.env} that came to {platform.node()} are not those that "
                f"{self._premises.host} sent."
            )
        self._data[digest] = [
            array.copy() if own else array for array, own in zip(found, writable, strict=True)
        ]


def environment_payload(environment: Environment, shared: Shared | None) -> dict[str, Any]:
    """A loaded environment without its arrays and rules, for a parcel.

    It is pickled: whoever may send to a node's processes may run code there anyway.

    Args:
        environment: loaded.
        shared: its arrays; None where it has none.
    """
    facts = {} if shared is None else {"digest": shared.digest, "writable": shared.writable}
    rules = environment.part(KernelEnvironment)
    bare = environment if rules is None else rules.without_rules()
    return {"bare": pickle.dumps(bare), **facts}
