"""Creation of Gymnasium environments, and checks of what their code raises and returns."""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.core.capacity import free_memory
from slipstream.core.child_process import TimeLimitError, follow_parent, start_timeout, time_limit
from slipstream.core.errors import ConfigError, KernelError, ResourceError, SlipstreamError
from slipstream.core.extras import add_cwd_to_path
from slipstream.kernels.space_codec import (
    RECURSIVE_SPACE,
    ObservationCodec,
    describe_space,
    is_image,
    make_observation_codec,
)
from slipstream.kernels.spec import EnvSpec

_ANSI_COLOR = re.compile(r"\x1b\[[0-9;]*m")  # in Gymnasium's messages
_SPACE_BYTES = 32  # per number of a Box: bounds and the flags of bounds, twice
_MEMORY_SHARE = 0.8


# Packages that Gymnasium does not import by itself, by prefix of their ids.
_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}


Wrappers = tuple[tuple[str, Mapping[str, Any]], ...]
"""Pairs of ``package:Wrapper`` and keyword arguments, innermost first."""


class WrappedEnv(NamedTuple):
    """A Gymnasium environment with wrappers, as a plain value that workers can unpickle.

    Attributes:
        env_id: Id, or function that creates the environment.
        wrappers: Wrappers around it.
        training: Training wrappers around those, with a `RawReturn` in between.
    """

    env_id: Any
    wrappers: Wrappers
    training: Wrappers = ()


class RawReturn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sum the rewards of the environment inside `env.training_wrappers`.

    Attributes:
        total: Sum over the current episode of the training environment. `SubEnv` resets it.
        before: `total` before the newest step of the training environment. One such step may be
            several steps inside some wrappers.
    """

    total = before = 0.0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.total += float(result[1])
        return result


class HangError(BaseException):
    """A call took too long. Raised inside the call by a signal of the worker's parent."""


_CLOSE_SECONDS, _CLOSE_AGAIN_SECONDS = 10.0, 0.1
PROBE_SECONDS = 10.0  # limit of a probe in a forked process
_failed_closes: dict[str, float] = {}  # seconds for the next close, by environment name


def first_env_fn(env: Any) -> Any:
    """Return the id or function of the first environment of a list, or `env` itself."""
    return env[0] if isinstance(env, list) else env


def env_name(env: Any) -> str:
    """Return the name of an environment for messages: its id, or the name of its function."""
    env = first_env_fn(env)
    env = env.env_id if isinstance(env, WrappedEnv) else env
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", repr(env)))


def import_user_module(module: str) -> ModuleType:
    """Import a module that is installed or in the working directory, as `python -m` does."""
    add_cwd_to_path()
    return importlib.import_module(module)


def make_gymnasium(
    env: Any, kwargs: Mapping[str, Any] | None = None, render_mode: str | None = None
) -> Any:
    """Create one Gymnasium environment.

    Args:
        env: ``"Acrobot-v1"``, or ``"module:ID"`` to import the module that registers the id. Also
            a `WrappedEnv`, a function that creates the environment, or a list of these, whose
            first entry is used.
        kwargs: Keyword arguments of the environment.
        render_mode: Render mode; None omits the argument.

    Raises:
        ConfigError: The id, the module or a keyword is unknown.
        ResourceError: A package is not installed, or memory is insufficient.
        KernelError: The environment's code raised another error, or tried to exit.
    """
    env, env_id = first_env_fn(env), env_name(env)
    module, _, name = env_id.rpartition(":")
    _check_max_episode_steps(env_id, dict(kwargs or {}).get("max_episode_steps"))
    extra: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
    try:
        with _memory_guard(), time_limit(start_timeout()):
            wrapped = env if isinstance(env, WrappedEnv) else WrappedEnv(env, ())
            if not isinstance(wrapped.env_id, str):
                created = wrapped.env_id(**dict(kwargs or {}))
            else:
                if module:
                    import_user_module(module)
                created = gymnasium.make(name, **dict(kwargs or {}), **extra)
            for wrapper, wrapper_kwargs in wrapped.wrappers:
                created = _apply_wrapper(created, wrapper, wrapper_kwargs)
            if wrapped.training:
                created = RawReturn(created)
            for wrapper, wrapper_kwargs in wrapped.training:
                created = _apply_wrapper(
                    created, wrapper, wrapper_kwargs, "training_wrappers", gymnasium.Wrapper
                )
            return created
    except SlipstreamError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise ResourceError(f"gym:{env_id} needs a package that is missing: {error}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"gym:{env_id}: {error}. Install the package, correct the name of the module, or run "
            "from the directory that contains it."
        ) from error
    except gymnasium.error.UnregisteredEnv as error:
        package = next((p for start, p in _PACKAGES.items() if name.startswith(start)), None)
        hint = "if a package registers it, write gym:PACKAGE:ID"
        if package and not module:
            hint = f"{package} registers it: write gym:{package}:{name}"
        raise ConfigError(
            f"gym:{env_id} cannot be created: {truncate_error(error)} ({hint})."
        ) from error
    except (gymnasium.error.Error, TypeError, AssertionError, ValueError) as error:
        given = f" with the arguments {dict(kwargs)}" if kwargs else ""
        why = f"{truncate_error(error)}{_format_location(error)}"
        raise ConfigError(f"gym:{env_id} cannot be created{given}: {why}") from error
    except MemoryError as error:
        raise ResourceError(
            f"gym:{env_id} cannot be created: it needs more memory than is free ({error}). Reduce "
            "its observation space or use a larger machine."
        ) from error
    except TimeLimitError as error:
        raise make_timeout_error(f"gym:{env_id}", error) from error
    except BaseException as error:
        if not is_env_error(error):
            raise
        raise wrap_env_error(
            env_id, "its constructor or the import of its module", error
        ) from error


