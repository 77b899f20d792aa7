"""Inference of saved policies with NumPy, safetensors and JSON, without the rest of slipstream.

::

    policy = portable.load("runs/first")     # a run, a study or a policy
    action = policy.act(observation)         # one observation of the environment, or a batch

Actions are bit-identical to those of `slipstream.load_policy`: all sums use the same order of fused
multiply-adds. Image policies are the exception, because torch sums in another order: their outputs
agree to 1e-5 of the largest. This file works on its own on a machine without slipstream.
docs/reference/policy-format.md describes the file format.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as load_tensors

Array = NDArray[Any]
FORMAT, LIMIT = 2, 10.0  # format version; normalized columns are clipped to +-LIMIT
_MAX_FILE_BYTES = 1 << 28
# tanh x = x P(x^2) / Q(x^2), coefficients of P and Q from the highest, as in rl/nets/layers.py.
_TANH = [*np.array([
    [1.3242739349550448e-08, 7.732424478490429e-07], [2.053404023172334e-05, 0.0003278417279943824],
    [0.0034912892151623964, 0.02586091309785843], [0.133774995803833, 0.46710819005966187], [1, 1],
], np.float32).astype(np.float64)[..., None]]  # fmt: skip
# tanh rounds to 1 beyond 9.1 in float32. Operations on arrays are faster than with Python floats.
_TANH_RANGE, _UNIT_RANGE = ([np.array(x, np.float32) for x in (-x, x)] for x in (9.1, 1.0))
_TIE = -(2**63)  # remainder halfway between two float32 numbers
_SAMPLE, _GOLDEN = 2**32 + 4, np.uint64(0x9E3779B97F4A7C15)  # jit/rng.py, core/random.py


class PolicyError(ValueError):
    """A policy that cannot be loaded, or an invalid observation or mask."""


def load(path: str | Path, member: int | None = None) -> PortablePolicy:
    """Load the policy of a folder.

    Nothing is unpickled, files of more than 256 MiB are not read, and the tensors must match the
    manifest.

    Args:
        path: Folder of a run, a study or a policy.
        member: Member of the run; None for the best one.

    Raises:
        PolicyError: There is no policy, or it is not as slipstream wrote it.
    """
    folder = Path(path).expanduser()
    try:
        folders = [p for p in (folder, folder / "policy") if (p / "manifest.json").is_file()]
        name = "member-*[0-9]" if member is None else f"member-{member:03d}"
        folders = folders[:1] or sorted((folder / "best").glob(name))
        _require(folders, "it is not a policy, a run with a best policy, or a completed study")
        manifests = {p: _read_manifest(p / "manifest.json") for p in folders}
        best = max(folders, key=lambda p: manifests[p].get("score", 0.0))
        tensors = load_tensors(_read_file(best / "state.safetensors"))
        return PortablePolicy(manifests[best]["policy"], tensors)
    except Exception as error:  # damaged or forged files raise many types
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise PolicyError(
            f"{folder} has no policy written by slipstream: {reason:.300}. Use an unchanged folder "
            "of a run or a study, or `best/member-000` or `policy` inside of it."
        ) from error


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _read_file(file: Path) -> bytes:
    is_valid = file.is_file() and file.stat().st_size <= _MAX_FILE_BYTES
    _require(is_valid, f"{file.name} is missing or has more than {_MAX_FILE_BYTES:,} bytes")
    return file.read_bytes()


def _read_manifest(file: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(_read_file(file))
    sha256 = manifest.pop("sha256")
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    matches = hashlib.sha256(text.encode()).hexdigest() == sha256
    _require(matches, f"{file.name} was changed: its hash differs")
    return manifest


def _check_integers(values: Any, low: int = 1) -> list[int]:
    is_valid = isinstance(values, list) and all(type(n) is int and low <= n < 2**62 for n in values)
    _require(is_valid, f"{values!s:.80} must be integers of at least {low}")
    return list(values)


def _space_width(space: Mapping[str, Any]) -> int:
    """Return the number of columns of a space; checks its description in the manifest."""
    if space["kind"] in ("dict", "tuple"):
        return sum(_space_width(part) for _, part in space["parts"])
    if space["kind"] == "choice":
        sizes, start = np.asarray(space["sizes"]), np.asarray(space["start"])
        is_valid = sizes.dtype == start.dtype == np.int64 and sizes.shape == start.shape
        is_valid = is_valid and not any(word in json.dumps(space) for word in ("true", "false"))
        _require(is_valid and sizes.size and sizes.min() > 0, "it has an empty discrete space")
        return sum(sizes.ravel().tolist())
    dtype, is_valid = np.dtype(space["dtype"]), space["kind"] in ("box", "binary")
    is_valid = is_valid and dtype.kind in "biuf" and dtype.name == space["dtype"]
    _require(is_valid, f"it has a space {space['kind']!s:.20} of {space['dtype']!s:.20}")
    return math.prod(_check_integers(space["shape"], 0))


def _get_mask(obs: Any) -> Array | None:
    """Return the action mask in an observation or a list of them, or None."""
    if isinstance(obs, list):
        masks = [mask for mask in map(_get_mask, obs) if mask is not None]
        return np.stack(masks) if len(masks) == len(obs) else None
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    return None if mask is None else np.asarray(mask) > 0


def _flatten(space: Mapping[str, Any], value: Any) -> Array:
    """Flatten a value of a space to its columns [width], or a batch to [n, width]."""
    if space["kind"] in ("dict", "tuple"):
        return np.concatenate([_flatten(part, value[key]) for key, part in space["parts"]], -1)
    array, is_discrete = np.asarray(value), space["kind"] == "choice"
    shape = np.shape(space["sizes"]) if is_discrete else tuple(space["shape"])
    lead = array.shape[: max(array.ndim - len(shape), 0)]
    kinds = "biu" if is_discrete or space["dtype"] == "uint8" else "biuf"
    if array.shape != (*lead, *shape) or len(lead) > 1 or array.dtype.kind not in kinds:
        expected = "integers" if kinds == "biu" else "numbers"
        raise ValueError(f"{array.dtype} of shape {array.shape} instead of {expected} {shape}")
    if not is_discrete:
        return array.reshape(*lead, math.prod(shape))
    sizes, start = (np.ravel(space[key]) for key in ("sizes", "start"))
    indices = array.reshape(*lead, len(sizes)).astype(np.int64) - start
    _require(((indices >= 0) & (indices < sizes)).all(), "a discrete value out of range")
    one_hot = np.zeros((*lead, int(sizes.sum())), np.float32)
    np.put_along_axis(one_hot, indices + np.cumsum(sizes) - sizes, 1.0, -1)
    return one_hot


class PortablePolicy:
    """Policy of one member.

    Attributes:
        description: Entry `policy` of the manifest.
        sizes: Number of actions of each discrete component; empty for Box actions.
    """

    def __init__(self, description: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        """Check the description and the tensors against each other.

        Raises:
            ValueError: They do not match. Forged ones may raise other errors.
        """
        unhashed = {key: value for key, value in description.items() if key != "hash"}
        version, digest = (
            unhashed["format"],
            hashlib.sha256(json.dumps(unhashed, sort_keys=True).encode()),
        )
        _require(version == FORMAT, f"it has format {version!r}, but this file reads {FORMAT}")
        for name, array in sorted(tensors.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
            is_valid = array.dtype == np.float32 and bool(np.isfinite(array).all())
            _require(is_valid, f"the tensor {name} has another dtype, NaN or infinity")
        _require(digest.hexdigest() == description["hash"], "its tensors do not match its hash")
        self.description, self._tensors, self._head = description, tensors, description["head"]
        rows, network = description["observation"], description["network"]
        self._native = description["native"]
        shape, space = _check_integers(rows["shape"]), self._native["observation"]
        (_, first_part), *other_parts = space.get("parts") or [(None, space)]
        self._box_shape = [] if other_parts else first_part.get("shape", [])
        box_shape, width = self._box_shape, math.prod(shape)
        row_shapes = {
            "flat": [_space_width(space)],
            "same": box_shape,
            "image": [*box_shape[2:], *box_shape[:2]],
        }
        is_valid = row_shapes[self._native["layout"]] == shape
        is_valid = is_valid and type(self._native["masked"]) is bool
        _require(is_valid, "its rows do not match its observation space")
        self._shape, net_arch = shape, _check_integers(network["net_arch"])
        self._images, self._layers = rows["dtype"] == "uint8" and len(shape) == 3, list[Layer]()
        activation = "relu" if self._images else network["activation"]
        self._relu = {"tanh": False, "relu": True}[activation]
        dueling = network.get("dueling") is True
        self._read_action(description["action"])
        self.reseed(description["seed"])
        if self._images:
            _require(width <= 1 << 24, f"images of {width} numbers are too large")
            outputs = self.outputs(np.zeros((3, *shape), np.uint8))  # raises if shapes do not match
            _require(outputs.shape == (3, self._num_outputs), "its layers do not match")
            return
        sizes = [width, *net_arch, self._num_outputs + dueling]
        sizes[-2] *= 1 + dueling
        count = sum(name.startswith("weights.actor.") for name in tensors)
        _require(count == 2 * len(sizes) - 2, f"it has {count} tensors of an actor")
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            weight, bias = (tensors[f"weights.actor.{i}.{k}"] for k in ("weight", "bias"))
            _require(weight.shape == (a, b) and bias.shape == (b,), f"layer {i} is {weight.shape}")
            self._layers.append(Layer(weight, bias, first=i == 0))
        clip = rows.get("clip", LIMIT)
        clip = clip if isinstance(clip, list) else [clip] * width
        is_valid = len(clip) == width and set(clip) <= {None, LIMIT}
        _require(is_valid, f"its observations are clipped to {clip!s:.80}")
        limit = np.array([np.inf if bound is None else bound for bound in clip], np.float32)
        is_uniform = width > 0 and len(set(clip)) == 1  # a scalar is faster than a row
        self._clip = [np.array(x[0] if is_uniform else x, np.float32) for x in (-limit, limit)]
        shapes = {"observation.mean": (width,), "observation.inverse_std": (width,)}
        shapes |= {"weights.log_std": (self._width,)} if self._head == "gaussian" else {}
        is_valid = all(tensors[name].shape == expected for name, expected in shapes.items())
        self._mean = tensors["observation.mean"][None]
        self._inverse_std = tensors["observation.inverse_std"][None]
        is_valid = is_valid and bool((self._inverse_std >= 0.0).all())
        _require(is_valid, "its scaling has another shape, or negative deviations")

    def _read_action(self, action: Mapping[str, Any]) -> None:
        self.sizes = _check_integers(action.get("sizes", []))
        self._start = np.array(_check_integers(action.get("start", []), -(2**62)), np.int64)
        infinities = {"inf": math.inf, "-inf": -math.inf}
        low, high = (
            [x if type(x) is float else infinities[x] for x in action.get(key, [])]
            for key in ("low", "high")
        )
        self._low, self._high = bounds = np.array([low, high], np.float32)
        bounded = np.isfinite(bounds).all(0)  # unbounded components are not rescaled
        ends = np.where(bounded, bounds, [[-1.0], [1.0]]).astype(np.float64)
        self._half = ((ends[1] - ends[0]) / 2).astype(np.float32)
        self._middle = ((ends[1] + ends[0]) / 2).astype(np.float32)
        self._width, last = len(self.sizes) or len(low), [*itertools.accumulate(self.sizes)]
        self._parts = [slice(end - n, end) for n, end in zip(self.sizes, last, strict=True)]
        self._num_outputs = sum(self.sizes) or self._width * (
            2 if self._head == "squashed_gaussian" else 1
        )
        heads = ("logits", "q") if self.sizes else ("gaussian", "squashed_gaussian", "tanh")
        is_valid = self._head in heads and (self._head == "gaussian" or bounded.all())
        is_valid = is_valid and (self._low <= self._high).all() and bounds.tolist() == [low, high]
        is_valid = is_valid and len(self._start) == len(self.sizes)
        _require(is_valid, "its head does not match its actions")
        space = self._native["action"]
        self._dtype, self._action_shape = (
            np.dtype(space.get("dtype", "int64")),
            space.get("shape", ()),
        )
        self._offset = np.ravel(space.get("start", 0)) - self._start if self.sizes else self._start
        # A MultiBinary space has one column per component.
        is_valid = _space_width(space) == self._width and set(self.sizes) <= {2}
        if space["kind"] == "choice":
            self._action_shape = np.shape(space["sizes"])
            is_valid = np.ravel(space["sizes"]).tolist() == self.sizes
        _require(is_valid, "its actions do not match the environment")

    def reseed(self, seed: int) -> None:
        """Restart the random stream of `act(..., deterministic=False)` with a seed."""
        self._seed, self._draws = int(seed) % 2**64, 0

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """Return the action for one observation, or n actions for a batch.

        Args:
            obs: Observation of the environment's own space, neither flattened nor scaled. A batch
                has a first axis in every array.
            mask: Allowed actions, bool [num_actions], or [n, num_actions] for a batch. None uses
                the key `action_mask` of a Dict. Required if the policy was trained with masks.
            deterministic: Return the most likely action; otherwise sample one. The heads `q` and
                `tanh` have no distribution.

        Raises:
            PolicyError: The observation or the mask does not match, or is not finite.
        """
        try:
            rows, batch = self._rows(obs)
            if mask is None and self._native["masked"]:
                mask = _get_mask(obs)
            allowed = self._check_mask(mask, len(rows), batch)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PolicyError(
                f"The policy got {error}. It takes one observation of the environment, or a batch "
                "of them with the batch axis first."
            ) from error
        key = None
        if not deterministic:
            key, self._draws = self._stream(self._draws), self._draws + 1
        actions = self.predict_rows(rows, allowed, key)
        if self.sizes:
            actions = actions + self._offset
            if not batch and not self._action_shape:
                return int(actions[0, 0])
        lead = [len(rows)] if batch else []
        return actions.reshape(*lead, *self._action_shape).astype(self._dtype)

    def _rows(self, obs: Any) -> tuple[Array, bool]:
        space = self._native["observation"]
        if isinstance(obs, list) and obs and "parts" in space:
            rows = np.stack([_flatten(space, item) for item in obs])
        else:
            rows = _flatten(space, obs)
        batch = rows.ndim == 2
        if self._native["layout"] == "image":
            rows = np.moveaxis(rows.reshape(-1, *self._box_shape), -1, 1)
        _require(np.isfinite(rows).all(), "an observation with NaN or infinity")
        rows = rows.reshape(-1, *self._shape)
        return rows.astype(np.uint8 if self._images else np.float32), batch

    def _check_mask(self, mask: Any, rows: int, batch: bool) -> Array | None:
        num_actions = sum(self.sizes)
        if mask is None:
            message = f"no mask=, bool [{num_actions}], which it was trained with"
            _require(not self._native["masked"], message)
            return None
        allowed = np.asarray(mask)
        matches = self.sizes and allowed.shape == ((rows, num_actions) if batch else (num_actions,))
        matches = matches and allowed.dtype.kind in "biu"
        _require(matches, f"a mask of {allowed.dtype} {allowed.shape}")
        allowed = allowed.reshape(rows, num_actions).astype(np.bool_)
        has_action = np.logical_or.reduceat(allowed, np.cumsum([0, *self.sizes[:-1]]), axis=1)
        _require(has_action.all(), "a mask that allows no action")
        return allowed

    def predict_rows(
        self, rows: Array, mask: Array | None = None, key: Array | None = None
    ) -> Array:
        """Return actions [n, K] for flat observations [n, *shape].

        Args:
            rows: Observations as rows, not scaled.
            mask: Allowed actions, bool [n, num_actions].
            key: Key of the noise, uint64 [1]; None for the most likely action.
        """
        outputs = self.outputs(rows)
        if self.sizes:
            if key is not None and self._head == "logits":
                outputs = outputs + _gumbel(key, outputs.shape)
            if mask is not None:
                outputs = np.where(mask, outputs, -np.inf)
            best = [outputs[:, part].argmax(1) for part in self._parts]
            return np.array(best).T + self._start
        action, spread = outputs[:, : self._width], outputs[:, self._width :]
        if self._head == "gaussian" and key is not None:
            precision = _map(_expf, -self._tensors["weights.log_std"]).astype(np.float32)
            action = action + _normal(key, action.shape) / precision
        elif self._head == "squashed_gaussian" and key is not None:
            deviation = _map(math.exp, np.clip(spread, -20.0, 2.0))
            action = _map(math.tanh, action + deviation * _normal(key, action.shape))
        elif self._head != "gaussian":
            action = _map(_tanhf, action)
        scaled = action.astype(np.float32) * self._half + self._middle
        result: Array = np.minimum(np.maximum(scaled, self._low), self._high)
        return result

    def outputs(self, rows: Array) -> Array:
        """Return the network's outputs for rows [n, *shape]: [n, num_actions or K or 2 K]."""
        tensors, x = self._tensors, rows.reshape(len(rows), math.prod(self._shape))
        if self._images:
            y = rows.astype(np.float32) / np.float32(255.0)
            strides = (4, 2, 1) if "weights.convolution.2.weight" in tensors else (2, 2)
            for i, stride in enumerate(strides):
                weight, bias = (tensors[f"weights.convolution.{i}.{k}"] for k in ("weight", "bias"))
                y = np.lib.stride_tricks.sliding_window_view(y, weight.shape[2:], axis=(2, 3))
                y = np.tensordot(y[:, :, ::stride, ::stride], weight, ((1, 4, 5), (1, 2, 3)))
                y = np.maximum(y + bias, 0.0).transpose(0, 3, 1, 2)
            x = y.reshape(len(y), math.prod(y.shape[1:])) @ tensors["weights.dense.weight"]
            x = np.maximum(x + tensors["weights.dense.bias"], 0.0)
            x = x @ tensors["weights.actor.weight"] + tensors["weights.actor.bias"]
        else:
            x = _clip((x - self._mean) * self._inverse_std, self._clip)
            *hidden, last = self._layers
            for layer in hidden:
                y = layer(x)
                terms = layer.terms if len(x) == 1 else _TANH
                x = np.maximum(y, np.float32(0.0)) if self._relu else _tanh(y, terms)
            x = last(x)
        return x[:, : self._num_outputs]

    def _stream(self, step: int) -> Array:
        key = np.array([_GOLDEN])
        for part in (self._seed, _SAMPLE, step):
            key = _random_bits(key, np.array([part], np.uint64))
        return key


