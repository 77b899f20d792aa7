"""Remedies: keys of the `data` section that mend a finding, printed so that they can be pasted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from slipstream.core.errors import DataError

Remedy = Mapping[str, Any]

# What both YAML 1.1 and 1.2 read as text: no digits in front, no colons, no lone keyword.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./+=-]*")
_KEYWORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class RemedyError(DataError):
    """An error that the `data` section can mend.

    Attributes:
        kind: name of the finding.
        remedies: alternatives; empty where only the user can know.
    """

    def __init__(self, kind: str, message: str, *remedies: Remedy) -> None:
        super().__init__(message)
        self.kind, self.remedies = kind, remedies


def pasted(remedy: Remedy) -> str:
    """A remedy as YAML in backticks, one pair for each key."""
    return " and ".join(f"`{key}: {_flow(value)}`" for key, value in remedy.items())


def advice(ways: Sequence[Remedy]) -> str:
    """Alternatives in a sentence; the last one may be to accept what was found."""
    accepting = [way for way in ways if "accept" in way]
    mending = " or ".join(pasted(way) for way in ways if "accept" not in way)
    if not accepting:
        return f"Set {mending} in the `data` section."
    last = f"{pasted(accepting[0])} if the files are right"
    return f"Set {mending}{mending and ', or '}{last}, in the `data` section."


def merged(remedies: Iterable[Remedy]) -> dict[str, Any] | None:
    """All of them at once, `symbols` those that all name; None where two contradict each other."""
    result: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.items():
            before = result.get(key, value)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                if any(before.get(name, one) != one for name, one in value.items()):
                    return None
                result[key] = {**before, **value}
            elif key == "symbols":
                result[key] = [name for name in before if name in value]
            elif before != value:
                return None
            else:
                result[key] = value
    return None if result.get("symbols") == [] else result


def revokes(remedy: Remedy, way: Remedy) -> bool:
    """Whether a remedy gives a key that `way` sets another value; fewer symbols are none."""
    for key in remedy.keys() & way.keys() - {"symbols", "files"}:
        new, old = remedy[key], way[key]
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            return True
        if any(old.get(name, one) != one for name, one in new.items()):
            return True
    return False


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(one) for one in value) + "]"
    if isinstance(value, (bool, int)):
        return str(value).lower()
    if isinstance(value, float):
        return np.format_float_positional(value, trim="-")
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _KEYWORDS:
        return text
    if text.isprintable() and "'" not in text and text:
        return f"'{text}'"
    return json.dumps(text)
