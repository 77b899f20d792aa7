"""A saved policy acts with NumPy, safetensors and JSON: nothing else of slipstream is needed.

::

    policy = portable.load("runs/first")     # or a study's folder, or a policy's own
    action = policy.act(observation)         # as the environment shows it; or a batch of them

Actions are those of `slipstream.load_policy`, to the bit: every sum has the same order, one fused
multiply-add after another. Images are the exception, for torch adds in an order of its own: their
outputs agree to 1e-5 of the largest. This file may be copied to a machine without slipstream;
docs/guides/policies.md describes what it reads.
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
from safetensors.numpy import load as tensors_of

Array = NDArray[Any]
FORMAT, LIMIT = 2, 10.0  # of policies; normalised columns are clipped to +-LIMIT
_MOST = 1 << 28  # bytes of a file
# tanh x = x P(x^2) / Q(x^2), coefficients of P and Q from the highest: as in rl/nets/layers.py.
_TANH = [*np.array([
    [1.3242739349550448e-08, 7.732424478490429e-07], [2.053404023172334e-05, 0.0003278417279943824],
    [0.0034912892151623964, 0.02586091309785843], [0.133774995803833, 0.46710819005966187], [1, 1],
], np.float32).astype(np.float64)[..., None]]  # fmt: skip
# Beyond 9.1 float32 knows 1 only. Arrays: with numbers an operation takes half as long again.
_NEAR, _ONE = ([np.array(x, np.float32) for x in (-x, x)] for x in (9.1, 1.0))
_HALF = -(2**63)
_SAMPLE, _GOLDEN = 2**32 + 4, np.uint64(0x9E3779B97F4A7C15)  # jit/rng.py, core/random.py


class PolicyError(ValueError):
    """A policy that cannot be read, or an observation that it cannot act on: one paragraph."""


def load(path: str | Path, member: int | None = None) -> PortablePolicy:
    """The policy in a folder; of a run that of the best member unless `member` is given.

    Raises:
        PolicyError: there is none, or it is not as slipstream wrote it. Nothing is unpickled, a
            file of more than 256 MiB is not read, and tensors must be those of the description.
    """
    folder = Path(path).expanduser()
    try:
        found = [one for one in (folder, folder / "policy") if (one / "manifest.json").is_file()]
        name = "member-*[0-9]" if member is None else f"member-{member:03d}"
        found = found[:1] or sorted((folder / "best").glob(name))
        _need(found, "it is no policy, no run with a best one and no study that chose one")
        facts = {one: _facts(one / "manifest.json") for one in found}
        best = max(found, key=lambda one: facts[one].get("score", 0.0))
        return PortablePolicy(
            facts[best]["policy"], tensors_of(_content(best / "state.safetensors"))
        )
    except Exception as error:  # whatever a damaged or forged file raises
        told = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise PolicyError(
            f"{folder} holds no policy that slipstream wrote: {told:.300}. Use the folder as it "
            "was written, or another one: a run, a study, `best/member-000` or `policy` in them."
        ) from error


def _need(fine: object, words: str) -> None:
    if not fine:
        raise ValueError(words)


def _content(file: Path) -> bytes:
    fine = file.is_file() and file.stat().st_size <= _MOST
    _need(fine, f"{file.name} is missing, is no file, or is longer than {_MOST:,} bytes")
    return file.read_bytes()


def _facts(file: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_content(file))
    seal, text = facts.pop("sha256"), json.dumps(facts, sort_keys=True, separators=(",", ":"))
    same = hashlib.sha256(text.encode()).hexdigest() == seal
    _need(same, f"{file.name} is not as it was written: its hash differs")
    return facts


def _whole(values: Any, least: int = 1) -> list[int]:
    fine = isinstance(values, list) and all(type(n) is int and least <= n < 2**62 for n in values)
    _need(fine, f"{values!s:.80} are no whole numbers from {least} on")
    return list(values)


def _width(space: Mapping[str, Any]) -> int:
    """Columns of a space in a row, of its description in the manifest, which is checked."""
    if space["kind"] in ("dict", "tuple"):
        return sum(_width(part) for _, part in space["parts"])
    if space["kind"] == "choice":
        sizes, start = np.asarray(space["sizes"]), np.asarray(space["start"])
        fine = sizes.dtype == start.dtype == np.int64 and sizes.shape == start.shape
        fine = fine and not any(word in json.dumps(space) for word in ("true", "false"))
        _need(fine and sizes.size and sizes.min() > 0, "it has a choice of nothing")
        return sum(sizes.ravel().tolist())
    dtype, fine = np.dtype(space["dtype"]), space["kind"] in ("box", "binary")
    fine = fine and dtype.kind in "biuf" and dtype.name == space["dtype"]
    _need(fine, f"it has a space {space['kind']!s:.20} of {space['dtype']!s:.20}")
    return math.prod(_whole(space["shape"], 0))


def _offered(obs: Any) -> Array | None:
    """Return the mask that is a part of observations, if there is one."""
    if isinstance(obs, list):
        parts = [part for part in map(_offered, obs) if part is not None]
        return np.stack(parts) if len(parts) == len(obs) else None
    own = obs.get("action_mask") if isinstance(obs, Mapping) else None
    return None if own is None else np.asarray(own) > 0


def _columns(space: Mapping[str, Any], value: Any) -> Array:
    """A value's columns in its row [width], or [n, width] of a batch."""
    if space["kind"] in ("dict", "tuple"):
        return np.concatenate([_columns(part, value[key]) for key, part in space["parts"]], -1)
    array, chosen = np.asarray(value), space["kind"] == "choice"
    shape = np.shape(space["sizes"]) if chosen else tuple(space["shape"])
    lead = array.shape[: max(array.ndim - len(shape), 0)]
    kinds = "biu" if chosen or space["dtype"] == "uint8" else "biuf"
    if array.shape != (*lead, *shape) or len(lead) > 1 or array.dtype.kind not in kinds:
        wanted = "whole numbers" if kinds == "biu" else "numbers"
        raise ValueError(f"{array.dtype} of shape {array.shape} instead of {wanted} {shape}")
    if not chosen:
        return array.reshape(*lead, math.prod(shape))
    sizes, start = (np.ravel(space[key]) for key in ("sizes", "start"))
    places = array.reshape(*lead, len(sizes)).astype(np.int64) - start
    _need(((places >= 0) & (places < sizes)).all(), "a choice that there is not")
    found = np.zeros((*lead, int(sizes.sum())), np.float32)
    np.put_along_axis(found, places + np.cumsum(sizes) - sizes, 1.0, -1)
    return found


