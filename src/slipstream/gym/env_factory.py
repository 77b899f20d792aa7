"""Foreign code behind a guard: making Gymnasium environments, and what they raise and return."""

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

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # of Gymnasium's own messages
_SPACE_BYTES = 32  # of a Box for each number: bounds, and whether there are any, twice
_MEMORY_SHARE = 0.8


# Ids of packages that Gymnasium does not find by itself, by how they begin.
_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}


Wrappers = tuple[tuple[str, Mapping[str, Any]], ...]
"""``package:Wrapper`` with its keyword arguments, the innermost first."""


class WrappedEnv(NamedTuple):
    """A Gymnasium environment inside wrappers; a plain value, so that workers make it, too.

    Attributes:
        env_id: an id, or what makes an environment when it is called.
        wrappers: around it.
        training: around these, with a `RawReturn` in between.
    """

    env_id: Any
    wrappers: Wrappers
    training: Wrappers = ()


class RawReturn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sum the rewards of the environment inside `env.training_wrappers`.

    Attributes:
        total: sum since the episode of the training environment began, which `SubEnv` resets.
        before: `total` before the newest step of the training environment, of several steps inside
            some wrappers.
    """

    total = before = 0.0

    def step(self, action: Any) -> Any:
        came = self.env.step(action)
        self.total += float(came[1])
        return came


class HangError(BaseException):
    """A call took too long; raised inside it by the signal that a worker's parent sends."""


_CLOSE_SECONDS, _CLOSE_AGAIN_SECONDS = 10.0, 0.1
PROBE_SECONDS = 10.0  # for what a forked process asks of an environment
_failed_closes: dict[str, float] = {}  # seconds for the next one, by the environment's name


def first_env_fn(env: Any) -> Any:
    """What makes the first env: a list has a maker for each row, then from the first again."""
    return env[0] if isinstance(env, list) else env


def env_name(env: Any) -> str:
    """An environment's name in messages: its id, or the name of the function that makes it."""
    env = first_env_fn(env)
    env = env.env_id if isinstance(env, WrappedEnv) else env
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", repr(env)))


def import_named(module: str) -> ModuleType:
    """A module that is installed, or that lies in the working folder, as `python -m` finds it."""
    add_cwd_to_path()
    return importlib.import_module(module)


def make_gymnasium(
    env: Any, kwargs: Mapping[str, Any] | None = None, render_mode: str | None = None
) -> Any:
    """Builds one Gymnasium environment.

    Args:
        env: ``"Acrobot-v1"``, or ``"module:ID"`` to import the module that registers it first, or
            such an id with wrappers, or what makes an environment when it is called with `kwargs`,
            or a list of these, of which the first makes it.
        kwargs: keyword arguments of its constructor.
        render_mode: passed on where given.

    Raises:
        ConfigError: unknown id, module or keyword.
        ResourceError: it needs a package that is not installed, or more memory than there is.
        KernelError: its own code raised something else, or asked to end the process.
    """
    env, env_id = first_env_fn(env), env_name(env)
    module, _, name = env_id.rpartition(":")
    _check_limit(env_id, dict(kwargs or {}).get("max_episode_steps"))
    extra: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
    try:
        with _memory_guard(), time_limit(start_timeout()):
            whole = env if isinstance(env, WrappedEnv) else WrappedEnv(env, ())
            if not isinstance(whole.env_id, str):
                made = whole.env_id(**dict(kwargs or {}))
            else:
                if module:
                    import_named(module)
                made = gymnasium.make(name, **dict(kwargs or {}), **extra)
            for wrapper, own in whole.wrappers:
                made = _inside(made, wrapper, own)
            if whole.training:
                made = RawReturn(made)
            for wrapper, own in whole.training:
                made = _inside(made, wrapper, own, "training_wrappers", gymnasium.Wrapper)
            return made
    except SlipstreamError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise ResourceError(f"gym:{env_id} needs a package that is missing: {error}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"gym:{env_id}: {error}; install the package, correct the module's name, or begin in "
            "the folder where the module lies."
        ) from error
    except gymnasium.error.UnregisteredEnv as error:
        package = next((p for start, p in _PACKAGES.items() if name.startswith(start)), None)
        hint = "where a package registers it, write gym:PACKAGE:ID"
        if package and not module:
            hint = f"{package} registers it: write gym:{package}:{name}"
        raise ConfigError(f"gym:{env_id} cannot be made: {short(error)} ({hint}).") from error
    except (gymnasium.error.Error, TypeError, AssertionError, ValueError) as error:
        given = f" with the arguments {dict(kwargs)}" if kwargs else ""
        why = f"{short(error)}{_place(error)}"
        raise ConfigError(f"gym:{env_id} cannot be made{given}: {why}") from error
    except MemoryError as error:
        raise ResourceError(
            f"gym:{env_id} cannot be made: it asks for more memory than there is ({error}). Let "
            "it show less, or train it on a larger machine."
        ) from error
    except TimeLimitError as error:
        raise make_timeout_error(f"gym:{env_id}", error) from error
    except BaseException as error:
        if not is_env_error(error):
            raise
        raise raised(env_id, "its constructor or the import of its module", error) from error


