"""Policies as files: every head, read without slipstream, older formats, unknown ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces
from policy_samples import BOUNDED, BOX, resealed

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.storage import checkpoint
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack

EXAMPLE = Path(__file__).parents[3] / "examples/09_act_with_numpy.py"
CASES = [
    ("logits", spaces.Discrete(4, start=2), "tanh"),
    ("logits", spaces.MultiDiscrete([3, 2], start=[1, 0]), "relu"),
    ("q", spaces.Discrete(5), "relu"),
    ("gaussian", BOX, "tanh"),
    ("squashed_gaussian", BOUNDED, "relu"),
    ("tanh", BOUNDED, "tanh"),
]
READER = """
import json, runpy, sys
import numpy as np
example = runpy.run_path(sys.argv[1])
for line in sys.stdin:
    case = json.loads(line)
    tensors, manifest = example["load"](case["folder"])
    masks = case["masks"] or [None] * len(case["rows"])
    acts = [example["act"](tensors, manifest, *pair) for pair in zip(case["rows"], masks)]
    print(json.dumps(acts))
assert not [name for name in sys.modules if name.partition(".")[0] in ("slipstream", "gymnasium")]
"""


def policy_of(head, action, activation="tanh", masked=False):
    spec = EnvSpec(spaces.Box(-np.inf, np.inf, (5,), np.float32), action, has_action_mask=masked)
    policy = Policy([spec] * 2, [3, 4], net_arch=(9, 6), activation=activation, head=head)
    policy.parameters.flat *= 4.0  # preferences that no rounding decides
    draw = np.random.default_rng(1)
    policy.parameters.weights["actor.1.bias"][..., :6] = draw.normal(size=(2, 1, 6))
    policy.scale.mean[:] = draw.normal(size=(2, 5))
    policy.scale.inverse_std[:] = draw.uniform(0.5, 3.0, (2, 5))
    return policy


def rows_of(policy, n=40):
    return np.random.default_rng(2).normal(0, 3, (n, 5)).astype(np.float32)


def test_numpy_alone_reads_and_acts(tmp_path):
    """Every head, both activations, with and without a mask; no slipstream in that process."""
    cases, expected = [], []
    for k, (head, action, activation) in enumerate(CASES):
        policy = policy_of(head, action, activation)
        folder = tmp_path / str(k)
        tensors, manifest = pack(policy, 1, {"bar_seconds": 3600})
        checkpoint.save(folder, tensors, {"policy": manifest})
        rows, masks = rows_of(policy), None
        if policy.actions.sizes:
            masks = np.random.default_rng(k).random((len(rows), sum(policy.actions.sizes))) < 0.6
            masks[:, np.cumsum(policy.actions.sizes) - 1] = True
        for mask in [None] if masks is None else [None, masks]:
            both = np.stack([rows, rows])
            allowed = None if mask is None else np.concatenate([mask, mask])
            found = policy.act_rows(both.reshape(-1, 5), mask=allowed).reshape(2, len(rows), -1)
            expected.append(found[1])
            case = {"folder": str(folder), "rows": rows.tolist()}
            cases.append(case | {"masks": None if mask is None else mask.tolist()})
    done = subprocess.run(
        [sys.executable, "-c", READER, str(EXAMPLE)],
        input="".join(json.dumps(case) + "\n" for case in cases),
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    for line, actions in zip(lines, expected, strict=True):
        assert len(np.unique(actions)) > 1
        np.testing.assert_allclose(json.loads(line), actions, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("head", "action", "activation"), CASES)
def test_a_file_gives_the_same_policy(head, action, activation):
    policy = policy_of(head, action, activation)
    rows = rows_of(policy)
    for m in range(2):
        tensors, manifest = pack(policy, m)
        again = unpack(tensors, json.loads(json.dumps(manifest)))
        together = policy.act_rows(np.concatenate([rows, rows])).reshape(2, len(rows), -1)
        assert np.array_equal(again.act_rows(rows), together[m])
        assert pack(again)[1] == manifest
        assert again.actions.head == head
        assert all((pack(again)[0][name] == value).all() for name, value in tensors.items())
        only = {name: value for name, value in tensors.items() if "critic" not in name}
        only, manifest = only, resealed(only, manifest)
        assert np.array_equal(unpack(only, manifest).act_rows(rows), together[m])


@pytest.mark.parametrize(("head_name", "width"), [("squashed_gaussian", 4), ("tanh", 2)])
def test_a_squashed_output_fills_the_box(head_name, width):
    policy = policy_of(head_name, BOUNDED)
    rows = rows_of(policy, 30)
    head = policy.actor(15).head(rows)[:, :15, :2].reshape(30, 2)
    expected = BOUNDED.low + (np.tanh(head) + 1) / 2 * (BOUNDED.high - BOUNDED.low)
    np.testing.assert_allclose(policy.act_rows(rows), expected, rtol=1e-5, atol=1e-5)
    assert "log_std" not in policy.parameters.weights and policy.actions.head_width == width


def test_q_takes_the_best_choice_also_when_actions_are_drawn():
    policy = policy_of("q", spaces.Discrete(5), masked=True)
    rows = rows_of(policy).reshape(2, 20, 5)
    mask = np.ones((2, 20, 5), bool)
    best = policy.act(rows, mask)
    assert (policy.act(rows, mask, deterministic=False) == best).all()
    mask[np.arange(2)[:, None], np.arange(20), best] = False
    assert (policy.act(rows, mask) != best).all()


def test_heads_that_do_not_fit_are_refused():
    for head, action in [("q", BOX), ("gaussian", spaces.Discrete(2)), ("softmax", BOX)]:
        with pytest.raises(ConfigError, match=rf"'{head}' does not act in a .* takes "):
            policy_of(head, action)
    for head in ("squashed_gaussian", "tanh"):
        with pytest.raises(ConfigError, match=f"head {head} needs .* finite bounds"):
            policy_of(head, BOX)


@pytest.mark.parametrize("known", [0, 1, 3, "2", True, None])
def test_unknown_formats_are_refused(known):
    tensors, manifest = pack(policy_of("q", spaces.Discrete(5)))
    manifest = resealed(tensors, {**manifest, "format": known, "slipstream": "9.1"})
    with pytest.raises(CheckpointError, match=rf"format {known!r}.*format 2.*slipstream 9.1"):
        unpack(tensors, manifest)


def test_damage_is_noticed(tmp_path):
    tensors, manifest = pack(policy_of("logits", spaces.Discrete(4)))
    safetensors.numpy.save_file(tensors, tmp_path / "x")
    tensors = safetensors.numpy.load_file(tmp_path / "x")
    unpack(tensors, manifest)
    with pytest.raises(CheckpointError, match="hash"):
        unpack(tensors, {**manifest, "head": "q"})
    with pytest.raises(CheckpointError, match="hash"):
        unpack(tensors, {**manifest, "training_context": {"bar_seconds": 60}})
