"""The loop: collect, update, and let others listen, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.training.best import best_policy
from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment, resolve_environment
from slipstream.training.evaluation import Evaluator
from slipstream.training.events import (
    Checkpointed,
    Evaluated,
    Events,
    Failed,
    Finished,
    Listener,
    Started,
    Updated,
)
from slipstream.training.interruption import Interrupted, Interruption
from slipstream.training.progress import Progress
from slipstream.training.run import Run
from slipstream.training.shard import join_states, state_of
from slipstream.training.sizing import check_memory
from slipstream.training.workers import Workers, make_workers


def train(
    config: RunConfig,
    run: Run,
    listeners: Sequence[Listener] = (),
    environment: Environment | None = None,
) -> dict[str, Any]:
    """Trains the members of a new run and returns what is written to its `result.json`.

    Args:
        config: resolved; `num_envs` is a number.
        run: its fresh directory.
        listeners: told of every event (tables, curves, console).
        environment: the config's, where it is loaded already.

    Raises:
        Interrupted: a signal asked to stop; a checkpoint was written.
    """
    return Trainer(config, run, listeners, environment).run()


def resume(
    run: Run, listeners: Sequence[Listener] = (), environment: Environment | None = None
) -> dict[str, Any]:
    """Goes on from a run's newest valid checkpoint, to the weights of a run that never stopped."""
    trainer = Trainer(run.config, run, listeners, environment)
    trainer.restore()
    return trainer.run()


