"""What a terminal shows while training: one live line, or plain lines where nobody can redraw."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, cast

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from slipstream.core.printable import printable_lines
from slipstream.training.listeners.events import (
    Checkpointed,
    Evaluated,
    Event,
    Failed,
    Finished,
    Started,
    Updated,
)
from slipstream.training.listeners.node_lines import cluster_part
from slipstream.training.listeners.output import steady
from slipstream.training.listeners.progress import Progress
from slipstream.training.listeners.recent_episodes import PREFIX

_REDRAWS = 8  # of the live line, per second
_PLAIN_SECONDS = 10.0  # between plain lines
_SHOWN = 2  # of an environment's own metrics; the tables have all
_RECENT_SECONDS = 5.0  # what steps/s is the mean of


class ConsoleListener:
    """Shows progress on a terminal.

    Args:
        console: where to.
        clock: seconds; replaced in tests.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(file=cast(TextIO, steady(sys.stdout)), highlight=False)
        self._clock = clock
        self._live: Live | None = None
        self._speed = Speed()
        self._members = 1
        self._drawn = -1e9

    def __call__(self, event: Event) -> None:
        """Listens."""
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Updated):
            self._update(event)
        elif isinstance(event, Evaluated):
            self.say(evaluation_line(event))
        elif isinstance(event, Checkpointed):
            if not self._console.is_terminal:
                return
            self._draw_note(event)
        elif isinstance(event, Failed):
            self.say(f"Member {event.member} stopped: {event.reason}.", "red")
        elif isinstance(event, Finished):
            self.close()
            self.say(finished_line(event, self._members))
            for line in result_lines(event.result):
                self.say(line)

    def close(self) -> None:
        """Takes the live line away; also safe after an interruption."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self, event: Started) -> None:
        self._members = event.members
        for note in event.notes:
            self.say(f"Note: {note}", "yellow")
        self.say(started_line(event))
        if self._console.is_terminal:
            self._live = Live(
                Text(""),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()

    def _update(self, event: Updated) -> None:
        now = self._clock()
        self._speed.add(now, event.progress.steps * self._members)
        wait = 1 / _REDRAWS if self._live is not None else _PLAIN_SECONDS
        if now - self._drawn < wait and not (self._live is None and event.progress.finished):
            return
        self._drawn = now
        line = progress_line(event, self._members, self._speed.per_second)
        if self._live is not None:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self.say(line)

    def _draw_note(self, event: Checkpointed) -> None:
        if self._live is not None:
            self._live.update(
                Text(f"checkpoint at {count(event.progress.steps)} steps"), refresh=True
            )

    def say(self, line: str, style: str | None = None) -> None:
        """Prints a sentence above the live line."""
        self._console.print(Text(printable_lines(line), style=style or ""), soft_wrap=True)


class Speed:
    """Steps per second over the last few seconds."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def add(self, now: float, steps: int) -> None:
        """All members' `steps` at time `now`."""
        self._marks.append((now, steps))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RECENT_SECONDS:
            self._marks.pop(0)

    @property
    def per_second(self) -> float:
        """NaN before the second mark."""
        if len(self._marks) < 2:
            return float("nan")
        (t0, s0), (t1, s1) = self._marks[0], self._marks[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else float("nan")


def progress_line(event: Updated, members: int, per_second: float) -> str:
    """`` 42 %  210,000 steps  118 k steps/s  env 21 policy 30 update 49 %  score 9  ETA 0:12``."""
    progress = event.progress
    speed = (
        per_second
        if np.isfinite(per_second)
        else progress.steps * members / max(progress.wall, 1e-9)
    )
    parts = [
        f"{progress.fraction * 100:3.0f} %",
        f"{count(progress.steps)} steps",
        f"{short(speed)} steps/s",
        shares(progress),
    ]
    if "score" in event.metrics:
        parts.append(f"score {spread(event.metrics['score'])}")
    own = [name for name in event.metrics if name.startswith(PREFIX)]
    for name in own[:_SHOWN]:
        parts.append(f"{name.removeprefix(PREFIX)} {spread(event.metrics[name])}")
    if event.nodes:
        parts.append(cluster_part(event.nodes, stretches=False))
    left = (progress.budget - progress.steps) * members
    if speed > 0 and left > 0:
        parts.append(f"ETA {clock(left / speed)}")
    return "  ".join(part for part in parts if part)


def shares(progress: Progress) -> str:
    """Share of the time spent in the environment, the policy and the update."""
    seconds = [progress.seconds_env, progress.seconds_policy, progress.seconds_update]
    total = sum(seconds)
    if total <= 0:
        return ""
    env, policy, update = (100 * one / total for one in seconds)
    return f"env {env:.0f} policy {policy:.0f} update {update:.0f} %"


def started_line(event: Started) -> str:
    """What begins, in words."""
    progress = event.progress
    begins = f"Resuming at {count(progress.steps)} steps:" if event.resumed else "Training"
    who = "1 member" if event.members == 1 else f"{event.members} members"
    workers = "1 shard" if event.shards == 1 else f"{event.shards} shards"
    each = "" if event.members == 1 else " each"
    copies = "environment" if event.num_envs == 1 else "environments"
    return (
        f"{begins} {who}, {count(event.num_envs)} {event.backend} {copies}{each}, "
        f"{count(progress.budget)} steps{each}, {workers}, {event.device}"
    )


def evaluation_line(event: Evaluated) -> str:
    """A split's score at a step, and whether it is the best so far."""
    score = f"{split_name(event.split)} score {spread(event.scores)}"
    line = f"{count(event.progress.steps):>12} steps  {score}"
    better = sum(event.best)
    if not better:
        return line
    return (
        f"{line}  best"
        if len(event.scores) == 1
        else f"{line}  best for {better} of {len(event.scores)}"
    )


def finished_line(event: Finished, members: int) -> str:
    """What the whole training took."""
    progress = event.progress
    speed = progress.steps * members / max(progress.wall, 1e-9)
    return (
        f"{count(progress.steps * members)} steps in {clock(progress.wall)} "
        f"({short(speed)} steps/s; {shares(progress)})"
    )


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """`result.json` in words: the best score of every member and what the unseen split says."""
    members = result.get("members") or []
    if not members:
        return []
    best = [_or_nan(one.get("best_score")) for one in members]
    split = split_name(str(result.get("chosen_on")))
    lines = [f"Best {split} score ({result.get('score_is')}): {spread(best)}"]
    test = [_or_nan(one.get("test_score")) for one in members]
    if np.isfinite(test).any():
        lines.append(f"{measured_on(result)} those policies score {spread(test)}{errors(members)}")
    last = [_or_nan(one.get("last_score")) for one in members]
    if np.isfinite(last).any():
        lines.append(f"The last policies score {spread(last)} there")
    failed = [str(one.get("member")) for one in members if one.get("failed")]
    if failed:
        lines.append(f"Failed members: {', '.join(failed)}")
    return lines


def measured_on(result: Mapping[str, Any]) -> str:
    """``On 100 fresh episodes``, or ``On the test split``."""
    episodes = result.get("test_episodes")
    return f"On {count(episodes)} fresh episodes" if episodes else "On the test split"


def errors(members: Sequence[Mapping[str, Any]]) -> str:
    """Largest standard error of the members' results, where it is known."""
    known = [one["test_error"] for one in members if one.get("test_error") is not None]
    if not known:
        return ""
    most = "" if len(members) == 1 else " at most"
    return f" (standard error{most} {number(max(known))})"


def split_name(split: str) -> str:
    """What people call a split; a game without splits is simply evaluated."""
    return "evaluation" if split == "train" else split


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def spread(values: Any) -> str:
    """One value, or mean and range over members; ``-`` before there is one."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return "-"
    if len(finite) == 1:
        return number(finite[0])
    lowest, highest = number(finite.min()), number(finite.max())
    return f"{number(finite.mean())} ({lowest} to {highest})"


def number(value: float) -> str:
    """Four significant digits, all digits of large numbers."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def count(value: int) -> str:
    """Thousands separated: ``210,000``."""
    return f"{value:,}"


def short(value: float) -> str:
    """``950``, ``118 k``, ``1.24 M``."""
    if value < 1_000:
        return f"{value:.0f}"
    return f"{value / 1e3:.0f} k" if value < 1e6 else f"{value / 1e6:.2f} M"


def clock(seconds: float) -> str:
    """``0:12`` or ``1:02:03``."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
