"""JSON of the hockey project as it is: what becomes of each key, and what is refused."""

import copy
import json

import pytest

from slipstream.core.errors import ConfigError
from slipstream.training.record import json_file
from slipstream.training.settings.hockey_project import is_hockey_project, sections_of
from slipstream.training.settings.target import read_config

# Its `curriculum_simple`, with the shaping of an earlier version in the first phase.
SIMPLE = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 8000,
                "environment": {"mode": "TRAIN_SHOOTING", "keep_mode": True},
                "opponent": {"type": "none", "weight": 1.0},
                "reward_shaping": {
                    "N": 600,
                    "K": 400,
                    "CLOSENESS_START": 20.0,
                    "TOUCH_START": 15.0,
                    "CLOSENESS_FINAL": 1.5,
                    "TOUCH_FINAL": 1.0,
                    "DIRECTION_FINAL": 2.0,
                },
            },
            {
                "name": "defense",
                "episodes": 8000,
                "environment": {"mode": "TRAIN_DEFENSE", "keep_mode": True},
                "opponent": {"type": "basic_weak"},
                "reward_shaping": None,
            },
            {
                "name": "mixed",
                "episodes": 15000,
                "environment": {
                    "mixture": [
                        {"mode": "NORMAL", "weight": 0.9},
                        {"mode": "TRAIN_DEFENSE", "weight": 0.1},
                    ]
                },
                "opponent": {
                    "type": "weighted_mixture",
                    "opponents": [
                        {"type": "basic_weak", "weight": 0.8},
                        {"type": "basic_strong", "weight": 0.2},
                    ],
                },
            },
            {
                "name": "strong",
                "episodes": 40000,
                "environment": {"mode": "NORMAL"},
                "opponent": {"type": "basic_strong"},
            },
        ]
    },
    "hyperparameters": {"learning_rate": 5e-4, "batch_size": 512},
    "training": {
        "max_episode_steps": 500,
        "updates_per_step": 1,
        "warmup_steps": 80000,
        "reward_scale": 0.5,
        "checkpoint_save_freq": 7100,
    },
    "agent": {
        "type": "DDDQN",
        "hyperparameters": {
            "hidden_dim": [256, 512, 256],
            "target_update": 2000,
            "eps": 1.0,
            "eps_min": 0.1,
            "eps_decay": 0.9995,
            "action_fineness": 3,
        },
    },
}


def changed(path, value):
    values = copy.deepcopy(SIMPLE)
    at = values
    *before, last = path
    for key in before:
        at = at[key]
    at[last] = value
    return values


def test_every_key_has_its_place(tmp_path):
    file = tmp_path / "curriculum_simple.json"
    file.write_text(json.dumps(SIMPLE))
    sections = read_config(file)
    assert sections["env"] == {
        "name": "hockey",
        "keep": True,
        "action_fineness": 3,
        "opponents": {"weak": 1.0},
    }
    agent = sections["agent"]
    assert agent["name"] == "dqn" and agent["dueling"] and agent["double"]
    assert (agent["learning_rate"], agent["batch"], agent["widths"]) == (5e-4, 512, [256, 512, 256])
    assert (agent["learning_starts"], agent["updates_per_step"]) == (80_000, 1.0)
    assert (agent["target_every"], agent["max_grad_norm"]) == (2000, 1.0)
    # 0.9995 ** 4604 < 0.1: so many games of 81 steps
    assert agent["exploration_steps"] == 4605 * 81 and agent["exploration_final"] == 0.1
    most = 8000 * 81 + 8000 * 81 + 15000 * 251 + 40000 * 251
    most += 5 * 1024 * 251  # games that are under way where a phase changes
    assert sections["training"] == {"total_steps": most, "checkpoint_every": 0.1}
    first, second, third, fourth = sections["curriculum"]["phases"]
    assert first["env"] == {
        "mode": {"train_shooting": 1.0},
        "opponents": {"idle": 1.0},
        "reward": {"scale": 0.5},
    }
    assert first["anneal"] == {
        "reward.closeness": {"start": 20.0, "final": 1.5, "hold": 600, "over": 400},
        "reward.touch": {"start": 15.0, "final": 1.0, "hold": 600, "over": 400},
        "reward.direction": {"start": 0.0, "final": 2.0, "hold": 600, "over": 400},
    }
    assert (second["env"]["opponents"], second["anneal"]) == ({"weak": 1.0}, {})
    assert third["env"]["mode"] == {"normal": 0.9, "train_defense": 0.1}
    assert third["env"]["opponents"] == {"weak": 0.8, "strong": 0.2}
    assert fourth["episodes"] == 40000 and fourth["env"]["opponents"] == {"strong": 1.0}


def test_other_agents():
    sac = changed(("agent",), {"type": "SAC", "hyperparameters": {"tau": 0.005, "gamma": 0.98}})
    sections = sections_of(sac)
    assert sections["agent"]["name"] == "sac" and sections["agent"]["target_rate"] == 0.005
    assert sections["env"]["action_fineness"] == 0 and sections["agent"]["discount"] == 0.98
    assert sections_of(changed(("agent",), {"type": "PPO"}))["agent"]["minibatch"] == 512
    slow = changed(("training", "train_freq"), 4)
    assert sections_of(slow)["agent"]["updates_per_step"] == 0.25


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("surprise",), 1, "surprise"),
        (("training", "warmup"), 1, "warmup"),
        (("curriculum", "phases"), [], "no phase"),
        (("curriculum", "phases", 0, "environment", "mode"), "SHOOTING", "mode"),
        (("curriculum", "phases", 0, "environment", "keep_mode"), False, "keep_mode"),
        (("curriculum", "phases", 0, "environment"), {}, "mixture"),
        (("curriculum", "phases", 3, "opponent", "type"), "self_play", "self_play"),
        (("curriculum", "phases", 3, "opponent", "type"), "clever", "type"),
        (("training", "max_episode_steps"), 100, "251"),
        (("agent", "type"), "TD3", "type"),
        (("agent", "checkpoint_path"), "old.pt", "checkpoint_path"),
        (("agent", "hyperparameters", "momentum"), 0.9, "momentum"),
        (("agent", "hyperparameters", "eps_decay"), 1.5, "eps_decay"),
    ],
)
def test_what_nobody_reads_is_refused(path, value, match):
    assert is_hockey_project(SIMPLE)
    with pytest.raises(ConfigError, match=match):
        sections_of(changed(path, value))


def test_json_is_read_strictly(tmp_path):
    assert json_file.parse('{"a": [1, 2.5e-4]}', "x") == {"a": [1, 2.5e-4]}
    for text, match in (
        ('{"a": 1, "a": 2}', "twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1,}', "line 1"),
        ("[" * 100_000, "cannot|can be used|JSON"),
    ):
        with pytest.raises(ConfigError, match=match):
            json_file.parse(text, "x")
    ours = tmp_path / "ours.json"
    ours.write_text('{"env": {"name": "cartpole"}, "training": {"total_steps": 1000}}')
    assert read_config(ours)["training"] == {"total_steps": 1000}
