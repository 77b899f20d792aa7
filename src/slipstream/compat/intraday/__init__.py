"""Calls and config files of IntradayJules: `TrainerAgent`, `TrainerCore`, `EnvBuilder`.

docs/guides/older-systems.md lists the counterpart of each call and key, and the differences. The
names are imported lazily, because `config.py` is imported for every training config.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipstream.compat.intraday.trainer_agent import EnvBuilder, TrainerAgent, TrainerCore

__all__ = ["EnvBuilder", "TrainerAgent", "TrainerCore"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.trainer_agent"), name)
