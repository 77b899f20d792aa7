"""Where members of a study find their environments: data are read once, records made as needed."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from slipstream.environments.environment import Environment
from slipstream.environments.factory import kind_of, trainable
from slipstream.market.folds import FoldPlan
from slipstream.settings.config import RunConfig

Key = TypeVar("Key")
Value = TypeVar("Value")
_KEPT = 64  # environments whose records, and configs whose environments, are remembered


class Recent(Generic[Key, Value]):
    """Values made on demand, of which the last `size` that were asked for are kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made by `make` where it is not kept."""
        if key not in self._values:
            self._values[key] = make()
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


class EnvironmentSource:
    """Environments of a study's configs. Workers that are forked share what was loaded before.

    Args:
        plan: how markets are divided into folds.
        fold_seeds: folds of an environment without prices, which differ in their seeds only.
    """

    def __init__(self, plan: FoldPlan, fold_seeds: int) -> None:
        self._plan, self.fold_seeds = plan, fold_seeds
        self._read: list[Environment] = []  # one for each distinct set of arrays
        self._environments: Recent[str, Environment] = Recent(_KEPT)
        # A trial's members share a config; what is kept here keeps it, and so its id.
        self._of: Recent[int, tuple[RunConfig, Environment]] = Recent(_KEPT)

    def environment(self, config: RunConfig) -> Environment:
        """The environment of a config, with the splits of all folds.

        Raises:
            ConfigError: a market without folds.
            DataError: data that cannot be read or divided.
        """
        return self._of.get(id(config), lambda: (config, self._found(config)))[1]

    def _found(self, config: RunConfig) -> Environment:
        key = json.dumps([config.env_name, dict(config.env_settings)], sort_keys=True)
        return self._environments.get(key, lambda: self._make(config))

    def folds(self, config: RunConfig) -> int:
        """How many folds a trial has."""
        return self.environment(config).folds or self.fold_seeds

    @property
    def generation(self) -> int:
        """Grows with every distinct set of arrays: what was forked before lacks the last ones."""
        return len(self._read)

    def data_number(self, environment: Environment) -> int:
        """Number of the arrays that an environment reads; equal numbers, equal arrays."""
        if environment.data is None:
            return -1
        return next(k for k, known in enumerate(self._read) if _same(known, environment))

    def _make(self, config: RunConfig) -> Environment:
        """With arrays that are there already, where the same ones are."""
        name, settings = config.env_name, config.env_settings
        found = trainable(kind_of(name).load_folds(name, settings, self._plan, self._read))
        found = found.tried(config.training)
        if found.data is None:
            return found
        for known in self._read:
            if _same(known, found):
                return found.with_data(known.data)
        self._read.append(found)
        return found


def _same(one: Environment, other: Environment) -> bool:
    mine, theirs = one.data or (), other.data or ()
    return len(mine) == len(theirs) and all(
        a is b
        or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b)))
        for a, b in zip(mine, theirs, strict=True)
    )


def _bytes(array: Any) -> Any:
    """As numbers that compare equal where bits do: NaN is a value like any other here."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
