"""Trained policies and ONNX files in the other seat act as they do on their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.vector_env import allocate_buffers
from slipstream.training.environments.factory import make_environment

TICTACTOE = "tictactoe"
PENNIES = str(Path(__file__).parents[4] / "examples/kernels/pennies.py")
SIZES = {"num_envs": 16, "total_timesteps": 512, "seed": 3}
AGENT = {"agent.n_steps": 16, "agent.batch_size": 64}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("opponents") / "run"
    overrides = {**AGENT, "env.self_play": {}, "evaluation.episodes": 4}
    return slipstream.train(TICTACTOE, out=out, overrides=overrides, report=False, **SIZES)


def test_a_run_and_a_policys_folder_play_as_the_policy_does(trained):
    policy = slipstream.load_policy(trained)
    for name in (trained.path, trained.best.folder_of(0)):
        env = slipstream.make_vec(
            TICTACTOE, 32, seed=4, self_play={"opponents": {str(name): 1}, "deterministic": True}
        )
        out = allocate_buffers(env)
        env.reset_rows(out.obs, out.mask)
        for t in range(30):
            seen, allowed = env._obs.copy(), env._mask.copy()
            other = np.arange(32), 1 - env._matches.learner
            chosen = out.mask.argmax(1)[:, None]
            env.step_rows(chosen, out, t)
            expected = policy.act_rows(seen[other], mask=allowed[other])
            np.testing.assert_array_equal(env._joint_actions[other], expected)


def test_drawn_actions_follow_the_policys_distribution(trained):
    """The frequency of each cell in 4,000 first moves equals the softmax of the logits."""
    env = slipstream.make_vec(
        TICTACTOE, 4_000, seed=4, self_play={"opponents": {str(trained.path): 1}}
    )
    env.reset()
    first = env._matches.learner == 1  # the opponent begins
    env._loops[env._actors[0][1]](*env._actors[0][2:], env._joint_actions)
    taken = np.bincount(env._joint_actions[first, 0, 0], minlength=10) / first.sum()
    policy = slipstream.load_policy(trained)
    head = policy.actor(1).head(env._obs[first][:1, 0])[0, 0, :9]
    likely = np.exp(head - head.max())
    np.testing.assert_allclose(taken[:9], likely / likely.sum(), atol=0.04)
    assert taken[9] == 0.0


def test_what_does_not_fit_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match="was trained on tictactoe, but this game is pennies"):
        slipstream.make_vec(PENNIES, 2, self_play={"opponents": {str(trained.path): 1}})
    with pytest.raises(ConfigError, match="is not a run directory"):
        slipstream.make_vec(PENNIES, 2, self_play={"opponents": {str(tmp_path): 1}})
    whole = next(trained.path.glob("checkpoints/step-*"))
    with pytest.raises(ConfigError, match="holds no policy"):
        slipstream.make_vec(TICTACTOE, 2, self_play={"opponents": {str(whole): 1}})


def test_evaluations_can_meet_it(trained):
    environment = make_environment(TICTACTOE, {})
    against = environment.against({str(trained.path): 1.0})
    assert against.spec.players == 1
    from slipstream.training.environments.evaluator import Evaluator

    tracks = Evaluator(against, "train", games=6).run(slipstream.load_policy(trained))[0]
    assert [track.metrics["player"] for track in tracks] == [0, 1, 0, 1, 0, 1]


def network(path, nodes, weights, inputs, outputs, more=()):
    """A file with these nodes (kind, inputs, options), from `x` to the last one's output."""
    onnx = pytest.importorskip("onnx")
    made = []
    at = "x"
    for i, (kind, names, options) in enumerate(nodes):
        made.append(onnx.helper.make_node(kind, [at, *names], [f"y{i}"], **options))
        at = f"y{i}"
    of = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [*made, *more],
        "g",
        [of("x", onnx.TensorProto.FLOAT, [None, inputs])],
        [of(at, onnx.TensorProto.FLOAT, [None, outputs])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, str(path))
    return model


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["Relu", "Tanh"])
def test_an_onnx_file_plays_as_its_own_library_says(tmp_path, activation):
    """Hockey: 18 numbers in, 4 out, a Tanh at the end."""
    path = tmp_path / "other.onnx"
    weights = {"a": numbers(24, 18), "b": numbers(24), "c": numbers(24, 5), "d": numbers(5)}
    weights |= {"e": numbers(5, 4)}
    nodes = [
        ("Gemm", ("a", "b"), {"transB": 1}),
        (activation, (), {}),
        ("MatMul", ("c",), {}),
        ("Add", ("d",), {}),
        (activation, (), {}),
        ("Gemm", ("e",), {}),
        ("Tanh", (), {}),
    ]
    model = network(path, nodes, weights, 18, 4)
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(model)
    env = slipstream.make_vec("hockey", 70, seed=2, self_play={"opponents": {str(path): 1}})
    out = allocate_buffers(env)
    env.reset_rows(out.obs)
    for t in range(5):
        seen = env._obs[np.arange(70), 1 - env._matches.learner]
        env.step_rows(np.zeros((70, 4), np.float32), out, t)
        (expected,) = reference.run(None, {"x": seen})
        acted = env._joint_actions[np.arange(70), 1 - env._matches.learner]
        np.testing.assert_allclose(acted, expected, atol=2e-5)


