"""What `slipstream doctor` finds out: about this machine, a target, or why a run was slow."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from slipstream.core.capacity import free_memory, total_memory, usable_cores
from slipstream.core.errors import ConfigError
from slipstream.core.storage import provenance
from slipstream.core.storage.csv_table import Columns
from slipstream.core.storage.resource_monitor import Cards
from slipstream.gym.gymnasium_environment import MAX_FOREIGN_ENVS
from slipstream.jit.cache import cache_folder
from slipstream.training.environments.factory import kind_of
from slipstream.training.environments.kernel_environment import KERNEL_COPIES, MARKET_COPIES
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import EvaluationConfig
from slipstream.training.settings.sizing import MIN_ITERATIONS

_CARD_GIB = 16.0  # where this machine has no card


def machine_rows() -> list[tuple[str, str]]:
    """(what, found) rows about the machine, the libraries, the cache and the choices of auto."""
    return [
        ("processor", provenance.processor()),
        ("cores", _usable_cores()),
        ("memory", _memory()),
        ("disk", _disk()),
        ("GPU", _gpu()),
        ("versions", ", ".join(f"{n} {v}" for n, v in provenance.versions().items() if v)),
        ("compiled kernels", _cache()),
        (
            "backend: auto",
            "compiled for kernels; gym:ID as `slipstream tune-machine` found it fastest here, else "
            "in worker processes where a step, measured at the start, is long enough for that",
        ),
        (
            "shards: auto",
            f"{usable_cores()}: one worker per physical core of this process",
        ),
        (
            "num_envs: auto",
            f"a power of two up to {MAX_FOREIGN_ENVS} (gym:ID), {MARKET_COPIES} (markets) or "
            f"{KERNEL_COPIES} (other kernels) that leaves a budget {MIN_ITERATIONS} iterations; "
            "of dqn, sac and td3 one, or one for each training record where the budget allows; the "
            "machine has no say. `slipstream tune-machine TARGET` measures other numbers",
        ),
    ]


def sizing_rows(target: str) -> list[tuple[str, str]]:
    """What `num_envs: auto` is for a target, and how its copies are stepped fastest here."""
    from slipstream.training.environments.autotune_cache import Tunable, recall
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.settings.config import resolve
    from slipstream.training.settings.sizing import choose_num_envs

    config, _ = resolve(target, {"training.num_envs": "auto"}).seated()
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = tunable = tunable.tried(config.training.stepping)
    rows = [(f"num_envs for {target}", choose_num_envs(config, environment).reason)]
    identity = None if tunable is None else tunable.identity
    if identity is None:
        return rows
    measured, notice = recall(identity)
    if measured is None:
        never = f"not measured: `slipstream tune-machine {shlex.quote(target)}` does it"
        return [*rows, ("fastest here", notice or never)]
    ways = ", ".join(
        f"{copies} by {way.backend}" + (f" ({way.workers})" if way.backend != "serial" else "")
        for copies, way in sorted(measured.ways.items())
    )
    return [*rows, ("fastest here", f"{ways}, as measured on {measured.date}")]


def capacity_rows(target: str) -> list[tuple[str, str]]:
    """How many copies fit this machine's memory and its card's; a few of them are stepped."""
    from slipstream.training.autotune import (
        envs_on_gpu,
        fit_sentence,
        measure_memory,
        rollout_each,
    )
    from slipstream.training.settings.config import resolve

    found = measure_memory(resolve(target).seated()[0])
    why = "; ".join(found.problems.values())
    cards = Cards().describe()
    size = float(cards[0]["memory_gib"]) if cards else _CARD_GIB
    most = envs_on_gpu(found, size * 2**30)
    here = f"a card of {size:.0f} GiB" + ("" if cards else " (there is none here)")
    card = "a replay and its copies stay with the processor: the card limits no number of copies"
    if most is not None:
        card = (
            f"{here}: about {float(f'{most:.2g}'):,.0f}, 0.8 x its memory / "
            f"{rollout_each(found) / 2**10:,.0f} KiB, a copy's rollout and update by their arrays"
        )
    return [("copies that fit", fit_sentence(found) or f"not measured: {why}"), ("on a card", card)]


def run_rows(path: str, trust: bool) -> list[tuple[str, str]]:
    """Why a run was as slow as it was."""
    return diagnose(Run.open(Path(path), trust=trust))


def kernel_rows(target: str) -> list[tuple[str, str]]:
    """What the check of a user's own kernel says; built-in environments need none.

    Raises:
        KernelError: the first rule that it breaks.
    """
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.settings.config import resolve

    config, _ = resolve(target).seated()
    environment = resolve_environment(config.env_name, config.env_settings)
    now = environment.check(config.env_settings)
    if now is None:
        return []
    return [("kernel check", "passed" if now else "passed before, with the same sources and data")]


def _usable_cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    text = f"{physical} physical, {os.cpu_count()} logical, {usable} usable by this process"
    if load > 0.5:
        text += f"; load {load:.1f}: others are computing, speeds will be lower"
    return text


def _memory() -> str:
    return f"{total_memory() / 2**30:.1f} GiB, {free_memory() / 2**30:.1f} GiB free"


def _disk() -> str:
    usage = psutil.disk_usage(str(Path.cwd()))
    text = f"{usage.free / 2**30:.1f} GiB free here"
    return text + "; a run may not fit" if usage.free < 2**30 else text


def _gpu() -> str:
    cards = Cards().describe()
    if not cards:
        return "none found (or no driver)"
    named = ", ".join(f"{card['name']} ({card['memory_gib']} GiB)" for card in cards)
    return f"{named}; --device cuda:N trains there"


def _cache() -> str:
    folder = cache_folder()
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files) / 2**20
    modules = sum(file.suffix == ".py" for file in files)
    mode = folder.stat().st_mode & 0o777
    text = f"{folder}: {modules} modules, {size:.1f} MiB, mode {mode:04o}"
    if mode & 0o077:
        text += "; others may enter it: chmod 700"
    return (
        text if os.access(folder, os.W_OK) else f"{text}; not writable, every start compiles anew"
    )


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
            "Starting took longest. It takes equally long for a longer training "
            "(training.total_timesteps); compiled code is cached for the next run."
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
            "(agent.net_arch). Several members trained at once share each product."
        )
    if largest == "policy":
        return (
            "Acting took longest: more copies share the cost of a decision (training.num_envs, now "
            f"{config.training.num_envs}; a budget then has fewer updates, so look at the scores), "
            "and smaller networks decide faster (agent.net_arch)."
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
