"""What both sides of a cluster share: its options, what is handed over, and errors.

A study hands out stretches, a run its members. `RayCluster` is the owner's side, a `NodeService`
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

HAND_OVER_SECONDS = 60.0  # how old an owner's knowledge of its members' states may become
BEAT_SECONDS = 10.0  # between two words of an actor at work
SILENT_SECONDS = 60.0  # the deadline of its next word


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster, and how much of it.

    Attributes:
        address: ``auto``: the one that this machine belongs to; ``local``: one of its own on this
            machine; else HOST:PORT of its head.
        max_workers: actors at most; None: one for each core, or share of a card, that is there.
        insecure: whether a cluster may be used that lets in whoever reaches its port.
        gpu_share: of a card for each actor, where `training.device` is one.
    """

    address: str
    max_workers: int | None = None
    insecure: bool = False
    gpu_share: float = 1.0

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address not in ("auto", "local") and not (host and port.isdigit()):
            raise ConfigError(
                f"--cluster {self.address!r}: give auto (the cluster that this machine belongs "
                "to), local (one of its own on this machine), or HOST:PORT of its head, such as "
                "10.0.0.1:6379."
            )
        if self.max_workers is not None and self.max_workers < 1:
            raise ConfigError(f"--max-workers {self.max_workers}: give a number from 1 on.")
        if not 0.0 < self.gpu_share <= 1.0:
            raise ConfigError(f"--gpu-share {self.gpu_share:g}: give a share from 0 to 1.")


def resolve_cluster(given: str | ClusterOptions | None) -> ClusterOptions | None:
    """The options of an address."""
    return ClusterOptions(given) if isinstance(given, str) else given


@dataclass(frozen=True)
class Shared:
    """Arrays that lie on every node where they are needed, once.

    Attributes:
        digest: see `arrays_digest`.
        writable: of each array, whether it was; on a node those are copies.
    """

    digest: str
    writable: tuple[bool, ...]

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> Shared:
        """What is handed over."""
        return cls(arrays_digest(arrays), tuple(one.flags.writeable for one in arrays))


@dataclass(frozen=True)
class Lost:
    """Work that came to nothing; its members go on from their last handed-over states.

    Attributes:
        how: for people, after the worker's name: ``was killed by SIGKILL``.
        cause: ``died`` may be the members' doing (memory), ``silent`` is a machine or a network
            that went away, ``left`` was asked for.
    """

    how: str
    cause: str


@dataclass(frozen=True)
class ClusterWork:
    """What actors are for.

    Attributes:
        owner: the run or study; nobody else may use a cluster under this name.
        service: ``module:Class`` of a `NodeService`, called with the next two.
        needs: `Premises`, as they are sent.
        arrays: of the environment, which every actor has from the start.
        files: a folder whose files are laid out on every node; None: nothing is the user's.
        gpu: whether an actor needs a card.
    """

    owner: str
    service: str
    needs: bytes
    arrays: Sequence[NDArray[Any]]
    files: Path | None = None
    gpu: bool = False


def connection_error(address: str, error: BaseException) -> ResourceError:
    """What to say where Ray does not connect."""
    text = first_line(error)
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any("no authentication token was found" in str(cause) for cause in causes):
        return ResourceError(
            f"This machine has no token for the cluster at {address}: copy the head's "
            "~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if any("token" in str(cause).lower() for cause in causes):
        return ResourceError(
            f"The cluster at {address} did not accept this machine's token ({text}): copy the "
            "head's ~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if "ersion mismatch" in str(error):
        text = " ".join(str(error).split())
        return ResourceError(f"{text} Install the same versions on all machines of the cluster.")
    why = text.partition(". ")[0]  # what follows is about options of Ray's commands
    return ResourceError(
        f"No cluster can be used at {address} ({why}). Start one with `ray start --head` "
        "(docs/clusters.md); a machine that begins a study must be one of its nodes. --cluster "
        "local begins one of its own."
    )


def first_line(error: BaseException) -> str:
    """What an error says, without the traces that Ray adds."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, BaseException) else error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def store_full_error(arrays: Sequence[NDArray[Any]], why: str) -> str:
    """What to say where a cluster cannot take arrays over."""
    size = sum(array.nbytes for array in arrays)
    return (
        f"Ray's object store has no room for {size / 2**20:,.0f} MiB of arrays ({why}): start its "
        "nodes with a larger --object-store-memory."
    )


def arrays_digest(arrays: Sequence[NDArray[Any]]) -> str:
    """sha256 of arrays: their types, shapes and bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
