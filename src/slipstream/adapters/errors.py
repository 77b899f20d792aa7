"""What a face refuses: slipstream's paragraphs, as the exceptions that other libraries expect."""

from __future__ import annotations

from typing import Any

import gymnasium

from slipstream.core.errors import ConfigError, KernelError


class ActionError(ConfigError, ValueError):
    """Actions of a wrong number, shape or dtype, or that are not in the action space."""


class NoActionsError(ConfigError, TypeError):
    """One number where a batch of actions belongs."""


class UnreadyError(ConfigError, gymnasium.error.ResetNeeded):
    """A step of a copy that has not begun an episode."""


class SpaceError(ConfigError, RuntimeError):
    """Copies whose spaces differ."""


class ClosedError(ConfigError, gymnasium.error.ClosedEnvironmentError):
    """Anything asked of a face that was closed."""


class Theirs:
    """What a copy raised comes out as it was raised, with slipstream's account as a note."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KernelError) and isinstance(error.__cause__, Exception):
            theirs = error.__cause__
            theirs.add_note(str(error))
            raise theirs from None