class Trainer:
    """All shards of one run.

    Attributes:
        progress: steps, updates and seconds so far.
        best: float64 [M], highest validation score of each member so far; -inf before the first.
        best_steps: int64 [M], where it was reached.
    """

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        listeners: Sequence[Listener] = (),
        environment: Environment | None = None,
    ) -> None:
        settings = config.training
        self.config, self.directory = config, run
        self.environment = environment or resolve_environment(config.env_name, config.env_settings)
        self.members, self.num_envs = settings.members, int(settings.num_envs)
        self.seeds = [settings.seed + m for m in range(self.members)]
        check_memory(config, self.environment)
        self.progress = Progress(budget=settings.total_steps)
        self.best = np.full(self.members, -np.inf)
        self.best_steps = np.zeros(self.members, np.int64)
        self.events = Events([run.listener, *listeners])
        self._failed = np.zeros(self.members, np.bool_)
        self._scores = np.full(self.members, np.nan)
        self._state: dict[str, NDArray[Any]] | None = (
            None  # of a checkpoint, until the workers have it
        )
        self._before = self.progress.snapshot()  # seconds of earlier sessions
        self._began = time.perf_counter()

    @property
    def validation(self) -> str:
        """The split by which the best policy is chosen."""
        return "validation" if "validation" in self.environment.splits() else "train"

    def run(self) -> dict[str, Any]:
        """Trains to the end of the budget; reads the test split once, with the best policies."""
        with make_workers(self.config, self.environment) as workers, Interruption() as stop:
            self._start(workers)
            while not self.progress.finished and not stop.requested and not self._failed.all():
                metrics = self._iterate(workers)
                self.events.emit(
                    Updated(self._snapshot(workers), tuple(range(self.members)), metrics)
                )
                self._report_failures(metrics["failed"])
                if self._due(self.config.evaluation.every):
                    self._validate(workers)
                if self._due(self.config.training.checkpoint_every):
                    self._checkpoint(workers)
            if not self.progress.finished and not self._failed.all():
                self._checkpoint(workers)
                raise Interrupted(self.directory.path)
            return self._finish()

    def _start(self, workers: Workers) -> None:
        self._began = time.perf_counter()
        if self._state is None:
            workers.call("reset")
        else:
            ranges = workers.members
            workers.call_each(
                "set_state", [(state_of(self._state, part, self.members),) for part in ranges]
            )
        started = Started(
            progress=self._snapshot(workers),
            members=self.members,
            num_envs=self.num_envs,
            shards=len(workers.members),
            backend=workers.call("facts")[0]["backend"],
            device=self.config.training.device,
            resumed=self._state is not None,
            notes=self.environment.notes,
        )
        self._state = None
        self.events.emit(started)

    def _iterate(self, workers: Workers) -> dict[str, NDArray[Any]]:
        """One rollout and update of every shard; members' metrics in order."""
        metrics = join_states(workers.call("iterate", self.progress.fraction))
        self.progress.advance(
            self.config.agent.horizon * self.num_envs, int(metrics["updates"].max())
        )
        self._scores = metrics["score"]
        return metrics

    def _snapshot(self, workers: Workers) -> Progress:
        """Progress with its seconds, summed over all sessions of the run, brought up to date."""
        progress, facts = self.progress, workers.call("facts")
        for name in ("seconds_env", "seconds_policy", "seconds_update"):
            seconds = sum(fact[name] for fact in facts) / len(facts)
            setattr(progress, name, getattr(self._before, name) + seconds)
        progress.wall = self._before.wall + time.perf_counter() - self._began
        return progress.snapshot()

    def _due(self, every: float) -> bool:
        """Whether the last iteration crossed a multiple of this share of the budget, or the end."""
        now, step = self.progress, self.config.agent.horizon * self.num_envs
        if now.finished:
            return True
        before = (now.steps - step) / now.budget
        return int(now.steps / now.budget / every) > int(before / every)

    def _report_failures(self, failed: NDArray[Any]) -> None:
        fresh = failed.astype(bool) & ~self._failed
        for member in np.flatnonzero(fresh).tolist():
            self._failed[member] = True
            reason = "its gradient became NaN or infinite; its weights are those before that update"
            self.events.emit(Failed(self.progress.snapshot(), member, reason))

    def _validate(self, workers: Workers) -> None:
        """Scores all members on the validation split; keeps policies that are the best so far."""
        settings = self.config.evaluation
        scores = np.concatenate(
            workers.call("evaluate", self.validation, settings.episodes, settings.seed)
        )
        better = (scores > self.best) & ~self._failed
        for member in np.flatnonzero(better).tolist():
            tensors, manifest = workers.of(member, "policy", member)
            score = float(scores[member])
            self.best[member], self.best_steps[member] = score, self.progress.steps
            facts = {
                "member": member,
                "steps": self.progress.steps,
                "score": score,
                "split": self.validation,
            }
            self.directory.save_best(member, tensors, {"policy": manifest, **facts})
        everyone = tuple(range(self.members))
        progress = self._snapshot(workers)
        self.events.emit(
            Evaluated(progress, self.validation, everyone, scores, best=tuple(better.tolist()))
        )

    def _checkpoint(self, workers: Workers) -> None:
        """Everything needed to go on, written at once or not at all."""
        progress = self._snapshot(workers)
        state = join_states(workers.call("get_state"))
        tensors = {
            **state,
            "best": self.best,
            "best_steps": self.best_steps,
            "failed": self._failed,
        }
        path = self.directory.save_checkpoint(tensors, progress.as_dict())
        self.events.emit(Checkpointed(progress, path))

    def restore(self) -> None:
        """Goes on from the newest valid checkpoint; from the start where there is none yet."""
        found = self.directory.load_checkpoint()
        if found is None:
            return
        tensors, progress = found
        own = ("best", "best_steps", "failed")
        self.best[:], self.best_steps[:], self._failed[:] = (tensors[name] for name in own)
        self.progress = Progress.from_dict(dict(progress))
        self._before = self.progress.snapshot()
        self._state = {name: value for name, value in tensors.items() if name not in own}

    def _finish(self) -> dict[str, Any]:
        """The test split is read here and only here, with the policies that validation chose."""
        test: list[float | None] = [None] * self.members
        settings = self.config.evaluation
        if "test" in self.environment.splits():
            self.directory.count_test_read()
            evaluator = Evaluator(
                self.environment,
                "test",
                games=settings.episodes,
                seed=settings.seed,
                backend=self.config.training.backend,
            )
            for member in np.flatnonzero(np.isfinite(self.best)).tolist():
                test[member] = float(evaluator.scores(best_policy(self.directory, member))[0])
        result = self._result(test)
        self.directory.save_result(result)
        self.events.emit(Finished(self.progress.snapshot(), result))
        return result

    def _result(self, test: Sequence[float | None]) -> dict[str, Any]:
        scores = self._scores
        members = [
            {
                "member": m,
                "seed": self.seeds[m],
                "failed": bool(self._failed[m]),
                "best_score": _finite(self.best[m]),
                "best_steps": int(self.best_steps[m]),
                "test_score": test[m],
                "training_score": _finite(scores[m]),
            }
            for m in range(self.members)
        ]
        progress = self.progress
        return {
            "score_is": "mean log return"
            if self.environment.spec.market
            else "mean episode return",
            "chosen_on": self.validation,
            "members": members,
            "progress": progress.as_dict(),
            "steps_per_second": progress.steps * self.members / max(progress.wall, 1e-9),
        }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
