"""Twin critics of a population: one group of weights for each, and their targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream.agents.actor_critic.learned import CRITICS
from slipstream.nets.networks import Activation, Mlp
from slipstream.nets.parameters import Parameters, places


class Critics:
    """Q(s, a) of M members, twice (Fujimoto et al. 2018, "Addressing function approximation error
    in actor-critic methods": the smaller of two values is overestimated less).

    Args:
        numbers: D of an observation; width: K of an action.
        widths: hidden layers.
        activation: between layers.
        seeds: [M]; a member's first weights follow from its seed alone.
        first: number of the first matrix, those before it being the actor's.

    Attributes:
        groups: weights of each critic; targets: float32 [M, P] of each, equal to them at first.
        table: int64 [L, 5], as `layers.py` reads it.
        mlp: layers; the input is the action, and after it the observation.
    """

    def __init__(
        self,
        numbers: int,
        width: int,
        widths: Sequence[int],
        activation: Activation,
        seeds: Sequence[int],
        first: int,
    ) -> None:
        sizes = (width + numbers, *widths, 1)
        self.mlp = Mlp("critic", sizes, activation, None)
        self.groups = [Parameters(self.mlp.shapes(), len(seeds)) for _ in range(CRITICS)]
        self.table = self.mlp.table(places(self.mlp.shapes())[0])
        for c, group in enumerate(self.groups):
            self.mlp.initialise(group.weights, seeds, first + c * len(self.mlp.layers))
        self.targets: list[NDArray[np.float32]] = [group.flat.copy() for group in self.groups]
