"""Common parts of both sides of a cluster: options, transferred data, and errors.

A study distributes segments, a run its members. `RayCluster` is the owner's side; a `NodeService`
does the work on a node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, ResourceError

HAND_OVER_SECONDS = 60.0  # maximum age of the owner's member states
BEAT_SECONDS = 10.0  # interval of an actor's messages during work
SILENT_SECONDS = 60.0  # time without a message after which an actor is lost


@dataclass(frozen=True)
class ClusterOptions:
    """Cluster address and limits.

    Attributes:
        address: ``auto``: the cluster of this machine; ``local``: a new one on this machine; else
            HOST:PORT of its head.
        max_workers: maximum actors; None for one per core, or per GPU share.
        insecure: allow a cluster that accepts connections without a token.
        gpu_share: GPU fraction per actor if `training.device` is a GPU.
    """

    address: str
    max_workers: int | None = None
    insecure: bool = False
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address not in ("auto", "local") and not (host and port.isdigit()):
            raise ConfigError(
                f"--cluster {self.address!r} is unknown. Give auto (the cluster of this machine), "
                "local (a new one on this machine), or HOST:PORT of its head, such as "
                "10.0.0.1:6379."
            )
        if self.max_workers is not None and self.max_workers < 1:
            raise ConfigError(f"--max-workers {self.max_workers} is not valid. Give at least 1.")
        if not 0.0 < self.gpu_share <= 1.0:
            raise ConfigError(
                f"--gpu-share {self.gpu_share:g} is not valid. Give a share between 0 and 1."
            )


def resolve_cluster(given: str | ClusterOptions | None) -> ClusterOptions | None:
    """Return the options of an address."""
    return ClusterOptions(given) if isinstance(given, str) else given


@dataclass(frozen=True)
class Shared:
    """Arrays stored once on every node that needs them.

    Attributes:
        digest: see `arrays_digest`.
        writable: writability of each array at the owner; on a node those are copied.
    """

    digest: str
    writable: tuple[bool, ...]

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> Shared:
        """Describe arrays for the transfer."""
        return cls(arrays_digest(arrays), tuple(array.flags.writeable for array in arrays))


@dataclass(frozen=True)
class Lost:
    """Work that was lost; its members continue from their last returned states.

    Attributes:
        how: description after the worker's name: ``was killed by SIGKILL``.
        cause: ``died`` may be caused by the members (memory), ``silent`` is a lost machine or
            network, ``left`` was requested.
    """

    how: str
    cause: str


@dataclass(frozen=True)
class ClusterWork:
    """Work of the actors.

    Attributes:
        owner: run or study; only one process may use this name in a cluster.
        service: ``module:Class`` of a `NodeService`, called with the next two.
        needs: serialized `NodeCompatibility`.
        arrays: arrays of the environment, sent to every actor at its start.
        files: folder of files to stage on every node; None without user files.
        gpu: True if an actor needs a GPU.
    """

    owner: str
    service: str
    needs: bytes
    arrays: Sequence[NDArray[Any]]
    files: Path | None = None
    gpu: bool = False


def connection_error(address: str, error: BaseException) -> ResourceError:
    """Return the error if Ray does not connect."""
    text = first_line(error)
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any("no authentication token was found" in str(cause) for cause in causes):
        return ResourceError(
            f"This machine has no token for the cluster at {address}. Copy the head's "
            "~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if any("token" in str(cause).lower() for cause in causes):
        return ResourceError(
            f"The cluster at {address} did not accept this machine's token ({text}). Copy the "
            "head's ~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if "ersion mismatch" in str(error):
        text = " ".join(str(error).split())
        return ResourceError(f"{text} Install the same versions on all machines of the cluster.")
    why = text.partition(". ")[0]  # the rest is about options of Ray's commands
    return ResourceError(
        f"No cluster can be used at {address} ({why}). Start one with `ray start --head` "
        "(docs/guides/clusters.md); the machine that starts a study must be one of its nodes. "
        "--cluster "
        "local starts a new one."
    )


def first_line(error: BaseException) -> str:
    """Return the message of an error without Ray's traces."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, BaseException) else error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def store_full_error(arrays: Sequence[NDArray[Any]], why: str) -> str:
    """Return the error if a cluster cannot store arrays."""
    size = sum(array.nbytes for array in arrays)
    return (
        f"Ray's object store has no room for {size / 2**20:,.0f} MiB of arrays ({why}). Start its "
        "nodes with a larger --object-store-memory."
    )


def arrays_digest(arrays: Sequence[NDArray[Any]]) -> str:
    """Return the sha256 of arrays: types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