def _apply_wrapper(
    env: Any,
    wrapper: str,
    kwargs: Mapping[str, Any],
    key: str = "wrappers",
    kind: type = gymnasium.Env,
) -> Any:
    """Apply the wrapper named ``package:Wrapper`` to an environment."""
    module, _, name = wrapper.rpartition(":")
    setting = f"`env.{key}`: {wrapper}"
    try:
        make = getattr(import_user_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{setting} cannot be imported ({error}). Write package:Wrapper for an installed "
            "package or a file in the working directory."
        ) from error
    try:
        made = make(env, **kwargs)
    except Exception as error:
        given = f" with {dict(kwargs)}" if kwargs else ""
        what = f"{type(error).__name__}: {truncate_error(error)}{_format_location(error)}"
        raise ConfigError(f"{setting} cannot be applied to {env}{given}: {what}.") from error
    if not isinstance(made, kind):
        what = f"a gymnasium.{kind.__name__}"
        raise ConfigError(f"{setting} must return {what}, got a {type(made).__name__}.")
    return made


def flatten_spaces(
    env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]
) -> tuple[spaces.Box, spaces.Space[Any]]:
    """Return the spaces of observations and actions as rows.

    A uint8 Box of three axes is an image and stays uint8 [channels, height, width]. Every other
    observation is flattened to float32 [D] (`kernels/space_codec.py`), as by
    `gymnasium.spaces.flatten`.

    Raises:
        ConfigError: A space has no row format.
        ResourceError: One row does not fit into memory. Nothing was allocated.
    """
    if not isinstance(
        action, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
    ):
        raise ConfigError(
            f"gym:{env_id} has the action space {action}. Agents support Discrete, MultiDiscrete, "
            "MultiBinary and Box. Wrap the environment so that its action space is one of these."
        )
    if isinstance(action, spaces.MultiBinary):
        action = spaces.MultiDiscrete([2] * int(np.prod(action.shape)))
    elif isinstance(action, spaces.Discrete):
        action = spaces.Discrete(int(action.n))  # rows count from 0, whatever its `start`
    elif isinstance(action, spaces.MultiDiscrete):
        action = spaces.MultiDiscrete(action.nvec.reshape(-1))
    elif isinstance(action, spaces.Box):
        with _check_bounds_error(env_id, "actions"):
            action = spaces.Box(
                action.low.reshape(-1).astype(np.float32),
                action.high.reshape(-1).astype(np.float32),
                dtype=np.float32,
            )
    try:
        codec = ObservationCodec(
            describe_space(observation), "image" if is_image(observation) else "flat"
        )
    except ConfigError as error:
        raise ConfigError(f"gym:{env_id}, observations: {error}") from None
    except RecursionError:
        raise ConfigError(f"gym:{env_id}, observations: {RECURSIVE_SPACE}") from None
    if codec.width == 0:
        raise ConfigError(f"gym:{env_id} has the empty observation space {observation}.")
    free = free_memory()
    if _SPACE_BYTES * codec.width > _MEMORY_SHARE * free:  # Discrete spaces allocate nothing
        raise ResourceError(
            f"gym:{env_id}: an observation has {codec.width:,} numbers (Discrete(n) counts n), "
            f"and {free / 2**30:.1f} GiB of memory are free. Wrap the environment to reduce its "
            "observation space."
        )
    if is_image(observation):
        return spaces.Box(0, 255, codec.shape, np.uint8), action
    with _check_bounds_error(env_id, "observations"):
        flat = spaces.flatten_space(observation)
    assert isinstance(flat, spaces.Box)
    return spaces.Box(
        flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32
    ), action


