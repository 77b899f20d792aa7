"""Rows declared by a suite's YAML file: two workers in turn, each in its best arrangement.

A row has `ours`, an optional `peer`, and texts: `unit`, `peer_name`, `goal`. The keys of a side:

- `worker`: the function that measures; `asked`: its arguments. `seconds` is added unless the side
  is `untimed`.
- `figure`: the field of the answer that the row shows.
- `best_of`: the arrangements to choose from. The one with the highest figure in a short `look` is
  measured. Lists by name stand for all combinations; a list of combinations names each by
  `called`.
- `limit`: threads of array libraries. The default is 1; null keeps the libraries' own choice, and
  `asked` stands for the `threads` argument.
- `python`: the interpreter of a peer that has a virtual environment of its own.
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
    """Number that texts may format with a noun: ``{threads:thread}``."""

    def __format__(self, noun: str) -> str:
        return plural(int(self), noun) if noun else str(int(self))


class Side:
    """One side of a row. Chooses its best arrangement on construction.

    Attributes:
        chosen: arrangement chosen from `best_of`.
        choices: number of arrangements.
        answer: last answer of the worker.
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
        """Make one run and return its figure."""
        return self._ask(self.chosen)

    def words(self) -> dict[str, Any]:
        """Return the values that texts may refer to."""
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
    """Measure the rows of a case that is declared by YAML alone."""
    for spec in settings.spec.get("rows", [settings.spec]):
        yield declared_row(settings, spec)


def declared_row(settings: SuiteOptions, spec: Mapping[str, Any]) -> Row:
    """Measure one row of `declared`."""
    beside = "peer" in spec and settings.against is None
    peer = Side(spec["peer"], settings.seconds) if beside else None
    ours = Side(spec["ours"], settings.seconds)
    row = settings.measure(ours, peer, spec)
    words = {"peer": ours.answer} if peer is None else {"peer": peer.answer, **peer.words()}
    return settings.told(row, spec, ours=ours.answer, **words)


def _choices(best_of: Mapping[str, Sequence[Any]] | Sequence[Any]) -> list[dict[str, Any]]:
    """Return the distinct combinations to choose from."""
    if isinstance(best_of, Mapping):
        lists = product(*best_of.values())
        best_of = [dict(zip(best_of, values, strict=True)) for values in lists]
    combinations = [_numbers(combination) for combination in best_of]
    return [
        combination
        for i, combination in enumerate(combinations)
        if combination not in combinations[:i]
    ]


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `cores` and `half` by this machine's numbers."""
    numbers = {"cores": threads(), "half": max(1, threads() // 2)}
    return {k: numbers.get(v, v) if isinstance(v, str) else v for k, v in values.items()}
