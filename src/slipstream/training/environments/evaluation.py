"""Deterministic evaluation of policies, one member or many at once; games by the opponent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import draws
from slipstream.kernels.vector_env import VectorEnv
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import LONGEST, Environment
from slipstream.training.environments.episodes import (
    Seen,
    count_episodes,
    episode_names,
    run_episodes,
)
from slipstream.training.environments.players import opponent_names
from slipstream.training.track import Track, counted, values

NUMBERS = ("seat", "opponent", "snapshot")  # metrics of a game whose means say nothing
COPIES = 128  # of each member at most, however many episodes there are


class Evaluator:
    """Evaluates the policies of M members on the same episodes, again and again.

    Args:
        environment: what they are evaluated on.
        split: which data, or which purpose where there are none: see `Environment.splits`.
        members: M.
        games: episodes of an environment without prices, at most.
        lanes, steps: how they are cut short; see `run_episodes`.
        seed: evaluation seed: every evaluation sees the same episodes.
        copies: of each member; it changes nothing but speed.
        backend: how kernels are stepped.
        longest: steps after which an episode without a time limit of its own is cut.
        drawn: actions are drawn instead of the most likely ones, by episode and step.
        check_stop: called now and then; it may raise to leave.
    """

    def __init__(
        self,
        environment: Environment,
        split: str,
        *,
        members: int = 1,
        games: int = 100,
        lanes: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        copies: int = COPIES,
        backend: str = "auto",
        longest: int = LONGEST,
        drawn: bool = False,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_stop, self._drawn = check_stop, drawn
        self.spec, self.members, self.seed = environment.spec, members, seed
        self.episodes = count_episodes(environment, split, games)
        self._lanes, self._steps = min(lanes or self.episodes, self.episodes), steps
        self._names = episode_names(environment, split)
        self._opponents = opponent_names(environment)
        self.metrics: dict[str, NDArray[np.float64]] = {}  # [M] by name, of the last `values`
        self._env: VectorEnv = environment.evaluation(
            split, min(copies, self._lanes), members, backend, longest
        )

    def run(
        self, policy: Policy, *, record: bool = False, drawn: bool | None = None
    ) -> list[list[Track]]:
        """[M][J] tracks of the most likely actions, or of drawn ones; as made unless given."""
        drawn = self._drawn if drawn is None else drawn

        def act(seen: Seen) -> NDArray[Any]:
            return decide(policy, seen, self.seed if drawn else None)

        return run_episodes(
            self._env,
            act,
            self.episodes,
            self.seed,
            members=self.members,
            lanes=self._lanes,
            steps=self._steps,
            record=record,
            names=self._names,
            check_stop=self._check_stop,
        )

    def values(self, policy: Policy) -> NDArray[np.float64]:
        """[M, lanes]: means of log returns in a market, else of episode returns; NaN of those lost.

        In a game that has metrics, `metrics` then holds their means over the same episodes, and the
        scores' deviation; in a game of two also the shares won and lost against each opponent.
        """
        rows = self.run(policy)
        self._numbers = [[t.number % self._lanes for t in own] for own in rows]
        if self.spec.market is None:
            self.metrics = {
                name: np.array(
                    [
                        counted(means).mean()
                        for means in self._means([[t.metrics[name] for t in own] for own in rows])
                    ]
                )
                for name in rows[0][0].metrics
                if name not in NUMBERS or not self._opponents
            }
            self.metrics |= outcome_shares(rows, self._opponents)
        found = [values(tracks, self.spec) for tracks in rows]
        if self.metrics:
            self.metrics["score_deviation"] = np.array([own.std() for own in found])
        return self._means(found)

    def _means(self, rows: Sequence[Sequence[float] | NDArray[Any]]) -> NDArray[np.float64]:
        """Mean of each lane, [M, lanes]: one of short episodes has more, and no more say."""
        found = np.full((len(rows), self._lanes), np.nan)
        for own, means, lanes in zip(rows, found, self._numbers, strict=True):
            counts = np.bincount(lanes, minlength=self._lanes)
            sums, ran = np.bincount(lanes, own, self._lanes), counts > 0
            means[ran] = sums[ran] / counts[ran]
        return found

    def drain_faults(self) -> list[Any]:
        """What went wrong in its copies; see `VectorEnv.drain_faults`."""
        return self._env.drain_faults()

    def close(self) -> None:
        """Releases the copies."""
        self._env.close()


def decide(policy: Policy, seen: Seen, seed: int | None) -> NDArray[Any]:
    """The most likely actions [E, K], or with a seed drawn ones.

    The draw of a copy's row has the stream of (seed, episode, step), whichever copy it is.
    """
    if seed is None or not policy.actions.drawn:
        return policy.act_rows(seen.obs, mask=seen.mask)
    place = (seen.episode << 32) | seen.step
    keys = draws.own_keys(np.array([seed % 2**64], np.uint64), draws.SAMPLE, place)
    found = np.zeros((len(seen.obs), policy.actions.width), policy.actions.dtype)
    copies = len(found) // policy.members
    for copy in range(copies):  # an Actor's stream is a member's: one row of each at a time
        at = slice(copy, None, copies)
        mask = None if seen.mask is None else np.ascontiguousarray(seen.mask[at])
        rows = np.ascontiguousarray(seen.obs[at])
        found[at] = policy.act_rows(rows, keys=keys[at].copy(), mask=mask)
    return found


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