def _inside(
    env: Any,
    wrapper: str,
    kwargs: Mapping[str, Any],
    key: str = "wrappers",
    kind: type = gymnasium.Env,
) -> Any:
    """The environment inside a wrapper that is named ``package:Wrapper``."""
    module, _, name = wrapper.rpartition(":")
    wanted = f"`env.{key}`: {wrapper}"
    try:
        make = getattr(import_named(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{wanted} cannot be found ({error}): write package:Wrapper, of a package that is "
            "installed or of a file in the working folder."
        ) from error
    try:
        made = make(env, **kwargs)
    except Exception as error:
        given = f" with {dict(kwargs)}" if kwargs else ""
        what = f"{type(error).__name__}: {short(error)}{_place(error)}"
        raise ConfigError(f"{wanted} cannot be put around {env}{given}: {what}.") from error
    if not isinstance(made, kind):
        what = f"a gymnasium.{kind.__name__}"
        raise ConfigError(f"{wanted} makes a {type(made).__name__}, not {what}.")
    return made


def flat_spaces(
    env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]
) -> tuple[spaces.Box, spaces.Space[Any]]:
    """The one rule by which observations and actions become rows.

    A uint8 Box of three axes is an image and stays uint8 [channels, height, width]; every other
    observation is flattened to float32 [D] (`kernels/space_codec.py`), as by
    `gymnasium.spaces.flatten`.

    Raises:
        ConfigError: a space without a fixed flat form.
        ResourceError: one row of it does not fit into memory; nothing was allocated.
    """
    if not isinstance(
        action, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box
    ):
        raise ConfigError(
            f"gym:{env_id} has the action space {action}; agents act in Discrete, MultiDiscrete, "
            "MultiBinary and Box. Wrap the environment so that its actions are one of these."
        )
    if isinstance(action, spaces.MultiBinary):
        action = spaces.MultiDiscrete([2] * int(np.prod(action.shape)))
    elif isinstance(action, spaces.Discrete):
        action = spaces.Discrete(int(action.n))  # rows count from 0, whatever its `start`
    elif isinstance(action, spaces.MultiDiscrete):
        action = spaces.MultiDiscrete(action.nvec.reshape(-1))
    elif isinstance(action, spaces.Box):
        with _bounded(env_id, "actions"):
            action = spaces.Box(
                action.low.reshape(-1).astype(np.float32),
                action.high.reshape(-1).astype(np.float32),
                dtype=np.float32,
            )
    try:
        form = ObservationCodec(
            describe_space(observation), "image" if is_image(observation) else "flat"
        )
    except ConfigError as error:
        raise ConfigError(f"gym:{env_id}, observations: {error}") from None
    except RecursionError:
        raise ConfigError(f"gym:{env_id}, observations: {RECURSIVE_SPACE}") from None
    if form.width == 0:
        raise ConfigError(f"gym:{env_id} shows nothing: its observation space is {observation}.")
    free = free_memory()
    if _SPACE_BYTES * form.width > _MEMORY_SHARE * free:  # choices: their spaces take nothing yet
        raise ResourceError(
            f"gym:{env_id}: an observation has {form.width:,} numbers (a choice of n counts n), "
            f"and {free / 2**30:.1f} GiB of memory are free. Wrap the environment so that it shows "
            "less."
        )
    if is_image(observation):
        return spaces.Box(0, 255, form.shape, np.uint8), action
    with _bounded(env_id, "observations"):
        flat = spaces.flatten_space(observation)
    assert isinstance(flat, spaces.Box)
    return spaces.Box(
        flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32
    ), action


