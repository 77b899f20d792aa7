"""Opponent networks: of a policy, or of an ONNX file of fully connected layers.

The loops are plain functions that `self_play_env` compiles. They sort sub-environments by network
and pass the rows of each network through `forward` in blocks. The result of a row depends neither
on other rows nor on their number; its noise depends on its episode only.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.extras import import_optional
from slipstream.jit.alignment import aligned_zeros
from slipstream.jit.rng import gumbel_at, normal64_at, uniform_at
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.experience.running_mean_std import scale_row
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.layers import BLOCK, INPUTS, OFFSET, OUTPUTS, ROW_SIZE, forward
from slipstream.rl.nets.networks import Mlp, MlpNetwork
from slipstream.rl.nets.optimizer import Parameters
from slipstream.rl.nets.policy import Policy


class OpponentNetworks(NamedTuple):
    """n networks of one shape.

    Attributes:
        weights: float32 [n, P].
        table: int64 [L, 7], layers of the actor.
        relu: the activation is ReLU; else tanh.
        stochastic: actions are sampled; else the most likely ones are taken.
        squashed: continuous actions are the tanh of the network's output.
        log_std: offset of K log standard deviations in a row of weights; -1: none.
        mean, inverse_std, limit: float32 [n, D], scaling of observations; see `scale_row`.
        sizes, start: int64 [K], of discrete actions.
        half, middle, low, high: float32 [K], of continuous actions.
        x: float32 [BLOCK, inputs], input buffer with its column of ones.
        workspace: buffer of `forward`.
    """

    weights: Any
    table: Any
    relu: bool
    stochastic: bool
    squashed: bool
    log_std: int
    mean: Any
    inverse_std: Any
    limit: Any
    sizes: Any
    start: Any
    half: Any
    middle: Any
    low: Any
    high: Any
    x: Any = None
    workspace: Any = None


class OpponentBatch(NamedTuple):
    """Inputs of the loops that act for opponents in E sub-environments.

    Attributes:
        obs: float32 [E, 2, D], observations of both players.
        mask: bool [E, 2, n], allowed actions; [0, 0, 0] if there is no mask.
        learner: int64 [E], player that learns.
        network: int64 [E], index of the network that acts for the other player; -1: none.
        noise: uint64 [E], random stream of its actions.
        step: int64 [E], steps of the running episode.
        env_order, first: int64 [E] and [n + 1], buffers of `sort_by_network`.
    """

    obs: Any
    mask: Any
    learner: Any
    network: Any
    noise: Any
    step: Any
    env_order: Any
    first: Any


def sort_by_network(batch: Any, n: int) -> int:
    """Sort sub-environments by network: network k has env_order[first[k]:first[k + 1]].

    Returns:
        The number of sub-environments with a network.
    """
    for k in range(n + 1):
        batch.first[k] = 0
    for e in range(len(batch.network)):
        if batch.network[e] >= 0:
            batch.first[batch.network[e] + 1] += 1
    for k in range(n):
        batch.first[k + 1] += batch.first[k]
    for e in range(len(batch.network)):
        k = batch.network[e]
        if k >= 0:
            batch.env_order[batch.first[k]] = e
            batch.first[k] += 1
    for k in range(n, 0, -1):
        batch.first[k] = batch.first[k - 1]
    batch.first[0] = 0
    return int(batch.first[n])


def forward_block(nets: Any, k: int, batch: Any, start: int, end: int) -> int:
    """Compute network k for env_order[start:end] in `workspace`; return the outputs' offset."""
    rows = end - start
    for r in range(rows):
        e = batch.env_order[start + r]
        obs = batch.obs[e, 1 - batch.learner[e]]
        scale_row(nets, k, obs, nets.x[r])
    forward(nets.weights[k], nets.table, nets.relu, nets.x[:rows], nets.workspace)
    return rows * int(nets.table[len(nets.table) - 1, OFFSET])