class PortablePolicy:
    """A policy of one member.

    Attributes:
        description: `policy` in the manifest.
        sizes: choices of each component of an action, none of a box.
    """

    def __init__(self, description: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        """Checks both against each other.

        Raises:
            ValueError, and whatever a forged one raises: no policy has it.
        """
        own = {key: value for key, value in description.items() if key != "hash"}
        known, digest = own["format"], hashlib.sha256(json.dumps(own, sort_keys=True).encode())
        _need(known == FORMAT, f"it has format {known!r}, and this file reads format {FORMAT}")
        for name, array in sorted(tensors.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
            fine = array.dtype == np.float32 and bool(np.isfinite(array).all())
            _need(fine, f"the tensor {name} has another dtype, or numbers that are none")
        _need(digest.hexdigest() == description["hash"], "its tensors do not fit its hash")
        self.description, self._tensors, self._head = description, tensors, own["head"]
        rows, network, self._native = own["observation"], own["network"], own["native"]
        shape, seen = _whole(rows["shape"]), self._native["observation"]
        (_, only), *others = seen.get("parts") or [(None, seen)]
        self._box, numbers = [] if others else only.get("shape", []), math.prod(shape)
        box = self._box
        shown = {"flat": [_width(seen)], "same": box, "image": [*box[2:], *box[:2]]}
        fine = shown[self._native["layout"]] == shape
        _need(fine and type(self._native["masked"]) is bool, "its rows are no such observations")
        self._shape, net_arch = shape, _whole(network["net_arch"])
        self._images, self._layers = rows["dtype"] == "uint8" and len(shape) == 3, list[Layer]()
        activation = "relu" if self._images else network["activation"]
        self._relu = {"tanh": False, "relu": True}[activation]
        dueling = network.get("dueling") is True
        self._read_action(own["action"])
        self.reseed(own["seed"])
        if self._images:
            _need(numbers <= 1 << 24, f"images of {numbers} numbers are too large")
            tried = self.outputs(np.zeros((3, *shape), np.uint8))  # raises where shapes do not fit
            _need(tried.shape == (3, self._outputs), "its layers do not follow each other")
            return
        sizes = [numbers, *net_arch, self._outputs + dueling]
        sizes[-2] *= 1 + dueling
        count = sum(name.startswith("weights.actor.") for name in tensors)
        _need(count == 2 * len(sizes) - 2, f"it has {count} tensors of an actor")
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            weight, bias = (tensors[f"weights.actor.{i}.{k}"] for k in ("weight", "bias"))
            _need(weight.shape == (a, b) and bias.shape == (b,), f"layer {i} is {weight.shape}")
            self._layers.append(Layer(weight, bias, first=i == 0))
        clip = rows.get("clip", LIMIT)
        clip = clip if isinstance(clip, list) else [clip] * numbers
        fine = len(clip) == numbers and set(clip) <= {None, LIMIT}
        _need(fine, f"its observations are clipped to {clip!s:.80}")
        limit = np.array([np.inf if bound is None else bound for bound in clip], np.float32)
        same = numbers > 0 and len(set(clip)) == 1  # one number is faster than a row of them
        self._cut = [np.array(x[0] if same else x, np.float32) for x in (-limit, limit)]
        fit = {"observation.mean": (numbers,), "observation.inverse_std": (numbers,)}
        fit |= {"weights.log_std": (self._width,)} if self._head == "gaussian" else {}
        fine = all(tensors[name].shape == size for name, size in fit.items())
        self._mean = tensors["observation.mean"][None]
        self._inverse_std = tensors["observation.inverse_std"][None]
        fine = fine and bool((self._inverse_std >= 0.0).all())
        _need(fine, "its scale has another shape, or deviations below 0")

    def _read_action(self, action: Mapping[str, Any]) -> None:
        self.sizes = _whole(action.get("sizes", []))
        self._start = np.array(_whole(action.get("start", []), -(2**62)), np.int64)
        endless = {"inf": math.inf, "-inf": -math.inf}
        low, high = (
            [x if type(x) is float else endless[x] for x in action.get(key, [])]
            for key in ("low", "high")
        )
        self._low, self._high = bounds = np.array([low, high], np.float32)
        bounded = np.isfinite(bounds).all(0)  # else [-1, 1] stays what it is
        ends = np.where(bounded, bounds, [[-1.0], [1.0]]).astype(np.float64)
        self._half = ((ends[1] - ends[0]) / 2).astype(np.float32)
        self._middle = ((ends[1] + ends[0]) / 2).astype(np.float32)
        self._width, last = len(self.sizes) or len(low), [*itertools.accumulate(self.sizes)]
        self._parts = [slice(end - n, end) for n, end in zip(self.sizes, last, strict=True)]
        self._outputs = sum(self.sizes) or self._width * (1 + (self._head == "squashed_gaussian"))
        heads = ("logits", "q") if self.sizes else ("gaussian", "squashed_gaussian", "tanh")
        fine = self._head in heads and (self._head == "gaussian" or bounded.all())
        fine = fine and (self._low <= self._high).all() and bounds.tolist() == [low, high]
        _need(fine and len(self._start) == len(self.sizes), "its head has no such actions")
        own, width = self._native["action"], _width(self._native["action"])
        self._dtype, self._taken = np.dtype(own.get("dtype", "int64")), own.get("shape", ())
        self._offset = np.ravel(own.get("start", 0)) - self._start if self.sizes else self._start
        fine = width == self._width and set(self.sizes) <= {2}  # of choices one number each
        if own["kind"] == "choice":
            self._taken = np.shape(own["sizes"])
            fine = np.ravel(own["sizes"]).tolist() == self.sizes
        _need(fine, "its actions are not the environment's")

    def reseed(self, seed: int) -> None:
        """Begins the stream that `act(..., deterministic=False)` draws from anew, from a seed."""
        self._seed, self._draws = int(seed) % 2**64, 0

    def act(self, obs: Any, mask: Any = None, deterministic: bool = True) -> Any:
        """An action for one observation, or n for a batch, both as the environment knows them.

        Args:
            obs: of the environment's own space, neither flattened nor scaled; or n of them, the
                batch axis first in every array.
            mask: bool [choices] of the choices allowed now, [n, choices] for a batch; the part
                `action_mask` of a Dict unless given. Without it a policy that was trained with one
                refuses to act.
            deterministic: the most likely action; otherwise one is drawn. The heads `q` and `tanh`
                have no distribution.

        Raises:
            PolicyError: an observation or a mask of another form, NaN or infinity in it.
        """
        try:
            rows, batch = self._rows(obs)
            if mask is None and self._native["masked"]:
                mask = _offered(obs)
            allowed = self._allowed(mask, len(rows), batch)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PolicyError(
                f"The policy was given {error}. It takes one observation or, with the batch axis "
                "first, a batch of them, as the environment shows them."
            ) from error
        key = None
        if not deterministic:
            key, self._draws = self._stream(self._draws), self._draws + 1
        actions = self.decide(rows, allowed, key)
        if self.sizes:
            actions = actions + self._offset
            if not batch and not self._taken:
                return int(actions[0, 0])
        lead = [len(rows)] if batch else []
        return actions.reshape(*lead, *self._taken).astype(self._dtype)

    def _rows(self, obs: Any) -> tuple[Array, bool]:
        space = self._native["observation"]
        if isinstance(obs, list) and obs and "parts" in space:
            rows = np.stack([_columns(space, one) for one in obs])
        else:
            rows = _columns(space, obs)
        batch = rows.ndim == 2
        if self._native["layout"] == "image":
            rows = np.moveaxis(rows.reshape(-1, *self._box), -1, 1)
        _need(np.isfinite(rows).all(), "an observation with NaN or infinity in it")
        rows = rows.reshape(-1, *self._shape)
        return rows.astype(np.uint8 if self._images else np.float32), batch

    def _allowed(self, mask: Any, rows: int, batch: bool) -> Array | None:
        choices = sum(self.sizes)
        if mask is None:
            _need(not self._native["masked"], f"no mask=, bool [{choices}], as it was in training")
            return None
        allowed = np.asarray(mask)
        fits = self.sizes and allowed.shape == ((rows, choices) if batch else (choices,))
        _need(fits and allowed.dtype.kind in "biu", f"a mask of {allowed.dtype} {allowed.shape}")
        allowed = allowed.reshape(rows, choices).astype(np.bool_)
        some = np.logical_or.reduceat(allowed, np.cumsum([0, *self.sizes[:-1]]), axis=1)
        _need(some.all(), "a mask that allows no choice at all")
        return allowed

    def decide(self, rows: Array, mask: Array | None = None, key: Array | None = None) -> Array:
        """What the environments receive, [n, K], for rows [n, *shape].

        Args:
            rows: not scaled; mask: bool [n, choices] of allowed choices.
            key: uint64 [1], of a stream of noise; None for the most likely action.
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
            precision = _each(_expf, -self._tensors["weights.log_std"]).astype(np.float32)
            action = action + _normal(key, action.shape) / precision
        elif self._head == "squashed_gaussian" and key is not None:
            deviation = _each(math.exp, np.clip(spread, -20.0, 2.0))
            action = _each(math.tanh, action + deviation * _normal(key, action.shape))
        elif self._head != "gaussian":
            action = _each(_tanhf, action)
        inner = action.astype(np.float32) * self._half + self._middle
        result: Array = np.minimum(np.maximum(inner, self._low), self._high)
        return result

    def outputs(self, rows: Array) -> Array:
        """The network's outputs for rows [n, *shape]: [n, choices], [n, K] or [n, 2 K]."""
        own, x = self._tensors, rows.reshape(len(rows), math.prod(self._shape))
        if self._images:
            y = rows.astype(np.float32) / np.float32(255.0)
            strides = (4, 2, 1) if "weights.convolution.2.weight" in own else (2, 2)
            for i, stride in enumerate(strides):
                weight, bias = (own[f"weights.convolution.{i}.{k}"] for k in ("weight", "bias"))
                y = np.lib.stride_tricks.sliding_window_view(y, weight.shape[2:], axis=(2, 3))
                y = np.tensordot(y[:, :, ::stride, ::stride], weight, ((1, 4, 5), (1, 2, 3)))
                y = np.maximum(y + bias, 0.0).transpose(0, 3, 1, 2)
            x = y.reshape(len(y), math.prod(y.shape[1:])) @ own["weights.dense.weight"]
            x = x + own["weights.dense.bias"]
            x = np.maximum(x, 0.0) @ own["weights.actor.weight"] + own["weights.actor.bias"]
        else:
            x = _within((x - self._mean) * self._inverse_std, self._cut)
            *hidden, last = self._layers
            for layer in hidden:
                y = layer(x)
                terms = layer.terms if len(x) == 1 else _TANH
                x = np.maximum(y, np.float32(0.0)) if self._relu else _tanh(y, terms)
            x = last(x)
        return x[:, : self._outputs]

    def _stream(self, step: int) -> Array:
        key = np.array([_GOLDEN])
        for part in (self._seed, _SAMPLE, step):
            key = _word(key, np.array([part], np.uint64))
        return key


class Layer:
    """x weight + bias, each sum one fused multiply-add after another, in the order of the rows.

    The first layer's bias is added last, the others' begin the sum: so do the compiled loops.
    """

    def __init__(self, weight: Array, bias: Array, first: bool) -> None:
        rows = (weight, bias[None]) if first else (bias[None], weight)
        self._inputs = slice(0, -1) if first else slice(1, None)
        self._one = -1 if first else 0
        self._count = len(bias)
        self.terms = [np.repeat(pair, len(bias), axis=1) for pair in _TANH]  # of one row's tanh
        self._weight = np.pad(np.vstack(rows), ((0, 0), (0, -len(bias) % 16)))
        # Most libraries add a product of two rows in that order; whether this one does is tried.
        tried = np.cos(np.arange(32 * len(weight), dtype=np.float32)).reshape(32, -1)
        self._ordered, every = True, range(len(tried))
        quick = np.vstack([self(tried[k : k + 1]) for k in every])
        self._ordered = bool((quick == self(tried)).all())

    def __call__(self, x: Array) -> Array:
        """[n, outputs] of x [n, inputs]."""
        alone = self._ordered and len(x) == 1
        rows = np.empty((2 if alone else len(x), len(self._weight)), np.float32)
        rows[:, self._inputs], rows[:, self._one] = x, 1.0
        if alone:
            total: Array = rows.dot(self._weight)
            return total[:1, : self._count]
        rows, weight = rows.astype(np.float64), self._weight.astype(np.float64)
        total = np.zeros((len(rows), weight.shape[1]))
        for k, line in enumerate(weight):
            total = _fused(rows[:, k, None], line, total)
        return total.astype(np.float32)[:, : self._count]


def _fused(a: Array, b: Array, c: Array) -> Array:
    """a b + c of float32 numbers kept as float64, rounded once to float32, as a processor does."""
    product = a * b  # exact
    total = product + c
    rest, halfway = _rest(total)
    if halfway:  # then what was rounded off decides
        back = total - product
        error = (product - (total - back)) + (c - back)
        moved = np.nextafter(total, np.where(error > 0.0, np.inf, -np.inf))
        total = np.where((rest == _HALF) & (error != 0.0), moved, total)
    return total.astype(np.float32).astype(np.float64)


def _rest(total: Array) -> tuple[Array, bool]:
    """What float32 has no bits for, and whether any is `_HALF`: halfway between two numbers."""
    rest = total.view(np.int64) << 35
    return rest, rest.size > 0 and rest.item(rest.argmin()) == _HALF


def _within(x: Array, ends: Sequence[Array]) -> Array:
    low, high = ends
    result: Array = np.minimum(np.maximum(x, low), high)
    return result


def _tanh(x: Array, terms: Sequence[Array] = _TANH) -> Array:
    """tanh as the compiled loops calculate it; `terms` are _TANH, or that once for each number."""
    near = _within(x, _NEAR).ravel()
    squares, totals, both = np.empty((2, near.size)), np.empty((4, 2, near.size)), terms[0]
    squares[:] = near * near
    for more, total in zip(terms[1:], totals, strict=True):
        np.add(np.multiply(both, squares, total), more, total)
        both = total.astype(np.float32)
    if _rest(totals)[1]:
        both = terms[0]
        for more in terms[1:]:
            both = _fused(both, squares, more).astype(np.float32)
    return _within(near * both[0] / both[1], _ONE).reshape(x.shape)


def _single(name: str) -> Any:
    """A function of float32 of the C library, as compiled loops call it; else one of float64."""
    try:
        found: Any = ctypes.CDLL(None)[f"{name}f"]
    except (AttributeError, OSError, TypeError):
        return getattr(math, name)
    found.restype, found.argtypes = ctypes.c_float, [ctypes.c_float]
    return found


_expf, _tanhf = _single("exp"), _single("tanh")


def _each(function: Callable[[float], float], values: Array) -> Array:
    return np.array([function(x) for x in values.ravel().tolist()]).reshape(values.shape)


def _word(key: Array, counter: Array) -> Array:
    """Random bits at places of a stream, as in core/random.py."""
    x, factors = (counter + np.uint64(1)) * _GOLDEN, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
    for begin in (np.uint64(0), key):
        x = x ^ begin
        for shift, factor in zip((30, 27), factors, strict=True):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x = x ^ (x >> np.uint64(31))
    return x


def _unit(bits: Array) -> Array:
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard Gumbel numbers: argmax(logits + gumbel) is a draw."""
    unit = _unit(_word(key, np.arange(math.prod(shape), dtype=np.uint64)).reshape(shape))
    return _each(lambda u: -math.log(-math.log(u)), unit).astype(np.float32)


def _normal(key: Array, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers (Box and Muller 1958)."""
    bits = _word(key, np.arange(2 * math.prod(shape), dtype=np.uint64)).reshape(*shape, 2)
    turn = (bits[..., 1] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    size = _each(lambda u: math.sqrt(-2.0 * math.log(u)), _unit(bits[..., 0]))
    return (size * _each(lambda v: math.cos(2.0 * math.pi * v), turn)).astype(np.float32)
