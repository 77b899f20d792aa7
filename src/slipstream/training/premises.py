"""What a node must have to work for a run or study: the same slipstream, files and arrays."""

from __future__ import annotations

import functools
import hashlib
import importlib
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from numpy.typing import NDArray

import slipstream
from slipstream.core.discover import load_kernel
from slipstream.core.errors import ConfigError, DataError
from slipstream.core.sources import is_own, source_files, source_hashes
from slipstream.training import provenance
from slipstream.training.cluster import Work
from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment
from slipstream.training.factory import kind_of
from slipstream.training.gymnasium_environment import GYMNASIUM, GymnasiumEnvironment
from slipstream.training.vector_environment import VectorEnvironment
from slipstream.training.wire import digest_of, pack, unpack

_DECIDING = ("slipstream", "torch", "numba", "numpy", "TA-Lib", "gymnasium")  # make numbers


@dataclass(frozen=True)
class Premises:
    """What an owner has.

    Attributes:
        env, settings: of its config.
        file: of a user's kernel among the files that are laid out on a node; None: it is none.
        sources: hashes of the files of a user's environment, by module; empty: it is ours.
        digest: of the environment's arrays.
        versions: of the libraries that decide numbers.
        code: sha256 of slipstream's own files.
        host, processor, instructions: of the owner.
    """

    env: str
    settings: Mapping[str, Any]
    file: str | None
    sources: Mapping[str, str]
    digest: str
    versions: Mapping[str, Any]
    code: str
    host: str
    processor: str
    instructions: Sequence[str]

    @classmethod
    def of(cls, environment: Environment, settings: Mapping[str, Any]) -> Premises:
        """This process's.

        Args:
            environment: loaded.
            settings: of the section `env`.

        Raises:
            ConfigError: it is made by code that cannot be laid out elsewhere.
        """
        module = _module_of(environment.name)
        return cls(
            env=environment.name,
            settings=settings,
            file=_kernel_file(environment.name),
            sources={} if module is None else source_hashes(module),
            digest=digest_of(environment.data or ()),
            versions=_versions(),
            code=_code_hash(),
            host=platform.node(),
            processor=provenance.processor(),
            instructions=provenance.instruction_sets(),
        )

    def parcel(self) -> bytes:
        """As it is sent."""
        return pack(asdict(self))

    @classmethod
    def read(cls, parcel: bytes) -> Premises:
        """As it was sent."""
        return cls(**unpack(parcel))

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
        if kind_of(self.env) is GymnasiumEnvironment:
            kind_of(self.env).load(self.env, self.settings)  # says what is missing
        module = _module_of(self.file or self.env)
        own = {} if module is None else source_hashes(module)
        changed = provenance.changed_facts({"sources": self.sources}, {"sources": own})
        if changed:
            raise ConfigError(
                f"{', '.join(changed)} on {platform.node()} differ from those of {self.host}: "
                "start again if they were edited meanwhile."
            )
        if digest_of(arrays) != self.digest:
            raise DataError(
                f"The arrays of {self.env} that came to {platform.node()} are not those that "
                f"{self.host} sent: their sha256 differ."
            )
        mine = provenance.instruction_sets()
        differing = sorted(set(mine) ^ set(self.instructions))
        if not differing:
            return []
        return [
            f"{platform.node()} ({provenance.processor()}) and {self.host} ({self.processor}) have "
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
) -> Work:
    """What a cluster is asked for.

    Args:
        owner: who asks; with a digest of the config nobody else may under that name.
        service: see `Work`.
        environment: of the config, loaded.
        config: what is trained.
        folder: empty; for the user's source files.

    Raises:
        ConfigError: nodes cannot run the environment or the agent, or not on that device.
    """
    if config.agent_name.endswith(".py"):
        raise ConfigError(
            f"The agent {config.agent_name} is a file of yours, which nodes of a cluster do not "
            "have: an environment's file is laid out there, an agent's is not. Leave --cluster out."
        )
    gpu = config.training.device != "cpu"
    if gpu and config.training.device != "cuda:0":
        raise ConfigError(
            f"training.device is {config.training.device}: each worker of a cluster sees its own "
            "card as cuda:0, write that (--device cuda:0)."
        )
    return Work(
        owner=f"{owner} ({config.hash[:12]})",
        service=service,
        needs=Premises.of(environment, config.env_settings).parcel(),
        arrays=environment.data or (),
        files=lay_out(environment.name, folder),
        gpu=gpu,
    )


def lay_out(name: str, folder: Path) -> Path | None:
    """Copies the user's source files of an environment for nodes; None where there are none."""
    module = _module_of(name)
    if module is None:
        return None
    for known, path in source_files(module).items():
        if known == module.__name__ and _kernel_file(name):
            shutil.copyfile(path, folder / path.name)
        elif is_own(path):
            parts = known.split(".")
            packages = [".".join(parts[:depth]) for depth in range(1, len(parts))]
            origins = [getattr(sys.modules.get(one), "__file__", None) for one in packages]
            for depth, source in enumerate([*origins, path], 1):
                if source is not None:
                    inner = Path(source).name == "__init__.py"
                    below = folder.joinpath(*parts[: depth if inner else depth - 1])
                    below.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, below / Path(source).name)
    return folder


def _module_of(name: str) -> ModuleType | None:
    """The user's module that defines an environment; None: slipstream or a library has it.

    Raises:
        ConfigError: only this process can make it.
    """
    if kind_of(name) is VectorEnvironment:
        raise ConfigError(
            f"{name} makes its copies on this machine, all at once; nodes of a cluster make their "
            "own. Leave --cluster out, or register the environment and name it gym:my_module:ID."
        )
    if kind_of(name) is not GymnasiumEnvironment:
        kernel = load_kernel(name)
        return None if kernel.built_in else kernel.module
    named, _, identifier = name.partition(":")[2].rpartition(":")
    entry = None if named else gymnasium.spec(identifier).entry_point
    made_here = callable(entry) or str(entry).startswith("__main__:")
    module = None if made_here else importlib.import_module(named or str(entry).partition(":")[0])
    own = module is not None and module.__file__ is not None and is_own(Path(module.__file__))
    if made_here or (own and not named):
        raise ConfigError(
            f"{name} is registered by code of this process, which nodes do not run. Put it into a "
            f"module that registers it when it is imported, and name that: {GYMNASIUM}my_module:"
            f"{identifier}."
        )
    return module if own else None


def _kernel_file(name: str) -> str | None:
    own = name.endswith(".py") and kind_of(name) is not GymnasiumEnvironment
    return Path(name).name if own else None


def _versions() -> dict[str, Any]:
    found = provenance.versions()
    return {name: found[name] for name in _DECIDING if name in found}


@functools.cache
def _code_hash() -> str:
    """Of all source files, in the order of their names."""
    root = Path(slipstream.__file__).parent
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root).as_posix()}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()