def row_spec(env_id: str, observation: Any, action: Any, **more: Any) -> EnvSpec:
    """EnvSpec of an environment with these spaces, which agents see as rows; see `flat_spaces`.

    Args:
        more: further fields of the EnvSpec.
    """
    shown, acted = flat_spaces(env_id, observation, action)
    spec = EnvSpec(
        shown, acted, native_observation_space=observation, native_action_space=action, **more
    )
    mean, std = make_observation_codec(spec).scale()
    return replace(spec, fixed_mean=mean, fixed_std=std)


def raised(env_id: str, doing: str, error: BaseException) -> KernelError:
    """What foreign code raised, where, and whose it is to mend; an exit is an error like others."""
    where = _place(error)
    what = f"{type(error).__name__}: {short(error)}"
    if isinstance(error, SystemExit):
        what = f"SystemExit ({error.code!r}), which would end the whole training"
    return KernelError(
        f"gym:{env_id} raised {what}, in {doing}{where}. Fix the environment there, or the "
        "arguments in env.kwargs."
    )


def make_timeout_error(name: str, error: TimeLimitError) -> KernelError:
    """Return what to raise if a constructor does not end."""
    return KernelError(
        f"{name} cannot be made: its constructor or the import of its module has taken "
        f"{start_timeout():g} s and was ended{_place(error)}. Fix the environment there; if it "
        "loads or downloads much, do that before the training, or allow it more seconds: "
        f"`--set training.hang_seconds={10 * start_timeout():g}`."
    )


def check_not_shared(name: str, env: Any, others: Iterable[Any]) -> None:
    """Refuses a sub-environment that is the same object as another one, inside any wrappers.

    Raises:
        ConfigError: it is; sub-environments that share one state teach nothing.
    """
    own = _core(env)
    if any(_core(other) is own for other in others if other is not None):
        raise ConfigError(
            f"gym:{name}: what makes its envs gave the same environment twice, so that envs "
            "would share one state. Make a new one at every call: `lambda: MyEnv()`, and not "
            "`lambda: env`."
        )


def _core(env: Any) -> Any:
    """The environment inside all wrappers, where it says which one that is."""
    with suppress(Exception):
        return env.unwrapped
    return env


def check_same_spaces(name: str, env: Any, number: int, wanted: Sequence[tuple[str, Any]]) -> None:
    """Refuses a sub-environment whose spaces are not those of the first one.

    Args:
        name: of the environment; env: the copy; number: its row.
        wanted: ("observation_space", the first sub-environment's), ...

    Raises:
        ConfigError: a space is another one.
    """
    for attribute, own in wanted:
        if (found := getattr(env, attribute)) != own:
            raise ConfigError(
                f"gym:{name}: environment {number} has the {attribute} {found}, and the first one "
                f"{own}: all sub-environments must have the same."
            )


def is_env_error(error: BaseException) -> bool:
    """Return true if foreign code raised it, of any class: not Ctrl-C, and no hang's signal."""
    return not isinstance(error, (KeyboardInterrupt, HangError))


