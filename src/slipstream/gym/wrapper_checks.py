"""Checks of what cannot be trained on as it is: moving statistics, pictures beside numbers."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from slipstream.core.errors import ConfigError
from slipstream.gym.action_masks import get_mask_method, has_discrete_actions, observation_has_mask
from slipstream.gym.env_factory import Wrappers, call_in_fork
from slipstream.kernels.space_codec import is_image, is_large

# Flags that end the updates of a wrapper's statistics: Gymnasium's and SB3's.
_FROZEN = ("update_running_mean", "training")
_NAMES = re.compile(r"_rms$|^rms$|^running_(mean|std|var)|_running_(mean|std|var)$")
_CLASSES = re.compile(r"running_?(mean|std|stat|var|norm)", re.IGNORECASE)
_MAX_SUB_ENVS = 64  # sub-environments whose wrappers are looked through


def check_trainable(env: Any, name: str) -> None:
    """Refuse an environment on which a saved policy would not score what was reported.

    Args:
        env: a Gymnasium environment, or a vector environment of any library.
        name: of it, for messages.

    Raises:
        ConfigError: a wrapper normalises by running statistics, or an image is part of a Dict or
            a Tuple.
    """
    for wrapper in _wrappers(env):
        flag = next((key for key in _FROZEN if hasattr(wrapper, key)), None)
        if _has_running_statistics(wrapper) and (flag is None or getattr(wrapper, flag)):
            raise _moving(type(wrapper).__name__, name, flag or "")
    _check_elsewhere(getattr(env, "unwrapped", env), name)
    _refuse_images(getattr(env, "single_observation_space", None) or env.observation_space, name)


def _moving(wrapper: str, name: str, flag: str) -> ConfigError:
    freeze = f" Or load finished statistics and set its `{flag}` to False." if flag else ""
    return ConfigError(
        f"{name}: the wrapper `{wrapper}` normalises by statistics that change while it is "
        "stepped. Evaluations make sub-environments with statistics of their own, and a saved "
        "policy has none, so that scores would not hold. Take it out and use "
        "`agent.observation_normalization: true` for observations and `agent.reward_scaling: on` "
        f"for rewards: both travel inside the policy.{freeze}"
    )


def _wrappers(env: Any) -> Iterator[Any]:
    """Every wrapper from the outside in, those of a vector environment's own envs included."""
    while env is not None:
        inner = vars(env).get("env", vars(env).get("venv")) if hasattr(env, "__dict__") else None
        if inner is not None:
            yield env
        for one in _copies(env):
            yield from _wrappers(one)
        env = inner


def _copies(env: Any) -> list[Any]:
    """Sub-environments of a vector environment that steps them in this process."""
    found = vars(env).get("envs") if hasattr(env, "__dict__") else None
    return list(found)[:_MAX_SUB_ENVS] if isinstance(found, (list, tuple)) else []


def _check_elsewhere(env: Any, name: str) -> None:
    """Check sub-environments that other processes step: Gymnasium's by a further one made here."""
    if isinstance(env, gymnasium.vector.AsyncVectorEnv):
        made = env.env_fns[0]()
        try:
            check_trainable(made, name)
        finally:
            made.close()
    elif hasattr(env, "remotes") and hasattr(env, "env_is_wrapped"):  # SB3's SubprocVecEnv
        for kind in (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward):
            if any(env.env_is_wrapped(kind)):
                raise _moving(kind.__name__, name, "")


def _has_running_statistics(wrapper: Any) -> bool:
    """Return true if a wrapper keeps a running mean or deviation, itself or in an attribute."""
    known = vars(wrapper)
    if {"mean", "var", "count"} <= known.keys() or any(map(_NAMES.search, known)):
        return True
    values = (value for key, value in known.items() if key not in ("env", "venv", "unwrapped"))
    return any(map(_is_running, values))


def _is_running(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_running, value.values()))
    if _CLASSES.search(type(value).__name__):
        return True
    names = getattr(value, "__dict__", {}).keys()
    return bool({"mean", "count"} <= names and names & {"var", "std", "m2", "M2"})


