"""Agents that learn from a replay, beside their peers: `python -m benchmarks agents`.

A race ends at the first of 25 tests with its score: the best action in each step of fresh episodes,
at equal steps on both sides, whose seconds are not counted. It has one seed unless --full asks for
five.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.machine import Neighbours, best_threads, threads
from benchmarks.row import Goal, Row, race_row
from benchmarks.suite import Case, SuiteOptions
from benchmarks.suites.train import ours_of, products, speed_of
from benchmarks.worker import rate, run_worker
from slipstream.market.finding import plural

_WIDE, _SMALL = (256, 256), (64, 64)
_SAC_BATCH = 256
_COPIES = 8  # acted for in one call of the network: SB3's cost of a step is mostly that call's
_TESTS = 25  # of a training that stops at a score


@dataclass(frozen=True)
class Peer:
    """SB3's agent in one arrangement, the same updates for each step as any other.

    Attributes:
        asked: what `peers.sb3.replay` is told in every arrangement.
        copies: of the environment, in one process unless `processes`.
        train_freq, gradient_steps: rounds of updates, as SB3 names them.
        threads: of torch.
    """

    asked: Mapping[str, Any]
    copies: int
    train_freq: int
    gradient_steps: int
    threads: int
    processes: bool = False

    def rate(self, seconds: float) -> float:
        """Training steps per second."""
        rounds = {"train_freq": self.train_freq, "gradient_steps": self.gradient_steps}
        own = {"copies": self.copies, "threads": self.threads, "processes": self.processes}
        settings = {**self.asked["settings"], **rounds}
        asked = {**self.asked, **own, "settings": settings, "seconds": seconds}
        return rate("peers.sb3.replay", asked, threads=self.threads)

    @property
    def name(self) -> str:
        """For a row: what was the fastest."""
        where = " in processes" if self.processes else ""
        copies = "1 copy" if self.copies == 1 else f"{self.copies} copies{where}"
        return (
            f"{copies}, train_freq {self.train_freq}, gradient_steps {self.gradient_steps}, "
            f"{plural(self.threads, 'thread')}: its fastest arrangement; its updates follow "
            "each round of steps, ours each step"
        )


def best_peer(asked: Mapping[str, Any], updates_per_step: float, processes: bool = False) -> Peer:
    """The fastest arrangement of a peer: one copy or eight, on one thread or one a core.

    Args:
        asked: of `Peer`.
        updates_per_step: the same in each arrangement; its inverse or itself is a whole number.
        processes: whether eight copies in processes are tried, too: for environments that cost.
    """
    one = (1, max(1, round(1 / updates_per_step)), max(1, round(updates_per_step)))
    many = (_COPIES, 1, round(_COPIES * updates_per_step))
    found = [
        Peer(asked, *shape, n, apart)
        for shape, apart in ((one, False), (many, False), *([(many, True)] if processes else []))
        for n in sorted({1, threads()})
    ]
    return max(found, key=lambda peer: peer.rate(1.0))


# An update of 64 rows every 4 steps, single Q-learning, as SB3's has it.
_DQN: dict[str, Any] = {
    "env": {"name": "cartpole"},
    "agent": {
        **{"name": "dqn", "batch": 64, "updates_per_step": 0.25, "widths": _SMALL},
        **{"double": False, "n_step": 1, "target_rate": 1.0, "target_every": 2500},
        "observation_normalization": False,
    },
    "training": {"num_envs": 1, "members": 1, "total_steps": 10**9},
    "evaluation": {"every": 1.0},
}
_SB3_DQN: dict[str, Any] = {
    **{"agent": "DQN", "game": "CartPole-v1", "widths": _SMALL, "budget": 10**7, "warm_up": 1_000},
    "settings": {
        **{"batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000},
        "exploration_fraction": 0.001,
    },
}


def _dqn(settings: SuiteOptions, members: int, goal: float) -> Iterable[Row]:
    peer = best_peer(_SB3_DQN, 0.25)
    config = {**_DQN, "training": {**_DQN["training"], "members": members}}
    who = f"{members} members in all" if members > 1 else "one member"
    yield settings.row(
        f"training steps/s of {who} on CartPole (64x64, an update of 64 rows every 4 steps: equal "
        "work)",
        lambda: speed_of(config, settings.seconds),
        lambda: peer.rate(settings.seconds),
        f"SB3 DQN, {peer.name}",
        goal=Goal(">=", goal),
        runs=3,
    )


def _updates(seconds: float, transitions: int, **agent: Any) -> float:
    asked = {"agent": {"batch": 64, **agent}, "transitions": transitions, "seconds": seconds}
    answer = run_worker("ours.training.dqn_updates", asked, threads=1)
    return float(answer["updates_per_second"])


def dqn_updates(settings: SuiteOptions) -> Iterable[Row]:
    """Updates of a lone member, draws and priorities included."""
    yield settings.row(
        "updates/s of one core (double, 64x64, batch 64, replay of 100,000)",
        lambda: _updates(settings.seconds, 100_000),
        goal=Goal(">=", 15_000),
    )


def prioritised_cost(settings: SuiteOptions) -> Iterable[Row]:
    """What drawing by priorities costs at a million transitions."""
    yield settings.row(
        "updates/s of one core, prioritised (64x64, batch 64, replay of 1 M)",
        lambda: _updates(settings.seconds, 1_000_000, prioritised=True),
        lambda: _updates(settings.seconds, 1_000_000),
        "the same with uniform draws",
        goal=Goal(">=", 1 / 1.2),
    )


def _sac_config(widths: Sequence[int], members: int = 1) -> dict[str, Any]:
    """SB3's defaults, which are the papers'."""
    iteration = 128 if widths == _WIDE else 1024
    agent = {"name": "sac", "widths": widths, "learning_starts": 100, "iteration": iteration}
    return {
        "env": {"name": "pendulum"},
        "agent": {**agent, "batch": _SAC_BATCH, "updates_per_step": 1.0},
        "training": {"num_envs": 1, "members": members, "total_steps": 10**9},
        "evaluation": {"every": 1.0},
    }


def _sac(settings: SuiteOptions, widths: Sequence[int], members: int, goal: float) -> Iterable[Row]:
    """SAC on Pendulum; of the wide network also what this processor could do at most."""
    sac = {"agent": "SAC", "game": "Pendulum-v1", "widths": widths, "settings": {}}
    peer = best_peer(sac, 1.0)
    row = settings.row(
        "",
        lambda: speed_of(_sac_config(widths, members), settings.seconds),
        lambda: peer.rate(settings.seconds),
        f"SB3 SAC, {peer.name}",
        goal=Goal(">=", goal),
        runs=3,
    )
    who = f"{members} members in all" if members > 1 else "one member"
    size, bound = "x".join(map(str, widths)), ""
    if widths == _WIDE:
        most = 1e9 * products("own") / _operations(widths[0])
        assert row.ours is not None and row.peer is not None
        bound = (
            f"; if an update were its hidden layers' products alone, at the speed of our own on "
            f"all cores, {most:.0f} steps/s or {most / row.peer:.2f} times the peer: "
            f"{row.ours / most:.0%} reached"
        )
    work = f"an update of {_SAC_BATCH} rows a step: equal work{bound}"
    yield replace(row, unit=f"training steps/s of {who} on Pendulum ({size}, {work})")


def sac_vs_rlox(settings: SuiteOptions) -> Iterable[Row]:
    """Against rlox, whose replay is Rust."""

    def peer(n: int, seconds: float) -> float:
        asked = {"width": _WIDE[0], "seconds": seconds, "threads": n}
        return rate("peers.rlox.sac_pendulum", asked, threads=n)

    best = best_threads(lambda n: peer(n, 1.0))
    yield settings.row(
        f"training steps/s on Pendulum (256x256, an update of {_SAC_BATCH} rows a step: equal "
        "work)",
        lambda: speed_of(_sac_config(_WIDE), settings.seconds),
        lambda: peer(best, settings.seconds),
        f"rlox SAC, {plural(best, 'thread')}",
        goal=Goal(">=", 2.5),
        runs=3,
    )


def sac_peak(settings: SuiteOptions) -> Iterable[Row]:
    """Share of our own products' speed that a lone member's update reaches, on all cores."""

    def update() -> float:
        answer = ours_of(_sac_config(_WIDE), settings.seconds)
        return _operations(_WIDE[0]) / float(answer["update_seconds_per_step"]) / 1e9

    yield settings.row(
        "GFLOP/s of the networks' products in the seconds of an update, 256x256, all cores",
        update,
        lambda: products("own"),
        "our own float32 products on all cores",
        goal=Goal(">=", 0.5),
        runs=3,
    )


def _operations(width: int) -> float:
    """Of one update's products of hidden layers, 2 a multiplication; the narrow ones left out.

    Passes of the batch through a network: one of the actor and two of targets for the next value,
    two critics forward and each twice back; one of the actor, two critics forward and the smaller
    one of each row once back, the actor twice back.
    """
    passes = 3 + 6 + 6
    return 2.0 * passes * _SAC_BATCH * width * width


@dataclass(frozen=True)
class Race:
    """One training on both sides, up to a score.

    Attributes:
        env, agent: of ours, whose settings are the peer's.
        peer: what `peers.sb3.replay` is asked for beside widths, threads and seed.
        score: to be reached by a test's mean of 20 episodes within `budget` steps.
    """

    env: str
    agent: Mapping[str, Any]
    peer: Mapping[str, Any]
    score: float
    budget: int

    def ours(self, widths: Sequence[int], seed: int) -> dict[str, Any]:
        """Trains with a copy of one member."""
        config = {
            "env": {"name": self.env},
            "agent": {**self.agent, "widths": widths},
            "training": {"num_envs": 1, "members": 1, "total_steps": self.budget, "seed": seed},
            "evaluation": {"every": 1 / _TESTS, "episodes": 20},
        }
        asked = {"config": config, "score": self.score, "tested": True}
        return run_worker("ours.training.seconds_to_score", asked, timeout=3600.0)

    def theirs(self, widths: Sequence[int], n: int, **asked: Any) -> dict[str, Any]:
        """Trains SB3's agent on n threads."""
        asked = {**self.peer, "widths": widths, "threads": n, "budget": self.budget, **asked}
        return run_worker("peers.sb3.replay", asked, threads=n, timeout=3600.0)

    def row(self, settings: SuiteOptions, case: str, widths: Sequence[int], goal: float) -> Row:
        """Seconds of both sides, SB3 with the number of threads that makes it faster."""
        seeds = range(1, 6) if settings.full else (1,)
        n = best_threads(lambda n: self.theirs(widths, n, seconds=1.0)["steps_per_second"])
        mine: list[dict[str, Any]] = []
        theirs: list[dict[str, Any]] = []
        with Neighbours() as neighbours:
            for seed in seeds:
                mine.append(self.ours(widths, seed))
                tests = {"score": self.score, "tests": _TESTS}
                theirs.append(self.theirs(widths, n, seed=seed, **tests))
        after = " and ".join(
            f"{statistics.median(one['steps'] for one in side):,.0f}" for side in (mine, theirs)
        )
        name, size = self.peer["game"].partition("-")[0], "x".join(map(str, widths))
        return race_row(
            case,
            f"s to a mean of {self.score:g} in a test of 20 episodes of {name}, "
            f"{size}, {plural(len(seeds), 'seed')} (after {after} steps, {self.budget:,} at most)",
            Goal(">=", goal),
            mine,
            theirs,
            peer_name=f"SB3 with the RL Zoo's settings, {plural(n, 'thread')}",
            others_cpu=neighbours.share,
        )


