"""What faces cost: Gymnasium's beside our own interface, SB3's beside its own environments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slipstream.bench.row import Goal, Row
from slipstream.bench.suite import SuiteOptions, with_runs
from slipstream.bench.worker import run_worker

_LEARN_COPIES = 64


def _through(through: str, num_envs: int, seconds: float) -> float:
    asked = {"through": through, "num_envs": num_envs, "seconds": seconds}
    return float(run_worker("ours.face_steps", asked, threads=1)["steps_per_second"])


def face_cost(settings: SuiteOptions) -> Iterable[Row]:
    """CartPole's kernel, 1,024 copies through Gymnasium's face (NEXT_STEP)."""
    for through, name in (
        ("values", "our `step` that returns fresh arrays, too"),
        ("arrays", "our `step` into the caller's arrays, as training calls it"),
    ):
        measured = settings.alternate(
            lambda: _through("gymnasium", 1024, settings.seconds),
            lambda through=through: _through(through, 1024, settings.seconds),  # type: ignore[misc]
        )
        unit = "steps/s (kernel of CartPole, 1,024 copies, Gymnasium's face)"
        yield measured.row("face_cost", unit, Goal(">=", 0.5), name)


def sb3_on_us(settings: SuiteOptions) -> Iterable[Row]:
    """Stepping CartPole's kernel through SB3's face; then SB3's PPO on it, end to end."""
    dummy = {"kind": "sb3_dummy", "env": "CartPole-v1", "num_envs": 64}

    def theirs() -> float:
        found = run_worker("peers.vector_layers", {**dummy, "seconds": settings.seconds}, threads=1)
        return float(found["steps_per_second"])

    measured = settings.alternate(
        lambda: _through("sb3", 64, settings.seconds),
        theirs,
    )
    unit = "steps/s (CartPole, 64 copies, SB3's VecEnv face)"
    yield measured.row("sb3_on_us", unit, Goal(">=", 5), "SB3 DummyVecEnv")
    settings = with_runs(settings, 3)
    steps = _LEARN_COPIES * 64 * (8 if settings.full else 3)

    def learn(kind: str) -> dict[str, Any]:
        asked = {"kind": kind, "num_envs": _LEARN_COPIES, "steps": steps, "threads": 1}
        return run_worker("peers.sb3_ppo_faces", asked, threads=1)

    def without_environment() -> float:
        found = learn("dummy")
        return steps / (found["seconds"] - found["stepping"])

    end_to_end = settings.alternate(
        lambda: steps / learn("ours")["seconds"],
        without_environment,
    )
    yield end_to_end.row(
        "sb3_on_us",
        f"steps/s (SB3's PPO on our face, end to end, {_LEARN_COPIES} copies)",
        Goal(">=", 0.9),
        "Amdahl's bound: SB3's PPO without the time of its environments",
    )


def infos(settings: SuiteOptions) -> Iterable[Row]:
    """Five numbers in every info, 64 copies: processor time of a step through Gymnasium's face."""

    def side(kind: str) -> float:
        asked = {"kind": kind, "env": "says", "num_envs": 64, "seconds": settings.seconds}
        return 1e6 * float(run_worker("peers.vector_layers", asked, threads=1)["cpu"])

    measured = settings.alternate(
        lambda: side("face"),
        lambda: side("gym_async"),
        less_is_better=True,
    )
    unit = "us of processor time a step, all processes (5 numbers in every info, 64 copies)"
    yield measured.row("infos", unit, None, "Gymnasium AsyncVectorEnv, shared memory")
