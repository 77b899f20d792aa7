"""Progress reporter: a training's events as a `Status` and as lines, for terminals and logbooks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

from slipstream.core.storage.status_file import Status, phases_part
from slipstream.core.text import (
    duration,
    format_count,
    format_significant,
    mean_and_range,
    mean_low_high,
    plural,
)
from slipstream.training.callbacks import events as on
from slipstream.training.callbacks.events import PREFIX, Progress

_SHOWN = 2  # displayed metrics of an environment; the tables have all
_RECENT_SECONDS = 5.0  # window of the mean steps/s


class ProgressSink(Protocol):
    """Output of a progress reporter: a terminal or a logbook; see `ConsoleCallback` and
    `Logbook`.
    """

    @property
    def due(self) -> bool: ...
    def show(self, status: Status, at_once: bool = False) -> None: ...
    def log(self, line: str, style: str = "") -> None: ...
    def log_event(self, event: str, line: str = "", style: str = "", **fields: Any) -> None: ...


class ProgressReporter:
    """Callback that turns events into a status and lines.

    Args:
        sink: output of status and lines.
        clock: time in seconds; replaced in tests.
    """

    def __init__(self, sink: ProgressSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._clock = sink, clock
        self._members = 1
        self._episodes: int | None = None  # episodes per member that end the run, or None
        self._ended = 0  # completed episodes of all members
        self._marks: list[tuple[float, int]] = []  # recent seconds and steps of all members
        self._status = Status("run")

    def __call__(self, event: on.Event) -> None:
        """Handle an event."""
        sink, progress = self._sink, event.progress
        steps = progress.steps * self._members
        if isinstance(event, on.Updated):
            self._mark(steps)
            self._ended = int(sum(event.metrics.get("episodes", ())))
            compiled = self._status.phase == "compiling"  # up to this event
            if sink.due or progress.finished or compiled:
                self._show(progress, compiled, **self._news(event))
        elif isinstance(event, on.Entered):
            self._show(progress, phase=event.phase)
        elif isinstance(event, on.Started):
            self._members, self._episodes = event.members, event.episodes
            self._ended = event.ended
            for note in event.notes:
                sink.log(f"Note: {note}", "yellow")
            for line in started_lines(event):
                sink.log(line)
            self._mark(progress.steps * event.members)
            first = {"score": event.best} if event.best > -math.inf else {}
            self._show(progress, phase="compiling", notes=event.notes, best=first)
        elif isinstance(event, on.Evaluated):
            better = [s for s, best in zip(event.scores, event.best, strict=False) if best]
            highest = self._status.best.get("score", -math.inf)
            best = {"score": max(highest, *map(float, better))} if better else self._status.best
            evaluation = {"split": event.split, "scores": event.scores, "best": event.best}
            sink.log_event("validated", evaluation_line(event), "", steps=steps, **evaluation)
            self._show(progress, False, phase="training", best=best)
        elif isinstance(event, on.Checkpointed):
            sink.log_event("checkpoint", steps=steps, folder=event.path.name)
            self._show(progress, False, phase="training")
        elif isinstance(event, on.Failed):
            line = f"Member {event.member} stopped: {event.reason}."
            sink.log_event("member failed", line, "red", steps=steps, member=event.member)
        elif isinstance(event, on.Finished):
            self._show(progress, False, phase="training", running=(), eta=None)
            sink.log_event("finished", finished_line(progress, self._members), steps=steps)
            members, columns = event.result.get("members", ()), ("best_score", "test_score")
            columns_by_name = {name: [member.get(name) for member in members] for name in columns}
            sink.log_event("result", "", "", **columns_by_name)

    def _show(self, progress: Progress, at_once: bool = True, **changes: Any) -> None:
        completed = progress.steps * self._members  # the last rollout may exceed the budget
        total = max(completed, progress.budget * self._members)
        if self._episodes is not None:
            total = self._episodes * self._members
            completed = min(self._ended, total)
            changes |= {"unit": "episodes"}
        changes |= {"completed": completed, "total": total, "phases": phases_of(progress)}
        self._status = replace(self._status, **changes)
        self._sink.show(self._status, at_once)

    def _mark(self, steps: int) -> None:
        self._marks.append((self._clock(), steps))
        while len(self._marks) > 2 and self._marks[1][0] < self._marks[-1][0] - _RECENT_SECONDS:
            self._marks.pop(0)

    def _news(self, event: on.Updated) -> dict[str, Any]:
        (t0, s0), (t1, s1) = self._marks[0], self._marks[-1]
        metrics = [name for name in event.metrics if name.startswith(PREFIX)][:_SHOWN]
        scores = {name: mean_low_high(event.metrics.get(name, ())) for name in ("score", *metrics)}
        return {
            "phase": "training",
            "rate": (s1 - s0) / (t1 - t0) if t1 > t0 else None,
            "eta": event.eta,
            "scores": {name: summary for name, summary in scores.items() if summary},
            "running": [{"member": member} for member in event.members],
            "machine": asdict(event.machine) if event.machine else {},
            "nodes": tuple(event.nodes),
        }


def phases_of(progress: Progress) -> dict[str, float]:
    """Return seconds by phase; `other` is compiling and writing."""
    names = ("env", "policy", "update", "validate")
    seconds: dict[str, float] = {name: getattr(progress, f"seconds_{name}") for name in names}
    return {**seconds, "other": max(0.0, progress.wall - sum(seconds.values()))}


def started_lines(event: on.Started) -> tuple[str, str]:
    """Format the start of a training."""
    progress, suffix = event.progress, "" if event.members == 1 else " each"
    length = (
        f"{progress.budget:,} steps" if event.episodes is None else f"{event.episodes:,} episodes"
    )
    start = f"Resuming at {progress.steps:,} steps:" if event.resumed else "Training"
    return (
        f"{start} {plural(event.members, 'member')}, {length}{suffix}, "
        f"{plural(event.shards, 'shard')}, {event.device}",
        vectorized_line(event.num_envs, event.backend) + (suffix and ", for each member"),
    )


def vectorized_line(num_envs: int, backend: str) -> str:
    """Return ``Using Vectorized Environments: 8 parallel envs (compiled)``."""
    return (
        f"Using Vectorized Environments: {num_envs} parallel env{'s' * (num_envs > 1)} ({backend})"
    )


def evaluation_line(event: on.Evaluated) -> str:
    """Format a split's score at a step, and whether it is the best so far."""
    score = f"{split_name(event.split)} score {mean_and_range(event.scores)}"
    num_better, total = sum(event.best), len(event.scores)
    best = (
        ("  new best" if total == 1 else f"  new best for {num_better} of {total}")
        if num_better
        else ""
    )
    return f"{event.progress.steps:>12,} steps  {score}{best}"