def flag(value: Any) -> bool | None:
    """True or False of what an environment returned as one of its flags; None for anything else."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer, np.ndarray)):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biu" and array.item() in (0, 1):
            return bool(array.item())
    return None


def as_reward(value: Any) -> float | None:
    """The number that an environment returned as its reward; None where it is none."""
    if type(value) is float:  # nearly always
        return value
    if isinstance(value, (float, int, np.floating, np.integer, np.bool_, np.ndarray)):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":  # some return shape (1,)
            return float(array.item())
    return None


@contextmanager
def _bounded(env_id: str, what: str) -> Iterator[None]:
    """Names a space whose bounds were set to something that Gymnasium does not take."""
    try:
        yield
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"gym:{env_id}, {what}: {short(error)}. Give every bound a number or infinity."
        ) from None


@contextmanager
def _memory_guard() -> Iterator[None]:
    """While foreign code runs, a Box that cannot fit into memory is an error before it is made.

    Its bounds alone would take the machine's memory, and the system would end the process without
    a word.
    """
    init, free = spaces.Box.__init__, free_memory()  # of which spaces that fit take little

    @functools.wraps(init)
    def checked(
        box: Any, low: Any, high: Any, shape: Any = None, dtype: Any = np.float32, seed: Any = None
    ) -> None:
        numbers = math.prod(np.atleast_1d(shape).tolist()) if shape is not None else np.size(low)
        size = numbers * 2 * (np.dtype(dtype).itemsize + 1)  # bounds, and whether there are any
        if size > _MEMORY_SHARE * free:
            raise MemoryError(
                f"a Box of {numbers:,} numbers takes {size / 2**30:.1f} GiB for its bounds alone, "
                f"and {free / 2**30:.1f} GiB are free"
            )
        init(box, low, high, shape, dtype, seed)

    spaces.Box.__init__ = checked  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        spaces.Box.__init__ = init  # type: ignore[method-assign]


def _check_limit(env_id: str, limit: Any) -> None:
    if limit is None:
        return
    if (
        isinstance(limit, bool)
        or not isinstance(limit, (int, np.integer))
        or not (limit >= 1 or limit == -1)
    ):
        raise ConfigError(
            f"gym:{env_id}: `env.kwargs.max_episode_steps` is {limit!r}, and an episode has at "
            "least 1 step: give a whole number from 1 on, -1 for no limit, or leave it out."
        )


def _place(error: BaseException) -> str:
    """`` (file:line)`` where the environment's own code raised it; nothing where it did not."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _foreign(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


_INTERNAL_PATHS = (
    "/slipstream/core/",
    "/slipstream/kernels/",
    "/slipstream/gym/",
    "/gymnasium/",
    "importlib",
)


def _foreign(file: str) -> bool:
    """Return true if a file is neither slipstream's nor Gymnasium's machinery around it."""
    path = file.replace("\\", "/")
    return not any(part in path for part in _INTERNAL_PATHS)


def error_text(error: BaseException) -> str:
    """What an error says, even where its own `__str__` is broken."""
    try:
        return str(error)
    except Exception as worse:
        return f"(an error whose text raises {type(worse).__name__})"


def close_env(env: Any, name: str) -> None:
    """Close an environment; print the first failure of its name, as nothing depends on it."""
    try:
        with time_limit(_failed_closes.get(name, _CLOSE_SECONDS)):
            env.close()
    except BaseException as error:
        if not is_env_error(error):
            raise
        overdue = isinstance(error, TimeLimitError)
        what = f"raised {type(error).__name__}: {short(error)}"
        if overdue:
            what = f"has taken {_CLOSE_SECONDS:g} s and was ended{_place(error)}"
        if name not in _failed_closes:
            print(
                f"{name}: `close` {what}. Results do not depend on it; further failures of it are "
                "not printed.",
                file=sys.stderr,
            )
        _failed_closes[name] = _CLOSE_AGAIN_SECONDS if overdue else _CLOSE_SECONDS


def call_in_fork(
    make: Callable[[], Any], ask: Callable[[Any], bool], closes: bool = True
) -> bool | None:
    """Ask something of an environment in a forked process.

    Its code may hang or end the process, which leads a session, so that all it starts is killed.

    Args:
        make: makes the environment, or returns one of this process.
        ask: what is asked; returns false without an answer.
        closes: the environment is closed there. One of this process is not, because `close` may
            end a server or delete a file that it needs.

    Returns:
        The answer; None if it raises, ends the process or takes too long.
    """
    parent, pid = os.getpid(), None
    try:
        ear, mouth = os.pipe()
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
            env = make()
            os.write(mouth, b"m")
            try:
                os.write(mouth, b"1" if ask(env) else b"0")
            finally:
                if closes:
                    env.close()
        finally:
            os._exit(0)
    os.close(mouth)
    num_received = b""
    try:
        waiting = select.poll()
        waiting.register(ear, select.POLLIN)
        for seconds in (start_timeout(), PROBE_SECONDS, _CLOSE_SECONDS):  # the last until it ends
            byte = os.read(ear, 1) if waiting.poll(seconds * 1000) else b""
            if not byte:
                break
            num_received += byte
        return {b"m0": False, b"m1": True}.get(num_received)
    finally:
        os.close(ear)
        if pid is not None:
            with suppress(OSError):  # it has ended before it led a session
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def short(error: BaseException) -> str:
    """An error's text, on one line and not endless."""
    text = " ".join(_COLOURS.sub("", error_text(error)).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."
