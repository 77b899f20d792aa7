"""Policies as files: named tensors and a manifest, readable with NumPy and JSON.

docs/reference/policy-format.md describes format 2 for readers without slipstream.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import gymnasium
import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError, ResourceError
from slipstream.core.safe_io import schema_mismatch
from slipstream.core.storage import checkpoint
from slipstream.core.version import __version__
from slipstream.kernels.space_codec import ObservationCodec, check_description, iter_leaves
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.best_policies import BEST, BestPolicies
from slipstream.rl.experience.running_mean_std import LIMIT
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.networks import Activation, MlpNetwork, Network, skip_initialization
from slipstream.rl.nets.policy import Policy, make_policy_network

FORMAT = 2
_WEIGHTS, _SCALE = "weights.", ("observation.mean", "observation.inverse_std")
Tensors = dict[str, NDArray[Any]]

_FEATURE = {"name": str, "pattern?": str, "column?": str, "n?": int, "warm_up_bars?": int}
_BOUND = [(int, float, str)]
_SHAPE: dict[str, Any] = {
    "format": int,
    "slipstream": str,
    "seed": int,
    "head": str,
    "network": {"kind": str, "net_arch": [int], "activation?": str, "dueling?": bool},
    "observation": {"shape": [int], "dtype": str, "clip?": (int, float, type(None), list)},
    "action": {"kind": str, "sizes?": [int], "start?": [int], "low?": _BOUND, "high?": _BOUND},
    "native": {"observation": {}, "layout": str, "action": {}, "masked": bool},
    "training_context": {
        **dict.fromkeys(("environment?", "fill?", "data_sha256?"), str),
        **dict.fromkeys(("bar_seconds?", "symbols_at_once?", "warm_up_bars?"), int),
        **dict.fromkeys(("lookback?", "decide_every?"), int),
        **{"symbols?": [str], "features?": [_FEATURE], "settings?": {}},
    },
}


def pack(
    policy: Policy, m: int = 0, training_context: Mapping[str, Any] | None = None
) -> tuple[Tensors, dict[str, Any]]:
    """Return tensors by name, for safetensors, and the JSON-serializable manifest of member m.

    Args:
        policy: Policy of M members.
        m: Member.
        training_context: Plain values; by default the context of a policy loaded from a file.
    """
    tensors = {f"{_WEIGHTS}{name}": array for name, array in _weights(policy, m)}
    if policy.scale is not None:
        tensors["observation.mean"] = policy.scale.mean[m].copy()
        tensors["observation.inverse_std"] = policy.scale.inverse_std[m].copy()
    description = _make_manifest(policy, m)
    if training_context is not None:
        description["training_context"] = dict(training_context)
    return tensors, {**description, "hash": _digest(tensors, description)}


def _make_manifest(policy: Policy, m: int) -> dict[str, Any]:
    """Return the manifest of member m without its hash."""
    network: dict[str, Any] = {"kind": "mlp", "net_arch": list(policy.net_arch)}
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
        observation["clip"] = _clip(policy.scale.limit[m])
    return {
        "format": FORMAT,
        "slipstream": __version__,
        "seed": policy.seeds[m],
        "head": policy.actions.head,
        "network": network,
        "observation": observation,
        "action": policy.actions.description(),
        "native": policy.native.description(),
        "training_context": dict(policy.training_context),
    }


def _clip(limit: NDArray[np.float32]) -> float | list[float | None] | None:
    """Return column bounds [D] as JSON: null is unclipped; one value if all are equal."""
    bounds = [None if np.isinf(bound) else float(bound) for bound in limit]
    return bounds[0] if len(set(bounds)) == 1 else bounds


def _limit(clip: Any, width: int) -> NDArray[np.float32]:
    """Return bounds [D] from `_clip`."""
    bounds = clip if isinstance(clip, list) else [clip] * width
    if len(bounds) != width or not all(bound is None or bound == LIMIT for bound in bounds):
        raise ValueError(f"scaled observations are clipped to {clip!s:.80}")
    return np.array([np.inf if bound is None else bound for bound in bounds], np.float32)


def read_policy(place: str | Path) -> Policy:
    """Load the policy of a run's best member, or of a policy directory.

    Raises:
        ConfigError: The path is neither.
        CheckpointError: The run has no policy yet, or the policy is damaged.
    """
    folder = Path(place).expanduser()
    if (folder / checkpoint.MANIFEST).is_file():
        tensors, manifest = checkpoint.load(folder)
        if "policy" not in manifest:
            raise ConfigError(
                f"{place} is a checkpoint of a whole training and holds no policy: name the run's "
                "directory, or a folder in its `best`."
            )
        return unpack(tensors, manifest["policy"])
    if not (folder / BEST).is_dir():
        raise ConfigError(
            f"{place} is not a run directory, for it has no `{BEST}`. Name what `slipstream train` "
            "printed, a policy's folder or an .onnx file."
        )
    best = BestPolicies(folder, lambda message: print(message, file=sys.stderr))
    tensors, manifest = best.load(best.highest)
    return unpack(tensors, manifest["policy"])


def unpack(tensors: Mapping[str, NDArray[Any]], manifest: Any) -> Policy:
    """Build a policy of one member from the result of `pack`, with or without the critic.

    Nothing is allocated before manifest and tensors are verified to match.

    Raises:
        ConfigError, CheckpointError: There is no policy, its format is not supported, its hash does
            not match, or weights and manifest are inconsistent.
    """
    if not isinstance(manifest, Mapping):
        raise CheckpointError(
            "There is no policy here: the manifest's `policy` does not describe one. Pass a run's "
            "directory, or a folder in its `best`."
        )
    version = manifest.get("format")
    if isinstance(version, bool) or version != FORMAT:
        writer = manifest.get("slipstream")
        raise CheckpointError(
            f"This policy has format {version!r}, and slipstream {__version__} reads format "
            f"{FORMAT}. Load it with the version that wrote it"
            f"{f', slipstream {writer}' if writer else ''}, or train it again with this one."
        )
    description = {k: v for k, v in manifest.items() if k != "hash"}
    if _digest(tensors, description) != manifest.get("hash"):
        raise CheckpointError(
            "The policy's weights do not fit the hash in its manifest: a file was changed or "
            "cut short. Use another checkpoint of the run."
        )
    try:
        policy = _build_policy(tensors, description)
    except ResourceError:  # images require torch
        raise
    except Exception as error:  # a forged manifest can make spaces and codecs raise any error
        raise CheckpointError(
            f"This is no policy that slipstream wrote, although its hash fits: {error!s:.300}. Use "
            "the file as it was written, or another policy."
        ) from error
    for name, place in _weights(policy, 0, places=True):
        if f"{_WEIGHTS}{name}" in tensors:  # the critic is optional
            place[:] = tensors[f"{_WEIGHTS}{name}"]
    if policy.scale is not None:
        policy.scale.freeze(*(tensors[name] for name in _SCALE))
    policy.packed = manifest, tensors
    return policy


def _build_policy(tensors: Mapping[str, NDArray[Any]], description: dict[str, Any]) -> Policy:
    """Build a policy from a manifest with matching tensors; its weights are uninitialized.

    Raises:
        ValueError: `pack` does not write such a manifest. Spaces may raise other errors.
    """
    problem = schema_mismatch(description, _SHAPE, "the manifest", exact=True)
    if problem is not None:
        raise ValueError(problem)
    network, rows = description["network"], description["observation"]
    shape, net_arch, head = tuple(rows["shape"]), tuple(network["net_arch"]), description["head"]
    activation, dueling = network.get("activation", "tanh"), network.get("dueling", False)
    if activation not in get_args(Activation):
        raise ValueError(f"the activation {activation!r} is unknown")
    if dueling and head != "q":
        raise ValueError(f"the head {head!r} is never dueling")
    if rows["dtype"] not in ("float32", "uint8") or not 0 <= description["seed"] < 1 << 64:
        raise ValueError(f"rows of {rows['dtype']}, seed {description['seed']}")
    if min((*shape, *net_arch), default=1) < 1 or len(net_arch) > len(tensors):
        raise ValueError(f"rows of shape {shape} and layers of {net_arch!s:.80}")
    actions = ActionMap(ActionMap.space(description["action"]), head)
    image = rows["dtype"] == "uint8" and len(shape) == 3
    built = make_policy_network(shape, image, actions, net_arch, activation, dueling)
    _check_tensors(tensors, _tensor_shapes(built, shape, actions), image)
    _check_spaces(description["native"], shape, rows["dtype"], actions)
    dtype = np.dtype(rows["dtype"])
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    spec = EnvSpec(
        observation_space=gymnasium.spaces.Box(low, high, shape, dtype.type),
        action_space=ActionMap.space(description["action"]),
    )
    with skip_initialization():  # weights are loaded afterwards
        policy = Policy(
            *([spec], [description["seed"]]),
            **{"net_arch": net_arch, "activation": activation, "head": head, "dueling": dueling},
        )
    if policy.scale is not None:
        policy.scale.limit[:] = _limit(rows["clip"], math.prod(shape))
    policy.native = policy.native.with_description(description["native"])
    policy.training_context = description["training_context"]
    written = {**_make_manifest(policy, 0), "slipstream": description["slipstream"]}
    odd = [key for key in _SHAPE if written[key] != description[key]]
    if odd:
        raise ValueError(f"`{odd[0]}` is {description[odd[0]]!s:.80}, not {written[odd[0]]!s:.80}")
    return policy


def _tensor_shapes(
    network: Network, shape: tuple[int, ...], actions: ActionMap
) -> dict[str, tuple[int, ...]]:
    """Return shapes of a policy's tensors by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(network, MlpNetwork):
        for layer in (layer for mlp in network.mlps for layer in mlp.layers):
            shapes[layer.weight] = (layer.inputs, layer.outputs)
            shapes[layer.bias] = (layer.outputs,)
    else:
        shapes |= network.shapes()
    if actions.head == "gaussian":
        shapes["log_std"] = (actions.width,)
    named = {f"{_WEIGHTS}{name}": size for name, size in shapes.items()}
    scaled = isinstance(network, MlpNetwork)
    return named | (dict.fromkeys(_SCALE, (math.prod(shape),)) if scaled else {})