def _refuse_images(space: spaces.Space[Any], name: str) -> None:
    parts: Any = ()
    if is_image(space):
        return
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    for key, part in parts:
        if isinstance(part, spaces.Dict | spaces.Tuple):
            _refuse_images(part, name)
        elif is_image(part) and is_large(part):
            wrapper = "gymnasium.wrappers:FilterObservation"
            raise ConfigError(
                f"{name}: its observation has the image {key!r} {part.shape} beside other parts. "
                "Networks with several inputs do not exist yet, and an image would be flattened "
                "to a vector. Keep one part with a wrapper: a function "
                f"`lambda: gymnasium.wrappers.TransformObservation(make(), lambda o: o[{key!r}], "
                f"space[{key!r}])` keeps the image alone; `env.wrappers: [{{name: {wrapper}, "
                f"kwargs: {{filter_keys: [...]}}}}]` keeps the parts without it."
            )


def _setting(wrapper: Any, configured: Wrappers) -> str:
    """Return what makes a wrapper again in `env.training_wrappers`, valid in YAML and Python.

    Arguments are left to the user if they are not recorded or no file can hold them.
    """
    kind, arguments = type(wrapper), getattr(wrapper, "_saved_kwargs", None)
    name = f"{kind.__module__}:{kind.__name__}"
    for known, kwargs in configured:
        if known.rpartition(":")[2] == kind.__name__:
            name, arguments = known, dict(kwargs)
    own = {key: value for key, value in (arguments or {}).items() if value is not None}
    try:
        if arguments is not None:
            return json.dumps([{"name": name, "kwargs": own} if own else name])
    except TypeError:  # a function
        pass
    return f'[{{"name": "{name}", "kwargs": {{...}}}}]` with its arguments in place of `...'


def state_leak_warnings(env: Any, fresh: Callable[[], Any], name: str) -> tuple[str, ...]:
    """Warn of wrappers that keep numbers from episode to episode under unknown names.

    The same seed and actions are played twice. A second time that differs, in an environment whose
    fresh copy repeats the first one, comes from what earlier steps left behind. What a random
    action raises, and a step that hangs, the training reports.

    Args:
        env: a Gymnasium environment; fresh: makes another one like it, which is stepped.
        name: of it.
    """
    known = ("gymnasium.", "slipstream.")
    own = [one for one in _wrappers(env) if not type(one).__module__.startswith(known)]

    def differs(other: Any) -> bool:
        first = _played(other)
        if data_equivalence(first, _played(other)):
            return False
        third = fresh()
        try:
            return data_equivalence(first, _played(third))  # else it draws from no seed
        finally:
            third.close()

    if not own or not call_in_fork(fresh, differs):
        return ()
    kinds = ", ".join(f"`{type(one).__name__}`" for one in own)
    return (
        f"{name} does not repeat itself: the same seed and actions gave other observations or "
        f"rewards the second time. Its wrappers ({kinds}) or itself keep numbers from episode to "
        "episode, such as running statistics. Evaluations begin without them and a saved policy "
        "has none, so that scores may not hold. For normalisation use "
        "`agent.observation_normalization: true` and `agent.reward_scaling: on`.",
    )


def _played(env: Any) -> list[Any]:
    """Observations, rewards and ends of the first steps of a seeded episode."""
    env.action_space.seed(0)
    told: list[Any] = [env.reset(seed=0)[0]]
    for _ in range(_STEPS_PLAYED):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        told += [observation, float(reward), bool(terminated), bool(truncated)]
        if terminated or truncated:
            break
    return copy.deepcopy(told)


_STEPS_PLAYED = 20


def wrapper_warnings(
    env: Any, name: str, configured: Wrappers = (), masked: bool = False
) -> tuple[str, ...]:
    """Sentences on wrappers and masks that change what a score means.

    Args:
        env: a Gymnasium environment; name: of it.
        configured: those of its wrappers that `env.wrappers` names.
        masked: its action masks are read.
    """
    found = []
    changed = [one for one in _wrappers(env) if isinstance(one, gymnasium.RewardWrapper)]
    if changed:
        kind = type(changed[0]).__name__
        found.append(
            f"{name}: the wrapper `{kind}` changes rewards: training, validation, test and report "
            "all count the changed rewards. To report the environment's own, take the wrapper out "
            f"and set `env.training_wrappers: {_setting(changed[0], configured)}`."
        )
    inner = [getattr(one.env, "observation_space", None) for one in _wrappers(env)]
    if masked or not (
        get_mask_method(env) or any(map(observation_has_mask, (env.observation_space, *inner)))
    ):
        return tuple(found)
    why = "nothing of its action space can be masked"
    if has_discrete_actions(env.action_space):
        why = (
            "a wrapper takes it out of its observation. Leave that wrapper out (a Dict needs none "
            "to be flattened), or give it a method `action_masks()`"
        )
    found.append(f"{name} offers an action mask, which is not read: {why}.")
    return tuple(found)