def act_continuous(nets: Any, batch: Any, actions: Any) -> None:
    """Write the opponents' continuous actions, float32 [E, 2, K]."""
    n = len(nets.weights)
    if sort_by_network(batch, n) == 0:
        return
    width = nets.table[len(nets.table) - 1, OUTPUTS]
    for k in range(n):
        for begin in range(batch.first[k], batch.first[k + 1], BLOCK):
            end = min(begin + BLOCK, batch.first[k + 1])
            offset = forward_block(nets, k, batch, begin, end)
            head = nets.workspace[offset : offset + (end - begin) * width].reshape(
                end - begin, width
            )
            for r in range(end - begin):
                e = batch.env_order[begin + r]
                out = actions[e, 1 - batch.learner[e]]
                for j in range(len(nets.half)):
                    value = float(head[r, j])
                    if nets.stochastic and nets.log_std >= 0:
                        std = math.exp(float(nets.weights[k, nets.log_std + j]))
                        value += std * normal64_at(
                            batch.noise[e], batch.step[e] * len(nets.half) + j
                        )
                    if nets.squashed:
                        value = math.tanh(value)
                    value = value * nets.half[j] + nets.middle[j]
                    value = float(nets.low[j]) if value < nets.low[j] else value
                    out[j] = float(nets.high[j]) if value > nets.high[j] else value


def act_discrete(nets: Any, batch: Any, actions: Any) -> None:
    """Write the opponents' discrete actions, int64 [E, 2, K].

    The argmax of logits + Gumbel noise is a sample of their softmax.
    """
    n = len(nets.weights)
    if sort_by_network(batch, n) == 0:
        return
    width = nets.table[len(nets.table) - 1, OUTPUTS]
    num_actions = 0
    for c in range(len(nets.sizes)):
        num_actions += nets.sizes[c]
    for k in range(n):
        for begin in range(batch.first[k], batch.first[k + 1], BLOCK):
            end = min(begin + BLOCK, batch.first[k + 1])
            offset = forward_block(nets, k, batch, begin, end)
            head = nets.workspace[offset : offset + (end - begin) * width].reshape(
                end - begin, width
            )
            for r in range(end - begin):
                e = batch.env_order[begin + r]
                opponent = 1 - batch.learner[e]
                first = 0
                for c in range(len(nets.sizes)):
                    last = first + nets.sizes[c]
                    best, top = first, -math.inf
                    for j in range(first, last):
                        if len(batch.mask) > 0 and not batch.mask[e, opponent, j]:
                            continue
                        value = float(head[r, j])
                        if nets.stochastic:
                            value += gumbel_at(batch.noise[e], batch.step[e] * num_actions + j)
                        if value > top:
                            best, top = j, value
                    actions[e, opponent, c] = best - first + nets.start[c]
                    first = last


def random_continuous(nets: Any, batch: Any, actions: Any) -> None:
    """Write uniformly random continuous actions if `network` is 0; else as `act_continuous`."""
    for e in range(len(batch.network)):
        if batch.network[e] == 0:
            for j in range(len(nets.half)):
                u = uniform_at(batch.noise[e], batch.step[e] * len(nets.half) + j)
                actions[e, 1 - batch.learner[e], j] = nets.middle[j] + nets.half[j] * (
                    2.0 * u - 1.0
                )


def random_discrete(nets: Any, batch: Any, actions: Any) -> None:
    """Write uniformly random allowed actions if `network` is 0; else as `act_discrete`."""
    for e in range(len(batch.network)):
        if batch.network[e] != 0:
            continue
        opponent = 1 - batch.learner[e]
        first = 0
        for c in range(len(nets.sizes)):
            allowed = 0
            for j in range(nets.sizes[c]):
                allowed += 1 if len(batch.mask) == 0 or batch.mask[e, opponent, first + j] else 0
            left = int(uniform_at(batch.noise[e], batch.step[e] * len(nets.sizes) + c) * allowed)
            for j in range(nets.sizes[c]):
                if len(batch.mask) == 0 or batch.mask[e, opponent, first + j]:
                    if left == 0:
                        actions[e, opponent, c] = j + nets.start[c]
                    left -= 1
            first += nets.sizes[c]


