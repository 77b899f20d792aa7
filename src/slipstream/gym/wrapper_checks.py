"""Checks of environments that cannot be trained on: running statistics, images in a Dict."""

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

# Flags that stop the updates of a wrapper's statistics, in Gymnasium and SB3.
_UPDATE_FLAGS = ("update_running_mean", "training")
_STATISTIC_NAMES = re.compile(r"_rms$|^rms$|^running_(mean|std|var)|_running_(mean|std|var)$")
_STATISTIC_CLASSES = re.compile(r"running_?(mean|std|stat|var|norm)", re.IGNORECASE)
_MAX_SUB_ENVS = 64  # sub-environments whose wrappers are checked


def check_trainable(env: Any, name: str) -> None:
    """Check that a saved policy can reproduce the scores of training.

    Args:
        env: Gymnasium environment, or vector environment of any library.
        name: Name of the environment, for messages.

    Raises:
        ConfigError: A wrapper normalizes by running statistics, or an image is part of a Dict or
            a Tuple.
    """
    for wrapper in _wrappers(env):
        flag = next((key for key in _UPDATE_FLAGS if hasattr(wrapper, key)), None)
        if _has_running_statistics(wrapper) and (flag is None or getattr(wrapper, flag)):
            raise _running_statistics_error(type(wrapper).__name__, name, flag or "")
    _check_remote_sub_envs(getattr(env, "unwrapped", env), name)
    _refuse_images(getattr(env, "single_observation_space", None) or env.observation_space, name)


def _running_statistics_error(wrapper: str, name: str, flag: str) -> ConfigError:
    freeze = f" Or load final statistics and set its `{flag}` to False." if flag else ""
    return ConfigError(
        f"{name}: the wrapper `{wrapper}` normalizes by running statistics. Evaluation creates "
        "environments with other statistics, and a saved policy has none, so scores could not be "
        "reproduced. Remove it and use `agent.observation_normalization: true` for observations "
        "and `agent.reward_scaling: on` for rewards. Both are saved with the policy."
        f"{freeze}"
    )


def _wrappers(env: Any) -> Iterator[Any]:
    """Yield every wrapper from the outside in, including those of sub-environments."""
    while env is not None:
        inner = vars(env).get("env", vars(env).get("venv")) if hasattr(env, "__dict__") else None
        if inner is not None:
            yield env
        for sub_env in _get_sub_envs(env):
            yield from _wrappers(sub_env)
        env = inner


def _get_sub_envs(env: Any) -> list[Any]:
    """Return the sub-environments that a vector environment steps in this process."""
    envs = vars(env).get("envs") if hasattr(env, "__dict__") else None
    return list(envs)[:_MAX_SUB_ENVS] if isinstance(envs, (list, tuple)) else []


def _check_remote_sub_envs(env: Any, name: str) -> None:
    """Check sub-environments in other processes; one of Gymnasium's is created here for it."""
    if isinstance(env, gymnasium.vector.AsyncVectorEnv):
        made = env.env_fns[0]()
        try:
            check_trainable(made, name)
        finally:
            made.close()
    elif hasattr(env, "remotes") and hasattr(env, "env_is_wrapped"):  # SB3's SubprocVecEnv
        for kind in (gymnasium.wrappers.NormalizeObservation, gymnasium.wrappers.NormalizeReward):
            if any(env.env_is_wrapped(kind)):
                raise _running_statistics_error(kind.__name__, name, "")


def _has_running_statistics(wrapper: Any) -> bool:
    """Return true if a wrapper or one of its attributes has a running mean or deviation."""
    attributes = vars(wrapper)
    if {"mean", "var", "count"} <= attributes.keys() or any(
        map(_STATISTIC_NAMES.search, attributes)
    ):
        return True
    values = (item for key, item in attributes.items() if key not in ("env", "venv", "unwrapped"))
    return any(map(_is_running, values))


def _is_running(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_is_running, value.values()))
    if _STATISTIC_CLASSES.search(type(value).__name__):
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
                f"{name}: its observation space has the image {key!r} {part.shape} and other keys. "
                "Networks with several inputs are not implemented, and the image would be "
                "flattened to a vector. Keep one of them with a wrapper: a function "
                f"`lambda: gymnasium.wrappers.TransformObservation(make(), lambda o: o[{key!r}], "
                f"space[{key!r}])` keeps the image; `env.wrappers: [{{name: {wrapper}, "
                f"kwargs: {{filter_keys: [...]}}}}]` keeps the other keys."
            )


