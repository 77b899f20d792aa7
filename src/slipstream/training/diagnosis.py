"""Why a run was as slow as it was, from the shares of time that it wrote down."""

from __future__ import annotations

from typing import NamedTuple

from slipstream.core.errors import ConfigError
from slipstream.training.factory import kind_of
from slipstream.training.kernel_environment import KernelEnvironment
from slipstream.training.run import Run

_MOSTLY = 0.5  # share of the time from which a phase is what to look at


class Phases(NamedTuple):
    """Seconds of a run: in environments, acting, learning, and all else.

    Attributes:
        other: starting, evaluations, checkpoints and tables.
    """

    env: float
    policy: float
    update: float
    other: float

    @property
    def wall(self) -> float:
        return sum(self)

    def share(self, name: str) -> float:
        """Of the whole, 0 to 1."""
        return float(getattr(self, name)) / max(self.wall, 1e-9)

    def most(self, name: str) -> float:
        """How many times faster all could be if this phase took no time at all (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.share(name), 1e-9)


def phases_of(run: Run) -> Phases:
    """Of a run's newest row of metrics.

    Raises:
        ConfigError: it has not trained yet.
    """
    columns = run.metrics()
    if not columns.get("wall"):
        raise ConfigError(f"{run.path} has not trained an iteration yet: there is nothing to time.")

    def last(name: str) -> float:
        return float(columns[name][-1] or 0.0)

    env, policy, update = (last(f"seconds_{name}") for name in ("env", "policy", "update"))
    return Phases(env, policy, update, max(0.0, last("wall") - env - policy - update))


def diagnose(run: Run) -> list[tuple[str, str]]:
    """(what, sentences): where the time went, what more environments could give, what to change."""
    phases = phases_of(run)
    shown = ", ".join(f"{label} {phases.share(name):.0%}" for name, label in _LABELS.items())
    most = phases.most("env")
    largest = max(("env", "policy", "update"), key=phases.share)
    ceiling = (
        f"Environments that cost nothing, however many or on however many workers, could not make "
        f"it more than {most:.1f}x as fast"
    )
    if largest != "env":
        ceiling += f"; {_LABELS[largest]} takes {phases.share(largest):.0%}"
    return [
        ("time", f"{phases.wall:,.1f} s: {shown}"),
        ("more environments", f"{ceiling}."),
        ("what to change", _advice(run, phases, largest)),
    ]


_LABELS = {
    "env": "environments",
    "policy": "acting",
    "update": "the update",
    "other": "all else (starting, evaluations, checkpoints)",
}


def _advice(run: Run, phases: Phases, largest: str) -> str:
    training = run.config.training
    if phases.share("other") > _MOSTLY:
        return (
            "Most of the time went beside training: train longer, validate less often "
            "(evaluation.every) or on fewer episodes (evaluation.episodes)."
        )
    if largest == "update":
        return (
            "The update is what takes long, and no vectorization helps there: give it less to do "
            "(agent.epochs, agent.widths), larger minibatches, or train several members at once, "
            "which share each product."
        )
    if largest == "policy":
        return (
            "Acting is what takes long: more copies share the cost of a decision "
            "(training.num_envs; fewer updates in a budget, so look at the scores), and smaller "
            "networks decide faster (agent.widths)."
        )
    if kind_of(run.config.env_name) is KernelEnvironment:
        return (
            "Stepping is what takes long, and it is compiled already: more shards or members use "
            "more cores; `slipstream check` says what a kernel's own checks cost."
        )
    if training.backend == "process":
        return (
            "Stepping is what takes long, in worker processes already: as many workers as cores "
            "(training.workers), and `double_buffer: true` for a lone member if acting takes a "
            "share, too. Faster than that is only another environment: write it as a kernel."
        )
    return (
        "Stepping in Python is what takes long: `training.backend: process` uses the other cores "
        "where a step of all copies takes longer than some 300 microseconds, below which "
        "processes cost more than they give; faster by orders is a kernel."
    )
