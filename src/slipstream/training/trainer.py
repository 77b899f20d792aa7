"""The loop: collect, update, and let others listen, until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.policy import Policy
from slipstream.core.errors import CheckpointError
from slipstream.training.config import RunConfig
from slipstream.training.crew import Crew, cores
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
from slipstream.training.shard import Shard, cut, in_turn, join_states, state_of


def train(
    config: RunConfig, run: Run, listeners: Sequence[Listener] = (), environment: Environment | None = None
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
    """Goes on with a run from its newest valid checkpoint, to the same weights as if it had never stopped."""
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
        wanted = cores() if settings.shards == "auto" else int(settings.shards)
        self.shards = [
            Shard(self.environment, config.agent, self.seeds, members, self.num_envs, settings.backend)
            for members in cut(self.members, wanted)
        ]
        self.progress = Progress(budget=settings.total_steps)
        self.best = np.full(self.members, -np.inf)
        self.best_steps = np.zeros(self.members, np.int64)
        self.events = Events([run.listener, *listeners])
        self._failed = np.zeros(self.members, np.bool_)
        self._resumed = False
        self._evaluators: dict[tuple[str, int], Evaluator] = {}
        self._wall = 0.0
        self._began = time.perf_counter()

    @property
    def validation(self) -> str:
        """The split by which the best policy is chosen."""
        return "validation" if "validation" in self.environment.splits() else "train"

    def run(self) -> dict[str, Any]:
        """Trains to the end of the budget and reads the test split once, with each member's best policy."""
        parallel = max(len(self.shards), self.shards[0].agent.parts)
        with Crew(min(parallel, cores())) as crew, Interruption() as stop:
            self._start()
            while not self.progress.finished and not stop.requested and not self._failed.all():
                metrics = self._iterate(crew)
                self.events.emit(Updated(self._snapshot(), tuple(range(self.members)), metrics))
                self._report_failures(metrics["failed"])
                if self._due(self.config.evaluation.every):
                    self._validate(crew)
                if self._due(self.config.training.checkpoint_every):
                    self._checkpoint()
            if not self.progress.finished and not self._failed.all():
                self._checkpoint()
                raise Interrupted(self.directory.path)
            return self._finish(crew)

    def _start(self) -> None:
        self._began = time.perf_counter()
        self._wall = self.progress.wall
        if not self._resumed:
            for shard in self.shards:
                shard.reset()
        settings = self.config.training
        self.events.emit(
            Started(
                self._snapshot(),
                self.members,
                self.num_envs,
                len(self.shards),
                self.shards[0].collector.envs[0].backend,
                settings.device,
                self._resumed,
                self.environment.notes,
            )
        )

    def _iterate(self, crew: Crew) -> dict[str, NDArray[Any]]:
        """One rollout and update of every shard; members' metrics in order."""
        results: list[dict[str, NDArray[Any]]] = [{} for _ in self.shards]
        # A lone shard hands its own parts to the crew; several shards each run theirs alone.
        inner = crew.run if len(self.shards) == 1 else in_turn

        def iterate(i: int) -> None:
            results[i] = self.shards[i].iterate(self.progress.fraction, inner)

        crew.run([partial(iterate, i) for i in range(len(self.shards))])
        metrics = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
        self.progress.advance(self.config.agent.horizon * self.num_envs, int(metrics["updates"].max()))
        return metrics

    def _snapshot(self) -> Progress:
        """Progress with its seconds brought up to date."""
        progress = self.progress
        progress.wall = self._wall + time.perf_counter() - self._began
        shards = self.shards
        progress.seconds_env = sum(shard.collector.seconds_env for shard in shards) / len(shards)
        progress.seconds_policy = sum(shard.collector.seconds_policy for shard in shards) / len(shards)
        progress.seconds_update = sum(shard.seconds_update for shard in shards) / len(shards)
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
            reason = "its loss or gradient became NaN or infinite; its weights are those before that update"
            self.events.emit(Failed(self._snapshot(), member, reason))

    def _validate(self, crew: Crew) -> None:
        """Scores all members on the validation split; keeps the policies that are the best so far."""
        scores = np.full(self.members, np.nan)

        def score(shard: Shard) -> None:
            evaluator = self._evaluator(self.validation, len(shard.members), shard.members.start)
            scores[shard.members.start : shard.members.stop] = evaluator.scores(shard.agent.policy)

        crew.run([partial(score, shard) for shard in self.shards])
        better = (scores > self.best) & ~self._failed
        for shard in self.shards:
            for m in shard.members:
                if better[m]:
                    self._keep_best(m, shard.agent.policy, m - shard.members.start, float(scores[m]))
        everyone = tuple(range(self.members))
        self.events.emit(
            Evaluated(self._snapshot(), self.validation, everyone, scores, best=tuple(better.tolist()))
        )

    def _keep_best(self, member: int, policy: Policy, row: int, score: float) -> None:
        self.best[member], self.best_steps[member] = score, self.progress.steps
        facts = {"member": member, "steps": self.progress.steps, "score": score, "split": self.validation}
        self.directory.save_best(member, policy.to_tensors(row), {"policy": policy.manifest(row), **facts})

    def _evaluator(self, split: str, members: int, first: int) -> Evaluator:
        key = (split, first)
        if key not in self._evaluators:
            settings = self.config.evaluation
            self._evaluators[key] = Evaluator(
                self.environment,
                split,
                members=members,
                games=settings.episodes,
                seed=settings.seed,
                backend=self.config.training.backend,
            )
        return self._evaluators[key]

    def _checkpoint(self) -> None:
        """Everything needed to go on, written at once or not at all."""
        progress = self._snapshot()
        state = join_states([shard.get_state() for shard in self.shards])
        tensors = {**state, "best": self.best, "best_steps": self.best_steps, "failed": self._failed}
        path = self.directory.save_checkpoint(tensors, progress.as_dict())
        self.events.emit(Checkpointed(progress, path))

    def restore(self) -> None:
        """Goes on from the run's newest valid checkpoint; from the start where there is none yet.

        Raises:
            CheckpointError: the checkpoint is of another shape than the run's config.
        """
        found = self.directory.load_checkpoint()
        if found is None:
            return
        tensors, progress = found
        try:
            for shard in self.shards:
                shard.set_state(state_of(tensors, shard.members, self.members))
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"The checkpoint in {self.directory.path} does not fit the run's config ({error}); it was "
                "written by another config or version. Train again into another directory."
            ) from error
        self.progress = Progress.from_dict(dict(progress))
        self.best[:], self.best_steps[:] = tensors["best"], tensors["best_steps"]
        self._failed[:] = tensors["failed"]
        for shard in self.shards:  # seconds are summed over all sessions
            shard.collector.seconds_env = self.progress.seconds_env
            shard.collector.seconds_policy = self.progress.seconds_policy
            shard.seconds_update = self.progress.seconds_update
        self._resumed = True

    def _finish(self, crew: Crew) -> dict[str, Any]:
        """The test split is read here and only here, with the policies that validation chose."""
        test: list[float | None] = [None] * self.members

        def read(member: int) -> None:
            tensors, manifest = self.directory.load_best(member)
            policy = Policy.from_tensors(tensors, manifest["policy"])
            settings = self.config.evaluation
            evaluator = Evaluator(
                self.environment, "test", games=settings.episodes, seed=settings.seed, backend=self.config.training.backend
            )
            test[member] = float(evaluator.scores(policy)[0])

        if "test" in self.environment.splits():
            crew.run([partial(read, m) for m in range(self.members) if np.isfinite(self.best[m])])
        result = self._result(test)
        self.directory.save_result(result)
        self.events.emit(Finished(self._snapshot(), result))
        return result

    def _result(self, test: Sequence[float | None]) -> dict[str, Any]:
        scores = np.concatenate([shard.scores() for shard in self.shards])
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
        progress = self._snapshot()
        return {
            "score_is": "mean log return" if self.environment.spec.market else "mean episode return",
            "chosen_on": self.validation,
            "members": members,
            "progress": progress.as_dict(),
            "steps_per_second": progress.steps * self.members / max(progress.wall, 1e-9),
        }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None

