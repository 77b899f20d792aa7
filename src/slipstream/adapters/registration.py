"""Register slipstream's environments with Gymnasium when this module is imported.

Gymnasium imports it for ids such as ``"slipstream.adapters.registration:slipstream/cartpole-v0"``.
"""

from __future__ import annotations

import gymnasium

from slipstream.kernels.kernel_registry import list_kernels


def register() -> None:
    """Register every built-in environment as ``slipstream/NAME-v0``. Safe to call again."""
    for name in list_kernels():
        if f"slipstream/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"slipstream/{name}-v0",
                entry_point="slipstream.adapters.gymnasium_env:EnvAdapter",
                vector_entry_point="slipstream.adapters.gymnasium_vector:make_vec",
                kwargs={"target": name},
            )


register()
