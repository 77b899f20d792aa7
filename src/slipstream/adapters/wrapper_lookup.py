"""Answer SB3's `env_is_wrapped` in the process of a sub-environment, without importing SB3."""

from __future__ import annotations

from typing import Any

import gymnasium


class WrapperLookup(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Report the wrappers of a sub-environment in its own process."""

    def is_wrapped(self, wrapper_class: type) -> bool:
        """Return true if a wrapper of this class is applied to the environment."""
        env: Any = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, wrapper_class):
                return True
            env = env.env
        return False
