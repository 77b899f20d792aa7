"""Malformed curricula, JSON, the hockey project's files, and games that cannot be played."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml
from configs import TRAIN, leaves, replaced, wrong_values
from malformed import Case, writes

_JSON = ("train", "{folder}/mine.json", "--no-report", "--set", "training.total_timesteps=256")

SECTIONS: dict[str, Any] = {
    "a list": [1],
    "a number": 3,
    "phases are text": {"phases": "first"},
    "phases are a mapping": {"phases": {"first": {"steps": 3}}},
    "a phase is a number": {"phases": [3]},
    "an unknown key": {"phases": [{"steps": 3, "episode": 4}]},
    "no end before the last": {"phases": [{}, {"steps": 3}]},
    "two ends": {"phases": [{"steps": 3, "episodes": 4}]},
    "no steps": {"phases": [{"steps": 0}]},
    "a flag for steps": {"phases": [{"steps": True}]},
    "settings are a list": {"phases": [{"env": [1]}]},
    "an unknown setting": {"phases": [{"env": {"gravitas": 3}}]},
    "a setting of a wrong kind": {"phases": [{"env": {"gravity": "heavy"}}]},
    "another environment": {"phases": [{"env": {"name": "pendulum"}}]},
    "annealing of nothing": {"phases": [{"anneal": {"gravity": {}}}]},
    "annealing of text": {"phases": [{"anneal": {"gravity": {"start": "a", "final": 1}}}]},
    "annealing of nan": {"phases": [{"anneal": {"gravity": {"start": float("nan"), "final": 1}}}]},
    "annealing of an unknown number": {"phases": [{"anneal": {"love": {"start": 1, "final": 0}}}]},
    "annealing below a number": {"phases": [{"anneal": {"gravity.x": {"start": 1, "final": 0}}}]},
    "annealing of an empty name": {"phases": [{"anneal": {"": {"start": 1, "final": 0}}}]},
    "annealing backwards": {
        "phases": [{"anneal": {"gravity": {"start": 9, "final": 1, "over": -1}}}]
    },
}

PROJECT: dict[str, Any] = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 3,
                "environment": {"mode": "TRAIN_SHOOTING", "keep_mode": True},
                "opponent": {"type": "basic_weak", "weight": 1.0},
                "reward_shaping": {"N": 1, "K": 1, "TOUCH_START": 1.0},
            }
        ]
    },
    "hyperparameters": {"learning_rate": 0.001, "batch_size": 64},
    "training": {"max_episode_steps": 500, "reward_scale": 0.5, "checkpoint_save_freq": 2},
    "agent": {"type": "PPO", "hyperparameters": {"hidden_sizes": [8]}},
}

TEXTS: dict[str, str] = {
    "empty": "",
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "a comma too many": '{"env": "cartpole",}',
    "a comment": '{"env": "cartpole"} // mine',
    "a key twice": '{"env": "cartpole", "env": "pendulum"}',
    "NaN": '{"env": "cartpole", "agent": {"learning_rate": NaN}}',
    "deep nesting": '{"env": ' + "[" * 5000 + "]" * 5000 + "}",
    "a number of 5,000 digits": '{"env": "cartpole", "training": {"seed": ' + "9" * 5000 + "}}",
    "half of it": '{"env": {"name": "cart',
}


_SEATS = (
    "opponents={week: 1}",
    "opponents={weak: 0}",
    "opponents={weak: -1}",
    "opponents=weak",
    "opponents=[weak]",
    "mode=shooting",
    "mode={normal: 0}",
    "self_play={opponents: {runs/none: 1}}",
    "self_play={opponents: {strong: 1}}",
    "self_play={opponents: {random: 0}}",
    "self_play={evaluation: {none.onnx: 1}}",
    "self_play={slots: 0}",
    "self_play={snapshot_iterations: null}",
    "one={agent: 1, weak: 1}",
)


def curricula() -> Iterator[Case]:
    for name, section in SECTIONS.items():
        text = yaml.safe_dump({"env": "cartpole", "curriculum": section})
        yield Case(f"curriculum: {name}", TRAIN, writes("mine.yaml", text))
    for name, text in TEXTS.items():
        yield Case(f"JSON: {name}", _JSON, writes("mine.json", text))
    for path, value in leaves(PROJECT):
        if not path or path[-1] in ("name", "hyperparameters"):
            continue
        for k, wrong in enumerate(wrong_values(value)):
            values = _with(path, wrong)
            shown = f"hockey project: {'.'.join(path)} = {str(wrong)[:24]} ({k})"
            yield Case(shown, _JSON, writes("mine.json", json.dumps(values)))
    phase = {**PROJECT["curriculum"]["phases"][0], "opponent": {"type": "self_play"}}
    text = json.dumps({**PROJECT, "curriculum": {"phases": [phase]}})
    yield Case("hockey project: opponents of another program", _JSON, writes("mine.json", text))
    for name, argv in {
        "of no run": ("evaluate", "{folder}/none", "--games", "3"),
        "none": ("evaluate", "{folder}/none", "--games", "0"),
        "ranks of bots alone": ("rank", "strong", "weak"),
        "ranks of one": ("rank", "{folder}/none"),
        "films and games": ("evaluate", "{folder}/none", "--video", "a.gif", "--games", "3"),
        **{f"seats: {one}": ("train", "hockey", "--set", f"env.{one}") for one in _SEATS},
        "seats: an image of what has none": (
            *("train", "tictactoe", "--set", "agent.name=dqn", "--set", "agent.reflect=true"),
        ),
    }.items():
        yield Case(f"games: {name}", argv)


def _with(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    return replaced(copy.deepcopy(PROJECT), path, value)
