"""A study on a local Ray of single-core nodes, or on this machine's forked workers."""

from __future__ import annotations

import os
import resource
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.bench.ours.study import run_study
from slipstream.bench.worker import serve
from slipstream.training.status import read_status


def measure(config: Mapping[str, Any], folder: str, nodes: int) -> dict[str, float]:
    """Runs the config's study in `folder`.

    Args:
        config, folder: see `run_study`.
        nodes: of one core each; 0: forked workers, one per core.

    Returns:
        `search`: wall seconds of the search; `work`: the workers' seconds in it; `stretches` and
        `bytes`: of all phases; `owner`: seconds of processor time of the process that owns it, and
        `wall` of it all, without starting Ray's nodes.
    """
    with _cluster(nodes) as address:
        options = () if address is None else ("--cluster", address)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ran = run_study(config, Path(folder), options=("--no-report", *options))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = read_status(Path(folder))
    told = [] if status is None else list(status.details.get("nodes", ()))
    return {
        "search": ran.search,
        "work": ran.train + ran.evaluate + ran.rest,
        "wall": ran.search + ran.confirm,
        "owner": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "stretches": float(sum(node["answers"] for node in told)),
        "bytes": float(sum(node["bytes"] for node in told)),
    }


@contextmanager
def _cluster(nodes: int) -> Iterator[str | None]:
    if not nodes:
        yield None
        return
    # Read when Ray is imported.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=1)
        yield made.address
    finally:
        made.shutdown()


if __name__ == "__main__":
    serve(measure)
