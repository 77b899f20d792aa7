"""Policies as files: named tensors and a manifest, readable with NumPy and JSON alone.

docs/policies.md describes format 2 for those who read it without slipstream.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream import __version__
from slipstream.core.errors import CheckpointError
from slipstream.core.spec import Spec
from slipstream.nets.actions import ActionMap
from slipstream.nets.networks import MlpNetwork
from slipstream.nets.observations import LIMIT
from slipstream.nets.policy import Policy

FORMAT = 2
_WEIGHTS = "weights."
Tensors = dict[str, NDArray[Any]]


def pack(
    policy: Policy, m: int = 0, conditions: Mapping[str, Any] | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Tensors by name, for safetensors, and the JSON-able manifest of member m.

    Args:
        policy: of M members.
        m: which one.
        conditions: what it was trained under, plain values; unless given, what a policy that was
            read from a file knows.
    """
    tensors = {f"{_WEIGHTS}{name}": array for name, array in _weights(policy, m)}
    network: dict[str, Any] = {"kind": "mlp", "widths": list(policy.widths)}
    observation: dict[str, Any] = {
        "shape": list(policy.observation_shape),
        "dtype": policy.observation_dtype.name,
    }
    if policy.scale is None:
        network["kind"] = "convolution"
    else:
        network["activation"] = policy.activation
        if policy.dueling:
            network["dueling"] = True
        observation["clip"] = LIMIT
        tensors["observation.mean"] = policy.scale.mean[m].copy()
        tensors["observation.inverse_std"] = policy.scale.inverse_std[m].copy()
    description = {
        "format": FORMAT,
        "slipstream": __version__,
        "seed": policy.seeds[m],
        "head": policy.actions.head,
        "network": network,
        "observation": observation,
        "action": policy.actions.description(),
        "native": policy.native.description(),
        "conditions": dict(policy.conditions if conditions is None else conditions),
    }
    return tensors, {**description, "hash": _digest(tensors, description)}


def unpack(tensors: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]) -> Policy:
    """A policy of one member, from what `pack` of this version or of format 1 gave.

    Raises:
        CheckpointError: another format, or the hash does not fit.
    """
    known = manifest.get("format")
    if isinstance(known, bool) or known not in (1, FORMAT):
        writer = manifest.get("slipstream")
        raise CheckpointError(
            f"This policy has format {known!r}, and slipstream {__version__} reads formats 1 and "
            f"{FORMAT}. Load it with the version that wrote it"
            f"{f', slipstream {writer}' if writer else ''}, or train it again with this one."
        )
    description = {k: v for k, v in manifest.items() if k != "hash"}
    if _digest(tensors, description) != manifest.get("hash"):
        raise CheckpointError(
            "The policy's weights do not fit the hash in its manifest: a file was changed or "
            "cut short. Use another checkpoint of the run."
        )
    if known == 1:
        return _format_1(tensors, manifest)
    network = manifest["network"]
    policy = _blank(
        manifest,
        widths=tuple(network["widths"]),
        activation=network.get("activation", "tanh"),
        head=manifest["head"],
        dueling=network.get("dueling", False),
    )
    policy.conditions = manifest["conditions"]
    for name, place in _weights(policy, 0, places=True):
        if f"{_WEIGHTS}{name}" in tensors:  # who only acts may leave out the critic
            place[:] = tensors[f"{_WEIGHTS}{name}"]
    if policy.scale is not None:
        policy.scale.hold(tensors["observation.mean"], tensors["observation.inverse_std"])
    return policy


def _weights(
    policy: Policy, m: int, places: bool = False
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Member m's weights by name, without the padding of products; `places`: not copied."""
    own = {name: weight[m] for name, weight in policy.parameters.weights.items()}
    network = policy.network
    if isinstance(network, MlpNetwork):
        for mlp in network.mlps:
            for i, layer in enumerate(mlp.layers):
                weight = own.pop(layer.weight)
                # the first layer's bias is the weight of the input's column of ones
                bias = own.pop(layer.bias)[0] if i else weight[layer.inputs]
                weight, bias = weight[: layer.inputs, : layer.outputs], bias[: layer.outputs]
                yield layer.weight, weight if places else weight.copy()
                yield layer.bias, bias if places else bias.copy()
    for name, weight in own.items():
        yield name, weight if places else weight.copy()


def _blank(manifest: Mapping[str, Any], **settings: Any) -> Policy:
    """A policy of one member with the outside of a manifest and weights of its own."""
    shape = tuple(manifest["observation"]["shape"])
    dtype = np.dtype(manifest["observation"]["dtype"])
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    spec = Spec(
        observation=gymnasium.spaces.Box(low, high, shape, dtype.type),
        action=ActionMap.space(manifest["action"]),
    )
    policy = Policy([spec], [manifest["seed"]], **settings)
    if "native" in manifest:  # the oldest policies of format 1 know rows only
        policy.native = policy.native.with_description(manifest["native"])
    return policy


def _format_1(tensors: Mapping[str, NDArray[Any]], manifest: Mapping[str, Any]) -> Policy:
    """Weights with their padding, running statistics instead of a scale, and no conditions."""
    policy = _blank(
        manifest,
        widths=tuple(manifest["widths"]),
        activation=manifest["activation"],
        observation_normalization=manifest["observation_normalization"],
    )
    for name, weight in policy.parameters.weights.items():
        weight[0] = tensors[f"{_WEIGHTS}{name}"]
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
