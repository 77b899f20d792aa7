"""`--cores` of commands: the processors that a process and its children may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from slipstream.core.errors import ConfigError


def give_cores(app: typer.Typer) -> None:
    """Lets every command of a command line and of its groups take `--cores`."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_cores(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        give_cores(group.typer_instance)


def _with_cores(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that takes `--cores`, too; one that has its own, of a job say, as it is."""
    declared = signature(command, eval_str=True)
    if "cores" in declared.parameters:
        return command

    @wraps(command)
    def bound(*, cores: int | None = None, **given: Any) -> Any:
        return command(**given)  # the process was bound when its options were read

    cores = Parameter("cores", Parameter.KEYWORD_ONLY, default=None, annotation=Cores)
    parameters = [*declared.parameters.values(), cores]
    bound.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
    return bound


def first_cores(number: int | None) -> list[int]:
    """So many of the processors that this process may use; all unless given.

    Raises:
        ConfigError: there are fewer.
    """
    there = sorted(os.sched_getaffinity(0))
    if number is not None and number > len(there):
        raise ConfigError(f"--cores {number}: this process may use {len(there)}.")
    return there[:number]


def use_cores(number: int | None) -> int | None:
    """Binds this process and its children to so many of its processors.

    Raises:
        ConfigError: there are fewer, or this system binds none.
    """
    if number is None:
        return None
    try:
        os.sched_setaffinity(0, first_cores(number))
    except (AttributeError, OSError) as error:
        raise ConfigError(
            f"--cores {number}: this system lets no process choose its processors ({error}). Leave "
            "it out."
        ) from error
    return number


Cores = Annotated[
    int | None,
    typer.Option("--cores", min=1, callback=use_cores, help="Use so many; all unless given."),
]
