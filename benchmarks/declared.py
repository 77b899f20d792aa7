"""Rows that a suite's YAML file declares: two workers in turn, each in its best arrangement.

A row is `ours`, perhaps a `peer`, and words: `unit`, `peer_name`, `goal`. A side names its `worker`
and what is `asked` of it; `seconds` are added unless it is `untimed`. Its `figure` is what the row
shows of its answer. `best_of` has choices, of which the one with the highest figure in a short
`look` is measured: lists by name, of which every combination is tried, or a list of combinations,
each `called` what words call it. `limit` is of array libraries' threads: 1 unless given, null for
their own choice, `asked` for as many threads as are asked for. `python` is the interpreter of a
peer that has an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.machine import threads
from benchmarks.row import Row
from benchmarks.suite import SuiteOptions
from benchmarks.worker import run_worker
from slipstream.core.text import plural


class _Count(int):
    """A number that words may follow by a noun: ``{threads:thread}``."""

    def __format__(self, noun: str) -> str:
        return plural(int(self), noun) if noun else str(int(self))


class Side:
    """One side of a row; it looks for its best arrangement when it is made.

    Attributes:
        chosen: of `best_of`; choices: how many there were.
        answer: the last one.
    """

    def __init__(self, spec: Mapping[str, Any], seconds: float) -> None:
        self.spec, self.seconds = spec, seconds
        self.answer: dict[str, Any] = {}
        choices = _choices(spec.get("best_of", {}))
        look = {"seconds": 0.5 * seconds, **spec.get("look", {})}
        self.chosen, self.choices = choices[0], len(choices)
        if len(choices) > 1:
            self.chosen = max(choices, key=lambda choice: self._ask({**choice, **look}))

    def __call__(self) -> float:
        """Makes one run and returns its figure."""
        return self._ask(self.chosen)

    def words(self) -> dict[str, Any]:
        """What words may refer to."""
        words = {**self.chosen, "choices": self.choices}
        return {k: _Count(v) if type(v) is int else v for k, v in words.items()}

    def _ask(self, choice: Mapping[str, Any]) -> float:
        asked = {"seconds": self.seconds, **_numbers(self.spec.get("asked", {})), **choice}
        for name in ("called", *(["seconds"] if self.spec.get("untimed") else [])):
            asked.pop(name, None)
        limit = self.spec.get("limit", 1)
        limit = asked["threads"] if limit == "asked" else limit
        where = {name: self.spec[name] for name in ("timeout", "python") if name in self.spec}
        self.answer = run_worker(self.spec["worker"], asked, threads=limit, **where)
        return float(self.answer[self.spec.get("figure", "steps_per_second")])


def declared(settings: SuiteOptions) -> Iterable[Row]:
    """The rows of a case that its suite's YAML file says all about."""
    for spec in settings.spec.get("rows", [settings.spec]):
        yield declared_row(settings, spec)


def declared_row(settings: SuiteOptions, spec: Mapping[str, Any]) -> Row:
    """One row of `declared`."""
    beside = "peer" in spec and settings.against is None
    peer = Side(spec["peer"], settings.seconds) if beside else None
    ours = Side(spec["ours"], settings.seconds)
    row = settings.measure(ours, peer, spec)
    words = {"peer": ours.answer} if peer is None else {"peer": peer.answer, **peer.words()}
    return settings.told(row, spec, ours=ours.answer, **words)


def _choices(best_of: Mapping[str, Sequence[Any]] | Sequence[Any]) -> list[dict[str, Any]]:
    """Combinations to choose from, each once."""
    if isinstance(best_of, Mapping):
        lists = product(*best_of.values())
        best_of = [dict(zip(best_of, values, strict=True)) for values in lists]
    found = [_numbers(one) for one in best_of]
    return [one for i, one in enumerate(found) if one not in found[:i]]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """`cores` and `half` as this machine's numbers."""
    numbers = {"cores": threads(), "half": max(1, threads() // 2)}
    return {k: numbers.get(v, v) if isinstance(v, str) else v for k, v in values.items()}
