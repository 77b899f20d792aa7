"""Malformed configs: every key with values of wrong types and ranges, and text that is no YAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from malformed import Case, writes

from slipstream.training.settings.config import resolve

TRAIN = ("train", "{folder}/mine.yaml", "--no-report", "--total-timesteps", "256")
NUMBERS = ("text", True, {"no": "number"}, [[]], float("nan"), float("inf"), -1e308, 1e308)
OTHERS: dict[type, tuple[Any, ...]] = {
    bool: ("text", 3, {"no": "flag"}, None),
    str: ("no such value", 7, True, ["a"], {"no": "text"}),
    list: ("text", 3.5, {"no": "list"}, [{}], [None]),
    dict: ("text", 3, [1], True),
    type(None): ({"no": "such"}, [[[]]]),
}


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Dotted paths of a nested config, and what stands there."""
    if isinstance(values, dict) and values:
        yield path, values
        for key, below in values.items():
            yield from leaves(below, (*path, key))
    elif path:
        yield path, values


def replaced(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at `path`."""
    key, *rest = path
    below = value if not rest else replaced(values[key], tuple(rest), value)
    return {**values, key: below}


def wrong_values(value: Any) -> tuple[Any, ...]:
    """What can never stand where `value` does."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return NUMBERS
    return OTHERS[type(value)]


def bases(prices: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """What `init` resolves for each environment; markets read tiny planted folders."""
    config = {name: resolve(name) for name in ("cartpole", "pendulum", "gym:CartPole-v1")}
    config["tictactoe"] = resolve("tictactoe", {"env.self_play": {}})
    for name, folder in prices.items():
        config[name] = resolve({"env": {"name": name, "data": {"folder": str(folder)}}})
    return {name: one.as_mapping() for name, one in config.items()}


def values_of_wrong_kind(prices: dict[str, Path]) -> Iterator[Case]:
    for name, base in bases(prices).items():
        for path, value in leaves(base):
            if not path or (path[0] == "training" and path[-1] in ("out", "total_timesteps")):
                continue
            for k, wrong in enumerate(wrong_values(value)):
                text = yaml.safe_dump(replaced(base, path, wrong))
                shown = f"config {name}: {'.'.join(path)} = {str(wrong)[:24]} ({k})"
                yield Case(shown, TRAIN, writes("mine.yaml", text))
            if isinstance(value, dict):
                text = yaml.safe_dump(replaced(base, (*path, "nobody_reads_this"), 1))
                shown = f"config {name}: unknown key in {'.'.join(path)}"
                yield Case(shown, TRAIN, writes("mine.yaml", text))


TEXTS: dict[str, str | bytes] = {
    "empty": "",
    "only a comment": "# nothing\n",
    "a list": "- env\n- agent\n",
    "a scalar": "cartpole\n",
    "a number": "3\n",
    "null": "null\n",
    "two documents": "env: cartpole\n---\nenv: pendulum\n",
    "a tab": "env:\n\tname: cartpole\n",
    "an open brace": "env: {name: cartpole\n",
    "an open quote": 'env: "cartpole\n',
    "a python object": "env: !!python/object/apply:os.system ['true']\n",
    "a python name": "env: !!python/name:os.system\n",
    "an unknown tag": "env: !secret cartpole\n",
    "an alias without anchor": "env: *cartpole\n",
    "a recursive alias": "env: &env\n  name: *env\n",
    "recursion in a list": "agent: {net_arch: &w [*w]}\nenv: cartpole\n",
    "a billion laughs": "".join(
        f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9) if k else 'lol'}]\n" for k in range(12)
    ),
    "deep nesting": "env: " + "[" * 5000 + "]" * 5000 + "\n",
    "deep nesting of mappings": "env: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n",
    "a number of 5,000 digits": f"env: cartpole\ntraining: {{seed: {'9' * 5000}}}\n",
    "a key twice": "env: cartpole\nenv: pendulum\n",
    "a key twice below": "env: cartpole\nagent: {n_epochs: 1, n_epochs: 2}\n",
    "a list as a key": "? [a, b]\n: 1\n",
    "a number as a key": "1: 2\n",
    "null as a key": "env: cartpole\nagent: {null: 1}\n",
    "a date": "env: 2025-01-01\n",
    "a set": "env: !!set {a, b}\n",
    "not UTF-8": b"env: \xff\xfe\xfacartpole\n",
    "UTF-16": "env: cartpole\n".encode("utf-16"),
    "NUL": b"env: cart\x00pole\n",
    "an escape": b"env: \x1b[2Jcartpole\n",
    "random bytes": bytes((k * 7919 + k // 13) % 256 for k in range(4096)),
    "a long word": "env: " + "x" * 200_000 + "\n",
    "an unknown section": "env: cartpole\nagnet: {n_epochs: 1}\n",
    "env is missing": "agent: {n_epochs: 1}\n",
    "env has no name": "env: {gravity: 9.8}\n",
    "a merge of nothing": "env: cartpole\nagent: {<<: 3}\n",
    "lists of unequal lengths": (
        "env: cartpole\nagent: {learning_rate: [0.1, 0.2]}\ntraining: {members: 3}\n"
    ),
}


def texts() -> Iterator[Case]:
    for name, text in TEXTS.items():
        yield Case(f"YAML: {name}", TRAIN, writes("mine.yaml", text))
        if name in ("empty", "a recursive alias", "deep nesting", "not UTF-8"):
            tune = ("tune", "{folder}/mine.yaml", "--n-trials", "1")
            yield Case(f"YAML of a study: {name}", tune, writes("mine.yaml", text))


STUDIES: dict[str, Any] = {
    "not a section": 3,
    "an unknown key": {"n_trails": 3},
    "no trials": {"n_trials": 0},
    "negative trials": {"n_trials": -1},
    "a flag for trials": {"n_trials": True},
    "a space of nobody": {"space": "no_such_space"},
    "a space that is a list": {"space": [1]},
    "an empty space": {"space": {}},
    "a range turned round": {"space": {"agent.learning_rate": {"low": 1.0, "high": 0.1}}},
    "a range without an end": {"space": {"agent.learning_rate": {"low": 1.0}}},
    "a range of text": {"space": {"agent.learning_rate": {"low": "a", "high": "b"}}},
    "a range of nan": {"space": {"agent.learning_rate": {"low": float("nan"), "high": 1.0}}},
    "a log range from zero": {"space": {"agent.learning_rate": {"low": 0, "high": 1, "log": True}}},
    "no choices": {"space": {"agent.net_arch": {"choices": []}}},
    "choices of nonsense": {"space": {"agent.net_arch": {"choices": [[-1], "wide"]}}},
    "choices and a range": {"space": {"agent.n_epochs": {"choices": [1], "low": 1, "high": 2}}},
    "an unknown name": {"space": {"agent.learnign_rate": "default"}},
    "a default without a range": {"space": {"agent.name": "default"}},
    "rungs turned round": {"pruning": {"rungs": [0.6, 0.3]}},
    "a rung beyond the end": {"pruning": {"rungs": [1.5]}},
    "rungs of text": {"pruning": {"rungs": ["a"]}},
    "a start outside the space": {"start_with": [{"agent.learning_rate": 9.0}]},
    "a start of nonsense": {"start_with": {"agent.learning_rate": [1]}},
    "a study of nobody": {"from_study": "../nobody"},
    "a constraint on nothing": {"constraints": {"max_drawdown": 0.2}},
    "constraints in words": {"constraints": {"score": "low"}},
    "an unknown objective": {"objective": "sortino"},
    "an unknown sampler": {"sampler": "cma-es"},
    "a level of 2": {"confirmation": {"error": 2.0}},
    "no seeds": {"confirmation": {"seeds": 0}},
    "no fold seeds": {"fold_seeds": 0},
    "folds of nobody": {"folds": {"method": "shuffle"}},
    "more test groups than groups": {"folds": {"groups": 3, "test_groups": 5}},
    "a hold-out of everything": {"folds": {"holdout": 1.0}},
}


def studies() -> Iterator[Case]:
    for name, section in STUDIES.items():
        text = yaml.safe_dump({"env": "cartpole", "study": section})
        argv = ("tune", "{folder}/mine.yaml", "--total-timesteps", "2048", "--workers", "1")
        small = (
            "--set",
            "study.max_concurrent_trials=2",
            "--study-name",
            "fuzz",
            "--hours",
            "0.001",
        )
        yield Case(f"study: {name}", (*argv, *small), writes("mine.yaml", text))
