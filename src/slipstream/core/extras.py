"""What needs a library that an installation may lack."""

from __future__ import annotations

from importlib import import_module

from slipstream.core.errors import ResourceError


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
