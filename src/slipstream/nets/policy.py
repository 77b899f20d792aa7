"""A complete policy: networks, observation scaling, action mapping; one thing to export."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.extras import require_torch
from slipstream.core.memory import zeros
from slipstream.core.spec import Spec
from slipstream.core.text import Summarised
from slipstream.machine import draws
from slipstream.nets.actions import ActionMap, Head
from slipstream.nets.actor import Actor
from slipstream.nets.native import Native
from slipstream.nets.networks import Activation, MlpNetwork, Network, input_width
from slipstream.nets.observations import ObservationScale
from slipstream.nets.parameters import Parameters

_ACTORS = 8  # numbers of rows that buffers are kept for


class Policy(Summarised):
    """The policies of M members that act on the same kind of observation.

    ::

        policy = slipstream.load_policy(run)
        action = policy.act(observation)          # one observation -> one action
        actions = policy.act(observations)        # a batch [n, ...] -> n actions

    Args:
        specs: one Spec per member; they differ in fixed scales only.
        seeds: [M]; a member's first weights follow from its seed alone.
        widths: hidden layers (an image's dense layer is the last of them).
        activation: between layers.
        observation_normalization: keep running statistics of columns without a fixed scale.
        initial_std: standard deviation of continuous actions at the start, in policy units.
        parts: gradient buffers.
        head: what the network's outputs mean, see `ActionMap`. Only `logits` and `gaussian` have a
            critic in the policy.
        dueling: of the head `q`, see `dueling.py`.

    Attributes:
        parameters: all weights; scale: of observations (None for images); actions: the mapping.
        conditions: what it was trained under, where it was read from a file; see
            `Environment.conditions`.
        native: the outside of `act`: observations, masks and actions as the environment knows them.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        seeds: Sequence[int],
        *,
        widths: tuple[int, ...] = (64, 64),
        activation: Activation = "tanh",
        observation_normalization: bool = True,
        initial_std: float = 0.6,
        parts: int = 1,
        head: Head | None = None,
        dueling: bool = False,
    ) -> None:
        if len(specs) != len(seeds):
            raise ConfigError(
                f"One Spec per member is needed: {len(seeds)} members, {len(specs)} specs."
            )
        spec = specs[0]
        self.members, self.seeds = len(seeds), tuple(int(seed) for seed in seeds)
        self.widths, self.activation, self.dueling = tuple(widths), activation, dueling
        self.observation_shape = spec.observation_shape
        self.observation_dtype = spec.observation_dtype
        self.actions = ActionMap(spec.action, head)
        self.conditions: Mapping[str, Any] = {}
        self.native = Native.of(spec, self.members, self.actions.sizes)
        self.is_image = self.observation_dtype == np.uint8 and len(self.observation_shape) == 3
        self.scale: ObservationScale | None = None
        self.network = network_of(
            *(self.observation_shape, self.is_image, self.actions, self.widths),
            *(activation, dueling),
        )
        if not self.is_image:
            self.scale = ObservationScale(specs, observation_normalization)
        shapes = dict(self.network.shapes())
        if self.actions.head == "gaussian":
            shapes["log_std"] = (self.actions.width,)
        self.parameters = Parameters(shapes, self.members, parts)
        self.network.initialise(self.parameters.weights, self.seeds)
        if self.actions.head == "gaussian":
            self.parameters.weights["log_std"][:] = math.log(initial_std)
        self._actors: dict[int, Actor] = {}
        self._keys, self._draws = self.seeds, 0

    @property
    def input_width(self) -> int:
        """Columns of the network's input for one observation row."""
        return input_width(int(np.prod(self.observation_shape)))

    def inputs(self, rows: int) -> NDArray[np.float32]:
        """Memory for network inputs [M, rows, input width], its column of ones in place."""
        x: NDArray[np.float32] = zeros((self.members, rows, self.input_width))
        x[..., int(np.prod(self.observation_shape))] = 1.0
        return x

    def actor(self, rows: int) -> Actor:
        """Buffers to act for `rows` environments of every member; one for each thread that acts."""
        return Actor(self, rows)

    def _actor(self, rows: int) -> Actor:
        if rows not in self._actors:
            if len(self._actors) >= _ACTORS:
                del self._actors[next(iter(self._actors))]
            self._actors[rows] = Actor(self, rows)
        return self._actors[rows]

    def summary(self) -> dict[str, object]:
        """What is observed, what comes of it, and the networks between."""
        return {
            "members": self.members if self.members > 1 else None,
            "observations": "x".join(map(str, self.observation_shape)),
            "actions": ActionMap.space(self.actions.description()),
            "layers": " and ".join(map(str, self.widths)),
            "activation": self.activation,
        }

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Actions for one observation or for a batch, both as the environment itself knows them.

        Args:
            obs: an observation of the environment's own space (an array, a number, a dict or a
                tuple), not flattened and not scaled; or n of them, the batch axis first in every
                array. A policy of M > 1 members takes [M, ...] or [M, n, ...].
            mask: bool [choices] of the choices allowed now, [n, choices] for a batch. Without it a
                policy that was trained with one refuses to act.
            deterministic: the most likely action; otherwise one is drawn, see `reseed`. The heads
                `q` and `tanh` have no distribution, and always take the best one.

        Returns:
            An action of the environment's own space: an int for Discrete, else an array; for a
            batch an array with the batch axis first.

        Raises:
            ConfigError: observations or a mask of another form, no mask where one is needed, or a
                head that is not drawn from.
        """
        rows, lead = self.native.rows(obs)
        allowed = self.native.allowed(mask, lead, len(rows))
        keys = None
        if not deterministic:
            keys = draws.member_keys(self._keys, draws.SAMPLE, self._draws)
            self._draws += 1
        actions = np.zeros((0, self.actions.width), self.actions.dtype)
        if len(rows):
            actions = self.act_rows(rows, keys=keys, mask=allowed)
        return self.native.actions(actions, lead)

    def reseed(self, seed: int) -> None:
        """Begins the stream that `act(..., deterministic=False)` draws from anew, from a seed."""
        self._keys, self._draws = tuple(seed + m for m in range(self.members)), 0

    def act_rows(
        self,
        obs: NDArray[Any],
        *,
        keys: NDArray[np.uint64] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> NDArray[Any]:
        """What the environments receive, [M * R, K], for rows [M * R, *shape]; for inner loops.

        Args:
            obs: as a VectorEnv writes them into its rows, not scaled.
            keys: one noise stream per member, uint64 [M]; None for the most likely action, which
                heads without a distribution take anyway.
            mask: bool [M * R, choices] of allowed choices.
        """
        rows = len(obs) // self.members
        actor = self._actor(rows)
        out = np.zeros((len(obs), self.actions.width), self.actions.dtype)
        if keys is None or not self.actions.drawn:
            actor.decide(obs, mask, out)
        else:
            drawn, log_prob = np.empty_like(out), np.empty(len(out), np.float32)
            actor.sample(obs, mask, keys, 0, drawn, log_prob, out)
        return out


def network_of(
    shape: tuple[int, ...],
    image: bool,
    actions: ActionMap,
    widths: tuple[int, ...],
    activation: Activation,
    dueling: bool,
) -> Network:
    """The network of a policy; no weights are allocated.

    Args:
        shape: of an observation row, `image` where that is a uint8 image.
        actions, widths, activation, dueling: see `Policy`.
    """
    if image:
        require_torch("Images pass through convolutions")
        from slipstream.nets.convolution import ConvolutionalNetwork

        c, h, w = shape
        return ConvolutionalNetwork((c, h, w), widths[-1], actions.head_width)
    return MlpNetwork(
        math.prod(shape),
        widths,
        actions.head_width,
        activation,
        critic=actions.head in ("logits", "gaussian"),
        dueling=dueling,
    )