def _check_spaces(
    native: Mapping[str, Any], shape: tuple[int, ...], dtype: str, actions: ActionMap
) -> None:
    """Reject native spaces that do not match the policy's rows and actions."""
    for part in ("observation", "action"):
        check_description(native[part])
    layout = native["layout"]
    observed = ObservationCodec(native["observation"], layout)
    kind, bytes_ = native["observation"]["kind"], dtype == "uint8"
    plain = layout == "same" and kind == "box"
    image = (
        layout == "image"
        and bytes_
        and [len(observed_leaf.shape) for observed_leaf in observed.leaves] == [3]
    )
    if not (plain or image or (layout == "flat" and not bytes_)) or observed.shape != shape:
        raise ValueError(f"its observations are no rows of {dtype} {shape}")
    if (image or plain) and (observed.leaves[0].dtype == np.uint8) != bytes_:
        raise ValueError(f"its observations are no rows of {dtype}")
    (leaf,) = iter_leaves(native["action"], (), 0)
    numbers = leaf.hi - leaf.lo
    if leaf.sizes is not None:
        fits = tuple(leaf.sizes.ravel().tolist()) == actions.sizes
    elif leaf.is_categorical:
        fits = actions.sizes == (2,) * min(numbers, len(actions.sizes) + 1)
    else:
        fits = not actions.sizes and numbers == actions.width
    if not fits or (native["masked"] and not actions.sizes):
        raise ValueError("its actions are not those of the network")