class Layer:
    """x weight + bias, with sums of fused multiply-adds in the order of the rows.

    The bias of the first layer is added last; other layers start with it, as compiled loops do.
    """

    def __init__(self, weight: Array, bias: Array, first: bool) -> None:
        rows = (weight, bias[None]) if first else (bias[None], weight)
        self._inputs = slice(0, -1) if first else slice(1, None)
        self._bias_column = -1 if first else 0
        self._num_outputs = len(bias)
        self.terms = [np.repeat(pair, len(bias), axis=1) for pair in _TANH]  # tanh of one row
        self._weight = np.pad(np.vstack(rows), ((0, 0), (0, -len(bias) % 16)))
        # Most BLAS libraries sum a product of two rows in that order, which is tested here.
        samples = np.cos(np.arange(32 * len(weight), dtype=np.float32)).reshape(32, -1)
        self._is_ordered = True
        fast = np.vstack([self(samples[k : k + 1]) for k in range(len(samples))])
        self._is_ordered = bool((fast == self(samples)).all())

    def __call__(self, x: Array) -> Array:
        """Return the outputs [n, outputs] of x [n, inputs]."""
        is_single = self._is_ordered and len(x) == 1
        rows = np.empty((2 if is_single else len(x), len(self._weight)), np.float32)
        rows[:, self._inputs], rows[:, self._bias_column] = x, 1.0
        if is_single:
            total: Array = rows.dot(self._weight)
            return total[:1, : self._num_outputs]
        rows, weight = rows.astype(np.float64), self._weight.astype(np.float64)
        total = np.zeros((len(rows), weight.shape[1]))
        for k, line in enumerate(weight):
            total = _fma(rows[:, k, None], line, total)
        return total.astype(np.float32)[:, : self._num_outputs]


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Return a b + c of float32 numbers stored as float64, rounded once, as a CPU's FMA does."""
    product = a * b  # exact
    total = product + c
    rest, has_ties = _float32_remainder(total)
    if has_ties:  # the rounding error of the sum decides
        back = total - product
        error = (product - (total - back)) + (c - back)
        moved = np.nextafter(total, np.where(error > 0.0, np.inf, -np.inf))
        total = np.where((rest == _TIE) & (error != 0.0), moved, total)
    return total.astype(np.float32).astype(np.float64)


