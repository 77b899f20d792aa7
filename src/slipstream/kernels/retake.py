"""Actions that were decided before, taken again without a step of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.jit import render
from slipstream.kernels.copies import KernelVectorEnv
from slipstream.kernels.loop import FAULT, HOLD
from slipstream.kernels.vector_env import StepOut

# Bound by the renderer.
advance: Any = None  # of the kernel's batch loop

_CHUNK = 4_096  # steps whose records are in memory at once


def retake(e: int, actions: Any, kept: Any, batch: Any, out: Any) -> int:
    """Steps copy e through actions [n, K] until its episode ends; how many it took.

    Args:
        kept: uint64 [n, words], the copy's record after each step.
        batch, out: see `loop.py`.
    """
    book, counts, words, sent = batch[3], batch[7], batch[8], out[0]
    for t in range(len(actions)):
        if book[e].held != 0:
            return t
        for k in range(actions.shape[1]):
            sent[e, k] = actions[t, k]
        advance(e, e + 1, t, HOLD, batch, out)
        if counts[FAULT] != 0:
            return t + 1
        for k in range(words.shape[1]):
            kept[t, k] = words[e, k]
    return len(actions)


class Retaking:
    """Takes known actions through copies that hold where an episode ends (`at_end=HOLD`).

    Args:
        env: the copies.

    Attributes:
        out: what each copy shows after the actions that it took here.
    """

    def __init__(self, env: KernelVectorEnv) -> None:
        self._env = env
        _, out = env.arguments()
        self._out = out
        _, obs, reward, terminated, truncated = out[:5]
        valid, mask = np.ones(env.num_envs, np.bool_), out[5] if len(out) > 5 else None
        self.out = StepOut(obs, reward, terminated, truncated, valid, mask)
        constants = {"Any": Any, "HOLD": HOLD, "FAULT": FAULT}
        text, advance = render.source_of([retake]), env.loop.advance
        if env.backend == "serial":
            self._retake = render.interpret(text, {}, {**constants, "advance": advance}).retake
            return
        shown = (0, out[0], np.zeros((0, len(env.before)), np.uint64), env.batch, out)
        made = render.compile_module(
            *(f"{env.kernel.name}_retake", text, {"retake": shown}, {}, constants),
            linked={"advance": advance},
        )
        self._retake = made["retake"]

    def run(self, e: int, actions: NDArray[Any], names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Takes actions [n, K] through copy e, which has begun; fields of its record by name, [n].

        Fewer where its episode ends before.

        Raises:
            KernelError: a number that nobody can train on.
        """
        env, found = self._env, list[NDArray[Any]]()
        for begin in range(0, max(len(actions), 1), _CHUNK):
            part = np.ascontiguousarray(actions[begin : begin + _CHUNK])
            kept = np.zeros((len(part), len(env.before)), np.uint64)
            with np.errstate(over="ignore", invalid="ignore"):  # 64-bit words wrap round
                taken = self._retake(e, part, kept, env.batch, self._out)
            env.check(self._out[0], begin + taken - 1)
            found.append(kept.view(env.kernel.STATE).reshape(-1)[:taken][list(names)].copy())
        return {name: np.concatenate([one[name] for one in found]) for name in names}
