"""The user's source files that nodes of a cluster need: of an environment and of an agent."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import gymnasium

from slipstream.core.discover import USER_MODULE, import_file, load_kernel
from slipstream.core.errors import ConfigError
from slipstream.core.sources import is_own, source_files
from slipstream.environments.factory import kind_of
from slipstream.environments.gymnasium_environment import GYMNASIUM
from slipstream.environments.vector_environment import VectorEnvironment


def lay_out(name: str, folder: Path, agent: str | None = None) -> Path | None:
    """Copies the user's source files of an environment and an agent for nodes.

    Returns:
        The folder; None where nothing is the user's.

    Raises:
        ConfigError: they cannot be laid out, or two of them not side by side.
    """
    modules = modules_of(name, agent)
    for module in modules:
        for known, path in source_files(module).items():
            if known == module.__name__ and known.startswith(USER_MODULE):  # named by its path
                _copy(path, folder)
            elif is_own(path):
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


def modules_of(name: str, agent: str | None = None) -> list[ModuleType]:
    """The user's modules of an environment and an agent."""
    found = [_module_of(name)]
    if agent is not None and agent.endswith(".py"):
        found.append(import_file(Path(agent), "agent"))
    return [one for one in found if one is not None]


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
    if kind_of(name).compiled:
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


def kernel_file(name: str) -> str | None:
    """What a user's kernel is called among the files that are laid out; None: it is none."""
    own = name.endswith(".py") and kind_of(name).compiled
    return Path(name).name if own else None
