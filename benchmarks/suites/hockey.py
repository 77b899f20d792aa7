"""The two-player hockey game: `python -m benchmarks hockey`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.machine import Neighbours
from benchmarks.row import Goal, Row, race_row
from benchmarks.suite import Case, SuiteOptions
from benchmarks.suites.agents import best_peer
from benchmarks.suites.train import ours_of
from benchmarks.worker import rate, run_worker

_SEEDS = (0, 1, 2)
_HALF_AN_HOUR, _LIMIT = 1_800.0, 3_600.0  # seconds

# PPO from nothing with the kernel's own suggestions: 64 x 64 networks, both bots.
_AGAINST_BOTS = {"env": {"name": "hockey", "opponents": {"weak": 1.0, "strong": 3.0}}}
# The same, against a pool of 8 snapshots that is full from the eighth iteration on.
_POOL = {"slots": 8, "snapshot_iterations": 1, "evaluation": {"random": 1.0}}
_AGAINST_ITSELF = {"env": {"name": "hockey", "self_play": _POOL}}


def _steps(settings: SuiteOptions) -> float:
    return rate("ours.kernels.step_hockey", {"num_envs": 1024, "seconds": settings.seconds})


def hockey_step(settings: SuiteOptions) -> Iterable[Row]:
    """Physics and two strong bots, 1,024 copies on one core."""
    yield settings.row(
        "steps/s (two strong bots, 1,024 copies, one core)",
        lambda: _steps(settings),
        goal=Goal(">=", 500_000),
    )


def hockey_vs_real(settings: SuiteOptions) -> Iterable[Row]:
    """Beside Box2D itself, driven by the oracle that the tests compare every step with."""
    yield settings.row(
        "steps/s (two bots, one core; not the original: its physics under our oracle)",
        lambda: _steps(settings),
        lambda: rate("peers.stepping.hockey_oracle", {"seconds": settings.seconds}),
        "box2d 2.3.10 driven by tests/envs/hockey_oracle.py, one game, one process",
        goal=Goal(">=", 150),
    )


def _training(config: dict[str, Any], settings: SuiteOptions) -> float:
    return float(ours_of(config, settings.seconds, timeout=600.0)["steps_per_second"])


def hockey_ppo(settings: SuiteOptions) -> Iterable[Row]:
    """PPO against both bots with the suggested settings: physics, bots, policy and update."""
    yield settings.row(
        "training steps/s (64 x 64, the suggested settings, all cores)",
        lambda: _training(_AGAINST_BOTS, settings),
        goal=Goal(">=", 250_000),
    )


def hockey_selfplay(settings: SuiteOptions) -> Iterable[Row]:
    """The same against 8 frozen snapshots, beside itself against bots."""
    yield settings.row(
        "training steps/s (a pool of 8 snapshots; the peer is ours against bots)",
        lambda: _training(_AGAINST_ITSELF, settings),
        lambda: _training(_AGAINST_BOTS, settings),
        "slipstream against both bots",
        goal=Goal(">=", 0.6),
    )


def _replay(
    settings: SuiteOptions, own: dict[str, Any], levels: int, every: int, goal: float
) -> Iterable[Row]:
    """One learner against the weak bot beside SB3's on the oracle, at the same pace."""
    agent, batch, widths = own["name"], own["batch"], own["widths"]
    asked = {"agent": agent.upper(), "game": f"hockey{levels or ''}", "widths": widths}
    peer_settings = {"learning_starts": 100, "batch_size": batch}
    peer = best_peer({**asked, "settings": peer_settings}, 1 / every, processes=True)
    same = {"learning_starts": 100, "replay_size": 1_000_000, "iteration": 256}
    same |= {"observation_normalization": False, "updates_per_step": 1 / every}
    env = {"name": "hockey", "opponents": {"weak": 1.0}, "time_out": "terminated"}
    config = {
        "env": {**env, "action_fineness": levels + 1 if levels else 0},
        "agent": {**same, **own},
        "training": {"num_envs": 1, "total_steps": 10**9},
        "evaluation": {"every": 1.0},
    }
    shape, steps = "x".join(map(str, widths)), "step" if every == 1 else f"{every} steps"
    yield settings.row(
        f"training steps/s of one {agent} against the weak bot ({shape}, an update of {batch} rows "
        f"every {steps}: equal work)",
        lambda: _training(config, settings),
        lambda: peer.rate(settings.seconds),
        f"SB3 {agent.upper()} on box2d 2.3.10 under our oracle, {peer.name}",
        goal=Goal(">=", goal),
        runs=3,
    )


def hockey_dqn(settings: SuiteOptions) -> Iterable[Row]:
    """DQN, 14 choices, at SB3's own pace and by its rules."""
    own = {"name": "dqn", "batch": 64, "widths": [64, 64], "double": False, "dueling": False}
    return _replay(settings, {**own, "n_step": 1, "target_every": 2_500}, 2, 4, 15)


def hockey_sac(settings: SuiteOptions) -> Iterable[Row]:
    """SAC with the hockey project's networks, an update of 256 rows every step."""
    own = {"name": "sac", "batch": 256, "widths": [256, 256, 256]}
    return _replay(settings, own, 0, 1, 4)


def hockey_95(settings: SuiteOptions) -> Iterable[Row]:
    """Wall-clock from nothing to a policy that wins 95 % of its games against each bot."""
    answers = []
    with Neighbours() as neighbours:
        for seed in _SEEDS:
            asked = {"config": {**_AGAINST_BOTS, "training": {"seed": seed}}}
            answers.append(run_worker("ours.training.seconds_to_wins", asked, timeout=_LIMIT))
    weak, strong, steps, apart = (
        statistics.median(answer[name] for answer in answers)
        for name in ("won_weak", "won_strong", "steps", "warm_up")
    )
    yield race_row(
        settings.case,
        f"s from nothing to 95 % against both bots (median of {len(_SEEDS)} seeds; in 1,000 fresh "
        f"games each: weak {weak:.1%}, strong {strong:.1%}; {steps / 1e6:.0f} M steps; compiling "
        f"with an empty cache, {apart:.0f} s, apart)",
        Goal("<=", _HALF_AN_HOUR),
        answers,
        others_cpu=neighbours.share,
        cells=tuple({"seed": seed, **a} for seed, a in zip(_SEEDS, answers, strict=True)),
    )


CASES: dict[str, Case] = {
    "hockey_step": hockey_step,
    "hockey_vs_real": hockey_vs_real,
    "hockey_ppo": hockey_ppo,
    "hockey_selfplay": hockey_selfplay,
    "hockey_dqn": hockey_dqn,
    "hockey_sac": hockey_sac,
    "hockey_95": hockey_95,
}
FULL_ONLY = ("hockey_95",)
