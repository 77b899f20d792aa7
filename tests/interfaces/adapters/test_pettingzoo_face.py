"""Kernels with several players as PettingZoo's parallel environment."""

import copy

import gymnasium
import numpy as np
import pytest

pytest.importorskip("pettingzoo", reason="pip install pettingzoo")

from pettingzoo.test import parallel_api_test, parallel_seed_test

from slipstream.adapters.batch import ActionError, ResetNeededError
from slipstream.adapters.pettingzoo import ParallelAdapter, make_vec
from slipstream.core.errors import ConfigError

pytestmark = pytest.mark.peers


def test_their_checks_pass(kernel_file):
    parallel_api_test(ParallelAdapter("hockey", backend="serial"), num_cycles=50)
    parallel_api_test(ParallelAdapter(kernel_file("duel"), backend="serial"), num_cycles=50)
    parallel_api_test(ParallelAdapter("tictactoe", backend="serial"), num_cycles=50)
    parallel_api_test(make_vec("cartpole", backend="serial"), num_cycles=50)
    parallel_api_test(make_vec("gym:Blackjack-v1", backend="serial"), num_cycles=50)


def test_the_same_seed_is_the_same_game(kernel_file):
    """PettingZoo's own test samples actions without looking at masks: a game without one."""
    parallel_seed_test(
        lambda: ParallelAdapter("hockey", backend="serial", mode="train_defense"), num_cycles=20
    )


@pytest.mark.parametrize("backend", ["serial", "compiled"])
def test_a_deep_copy_goes_on_by_itself(backend, same_spaces):
    env = ParallelAdapter("tictactoe", backend=backend)
    obs, _ = env.reset(seed=1)

    def move(face, obs):
        return face.step({a: int(o["action_mask"].argmax()) for a, o in obs.items()})

    obs = move(env, obs)[0]
    other = copy.deepcopy(env)
    seen = move(other, obs)
    again = move(other, seen[0])
    assert same_spaces(move(env, obs), seen)  # it stands where it stood
    assert same_spaces(move(env, seen[0]), again)


def test_players_end_together_and_see_masks_and_metrics(kernel_file):
    env = ParallelAdapter(kernel_file("duel"), backend="serial", max_steps=1)
    with pytest.raises(ResetNeededError, match="no episode is running"):
        env.step({})
    obs, infos = env.reset(seed=1)
    assert list(obs) == env.agents == ["player_0", "player_1"]
    masks = {agent: info["action_mask"] for agent, info in infos.items()}
    assert all(np.array_equal(obs[agent]["action_mask"], mask) for agent, mask in masks.items())
    assert all(env.observation_space(agent).contains(own) for agent, own in obs.items())
    assert all(mask.dtype == np.int8 and mask.sum() == 3 for mask in masks.values())
    actions = {agent: int(mask.argmax()) for agent, mask in masks.items()}
    _, rewards, terminations, truncations, infos = env.step(actions)
    assert rewards["player_0"] == -rewards["player_1"]
    assert truncations == {"player_0": True, "player_1": True} and not any(terminations.values())
    assert infos["player_0"]["metrics"] == {"total": abs(rewards["player_0"])}
    assert env.agents == []


def test_one_player_is_one_agent(same_spaces):
    env = make_vec("gym:CartPole-v1", backend="serial", kwargs={"max_episode_steps": 2})
    single = gymnasium.make("CartPole-v1")
    obs, infos = env.reset(seed=4)
    assert env.possible_agents == ["player_0"] and infos == {"player_0": {}}
    assert same_spaces(obs["player_0"], single.reset(seed=4)[0])
    assert same_spaces(env.step({"player_0": 1})[0]["player_0"], single.step(1)[0])
    *_, truncations, _ = env.step({"player_0": 1})
    assert truncations == {"player_0": True} and env.agents == []


def test_wrong_use_is_named(kernel_file):
    env = make_vec(kernel_file("duel"), backend="serial")
    env.reset(seed=1)
    with pytest.raises(ActionError, match=r"one action for each of \['player_0', 'player_1'\]"):
        env.step({"player_0": 0})
    with pytest.raises(ActionError, match="no integer from 0 to 3"):
        env.step({"player_0": 9, "player_1": 0})
    with pytest.raises(ConfigError, match="supports one environment"):
        make_vec(kernel_file("duel"), 2)
