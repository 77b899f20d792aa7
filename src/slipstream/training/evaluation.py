"""Deterministic evaluation of policies, one member or many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.policy import Policy
from slipstream.training.environment import Environment
from slipstream.training.episodes import Seen, run_episodes
from slipstream.training.track import Track, score
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
    ) -> None:
        self.spec, self.members, self.seed = environment.spec, members, seed
        self.episodes = environment.episodes(split, games)
        self._names = environment.episode_names(split)
        self._env: VectorEnv = environment.evaluation(
            split, min(copies, self.episodes), members, backend
        )

    def run(self, policy: Policy, *, record: bool = False) -> list[list[Track]]:
        """[M][J] tracks of the most likely actions."""

        def act(seen: Seen) -> NDArray[Any]:
            return policy.act(seen.obs, mask=seen.mask)

        return run_episodes(
            self._env,
            act,
            self.episodes,
            self.seed,
            members=self.members,
            record=record,
            names=self._names,
        )

    def scores(self, policy: Policy) -> NDArray[np.float64]:
        """[M]: mean log return in a market, else mean episode return."""
        return np.array([score(tracks, self.spec) for tracks in self.run(policy)])
