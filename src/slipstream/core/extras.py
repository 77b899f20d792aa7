"""What needs a library that an installation may lack."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from slipstream.core.errors import ResourceError


def require(module: str, purpose: str, extra: str) -> Any:
    """A module of an optional library.

    Args:
        module: what is imported.
        purpose: beginning of a sentence, what is done with it.
        extra: slipstream's extra that installs it.

    Raises:
        ResourceError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ResourceError(
            f"{purpose} made with {name}, which cannot be loaded here ({error}). Install it: pip "
            f'install "slipstream[{extra}]" (in a checkout of slipstream: pip install {name}).'
        ) from error


def require_torch(purpose: str) -> None:
    """Refuses in a paragraph where PyTorch is not installed.

    Args:
        purpose: beginning of a sentence, what is done in PyTorch here.
    """
    try:
        import_module("torch")
    except ImportError as error:
        raise ResourceError(
            f"{purpose} in PyTorch, which cannot be loaded here ({error}). Install it: pip install "
            '"slipstream[torch]" (in a checkout of slipstream: pip install torch).'
        ) from error
