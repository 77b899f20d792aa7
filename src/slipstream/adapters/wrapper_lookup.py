"""What a copy's own process says of its wrappers; SB3, which asks, is not imported there."""

from __future__ import annotations

from typing import Any

import gymnasium


class WrapperLookup(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in the copy's own process which wrappers it has."""

    def is_wrapped(self, wrapper_class: type) -> bool:
        """Whether a wrapper of this class lies around the environment."""
        env: Any = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, wrapper_class):
                return True
            env = env.env
        return False
