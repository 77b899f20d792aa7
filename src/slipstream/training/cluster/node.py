"""The side of a node: what its processes have of a run's or study's environments."""

from __future__ import annotations

import pickle
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.training.cluster.cluster import Shared, digest_of
from slipstream.training.cluster.premises import Premises
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import kind_of
from slipstream.training.environments.kernel_environment import KernelEnvironment

Arrays = Sequence[NDArray[Any]]


class NodeService(ABC):
    """What sits in a seat; see `slipstream.training.cluster.cluster.Service`.

    Args:
        needs: `Premises` of the owner.
        arrays: of its environment.

    Attributes:
        notes: sentences about what may differ here.

    Raises:
        SlipstreamError: this node lacks something.
    """

    def __init__(self, needs: bytes, arrays: Arrays) -> None:
        self._premises = Premises.read(needs)
        self.notes = self._premises.compare(arrays)
        file, name = self._premises.file, self._premises.env
        # Loaded here and now: Ray may take the folder away when another node of this machine goes.
        self._kernel = kind_of(file or name).kernel
        self._first = arrays
        self._data: dict[str, Arrays] = {}  # by their digests, as this process uses them
        self._leaving = threading.Event()

    @abstractmethod
    def answer(self, request: bytes, arrays: Sequence[Arrays]) -> bytes:
        """Does what is asked."""

    def news(self) -> bytes:
        """Nothing, unless there is more to tell."""
        return b""

    def leave(self) -> None:
        """The owner waits for the answer under way."""
        self._leaving.set()

    def restored(self, sent: Mapping[str, Any], arrays: Sequence[Arrays]) -> Environment:
        """The environment of `sent_as`, with the arrays and rules that are here.

        Raises:
            DataError: the arrays are not those that were sent.
        """
        bare: Environment = pickle.loads(sent["bare"])
        rules = bare.part(KernelEnvironment)
        if self._kernel is None or rules is None:
            return bare
        if sent["digest"] not in self._data:
            self._take(sent["digest"], sent["writable"], [self._first, *arrays])
        return rules.with_rules(self._kernel, self._data[sent["digest"]])

    def _take(self, digest: str, writable: Sequence[bool], arrays: Sequence[Arrays]) -> None:
        """Takes up the arrays of that digest.

        Those that might be written are copied, because types decide what is compiled, and what
        lies in an object store may not be.
        """
        found = next((one for one in arrays if digest_of(one) == digest), None)
        if found is None:
            raise DataError(
                f"Arrays of {self._premises.env} that came to {platform.node()} are not those that "
                f"{self._premises.host} sent."
            )
        self._data[digest] = [
            array.copy() if own else array for array, own in zip(found, writable, strict=True)
        ]


def sent_as(environment: Environment, shared: Shared | None) -> dict[str, Any]:
    """A loaded environment without its arrays and rules, for a parcel.

    It is pickled: whoever may send to a node's processes may run code there anyway.

    Args:
        environment: loaded.
        shared: its arrays; None where it has none.
    """
    facts = {} if shared is None else {"digest": shared.digest, "writable": shared.writable}
    rules = environment.part(KernelEnvironment)
    bare = environment if rules is None else rules.without_rules()
    return {"bare": pickle.dumps(bare), **facts}
