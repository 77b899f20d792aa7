"""Tasks of a lone member, which a crew of threads may run side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

RunTasks: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks side by side, or in turn in their order: a later one may wait for an earlier one."""


def in_sequence(tasks: Sequence[Callable[[], None]]) -> None:
    """Runs tasks one after another; a crew of threads gives the same results."""
    for task in tasks:
        task()
