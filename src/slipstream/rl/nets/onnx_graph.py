"""Export of a policy as an ONNX model, including scaling, masks and action mapping.

Inputs are rows as in the policy's description (docs/reference/policy-format.md): the environment's
observations if
they are one array, else their concatenated elements. Outputs are the greedy actions in the
environment's format, and the raw network outputs for users who sample.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.extras import import_optional
from slipstream.core.storage.atomic_io import write_bytes
from slipstream.core.version import __version__
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack

MIN_OPSET, DEFAULT_OPSET = (
    13,
    17,
)  # first opset with all operators, and the default
TOLERANCE = 1e-5  # of outputs and actions, relative to the largest value if that is above 1
_TIES = 1e-3  # fraction of rows
_FILES = "An ONNX file"


class _Graph:
    """Nodes with one output each, in order of addition; arrays become constants."""

    def __init__(self, helper: Any, tensor: Any) -> None:
        self._helper, self._tensor = helper, tensor
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, kind: str, *inputs: Any, name: str = "", **attributes: Any) -> str:
        """Add a node with names and arrays as inputs, and return the name of its output."""
        names = []
        for array in inputs:
            names.append(array if isinstance(array, str) else f"constant_{len(self.constants)}")
            if not isinstance(array, str):
                self.constants.append(self._tensor(np.asarray(array, order="C"), names[-1]))
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, names, [name], **attributes))
        return name

    def columns(self, x: str, lo: int, hi: int, name: str = "") -> str:
        """Return columns lo..hi-1 of x."""
        return self("Slice", x, *(np.array([n]) for n in (lo, hi, 1)), name=name)


def make_onnx_model(policy: Policy, opset: int = DEFAULT_OPSET) -> Any:
    """Build the ONNX model of a policy of one member; `mask` is an input if the policy needs one.

    Args:
        policy: Loaded from a file.
        opset: Version of ONNX's operator set.

    Raises:
        ConfigError: The installed onnx lacks the opset, or the opset lacks operators.
        ResourceError: onnx is not installed.
    """
    onnx = import_optional("onnx", _FILES, "onnx")
    helper, newest = onnx.helper, onnx.defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise ConfigError(
            f"ONNX's opset {opset} is not supported: {MIN_OPSET} is the first that has all "
            f"operators of a policy, and {newest} the last of the installed onnx. Leave "
            f"out --opset for {DEFAULT_OPSET}, or choose one that your runtime supports."
        )
    graph, (tensors, manifest) = _Graph(helper, onnx.numpy_helper.from_array), pack(policy)
    floats, bytes_, truth = (
        helper.np_dtype_to_tensor_dtype(np.dtype(array)) for array in ("f4", "u1", "?")
    )
    actions, taken, rows = policy.actions, manifest["native"]["action"], manifest["observation"]
    kind = bytes_ if rows["dtype"] == "uint8" else floats
    inputs = [helper.make_tensor_value_info("observation", kind, ["N", *rows["shape"]])]
    x = graph("Cast", "observation", to=floats) if kind == bytes_ else "observation"
    layers = (_images if policy.is_image else _rows)(graph, x, tensors, policy)
    x = graph.columns(layers, 0, actions.head_width, "outputs")
    if actions.sizes:
        if manifest["native"]["masked"]:
            choices = ["N", sum(actions.sizes)]
            inputs.append(helper.make_tensor_value_info("mask", truth, choices))
            x = graph("Where", "mask", x, np.array(-np.inf, np.float32))
        ends = itertools.accumulate(actions.sizes)
        parts = [graph.columns(x, end - n, end) for n, end in zip(actions.sizes, ends, strict=True)]
        x = graph("Concat", *(graph("ArgMax", part, axis=1) for part in parts), axis=1)
        x = graph("Add", x, np.ravel(np.array(taken.get("start", 0), np.int64)))
    else:
        _, _, half, middle, low, high = actions.arrays
        x = graph.columns(x, 0, actions.width)
        x = graph("Tanh", x) if actions.squashed else x
        x = graph("Add", graph("Mul", x, half), middle)
        x = graph("Min", graph("Max", x, low), high)
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(taken.get("dtype", "int64")))
    shape = list(np.shape(taken["sizes"])) if taken["kind"] == "choice" else taken["shape"]
    graph("Reshape", graph("Cast", x, to=dtype), np.array([-1, *shape]), name="action")
    outputs = [
        helper.make_tensor_value_info("action", dtype, ["N", *shape]),
        helper.make_tensor_value_info("outputs", floats, ["N", actions.head_width]),
    ]
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants),
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="slipstream",
        producer_version=__version__,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _rows(graph: _Graph, x: str, tensors: Mapping[str, NDArray[Any]], policy: Policy) -> str:
    """Add the layers for rows of features; return the outputs of the last layer."""
    x = graph("Sub", graph("Flatten", x, axis=1), tensors["observation.mean"])
    x = graph("Mul", x, tensors["observation.inverse_std"])
    assert policy.scale is not None
    limit = policy.scale.limit[0]
    if np.isfinite(limit).all() and len(set(limit.tolist())) == 1:
        x = graph("Clip", x, -limit[0], limit[0])
    elif np.isfinite(limit).any():
        x = graph("Min", graph("Max", x, -limit), limit)
    for i in range(len(policy.net_arch) + 1):
        x = graph("Relu" if policy.activation == "relu" else "Tanh", x) if i else x
        x = graph("Gemm", x, *(tensors[f"weights.actor.{i}.{k}"] for k in ("weight", "bias")))
    return x


def _images(graph: _Graph, x: str, tensors: Mapping[str, NDArray[Any]], policy: Policy) -> str:
    """Add the layers for images; return the outputs of the last layer."""
    network: Any = policy.network  # its module needs torch
    x = graph("Div", x, np.array(255.0, np.float32))
    for name, *_, stride in network.layers:
        parameters = (tensors[f"weights.{name}.{k}"] for k in ("weight", "bias"))
        x = graph("Relu", graph("Conv", x, *parameters, strides=[stride, stride]))
    x = graph("Flatten", x, axis=1)
    for name in ("dense", "actor"):
        x = graph("Gemm", x, *(tensors[f"weights.{name}.{k}"] for k in ("weight", "bias")))
        x = graph("Relu", x) if name == "dense" else x
    return x


@dataclass(frozen=True)
class ExportResult:
    """An exported policy and its comparison with the policy on recorded observations.

    Attributes:
        path: the ONNX file.
        opset: version of the operator set.
        inputs: names of the graph's inputs.
        observations: number of observations compared.
        max_difference: largest difference of outputs and continuous actions, relative to their
            size.
        tolerance: largest difference allowed.
        runtime: library that ran the file, with its version.
        differing_actions: share of observations with another discrete action, because of nearly
            equal outputs; None without discrete actions.
    """

    path: Path
    opset: int
    inputs: tuple[str, ...]
    observations: int
    max_difference: float
    tolerance: float
    runtime: str
    differing_actions: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON-able values."""
        values = asdict(self)
        del values["path"], values["opset"]
        return {**values, "inputs": list(self.inputs)}


