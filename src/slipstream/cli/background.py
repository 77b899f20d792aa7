"""What `train`, `tune`, `resume` and `paper` share of `--background` and the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument

from slipstream.core.errors import ConfigError


def command_line(command: Any, values: Mapping[str, Any]) -> list[str]:
    """Arguments that give a command of Typer's these values; None, empty and false are left out."""
    options, words = list[str](), list[str]()
    for param in command.params:
        value = values.get(param.name or "")
        if value is None or value is False or value == []:
            continue
        several = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(param, TyperArgument):
            words += [str(one) for one in several]
        elif value is True:
            options.append(param.opts[0])
        else:
            options += [f"{param.opts[0]}={one}" for one in several]
    return [str(command.name), *options, *(["--", *words] if words else [])]


def detach_if_requested(context: typer.Context, folder: Path, **changes: Any) -> bool:
    """Does what ``--replace`` and ``--background`` ask of the command of a context.

    Args:
        context: of the command.
        folder: that it works on.
        changes: values that fix the folder, for the process in the background.

    Returns:
        Whether the command goes on in the background: there is nothing more to do.

    Raises:
        ConfigError: see `make_room` and `in_background`; ``--log`` without ``--background``.
    """
    given = context.params
    if given.get("log") and not given["background"]:
        raise ConfigError("--log says where a command in the background prints: add --background.")
    if not (given["background"] or given.get("replace")):
        return False
    from slipstream.core.safe_io import is_there
    from slipstream.core.terminal import tell
    from slipstream.jobs.process import in_background, make_room

    if given.get("replace"):
        if is_there(folder):
            memory_of(str(context.command.name), given)  # refused before anybody is stopped
        make_room(folder, tell)
    if not given["background"]:
        return False
    done = {"background": False, "log": None, "replace": False}
    words = command_line(context.command, {**given, **changes, **done})
    in_background(words, folder, given.get("log"), tell)
    return True


def memory_of(command: str, given: Mapping[str, Any]) -> int:
    """Bytes that a command's training will take of this machine, as it will say itself.

    Args:
        command: train, tune or resume.
        given: its values.

    Raises:
        SlipstreamError: it cannot begin: no data, say, or more than this machine has.
    """
    from slipstream.cli.options import train_overrides, tune_overrides
    from slipstream.jobs.memory import run_memory, study_memory
    from slipstream.studies.record.status import lookup
    from slipstream.studies.start import prepare
    from slipstream.training.runs.run import Run
    from slipstream.training.settings.config import read_config, resolve

    if given["cluster"]:  # other machines'
        return 0
    if command == "train":
        return run_memory(resolve(given["target"], train_overrides(given)))
    if command == "tune":
        return study_memory(*prepare(given["target"], *tune_overrides(given)), given["workers"])
    folder, study = lookup(given["run"])
    if study is None:
        run = Run.open(folder, trust=given["trust"])
        return run_memory(run.resume_config(num_envs=given["num_envs"]))
    return study_memory(*prepare(read_config(study.config), {}, {}), given["workers"])
