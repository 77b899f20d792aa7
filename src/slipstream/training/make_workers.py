"""Which workers run a run's shards: this process, its children, or a cluster's actors."""

from __future__ import annotations

import sys
from collections.abc import Callable

from slipstream.core.capacity import usable_cores
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.cluster.cluster_workers import ClusterWorkers
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.machine_file import Tunable
from slipstream.training.learner import learner_of
from slipstream.training.processes.child import THREADED
from slipstream.training.processes.workers import LocalWorker, ProcessWorkers, Workers, never_stop
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.shard import cut

_WITH_THREADS = THREADED | {"torch"}  # libraries whose threads what learns would miss in a fork


def make_workers(
    config: RunConfig,
    environment: Environment,
    check_stop: Callable[[], None] = never_stop,
    cluster: ClusterOptions | None = None,
    run: Run | None = None,
) -> Workers:
    """As many workers as the config says and the members allow; results do not depend on it.

    Args:
        config, environment: of the run.
        check_stop: called now and then in an evaluation, in whichever process runs it; it may raise
            `StoppedError`.
        cluster: whose actors do it; None: this process or its children.
        run: what a cluster is asked for, and who is told of its nodes.
    """
    if cluster is not None and run is not None:
        return ClusterWorkers(config, environment, cluster, run, check_stop)
    training = config.training
    wanted = usable_cores() if training.shards == "auto" else int(training.shards)
    if training.device != "cpu":
        wanted = 1  # a card's members are calculated together
    members = cut(training.members, wanted)
    if len(members) == 1 and not _watched(config, environment):
        return LocalWorker(config, environment, check_stop)
    return ProcessWorkers(config, environment, members, check_stop)


def _watched(config: RunConfig, environment: Environment) -> bool:
    """Whether a lone shard is a child's: its environment may hang, or end the process it is in.

    Nothing is slower by it, as a worker process would be that is asked for each step. A fork has
    no threads of libraries that run some, of torch neither: what learns would miss them.
    """
    training, image = config.training, environment.spec.is_image
    tunable = environment.part(Tunable)
    return (
        tunable is not None
        and sys.platform == "linux"
        and training.backend == "auto"
        and learner_of(training.learner, training.device, image) == "compiled"
        and _WITH_THREADS.isdisjoint(sys.modules)
        and tunable.endangers(int(training.num_envs))
    )