# hyperparams/dqn.yml of rl-baselines3-zoo. SB3 copies the target between two rounds of updates: on
# CartPole once in 128, whatever its interval of 10 steps says.
_CARTPOLE = Race(
    "cartpole",
    {
        **{"name": "dqn", "double": False, "n_step": 1, "target_rate": 1.0},
        **{"observation_normalization": False, "exploration_initial": 1.0, "iteration": 500},
        **{"batch": 64, "replay_size": 100_000, "learning_rate": 2.3e-3, "learning_starts": 1000},
        **{"train_every": 256, "updates_per_step": 0.5, "target_every": 128},
        **{"exploration_steps": 8_000, "exploration_final": 0.04},
    },
    {
        **{"agent": "DQN", "game": "CartPole-v1", "warm_up": 1_000},
        "settings": {
            **{"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000},
            **{"learning_starts": 1_000, "target_update_interval": 10},
            **{"train_freq": 256, "gradient_steps": 128},
            **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04},
        },
    },
    score=475.0,
    budget=50_000,
)
# hyperparams/sac.yml and SB3's defaults; an iteration is an episode.
_PENDULUM = Race(
    "pendulum",
    {
        **{"name": "sac", "batch": 256, "replay_size": 1_000_000, "learning_rate": 1e-3},
        **{"learning_starts": 100, "updates_per_step": 1.0, "iteration": 200},
    },
    {"agent": "SAC", "game": "Pendulum-v1", "settings": {"learning_rate": 1e-3}},
    score=-200.0,
    budget=20_000,
)


