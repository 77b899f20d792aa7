"""What `slipstream doctor` finds out."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import psutil

from slipstream.core.capacity import free_memory, total_memory, usable_cores
from slipstream.core.storage import provenance
from slipstream.core.storage.machine import Cards
from slipstream.gym.gymnasium_environment import FOREIGN_COPIES
from slipstream.jit.cache import cache_folder
from slipstream.training.environments.kernel_environment import KERNEL_COPIES, MARKET_COPIES
from slipstream.training.settings.sizing import MIN_ITERATIONS

_CARD_GIB = 16.0  # where this machine has no card


def checkup() -> list[tuple[str, str]]:
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
            f"a power of two up to {FOREIGN_COPIES} (gym:ID), {MARKET_COPIES} (markets) or "
            f"{KERNEL_COPIES} (other kernels) that leaves a budget {MIN_ITERATIONS} iterations; "
            "of dqn, sac and td3 one, or one for each training record where the budget allows; the "
            "machine has no say. `slipstream tune-machine TARGET` measures other numbers",
        ),
    ]


def sizing_rows(target: str) -> list[tuple[str, str]]:
    """What `num_envs: auto` is for a target, and how its copies are stepped fastest here."""
    from slipstream.training.environments.factory import resolve_environment
    from slipstream.training.environments.machine_file import Tunable, recall
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
    measured, passed_over = recall(identity)
    if measured is None:
        never = f"not measured: `slipstream tune-machine {shlex.quote(target)}` does it"
        return [*rows, ("fastest here", passed_over or never)]
    ways = ", ".join(
        f"{copies} by {way.backend}" + (f" ({way.workers})" if way.backend != "serial" else "")
        for copies, way in sorted(measured.ways.items())
    )
    return [*rows, ("fastest here", f"{ways}, as measured on {measured.date}")]


def copies_rows(target: str) -> list[tuple[str, str]]:
    """How many copies fit this machine's memory and its card's; a few of them are stepped."""
    from slipstream.training.autotune.findings import fit_sentence, on_card, rollout_each
    from slipstream.training.autotune.tuner import measure_memory
    from slipstream.training.settings.config import resolve

    found = measure_memory(resolve(target).seated()[0])
    why = "; ".join(found.problems.values())
    cards = Cards().describe()
    size = float(cards[0]["memory_gib"]) if cards else _CARD_GIB
    most = on_card(found, size * 2**30)
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
    from slipstream.training.runs.diagnosis import diagnose
    from slipstream.training.runs.run import Run

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
