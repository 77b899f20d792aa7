"""Why a run was as slow as it was, from the times that it wrote down."""

from __future__ import annotations

import shlex
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.storage.table import Columns
from slipstream.training.environments.factory import kind_of
from slipstream.training.runs.run import Run
from slipstream.training.settings.sections import EvaluationConfig

_LABELS = {
    "env": "environments",
    "policy": "acting",
    "update": "the update",
    "start": "starting",
    "evaluation": "validation",
    "other": "all else",
}
_TIMED = ("env", "policy", "update")


class Phases(NamedTuple):
    """Seconds of a run, from its beginning to its last iteration.

    Attributes:
        env, policy, update: in environments, acting, learning.
        start: before the first iteration: processes, compiling, the first episodes.
        evaluation: scoring policies.
        other: tables, curves and checkpoints.
        steps: that were trained, of all members.
    """

    env: float
    policy: float
    update: float
    start: float
    evaluation: float
    other: float
    steps: int

    @property
    def wall(self) -> float:
        return float(sum(self[:-1]))

    def share(self, name: str) -> float:
        """How much of the whole a part took, 0 to 1."""
        return float(getattr(self, name)) / max(self.wall, 1e-9)

    def most(self, name: str) -> float:
        """How many times faster all could be if this phase took no time at all (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.share(name), 1e-9)


def phases_of(run: Run) -> Phases:
    """From the run's tables.

    Raises:
        ConfigError: it has not trained yet.
    """
    columns = run.metrics()
    if not columns.get("wall"):
        raise ConfigError(f"{run.path} has not trained an iteration yet: there is nothing to time.")
    steps, first = np.unique(_numbers(columns, "steps"), return_index=True)  # a row a member
    env, policy, update = (_numbers(columns, f"seconds_{n}")[first] for n in _TIMED)
    scoring = _numbers(columns, "seconds_validate")[first]
    beside = _numbers(columns, "wall")[first] - env - policy - update - scoring  # so far
    return Phases(
        env=float(env[-1]),
        policy=float(policy[-1]),
        update=float(update[-1]),
        start=max(0.0, float(beside[0])),
        evaluation=float(scoring[-1]),
        other=float(np.maximum(0.0, np.diff(beside)).sum()),
        steps=int(steps[-1]) * run.config.training.members,
    )


def _numbers(columns: Columns, name: str) -> NDArray[np.float64]:
    return np.array([float(value or 0.0) for value in columns.get(name, ())])


def diagnose(run: Run) -> list[tuple[str, str]]:
    """(what, sentences): where the time went, what more environments could give, what to change."""
    phases = phases_of(run)
    shown = ", ".join(f"{label} {phases.share(name):.0%}" for name, label in _LABELS.items())
    rate = phases.steps / max(phases.wall, 1e-9)
    per_step = ", ".join(
        f"{_LABELS[name]} {1e6 * getattr(phases, name) / max(phases.steps, 1):,.3g}"
        for name in _TIMED
    )
    return [
        ("time", f"{phases.wall:,.1f} s, {rate:,.0f} steps/s: {shown}"),
        ("microseconds a step", per_step),
        ("more environments", _ceiling(phases)),
        ("what to change", _advice(run, phases)),
    ]


def _ceiling(phases: Phases) -> str:
    most = phases.most("env")
    largest = max(_LABELS, key=phases.share)
    said = (
        f"Environments that cost nothing, however many or on however many workers, could not make "
        f"it more than {most:.1f}x as fast"
    )
    if largest != "env":
        said += f"; {_LABELS[largest]} took {phases.share(largest):.0%}"
    return f"{said}."


def _advice(run: Run, phases: Phases) -> str:
    largest = max(_LABELS, key=phases.share)
    config = run.config
    if largest == "start":
        return (
            "Starting took longest: it is the same for a longer training (training.total_steps), "
            "and compiled code is kept for the next one."
        )
    if largest == "evaluation":
        return _evaluations(config.evaluation)
    if largest == "update":
        n = int(config.training.num_envs)
        agent, each = config.agent, config.agent.updates(n) / config.iteration_steps
        return (
            f"The update took longest, and no vectorization helps there: each step of experience "
            f"is paid with {each:.3g} updates of {agent.rows(n):,} rows. Fewer or larger ones are "
            "quicker and learn otherwise, so look at the scores; so do smaller networks "
            "(agent.widths). Several members trained at once share each product."
        )
    if largest == "policy":
        return (
            "Acting took longest: more copies share the cost of a decision (training.num_envs, now "
            f"{config.training.num_envs}; a budget then has fewer updates, so look at the scores), "
            "and smaller networks decide faster (agent.widths)."
        )
    if largest == "other":
        return "What took longest is neither training nor evaluation: a slow disk, or other work."
    return _stepping(run)


def _evaluations(settings: EvaluationConfig) -> str:
    """Which setting makes them take so long."""
    episodes, every, longest = settings.episodes, settings.every, settings.max_steps
    if episodes == "auto":
        return (
            f"Validation took longest: evaluation.share is {settings.share:g} of the budget's "
            f"steps. `--set evaluation.share={settings.share / 4:g}` scores on fewer episodes, "
            "with a larger error."
        )
    cut = "" if longest == "auto" else f" of up to {longest:,} steps (evaluation.max_steps)"
    return (
        f"Validation took longest: evaluation.episodes is {episodes:,}{cut}, given as a number and "
        f"so whatever it takes. `--set evaluation.episodes=auto` bounds it to evaluation.share "
        f"({settings.share:g}) of the budget's steps; `--set evaluation.every="
        f"{min(1.0, 2.5 * every):g}` evaluates less often than every {every:g} of the budget."
    )


def _stepping(run: Run) -> str:
    name, training = run.config.env_name, run.config.training
    if kind_of(name).compiled:
        return (
            "Stepping took longest, and it is compiled already: more shards or members use more "
            "cores; `slipstream check` says what a kernel's own checks cost."
        )
    faster = "Faster by orders is only another environment: write it as a kernel."
    measured = f"`slipstream tune-machine {shlex.quote(name)}` measures"
    if training.backend == "process":
        return (
            f"Stepping took longest, in worker processes: {measured} how many of them are fastest "
            f"(training.workers). {faster}"
        )
    return (
        f"Stepping in Python took longest: {measured} whether worker processes (training.backend: "
        "process) or other numbers of copies are faster here, and `auto` goes by it from then on; "
        "below some 300 microseconds for a step of all copies they cost more than they give. "
        f"{faster}"
    )
