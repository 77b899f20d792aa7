"""From nothing to one policy that beats both bots: wall-clock, and games that chose nothing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.ours.ppo import Stopwatch, train_by
from slipstream.bench.worker import serve
from slipstream.training.listeners.events import Evaluated, Event, Started
from slipstream.training.runs.best import best_policy
from slipstream.training.runs.games import Player, play
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.trainer import train

BOTS = ("weak", "strong")
_JUDGE, _FRESH = 7_000_001, 7_000_002  # seeds of games: those that stop training, those reported
_WORTH = 0.9  # share of the validation's games won, from which it is worth a closer look


class _Enough(Exception):  # noqa: N818  (nothing went wrong)
    """Leaves the trainer once the policy that validation chose is good enough."""


class _UntilBeaten:
    """Stops when the chosen policy wins the share of its games against each bot."""

    def __init__(self, run: Run, share: float, games: int) -> None:
        self.run, self.share, self.games = run, share, games
        self.began = self.ended = 0.0
        self.curve: list[tuple[float, int, float]] = []

    def __call__(self, event: Event) -> None:
        self.ended = time.perf_counter()
        if isinstance(event, Started):
            self.began = self.ended
        if not isinstance(event, Evaluated):
            return
        won = float(event.metrics["won"][0])
        self.curve.append((round(self.ended - self.began, 1), event.progress.steps, won))
        if event.best[0] and won >= _WORTH:
            shares = wins(self.run, self.games, _JUDGE)
            if min(shares.values()) >= self.share:
                self.ended = time.perf_counter()
                raise _Enough


def wins(run: Run, games: int, seed: int) -> dict[str, float]:
    """Share of games that the chosen policy wins against each bot, from both sides."""
    one = Player("learner", best_policy(run, 0), run.config.env_settings)
    found = {}
    for bot in BOTS:
        result = play(run.config.env_name, one, Player(bot), games, seed).result
        found[bot] = float((result == 1).mean())
    return found


def measure(config: Mapping[str, Any], share: float = 0.95, games: int = 1_000) -> dict[str, Any]:
    """Trains until the share is reached or the budget is spent.

    Returns:
        seconds of training, validations and looks included; whether the share was reached; seconds
        of an iteration before with an empty cache, which compiles (`warm_up`); steps; the curve
        (seconds, steps, share won in validation); shares of fresh games won.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        os.environ["SLIPSTREAM_CACHE"] = str(Path(folder) / "cache")  # empty: as a newcomer's
        began = time.perf_counter()
        train_by(config, Stopwatch(0.0))
        warm_up = time.perf_counter() - began
        resolved = RunConfig.from_mapping(config)
        began = time.perf_counter()
        run = Run.create(resolved, Path(folder) / "run")
        listener = _UntilBeaten(run, share, games)
        reached = False
        try:
            train(run.config, run, [listener])
        except _Enough:
            reached = True
        finally:
            run.close()
        fresh = wins(run, games, _FRESH)
    seconds, steps, _ = listener.curve[-1]
    return {
        "seconds": listener.ended - began,
        "reached": float(reached),
        "warm_up": warm_up,
        "training_seconds": seconds,
        "steps": steps,
        "curve": listener.curve,
        **{f"won_{bot}": share for bot, share in fresh.items()},
    }


if __name__ == "__main__":
    serve(measure)
