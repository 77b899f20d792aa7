"""Calls and files of IntradayJules, on our trainer: `TrainerAgent`, `TrainerCore`, `EnvBuilder`.

docs/guides/older-systems.md says what each call and key becomes, and what of theirs is done
otherwise. Names
are looked up when they are used: `config.py` is read for every config that somebody trains.
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
