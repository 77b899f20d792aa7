"""Networks that act in the other seat: of a policy, or of an ONNX file of fully connected layers.

The loops are plain functions that `environment` compiles. Copies are put in order of the network
that acts there, and its rows pass `forward` in blocks. A row's bits depend neither on the rows
beside it nor on how many there are, and its noise follows from its episode alone.
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
        weights: float32 [n, P]; table: int64 [L, 7], the actor's; relu: else tanh.
        drawn: actions are drawn, else the most likely ones are taken.
        squashed: of a box, the tanh of the network's output counts.
        log_std: place of K log deviations in a row of weights; -1: none.
        mean, inverse_std, limit: of observations, float32 [n, D]; see `scale_row`.
        sizes, start: int64 [K], of choices; half, middle, low, high: float32 [K], of a box.
        x: float32 [BLOCK, inputs], the column of ones in place; space: of `forward`. Overwritten.
    """

    weights: Any
    table: Any
    relu: bool
    drawn: bool
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
    space: Any = None


class OpponentBatch(NamedTuple):
    """Who acts where: of E copies, in both seats.

    Attributes:
        obs: float32 [E, 2, D]; mask: bool [E, 2, choices], or [0, 0, 0] for none.
        seat: int64 [E], the learner's; network: int64 [E], which of the networks acts in the other
            one, -1 for none of them; noise: uint64 [E], the stream of its actions.
        step: int64 [E], steps of the running episode.
        order, first: int64 [E], int64 [n + 1], overwritten.
    """

    obs: Any
    mask: Any
    seat: Any
    network: Any
    noise: Any
    step: Any
    order: Any
    first: Any


def sort_by_network(batch: Any, n: int) -> int:
    """Puts copies in order of their network: those of network k are order[first[k]:first[k + 1]].

    Returns:
        How many have one.
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
            batch.order[batch.first[k]] = e
            batch.first[k] += 1
    for k in range(n, 0, -1):
        batch.first[k] = batch.first[k - 1]
    batch.first[0] = 0
    return int(batch.first[n])


def forward_block(nets: Any, k: int, batch: Any, begin: int, end: int) -> int:
    """Leaves network k's outputs for the copies order[begin:end] in `space`; where they begin."""
    rows = end - begin
    for r in range(rows):
        e = batch.order[begin + r]
        seen = batch.obs[e, 1 - batch.seat[e]]
        scale_row(nets, k, seen, nets.x[r])
    forward(nets.weights[k], nets.table, nets.relu, nets.x[:rows], nets.space)
    return rows * int(nets.table[len(nets.table) - 1, OFFSET])


def act_continuous(nets: Any, batch: Any, actions: Any) -> None:
    """Writes the other seat's action in a box, float32 [E, 2, K], where a network acts."""
    n = len(nets.weights)
    if sort_by_network(batch, n) == 0:
        return
    width = nets.table[len(nets.table) - 1, OUTPUTS]
    for k in range(n):
        for begin in range(batch.first[k], batch.first[k + 1], BLOCK):
            end = min(begin + BLOCK, batch.first[k + 1])
            place = forward_block(nets, k, batch, begin, end)
            head = nets.space[place : place + (end - begin) * width].reshape(end - begin, width)
            for r in range(end - begin):
                e = batch.order[begin + r]
                out = actions[e, 1 - batch.seat[e]]
                for j in range(len(nets.half)):
                    value = float(head[r, j])
                    if nets.drawn and nets.log_std >= 0:
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
    """Writes the other seat's choices, int64 [E, 2, K], where a network acts.

    argmax of logits + Gumbel noise is a draw from their softmax.
    """
    n = len(nets.weights)
    if sort_by_network(batch, n) == 0:
        return
    width = nets.table[len(nets.table) - 1, OUTPUTS]
    choices = 0
    for c in range(len(nets.sizes)):
        choices += nets.sizes[c]
    for k in range(n):
        for begin in range(batch.first[k], batch.first[k + 1], BLOCK):
            end = min(begin + BLOCK, batch.first[k + 1])
            place = forward_block(nets, k, batch, begin, end)
            head = nets.space[place : place + (end - begin) * width].reshape(end - begin, width)
            for r in range(end - begin):
                e = batch.order[begin + r]
                seat = 1 - batch.seat[e]
                first = 0
                for c in range(len(nets.sizes)):
                    last = first + nets.sizes[c]
                    best, top = first, -math.inf
                    for j in range(first, last):
                        if len(batch.mask) > 0 and not batch.mask[e, seat, j]:
                            continue
                        value = float(head[r, j])
                        if nets.drawn:
                            value += gumbel_at(batch.noise[e], batch.step[e] * choices + j)
                        if value > top:
                            best, top = j, value
                    actions[e, seat, c] = best - first + nets.start[c]
                    first = last


