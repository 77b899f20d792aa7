"""A member of a study is the same member alone: weights, states and scores, to the bit."""

import json

import numpy as np
import pytest

from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.environments.environment import Environment
from slipstream.training.population.environment_source import batch_shape
from slipstream.training.population.member import Member
from slipstream.training.population.member_state import LiveStates
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard


def scores(outcomes):
    return {one.name: one.backtests.returns.tobytes() for one in outcomes}


def test_alone_or_beside_others(engine, tmp_path):
    members = [engine.member(k) for k in range(8)]
    together, states = engine.train(members, 6, tmp_path / "together")
    for k in (0, 3, 7):
        own, state = engine.train([members[k]], 6, tmp_path / f"alone{k}")
        assert state[members[k].name] == states[members[k].name]
        assert scores(own).items() <= scores(together).items()
    assert len(set(states.values())) == 8


def test_any_mixture_of_iterations(engine, tmp_path):
    members = [engine.member(k, **{"agent.learning_rate_schedule": "linear"}) for k in range(5)]
    _, whole = engine.train(members, 6, tmp_path / "whole")
    pieces = tmp_path / "pieces"
    engine.train(members[:2], [1, 4], pieces)
    first, _ = engine.train([members[4], members[1], members[2]], [2, 5, 1], pieces)
    assert [one.milestone for one in first] == [2, 5, 1]
    assert [one.steps for one in first] == [2 * engine.rows, 5 * engine.rows, engine.rows]
    _, states = engine.train(members, 6, pieces)
    assert states == whole


def test_budgets_of_their_own(engine, tmp_path):
    """A schedule follows the member's budget, whoever is beside it."""
    linear = {"agent.learning_rate_schedule": "linear"}
    short, long = engine.member(0, budget=3, **linear), engine.member(1, budget=30, **linear)
    _, together = engine.train([short, long], 3, tmp_path / "together")
    _, first = engine.train([short], 3, tmp_path / "short")
    _, second = engine.train([long], 3, tmp_path / "long")
    assert together == first | second
    same = Member(long.name, long.config, long.fold, long.test, long.seed, short.budget)
    _, other = engine.train([same], 3, tmp_path / "other")
    assert other[long.name] != second[long.name]


def test_settings_of_their_own(engine, tmp_path):
    """Members of one batch trade at other fees, and episodes may be of other lengths."""
    members = [engine.member(0, fold=0), engine.member(1, fold=0, **{"env.fee": 0.01})]
    source = engine.source()
    assert batch_shape(members[0], source) == batch_shape(members[1], source)
    outcomes, states = engine.train(members, 3, tmp_path / "both", source)
    for k, member in enumerate(members):
        own, state = engine.train([member], 3, tmp_path / f"{k}")
        assert state[member.name] == states[member.name]
        assert np.array_equal(own[0].backtests.returns, outcomes[k].backtests.returns)


@pytest.mark.parametrize("learner", ["compiled", "torch"])
def test_same_as_a_run(engine, tmp_path, learner):
    """The weights of `slipstream train` with the same seed on the same records."""
    chosen = {"training.learner": learner}
    member, other = (engine.member(k, env="cartpole", **chosen) for k in (2, 3))
    live = LiveStates(tmp_path)
    engine.train([member, other], 4, tmp_path)
    state = live.load(member)
    environment = engine.source().environment(member.config)
    assert isinstance(environment, Environment)
    shard = Shard(environment, member.config.agent, [member.seed], range(1), 6, learner=learner)
    shard.reset()
    for k in range(4):
        shard.iterate(k / 6)
    theirs = shard.get_state()
    assert state.tensors.keys() == theirs.keys()
    for name, value in theirs.items():
        assert np.array_equal(state.tensors[name], value, equal_nan=True), name


