"""The first steps of an environment, and whether worker processes pay: `backend: auto`."""

from __future__ import annotations

import math
import multiprocessing
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from slipstream.core.capacity import usable_cores
from slipstream.core.errors import KernelError, SlipstreamError
from slipstream.core.process import FaultPolicy
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.making import name_of
from slipstream.gym.process.faults import TRIES, Fault
from slipstream.gym.process.pool import Crowd
from slipstream.kernels.contract import random_actions
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import VectorEnv, blank

_STEPS = 34  # of a copy before anything else is done with it
_PATIENT = 1_000_000  # faults that the copies' own ledger lets pass
_ROUND_SECONDS = 100e-6  # of telling workers to step, and hearing that they have
_WORTH = 0.85  # of the serial time, which processes must stay below to be chosen
_LEAST_SECONDS = 300e-6  # of a step of all copies; below that nothing is gained


class ChosenBackend(NamedTuple):
    """How copies are stepped.

    Attributes:
        backend: serial or process.
        workers: of process.
        why: in a sentence.
    """

    backend: str
    workers: int
    why: str


def step_seconds(env: VectorEnv) -> float:
    """Seconds that a step of one copy takes here; of the quicker ones, as others may interrupt."""
    out, draw = blank(env), np.random.default_rng(0)
    env.reset_rows(out.obs, out.mask)
    times = []
    for t in range(_STEPS):
        actions = random_actions(env.spec, env.num_envs, draw, out.mask)
        began = time.perf_counter()
        env.step_rows(actions, out, t)
        times.append((time.perf_counter() - began) / env.num_envs)
    env.drain_finals(), env.drain_episodes()
    return float(np.quantile(times, 0.25))


def first_steps(
    env: Any, kwargs: Mapping[str, Any], spec: Spec, policy: FaultPolicy, crowd: Crowd | None = None
) -> float:
    """Takes a copy's first steps in a worker process; seconds of one, as of `step_seconds`.

    0 where no worker can make a copy: what only this process can make is stepped here.

    Args:
        env, kwargs: as for `make_gymnasium`.
        spec: of it.
        policy: what a fault leads to; several end it, and one call that hangs.
        crowd: where the worker comes from.

    Raises:
        KernelError: what it did instead, and where.
    """
    one, patient = np.zeros(1, np.uint64), policy._replace(on_fault="restart")
    patient = patient._replace(per_minute=_PATIENT, in_a_row=_PATIENT)
    try:
        copies = ForeignEnv(
            env,
            one,
            one,
            kwargs=kwargs,
            spec=spec,
            workers=1,
            policy=patient,
            crowd=crowd,
        )
    except SlipstreamError:
        return 0.0
    most = TRIES if policy.on_fault == "restart" else 1
    faults, times, draw = list[Fault](), list[float](), np.random.default_rng(0)
    with copies:
        copies.drain_faults()  # workers that somebody killed meanwhile
        copies.reset_rows(blank(copies).obs)
        while len(times) < _STEPS:
            rows = np.stack([random_actions(spec, 1, draw) for _ in range(_STEPS)])
            times += copies.timed(rows)
            faults += copies.drain_faults()
            if len(faults) >= most or any(fault.kind == "hung" for fault in faults):
                raise _broken(name_of(env), faults[-1], policy) from faults[-1].error
    return float(np.quantile(times, 0.25))


def _broken(name: str, fault: Fault, policy: FaultPolicy) -> KernelError:
    """What went wrong in the first steps, in a paragraph."""
    said, *rest = fault.text.strip().splitlines()
    if fault.kind == "raised":
        return KernelError(said)
    places = re.findall(r'File "([^"]+)", line (\d+)', "\n".join(rest))
    where = f" ({':'.join(places[-1 if fault.kind == 'hung' else 0])})" if places else ""
    if fault.kind == "hung":
        said = f"a call took more than {policy.hang_seconds:g} s (training.hang_seconds)"
    return KernelError(
        f"gym:{name}, in its first steps, which a worker process takes: {said}{where}, in episode "
        f"{fault.episode}, step {fault.step}, after the action {list(fault.action)}. Mend the "
        "environment there; with `training.backend: serial` it runs in this process, under a "
        "debugger if need be."
    )


def choose(seconds: float, num_envs: int, workers: int | None = None) -> ChosenBackend:
    """The backend for so many copies whose step takes so long; results do not depend on it."""
    if workers is None:
        # One of several processes that share the cores has no core to spare.
        workers = 1 if multiprocessing.parent_process() is not None else usable_cores()
    workers = max(1, min(workers, num_envs))
    serial = num_envs * seconds
    process = math.ceil(num_envs / workers) * seconds + _ROUND_SECONDS
    better = serial > _LEAST_SECONDS and process < _WORTH * serial
    why = (
        f"a step of one copy takes {1e6 * seconds:,.0f} us, of {num_envs} copies "
        f"{1e6 * serial:,.0f} us one after another and about {1e6 * process:,.0f} us in {workers} "
        "worker processes"
    )
    return ChosenBackend("process" if better else "serial", workers, why)


def chosen_backend(
    env: Any, kwargs: Mapping[str, Any], num_envs: int, workers: int | None = None
) -> ChosenBackend:
    """The same for an environment, of which one copy is made and stepped a little."""
    one = np.zeros(1, np.uint64)
    with ForeignEnv(env, one, one, kwargs=kwargs) as probe:
        return choose(step_seconds(probe), num_envs, workers)