def make_row_spec(env_id: str, observation: Any, action: Any, **more: Any) -> EnvSpec:
    """Return the EnvSpec of an environment with these spaces, as rows (`flatten_spaces`).

    Args:
        more: Further fields of the EnvSpec.
    """
    row_space, row_actions = flatten_spaces(env_id, observation, action)
    spec = EnvSpec(
        row_space,
        row_actions,
        native_observation_space=observation,
        native_action_space=action,
        **more,
    )
    mean, std = make_observation_codec(spec).scale()
    return replace(spec, fixed_mean=mean, fixed_std=std)


def wrap_env_error(env_id: str, doing: str, error: BaseException) -> KernelError:
    """Return a KernelError with the error, or exit, of foreign code and its location."""
    where = _format_location(error)
    what = f"{type(error).__name__}: {truncate_error(error)}"
    if isinstance(error, SystemExit):
        what = f"SystemExit ({error.code!r}), which would end the whole training"
    return KernelError(
        f"gym:{env_id} raised {what}, in {doing}{where}. Fix the environment or the arguments in "
        "env.kwargs."
    )


def make_timeout_error(name: str, error: TimeLimitError) -> KernelError:
    """Return the error for a constructor that exceeds its time limit."""
    return KernelError(
        f"{name} cannot be created: its constructor or the import of its module took more than "
        f"{start_timeout():g} s{_format_location(error)}. Fix the environment. If it loads or "
        "downloads much, do that before training or raise the limit: "
        f"`--set training.hang_seconds={10 * start_timeout():g}`."
    )


def check_not_shared(name: str, env: Any, others: Iterable[Any]) -> None:
    """Check that a sub-environment is not the same unwrapped object as another one.

    Raises:
        ConfigError: Two sub-environments share their state.
    """
    unwrapped = _get_unwrapped(env)
    if any(_get_unwrapped(other) is unwrapped for other in others if other is not None):
        raise ConfigError(
            f"gym:{name}: its function returned the same environment twice. Create a new one in "
            "every call: `lambda: MyEnv()` instead of `lambda: env`."
        )


def _get_unwrapped(env: Any) -> Any:
    """Return the environment without wrappers; itself if that fails."""
    with suppress(Exception):
        return env.unwrapped
    return env


def check_same_spaces(
    name: str, env: Any, row: int, expected_spaces: Sequence[tuple[str, Any]]
) -> None:
    """Check that a sub-environment has the spaces of the first one.

    Args:
        name: Name of the environment, for messages.
        env: The sub-environment.
        row: Its row.
        expected_spaces: Pairs such as ("observation_space", space of the first one).

    Raises:
        ConfigError: A space differs.
    """
    for attribute, expected in expected_spaces:
        if (space := getattr(env, attribute)) != expected:
            raise ConfigError(
                f"gym:{name}: environment {row} has the {attribute} {space}, but the first one "
                f"has {expected}: all sub-environments must have the same."
            )


def is_env_error(error: BaseException) -> bool:
    """Return true for errors of foreign code: all but KeyboardInterrupt and HangError."""
    return not isinstance(error, (KeyboardInterrupt, HangError))