def test_gradient_parts_as_alone():
    """Nothing of a member's config follows from the number of members."""
    config = resolve(
        "cartpole",
        {"training.num_envs": 64, "agent.n_steps": 64, "agent.batch_size": 1024},
    )
    assert config.agent.join([config.agent] * 3).parts(64) == config.agent.parts(64) == 2


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid:RuntimeWarning")
def test_diverged_member_stops_alone(engine, tmp_path, monkeypatch):
    members = [engine.member(k) for k in range(3)]
    members[1] = engine.member(1, **{"agent.learning_rate": 1.0, "agent.max_grad_norm": None})
    plain = AgentConfig.per_member

    def wild(config, name, count, *default):
        values = plain(config, name, count, *default)
        # No config allows such steps: weights that are no numbers after the first of them.
        return np.where(values == 1.0, 1e30, values) if name == "learning_rate" else values

    monkeypatch.setattr(AgentConfig, "per_member", wild)
    outcomes, states = engine.train(members, 6, tmp_path / "three")
    assert [one.failed for one in outcomes] == [False, True, False]
    assert "NaN" in outcomes[1].reason and outcomes[1].backtests is None
    _, alone = engine.train([members[2]], 6, tmp_path / "alone")
    assert states[members[2].name] == alone[members[2].name]


@pytest.mark.parametrize("until", [3, 6])
def test_scored_again_without_training(engine, tmp_path, until):
    """A milestone that was reached before its outcome was lost; of the last one, what acts."""
    members = [engine.member(k) for k in range(2)]
    first, states = engine.train(members, until, tmp_path)
    names = LiveStates(tmp_path).load(members[0]).tensors.keys()
    assert any("moment" in name or name.startswith("env.") for name in names) == (until < 6)
    second, same = engine.train(members, until, tmp_path)
    assert scores(first) == scores(second) and states == same
    assert second[0].seconds["update"] == 0.0 < second[0].seconds["evaluate"]


@pytest.mark.parametrize("how", ["cut", "flip", "empty"])
def test_damaged_state_is_trained_again(engine, tmp_path, how):
    member = engine.member(0)
    _, whole = engine.train([member], 4, tmp_path)
    engine.train([member], 2, tmp_path / "x")
    path = next((tmp_path / "x").glob("*.state"))
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[-3] ^= 1
    path.write_bytes({"cut": bytes(content[:-9]), "flip": bytes(content), "empty": b""}[how])
    _, again = engine.train([member], 4, tmp_path / "x")
    assert again == whole


def test_state_of_another_config_is_not_used(engine, tmp_path):
    member = engine.member(0)
    engine.train([member], 2, tmp_path)
    other = engine.member(0, **{"agent.ent_coef": 0.01})
    outcomes, states = engine.train([other], 2, tmp_path)
    assert outcomes[0].seconds["update"] > 0.0
    assert states == engine.train([other], 2, tmp_path / "fresh")[1]


def test_further_than_asked_begins_again(engine, tmp_path):
    member = engine.member(0)
    engine.train([member], 5, tmp_path)
    outcomes, states = engine.train([member], 2, tmp_path)
    assert outcomes[0].steps == 2 * engine.rows
    assert states == engine.train([member], 2, tmp_path / "fresh")[1]


def test_policy_at_the_end_of_the_budget(engine, tmp_path):
    member = engine.member(0)
    live = LiveStates(tmp_path)
    engine.train([member], 5, tmp_path)
    assert live.policy(member.name) is None
    engine.train([member], 6, tmp_path)
    tensors, manifest = live.policy(member.name)
    policy = unpack(tensors, manifest)
    assert policy.act_rows(np.zeros((1, 3), np.float32)).shape == (1, 1)
    assert json.dumps(manifest)


def test_policies_take_their_own_conditions_along(engine, tmp_path):
    """Also of members that were trained side by side under different settings."""
    members = [engine.member(k, budget=1, **{"env.fee": 0.01 * k}) for k in range(3)]
    engine.train(members, 1, tmp_path)
    for k, member in enumerate(members):
        training_context = LiveStates(tmp_path).policy(member.name)[1]["training_context"]
        assert training_context["settings"]["fee"] == 0.01 * k
        assert training_context["bar_seconds"] == 21_600


@pytest.mark.slow
def test_foreign_environments(engine, tmp_path):
    """They stand where they stood at a milestone: their actions are taken again."""
    env = "gym:CartPole-v1"
    settings = {"env": env, "budget": 4, "evaluation.episodes": 3}
    members = [engine.member(k, **settings) for k in range(2)]
    engine.train(members, 2, tmp_path / "a")
    _, both = engine.train(members, 4, tmp_path / "a")
    for member in members:
        engine.train([member], 2, tmp_path / "b")
        _, alone = engine.train([member], 4, tmp_path / "b")
        assert alone[member.name] == both[member.name]
