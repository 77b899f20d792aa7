"""Policies of every kind of head, forged manifests and tensors, and observations for them."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.storage import checkpoint
from slipstream.kernels.space_codec import make_observation_codec
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack

BOX = spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 5.0, 1.0], np.float32))


BOUNDED = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))


def resealed(tensors, manifest):
    """With the hash that somebody else's writer would put there, from its description."""
    facts = {key: value for key, value in manifest.items() if key != "hash"}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return {**facts, "hash": digest.hexdigest()}


ROWS = spaces.Box(-np.inf, np.inf, (5,), np.float32)


NESTED = spaces.Dict(
    {
        "a": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
        "b": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
        "c": spaces.MultiDiscrete([2, 4]),
    }
)


IMAGE = spaces.Box(0, 255, (8, 9, 3), np.uint8)


WRONG = [None, True, "1", "odd", -1, 0, 0.5, 2, 10**9, 10**30, float("nan"), [], [-1], [10**9], {}]


_DRAWN = ("gaussian", "squashed_gaussian")


# What may be anything of its type, or is no part of what the numbers mean.
FREE = {
    "slipstream": str,
    "seed": int,
    "training_context": dict,
    **dict.fromkeys(
        ("training_context.environment", "training_context.fill", "training_context.data_sha256"),
        str,
    ),
    **dict.fromkeys(("training_context.bar_seconds", "training_context.lookback"), int),
    "training_context.symbols": list,
    "training_context.symbols[0]": str,
    "training_context.features": list,
    **dict.fromkeys(
        ("training_context.features[0].name", "training_context.features[0].pattern"), str
    ),
    "training_context.features[0].n": int,
    "training_context.settings": dict,
    "training_context.settings.cost": object,
}


def _spec(observation, action, native=None, masked=False):
    if native is None:
        return EnvSpec(observation, action, has_action_mask=masked)
    form = make_observation_codec(EnvSpec(observation, action, native_observation_space=native))
    dtype = np.uint8 if form.layout == "image" else np.float32
    low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
    rows = spaces.Box(low, high, form.shape, dtype)
    return EnvSpec(rows, action, native_observation_space=native, has_action_mask=masked)


POLICIES = {
    "ppo": (_spec(ROWS, spaces.Discrete(4, start=2), masked=True), {"net_arch": (9, 6)}),
    "ppo_multi": (_spec(ROWS, spaces.MultiDiscrete([3, 2], start=[1, 0])), {"activation": "relu"}),
    "ppo_box": (_spec(ROWS, BOX), {"net_arch": (4,)}),
    "portfolio": (_spec(spaces.Box(-1, 1, (3, 7), np.float32), BOX), {"net_arch": (8,)}),
    "nested": (_spec(ROWS, spaces.MultiDiscrete([2, 2]), NESTED), {"net_arch": (4,)}),
    "dqn": (_spec(ROWS, spaces.Discrete(5)), {"head": "q", "activation": "relu"}),
    "dueling": (_spec(ROWS, spaces.Discrete(5)), {"head": "q", "dueling": True}),
    "sac": (_spec(ROWS, BOUNDED), {"head": "squashed_gaussian"}),
    "td3": (_spec(ROWS, BOUNDED), {"head": "tanh"}),
    "image": (_spec(IMAGE, spaces.Discrete(3), IMAGE), {"net_arch": (8,)}),
}


def fields_of(value, path=()):
    """Every place in a manifest, and what is there."""
    yield path, value
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, part in items:
        yield from fields_of(part, (*path, key))


def named(path):
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def changed(manifest, path, value):
    """A copy with another value at a place; `...` takes it out."""
    found = copy.deepcopy(manifest)
    at = found
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


def forged_manifests(manifest):
    """What was done, and the manifest that came of it."""
    for path, value in fields_of(manifest):
        name = named(path)
        if isinstance(value, dict) and name != "training_context.settings":
            yield f"{name} with more", changed(manifest, (*path, "more"), 1)
        if not path or name == "hash":
            continue
        if not name.startswith("training_context"):
            yield f"{name} missing", changed(manifest, path, ...)
        larger = [value * 2 + value[:1]] if isinstance(value, list) else []
        for other in [*WRONG, *larger]:
            same = other == value and isinstance(other, bool) == isinstance(value, bool)
            allowed = FREE.get(name)
            fine = allowed is not None and isinstance(other, allowed)
            if isinstance(other, bool) and allowed is not object:
                fine = False
            if same or (fine and not _unfit(name, other)) or _another(name, other, manifest):
                continue
            yield f"{name} = {other!r:.40}", changed(manifest, path, other)


def _another(name, other, manifest):
    """Whether that is another policy, which somebody may have trained: other starts or bounds, no
    clipping."""
    whole = type(other) is int and abs(other) < 2**63
    if name == "observation.clip":
        return other is None
    if ".start" in name:
        flat = other if isinstance(other, list) else [other]
        nested = isinstance(other, list) or "[" in name or not name.startswith("action")
        own = all(type(one) is int and abs(one) < 2**63 for one in flat)
        return own and nested and (whole or len(flat) == len(manifest["action"]["start"]))
    if name.startswith(("action.low[", "action.high[")):
        box, k = copy.deepcopy(manifest["action"]), int(name[-2])
        box[name[7:-3]][k] = other
        low, high = box["low"][k], box["high"][k]
        same = type(other) in (int, float) and float(np.float32(other)) == other
        return same and float(low) <= float(high) and manifest["head"] in ("tanh", *_DRAWN)
    if name == "native.masked":
        return other is True and "sizes" in manifest["action"]
    if name.endswith("dtype") and name.startswith("native"):
        return other == "int8" and manifest["observation"]["dtype"] != "uint8"
    if (
        name.startswith("native.observation.parts")
        and name.endswith("][0]")
        and name.count("[") == 2
    ):
        return type(other) in (int, str)
    if name.startswith("network.net_arch") and manifest["network"]["kind"] == "convolution":
        last = other[-1] if isinstance(other, list) and other else other
        return type(last) is int and 1 <= last <= 8
    return False