def _format_setting(wrapper: Any, configured: Wrappers) -> str:
    """Return the value of `env.training_wrappers` for a wrapper, valid in YAML and Python.

    Arguments that are not recorded, or not JSON-compatible, are replaced by a placeholder.
    """
    kind, arguments = type(wrapper), getattr(wrapper, "_saved_kwargs", None)
    name = f"{kind.__module__}:{kind.__name__}"
    for configured_name, configured_kwargs in configured:
        if configured_name.rpartition(":")[2] == kind.__name__:
            name, arguments = configured_name, dict(configured_kwargs)
    kwargs = {key: value for key, value in (arguments or {}).items() if value is not None}
    try:
        if arguments is not None:
            return json.dumps([{"name": name, "kwargs": kwargs} if kwargs else name])
    except TypeError:  # a function
        pass
    return f'[{{"name": "{name}", "kwargs": {{...}}}}]` with its arguments in place of `...'


def state_leak_warnings(env: Any, fresh: Callable[[], Any], name: str) -> tuple[str, ...]:
    """Return warnings about wrappers that keep state from one episode to the next.

    The same seed and actions are played twice. If the second episode differs from the first, but a
    new environment repeats the first, earlier steps have left state behind. Errors and hangs are
    ignored here and reported in training.

    Args:
        env: Gymnasium environment.
        fresh: Creates another environment like it, which is stepped.
        name: Name of the environment, for messages.
    """
    builtin = ("gymnasium.", "slipstream.")
    custom = [item for item in _wrappers(env) if not type(item).__module__.startswith(builtin)]

    def differs(other: Any) -> bool:
        first = _play_episode(other)
        if data_equivalence(first, _play_episode(other)):
            return False
        third = fresh()
        try:
            return data_equivalence(first, _play_episode(third))  # otherwise it ignores the seed
        finally:
            third.close()

    if not custom or not call_in_fork(fresh, differs):
        return ()
    kinds = ", ".join(f"`{type(wrapper).__name__}`" for wrapper in custom)
    return (
        f"{name} is not reproducible: the same seed and actions gave different observations or "
        f"rewards the second time. The environment or its wrappers ({kinds}) keep state between "
        "episodes, such as running statistics. Evaluations and saved policies do not have it, so "
        "scores may differ. For normalization use `agent.observation_normalization: true` and "
        "`agent.reward_scaling: on`.",
    )


def _play_episode(env: Any) -> list[Any]:
    """Return the observations, rewards and flags of the first steps of a seeded episode."""
    env.action_space.seed(0)
    outputs: list[Any] = [env.reset(seed=0)[0]]
    for _ in range(_NUM_STEPS):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        outputs += [observation, float(reward), bool(terminated), bool(truncated)]
        if terminated or truncated:
            break
    return copy.deepcopy(outputs)


_NUM_STEPS = 20


def wrapper_warnings(
    env: Any, name: str, configured: Wrappers = (), masked: bool = False
) -> tuple[str, ...]:
    """Return warnings about wrappers and masks that change the meaning of a score.

    Args:
        env: Gymnasium environment.
        name: Name of the environment, for messages.
        configured: Wrappers of `env.wrappers`.
        masked: True if its action masks are used.
    """
    messages = []
    changed = [item for item in _wrappers(env) if isinstance(item, gymnasium.RewardWrapper)]
    if changed:
        kind = type(changed[0]).__name__
        messages.append(
            f"{name}: the wrapper `{kind}` changes rewards. Training, validation, test and report "
            "use the changed rewards. To report the environment's own rewards, remove the wrapper "
            f"and set `env.training_wrappers: {_format_setting(changed[0], configured)}`."
        )
    inner = [getattr(item.env, "observation_space", None) for item in _wrappers(env)]
    if masked or not (
        get_mask_method(env) or any(map(observation_has_mask, (env.observation_space, *inner)))
    ):
        return tuple(messages)
    why = "its action space cannot be masked"
    if has_discrete_actions(env.action_space):
        why = (
            "a wrapper removes it from the observation. Remove that wrapper (Dict observations "
            "are flattened without one), or give it a method `action_masks()`"
        )
    messages.append(f"{name} has an action mask that is ignored: {why}.")
    return tuple(messages)
