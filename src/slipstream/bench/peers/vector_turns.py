"""Vector layers in one process, ours among them, stepped in turn for a moment each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slipstream.bench.ours.vector_layer import made as made_by_us
from slipstream.bench.peers.vector_layers import made as made_by_peer
from slipstream.bench.worker import serve
from slipstream.vector.vector_env import blank

OURS = ("serial", "process", "auto")
Step = Callable[[list[Any]], None]


def stepper(
    system: str, env: str, rounds: int, num_envs: int, steps: int, workers: int | None
) -> tuple[Step, Any]:
    """What takes so many steps of every copy of a system, and what closes them.

    It is handed a list. Gymnasium's environments spend the step after an end on a reset; the flags
    of each of their steps go there, so that only transitions are counted.

    Args:
        system: a backend of ours, or a kind of `vector_layers.py`.
        env, rounds: see `maker`.
        num_envs: copies.
        steps: of each in one call.
        workers: of ours.
    """
    actions = np.random.default_rng(0).integers(0, 2, (steps, num_envs))
    if system not in OURS:
        theirs = made_by_peer(system, env, rounds, num_envs)
        theirs.reset()

        next_step = system.startswith("gym")

        def step_theirs(flags: list[Any]) -> None:
            for t in range(steps):
                came = theirs.step(actions[t])
                if next_step:
                    flags.append(came[2:4])

        return step_theirs, theirs
    ours = made_by_us(env, rounds, num_envs, system, workers)
    out, rows = blank(ours), actions[..., None]
    ours.reset(out.obs)

    def step_ours(flags: list[Any]) -> None:
        for t in range(steps):
            ours.step(rows[t], out)
        ours.drain_finals(), ours.drain_episodes()

    return step_ours, ours


def measure(
    systems: Sequence[str],
    env: str,
    num_envs: int,
    seconds: float,
    turns: int,
    rounds: int = 0,
    steps: int = 16,
    workers: int | None = None,
) -> dict[str, list[float] | None]:
    """Steps per second by system, one figure a turn; None for a system that is not installed.

    Args:
        systems: in the order of a turn, which is reversed in every second one.
        env, rounds, num_envs, steps, workers: as for `stepper`.
        seconds: of each system in each turn, at least one call.
        turns: of all systems.
    """
    opened: dict[str, tuple[Step, Any]] = {}
    rates: dict[str, list[float] | None] = {system: [] for system in systems}
    try:
        for system in systems:
            try:
                opened[system] = stepper(system, env, rounds, num_envs, steps, workers)
                opened[system][0]([])
            except ImportError:
                rates[system] = None
        for turn in range(turns):
            for system in list(opened)[:: -1 if turn % 2 else 1]:
                own = rates[system]
                assert own is not None
                own.append(_rate(opened[system][0], num_envs * steps, seconds))
    finally:
        for _, copies in opened.values():
            copies.close()
    return rates


def _rate(step: Step, made: int, seconds: float) -> float:
    """Transitions per second of a call that takes so many steps, repeated for so long."""
    flags: list[Any] = []
    calls, spent, began = 0, 0.0, time.perf_counter()
    while spent < seconds:
        step(flags)
        calls += 1
        spent = time.perf_counter() - began
    resets = sum(int(np.count_nonzero(over | cut)) for over, cut in flags)
    return (calls * made - resets) / spent


def answer(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`measure` of each cell, one after another."""
    return {"cells": [measure(**cell) for cell in cells]}


if __name__ == "__main__":
    serve(answer)
