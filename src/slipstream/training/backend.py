"""How a run is executed: the backend that steps its copies, and the workers of its shards.

No result depends on either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.kernels.vector_env import member_indices
from slipstream.training.child_process import THREADED
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.cluster.cluster_workers import ClusterWorkers
from slipstream.training.environments.autotune_cache import Tunable, load_entry
from slipstream.training.environments.environment import Environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import select_learner
from slipstream.training.shard import split_members
from slipstream.training.workers import LocalWorker, ProcessWorkers, Workers, never_stop

_WITH_THREADS = THREADED | {"torch"}  # libraries whose threads what learns would miss in a fork


def resolve_backend(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """The config with one backend, and a sentence where another one was wanted first.

    Nothing but the way of stepping is ever replaced, and only if `backend_fallback` names it.

    Raises:
        ConfigError: the environment has no such backend; none of those to be tried works.
    """
    training = config.training
    if not training.backend_fallback:
        environment.kind.select_backend(training.backend)
        return config, None
    failed = []
    for name in (training.backend, *training.backend_fallback):
        try:
            environment.make_envs(*member_indices([0], 1), name).close()
        except SlipstreamError as error:
            failed.append(f"`{name}` does not work here ({error})")
            continue
        said = f"Backend `{name}` steps the copies: {'; '.join(failed)}." if failed else None
        return config.with_training(backend=name, backend_fallback=()), said
    raise ConfigError(
        f"None of training.backend and training.backend_fallback works: {'; '.join(failed)}"
    )


def apply_autotune(config: RunConfig, environment: Environment) -> tuple[Environment, str | None]:
    """The same environment, stepped as the machine file says where the config leaves that open.

    Args:
        config: whose `num_envs` is a number.
        environment: the config's.

    Returns:
        It, and a sentence about what was found there or passed over; None where there is nothing.
    """
    training = config.training
    num_envs = int(training.num_envs)
    if training.members > 1 or training.backend != "auto":
        return environment, None  # members share the cores by shards
    one_thread = config.agent.parts(num_envs) == 1 or config.agent.replay(num_envs) is not None
    if environment.kind.compiled and one_thread:
        return environment, None  # trains them, but for updates from a replay
    tunable = environment.part(Tunable)
    identity = None if tunable is None else tunable.identity
    if tunable is None or identity is None:
        return environment, None
    measured, notice = load_entry(identity)
    if measured is None:
        return environment, notice
    environment = tunable = replace(tunable, measured=measured)
    way = tunable.step_config(num_envs)
    if way is None:
        return environment, (
            f"`slipstream tune-machine` measured {environment.name} on {measured.date}, but not "
            f"with about {num_envs} copies: `auto` goes by the time that a step takes."
        )
    noun = "thread" if way.backend == "compiled" else "worker"
    workers = int(training.workers) if training.workers != "auto" else way.workers
    many = "" if way.backend == "serial" else f", {workers} {noun}{'' if workers == 1 else 's'}"
    said = f"backend: {way.backend}{many}, as `slipstream tune-machine` measured on {measured.date}"
    return environment, f"{said}."


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
    members = split_members(training.members, wanted)
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
        and select_learner(training.learner, training.device, image) == "compiled"
        and _WITH_THREADS.isdisjoint(sys.modules)
        and tunable.may_crash(int(training.num_envs))
    )
