"""Who may act in the other seat, and how often."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.core.text import did_you_mean
from slipstream.environments.self_play.brains import Brains
from slipstream.environments.self_play.config import RANDOM, SNAPSHOTS
from slipstream.environments.self_play.networks import foreign_brains, is_file


@dataclass(frozen=True)
class LineUp:
    """Opponents with their shares of the episodes.

    Attributes:
        names: as they were written.
        weights: [kinds], of each; not summed to 1.
        networks: of trained policies, by their place in `names`.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    networks: Mapping[int, Brains] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        where: str,
        opponents: Mapping[str, float],
        spec: Spec,
        environment: str,
        drawn: bool,
    ) -> LineUp:
        """Finds out what the names mean; policies are read.

        Args:
            where: the key that they were written under, for messages.
            opponents: weight by name.
            spec: of one seat.
            environment: short name of the game.
            drawn: policies draw their actions, else they take the most likely one.

        Raises:
            ConfigError: a name that is nothing, of another game or shape; weights that are all 0.
        """
        if not any(opponents.values()):
            raise ConfigError(
                f"Every weight in `{where}` is 0, so nobody would play: give one of them a weight, "
                f"`{{{next(iter(opponents))}: 1}}`."
            )
        networks = {}
        for k, name in enumerate(opponents):
            if name in _KNOWN:
                continue
            if not is_file(name):
                raise _unknown(where, name)
            networks[k] = foreign_brains(name, spec, environment, drawn)
        weights = tuple(float(weight) for weight in opponents.values())
        return cls(tuple(opponents), weights, networks)

    @property
    def shares(self) -> NDArray[np.float64]:
        """[kinds], summed up: the last one is 1."""
        total = np.cumsum(self.weights)
        return np.asarray(total / total[-1], np.float64)

    @property
    def short_names(self) -> dict[int, str]:
        """Names for tables by kind, numbered where two would be the same."""
        short = [re.sub(r"[^\w.-]+", "-", Path(name).stem) for name in self.names]
        return {
            kind: name if short.count(name) == 1 else f"{name}-{kind}"
            for kind, name in enumerate(short)
        }

    @property
    def snapshots(self) -> int:
        """Which kind they are; -1: they do not play."""
        return self.names.index(SNAPSHOTS) if SNAPSHOTS in self.names else -1

    def settled(self) -> LineUp:
        """For policies that were trained: nobody meets snapshots, and `random` plays where nobody
        else would."""
        if self.snapshots < 0:
            return self
        others = {n: w for n, w in zip(self.names, self.weights, strict=True) if n != SNAPSHOTS}
        if not any(others.values()):
            others = {**others, RANDOM: 1.0}
        kept = {**dict.fromkeys(self.names, 0.0), **others}  # everybody keeps their number
        return replace(self, names=tuple(kept), weights=tuple(kept.values()))

    @property
    def random(self) -> int:
        """Which kind is the player that does anything allowed; -1: it does not play."""
        return self.names.index(RANDOM) if RANDOM in self.names else -1


def _unknown(where: str, name: str) -> ConfigError:
    advice = did_you_mean(name, _KNOWN, f"give {' or '.join(_KNOWN)},")
    return ConfigError(
        f"`{where}` names the opponent `{name}`, and there is no such thing; {advice} or name a "
        "trained policy by the directory of its run, by its own folder, or by a file that ends in "
        ".onnx. Players of a game's own are no networks and have keys of their own in `env` "
        "(hockey: `env.opponents`)."
    )


def anchored(opponents: Mapping[str, Any]) -> dict[str, Any]:
    """Names of what is on disk made absolute, so that a run can be resumed from anywhere."""
    return {
        str(Path(name).expanduser().resolve()) if name not in _KNOWN and is_file(name) else name: w
        for name, w in opponents.items()
    }


_KNOWN = (SNAPSHOTS, RANDOM)