def _float32_remainder(total: Array) -> tuple[Array, bool]:
    """Return the bits beyond float32 precision, and true if any of them is a `_TIE`."""
    rest = total.view(np.int64) << 35
    return rest, rest.size > 0 and rest.item(rest.argmin()) == _TIE


def _clip(x: Array, bounds: Sequence[Array]) -> Array:
    low, high = bounds
    result: Array = np.minimum(np.maximum(x, low), high)
    return result


def _tanh(x: Array, terms: Sequence[Array] = _TANH) -> Array:
    """Compute tanh as the compiled loops do; `terms` is _TANH, or _TANH repeated per number."""
    clipped = _clip(x, _TANH_RANGE).ravel()
    squares, totals = np.empty((2, clipped.size)), np.empty((4, 2, clipped.size))
    squares[:] = clipped * clipped
    fraction = terms[0]  # numerator and denominator
    for term, total in zip(terms[1:], totals, strict=True):
        np.add(np.multiply(fraction, squares, total), term, total)
        fraction = total.astype(np.float32)
    if _float32_remainder(totals)[1]:
        fraction = terms[0]
        for term in terms[1:]:
            fraction = _fma(fraction, squares, term).astype(np.float32)
    return _clip(clipped * fraction[0] / fraction[1], _UNIT_RANGE).reshape(x.shape)