def networks_from_policy(
    policy: Policy,
    weights: NDArray[np.float32],
    mean: NDArray[np.float32],
    inverse_std: NDArray[np.float32],
    limit: NDArray[np.float32],
    stochastic: bool,
) -> OpponentNetworks:
    """Return networks with the architecture of a policy.

    Args:
        policy: policy that defines the architecture.
        weights: [n, P], not copied.
        mean, inverse_std, limit: [n, D], not copied.
        stochastic: actions are sampled, if the policy's head is a distribution.

    Raises:
        ConfigError: the network has other than fully connected layers.
    """
    network, actions = policy.network, policy.actions
    if not isinstance(network, MlpNetwork):
        raise image_error()
    distribution = actions.head in ("logits", "gaussian")
    log_std = policy.parameters.offsets.get("log_std", -1)
    return with_buffers(
        OpponentNetworks(
            weights=weights,
            table=network.tables[0],
            relu=network.activation == "relu",
            stochastic=stochastic and distribution,
            squashed=actions.squashed,
            log_std=log_std,
            mean=mean,
            inverse_std=inverse_std,
            limit=limit,
            **action_columns(actions),
        )
    )


def action_columns(actions: ActionMap) -> dict[str, Any]:
    """Return the fields of `OpponentNetworks` that depend on the action space."""
    return dict(
        zip(("sizes", "start", "half", "middle", "low", "high"), actions.arrays, strict=True)
    )


def with_buffers(networks: OpponentNetworks) -> OpponentNetworks:
    """Return the networks with new buffers; each thread requires its own."""
    width = int(networks.table[0, INPUTS])
    x: NDArray[np.float32] = np.zeros((BLOCK, width), np.float32)
    x[:, networks.mean.shape[1]] = 1.0
    return networks._replace(
        x=x, workspace=aligned_zeros((BLOCK * int(networks.table[:, OUTPUTS].sum()),))
    )


def empty_networks(action: spaces.Space[Any]) -> OpponentNetworks:
    """Return the fields of an action space without networks, for the random player."""
    rows = np.zeros((0, 0), np.float32)
    return OpponentNetworks(
        weights=rows,
        table=np.zeros((1, ROW_SIZE), np.int64),
        relu=True,
        stochastic=True,
        squashed=False,
        log_std=-1,
        mean=rows,
        inverse_std=rows,
        limit=rows,
        **action_columns(ActionMap(action)),
        x=rows,
        workspace=np.zeros(0, np.float32),
    )


def image_error() -> ConfigError:
    """Return the error for observations that are images."""
    return ConfigError(
        "Opponent networks require vector observations, but these are images. Write numbers in "
        "`observe`, or train against the kernel's own bots."
    )


_IGNORED_OPS = ("Identity", "Flatten", "Dropout")  # without effect on a row of numbers


class LayerChain(NamedTuple):
    """Fully connected layers in order.

    Attributes:
        weights: float32 [inputs, outputs] of each layer.
        biases: float32 [outputs] of each layer.
        activations: activation after each layer: `relu`, `tanh` or None.
    """

    weights: list[NDArray[np.float32]]
    biases: list[NDArray[np.float32]]
    activations: list[str | None]


def read_onnx(path: Path, spec: EnvSpec) -> OpponentNetworks:
    """Load the network of an ONNX file, whose outputs are actions or one value per action.

    Continuous actions are clipped to their bounds. Of discrete actions, the one with the largest
    value is taken.

    Args:
        path: path of the file.
        spec: spec of one player.

    Raises:
        ConfigError: the file is missing, its network is not supported, or its shape is wrong.
        ResourceError: the onnx library is not installed.
    """
    layers = _read_layers(path)
    actions = ActionMap(spec.action_space)
    inputs = int(np.prod(spec.observation_shape))
    outputs = sum(actions.sizes) if actions.sizes else actions.width
    sizes = (len(layers.weights[0]), *(weight.shape[1] for weight in layers.weights))
    if (sizes[0], sizes[-1]) != (inputs, outputs):
        raise ConfigError(
            f"The opponent {path} has {sizes[0]} inputs and {sizes[-1]} outputs, but a player of "
            f"this game needs {inputs} and {outputs}. Choose a network for this game and these "
            "settings."
        )
    *hidden, last = layers.activations
    if len(set(hidden)) > 1 or None in hidden or last == "relu":
        raise _onnx_error(path, f"its activations are {layers.activations}")
    if last == "tanh" and actions.sizes:
        last = None  # tanh does not change the argmax
    relu = bool(hidden) and hidden[0] == "relu"
    mlp = Mlp("actor", sizes, "relu" if relu else "tanh", 1.0)
    parameters = Parameters(mlp.shapes(), 1)
    for i, layer in enumerate(mlp.layers):
        weight = parameters.weights[layer.weight][0]
        weight[: layer.inputs, : layer.outputs] = layers.weights[i]
        # The first layer's bias is the weight of the input's column of ones.
        row = parameters.weights[layer.bias][0, 0] if i else weight[layer.inputs]
        row[: layer.outputs] = layers.biases[i]
    columns = action_columns(actions)
    half = columns["half"]
    return with_buffers(
        OpponentNetworks(
            weights=parameters.flat,
            table=mlp.table(parameters.offsets),
            relu=relu,
            stochastic=False,
            squashed=last == "tanh",
            log_std=-1,
            mean=aligned_zeros((1, inputs)),
            inverse_std=np.ones((1, inputs), np.float32),
            limit=np.full((1, inputs), np.inf, np.float32),
            **columns | {"half": np.ones_like(half), "middle": np.zeros_like(half)},
        )
    )


