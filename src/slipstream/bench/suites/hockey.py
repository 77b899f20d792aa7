"""The two-player hockey game: `slipstream bench hockey`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from slipstream.bench.hockey_settings import against_bots, against_itself, from_a_replay
from slipstream.bench.machine import Neighbours
from slipstream.bench.row import Goal, Row, race_row
from slipstream.bench.suite import Case, SuiteOptions, with_runs
from slipstream.bench.suites.peer_arrangement import best_peer
from slipstream.bench.worker import run_worker

_SB3 = "peers.sb3_hockey"
_SEEDS = (0, 1, 2)
_HALF_AN_HOUR, _LIMIT = 1_800.0, 3_600.0  # seconds


def _steps(settings: SuiteOptions) -> float:
    asked = {"num_envs": 1024, "seconds": settings.seconds}
    answer = run_worker("ours.hockey_steps", asked, threads=1)
    return float(answer["steps_per_second"])


def hockey_step(settings: SuiteOptions) -> Iterable[Row]:
    """Physics and two strong bots, 1,024 copies on one core."""
    measured = settings.alternate(lambda: _steps(settings))
    yield measured.row(
        "hockey_step",
        "steps/s (two strong bots, 1,024 copies, one core)",
        Goal(">=", 500_000),
    )


def hockey_vs_real(settings: SuiteOptions) -> Iterable[Row]:
    """Beside Box2D itself, driven by the oracle that the tests compare every step with."""

    def peer() -> float:
        asked = {"seconds": settings.seconds}
        return float(run_worker("peers.hockey_oracle", asked, threads=1)["steps_per_second"])

    measured = settings.alternate(lambda: _steps(settings), peer)
    yield measured.row(
        "hockey_vs_real",
        "steps/s (two bots, one core; not the original: its physics under our oracle)",
        Goal(">=", 150),
        "box2d 2.3.10 driven by tests/envs/hockey_oracle.py, one game, one process",
    )


def _training(config: dict[str, object], settings: SuiteOptions) -> float:
    asked = {"config": config, "seconds": settings.seconds}
    return float(run_worker("ours.ppo", asked, timeout=600.0)["steps_per_second"])


def hockey_ppo(settings: SuiteOptions) -> Iterable[Row]:
    """PPO against both bots with the suggested settings: physics, bots, policy and update."""
    measured = settings.alternate(
        lambda: _training(against_bots(), settings),
    )
    yield measured.row(
        "hockey_ppo",
        "training steps/s (64 x 64, the suggested settings, all cores)",
        Goal(">=", 250_000),
    )


def hockey_selfplay(settings: SuiteOptions) -> Iterable[Row]:
    """The same against 8 frozen snapshots, beside itself against bots."""
    measured = settings.alternate(
        lambda: _training(against_itself(), settings),
        lambda: _training(against_bots(), settings),
    )
    yield measured.row(
        "hockey_selfplay",
        "training steps/s (a pool of 8 snapshots; the peer is ours against bots)",
        Goal(">=", 0.6),
        "slipstream against both bots",
    )


def _replay(
    case: str, settings: SuiteOptions, agent: str, widths: list[int], batch: int, every: int,
    goal: float | None,
) -> Row:  # fmt: skip
    """One learner beside SB3's on the oracle, with the better number of torch's threads."""
    levels = 2 if agent == "dqn" else 0
    asked = {"agent": agent, "levels": levels, "batch": batch, "widths": widths}
    peer = best_peer(_SB3, asked, 1 / every, processes=True)
    own = {"widths": widths, "batch": batch, "updates_per_step": 1 / every}
    measured = settings.alternate(
        lambda: _training(from_a_replay(agent, levels, **own), settings),
        lambda: peer.rate(settings.seconds),
    )
    shape, steps = "x".join(map(str, widths)), "step" if every == 1 else f"{every} steps"
    return measured.row(
        case,
        f"training steps/s of one {agent} against the weak bot ({shape}, an update of {batch} rows "
        f"every {steps}: equal work)",
        None if goal is None else Goal(">=", goal),
        f"SB3 {agent.upper()} on box2d 2.3.10 under our oracle, {peer.name}",
    )


def hockey_dqn(settings: SuiteOptions) -> Iterable[Row]:
    """DQN, 14 choices, at SB3's own pace."""
    yield _replay("hockey_dqn", with_runs(settings, 3), "dqn", [64, 64], 64, 4, 15)


def hockey_dqn_large(settings: SuiteOptions) -> Iterable[Row]:
    """With the hockey project's networks, batches and pace: products are nearly all of it."""
    settings = with_runs(settings, 3)
    yield _replay("hockey_dqn_large", settings, "dqn", [256, 512, 256], 512, 1, None)


def hockey_sac(settings: SuiteOptions) -> Iterable[Row]:
    """SAC with the hockey project's networks, an update of 256 rows every step."""
    yield _replay("hockey_sac", with_runs(settings, 3), "sac", [256, 256, 256], 256, 1, 4)


def hockey_95(settings: SuiteOptions) -> Iterable[Row]:
    """Wall-clock from nothing to a policy that wins 95 % of its games against each bot."""
    answers = []
    with Neighbours() as neighbours:
        for seed in _SEEDS:
            asked = {"config": against_bots(seed=seed)}
            answers.append(run_worker("ours.hockey_wins", asked, timeout=_LIMIT))
    weak, strong = (
        statistics.median(a[f"won_{bot}"] for a in answers) for bot in ("weak", "strong")
    )
    steps = statistics.median(a["steps"] for a in answers)
    apart = statistics.median(a["warm_up"] for a in answers)
    yield race_row(
        "hockey_95",
        f"s from nothing to 95 % against both bots (median of {len(_SEEDS)} seeds; in 1,000 fresh "
        f"games each: weak {weak:.1%}, strong {strong:.1%}; {steps / 1e6:.0f} M steps; compiling "
        f"with an empty cache, {apart:.0f} s, apart)",
        Goal("<=", _HALF_AN_HOUR),
        answers,
        others_cpu=round(neighbours.share, 3),
        cells=tuple({"seed": seed, **a} for seed, a in zip(_SEEDS, answers, strict=True)),
    )


CASES: dict[str, Case] = {
    "hockey_step": hockey_step,
    "hockey_vs_real": hockey_vs_real,
    "hockey_ppo": hockey_ppo,
    "hockey_selfplay": hockey_selfplay,
    "hockey_dqn": hockey_dqn,
    "hockey_dqn_large": hockey_dqn_large,
    "hockey_sac": hockey_sac,
    "hockey_95": hockey_95,
}
FULL_ONLY = ("hockey_95",)