def _load_float32_function(name: str) -> Any:
    """Return a float32 function of the C library, as compiled loops call it, or Python's."""
    try:
        function: Any = ctypes.CDLL(None)[f"{name}f"]
    except (AttributeError, OSError, TypeError):
        return getattr(math, name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return function


_expf, _tanhf = _load_float32_function("exp"), _load_float32_function("tanh")


def _map(function: Callable[[float], float], values: Array) -> Array:
    return np.array([function(x) for x in values.ravel().tolist()]).reshape(values.shape)


def _random_bits(key: Array, counter: Array) -> Array:
    """Return the random bits of counters of a stream, as in core/random.py."""
    x, factors = (counter + np.uint64(1)) * _GOLDEN, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    for seed in (np.uint64(0), key):
        x = x ^ seed
        for shift, factor in zip((30, 27), factors, strict=True):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x = x ^ (x >> np.uint64(31))
    return x


def _uniform(bits: Array) -> Array:
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Sample standard Gumbel noise: argmax(logits + noise) samples an action."""
    counters = np.arange(math.prod(shape), dtype=np.uint64)
    uniform = _uniform(_random_bits(key, counters).reshape(shape))
    return _map(lambda u: -math.log(-math.log(u)), uniform).astype(np.float32)


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Sample standard normal numbers (Box and Muller 1958)."""
    counters = np.arange(2 * math.prod(shape), dtype=np.uint64)
    bits = _random_bits(key, counters).reshape(*shape, 2)
    angle = (bits[..., 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    radius = _map(lambda u: math.sqrt(-2.0 * math.log(u)), _uniform(bits[..., 0]))
    return (radius * _map(lambda v: math.cos(2.0 * math.pi * v), angle)).astype(np.float32)
