"""slipstream's trainer: its speed, and its seconds to a score or to a share of games won."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import slipstream
from benchmarks.fresh_episodes import fresh_returns
from benchmarks.worker import steps_per_second
from slipstream.jit.work_sharing import in_sequence
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.training.callbacks.events import Evaluated, Event, Started, Updated
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.matches import Player, play
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.shard import Shard
from slipstream.training.trainer import train

_EPISODES = 100  # training episodes averaged by a score
_JUDGE, _FRESH = (
    7_000_001,
    7_000_002,
)  # seeds of games that stop the training, and of reported games
_WORTH = 0.9  # share of validation games won that triggers an evaluation


class _Enough(Exception):  # noqa: N818  (nothing went wrong)
    """Stop the trainer once the measurement is complete."""


@contextmanager
def _run_of(config: Mapping[str, Any]) -> Iterator[Run]:
    """Yield a run in a directory that is deleted afterwards."""
    resolved = RunConfig.from_mapping(config)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        run = Run.create(resolved, Path(folder) / "run")
        try:
            yield run
        finally:
            run.close()


def _train(config: Mapping[str, Any], listener: Any) -> None:
    with _run_of(config) as run, suppress(_Enough):
        train(run.config, run, [listener])


class _Stopwatch:
    """Timer of whole iterations after the first one, which compiles and warms up."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.first: Updated | None = None
        self.last: Updated | None = None
        self.began = self.ended = 0.0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Updated):
            return
        now = time.perf_counter()
        if self.first is None:
            self.first, self.began = event, now
            return
        self.last, self.ended = event, now
        if now - self.began >= self.seconds:
            raise _Enough


def speed(config: Mapping[str, Any], seconds: float, operations: float = 0.0) -> dict[str, float]:
    """Measure training steps per second of all members, over whole iterations after the first.

    Args:
        config: sections of a run's config.
        seconds: duration of the measurement.
        operations: operations of the networks' products in the updates of one step. `gflops` are
            those of all members in a second of updates.
    """
    watch = _Stopwatch(seconds)
    _train(config, watch)
    assert watch.first is not None and watch.last is not None, "one iteration outlasted the budget"
    first, last = watch.first.progress, watch.last.progress
    members, elapsed = len(watch.last.metrics["score"]), watch.ended - watch.began
    steps, updates = last.steps - first.steps, last.updates - first.updates
    learning = last.seconds_update - first.seconds_update
    return {
        "steps_per_second": members * steps / elapsed,
        "utd_ratio": updates / steps,
        "gflops": members * steps * operations / learning / 1e9,
    }


class _Race:
    """Timer of a training without its tests; stops at a score of the training or of a test.

    Args:
        score: score of the trailing 100 training episodes, or of a test.
        tested: whether the score is a test's.
    """

    def __init__(self, score: float, tested: bool) -> None:
        self.score, self.tested = score, tested
        self.reached, self.steps, self.seconds, self._since = False, 0, 0.0, 0.0

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if isinstance(event, Updated):
            self.seconds += now - self._since
            self.steps = event.progress.steps
            if not self.tested and event.metrics["episodes"][0] >= _EPISODES:
                self.reached = bool(event.metrics["score"][0] >= self.score)
        elif isinstance(event, Evaluated):  # the test took the time since `Updated`
            if self.tested:
                self.reached = float(event.scores[0]) >= self.score
        elif not isinstance(event, Started):
            return
        if self.reached:
            raise _Enough
        self._since = time.perf_counter()


def seconds_to_score(config: Mapping[str, Any], score: float, tests: int = 0) -> dict[str, float]:
    """Measure the seconds until one member reaches a score; compiling (`warm_up`) is separate.

    Args:
        config: sections of a run's config; `evaluation` sets the interval and length of tests.
        score: score of the trailing 100 training episodes, or of a test if `tests` is not 0.
        tests: whether tests decide.
    """
    race = _Race(score, tests > 0)
    warm_up = _warm_up(config)
    _train(config, race)
    return {
        "seconds": race.seconds,
        "reached": float(race.reached),
        "steps": float(race.steps),
        "warm_up": warm_up,
    }