def _check_tensors(
    tensors: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[int, ...]], image: bool
) -> None:
    """Reject unexpected names, shapes, dtypes and non-finite numbers."""
    critic = {name for name in expected if name.startswith(f"{_WEIGHTS}critic.")}
    odd = set(tensors) ^ set(expected)
    if odd and (image or odd != critic or critic <= set(tensors)):
        name = min(odd)
        raise ValueError(f"the tensor {name} is {'unknown' if name in tensors else 'missing'}")
    for name, array in tensors.items():
        if array.dtype != np.float32 or array.shape != expected[name]:
            raise ValueError(
                f"the tensor {name} is {array.dtype} {array.shape}, not float32 {expected[name]}"
            )
        if not np.isfinite(array).all() or (name == _SCALE[1] and array.min(initial=0.0) < 0.0):
            raise ValueError(f"the tensor {name} has numbers that no training leaves")


def _weights(
    policy: Policy, m: int, places: bool = False
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield member m's weights by name without padding; `places` yields views instead of copies."""
    tensors = {name: weight[m] for name, weight in policy.parameters.weights.items()}
    network = policy.network
    if isinstance(network, MlpNetwork):
        for mlp in network.mlps:
            for i, layer in enumerate(mlp.layers):
                weight = tensors.pop(layer.weight)
                # the first layer's bias is the weight of the input's column of ones
                bias = tensors.pop(layer.bias)[0] if i else weight[layer.inputs]
                weight, bias = weight[: layer.inputs, : layer.outputs], bias[: layer.outputs]
                yield layer.weight, weight if places else weight.copy()
                yield layer.bias, bias if places else bias.copy()
    for name, weight in tensors.items():
        yield name, weight if places else weight.copy()


def _digest(tensors: Mapping[str, NDArray[Any]], description: Mapping[str, Any]) -> str:
    """Return SHA-256 of the manifest and of every tensor's name, shape and bytes."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
