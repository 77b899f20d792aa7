"""First weights, from a member's own seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import word
from slipstream.machine import draws

_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_LEFT_OUT: ContextVar[bool] = ContextVar("left out", default=False)


@contextmanager
def left_out() -> Iterator[None]:
    """What is made within it begins with zeros: a state with all weights is restored into it.

    Drawing and decomposing them is most of the time in which members that go on are assembled.
    """
    before = _LEFT_OUT.set(True)
    try:
        yield
    finally:
        _LEFT_OUT.reset(before)


def orthogonal(
    weight: NDArray[np.float32],
    shape: tuple[int, int],
    gain: float,
    seeds: Sequence[int],
    layer: int,
) -> None:
    """Fills weight [M, >= in, >= out] with orthogonal matrices of `shape`; padding stays 0.

    Q of the QR decomposition of a normal matrix, signs taken from R (Saxe, McClelland, Ganguli
    2014, "Exact solutions to the nonlinear dynamics of learning in deep linear neural networks").

    Args:
        weight: written in place.
        shape: true (in, out) of one member's matrix.
        gain: factor.
        seeds: [M]; a member's matrix follows from its seed and `layer` alone.
        layer: number of the matrix within the network.
    """
    if _LEFT_OUT.get():
        return
    rows, columns = max(shape), min(shape)
    normal = np.zeros((len(seeds), rows * columns), np.float32)
    draws.fill_normal(draws.member_keys(seeds, draws.INIT, layer), 0, normal)
    for m in range(len(seeds)):
        q, r = np.linalg.qr(normal[m].reshape(rows, columns).astype(np.float64))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        weight[m, : shape[0], : shape[1]] = gain * (q if shape[0] >= shape[1] else q.T)


def fan_in_uniform(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    shape: tuple[int, int],
    seeds: Sequence[int],
    layer: int,
) -> None:
    """Fills weight [M, >= in, >= out] and bias [M, >= out] from U(-1/sqrt(in), 1/sqrt(in)).

    What PyTorch's linear layers start with (LeCun, Bottou, Orr, Mueller 1998, "Efficient backprop",
    section 4.6, with a third of its variance), and with them the published value-based agents.

    Args:
        weight, bias: written in place; padding stays 0.
        shape, seeds, layer: as for `orthogonal`.
    """
    if _LEFT_OUT.get():
        return
    rows, columns = shape
    keys = draws.member_keys(seeds, draws.INIT, layer)
    with np.errstate(over="ignore"):
        bits = word(keys[:, None], np.arange((rows + 1) * columns, dtype=np.uint64)[None])
    unit = (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT
    numbers = ((2.0 * unit - 1.0) / np.sqrt(rows)).reshape(len(keys), rows + 1, columns)
    weight[:, :rows, :columns] = numbers[:, :rows]
    bias[:, :columns] = numbers[:, rows]