def random_continuous(nets: Any, batch: Any, actions: Any) -> None:
    """Uniform numbers between the bounds, where `network` is 0; as for `act_continuous`."""
    for e in range(len(batch.network)):
        if batch.network[e] == 0:
            for j in range(len(nets.half)):
                u = uniform_at(batch.noise[e], batch.step[e] * len(nets.half) + j)
                actions[e, 1 - batch.seat[e], j] = nets.middle[j] + nets.half[j] * (2.0 * u - 1.0)


def random_discrete(nets: Any, batch: Any, actions: Any) -> None:
    """Any allowed choice, equally likely, where `network` is 0; as for `act_discrete`."""
    for e in range(len(batch.network)):
        if batch.network[e] != 0:
            continue
        seat = 1 - batch.seat[e]
        first = 0
        for c in range(len(nets.sizes)):
            allowed = 0
            for j in range(nets.sizes[c]):
                allowed += 1 if len(batch.mask) == 0 or batch.mask[e, seat, first + j] else 0
            left = int(uniform_at(batch.noise[e], batch.step[e] * len(nets.sizes) + c) * allowed)
            for j in range(nets.sizes[c]):
                if len(batch.mask) == 0 or batch.mask[e, seat, first + j]:
                    if left == 0:
                        actions[e, seat, c] = j + nets.start[c]
                    left -= 1
            first += nets.sizes[c]


def networks_from_policy(
    policy: Policy,
    weights: NDArray[np.float32],
    mean: NDArray[np.float32],
    inverse_std: NDArray[np.float32],
    limit: NDArray[np.float32],
    drawn: bool,
) -> OpponentNetworks:
    """Networks of a policy's form.

    Args:
        policy: gives the form.
        weights: [n, P]; mean, inverse_std, limit: [n, D]; they are not copied.
        drawn: actions are drawn, where the policy's head is a distribution that is drawn from.

    Raises:
        ConfigError: it is no network of fully connected layers.
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
            drawn=drawn and distribution,
            squashed=actions.squashed,
            log_std=log_std,
            mean=mean,
            inverse_std=inverse_std,
            limit=limit,
            **action_columns(actions),
        )
    )


def action_columns(actions: ActionMap) -> dict[str, Any]:
    """The fields of `OpponentNetworks` that an action's form decides."""
    return dict(
        zip(("sizes", "start", "half", "middle", "low", "high"), actions.arrays, strict=True)
    )


def with_buffers(networks: OpponentNetworks) -> OpponentNetworks:
    """The same networks with buffers of their own: one for each thread that acts."""
    width = int(networks.table[0, INPUTS])
    x: NDArray[np.float32] = np.zeros((BLOCK, width), np.float32)
    x[:, networks.mean.shape[1]] = 1.0
    return networks._replace(
        x=x, space=aligned_zeros((BLOCK * int(networks.table[:, OUTPUTS].sum()),))
    )


def empty_networks(action: spaces.Space[Any]) -> OpponentNetworks:
    """The outside of an action without any network: for the player that draws it."""
    rows = np.zeros((0, 0), np.float32)
    return OpponentNetworks(
        weights=rows,
        table=np.zeros((1, ROW_SIZE), np.int64),
        relu=True,
        drawn=True,
        squashed=False,
        log_std=-1,
        mean=rows,
        inverse_std=rows,
        limit=rows,
        **action_columns(ActionMap(action)),
        x=rows,
        space=np.zeros(0, np.float32),
    )


def image_error() -> ConfigError:
    """What to say of networks with convolutions."""
    return ConfigError(
        "Opponents act by fully connected networks, and these observations are images: show "
        "numbers in `observe` instead, or train against the kernel's own players."
    )


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


def read_onnx(path: Path, spec: EnvSpec) -> OpponentNetworks:
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
    actions = ActionMap(spec.action_space)
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
    columns = action_columns(actions)
    half = columns["half"]
    return with_buffers(
        OpponentNetworks(
            weights=parameters.flat,
            table=mlp.table(parameters.offsets),
            relu=relu,
            drawn=False,
            squashed=last == "tanh",
            log_std=-1,
            mean=aligned_zeros((1, inputs)),
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
    current, found = given[0], Layers([], [], [])
    for node in graph.node:
        if node.op_type == "Constant":
            continue
        names = [name for name in node.input if name and name not in constants]
        if names != [current]:
            raise _refused(path, f"its node {node.op_type} does not follow the one before", _WANTED)
        numbers = [constants[name] for name in node.input if name in constants]
        try:
            taken = node.input[0] == current and _add(found, node, numbers)
        except ValueError as error:
            why = f"the sizes of its node {node.op_type} do not fit ({error})"
            raise _refused(path, why, _WANTED) from error
        if not taken:
            raise _refused(path, f"it has a node {node.op_type}", _WANTED)
        current = node.output[0]
    if current != graph.output[0].name or not found.weights:
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
        import_optional(part, f"The opponent {path}", "onnx")
        for part in ("onnx", "onnx.numpy_helper")
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