def write_onnx(
    policy: Policy, rows: NDArray[Any], mask: NDArray[np.bool_] | None, file: Path, opset: int
) -> ExportResult:
    """Write a policy's model after verifying it on recorded rows.

    Args:
        policy: Policy of one member, loaded from a file.
        rows: [n, *shape], unscaled.
        mask: bool [n, mask_size] or None.
        file, opset: See `make_onnx_model`.

    Returns:
        The result of the comparison, also stored in the file.

    Raises:
        ResourceError: The model acts differently; no file is written.
    """
    model = make_onnx_model(policy, opset)
    feeds = {"observation": rows} | ({} if mask is None else {"mask": mask})
    ran, (actions_found, outputs) = _run(model.SerializeToString(), feeds)
    expected = policy.actor(len(rows)).head(rows)[0, : len(rows), : policy.actions.head_width]
    acted = policy.native.actions(policy.act_rows(rows, mask=mask), (len(rows),))
    largest = float(np.abs(outputs - expected).max() / max(1.0, np.abs(expected).max()))
    if policy.actions.sizes:  # rounding may change the order of nearly equal outputs
        other = float(np.mean((actions_found != acted).reshape(len(rows), -1).any(1)))
        fine = other <= _TIES
    else:
        extent = np.maximum(policy.actions.arrays[2], 1.0)
        largest = max(
            largest, float((np.abs(actions_found - acted).reshape(len(rows), -1) / extent).max())
        )
        other, fine = None, True
    result = ExportResult(file, opset, tuple(feeds), len(rows), largest, TOLERANCE, ran, other)
    metadata = result.to_dict()
    if not (fine and largest <= TOLERANCE):
        raise ResourceError(
            f"The ONNX file would not act as the policy does: {json.dumps(metadata)}. Nothing was "
            "written. Try another --opset, or another version of the library that ran it."
        )
    properties = {"opset": opset, "policy": pack(policy)[1], "parity": metadata}
    props = {name: json.dumps(value) for name, value in properties.items()}
    import_optional("onnx.helper", _FILES, "onnx").set_model_props(model, props)
    write_bytes(file, model.SerializeToString())
    return result


def _run(content: bytes, feeds: Mapping[str, NDArray[Any]]) -> tuple[str, list[NDArray[Any]]]:
    """Run a model with onnxruntime, or the slow reference of onnx; return its name and outputs."""
    try:
        library = import_optional("onnxruntime", _FILES, "onnx")
    except ResourceError:
        library = import_optional("onnx", _FILES, "onnx")
        reference = import_optional("onnx.reference", _FILES, "onnx").ReferenceEvaluator
        session, name = reference(library.load_from_string(content)), "the reference of onnx"
    else:
        session = library.InferenceSession(content, providers=["CPUExecutionProvider"])
        name = "onnxruntime"
    return f"{name} {library.__version__}", session.run(["action", "outputs"], feeds)
