"""Where members of a study find their environments: data are read once, records made as needed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from slipstream.core.discover import load_kernel
from slipstream.core.errors import ConfigError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.market.folds import FoldPlan
from slipstream.studies.engine.recent import Recent
from slipstream.training.config import RunConfig
from slipstream.training.environment import GYMNASIUM, Environment, resolve_environment

_KEPT = 64  # environments whose records are remembered; they are quickly made again


class EnvironmentSource:
    """Environments of a study's configs. Workers that are forked share what was loaded before.

    Args:
        plan: how markets are divided into folds.
        fold_seeds: folds of an environment without prices, which differ in their seeds only.
    """

    def __init__(self, plan: FoldPlan, fold_seeds: int) -> None:
        self._plan, self.fold_seeds = plan, fold_seeds
        self._loaded: list[tuple[str, Loaded]] = []  # as read, each with its name
        self._data: list[Any] = []  # distinct arrays, whatever settings they were read with
        self._environments: Recent[str, Environment] = Recent(_KEPT)

    def environment(self, config: RunConfig) -> Environment:
        """The environment of a config, with the splits of all folds.

        Raises:
            ConfigError: a market without folds.
            DataError: data that cannot be read or divided.
        """
        key = json.dumps([config.env_name, dict(config.env_settings)], sort_keys=True)
        return self._environments.get(key, lambda: self._make(config))

    def folds(self, config: RunConfig) -> int:
        """How many folds a trial has."""
        loaded = self.environment(config).loaded
        if loaded is None or "folds" not in loaded.provenance:
            return self.fold_seeds
        return len(loaded.provenance["folds"]["folds"])

    @property
    def generation(self) -> int:
        """Grows with every distinct set of arrays: what was forked before lacks the last ones."""
        return len(self._data)

    def data_number(self, environment: Environment) -> int:
        """Number of the arrays that an environment reads; equal numbers, equal arrays."""
        if environment.loaded is None:
            return -1
        mine = tuple(environment.loaded.data)
        return next(k for k, data in enumerate(self._data) if _same(tuple(data), mine))

    def _make(self, config: RunConfig) -> Environment:
        name = config.env_name
        if name.startswith(GYMNASIUM):
            return resolve_environment(name, config.env_settings)
        kernel = load_kernel(name)
        loaded = self._canonical(self._load(kernel, config))
        spec = kernel.spec(loaded.params["train"][0], loaded.data)
        if spec.market is not None and kernel.load_folds is None:
            raise ConfigError(
                f"`{kernel.name}` has prices and no `load_folds`: a study needs folds that leave "
                "out what an observation remembers. Define it as docs/extending.md shows, or train "
                "with `slipstream train`."
            )
        if spec.market is not None:
            market = replace(spec.market, benchmark="benchmark" in spec.trace)
            spec = replace(spec, market=market)
        return Environment(name, spec, kernel, loaded)

    def _load(self, kernel: Kernel, config: RunConfig) -> Loaded:
        settings = kernel.configure(config.env_settings)
        if kernel.vary is not None:
            for name, known in self._loaded:
                varied = kernel.vary(known, settings) if name == config.env_name else None
                if varied is not None:
                    return varied
        if kernel.load_folds is None:
            loaded = resolve_environment(config.env_name, config.env_settings).loaded
            assert loaded is not None
        else:
            loaded = kernel.load_folds(settings, self._plan)
        if kernel.vary is not None:
            self._loaded.append((config.env_name, loaded))
        return loaded

    def _canonical(self, loaded: Loaded) -> Loaded:
        """With arrays that are there already, where the same ones are."""
        mine = tuple(loaded.data)
        for data in self._data:
            if _same(tuple(data), mine):
                return replace(loaded, data=data)
        self._data.append(loaded.data)
        return loaded


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        a is b
        or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b)))
        for a, b in zip(one, other, strict=True)
    )


def _bytes(array: Any) -> Any:
    """As numbers that compare equal where bits do: NaN is a value like any other here."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