def test_choices_of_an_onnx_file_are_the_greatest_allowed(tmp_path):
    path = tmp_path / "cells.onnx"
    model = network(path, [("MatMul", ("a",), {})], {"a": numbers(19, 10)}, 19, 10)
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(model)
    env = slipstream.make_vec(TICTACTOE, 20, seed=2, self_play={"opponents": {str(path): 1}})
    out = allocate_buffers(env)
    env.reset_rows(out.obs, out.mask)
    for t in range(4):
        other = np.arange(20), 1 - env._matches.learner
        (values,) = reference.run(None, {"x": env._obs[other]})
        expected = np.where(env._mask[other], values, -np.inf).argmax(1)
        env.step_rows(out.mask.argmax(1)[:, None], out, t)
        np.testing.assert_array_equal(env._joint_actions[other][:, 0], expected)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            [("MatMul", ("wide",), {})],
            "has 20 inputs and 10 outputs, but a player of this game needs 19 and 10",
        ),
        ([("MatMul", ("a",), {}), ("Sigmoid", (), {})], "it has a node Sigmoid"),
        ([("Relu", (), {}), ("MatMul", ("a",), {})], "it has a node Relu"),
        ([("Gemm", ("a",), {"alpha": 2.0})], "it has a node Gemm"),
        ([("Gemm", ("a", "odd"), {})], "its node Gemm has inconsistent sizes"),
        ([("Gemm", ("a", "odd"), {"transB": 1})], "its node Gemm has inconsistent sizes"),
        ([("MatMul", ("a",), {}), ("MatMul", ("s",), {})], "its activations are"),
        ([("MatMul", ("a",), {}), ("Relu", (), {})], "its activations are"),
        ([("Relu", (), {})], "it has a node Relu"),
    ],
)
def test_other_networks_are_refused(tmp_path, nodes, words):
    path = tmp_path / "odd.onnx"
    weights = {"a": numbers(19, 10), "wide": numbers(20, 10), "s": numbers(10, 10)}
    weights["odd"] = numbers(7)
    network(path, nodes, weights, 19, 10)
    with pytest.raises(ConfigError, match=words):
        slipstream.make_vec(TICTACTOE, 2, self_play={"opponents": {str(path): 1}})


def test_a_file_that_is_none_is_refused(tmp_path):
    pytest.importorskip("onnx")
    path = tmp_path / "text.onnx"
    path.write_text("not a network")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        slipstream.make_vec(TICTACTOE, 2, self_play={"opponents": {str(path): 1}})
