"""Policies whose hash fits and that no training wrote: each is refused in words, none acts.

Every field of the manifest is exchanged for the wrong type, taken out, doubled in size and made
huge, next to one that nobody knows; every tensor is dropped, reshaped, retyped, made infinite.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from policy_samples import (
    POLICIES,
    WRONG,
    forged_manifests,
    forged_tensors,
    resealed,
)

from slipstream.core.errors import CheckpointError, SlipstreamError
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack

WRONG += [[10**9] * 7, {"kind": "box"}, [[]], ["odd"], "int8"]
CONDITIONS = {
    **{"environment": "forex", "fill": "next_open", "data_sha256": "abc", "bar_seconds": 60},
    **{"lookback": 3, "symbols": ["EURUSD"], "settings": {"cost": 1.0}},
    "features": [{"name": "rsi_14", "pattern": "rsi_{n}", "n": 14}],
}


def packed(name):
    """Tensors and manifest as a file gives them."""
    if name == "image" and importlib.util.find_spec("torch") is None:
        pytest.skip("images need torch")
    spec, settings = POLICIES[name]
    settings = {"net_arch": (6, 4), **settings}
    tensors, manifest = pack(Policy([spec], [3], **settings), 0, CONDITIONS)
    return tensors, json.loads(json.dumps(manifest))


def accepted(cases):
    """What was forged and was read, or was refused otherwise than in words."""
    found, count = [], 0
    for what, tensors, manifest in cases:
        count += 1
        try:
            unpack(tensors, resealed(tensors, manifest))
            found.append(f"{what}: accepted")
        except CheckpointError as error:
            if "\n" in str(error) or len(str(error)) > 700:
                found.append(f"{what}: {error}")
        except SlipstreamError as error:
            found.append(f"{what}: {type(error).__name__}: {error}")
        except Exception as error:
            found.append(f"{what}: {type(error).__name__}: {error}")
    return found, count


@pytest.mark.parametrize("name", POLICIES)
def test_no_forged_manifest_is_accepted(name):
    tensors, manifest = packed(name)
    unpack(tensors, manifest)
    found, count = accepted((what, tensors, one) for what, one in forged_manifests(manifest))
    assert not found and count > 500, "\n".join(found[:40])


@pytest.mark.parametrize("name", POLICIES)
def test_no_forged_tensors_are_accepted(name):
    tensors, manifest = packed(name)
    found, count = accepted((what, one, manifest) for what, one in forged_tensors(tensors))
    assert not found and count > 100, "\n".join(found[:40])


@pytest.mark.parametrize("given", [None, 3, "x", [], ["format"]])
def test_what_is_no_manifest_holds_no_policy(given):
    with pytest.raises(CheckpointError, match="no policy here"):
        unpack({}, given)


@pytest.mark.parametrize("kind", ["dict", "tuple"])
def test_spaces_within_spaces_have_an_end(kind):
    tensors, manifest = packed("nested")
    deep = {"kind": "box", "shape": [], "dtype": "float32"}
    for _ in range(100):
        deep = {"kind": kind, "parts": [[0, deep]]}
    manifest["native"]["observation"] = deep
    found, _ = accepted([("deep", tensors, manifest)])
    assert not found
