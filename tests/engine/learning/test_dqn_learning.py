"""DQN: values that are known, and CartPole to its threshold."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream
from slipstream.kernels.classic import cartpole
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.shard import Shard

PROBE = {
    "net_arch": (16, 16),
    "batch_size": 32,
    "buffer_size": 2_000,
    "learning_starts": 100,
    "utd_ratio": 1.0,
    "learning_rate": 3e-3,
    "learning_rate_schedule": "linear",
    "target_update_interval": 20,
    "gamma": 0.9,
    "exploration_final_eps": 0.5,
    "exploration_steps": 0,
    "iteration": 64,
    "observation_normalization": False,
}
FORMS = {
    "single": {"double": False},
    "double": {},
    "dueling": {"dueling": True},
    "three steps": {"n_step": 3, "prioritised": True},
    "soft target": {"tau": 0.05, "target_update_interval": 1},
}


def _values(probe, seen, max_steps=8, iterations=24, **settings):
    """Q of both choices for observations `seen` [n, 3]: [2 members, n, 2]."""
    environment = resolve_environment("probes", {"probe": probe, "max_steps": max_steps})
    config = DQNConfig(**{**PROBE, **settings})
    shard = Shard(environment, config, [3, 4], range(2), 4)
    shard.reset()
    for i in range(iterations):
        shard.iterate(i / iterations)
    rows = np.array([seen, seen], np.float32).reshape(-1, 3)
    outputs = shard.agent.policy.actor(len(seen)).head(rows)[:, : len(seen)].astype(float)
    values = outputs[..., :2]
    if config.dueling:
        values = outputs[..., 2:3] + values - values.mean(-1, keepdims=True)
    return values


@pytest.mark.parametrize("form", FORMS)
def test_probes_have_their_known_values(form):
    settings = FORMS[form]
    # A termination is worth nothing; what comes a step later is discounted.
    best = _values("delayed", [[1, 0, 0], [0, 0, 0]], **settings).max(-1)
    np.testing.assert_allclose(best, [[1.0, 0.9]] * 2, atol=0.05)
    matched = _values("matched", [[1, 1, -1], [-1, 1, -1]], **settings)
    np.testing.assert_allclose(matched, [[[-1.0, 1.0], [1.0, -1.0]]] * 2, atol=0.1)


@pytest.mark.parametrize("max_steps", [1, 8])
@pytest.mark.parametrize("form", ["double", "three steps"])
def test_a_time_limit_is_no_end(max_steps, form):
    # Reward 1 a step for ever: 1 / (1 - 0.9) = 10.
    values = _values("endless", [[0, 0, 0]], max_steps, 60, **FORMS[form])
    np.testing.assert_allclose(values.max(-1), 10.0, rtol=0.03)


def test_cartpole_is_solved():
    settings = cartpole.DEFAULT_HYPERPARAMS["dqn"]["agent"]
    config = DQNConfig(**settings)
    shard = Shard(resolve_environment("cartpole", {}), config, [1], range(1), 1)
    shard.reset()
    budget, best = 50_000, 0.0
    for steps in range(0, budget, config.iteration_steps(1)):
        shard.iterate(steps / budget)
        if steps // 5_000 != (steps + config.iteration_steps(1)) // 5_000:
            best = max(best, shard.evaluate("train", 20, 7).mean())
            if best >= 475 and shard.evaluate("train", 100, 8).mean() >= 475:
                return
    raise AssertionError(f"the best validation is {best}")


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"agent.dueling": True}], ids=["double", "dueling"])
def test_cartpole_is_solved_by_five_seeds(tmp_path, own):
    run = slipstream.train(
        "cartpole",
        # By default two episodes choose a policy, by which three of 20 seeds fall short.
        overrides={
            "agent.name": "dqn",
            "evaluation.every": 0.05,
            "evaluation.episodes": 20,
            **own,
        },
        members=5,
        out=tmp_path / "run",
        report=False,
        log=lambda _: None,
    )
    # of the policies that validation chose, on 100 episodes that chose nothing
    assert [m["test_score"] >= 475 for m in run.result["members"]] == [True] * 5
