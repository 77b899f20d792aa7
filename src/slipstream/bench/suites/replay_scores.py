"""DQN and SAC beside SB3 at the RL Zoo's settings: seconds to a score.

One seed unless --full asks for five. A race ends at the first of 25 tests with that score: the best
action in each step of fresh episodes, at equal steps on both sides, whose seconds are not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.bench.machine import Neighbours, best_threads
from slipstream.bench.row import Goal, Row, race_row
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import run_worker
from slipstream.market.finding import plural

_TIMEOUT = 3600.0
TESTS = 25  # of a training that stops at a score


@dataclass(frozen=True)
class Race:
    """One training on both sides.

    Attributes:
        name: of the environment; env: as ours asks for it.
        peer: worker of SB3's side; asked: what it is told beside widths, threads and seed.
        agent: settings of ours, which are the peer's.
        score: to be reached by a test's mean of so many `episodes` within `budget` steps.
        goal: of the ratio of seconds.
    """

    name: str
    env: str
    peer: str
    widths: tuple[int, ...]
    agent: Mapping[str, Any]
    score: float
    episodes: int
    budget: int
    goal: float
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> str:
        """256x256."""
        return "x".join(map(str, self.widths))

    def ours(self, seed: int) -> dict[str, Any]:
        """Trains with a copy of one member, up to the score."""
        config = {
            "env": {"name": self.env},
            "agent": {**self.agent, "widths": list(self.widths)},
            "training": {"num_envs": 1, "members": 1, "total_steps": self.budget, "seed": seed},
            "evaluation": {"every": 1 / TESTS, "episodes": self.episodes},
        }
        asked = {"config": config, "score": self.score}
        return run_worker("ours.time_to_score", asked, timeout=_TIMEOUT)

    def theirs(self, seed: int, n: int, **asked: Any) -> dict[str, Any]:
        """Trains SB3's agent on n threads."""
        settings = {**self.asked, "widths": list(self.widths), "threads": n, "seed": seed}
        settings |= {"budget": self.budget, **asked}
        return run_worker(self.peer, settings, threads=n, timeout=_TIMEOUT)

    def threads(self) -> int:
        """The number of threads with which SB3 is faster."""

        def speed(n: int) -> float:
            return float(self.theirs(0, n, seconds=1.0)["steps_per_second"])

        return best_threads(speed)


# hyperparams/dqn.yml of rl-baselines3-zoo. SB3 copies the target between two rounds of updates: on
# CartPole once in 128, whatever its interval of 10 steps says.
_CARTPOLE = {
    **{"name": "dqn", "double": False, "n_step": 1, "target_rate": 1.0},
    **{"observation_normalization": False, "exploration_initial": 1.0, "iteration": 500},
    **{"batch": 64, "replay_size": 100_000, "learning_rate": 2.3e-3, "learning_starts": 1000},
    **{"train_every": 256, "updates_per_step": 0.5, "target_every": 128},
    **{"exploration_steps": 8_000, "exploration_final": 0.04},
}
# hyperparams/sac.yml and SB3's defaults; an iteration is an episode.
_PENDULUM = {
    **{"name": "sac", "batch": 256, "replay_size": 1_000_000, "learning_rate": 1e-3},
    **{"learning_starts": 100, "updates_per_step": 1.0, "iteration": 200},
}


def _cartpole(widths: tuple[int, ...], goal: float) -> Race:
    peer, asked = "peers.sb3_dqn", {"game": "CartPole-v1"}
    return Race("CartPole", "cartpole", peer, widths, _CARTPOLE, 475.0, 20, 50_000, goal, asked)


def _pendulum(widths: tuple[int, ...], goal: float) -> Race:
    peer, asked = "peers.sb3_sac_pendulum", {"learning_rate": 1e-3}
    return Race("Pendulum", "pendulum", peer, widths, _PENDULUM, -200.0, 20, 20_000, goal, asked)


_WIDE, _SMALL = (256, 256), (64, 64)


def _seeds(settings: SuiteOptions) -> Sequence[int]:
    return range(1, 6) if settings.full else (1,)


def _count(seeds: Sequence[int]) -> str:
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def _time_to_score(case: str, race: Race, seeds: Sequence[int]) -> Row:
    n = race.threads()
    mine: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    with Neighbours() as neighbours:
        for seed in seeds:
            mine.append(race.ours(seed))
            theirs.append(race.theirs(seed, n, score=race.score, episodes=race.episodes))
    after = " and ".join(
        f"{statistics.median(one['steps'] for one in side):,.0f}" for side in (mine, theirs)
    )
    return race_row(
        case,
        f"s to a mean of {race.score:g} in a test of {race.episodes} episodes of {race.name}, "
        f"{race.size}, {_count(seeds)} (after {after} steps, {race.budget:,} at most)",
        Goal(">=", race.goal),
        mine,
        theirs,
        f"SB3 with the RL Zoo's settings, {plural(n, 'thread')}",
        round(neighbours.share, 3),
    )


def dqn_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """CartPole to 475."""
    seeds = _seeds(settings)
    yield _time_to_score("dqn_time_to_score", _cartpole(_WIDE, 2), seeds)
    yield _time_to_score("dqn_time_to_score 64x64", _cartpole(_SMALL, 10), seeds)


def sac_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Pendulum to -200."""
    for case, widths, goal in (
        ("sac_time_to_score", _WIDE, 3.0),
        ("sac_time_to_score 64x64", _SMALL, 10.0),
    ):
        yield _time_to_score(case, _pendulum(widths, goal), _seeds(settings))


CASES: dict[str, Case] = {case.__name__: case for case in (dqn_time_to_score, sac_time_to_score)}
