"""Pool that trains a study's members in batches on every core and survives the loss of
processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    KernelError,
    ResourceError,
    SlipstreamError,
)
from slipstream.core.storage.atomic_io import remove_partials
from slipstream.jit import rng
from slipstream.training.cluster.cluster import Lost
from slipstream.training.cluster.ray_cluster import RayCluster
from slipstream.training.forked_process import set_torch_threads
from slipstream.training.population.batches import (
    MemberBatch,
    QueuedTask,
    SpeedModel,
    WorkerSpeeds,
    next_batch,
)
from slipstream.training.population.environment_source import (
    EnvironmentSource,
    MemberEnv,
    batch_shape,
)
from slipstream.training.population.member import Member, Outcome
from slipstream.training.population.member_state import LiveStates, PolicyStore
from slipstream.training.population.pool_worker import (
    PATIENCE_SECONDS,
    ClusterWorker,
    DataStore,
    Worker,
)
from slipstream.training.population.training_segment import Task

_DEATHS = 4  # consecutive worker deaths with the same members before the pool gives up
_LOSSES = 3  # lost machines with the same members that are attributed to the network


@dataclass(eq=False)
class WorkerSlot:
    """Slot of a worker in a pool.

    Attributes:
        worker: worker in this slot. A local worker that ended is replaced; a remote one takes its
            slot with it.
        batch: current batch.
        machine: node of a cluster; empty for this machine.
    """

    worker: Worker | ClusterWorker | None = None
    batch: MemberBatch | None = None
    machine: str = ""

    @property
    def lost(self) -> bool:
        """Return whether the slot's worker ended and will not be replaced."""
        return self.worker is not None and self.worker.gone and self.batch is None


