"""Somebody else's network as an opponent: an ONNX file with nothing but fully connected layers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.extras import require
from slipstream.games.self_play.networks import SeatNetworks, columns_of, with_space
from slipstream.jit.memory import zeros
from slipstream.kernels.spec import Spec
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.networks import Mlp
from slipstream.rl.nets.parameters import Parameters

_PASSED = ("Identity", "Flatten", "Dropout")  # they change nothing in a row of numbers


class Layers(NamedTuple):
    """A chain of layers.

    Attributes:
        weights: float32 [inputs, outputs] of each; biases: [outputs].
        activations: after each layer, `relu`, `tanh` or None.
    """

    weights: list[NDArray[np.float32]]
    biases: list[NDArray[np.float32]]
    activations: list[str | None]


def read_onnx(path: Path, spec: Spec) -> SeatNetworks:
    """The network in a file; its outputs are actions of the game itself, or one value a choice.

    Boxes are clipped to their bounds, of choices the one with the greatest value is taken.

    Args:
        path: of the file.
        spec: of one seat.

    Raises:
        ConfigError: there is no such file, it is no plain network, or of another shape.
        ResourceError: the library that reads it is not installed.
    """
    layers = _layers(path)
    actions = ActionMap(spec.action)
    inputs = int(np.prod(spec.observation_shape))
    outputs = sum(actions.sizes) if actions.sizes else actions.width
    sizes = (len(layers.weights[0]), *(weight.shape[1] for weight in layers.weights))
    if (sizes[0], sizes[-1]) != (inputs, outputs):
        raise ConfigError(
            f"The opponent {path} takes {sizes[0]} numbers and gives {sizes[-1]}; a seat shows "
            f"{inputs} and takes {outputs}: name a network for this game with these settings."
        )
    *hidden, last = layers.activations
    if len(set(hidden)) > 1 or None in hidden or last == "relu":
        raise _refused(path, f"its layers end in {layers.activations}", _WANTED)
    if last == "tanh" and actions.sizes:
        last = None  # the greatest value stays the greatest
    relu = bool(hidden) and hidden[0] == "relu"
    mlp = Mlp("actor", sizes, "relu" if relu else "tanh", 1.0)
    parameters = Parameters(mlp.shapes(), 1)
    for i, layer in enumerate(mlp.layers):
        weight = parameters.weights[layer.weight][0]
        weight[: layer.inputs, : layer.outputs] = layers.weights[i]
        # the first layer's bias is the weight of the input's column of ones
        row = parameters.weights[layer.bias][0, 0] if i else weight[layer.inputs]
        row[: layer.outputs] = layers.biases[i]
    columns = columns_of(actions)
    half = columns["half"]
    return with_space(
        SeatNetworks(
            weights=parameters.flat,
            table=mlp.table(parameters.offsets),
            relu=relu,
            drawn=False,
            squashed=last == "tanh",
            log_std=-1,
            mean=zeros((1, inputs)),
            inverse_std=np.ones((1, inputs), np.float32),
            limit=np.full((1, inputs), np.inf, np.float32),
            **columns | {"half": np.ones_like(half), "middle": np.zeros_like(half)},
        )
    )


def _layers(path: Path) -> Layers:
    """The chain from the only input to the only output."""
    graph, numpy_of = _graph(path)
    constants = {one.name: numpy_of(one) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            value = {a.name: a for a in node.attribute}.get("value")
            if value is not None:
                constants[node.output[0]] = numpy_of(value.t)
    given = [one.name for one in graph.input if one.name not in constants]
    if len(given) != 1 or len(graph.output) != 1:
        raise _refused(path, f"it has {len(given)} inputs and {len(graph.output)} outputs", _WANTED)
    at, found = given[0], Layers([], [], [])
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        names = [name for name in node.input if name and name not in constants]
        if names != [at]:
            raise _refused(path, f"its node {node.op_type} does not follow the one before", _WANTED)
        numbers = [constants[name] for name in node.input if name in constants]
        try:
            taken = node.input[0] == at and _add(found, node, numbers)
        except ValueError as error:
            why = f"the sizes of its node {node.op_type} do not fit ({error})"
            raise _refused(path, why, _WANTED) from error
        if not taken:
            raise _refused(path, f"it has a node {node.op_type}", _WANTED)
        at = node.output[0]
    if at != graph.output[0].name or not found.weights:
        raise _refused(path, "its nodes do not lead from input to output", _WANTED)
    for weight, above in itertools.pairwise(found.weights):
        if weight.shape[1] != len(above):
            raise _refused(path, f"layers of {weight.shape} and {above.shape} follow", _WANTED)
    return found


def _add(found: Layers, node: Any, numbers: list[NDArray[Any]]) -> bool:
    """Takes a node in; false where it is none of a plain network."""
    kind = node.op_type
    options = {a.name: a for a in node.attribute}
    fresh = not found.weights or found.activations[-1] is not None
    if kind in ("Relu", "Tanh") and not fresh:
        found.activations[-1] = kind.lower()
    elif kind in ("Gemm", "MatMul") and numbers and numbers[0].ndim == 2:
        scales = [options[name].f for name in ("alpha", "beta") if name in options]
        if any(scale != 1.0 for scale in scales) or ("transA" in options and options["transA"].i):
            return False
        turned = "transB" in options and options["transB"].i
        weight = (numbers[0].T if turned else numbers[0]).astype(np.float32)
        bias = numbers[1].ravel() if len(numbers) > 1 else np.zeros(1)
        found.weights.append(weight)
        found.biases.append(np.broadcast_to(bias, weight.shape[1:]).astype(np.float32))
        found.activations.append(None)
    elif kind == "Add" and len(numbers) == 1 and not fresh:
        found.biases[-1] = found.biases[-1] + numbers[0].astype(np.float32).ravel()
    else:
        return kind in _PASSED and not numbers
    return True


def _graph(path: Path) -> tuple[Any, Any]:
    if not path.is_file():
        raise ConfigError(
            f"There is no file {path}, an opponent's name: give the path of an ONNX file."
        )
    onnx, helper = (
        require(part, f"The opponent {path}", "onnx") for part in ("onnx", "onnx.numpy_helper")
    )
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf's, the checker's, the system's
        reason = str(error).strip().splitlines()
        raise _refused(path, reason[0] if reason else type(error).__name__, _WANTED) from error
    return model.graph, helper.to_array


def _refused(path: Path, why: str, wanted: str) -> ConfigError:
    return ConfigError(f"The opponent {path} cannot play: {why}. {wanted}")


_WANTED = (
    "Taken are files with one input and one output, a chain of fully connected layers (Gemm, or "
    "MatMul and Add) with Relu or Tanh between all of them, and at the end Tanh or nothing."
)
