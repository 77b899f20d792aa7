"""Diagnostics of `slipstream doctor`: this machine, a target, or the speed of a run."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from slipstream.core.capacity import free_memory, total_memory, usable_cores
from slipstream.core.errors import ConfigError
from slipstream.core.storage import provenance
from slipstream.core.storage.csv_table import Columns
from slipstream.core.storage.resource_monitor import Gpus
from slipstream.gym.gymnasium_environment import MAX_FOREIGN_ENVS
from slipstream.jit.cache import cache_folder
from slipstream.training.environments.factory import get_kind
from slipstream.training.environments.kernel_environment import KERNEL_MAX_ENVS, MARKET_MAX_ENVS
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import EvaluationConfig
from slipstream.training.settings.sizing import MIN_ITERATIONS

_DEFAULT_GPU_GIB = 16.0  # assumed if this machine has no GPU


def machine_rows() -> list[tuple[str, str]]:
    """Return (item, finding) rows about the machine, libraries, cache and automatic choices."""
    return [
        ("CPU", provenance.cpu_model()),
        ("cores", _usable_cores()),
        ("memory", _memory()),
        ("disk", _disk()),
        ("GPU", _gpu()),
        ("versions", ", ".join(f"{n} {v}" for n, v in provenance.versions().items() if v)),
        ("compiled kernels", _cache()),
        (
            "backend: auto",
            "compiled for kernels. For gym:ID the fastest one measured by `slipstream "
            "autotune` here; without a measurement, worker processes if steps are slow, otherwise "
            "serial",
        ),
        (
            "shards: auto",
            f"{usable_cores()}: one per physical core that this process may use",
        ),
        (
            "num_envs: auto",
            f"ppo: the largest power of two that allows {MIN_ITERATIONS} iterations in the "
            f"budget, at most {MAX_FOREIGN_ENVS} (gym:ID), {MARKET_MAX_ENVS} (markets) or "
            f"{KERNEL_MAX_ENVS} (other kernels). dqn, sac, td3: 1, or one per training record if "
            "the budget allows. "
            "The same on every machine; `slipstream autotune TARGET` measures other numbers",
        ),
    ]


def sizing_rows(target: str) -> list[tuple[str, str]]:
    """Return the choice of `num_envs: auto` for a target, and the fastest measured backends."""
    from slipstream.training.environments.autotune_cache import Tunable, load_entry
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.settings.config import resolve
    from slipstream.training.settings.sizing import choose_num_envs

    config, _ = resolve(target, {"training.num_envs": "auto"}).with_opponent()
    environment = resolve_environment(config.env_name, config.env_settings)
    if tunable := environment.part(Tunable):
        environment = tunable = tunable.probed(config.training.stepping)
    rows = [(f"num_envs for {target}", choose_num_envs(config, environment).reason)]
    identity = None if tunable is None else tunable.identity
    if identity is None:
        return rows
    measured, notice = load_entry(identity)
    if measured is None:
        command = f"not measured; run `slipstream autotune {shlex.quote(target)}`"
        return [*rows, ("fastest here", notice or command)]
    listed = ", ".join(
        f"{num_envs} envs: {step.backend}"
        + (f" ({step.workers} workers)" if step.backend != "serial" else "")
        for num_envs, step in sorted(measured.configs.items())
    )
    return [*rows, ("fastest here", f"{listed}; measured on {measured.date}")]


def capacity_rows(target: str) -> list[tuple[str, str]]:
    """Return how many sub-environments fit the memory of this machine and its GPU.

    A few sub-environments are created and stepped for the measurement.
    """
    from slipstream.training.autotuner import (
        envs_on_gpu,
        measure_memory,
        memory_notice,
        rollout_bytes_per_env,
    )
    from slipstream.training.settings.config import resolve

    measurements = measure_memory(resolve(target).with_opponent()[0])
    problems = "; ".join(measurements.problems.values())
    gpus = Gpus().describe()
    size = float(gpus[0]["memory_gib"]) if gpus else _DEFAULT_GPU_GIB
    limit = envs_on_gpu(measurements, size * 2**30)
    gpu = "not limited by GPU memory: replay and sub-environments stay on the CPU"
    if limit is not None:
        gpu = (
            f"about {float(f'{limit:.2g}'):,.0f} on {size:.0f} GiB"
            + ("" if gpus else " (no GPU found here)")
            + f": 0.8 x GPU memory / {rollout_bytes_per_env(measurements) / 2**10:,.0f} KiB for "
            "the arrays of one sub-environment's rollout and update"
        )
    return [
        ("envs that fit", memory_notice(measurements) or f"not measured: {problems}"),
        ("envs on a GPU", gpu),
    ]


def run_rows(path: str, trust: bool) -> list[tuple[str, str]]:
    """Return rows that explain the speed of a run."""
    return diagnose(Run.open(Path(path), trust=trust))


def kernel_rows(target: str) -> list[tuple[str, str]]:
    """Check a user's kernel; return no rows for built-in environments.

    Raises:
        KernelError: the first rule that the kernel breaks.
    """
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.settings.config import resolve

    config, _ = resolve(target).with_opponent()
    environment = resolve_environment(config.env_name, config.env_settings)
    checked = environment.check(config.env_settings)
    if checked is None:
        return []
    result = "passed" if checked else "passed earlier with the same sources and data"
    return [("kernel check", result)]


def _usable_cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    text = f"{physical} physical, {os.cpu_count()} logical, {usable} usable by this process"
    if load > 0.5:
        text += f"; load {load:.1f}: other processes compete, expect lower speeds"
    return text


def _memory() -> str:
    return f"{total_memory() / 2**30:.1f} GiB, {free_memory() / 2**30:.1f} GiB free"


def _disk() -> str:
    usage = psutil.disk_usage(str(Path.cwd()))
    text = f"{usage.free / 2**30:.1f} GiB free here"
    return text + "; too little for some runs" if usage.free < 2**30 else text


def _gpu() -> str:
    gpus = Gpus().describe()
    if not gpus:
        return "none found (or no driver)"
    listed = ", ".join(f"{gpu['name']} ({gpu['memory_gib']} GiB)" for gpu in gpus)
    return f"{listed}; use it with --device cuda:N"


def _cache() -> str:
    folder = cache_folder()
    size, modules = 0, 0
    for parent, _, names in os.walk(folder):  # unlike rglob, skips folders that vanish
        modules += sum(name.endswith(".py") for name in names)
        for name in names:
            with suppress(FileNotFoundError):
                size += os.stat(os.path.join(parent, name)).st_size
    mode = folder.stat().st_mode & 0o777
    text = f"{folder}: {modules} modules, {size / 2**20:.1f} MiB, mode {mode:04o}"
    if mode & 0o077:
        text += "; accessible to other users, run chmod 700"
    if os.access(folder, os.W_OK):
        return text
    return f"{text}; not writable, so every start compiles again"


_LABELS = {
    "env": "environments",
    "policy": "acting",
    "update": "the update",
    "start": "start-up",
    "evaluation": "validation",
    "other": "other",
}
_TIMED = ("env", "policy", "update")


class Phases(NamedTuple):
    """Seconds that a run spent per phase, from its start to its last iteration.

    Attributes:
        env, policy, update: stepping environments, acting, learning.
        start: before the first iteration: processes, compilation, the first episodes.
        evaluation: validation.
        other: tables, curves and checkpoints.
        steps: trained environment steps of all members.
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
        """Return the share of the wall time spent in a phase, 0 to 1."""
        return float(getattr(self, name)) / max(self.wall, 1e-9)

    def max_speedup(self, name: str) -> float:
        """Return the speed-up if this phase took no time (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.share(name), 1e-9)


def measure_phases(run: Run) -> Phases:
    """Return the phases of a run from its tables.

    Raises:
        ConfigError: the run has not completed an iteration.
    """
    columns = run.metrics()
    if not columns.get("wall"):
        raise ConfigError(
            f"{run.path} has not completed an iteration, so there are no timings. Try again later."
        )
    steps, first = np.unique(_numbers(columns, "steps"), return_index=True)  # one row per member
    env, policy, update = (_numbers(columns, f"seconds_{n}")[first] for n in _TIMED)
    scoring = _numbers(columns, "seconds_validate")[first]
    rest = _numbers(columns, "wall")[first] - env - policy - update - scoring  # cumulative
    return Phases(
        env=float(env[-1]),
        policy=float(policy[-1]),
        update=float(update[-1]),
        start=max(0.0, float(rest[0])),
        evaluation=float(scoring[-1]),
        other=float(np.maximum(0.0, np.diff(rest)).sum()),
        steps=int(steps[-1]) * run.config.training.members,
    )


def _numbers(columns: Columns, name: str) -> NDArray[np.float64]:
    return np.array([float(value or 0.0) for value in columns.get(name, ())])


def diagnose(run: Run) -> list[tuple[str, str]]:
    """Return (item, sentences) rows: time by phase, possible speed-up, suggested change."""
    phases = measure_phases(run)
    shares = ", ".join(f"{label} {phases.share(name):.0%}" for name, label in _LABELS.items())
    rate = phases.steps / max(phases.wall, 1e-9)
    per_step = ", ".join(
        f"{_LABELS[name]} {1e6 * getattr(phases, name) / max(phases.steps, 1):,.3g}"
        for name in _TIMED
    )
    return [
        ("time", f"{phases.wall:,.1f} s, {rate:,.0f} steps/s: {shares}"),
        ("microseconds per step", per_step),
        ("more environments", _ceiling(phases)),
        ("what to change", _advice(run, phases)),
    ]


def _ceiling(phases: Phases) -> str:
    largest = max(_LABELS, key=phases.share)
    text = (
        "More sub-environments or workers cannot make this run more than "
        f"{phases.max_speedup('env'):.1f}x as fast"
    )
    if largest != "env":
        text += f"; {_LABELS[largest]} took {phases.share(largest):.0%}"
    return f"{text}."


def _advice(run: Run, phases: Phases) -> str:
    largest = max(_LABELS, key=phases.share)
    config = run.config
    if largest == "start":
        return (
            "Start-up took longest. Its share falls with a longer training "
            "(training.total_timesteps), and compiled code is cached for the next run."
        )
    if largest == "evaluation":
        return _evaluations(config.evaluation)
    if largest == "update":
        n = int(config.training.num_envs)
        agent, per_step = config.agent, config.agent.updates(n) / config.iteration_steps
        return (
            "The update took longest. More sub-environments do not speed it up: every environment "
            f"step costs {per_step:.3g} updates of {agent.rows(n):,} rows. Fewer or larger "
            "updates and smaller networks (agent.net_arch) are faster, but learn differently: "
            "compare the scores. Several members trained together share each matrix product."
        )
    if largest == "policy":
        return (
            "Acting took longest. More sub-environments share the cost of one forward pass "
            f"(training.num_envs, now {config.training.num_envs}); a budget then has fewer "
            "updates, so compare the scores. Smaller networks are faster (agent.net_arch)."
        )
    if largest == "other":
        return "Neither training nor evaluation took longest: check the disk and other processes."
    return _stepping(run)


def _evaluations(settings: EvaluationConfig) -> str:
    """Suggest a change of the evaluation settings."""
    episodes, every, longest = settings.episodes, settings.every, settings.max_steps
    if episodes == "auto":
        return (
            f"Validation took longest: evaluation.share is {settings.share:g} of the budget's "
            f"steps. `--set evaluation.share={settings.share / 4:g}` scores on fewer episodes, "
            "with a larger error."
        )
    cut = "" if longest == "auto" else f" of up to {longest:,} steps (evaluation.max_steps)"
    return (
        f"Validation took longest: evaluation.episodes is {episodes:,}{cut}, a fixed number. "
        f"`--set evaluation.episodes=auto` limits it to evaluation.share "
        f"({settings.share:g}) of the budget's steps; `--set evaluation.every="
        f"{min(1.0, 2.5 * every):g}` evaluates less often than every {every:g} of the budget."
    )


def _stepping(run: Run) -> str:
    name, training = run.config.env_name, run.config.training
    if get_kind(name).compiled:
        return (
            "Stepping took longest, and it is compiled already. More shards or members use more "
            "cores; `slipstream check` reports the cost of a kernel's own checks."
        )
    faster = "Rewriting the environment as a kernel is faster by orders of magnitude."
    measured = f"`slipstream autotune {shlex.quote(name)}` measures"
    if training.backend == "process":
        return (
            f"Stepping took longest, in worker processes. {measured} the fastest number of them "
            f"(training.workers). {faster}"
        )
    return (
        f"Stepping in Python took longest. {measured} whether worker processes (training.backend: "
        "process) or another num_envs are faster here, and `auto` uses the result. Worker "
        "processes do not pay off if one step of all sub-environments takes less than about 300 "
        f"microseconds. {faster}"
    )
