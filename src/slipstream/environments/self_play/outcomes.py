"""Games by who had the second seat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from slipstream.files.track import Track

if TYPE_CHECKING:
    from slipstream.environments.self_play.self_play import SelfPlay

NUMBERS = ("seat", "opponent", "snapshot")  # metrics whose means say nothing


def opponent_names(module: ModuleType, seats: SelfPlay | None) -> dict[int, str]:
    """Who the numbers in the metric `opponent` of evaluations mean.

    Args:
        module: of the kernel; its constant `PLAYERS` names players of its own.
        seats: of self-play; None without.
    """
    found = {-number: name for number, name in enumerate(getattr(module, "PLAYERS", ()))}
    return found if seats is None else found | seats.evaluation.settled().short_names


def by_opponent(tracks: Sequence[Track], names: Mapping[int, str]) -> dict[str, list[Track]]:
    """Games of two by the opponent's name, those that were met; empty for other environments.

    Args:
        tracks: of one member.
        names: of the numbers in the metric `opponent`; none where it is no game.
    """
    found: dict[str, list[Track]] = {}
    # Anybody's environment may call its metrics so; only games have names for the numbers.
    if not names or not {"won", "lost", "opponent"} <= set(tracks[0].metrics):
        return found
    for track in tracks:
        number = int(track.metrics["opponent"])
        found.setdefault(names.get(number, str(number)), []).append(track)
    return dict(sorted(found.items()))


def outcome_shares(
    rows: Sequence[Sequence[Track]], names: Mapping[int, str]
) -> dict[str, NDArray[np.float64]]:
    """Shares [M] of games won and lost against each opponent: `won_NAME`, `lost_NAME`.

    Empty where there is one opponent only: `won` and `lost` say the same.

    Args:
        rows: [M][J], of the same episodes for each member.
    """
    games = [by_opponent(tracks, names) for tracks in rows]
    met = sorted({name for own in games for name in own})
    if len(met) < 2:
        return {}
    return {
        f"{what}_{name}": np.array([_share(own.get(name, []), what) for own in games])
        for name in met
        for what in ("won", "lost")
    }


def _share(tracks: Sequence[Track], what: str) -> float:
    return float(np.mean([track.metrics[what] for track in tracks])) if tracks else float("nan")