def dqn_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """CartPole to 475."""
    yield _CARTPOLE.row(settings, settings.case, _WIDE, 2)
    yield _CARTPOLE.row(settings, f"{settings.case} 64x64", _SMALL, 10)


def sac_time_to_score(settings: SuiteOptions) -> Iterable[Row]:
    """Pendulum to -200."""
    yield _PENDULUM.row(settings, settings.case, _WIDE, 3)
    yield _PENDULUM.row(settings, f"{settings.case} 64x64", _SMALL, 10)


CASES: dict[str, Case] = {
    "dqn_vs_sb3": lambda settings: _dqn(settings, 1, 15),
    "dqn_updates": dqn_updates,
    "dqn_population_16": lambda settings: _dqn(settings, 16, 40),
    "prioritised_cost": prioritised_cost,
    "sac_vs_sb3": lambda settings: _sac(settings, _WIDE, 1, 4),
    "sac_small": lambda settings: _sac(settings, _SMALL, 1, 15),
    "sac_population_8": lambda settings: _sac(settings, _WIDE, 8, 6),
    "sac_vs_rlox": sac_vs_rlox,
    "sac_peak": sac_peak,
    "dqn_time_to_score": dqn_time_to_score,
    "sac_time_to_score": sac_time_to_score,
}