def finished_line(progress: Progress, members: int) -> str:
    """Format the steps, time and speed of the whole training."""
    steps = progress.steps * members
    speed = format_count(steps / max(progress.wall, 1e-9))
    shares = phases_part(phases_of(progress))
    return f"{steps:,} steps in {duration(progress.wall)} ({speed} steps/s; {shares})"


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Format `result.json`: the best score of every member and the test result."""
    members, episodes = result.get("members") or [], result.get("test_episodes")
    columns = ("best_score", "test_score", "last_score", "test_error")
    best, test, last, error = (
        [member[name] for member in members if member.get(name) is not None] for name in columns
    )
    failed = [str(member.get("member")) for member in members if member.get("failed")]
    location = f"On {episodes:,} fresh episodes" if episodes else "On the test split"
    qualifier = "" if len(members) == 1 else " at most"
    error_text = f" (standard error{qualifier} {format_significant(max(error))})" if error else ""
    score = f"{split_name(str(result.get('chosen_on')))} score ({result.get('score_is')})"
    lines = [
        f"Best {score}: {mean_and_range(best)}" if members else "",
        f"{location} those policies score {mean_and_range(test)}{error_text}" if test else "",
        f"The last policies score {mean_and_range(last)} there" if last else "",
        f"Failed members: {', '.join(failed)}" if failed else "",
    ]
    return [line for line in lines if line]


def split_name(split: str) -> str:
    """Return the display name of a split; "evaluation" for a game without splits."""
    return "evaluation" if split == "train" else split
