"""Policies as ONNX files: the runtime that others use acts as the policy does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from policy_samples import IMAGES, MORE, masks_of, policy_of, saved, shown

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.storage import checkpoint
from slipstream.rl.nets import onnx_graph
from slipstream.rl.nets.policy_file import read_policy

onnx = pytest.importorskip("onnx")


def written(name, folder, opset=17):
    """The policy, its rows and masks, and the file."""
    policy, spec = policy_of(name), MORE[name][0]
    policy = read_policy(saved(policy, folder / "policy"))
    rows, masks = policy.native.rows(shown(spec, 50)[1])[0], masks_of(spec, 50)
    file = folder / "policy.onnx"
    return policy, rows, masks, file, onnx_graph.write_onnx(policy, rows, masks, file, opset)


def ran(file, rows, masks):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    feeds = {"observation": rows} | ({} if masks is None else {"mask": masks})
    return session.run(["action", "outputs"], feeds)


@pytest.mark.parametrize("name", MORE)
def test_the_runtime_acts_as_the_policy(name, tmp_path):
    policy, rows, masks, file, result = written(name, tmp_path)
    action, outputs = ran(file, rows, masks)
    wanted = policy.act_rows(rows, mask=masks)
    native = policy.native.actions(wanted, (len(rows),))
    assert action.shape == native.shape and action.dtype == native.dtype
    assert np.allclose(action, native, rtol=1e-5, atol=1e-5)
    assert outputs.shape == (50, policy.actions.head_width)
    assert result.observations == 50 and result.max_difference < 1e-5
    one = ran(file, rows[:1], None if masks is None else masks[:1])[0]
    assert np.allclose(one, native[:1], rtol=1e-5, atol=1e-5)


def test_the_file_says_what_it_is_and_how_it_was_compared(tmp_path):
    _, _, _, file, result = written("ppo", tmp_path)
    model = onnx.load(str(file))
    told = {one.key: json.loads(one.value) for one in model.metadata_props}
    assert told["parity"] == result.to_dict() and told["opset"] == 17
    manifest = checkpoint.read_manifest(tmp_path / "policy")["policy"]
    assert told["policy"] == manifest and model.opset_import[0].version == 17
    assert [one.name for one in model.graph.input] == ["observation", "mask"] == list(result.inputs)


@pytest.mark.parametrize("name", ["ppo", "ppo_box", "td3"])
@pytest.mark.parametrize("opset", [13, 20])
def test_other_opsets_act_alike(name, opset, tmp_path):
    _, rows, masks, file, result = written(name, tmp_path, opset)
    assert onnx.load(str(file)).opset_import[0].version == opset
    assert result.max_difference < 1e-5
    assert len(ran(file, rows, masks)[0]) == 50


@pytest.mark.parametrize("opset", [0, 12, 99])
def test_opsets_without_its_operators_are_refused(opset, tmp_path):
    with pytest.raises(ConfigError, match=f"opset {opset} is not supported: 13 is the first"):
        written("ppo", tmp_path, opset)
    assert not (tmp_path / "policy.onnx").exists()


def test_without_the_runtime_onnx_itself_compares(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    result = written("ppo_box", tmp_path)[-1]
    assert result.runtime.startswith("the reference of onnx ")
    assert result.max_difference < 1e-5


@pytest.mark.parametrize("name", ["ppo", "ppo_box", "sac"])
def test_a_file_that_would_act_otherwise_is_not_written(name, tmp_path, monkeypatch):
    def forgets_to_scale(graph, x, tensors, policy):
        own = dict(tensors) | {"observation.mean": tensors["observation.mean"] + 0.1}
        return rows_of(graph, x, own, policy)

    rows_of = onnx_graph._rows
    monkeypatch.setattr(onnx_graph, "_rows", forgets_to_scale)
    with pytest.raises(ResourceError, match="would not act as the policy does"):
        written(name, tmp_path)
    assert not (tmp_path / "policy.onnx").exists()


def test_a_wrong_choice_is_noticed(tmp_path, monkeypatch):
    """Outputs that agree do not save a graph that picks others of them."""
    whole = onnx_graph._Graph.__call__

    def least(self, kind, *inputs, **options):
        return whole(self, "ArgMin" if kind == "ArgMax" else kind, *inputs, **options)

    monkeypatch.setattr(onnx_graph._Graph, "__call__", least)
    with pytest.raises(ResourceError, match="differing_actions"):
        written("dqn", tmp_path)


def test_images_take_bytes(tmp_path):
    for name in IMAGES:
        folder = tmp_path / name
        model = onnx.load(str(written(name, folder)[3]))
        assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
