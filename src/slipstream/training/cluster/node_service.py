"""Requirements for nodes that work for a run or study, and the base class of their services.

The owner sends a `NodeCompatibility`: slipstream, arrays and user files must be identical.
`stage_files` copies user files for nodes.
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

_DECIDING = ("slipstream", "torch", "numba", "numpy", "TA-Lib", "gymnasium")  # determine results
Arrays = Sequence[NDArray[Any]]


@dataclass(frozen=True)
class NodeCompatibility:
    """Versions, files and data of an owner, compared by nodes.

    Attributes:
        env, settings: name and settings of the environment.
        file, agent: names of a user's kernel and agent among the staged files; None for others.
        sources: hashes of these files and their imports, by module.
        digest: digest of the environment's arrays.
        versions: versions of the libraries that determine results.
        code: sha256 of slipstream's own files.
        host, processor, instructions: machine of the owner.
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
        """Create it for this process.

        Args:
            environment: loaded environment of the config.
            config: config of the training.

        Raises:
            ConfigError: the environment's code cannot be staged.
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

    def payload(self) -> bytes:
        """Serialize for the transfer."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, payload: bytes) -> NodeCompatibility:
        """Deserialize after the transfer."""
        return cls(**json.loads(payload))

    def compare(self, arrays: Sequence[NDArray[Any]]) -> list[str]:
        """Compare with this node, whose working directory contains the staged files.

        Args:
            arrays: received arrays.

        Returns:
            Warnings about possible differences in the last bits.

        Raises:
            ConfigError: other versions or files, or an environment that cannot be created here.
            DataError: other arrays.
        """
        self._compare_versions()
        if not get_kind(self.env).compiled:
            get_kind(self.env).load(self.settings)  # raises an error about missing parts
        sources = _hashes(required_modules(self.file or self.env, self.agent))
        changed = provenance.changed_keys({"sources": self.sources}, {"sources": sources})
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} on {platform.node()} differ from those of {self.host}. "
                "Start again if they were edited meanwhile."
            )
        if arrays_digest(arrays) != self.digest:
            raise DataError(
                f"The arrays of {self.env} received by {platform.node()} are not those sent by "
                f"{self.host}: their sha256 differ."
            )
        instructions = provenance.instruction_sets()
        differing = sorted(set(instructions) ^ set(self.instructions))
        if not differing:
            return []
        return [
            f"{platform.node()} ({provenance.cpu_model()}) and {self.host} ({self.processor}) have "
            f"different instruction sets ({', '.join(differing)}): results may differ in bits."
        ]

    def _compare_versions(self) -> None:
        versions, owner_versions = _versions(), self.versions
        changed = [
            f"{name} {versions.get(name)} where {self.host} has {owner_versions.get(name)}"
            for name in sorted({*versions, *owner_versions})
            # Without torch a node trains compiled agents; others raise an error there.
            if versions.get(name) != owner_versions.get(name)
            and (name != "torch" or "torch" in versions)
        ]
        if changed:
            raise ConfigError(
                f"{platform.node()} has {', '.join(changed)}: other versions may change results. "
                "Install the same versions on all nodes."
            )
        if _code_hash() != self.code:
            raise ConfigError(
                f"The files of slipstream {versions['slipstream']} on {platform.node()} are not "
                f"those of {self.host}. Install the same files, and start again if they were "
                "edited."
            )


def work_for(
    owner: str, service: str, environment: Environment, config: RunConfig, folder: Path
) -> ClusterWork:
    """Describe the work of a cluster.

    Args:
        owner: name of the owner; unique in the cluster together with a digest of the config.
        service: see `ClusterWork`.
        environment: loaded environment of the config.
        config: config of the training.
        folder: empty folder for the user's source files.

    Raises:
        ConfigError: nodes cannot run the environment, or not on that device.
    """
    gpu = config.training.device != "cpu"
    if gpu and config.training.device != "cuda:0":
        raise ConfigError(
            f"training.device is {config.training.device}, but each worker of a cluster has its "
            "own GPU as cuda:0: give --device cuda:0."
        )
    return ClusterWork(
        owner=f"{owner} ({config.hash[:12]})",
        service=service,
        needs=NodeCompatibility.from_environment(environment, config).payload(),
        arrays=arrays_of(environment),
        files=stage_files(environment.name, folder, config.agent_name),
        gpu=gpu,
    )


def _hashes(modules: Sequence[ModuleType]) -> dict[str, str]:
    return {name: hashed for module in modules for name, hashed in source_hashes(module).items()}


def _versions() -> dict[str, Any]:
    versions = provenance.versions()
    return {name: versions[name] for name in _DECIDING if name in versions}