class Pool:
    """Workers that train members to their milestones; use it in a `with` statement.

    Results do not depend on the number of workers, on the composition of batches, or on processes
    that were killed.

    Args:
        folder: study folder: `live/` has states of running members, `weights/` policies of finished
            ones.
        source: source of environments; workers share what it has loaded.
        workers: processes on this machine; None for one per usable core, checked before each
            segment because a job supervisor changes the cores. Unused with a cluster.
        group_size: maximum members of a batch; None for a limit by memory and measured speed.
        cluster: cluster whose actors do all work; None for this machine.
    """

    def __init__(
        self,
        folder: Path,
        source: EnvironmentSource,
        workers: int | None,
        group_size: int | None = None,
        cluster: RayCluster | None = None,
    ) -> None:
        self._live, self._weights = LiveStates(folder / "live"), PolicyStore(folder / "weights")
        self._source, self._cluster, self._group_size = source, cluster, group_size
        self._data = None if cluster is None else DataStore(source, cluster)
        self._threads = set_torch_threads(1)
        self._follows_cores = workers is None and cluster is None
        self._slots = [WorkerSlot() for _ in range(0 if cluster else max(1, workers or 1))]
        self._waiting: list[QueuedTask] = []
        self._retries: list[MemberBatch] = []
        self._done: list[Outcome] = []
        self._dropped: set[str] = set()  # dropped while running
        self._finished: set[str] = set()  # finished members whose policies are not yet stored
        self._speeds, self._speed_model = WorkerSpeeds(), SpeedModel()
        remove_partials(folder / "live")  # removes partial files of killed workers
        if cluster is None:
            rng.preload()  # loads Numba once, before workers are forked

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        """Return the nodes of a cluster, see `RayCluster.status`; empty without one."""
        return () if self._cluster is None else self._cluster.status()

    def submit(self, members: Sequence[Member], until: Sequence[int]) -> None:
        """Train each member up to its milestone (completed iterations) and score it there.

        A member already at its milestone is only scored. A member whose environment cannot be
        created fails.
        """
        for member, milestone in zip(members, until, strict=True):
            self._dropped.discard(member.name)
            try:
                self._waiting.append(self._job(member, milestone))
            except (ConfigError, DataError, KernelError) as error:
                self._done.append(Outcome(member.name, milestone, None, True, str(error)))
        self._assign_batches()  # first, so that files are moved while the workers train
        self._save_finished()

    def collect(self, timeout: float | None = None) -> list[Outcome]:
        """Return the outcomes since the last call.

        Args:
            timeout: seconds to wait for the first outcome; None for no limit.

        Raises:
            ResourceError: the disk is full, or workers with the same members die repeatedly.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._assign_batches()
        self._save_finished()
        while not self._done and (self._waiting or self._running_batches()):
            left = deadline - time.monotonic()
            pipes: dict[Any, WorkerSlot | None] = {
                slot.worker.pipe: slot
                for slot in self._slots
                if slot.worker is not None and slot.batch is not None
            }
            if self._cluster is not None:
                pipes[self._cluster.arrival_pipe] = None
            ready = wait(list(pipes), None if left == math.inf else max(0.0, left))
            for pipe in ready:
                slot = pipes[pipe]
                if slot is not None:
                    self._process_answer(slot)
            self._assign_batches()
            if not ready and time.monotonic() >= deadline:
                break
        outcomes, self._done = self._done, []
        return outcomes

    def finish(self, name: str) -> None:
        """Keep only the policy of a member that has reached its budget."""
        self._finished.add(name)

    def drop(self, name: str) -> None:
        """Drop a member and delete its state."""
        self._waiting = [job for job in self._waiting if job.member.name != name]
        if any(job.member.name == name for batch in self._running_batches() for job in batch.jobs):
            self._dropped.add(name)
        self._live.drop(name)

    def abandon(self) -> None:
        """Terminate local processes that train only dropped members.

        Workers of a cluster finish their segment.
        """
        self._retries = [
            batch
            for batch in self._retries
            if any(job.member.name not in self._dropped for job in batch.jobs)
        ]
        for slot in self._slots:
            worker, batch = slot.worker, slot.batch
            if worker is None or batch is None or slot.machine:
                continue
            names = {job.member.name for job in batch.jobs}
            if names <= self._dropped:
                worker.terminate(0.0)
                slot.worker = slot.batch = None
                self._dropped -= names
                for name in names:
                    self._live.drop(name)

    def state_bytes(self, name: str) -> int:
        """Return the size in bytes of a member's state on disk; 0 before the first."""
        return len(self._live.content(name) or b"")

    def policy(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return tensors and manifest of the policy of a member that has reached its budget.

        Raises:
            CheckpointError: there is none.
        """
        policy = self._live.policy(name) or self._weights.get(name)
        if policy is None:
            raise CheckpointError(
                f"There is no policy of {name} in {self._weights.folder}: its training was not "
                "completed, or its file was deleted. Restore it from a backup, or search again "
                "under another --study-name."
            )
        return policy

    def close(self) -> None:
        """Stop the workers; states of running members are saved."""
        self._save_finished()
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        for worker in workers:
            worker.request_stop()
        deadline = time.monotonic() + PATIENCE_SECONDS
        for worker in workers:
            worker.terminate(max(0.1, deadline - time.monotonic()))
        self._slots = [WorkerSlot() for slot in self._slots if not slot.machine]
        set_torch_threads(self._threads)

    def _job(self, member: Member, until: int) -> QueuedTask:
        member_env = MemberEnv(member, self._source.environment(member.config))
        at = min(self._live.iteration(member), until)
        shape = batch_shape(member, self._source)
        if not member_env.environment.kind.resumable:  # its environments all restart at once
            shape += f"/{at}/{until}"
        load = (until - at + (member.test is not None)) * member_env.iteration_steps
        task, generation = Task(member, until), self._source.generation
        return QueuedTask(task, shape, load, member_env.memory, generation, until - at)

    def _running_batches(self) -> list[MemberBatch]:
        running = [slot.batch for slot in self._slots if slot.batch is not None]
        return [*self._retries, *running]

    def _assign_batches(self) -> None:
        """Give every idle worker its fair share of the waiting tasks."""
        self._slots = [slot for slot in self._slots if not slot.lost]
        if self._cluster is not None and self._data is not None:
            for actor in self._cluster.new_actors():
                self._slots.append(
                    WorkerSlot(ClusterWorker(actor, self._data, self._live), None, actor.node)
                )
        if self._follows_cores:
            self._fit_cores()
        for slot in self._slots:
            if slot.batch is not None:
                continue
            batch = self._retries.pop(0) if self._retries else self._next(slot)
            if batch is None:
                return
            if self._send(slot, batch):
                batch.began = time.monotonic()
                slot.batch = batch
            else:  # its machine was lost
                self._retries.insert(0, batch)

    def _fit_cores(self) -> None:
        """Adjust the number of slots to the usable cores; running workers finish their segment."""
        num_cores = usable_cores()
        while len(self._slots) < num_cores:
            self._slots.append(WorkerSlot())
        idle = [slot for slot in self._slots if slot.batch is None]
        for slot in idle[: max(0, len(self._slots) - num_cores)]:
            self._slots.remove(slot)
            if slot.worker is not None:
                slot.worker.request_stop()
                slot.worker.terminate(PATIENCE_SECONDS)

    def _next(self, slot: WorkerSlot) -> MemberBatch | None:
        others = [
            other.batch.load_left(self._speeds.get(other.machine))
            for other in self._slots
            if other.batch is not None
        ]
        workers = self._speeds.workers(slot.machine, [other.machine for other in self._slots])
        max_by_speed = partial(self._speed_model.most, slot.machine)
        batch = next_batch(self._waiting, others, workers, self._group_size, max_by_speed)
        if batch is not None:
            taken = {id(job) for job in batch.jobs}
            self._waiting = [job for job in self._waiting if id(job) not in taken]
        return batch

    def _send(self, slot: WorkerSlot, batch: MemberBatch) -> bool:
        """Send a batch to the worker of a slot; return False if the worker is lost."""
        while not self._worker(slot, batch).send([job.task for job in batch.jobs]):
            if slot.machine:
                return False
            assert slot.worker is not None
            slot.worker.terminate(1.0)
            slot.worker = None
        return True

    def _worker(self, slot: WorkerSlot, batch: MemberBatch) -> Worker | ClusterWorker:
        """Return the slot's worker; it is replaced if it lacks the data of the batch."""
        worker, needed = slot.worker, max(job.generation for job in batch.jobs)
        if worker is not None and worker.generation < needed:
            worker.request_stop()
            worker.terminate(PATIENCE_SECONDS)
            worker = None
        if worker is None:
            slot.worker = None
            worker = slot.worker = Worker(self._source, self._live)
        return worker

    def _process_answer(self, slot: WorkerSlot) -> None:
        """Process the answer of a slot's worker."""
        worker, batch = slot.worker, slot.batch
        assert worker is not None and batch is not None
        answer = worker.receive()
        if answer is None:
            return
        slot.batch = None
        if isinstance(answer, Lost):
            slot.worker = worker if slot.machine else None
            self._requeue(batch, answer)
        elif isinstance(answer, ResourceError) or not isinstance(answer, (list, SlipstreamError)):
            raise answer
        elif isinstance(answer, SlipstreamError):
            self._isolate(batch, answer)
        else:
            spent = max(time.monotonic() - batch.began, 1e-9)
            self._speeds.add(slot.machine, batch.load / spent)
            self._record_speed(slot.machine, batch, answer)
            for outcome in answer:
                if outcome.name in self._dropped:
                    self._dropped.discard(outcome.name)
                    self._live.drop(outcome.name)
                else:
                    self._done.append(outcome)

    def _record_speed(self, machine: str, batch: MemberBatch, outcomes: Sequence[Outcome]) -> None:
        """Record the training speed of a batch; the time of backtests does not depend on its
        size.
        """
        seconds = sum(
            spent
            for outcome in outcomes
            for kind, spent in outcome.seconds.items()
            if kind != "evaluate"
        )
        steps = sum(job.steps for job in batch.jobs)
        least = min(job.iterations for job in batch.jobs)
        self._speed_model.add(machine, batch.jobs[0].shape, len(batch.jobs), least, steps, seconds)

    def _requeue(self, batch: MemberBatch, lost: Lost) -> None:
        """Requeue a batch that was not completed.

        Network failures and reclaimed machines are not counted against the members. Repeated losses
        of machines with the same members may be their fault.
        """
        batch.lost += lost.cause == "silent"
        if lost.cause == "died" or batch.lost > _LOSSES:
            self._requeue_halves(batch, lost.how)
        else:
            self._retries.append(batch)

    def _requeue_halves(self, batch: MemberBatch, how: str) -> None:
        """Requeue the batch of a dead worker from the last saved states, in smaller batches."""
        if batch.deaths + 1 >= _DEATHS and len(batch.jobs) == 1:
            raise ResourceError(
                f"The worker that trained {batch.jobs[0].member.name} {how}, {_DEATHS} times in a "
                "row. Saved states are intact. Free some memory, or reduce --group-size and "
                "--workers, and continue with `slipstream resume`."
            )
        halves = batch.halves() if batch.deaths else [batch]
        for half in halves:
            half.deaths = batch.deaths + 1
            self._retries.append(half)

    def _isolate(self, batch: MemberBatch, error: SlipstreamError) -> None:
        """Requeue the members separately: at least one of them cannot be trained."""
        if len(batch.jobs) > 1:
            self._retries += batch.halves()
            return
        job = batch.jobs[0]
        self._done.append(Outcome(job.member.name, job.task.until, None, True, str(error)))

    def _save_finished(self) -> None:
        """Move policies of finished members to the weights; they are on disk on return."""
        policies = {}
        for name in self._finished:
            policy = self._live.policy(name)
            if policy is not None:
                policies[name] = policy
        if policies:
            self._weights.add(policies)
        for name in self._finished:
            self._live.drop(name)
        self._finished.clear()