def _unfit(name, other):
    """Of the right type, and no seed, no list of names or no conditions all the same."""
    if name == "seed":
        return not 0 <= other < 2**64
    if name == "training_context.symbols":
        return not all(isinstance(one, str) for one in other)
    if name == "training_context.features":
        return not all(isinstance(one, dict) and "name" in one for one in other)
    return name == "training_context" and bool(other)


def forged_tensors(tensors):
    """What was done, and the tensors that came of it."""
    critic = {name for name in tensors if ".critic." in name}
    for name, array in tensors.items():
        rest = {key: value for key, value in tensors.items() if key != name}
        if critic != {name}:
            yield f"{name} missing", rest
        yield f"{name} under another name", {**rest, f"{name}x": array}
        shapes = {(1,), (), (array.size,), (*array.shape, 1), array.shape[::-1], (0,)}
        for shape in shapes - {array.shape}:
            yield f"{name} of shape {shape}", {**rest, name: np.resize(array, shape)}
        yield f"{name} longer", {**rest, name: np.concatenate([array, array])}
        for dtype in ("int8", "float64", "float16", "bool", "uint8"):
            yield f"{name} as {dtype}", {**rest, name: array.astype(dtype)}
        for number in (np.nan, np.inf, -np.inf):
            broken = array.copy()
            broken.flat[-1] = number
            yield f"{name} with {number}", {**rest, name: broken}
        yield f"{name} and another", {**tensors, "weights.more": array}
    for kept in ("observation", "critic", "log_std"):
        yield f"only {kept}", {key: value for key, value in tensors.items() if kept in key}
    if "observation.inverse_std" in tensors:
        turned = {"observation.inverse_std": -tensors["observation.inverse_std"]}
        yield "a negative deviation", {**tensors, **turned}


WIDE = spaces.Box(-np.inf, np.inf, (400,), np.float32)


BYTES = spaces.Box(0, 255, (5,), np.uint8)


FAR = spaces.Box(-100.0, 100.0, (5,), np.float32)


FIXED = np.array([np.nan, 1.0, np.nan, 2.0, 3.0], np.float32)


SCREEN = spaces.Box(0, 255, (40, 38, 2), np.uint8)


MORE = {
    **POLICIES,
    "wide": (_spec(WIDE, BOX), {"net_arch": (130, 24)}),
    "alone": (_spec(ROWS, spaces.Discrete(3)), {"net_arch": (1,)}),
    "relu_box": (
        _spec(ROWS, spaces.Box(-np.inf, np.inf, (1,), np.float32)),
        {"activation": "relu"},
    ),
    "pixels": (_spec(BYTES, spaces.Discrete(3), BYTES), {"net_arch": (8,)}),
    "screen": (_spec(SCREEN, BOUNDED, SCREEN), {"net_arch": (12,)}),
    "plain": (
        _spec(FAR, BOUNDED),
        {"head": "tanh", "activation": "relu", "observation_normalization": False},
    ),
    "partly": (
        replace(_spec(FAR, BOX), fixed_mean=FIXED, fixed_std=FIXED),
        {"observation_normalization": False},
    ),
    "sac_relu": (_spec(ROWS, BOUNDED), {"head": "squashed_gaussian", "activation": "relu"}),
}


IMAGES = ("image", "screen")


def policy_of(name):
    """A policy whose outputs differ from row to row, and whose scale is none of 0 and 1."""
    if name in IMAGES:
        pytest.importorskip("torch")
    spec, settings = MORE[name]
    policy = Policy([spec], [3], **{"net_arch": (20, 9), **settings})
    draw = np.random.default_rng(1)
    spread, factor = (0.02, 1.0) if name in (*IMAGES, "wide") else (0.3, 3.0)
    for weight in policy.parameters.weights.values():
        weight += (weight != 0) * draw.normal(0, spread, weight.shape).astype(np.float32)
        weight *= factor
    if policy.scale is not None:
        policy.scale.mean[:] = draw.normal(size=policy.scale.mean.shape)
        policy.scale.inverse_std[:] = draw.uniform(0.5, 3.0, policy.scale.mean.shape)
        if name == "pixels":
            policy.scale.mean[:] += 128.0
            policy.scale.inverse_std[:] /= 128.0
    return policy


def saved(policy, folder):
    tensors, manifest = pack(policy)
    return checkpoint.save(folder, tensors, {"policy": manifest})


def shown(spec, n):
    """n observations as the environment shows them, and how a batch of them is given."""
    space = spec.native_observation_space or spec.observation_space
    space.seed(5)
    rows = [space.sample() for _ in range(n)]
    return rows, rows if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.stack(rows)


def masks_of(spec, n):
    if not spec.has_action_mask:
        return None
    allowed = np.random.default_rng(2).random((n, spec.num_actions)) < 0.5
    allowed[:, 0] |= ~allowed.any(1)
    return allowed