@functools.cache
def _code_hash() -> str:
    """Return a hash of all source files, ordered by name."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stage_files(name: str, folder: Path, agent: str | None = None) -> Path | None:
    """Copy the user's source files of an environment and an agent for nodes.

    Returns:
        The folder; None without user files.

    Raises:
        ConfigError: they cannot be staged, or two have the same name.
    """
    modules = required_modules(name, agent)
    for module in modules:
        for module_name, path in source_files(module).items():
            if module_name == module.__name__ and module_name.startswith(
                USER_MODULE_PREFIX
            ):  # given by its path
                _copy(path, folder)
            elif is_user_file(path):
                parts = module_name.split(".")
                packages = [".".join(parts[:depth]) for depth in range(1, len(parts))]
                loaded = (sys.modules.get(package) for package in packages)
                origins = [getattr(package, "__file__", None) for package in loaded]
                for depth, source in enumerate([*origins, path], 1):
                    if source is not None:
                        inner = Path(source).name == "__init__.py"
                        _copy(source, folder.joinpath(*parts[: depth if inner else depth - 1]))
    return folder if modules else None


def _copy(source: str | Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target, content = folder / Path(source).name, Path(source).read_bytes()
    if target.exists() and target.read_bytes() != content:
        raise ConfigError(
            f"{source} and another of your files are both called {target.name}, but nodes of a "
            "cluster store them in one folder. Rename one of them."
        )
    target.write_bytes(content)


def required_modules(name: str, agent: str | None = None) -> list[ModuleType]:
    """Return the user's modules of an environment and an agent."""
    modules = [get_kind(name).module]
    if agent is not None and agent.endswith(".py"):
        modules.append(import_file(Path(agent), "agent"))
    return [module for module in modules if module is not None]


def arrays_of(environment: Environment) -> tuple[Any, ...]:
    """Return arrays shared by the environment; empty for a Gymnasium environment."""
    rules = environment.part(KernelEnvironment)
    return () if rules is None else rules.data


def kernel_file(name: str) -> str | None:
    """Return the file name of a user's kernel among the staged files; None for other kernels."""
    is_user_kernel = name.endswith(".py") and get_kind(name).compiled
    return Path(name).name if is_user_kernel else None


class NodeService(ABC):
    """Base class of `ClusterWork.service`; another thread requests updates during work.

    Args:
        needs: serialized `NodeCompatibility` of the owner.
        arrays: arrays of its environment.

    Attributes:
        notes: warnings about possible differences.

    Raises:
        SlipstreamError: this node lacks something.
    """

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        self._compatibility = NodeCompatibility.read(needs)
        self.notes = self._compatibility.compare(arrays)
        file, name = self._compatibility.file, self._compatibility.env
        # Loaded immediately: Ray may delete the folder when another node of this machine ends.
        self._kernel = get_kind(file or name).kernel
        self._first = arrays
        self._data: dict[str, Arrays] = {}  # by digest, in the form used by this process
        self._leaving = threading.Event()

    @abstractmethod
    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """Process a request."""

    def updates(self) -> bytes:
        """Return an update for the owner before the answer; empty without one."""
        return b""

    def leave(self) -> None:
        """Request a stop of the current work."""
        self._leaving.set()

    def restored(self, payload: Mapping[str, Any], arrays: Sequence[Arrays]) -> Environment:
        """Restore an environment from `environment_payload` with local arrays and rules.

        Raises:
            DataError: the arrays differ from those sent.
        """
        environment: Environment = pickle.loads(payload["bare"])
        rules = environment.part(KernelEnvironment)
        if self._kernel is None or rules is None:
            return environment
        if payload["digest"] not in self._data:
            self._take(payload["digest"], payload["writable"], [self._first, *arrays])
        return rules.with_rules(self._kernel, self._data[payload["digest"]])

    def _take(self, digest: str, writable: Sequence[bool], arrays: Sequence[Arrays]) -> None:
        """Store the arrays of a digest.

        Writable arrays are copied: writability is part of the compiled types, and arrays in an
        object store are read-only.
        """
        received = next((sent for sent in arrays if arrays_digest(sent) == digest), None)
        if received is None:
            raise DataError(
                f"Arrays of {self._compatibility.env} received by {platform.node()} are not "
                f"those sent by {self._compatibility.host}."
            )
        self._data[digest] = [
            array.copy() if is_writable else array
            for array, is_writable in zip(received, writable, strict=True)
        ]


def environment_payload(environment: Environment, shared: Shared | None) -> dict[str, Any]:
    """Return a loaded environment without its arrays and rules, for the transfer.

    It is pickled: a process that may send to a node's processes may run code there anyway.

    Args:
        environment: loaded environment.
        shared: its arrays; None without arrays.
    """
    reference = {} if shared is None else {"digest": shared.digest, "writable": shared.writable}
    rules = environment.part(KernelEnvironment)
    stripped = environment if rules is None else rules.without_rules()
    return {"bare": pickle.dumps(stripped), **reference}
