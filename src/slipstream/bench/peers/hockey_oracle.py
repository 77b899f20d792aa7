"""Two bots on the package box2d, driven by the clean oracle of the tests: one game, one process."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.bench.worker import serve

_TESTS = Path(__file__).parents[4] / "tests" / "envs"


def measure(seconds: float) -> dict[str, float]:
    """Steps per second, resets included, bots in NumPy as the tests have them."""
    oracle, world = tests_module("hockey_oracle"), tests_module("hockey_world")
    game, seed = oracle.Hockey(), 0
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        game.reset(bool(seed % 2), seed)
        player = world.Play("bots", seed, True)
        while not game.done:
            game.step(player.act(game))
            steps += 1
        seed += 1
    return {"steps_per_second": steps / (time.perf_counter() - began)}


def tests_module(name: str) -> Any:
    """A file of the tests, which are not installed: the case runs in a checkout."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, _TESTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    serve(measure)
