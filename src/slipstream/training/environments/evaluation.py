"""Deterministic evaluation of policies, one member or many at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.nets.policy import Policy
from slipstream.training.environments.environment import LONGEST, Environment
from slipstream.training.environments.episodes import Seen, run_episodes
from slipstream.training.record.track import Track, counted, score, values
from slipstream.training.self_play.outcomes import NUMBERS, outcome_shares
from slipstream.vector import draws
from slipstream.vector.vector_env import VectorEnv

COPIES = 128  # of each member at most, however many episodes there are


class Evaluator:
    """Evaluates the policies of M members on the same episodes, again and again.

    Args:
        environment: what they are evaluated on.
        split: of the data; games have one, "train", their own start states.
        members: M.
        games: episodes of an environment without prices.
        seed: evaluation seed: every evaluation sees the same episodes.
        copies: of each member; it changes nothing but speed.
        backend: how kernels are stepped.
        longest: steps after which an episode without a time limit of its own is cut.
        go_on: called now and then; it may raise to leave.
    """

    def __init__(
        self,
        environment: Environment,
        split: str,
        *,
        members: int = 1,
        games: int = 100,
        seed: int = 0,
        copies: int = COPIES,
        backend: str = "auto",
        longest: int = LONGEST,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._go_on = go_on
        self.spec, self.members, self.seed = environment.spec, members, seed
        self.episodes = environment.episodes(split, games)
        self._names = environment.episode_names(split)
        self._opponents = environment.opponent_names
        self.metrics: dict[str, NDArray[np.float64]] = {}  # [M] by name, of the last `values`
        self._env: VectorEnv = environment.evaluation(
            split, min(copies, self.episodes), members, backend, longest
        )

    def run(
        self, policy: Policy, *, record: bool = False, deterministic: bool = True
    ) -> list[list[Track]]:
        """[M][J] tracks of the most likely actions, or of drawn ones."""
        counter = itertools.count()

        def act(seen: Seen) -> NDArray[Any]:
            keys = None
            if not deterministic:
                keys = draws.member_keys(policy.seeds, draws.SAMPLE, next(counter))
            return policy.act_rows(seen.obs, keys=keys, mask=seen.mask)

        return run_episodes(
            self._env,
            act,
            self.episodes,
            self.seed,
            members=self.members,
            record=record,
            names=self._names,
            go_on=self._go_on,
        )

    def values(self, policy: Policy) -> NDArray[np.float64]:
        """[M, J]: log returns in a market, else episode returns; NaN for each that was lost.

        In a game that has metrics, `metrics` then holds their means over the same episodes, and the
        scores' deviation; in a game of two also the shares won and lost against each opponent.
        """
        rows = self.run(policy)
        if self.spec.market is None:
            self.metrics = {
                name: np.array([np.mean([t.metrics[name] for t in tracks]) for tracks in rows])
                for name in rows[0][0].metrics
                if name not in NUMBERS or not self._opponents
            }
            self.metrics |= outcome_shares(rows, self._opponents)
        found = np.full((self.members, self.episodes), np.nan)
        for row, tracks in zip(found, rows, strict=True):
            row[: len(tracks)] = values(tracks, self.spec)
        if self.metrics:
            self.metrics["score_deviation"] = np.array([counted(row).std() for row in found])
        return found

    def scores(self, policy: Policy) -> NDArray[np.float64]:
        """[M]: mean log return in a market, else mean episode return."""
        return np.array([score(tracks, self.spec) for tracks in self.run(policy)])

    def drain_faults(self) -> list[Any]:
        """Of its copies; see `VectorEnv.drain_faults`."""
        return self._env.drain_faults()

    def close(self) -> None:
        """Releases the copies."""
        self._env.close()
