"""Optional libraries, and imports from the working directory."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from slipstream.core.errors import ResourceError

# The extras of pyproject.toml, for install commands.
EXTRAS: dict[str, tuple[str, ...]] = {
    "torch": ("torch>=2.10",),
    "sb3": ("stable-baselines3>=2.4",),
    "envpool": ("envpool>=1.0",),
    "pettingzoo": ("pettingzoo>=1.25",),
    "elegantrl": ("torch>=2.10",),
    "rating": ("openskill>=6.1",),
    "onnx": ("onnx>=1.17",),
    "postgresql": ("psycopg[binary]>=3.2",),
    "live": ("ccxt>=4.5,<5",),
    "cmaes": ("cmaes>=0.12",),
    "scipy": ("scipy>=1.13",),
    "wandb": ("wandb>=0.19",),
    "ray": ("ray>=2.52,<2.61",),
}


def pip_install_command(*words: str) -> str:
    """Return the shell command that pip-installs `words` into slipstream's environment."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def install_command(extra: str) -> str:
    """Return the shell command that installs the packages of an extra."""
    return pip_install_command(*EXTRAS[extra])


def import_optional(module: str, purpose: str, extra: str) -> Any:
    """Import a module of an optional library.

    Args:
        module: module to import.
        purpose: subject of the error message: the feature that needs it.
        extra: extra that contains its package.

    Raises:
        ResourceError: it is not installed; has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ResourceError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be loaded here ({error}). "
            f"Install it: {install_command(extra)}"
        ) from error


def add_cwd_to_path() -> None:
    """Make modules of the working directory importable, after installed ones.

    The path entry is permanent: a module may register environments whose classes are imported when
    the first of them is created.
    """
    with suppress(OSError):  # the working folder was deleted
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
            importlib.invalidate_caches()
