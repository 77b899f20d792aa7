"""A study on a local Ray of single-core nodes, or on this machine's forked workers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slipstream.bench.ours.study import run_study
from slipstream.bench.worker import serve
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.reader import StudyReader

_STORE = 512 * 2**20  # bytes of each node's: left alone, each takes a third of the memory


def measure(config: Mapping[str, Any], folder: str, nodes: int) -> dict[str, float]:
    """Runs the config's study in `folder`.

    Args:
        config, folder: see `run_study`.
        nodes: of one core each; 0: forked workers, one per core.

    Returns:
        `search`: wall seconds of the search; `work`: the workers' seconds in it; `owner`: processor
        seconds of the process that owns the study, in it and while it writes the rest of the
        storage behind it; `stretches`, and `bytes` that were carried for them in the search.
    """
    with _cluster(nodes) as address:
        options = [] if address is None else ["--cluster", address]
        ran = run_study(config, Path(folder), options=("--no-report", *options))
    with StudyReader(StudyFolder(Path(folder))) as reader:
        cpu, stretches, carried = (reader.fact(name) or {} for name in ("cpu", "answers", "bytes"))
    return {
        "search": ran.search,
        "work": ran.train + ran.evaluate + ran.rest,
        "owner": float(cpu.get("search", 0.0) + cpu.get("mirror", 0.0)),
        "stretches": float(stretches.get("search", 0.0)),
        "bytes": float(carried.get("search", 0.0)),
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

    each = {"num_cpus": 1, "object_store_memory": _STORE}
    made = Cluster(initialize_head=True, head_node_args=each)
    try:
        for _ in range(nodes - 1):
            made.add_node(**each)
        yield made.address
    finally:
        made.shutdown()


if __name__ == "__main__":
    serve(measure)
