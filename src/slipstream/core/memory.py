"""Asking for memory before it is needed."""

from __future__ import annotations

from typing import Any


def prefetch(table: Any, row: int, column: int) -> None:
    """Asks for the cache line of ``table[row, column]``; compiled code does not wait for it.

    Interpreted it does nothing. The place need not exist.
    """


def prefetch_record(records: Any, row: int, byte: int) -> None:
    """Asks for the cache line of a byte of ``records[row]``, an array of one axis, likewise."""