def _warm_up(config: Mapping[str, Any]) -> float:
    """Return the seconds of a run of two iterations, which compiles all that the training needs."""
    began = time.perf_counter()
    _train(config, _Stopwatch(0.0))
    return time.perf_counter() - began


class _UntilBeaten:
    """Stop when the policy selected by validation wins the share of its games against each bot."""

    def __init__(self, run: Run, share: float, games: int) -> None:
        self.run, self.share, self.games = run, share, games
        self.began = self.ended = 0.0
        self.reached = False
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
            self.reached = min(_wins(self.run, self.games, _JUDGE).values()) >= self.share
            self.ended = time.perf_counter()
            if self.reached:
                raise _Enough


def _wins(run: Run, games: int, seed: int) -> dict[str, float]:
    """Return the share of games that the selected policy wins against each bot, from both sides."""
    learner, name = Player("learner", run.best_policy(0), run), run.config.env_name
    outcomes = {bot: play(name, learner, Player(bot), games, seed) for bot in ("weak", "strong")}
    return {f"won_{bot}": float((played.result == 1).mean()) for bot, played in outcomes.items()}


def seconds_to_wins(
    config: Mapping[str, Any], share: float = 0.95, games: int = 1_000
) -> dict[str, Any]:
    """Train hockey until the share is reached or the budget is spent.

    Returns:
        seconds of training, validations and evaluations included; whether the share was reached;
        seconds of an iteration before with an empty cache, which compiles (`warm_up`); steps; the
        curve (seconds, steps, share won in validation); shares won of fresh games, which selected
        nothing.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        os.environ["SLIPSTREAM_CACHE"] = folder  # empty, as for a new user
        warm_up, began = _warm_up(config), time.perf_counter()
        with _run_of(config) as run:
            listener = _UntilBeaten(run, share, games)
            with suppress(_Enough):
                train(run.config, run, [listener])
            fresh = _wins(run, games, _FRESH)
    trained, steps, _ = listener.curve[-1]
    return {
        "seconds": listener.ended - began,
        "reached": float(listener.reached),
        "warm_up": warm_up,
        "training_seconds": trained,
        "steps": steps,
        "curve": listener.curve,
        **fresh,
    }


def dqn_updates(agent: Mapping[str, Any], transitions: int, seconds: float) -> dict[str, float]:
    """Measure updates per second of DQN on one core with a full replay, without stepping.

    Args:
        agent: settings of DQN on CartPole.
        transitions: capacity of the replay.
        seconds: duration of the measurement.
    """
    settings = {"buffer_size": transitions, "learning_starts": transitions, **agent}
    config = DQNConfig(iteration=10_000, **settings)
    shard = Shard(resolve_environment("cartpole", {}), config, [0], range(1), 1)
    shard.reset()
    for _ in range(-(-transitions // 10_000)):
        shard.iterate(0.0)
    collector: Any = shard.collector
    updates = np.array([500])

    def learn() -> int:
        shard.agent.learn(collector.replay, updates, in_sequence)
        return int(updates[0])

    learn()
    return {"updates_per_second": steps_per_second(learn, seconds)}


def gym_defaults(env_id: str, steps: int, seed: int, episodes: int) -> dict[str, Any]:
    """Train with only budget and seed set; score the policy that `load_policy` returns.

    That is the policy with the best validation score, one validation per tenth of the budget.

    Args:
        env_id: Gymnasium id.
        steps, seed: of the training.
        episodes: number of fresh episodes, played with the most probable actions.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        began = time.perf_counter()
        run = slipstream.train(
            f"gym:{env_id}",
            total_timesteps=steps,
            seed=seed,
            out=Path(folder) / "run",
            report=False,
            log=lambda sentence: None,
        )
        seconds = time.perf_counter() - began
        policy, result = slipstream.load_policy(run), run.result
    assert result is not None
    envs = [gymnasium.make(env_id) for _ in range(episodes)]
    return {
        "returns": fresh_returns(envs, lambda seen: list(policy.act(seen)), seed=seed),
        "seconds": seconds,
        "trained": result["progress"]["steps"],
        "chosen_at": result["members"][0]["best_steps"],
    }
