"""The training loop: collect, update and notify callbacks until the budget is spent."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.plugins import notify
from slipstream.core.storage.resource_monitor import ResourceSampler
from slipstream.core.storage.signals import Interrupted, Interruption, StoppedError
from slipstream.training.backend import make_workers
from slipstream.training.callbacks import events
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.environments.curriculum import check_curriculum
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.parts import get_holdout_register
from slipstream.training.episode_result import finite_values, standard_error
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import (
    UPDATE_SHARE,
    EvaluationPlan,
    check_memory,
    final_evaluator,
    run_warnings,
    update_share_warning,
)
from slipstream.training.shard import join_states, select_members
from slipstream.training.workers import Workers

_Scores: TypeAlias = (
    NDArray[np.float64] | None
)  # values of evaluation episodes, [J]; their mean is the score
_MIN_MEASURED_ITERATIONS = 3  # iterations measured before the time shares are reported


def train(
    config: RunConfig,
    run: Run,
    callbacks: Sequence[events.Callback] = (),
    environment: Environment | None = None,
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """Train the members of a new run and return the content of its `result.json`.

    Args:
        config: resolved config; `num_envs` is a number.
        run: the new run directory.
        callbacks: called with every event (tables, curves, console).
        environment: environment of the config, if it is loaded already.
        cluster: cluster whose actors train the members; None for processes of this machine.

    Raises:
        Interrupted: a signal or request stopped the run after writing a checkpoint.
    """
    return Trainer(config, run, callbacks, environment, cluster).train()


def resume(
    run: Run,
    callbacks: Sequence[events.Callback] = (),
    environment: Environment | None = None,
    device: str | None = None,
    cluster: ClusterOptions | None = None,
    num_envs: int | None = None,
) -> dict[str, Any]:
    """Resume a run from its newest valid checkpoint; weights are as without the interruption.

    Args:
        run, callbacks, environment, cluster: as for `train`.
        device, num_envs: device and sub-environments per member from now on; None for no change.
    """
    config = run.resume_config(device, num_envs)
    trainer = Trainer(config, run, callbacks, environment, cluster)
    trainer.restore()
    return trainer.train()


class Trainer:
    """Trains all shards of one run.

    Attributes:
        run: the run directory.
        progress: steps, updates and seconds so far.
        plan: evaluation plan.
        best: float64 [M], highest validation score of each member; -inf before the first.
        best_steps: int64 [M], steps at which it was reached.
    """

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        callbacks: Sequence[events.Callback] = (),
        environment: Environment | None = None,
        cluster: ClusterOptions | None = None,
    ) -> None:
        settings = config.training
        self.config, self.run, self._cluster = config, run, cluster
        environment = environment or resolve_environment(config.env_name, config.env_settings)
        self.environment = environment.with_stepping(settings.stepping)
        self.plan = EvaluationPlan.from_config(config, self.environment)
        self.members, self.num_envs = settings.members, int(settings.num_envs)
        if cluster is None:
            check_memory(config, self.environment)
        check_curriculum(config.curriculum, self.environment, config.env_settings)
        self.progress = events.Progress(budget=settings.total_timesteps)
        self.best = np.full(self.members, -np.inf)
        self.best_steps = np.zeros(self.members, np.int64)
        self._callbacks: list[events.Callback] = [run.callback, *callbacks, notify]
        self._sampler = ResourceSampler()
        self._failed = np.zeros(self.members, np.bool_)
        self._scores = np.full(self.members, np.nan)
        self._validated = 0  # steps at the last validation
        self._episodes = np.zeros(self.members, np.int64)  # completed so far
        self._validated_episodes = self._episodes.copy()  # at the last validation
        self._state: dict[str, NDArray[Any]] | None = (
            None  # state of a checkpoint, until workers restore it
        )
        self._before = self.progress.snapshot()  # seconds of earlier sessions
        self._began = time.perf_counter()
        self._step_clock = events.StepClock()
        self._validation_seconds: float | None = None  # duration of the last validation
        self._first: events.Progress | None = None  # after the iteration that compiled the update
        self._update_share_logged = False

    @property
    def validation(self) -> str:
        """Split that selects the best policy."""
        return "validation" if "validation" in self.environment.splits() else "train"

    def train(self) -> dict[str, Any]:
        """Train to the end of the budget, then read the test split once with the best policies."""
        self.run.lock()
        with (
            self.run.logbook,
            Interruption(self.run.path) as stop,
            make_workers(
                self.config, self.environment, stop.check, self._cluster, self.run
            ) as workers,
        ):
            self._start(workers)
            if self._validate_if_due(workers):  # repeats a validation that a signal interrupted
                self._checkpoint(workers)  # the previous checkpoint lacks its scores
            while not self.progress.finished and not stop.requested and not self._failed.all():
                metrics = self._iterate(workers)
                everyone, now = tuple(range(self.members)), self._snapshot(workers)
                self._step_clock.add(now)
                self._log_update_share(now)
                updated = events.Updated(
                    progress=now,
                    members=everyone,
                    metrics=metrics,
                    nodes=workers.nodes,
                    machine=self._sampler.sample(),
                    eta=self._eta(),
                    policy=lambda member: workers.call_member(member, "policy", member),
                    ended=lambda member: workers.call_member(member, "new_episodes", member),
                )
                self._emit(updated)
                self._report_failures(metrics["failed"])
                self._validate_if_due(workers)
                self._log_faults(workers)
                self._log_notices(workers)
                if self._due(self.config.training.checkpoint_every):
                    self._checkpoint(workers)
            complete = self.progress.finished and self._validated == self.progress.steps
            if not complete and not self._failed.all():
                self._checkpoint(workers)
                raise Interrupted(self.run.path)
            try:
                return self._finish(workers, stop)
            except StoppedError:  # the checkpoint of the last iteration is complete
                raise Interrupted(self.run.path) from None

    def _emit(self, event: events.Event) -> None:
        for callback in self._callbacks:
            callback(event)

    def _start(self, workers: Workers) -> None:
        self._began = time.perf_counter()
        self.run.log_changes(self.config, self.progress.steps)
        if self._state is None:
            workers.call("reset")
        else:
            bulk = (self.run.bulk, self.run.chunks)
            states = [
                (select_members(self._state, part, self.members), bulk) for part in workers.members
            ]
            self._log_restarted_envs(sum(workers.call_each_shard("set_state", states)))
            self._scores = np.concatenate(workers.call("scores"))
        started = events.Started(
            progress=self._snapshot(workers),
            members=self.members,
            num_envs=self.num_envs,
            shards=len(workers.members),
            backend=workers.call("stats")[0]["backend"],
            device=self.config.training.device,
            resumed=self._state is not None,
            notes=(*self.environment.notes, *run_warnings(self.config, self.environment)),
            best=float(self.best.max()),
            episodes=self.config.curriculum.episodes,
            ended=int(self._episodes.sum()),
        )
        self._state = None
        self.run.record(backend=started.backend)
        self._emit(started)

    def _log_restarted_envs(self, envs: int) -> None:
        """Log and record that a resumed run differs from an uninterrupted one."""
        if not envs:
            return
        before = int(self.run.provenance.get("fresh_episodes", 0))
        self.run.log_notice(
            f"{envs} of {self.members * self.num_envs} environments ({self.environment.name}) did "
            "not return to their state when their actions were replayed: the environment is not "
            "deterministic, or its episodes are too long. They start new episodes, so the run "
            "differs from an uninterrupted one.",
            fresh_episodes=envs + before,
        )

    def _log_faults(self, workers: Workers, others: Sequence[Any] = ()) -> None:
        self.run.log_faults([*itertools.chain(*workers.call("faults")), *others])

    def _log_notices(self, workers: Workers) -> None:
        """Log notices of agents on a GPU about their computation; agents on the CPU have none."""
        if self.config.training.device == "cpu":
            return
        for sentence in itertools.chain.from_iterable(workers.call("notices")):
            self.run.log_notice(sentence)

    def _log_update_share(self, now: events.Progress) -> None:
        """Log once per run that more environments cannot help, based on the shares of time."""
        if self._first is None and now.updates and not self._before.updates:
            self._first = now
        first = self._first
        if (
            self._update_share_logged
            or first is None
            or now.iterations < first.iterations + _MIN_MEASURED_ITERATIONS
        ):
            return
        share = now.seconds_update / now.wall  # start-up and compilation dominate short runs
        since = (now.seconds_update - first.seconds_update) / max(now.wall - first.wall, 1e-9)
        if min(share, since) >= UPDATE_SHARE:
            self._update_share_logged = True
            self.run.notify(update_share_warning(self.config, share))

    def _iterate(self, workers: Workers) -> dict[str, NDArray[Any]]:
        """Run one rollout and update of every shard; return the members' metrics in order."""
        metrics = join_states(workers.call("iterate", self.progress.fraction))
        self.progress.advance(self.config.iteration_steps, int(metrics["updates"].max()))
        self._scores, self._episodes = metrics["score"], metrics["episodes"].astype(np.int64)
        phases = len(self.config.curriculum.phases)
        if phases and (metrics["phase"] >= phases).all():
            self.progress.budget = self.progress.steps  # the curriculum ends before the budget
        return metrics

    def _snapshot(self, workers: Workers) -> events.Progress:
        """Return progress with up-to-date seconds, summed over all sessions of the run."""
        progress, stats = self.progress, workers.call("stats")
        for name in ("seconds_env", "seconds_policy", "seconds_update"):
            seconds = sum(shard_stats[name] for shard_stats in stats) / len(stats)
            setattr(progress, name, getattr(self._before, name) + seconds)
        progress.wall = self._before.wall + time.perf_counter() - self._began
        return progress.snapshot()

    def _eta(self) -> float | None:
        """Estimate the remaining seconds of training, validations and final test."""
        step, validation_seconds, plan = (
            self._step_clock.seconds_per_step,
            self._validation_seconds,
            self.plan,
        )
        settings, now, spec = self.config.evaluation, self.progress, self.environment.spec
        if step is None:
            return None
        if (
            validation_seconds is None
        ):  # before the first validation: estimated from its budget of steps
            if spec.market is not None or settings.episodes != "auto":
                return None
            validation_seconds = (
                plan.num_envs * (plan.steps or spec.max_episode_steps or plan.max_steps) * step
            )
        if settings.every_episodes is not None:
            interval = now.steps * settings.every_episodes / max(float(self._episodes.min()), 1.0)
        else:
            interval = plan.every * now.budget
        steps_left, tests = self._steps_left(), 1.0
        if spec.market is None:  # the best and last policies are tested
            tests = (
                2
                * plan.test_episodes
                / (plan.num_envs if plan.steps is None else plan.max_episodes)
            )
        validations = math.ceil(max(0, now.budget - self._validated) / interval)
        return steps_left * step + (validations + tests) * validation_seconds

    def _steps_left(self) -> float:
        """Return the remaining steps of a member; episode limits use the mean length so far."""
        now, ended = self.progress, float(self._episodes.min())
        left, episodes = float(max(0, now.budget - now.steps)), self.config.curriculum.episodes
        if episodes is None or not ended:
            return left
        return min(left, max(0.0, episodes - ended) * now.steps / ended)

    def _validation_due(self) -> bool:
        settings, now, plan = self.config.evaluation, self.progress, self.plan
        if settings.every_episodes is not None:
            every = settings.every_episodes
            ended = self._episodes.min() // every > self._validated_episodes.min() // every
            rested = now.steps - self._validated >= plan.every * now.budget
            return bool(now.finished or (ended and (rested or settings.episodes != "auto")))
        if settings.every_steps is not None and settings.every_steps >= plan.every * now.budget:
            before = now.steps - self.config.iteration_steps
            return (
                now.finished or now.steps // settings.every_steps > before // settings.every_steps
            )
        return self._due(plan.every)

    def _due(self, every: float) -> bool:
        """Return whether the last iteration crossed a multiple of this budget share, or the end."""
        now, step = self.progress, self.config.iteration_steps
        if now.finished:
            return True
        before = (now.steps - step) / now.budget
        return int(now.steps / now.budget / every) > int(before / every)

    def _report_failures(self, failed: NDArray[Any]) -> None:
        fresh = failed.astype(bool) & ~self._failed
        for member in np.flatnonzero(fresh).tolist():
            self._failed[member] = True
            reason = "its gradient became NaN or infinite; its weights are those before that update"
            self._emit(events.Failed(self.progress.snapshot(), member, reason))

    def _validate_if_due(self, workers: Workers) -> bool:
        """Score all members on the validation split and save improved policies.

        Returns:
            True if a validation was due and completed.
        """
        settings, steps = self.config.evaluation, self.progress.steps
        if self._validated == steps or not self._validation_due():
            return False
        self._emit(events.Entered(self._snapshot(workers), "validating"))
        plan, before = self.plan, self.progress.seconds_validate
        values = self._evaluate(
            workers, self.validation, plan.max_episodes, settings.seed, plan.num_envs, plan.steps
        )
        self._validation_seconds = self.progress.seconds_validate - before
        if values is None:  # interrupted; the checkpoint records that it is still due
            return False
        self._validated, self._validated_episodes = steps, self._episodes.copy()
        metrics = join_states(workers.call("evaluation_metrics"))
        scores = np.array([finite_values(row).mean() for row in values])
        improved = (scores > self.best) & ~self._failed
        for member in np.flatnonzero(improved).tolist():
            tensors, manifest = workers.call_member(member, "policy", member)
            score = float(scores[member])
            self.best[member], self.best_steps[member] = score, steps
            metadata = {"member": member, "steps": steps, "score": score, "split": self.validation}
            self.run.best.save(member, tensors, {"policy": manifest, **metadata})
        everyone, best, now = (
            tuple(range(self.members)),
            tuple(improved.tolist()),
            self._snapshot(workers),
        )
        self._emit(events.Evaluated(now, self.validation, everyone, scores, metrics, best))
        return True

    def _evaluate(self, workers: Workers, *arguments: Any) -> NDArray[np.float64] | None:
        """Return the values whose means are the current policies' scores, [M, J]; None if
        interrupted.

        Args:
            workers: workers of all members.
            arguments: arguments of `Shard.evaluate`.
        """
        began = time.perf_counter()
        parts = workers.call("evaluate", *arguments)
        self.progress.seconds_validate += time.perf_counter() - began
        return None if any(part is None for part in parts) else np.concatenate(parts)

    def _checkpoint(self, workers: Workers) -> None:
        """Write a checkpoint atomically."""
        progress = self._snapshot(workers)
        self._emit(events.Entered(progress, "writing"))
        state = join_states(workers.call("get_state"))
        tensors = {
            **state,
            "best": self.best,
            "best_steps": self.best_steps,
            "failed": self._failed,
            "validated": np.full(self.members, self._validated),
            "judged": self._validated_episodes,
        }
        bulk = workers.call("save_bulk", self.run.bulk)
        path = self.run.save_checkpoint(tensors, asdict(progress), bulk)
        self._emit(events.Checkpointed(progress, path))

    def restore(self) -> None:
        """Restore the newest valid checkpoint; without one, training starts from the beginning."""
        checkpoint = self.run.load_checkpoint()
        if checkpoint is None:
            return
        tensors, progress = checkpoint
        trainer_keys = ("best", "best_steps", "failed", "validated", "judged")
        self.best[:], self.best_steps[:], self._failed[:] = (
            tensors[name] for name in trainer_keys[:3]
        )
        self.progress = events.Progress(**progress)
        self._validated = int(tensors.get("validated", [self.progress.steps])[0])  # older: done
        self._episodes[:] = tensors["episodes"]
        self._validated_episodes[:] = tensors.get("judged", tensors["episodes"])
        self._before = self.progress.snapshot()
        self._state = {name: value for name, value in tensors.items() if name not in trainer_keys}

    def _finish(self, workers: Workers, stop: Interruption) -> dict[str, Any]:
        """Score the selected policies on data that influenced no selection.

        This is the test split in a market, and new episodes in a game.
        """
        self._emit(events.Entered(self._snapshot(workers), "testing"))
        market = self.environment.spec.market is not None
        test_values: list[_Scores] = [None] * self.members
        last_values: list[_Scores] = [None] * self.members
        if not market:
            seed = self.config.evaluation.test_seed
            values = self._evaluate(workers, "test", self.plan.test_episodes, seed)
            stop.check()
            last_values = [None] * self.members if values is None else list(values)
        if not market or "test" in self.environment.splits():
            evaluator = final_evaluator(self.config, self.environment, check_stop=stop.check)
            began = time.perf_counter()
            with closing(evaluator):
                for member in np.flatnonzero(np.isfinite(self.best)).tolist():
                    test_values[member] = evaluator.values(self.run.best_policy(member))[0]
                self._log_faults(workers, evaluator.drain_faults())
            self.progress.seconds_validate += time.perf_counter() - began
            if market:
                self.run.count_test_read()
                get_holdout_register(self.environment).record_access(f"run {self.run.path}")
        result = self._result(test_values, last_values)
        self.run.save_result(result)
        self._emit(events.Finished(self.progress.snapshot(), result))
        return result

    def _result(
        self, test_values: Sequence[_Scores], last_values: Sequence[_Scores]
    ) -> dict[str, Any]:
        """Return the content of `result.json`."""
        config, plan, progress = self.config, self.plan, self.progress
        market = self.environment.spec.market is not None
        members = []
        for m in range(self.members):
            (score, error), (last_score, last_error) = _mean(test_values[m]), _mean(last_values[m])
            members.append(
                {
                    "member": m,
                    "seed": config.training.seed + m,
                    "failed": bool(self._failed[m]),
                    "best_score": _finite(self.best[m]),
                    "best_steps": int(self.best_steps[m]),
                    "test_score": score,
                    "test_error": None
                    if market
                    else error,  # backtests of a market are not an independent sample
                    "last_score": last_score,
                    "last_error": last_error,
                    "training_score": _finite(self._scores[m]),
                }
            )
        return {
            "score_is": "mean log return" if market else "mean episode return",
            "chosen_on": self.validation,
            "test_is": "the test split" if market else "fresh episodes",
            "test_episodes": None if market else plan.test_episodes,
            "evaluation": {**asdict(plan), "deterministic": config.evaluation.deterministic},
            "members": members,
            "progress": asdict(progress),
            "utd_ratio": progress.updates / max(progress.steps, 1),
            "update_rows": config.agent.rows(self.num_envs),
            "steps_per_second": progress.steps * self.members / max(progress.wall, 1e-9),
        }


def _finite(value: float) -> float | None:
    """Return a finite number for JSON, or None."""
    return float(value) if np.isfinite(value) else None


def _mean(values: _Scores) -> tuple[float | None, float | None]:
    """Return the mean of an evaluation's values and its standard error."""
    if values is None:
        return None, None
    values = finite_values(values)
    return float(values.mean()), standard_error(values)