def _read_layers(path: Path) -> LayerChain:
    """Read the chain of layers from the only input to the only output."""
    graph, to_array = _read_graph(path)
    constants = {tensor.name: to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            value = {a.name: a for a in node.attribute}.get("value")
            if value is not None:
                constants[node.output[0]] = to_array(value.t)
    inputs = [tensor.name for tensor in graph.input if tensor.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise _onnx_error(path, f"it has {len(inputs)} inputs and {len(graph.output)} outputs")
    current, layers = inputs[0], LayerChain([], [], [])
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        names = [name for name in node.input if name and name not in constants]
        if names != [current]:
            raise _onnx_error(path, f"its node {node.op_type} does not follow the previous node")
        arrays = [constants[name] for name in node.input if name in constants]
        try:
            supported = node.input[0] == current and _append_node(layers, node, arrays)
        except ValueError as error:
            reason = f"its node {node.op_type} has inconsistent sizes ({error})"
            raise _onnx_error(path, reason) from error
        if not supported:
            raise _onnx_error(path, f"it has a node {node.op_type}")
        current = node.output[0]
    if current != graph.output[0].name or not layers.weights:
        raise _onnx_error(path, "its nodes do not lead from input to output")
    for weight, following in itertools.pairwise(layers.weights):
        if weight.shape[1] != len(following):
            raise _onnx_error(
                path, f"its layers of {weight.shape} and {following.shape} do not match"
            )
    return layers


def _append_node(layers: LayerChain, node: Any, constants: list[NDArray[Any]]) -> bool:
    """Add a node to the chain; return false if it is not supported."""
    op = node.op_type
    attributes = {a.name: a for a in node.attribute}
    activated = not layers.weights or layers.activations[-1] is not None
    if op in ("Relu", "Tanh") and not activated:
        layers.activations[-1] = op.lower()
    elif op in ("Gemm", "MatMul") and constants and constants[0].ndim == 2:
        scales = [attributes[name].f for name in ("alpha", "beta") if name in attributes]
        transposed_input = "transA" in attributes and attributes["transA"].i
        if any(scale != 1.0 for scale in scales) or transposed_input:
            return False
        transposed = "transB" in attributes and attributes["transB"].i
        weight = (constants[0].T if transposed else constants[0]).astype(np.float32)
        bias = constants[1].ravel() if len(constants) > 1 else np.zeros(1)
        layers.weights.append(weight)
        layers.biases.append(np.broadcast_to(bias, weight.shape[1:]).astype(np.float32))
        layers.activations.append(None)
    elif op == "Add" and len(constants) == 1 and not activated:
        layers.biases[-1] = layers.biases[-1] + constants[0].astype(np.float32).ravel()
    else:
        return op in _IGNORED_OPS and not constants
    return True


def _read_graph(path: Path) -> tuple[Any, Any]:
    if not path.is_file():
        raise ConfigError(f"The opponent {path} does not exist. Give the path of an ONNX file.")
    onnx, helper = (
        import_optional(module, f"The opponent {path}", "onnx")
        for module in ("onnx", "onnx.numpy_helper")
    )
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # of protobuf, the checker or the file system
        reason = str(error).strip().splitlines()
        raise _onnx_error(path, reason[0] if reason else type(error).__name__) from error
    return model.graph, helper.to_array


def _onnx_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"The opponent {path} cannot be loaded: {reason}. Supported are files with one input, one "
        "output and a chain of fully connected layers (Gemm, or MatMul and Add), with Relu or Tanh "
        "between them and optionally Tanh at the end."
    )
