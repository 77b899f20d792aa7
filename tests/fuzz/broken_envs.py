"""Gymnasium environments that break the interface in one way each; registered when imported."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Sound(gymnasium.Env[Any, Any]):
    """What the others break: two numbers seen, two actions, ten steps."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 10
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


def raises(kind: type[BaseException] = ValueError) -> Callable[..., Any]:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        raise kind("broken on purpose")

    return method


def ends(how: Callable[[], Any]) -> Callable[..., Any]:
    """Ends its process, or never comes back."""

    def method(self: Any, *_: Any, **__: Any) -> Any:
        how()

    return method


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def gives(value: Any) -> Callable[..., Any]:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        return value

    return method


def late(value: Callable[..., Any]) -> Callable[..., Any]:
    """Breaks at the sixth step only."""

    def method(self: Any, action: Any) -> Any:
        sound = Sound.step(self, action)
        return value(self, action) if self.left == 4 else sound

    return method


def step(*, obs: Any = None, reward: Any = 1.0, terminated: Any = False, truncated: Any = False,
         info: Any = None) -> Any:  # fmt: skip
    seen = np.zeros(2, np.float32) if obs is None else obs
    return gives((seen, reward, terminated, truncated, {} if info is None else info))


def huge(shape: tuple[int, ...], dtype: Any) -> Any:
    """A space that is made with the environment, and whose bounds alone would fill the memory."""

    def method(self: Any) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)

    return method


def recursive(self: Any) -> None:
    self.observation_space = spaces.Dict({"a": spaces.Discrete(2)})
    self.observation_space.spaces["again"] = self.observation_space


def nan_bounds(name: str) -> Callable[..., Any]:
    def method(self: Any) -> None:
        space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        space.low = np.full(2, np.nan, np.float32)
        setattr(self, name, space)

    return method


BOX = spaces.Box
BROKEN: dict[str, dict[str, Any]] = {
    "InitRaises": {"__init__": raises()},
    "InitExits": {"__init__": raises(SystemExit)},
    "ResetRaises": {"reset": raises()},
    "ResetExits": {"reset": raises(SystemExit)},
    "ResetNone": {"reset": gives(None)},
    "ResetNoInfo": {"reset": gives(np.zeros(2, np.float32))},
    "ResetText": {"reset": gives(("text", {}))},
    "ResetShape": {"reset": gives((np.zeros(3, np.float32), {}))},
    "ResetScalar": {"reset": gives((0.0, {}))},
    "ResetNan": {"reset": gives((np.full(2, np.nan, np.float32), {}))},
    "ResetOld": {"reset": lambda self: np.zeros(2, np.float32)},
    "StepRaises": {"step": raises()},
    "StepExits": {"step": raises(SystemExit)},
    "StepNone": {"step": gives(None)},
    "StepEndsItsProcess": {"step": ends(partial(os._exit, 0))},
    "StepCrashes": {"step": ends(lambda: ctypes.string_at(0))},
    "StepHangs": {"step": ends(partial(time.sleep, 1000.0))},
    "StepMute": {"step": raises(MuteError)},
    "StepCancelled": {"step": raises(asyncio.CancelledError)},
    "ResetEndsItsProcess": {"reset": ends(partial(os._exit, 0))},
    "ResetCancelled": {"reset": raises(asyncio.CancelledError)},
    "InitMute": {"__init__": raises(MuteError)},
    "InitCancelled": {"__init__": raises(asyncio.CancelledError)},
    "RecursiveSpace": {"__init__": recursive},
    "NanBounds": {"__init__": nan_bounds("observation_space")},
    "NanActions": {"__init__": nan_bounds("action_space")},
    "StepFour": {"step": gives((np.zeros(2, np.float32), 1.0, False, {}))},
    "StepText": {"step": step(obs="text")},
    "StepShape": {"step": step(obs=np.zeros(5, np.float32))},
    "StepScalar": {"step": step(obs=0.5)},
    "StepNan": {"step": step(obs=np.full(2, np.nan, np.float32))},
    "StepObjects": {"step": step(obs=np.array([None, None]))},
    "RewardNan": {"step": step(reward=float("nan"))},
    "RewardInf": {"step": step(reward=float("inf"))},
    "RewardText": {"step": step(reward="much")},
    "RewardArray": {"step": step(reward=np.zeros(3))},
    "RewardNone": {"step": step(reward=None)},
    "TerminatedText": {"step": step(terminated="no")},
    "TerminatedArray": {"step": step(terminated=np.zeros(2, bool))},
    "TruncatedNone": {"step": step(truncated=None)},
    "LateRaises": {"step": late(raises())},
    "LateExits": {"step": late(raises(SystemExit))},
    "LateNan": {"step": late(step(obs=np.full(2, np.nan, np.float32)))},
    "LateShape": {"step": late(step(obs=np.zeros(7, np.float32)))},
    "NoObservationSpace": {"observation_space": None},
    "NoActionSpace": {"action_space": None},
    "TextSpace": {"observation_space": spaces.Text(5)},
    "HugeSpace": {"__init__": huge((3 * 10**9,), np.float32)},
    "HugeImage": {"__init__": huge((60_000, 60_000, 3), np.uint8)},
    "SequenceSpace": {"observation_space": spaces.Sequence(BOX(0.0, 1.0))},
    "TextActions": {"action_space": spaces.Text(5)},
    "DictActions": {"action_space": spaces.Dict({"a": spaces.Discrete(2)})},
    "EndlessActions": {"action_space": BOX(-np.inf, np.inf, (1,), np.float32)},
    "ManyActions": {"action_space": spaces.Discrete(3 * 10**9)},
}

for _name, _broken in BROKEN.items():
    gymnasium.register(
        id=f"{_name}-v0",
        entry_point=type(_name, (Sound,), _broken),
        disable_env_checker=True,
        order_enforce=False,
    )
gymnasium.register(id="Sound-v0", entry_point=Sound)
