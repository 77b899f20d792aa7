"""CartPole's kernel stepped through a face, or through slipstream's own interface."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import slipstream
from slipstream.bench.worker import serve
from slipstream.vector.vector_env import blank

_ROWS = 16


def measure(through: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Steps per second with actions drawn beforehand.

    Args:
        through: "arrays", our `step` into the caller's arrays; "values", our `step` that returns
            fresh ones; or a face: "gymnasium", "sb3".
        num_envs: copies.
        seconds: to measure for.
    """
    actions = np.random.default_rng(0).integers(0, 2, (_ROWS, num_envs))
    env: Any
    if through in ("arrays", "values"):
        env = slipstream.make_vec("cartpole", num_envs)
    else:
        env = slipstream.make_face(through, "cartpole", num_envs)
    env.reset()
    rows, out = [one.reshape(num_envs, 1) for one in actions], None
    if through == "arrays":
        out = blank(env)

    def step_all() -> None:
        for t in range(_ROWS):
            if out is None:
                env.step(actions[t])
            else:
                env.step(rows[t], out)
        if out is not None:
            env.drain_finals(), env.drain_episodes()

    step_all()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step_all()
        steps += _ROWS * num_envs
    rate = steps / (time.perf_counter() - began)
    env.close()
    return {"steps_per_second": rate}


if __name__ == "__main__":
    serve(measure)
