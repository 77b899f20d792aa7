"""What a config's `env` section means: a kernel with its data, or a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.discover import load_kernel
from slipstream.core.errors import ConfigError
from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.spec import Spec
from slipstream.training.episodes import episode_names, evaluation_env
from slipstream.vector.gymnasium_env import GymnasiumVectorEnv
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import HOLD
from slipstream.vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from slipstream.training.config import RunConfig

GYMNASIUM = "gym:"
LONGEST = 10_000  # steps of an evaluation episode that nothing else ends


@dataclass(frozen=True)
class Environment:
    """One environment, ready to be stepped in any number of copies that share its data.

    Attributes:
        name: a kernel's name or path, or ``gym:ID``.
        spec: its outside.
        kernel, loaded: rules and data, None for a foreign environment.
        kwargs: keyword arguments of a foreign environment.
    """

    name: str
    spec: Spec
    kernel: Kernel | None = None
    loaded: Loaded | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences the user must see."""
        if self.loaded is not None:
            return self.loaded.notes
        return ()

    def copies(
        self, seeds: NDArray[np.uint64], indices: NDArray[np.uint64], backend: str = "auto"
    ) -> VectorEnv:
        """Training copies with the given member seeds and indices, each uint64 [E]."""
        if self.kernel is None or self.loaded is None:
            if backend not in ("auto", "serial"):
                raise ConfigError(
                    f"{self.name} is stepped serially; backend `{backend}` is for kernels."
                )
            return GymnasiumVectorEnv(
                self.name.removeprefix(GYMNASIUM), seeds, indices, kwargs=self.kwargs
            )
        backend = "compiled" if backend == "auto" else backend
        return KernelVectorEnv(self.kernel, self.loaded, seeds, indices, backend=backend)

    def evaluation(
        self,
        split: str,
        copies: int,
        members: int = 1,
        backend: str = "auto",
        longest: int | None = LONGEST,
    ) -> VectorEnv:
        """Copies that hold at the end of an episode; see `run_episodes`.

        A game without a time limit of its own is cut after `longest` steps.
        """
        if self.kernel is None or self.loaded is None:
            zeros = np.zeros(members * copies, np.uint64)
            env_id = self.name.removeprefix(GYMNASIUM)
            limit = longest if self.spec.max_episode_steps is None else None
            return GymnasiumVectorEnv(
                env_id, zeros, zeros, kwargs=self.kwargs, at_end=HOLD, limit=limit
            )
        backend = "compiled" if backend == "auto" else backend
        return evaluation_env(
            self.kernel,
            self.loaded,
            split,
            copies,
            members=members,
            backend=backend,
            longest=longest,
        )

    def splits(self) -> tuple[str, ...]:
        """Names of the splits that can be evaluated; a game has one, its own start states."""
        return tuple(self.loaded.params) if self.loaded is not None else ("train",)

    def episode_names(self, split: str) -> list[str] | None:
        """Names of a market split's passes; None for games."""
        if self.kernel is None or self.loaded is None:
            return None
        return episode_names(self.kernel, self.loaded, split)

    def episodes(self, split: str, games: int) -> int:
        """Evaluation episodes of a split: one per Params record in a market, else `games`."""
        if self.loaded is None or self.spec.market is None:
            return games
        return len(self.loaded.params[split])


def resolve_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Loads what the `env` section names; for kernels the only place that reads data.

    Args:
        name: a kernel's name, a path ending in ``.py``, or ``gym:ID``.
        settings: the section's other keys: the kernel's own Config, or a Gymnasium
            environment's ``kwargs``.
    """
    if name.startswith(GYMNASIUM):
        unknown = sorted(set(settings) - {"kwargs"})
        if unknown:
            raise ConfigError(f"`env.{unknown[0]}` is not a key of {name}; it takes `kwargs` only.")
        kwargs = dict(settings.get("kwargs") or {})
        one = np.zeros(1, np.uint64)
        probe = GymnasiumVectorEnv(name.removeprefix(GYMNASIUM), one, one, kwargs=kwargs)
        try:
            probe.try_out()
        finally:
            probe.close()
        return Environment(name, probe.spec, kwargs=kwargs)
    kernel = load_kernel(name)
    loaded = kernel.load(kernel.configure(settings))
    players = kernel.spec(loaded.params["train"][0], loaded.data).players
    if players > 1:
        raise ConfigError(
            f"`{name}` has {players} players, and no agent of this version trains more than one; "
            "step it with slipstream.make_vec."
        )
    return Environment(name, kernel.spec(loaded.params["train"][0], loaded.data), kernel, loaded)


def chosen_environment(
    config: RunConfig,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    carried: Mapping[str, Any] | None = None,
) -> Environment:
    """A run's environment; with any of the options, one window of (other) prices.

    Args:
        config: of the run.
        data: folder of other prices of the same kind.
        symbols: which of them; those of the run unless given.
        start, stop: half-open range of bars, UTC seconds.
        carried: settings measured on the training window, which belong to the policy and not to
            the chosen bars; see `carried_settings`.

    Raises:
        ConfigError: the environment has no prices to choose from.
    """
    if data is None and symbols is None and start is None and stop is None:
        return resolve_environment(config.env_name, config.env_settings)
    kernel = None if config.env_name.startswith(GYMNASIUM) else load_kernel(config.env_name)
    load_window = getattr(kernel.module, "load_window", None) if kernel is not None else None
    if kernel is None or load_window is None:
        raise ConfigError(
            f"Chosen bars were asked for, but {config.short_name} has no prices to choose from; "
            "leave out --data, --symbols, --from and --to."
        )
    settings: dict[str, Any] = dict(config.env_settings)
    for name, value in (carried or {}).items():
        if settings.get(name) is None:  # left to the data
            settings[name] = value
    section = dict(settings["data"])
    if data is not None:
        section["folder"] = str(Path(data).expanduser().resolve())
    if symbols is not None:
        section["symbols"] = list(symbols)
        section["files"] = {s: f for s, f in section["files"].items() if s in symbols}
    settings["data"] = section
    loaded = load_window(kernel.configure(settings), start, stop)
    spec = kernel.spec(loaded.params["window"][0], loaded.data)
    return Environment(config.env_name, spec, kernel, loaded)


def carried_settings(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's training window decided for its policies, from the run's provenance."""
    return dict((provenance.get("environment") or {}).get("carried") or {})
