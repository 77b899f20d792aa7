"""First weights, from a member's own seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.vector import draws


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
    rows, columns = max(shape), min(shape)
    normal = np.zeros((len(seeds), rows * columns), np.float32)
    draws.fill_normal(draws.member_keys(seeds, draws.INIT, layer), 0, normal)
    for m in range(len(seeds)):
        q, r = np.linalg.qr(normal[m].reshape(rows, columns).astype(np.float64))
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
        weight[m, : shape[0], : shape[1]] = gain * (q if shape[0] >= shape[1] else q.T)
