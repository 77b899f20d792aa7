"""A complete policy: networks, observation scaling, action mapping; one thing to export."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.extras import require_torch
from slipstream.core.lines import zeros
from slipstream.core.spec import Spec
from slipstream.nets.actions import ActionMap
from slipstream.nets.actor import Actor
from slipstream.nets.native import Native
from slipstream.nets.networks import Activation, MlpNetwork, Network, input_width
from slipstream.nets.observations import ObservationScale
from slipstream.nets.parameters import Parameters
from slipstream.vector import draws

FORMAT = 1
_ACTORS = 8  # numbers of rows that buffers are kept for


class Policy:
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

    Attributes:
        parameters: all weights; scale: of observations (None for images); actions: the mapping.
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
    ) -> None:
        if len(specs) != len(seeds):
            raise ConfigError(
                f"One Spec per member is needed: {len(seeds)} members, {len(specs)} specs."
            )
        spec = specs[0]
        self.members, self.seeds = len(seeds), tuple(int(seed) for seed in seeds)
        self.widths, self.activation = tuple(widths), activation
        self.observation_shape = spec.observation_shape
        self.observation_dtype = spec.observation_dtype
        self.actions = ActionMap(spec.action)
        self.native = Native.of(spec, self.members, self.actions.sizes)
        self.is_image = self.observation_dtype == np.uint8 and len(self.observation_shape) == 3
        self.scale: ObservationScale | None = None
        self.network: Network
        if self.is_image:
            self.network = self._image_network()
        else:
            inputs = int(np.prod(self.observation_shape))
            self.scale = ObservationScale(specs, observation_normalization)
            self.network = MlpNetwork(inputs, self.widths, self.actions.head_width, activation)
        shapes = dict(self.network.shapes())
        if self.actions.continuous:
            shapes["log_std"] = (self.actions.width,)
        self.parameters = Parameters(shapes, self.members, parts)
        self.network.initialise(self.parameters.weights, self.seeds)
        if self.actions.continuous:
            self.parameters.weights["log_std"][:] = math.log(initial_std)
        self._actors: dict[int, Actor] = {}
        self._keys, self._draws = self.seeds, 0

    def _image_network(self) -> Network:
        require_torch("Images pass through convolutions")
        from slipstream.nets.convolution import ConvolutionalNetwork

        c, h, w = self.observation_shape
        return ConvolutionalNetwork((c, h, w), self.widths[-1], self.actions.head_width)

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

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Actions for one observation or for a batch, both as the environment itself knows them.

        Args:
            obs: an observation of the environment's own space (an array, a number, a dict or a
                tuple), not flattened and not scaled; or n of them, the batch axis first in every
                array. A policy of M > 1 members takes [M, ...] or [M, n, ...].
            mask: bool [choices] of the choices allowed now, [n, choices] for a batch. Without it a
                policy that was trained with one refuses to act.
            deterministic: the most likely action; otherwise one is drawn, see `reseed`.

        Returns:
            An action of the environment's own space: an int for Discrete, else an array; for a
            batch an array with the batch axis first.

        Raises:
            ConfigError: observations or a mask of another form, or no mask where one is needed.
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
            keys: one noise stream per member, uint64 [M]; None for the most likely action.
            mask: bool [M * R, choices] of allowed choices.
        """
        rows = len(obs) // self.members
        actor = self._actor(rows)
        out = np.zeros((len(obs), self.actions.width), self.actions.dtype)
        if keys is None:
            actor.decide(obs, mask, out)
        else:
            drawn, log_prob = np.empty_like(out), np.empty(len(out), np.float32)
            actor.sample(obs, mask, keys, 0, drawn, log_prob)
            self.actions.to_environment(drawn, out)
        return out

    def to_tensors(self, m: int) -> dict[str, NDArray[Any]]:
        """Member m's weights and observation statistics, by name, for safetensors."""
        tensors = {f"weights.{k}": w[m].copy() for k, w in self.parameters.weights.items()}
        if self.scale is not None:
            state = self.scale.state_dict()
            tensors |= {f"observation.{k}": v[m : m + 1].copy() for k, v in state.items()}
        return tensors

    def manifest(self, m: int) -> dict[str, Any]:
        """JSON-able description from which `from_tensors` rebuilds member m, with a hash."""
        description = {
            "format": FORMAT,
            "kind": "image" if self.is_image else "rows",
            "seed": self.seeds[m],
            "observation": {
                "shape": list(self.observation_shape),
                "dtype": self.observation_dtype.name,
            },
            "action": self.actions.description(),
            "native": self.native.description(),
            "widths": list(self.widths),
            "activation": self.activation,
            "observation_normalization": self.scale is not None and self.scale.running,
        }
        return {**description, "hash": _digest(self.to_tensors(m), description)}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]
    ) -> Policy:
        """A policy of one member from what `to_tensors` and `manifest` gave.

        Raises:
            CheckpointError: when the hash does not fit, or a tensor is missing or of another shape.
        """
        description = {k: v for k, v in manifest.items() if k != "hash"}
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"This policy has format {manifest.get('format')}; this version reads {FORMAT}. "
                "Export it again with the version that trained it."
            )
        if _digest(tensors, description) != manifest.get("hash"):
            raise CheckpointError(
                "The policy's weights do not fit the hash in its manifest: a file was changed or "
                "cut short. Use another checkpoint of the run."
            )
        shape = tuple(manifest["observation"]["shape"])
        dtype = np.dtype(manifest["observation"]["dtype"])
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        spec = Spec(
            observation=gymnasium.spaces.Box(low, high, shape, dtype.type),
            action=ActionMap.space(manifest["action"]),
        )
        policy = cls(
            [spec],
            [manifest["seed"]],
            widths=tuple(manifest["widths"]),
            activation=manifest["activation"],
            observation_normalization=manifest["observation_normalization"],
        )
        if "native" in manifest:  # an older policy knows rows only
            policy.native = policy.native.with_description(manifest["native"])
        for name, weight in policy.parameters.weights.items():
            weight[0] = tensors[f"weights.{name}"]
        if policy.scale is not None:
            names = policy.scale.state_dict()
            policy.scale.load_state_dict({k: tensors[f"observation.{k}"] for k in names})
        return policy


def _digest(tensors: Mapping[str, NDArray[Any]], description: Mapping[str, Any]) -> str:
    """SHA-256 over the description and every tensor's name, shape and bytes."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
