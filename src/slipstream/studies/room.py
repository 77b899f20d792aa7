"""What memory and disk must hold of a study: refused before anything is trained."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from slipstream.core.errors import ResourceError
from slipstream.core.spec import Spec
from slipstream.experience.replay.plan import replay_bytes
from slipstream.settings.config import RunConfig
from slipstream.studies.search.plan import StudyPlan, steps_of

_SPARE = 256 * 2**20  # bytes that a disk must have left


def check_disk(folder: Path, needed: int) -> None:
    """Refuses to begin what the disk cannot hold.

    Raises:
        ResourceError: with what is free and what is needed.
    """
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + _SPARE:
        raise ResourceError(
            f"The study needs about {(needed + _SPARE) / 2**30:.2f} GiB in {folder} (of it "
            f"{_SPARE / 2**30:.2f} to spare), and {free / 2**30:.2f} GiB are free there. Free some "
            "space, run it from a folder on another disk, or lower --n-trials (of an agent with a "
            "replay, agent.replay_size)."
        )


def check_memory(plan: StudyPlan, spec: Spec, observed: int | None) -> None:
    """Refuses to begin where a single member does not fit, or its replay: batches are made to.

    Args:
        plan, spec: of the study; observed: bytes that a replay may keep in
            place of an observation, see `Environment`.

    Raises:
        ResourceError: with the size and what to lower.
    """
    free = psutil.virtual_memory().available
    kept = max(kept_bytes(config, spec, observed) for config in plan.draws)
    if kept > free:
        raise ResourceError(
            f"The replay of one member needs {kept / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of "
            "memory are free. Lower agent.replay_size (or its range in study.space)."
        )
    alone = max(config.agent.bytes(spec, 1, copies_of(config)) for config in plan.draws) + kept
    if alone > free:
        raise ResourceError(
            f"One member of the study needs {alone / 2**30:,.1f} GiB with its copies, and "
            f"{free / 2**30:.1f} GiB of memory are free. Lower training.num_envs or the sizes of "
            "the agent (or their ranges in study.space)."
        )


def kept_sentence(draws: Sequence[RunConfig], kept: int) -> str:
    """What members keep of their experience, what is lost by that, and what it takes."""
    plans = [plan for config in draws if (plan := config.agent.replay(copies_of(config)))]
    most = max(plan.capacity for plan in plans)
    text = f"Of it are replays: a member keeps its last {most:,} transitions"
    if most < max(steps_of(config) for config in draws):
        text += ", and learns no more from older ones"
    return (
        f"{text}; it saves all of them, {kept / 2**20:,.1f} MiB at most, at the end of every "
        "stretch. agent.replay_size says how many."
    )


def kept_bytes(config: RunConfig, spec: Spec, observed: int | None) -> int:
    """What of it is a replay, which is saved with the member's state."""
    n = copies_of(config)
    plan = config.agent.replay(n)
    return 0 if plan is None else replay_bytes(plan, spec, 1, n, observed)


def copies_of(config: RunConfig) -> int:
    """N of a config whose number is known."""
    assert isinstance(config.training.num_envs, int)
    return config.training.num_envs
