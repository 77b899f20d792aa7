"""Execution of a run: the backend that steps its environments and the workers of its shards.

Results depend on neither.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.kernels.vector_env import member_indices
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.cluster.cluster_workers import ClusterWorkers
from slipstream.training.environments.autotune_cache import Tunable, load_entry
from slipstream.training.environments.environment import Environment
from slipstream.training.forked_process import THREADED
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import select_learner
from slipstream.training.shard import split_members
from slipstream.training.workers import LocalWorker, ProcessWorkers, Workers, never_stop

_WITH_THREADS = THREADED | {"torch"}  # libraries whose threads a fork would lose


def resolve_backend(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """Return the config with a single backend, and a notice if a preferred backend failed.

    The backend is replaced only if `backend_fallback` lists alternatives.

    Raises:
        ConfigError: the environment has no such backend, or none of the listed backends works.
    """
    training = config.training
    if not training.backend_fallback:
        environment.kind.select_backend(training.backend)
        return config, None
    failures = []
    for name in (training.backend, *training.backend_fallback):
        try:
            environment.make_envs(*member_indices([0], 1), name).close()
        except SlipstreamError as error:
            failures.append(f"`{name}` does not work here ({error})")
            continue
        config = config.with_training(backend=name, backend_fallback=())
        if not failures:
            return config, None
        return config, f"Backend `{name}` steps the environments: {'; '.join(failures)}."
    raise ConfigError(
        f"None of training.backend and training.backend_fallback works: {'; '.join(failures)}"
    )


def apply_autotune(config: RunConfig, environment: Environment) -> tuple[Environment, str | None]:
    """Return the environment, stepped as the autotune cache recommends where the config is "auto".

    Args:
        config: resolved config; `num_envs` is a number.
        environment: environment of the config.

    Returns:
        The environment, and a notice about the cached measurement or why it was ignored; None if
        there is nothing to report.
    """
    training = config.training
    num_envs = int(training.num_envs)
    if training.members > 1 or training.backend != "auto":
        return environment, None  # the shards of a population use all cores
    one_thread = config.agent.parts(num_envs) == 1 or config.agent.replay(num_envs) is not None
    if environment.kind.compiled and one_thread:
        return environment, None  # one thread trains; only updates from a replay use more
    tunable = environment.part(Tunable)
    identity = None if tunable is None else tunable.identity
    if tunable is None or identity is None:
        return environment, None
    measured, notice = load_entry(identity)
    if measured is None:
        return environment, notice
    environment = tunable = replace(tunable, measured=measured)
    step_config = tunable.step_config(num_envs)
    if step_config is None:
        return environment, (
            f"`slipstream autotune` measured {environment.name} on {measured.date}, but not "
            f"with about num_envs {num_envs}: `auto` uses the measured time of a step."
        )
    noun = "thread" if step_config.backend == "compiled" else "worker"
    workers = int(training.workers) if training.workers != "auto" else step_config.workers
    serial = step_config.backend == "serial"
    count = "" if serial else f", {workers} {noun}{'' if workers == 1 else 's'}"
    return environment, (
        f"backend: {step_config.backend}{count}, as `slipstream autotune` measured on "
        f"{measured.date}."
    )


def make_workers(
    config: RunConfig,
    environment: Environment,
    check_stop: Callable[[], None] = never_stop,
    cluster: ClusterOptions | None = None,
    run: Run | None = None,
) -> Workers:
    """Create the workers set in the config, limited by the members; results are the same.

    Args:
        config, environment: config and environment of the run.
        check_stop: called regularly during evaluations, in the process that runs them; may raise
            `StoppedError`.
        cluster: cluster whose actors run the shards; None for this process or its children.
        run: run whose state a cluster requests, and which receives notices about its nodes.
    """
    if cluster is not None and run is not None:
        return ClusterWorkers(config, environment, cluster, run, check_stop)
    training = config.training
    num_shards = usable_cores() if training.shards == "auto" else int(training.shards)
    if training.device != "cpu":
        num_shards = 1  # a GPU computes its members together
    members = split_members(training.members, num_shards)
    if len(members) == 1 and not _watched(config, environment):
        return LocalWorker(config, environment, check_stop)
    return ProcessWorkers(config, environment, members, check_stop)


def _watched(config: RunConfig, environment: Environment) -> bool:
    """Return whether a lone shard needs a child process: its environment may hang or crash.

    A child is as fast as this process, unlike a worker process that is called for each step. It is
    not used after a library with threads was loaded, including torch: a fork would lose them.
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
