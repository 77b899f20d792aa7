"""A measurement in a process of its own: settings in, one line of JSON out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.core.errors import ResourceError

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TAIL = 1500  # characters of a failed worker's last words that are shown


class WorkerError(ResourceError):
    """A measurement that could not be made, such as a peer that is not installed."""


def run_worker(
    module: str, settings: Mapping[str, Any], *, threads: int | None = None, timeout: float = 300.0
) -> dict[str, Any]:
    """Runs ``python -m slipstream.bench.{module}`` and returns what it printed.

    Args:
        module: ``peers.envpool_cartpole``, say.
        settings: handed over as JSON.
        threads: limit for the threads of array libraries, None for their own choice.
        timeout: seconds after which the worker is ended.
    """
    environment = dict(os.environ)
    for name in _THREAD_VARIABLES:
        environment.pop(name, None)
        if threads is not None:
            environment[name] = str(threads)
    command = [sys.executable, "-m", f"slipstream.bench.{module}", json.dumps(dict(settings))]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(
            f"{module} did not finish within {timeout:g} s; measure on a quieter machine."
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = (done.stderr or done.stdout).strip()[-_TAIL:]
        raise WorkerError(
            f"{module} ended with exit code {done.returncode}. If a peer is missing, "
            f"`pip install --no-deps -r requirements-peers.lock` installs all. It said:\n{said}"
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def serve(measure: Callable[..., Mapping[str, Any]]) -> None:
    """The other end: calls `measure` with the settings as keyword arguments, prints its answer."""
    settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    answer = measure(**settings)
    print(json.dumps(dict(answer)), flush=True)