def as_flag(value: Any) -> bool | None:
    """Convert a flag returned by an environment to bool; None if it is not a flag."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer, np.ndarray)):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biu" and array.item() in (0, 1):
            return bool(array.item())
    return None


def as_reward(value: Any) -> float | None:
    """Convert a reward returned by an environment to float; None if it is not one number."""
    if type(value) is float:  # the usual case
        return value
    if isinstance(value, (float, int, np.floating, np.integer, np.bool_, np.ndarray)):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":  # some return shape (1,)
            return float(array.item())
    return None


@contextmanager
def _check_bounds_error(env_id: str, what: str) -> Iterator[None]:
    """Raise ConfigError if Gymnasium rejects the bounds of a space."""
    try:
        yield
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"gym:{env_id}, {what}: {truncate_error(error)}. Set every bound to a number or "
            "infinity."
        ) from None


@contextmanager
def _memory_guard() -> Iterator[None]:
    """Raise MemoryError if foreign code creates a Box that does not fit into memory.

    Otherwise allocating its bounds would exhaust the memory, and the system would kill the process
    without a message.
    """
    init, free = spaces.Box.__init__, free_memory()

    @functools.wraps(init)
    def checked(
        box: Any, low: Any, high: Any, shape: Any = None, dtype: Any = np.float32, seed: Any = None
    ) -> None:
        numbers = math.prod(np.atleast_1d(shape).tolist()) if shape is not None else np.size(low)
        size = numbers * 2 * (np.dtype(dtype).itemsize + 1)  # bounds and their flags
        if size > _MEMORY_SHARE * free:
            raise MemoryError(
                f"a Box of {numbers:,} numbers needs {size / 2**30:.1f} GiB for its bounds alone, "
                f"and {free / 2**30:.1f} GiB are free"
            )
        init(box, low, high, shape, dtype, seed)

    spaces.Box.__init__ = checked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        spaces.Box.__init__ = init  # type: ignore[method-assign]


def _check_max_episode_steps(env_id: str, limit: Any) -> None:
    if limit is None:
        return
    if (
        isinstance(limit, bool)
        or not isinstance(limit, (int, np.integer))
        or not (limit >= 1 or limit == -1)
    ):
        raise ConfigError(
            f"gym:{env_id}: `env.kwargs.max_episode_steps` must be a positive integer, or -1 for "
            f"no limit, got {limit!r}."
        )


def _format_location(error: BaseException) -> str:
    """Return `` (file:line)`` of the error in the environment's own code; empty if not there."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_foreign(f.filename)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


_INTERNAL_PATHS = (
    "/slipstream/core/",
    "/slipstream/kernels/",
    "/slipstream/gym/",
    "/gymnasium/",
    "importlib",
)


def _is_foreign(file: str) -> bool:
    """Return true if a file belongs neither to slipstream nor to Gymnasium."""
    path = file.replace("\\", "/")
    return not any(part in path for part in _INTERNAL_PATHS)


def error_text(error: BaseException) -> str:
    """Return the text of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as worse:
        return f"(`str(error)` raised {type(worse).__name__})"


def close_env(env: Any, name: str) -> None:
    """Close an environment. The first failure of each name is printed and otherwise ignored."""
    try:
        with time_limit(_failed_closes.get(name, _CLOSE_SECONDS)):
            env.close()
    except BaseException as error:
        if not is_env_error(error):
            raise
        overdue = isinstance(error, TimeLimitError)
        what = f"raised {type(error).__name__}: {truncate_error(error)}"
        if overdue:
            what = f"took more than {_CLOSE_SECONDS:g} s{_format_location(error)}"
        if name not in _failed_closes:
            print(
                f"{name}: `close` {what}. Results do not depend on it. Further failures are not "
                "printed.",
                file=sys.stderr,
            )
        _failed_closes[name] = _CLOSE_AGAIN_SECONDS if overdue else _CLOSE_SECONDS


def call_in_fork(
    env_fn: Callable[[], Any], predicate: Callable[[Any], bool], close: bool = True
) -> bool | None:
    """Evaluate a predicate on an environment in a forked process.

    Foreign code may hang or exit. The fork leads a session of its own, so its children are killed
    with it.

    Args:
        env_fn: Creates the environment, or returns one of this process.
        predicate: Predicate of the environment.
        close: Close the environment there. Pass false for an environment of this process, whose
            `close` may stop a server or delete a file in use.

    Returns:
        Result of the predicate. None if it raises, exits or takes too long.
    """
    parent, pid = os.getpid(), None
    try:
        read_fd, write_fd = os.pipe()
    except OSError:
        return None
    with suppress(OSError):
        pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            follow_parent(parent)
            for number in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
            env = env_fn()
            os.write(write_fd, b"m")
            try:
                os.write(write_fd, b"1" if predicate(env) else b"0")
            finally:
                if close:
                    env.close()
        finally:
            os._exit(0)
    os.close(write_fd)
    received = b""
    try:
        # Limits of creation, predicate and exit.
        poller = select.poll()
        poller.register(read_fd, select.POLLIN)
        for seconds in (
            start_timeout(),
            PROBE_SECONDS,
            _CLOSE_SECONDS,
        ):
            byte = os.read(read_fd, 1) if poller.poll(seconds * 1000) else b""
            if not byte:
                break
            received += byte
        return {b"m0": False, b"m1": True}.get(received)
    finally:
        os.close(read_fd)
        if pid is not None:
            with suppress(OSError):  # it exited before `setsid`
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def truncate_error(error: BaseException) -> str:
    """Return the text of an error on one line, at most 300 characters."""
    text = " ".join(_ANSI_COLOR.sub("", error_text(error)).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."
