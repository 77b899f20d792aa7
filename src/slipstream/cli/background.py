"""Options --background and --replace, and memory estimates of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument

from slipstream.core.errors import ConfigError


def command_words(context: typer.Context) -> list[str]:
    """Return the words that select the command of a context, such as ``["paper", "start"]``."""
    words = list[str]()
    current: Any = context
    while current.parent is not None:
        words.insert(0, str(current.command.name))
        current = current.parent
    return words


def command_line(words: Sequence[str], command: Any, values: Mapping[str, Any]) -> list[str]:
    """Return the arguments that give a command these values; unset options are omitted.

    Args:
        words: words that select the command.
        command: the Typer command.
        values: values of its options and arguments, by parameter name.
    """
    options, arguments = list[str](), list[str]()
    for param in command.params:
        value = values.get(param.name or "")
        if value is None or value is False or value == []:
            continue
        items = value if isinstance(value, (list, tuple)) else [value]
        if isinstance(param, TyperArgument):
            arguments += [str(item) for item in items]
        elif value is True:
            options.append(param.opts[0])
        else:
            options += [f"{param.opts[0]}={item}" for item in items]
    return [*words, *options, *(["--", *arguments] if arguments else [])]


def detach_if_requested(context: typer.Context, folder: Path, **changes: Any) -> bool:
    """Apply ``--replace`` and ``--background`` to the command of a context.

    Args:
        context: context of the command.
        folder: folder that the command works on.
        changes: values that pin the folder for the background process.

    Returns:
        True if the command continues in the background, so that the caller has nothing left to do.

    Raises:
        ConfigError: see `set_aside` and `run_in_background`; ``--log`` without ``--background``.
    """
    options = context.params
    if options.get("log") and not options["background"]:
        raise ConfigError("--log requires --background. Add --background, or remove --log.")
    if not (options["background"] or options.get("replace")):
        return False
    from slipstream.core.safe_io import path_exists
    from slipstream.core.terminal import print_text
    from slipstream.jobs.job_process import run_in_background, set_aside

    if options.get("replace"):
        if path_exists(folder):
            # Raises before another process is stopped.
            estimate_memory(str(context.command.name), options)
        set_aside(folder, print_text)
    if not options["background"]:
        return False
    applied = {"background": False, "log": None, "replace": False}
    values = {**options, **changes, **applied}
    words = command_line(command_words(context), context.command, values)
    run_in_background(words, folder, options.get("log"), print_text)
    return True


def estimate_memory(command: str, options: Mapping[str, Any]) -> int:
    """Return the memory in bytes that a command's training will need on this machine.

    Args:
        command: train, tune or resume.
        options: values of the command's options.

    Raises:
        SlipstreamError: the training cannot start, for example for lack of data or memory.
    """
    from slipstream.cli.options import train_overrides, tune_overrides
    from slipstream.jobs.memory_forecast import forecast_run_memory, forecast_study_memory
    from slipstream.studies.record.inspection import lookup
    from slipstream.studies.start import prepare_study
    from slipstream.training.runs.run import Run
    from slipstream.training.settings.config import read_config, resolve

    if options["cluster"]:  # the cluster's memory is used
        return 0
    if command == "train":
        return forecast_run_memory(resolve(options["target"], train_overrides(options)))
    if command == "tune":
        return forecast_study_memory(
            *prepare_study(options["target"], *tune_overrides(options)), options["workers"]
        )
    folder, study = lookup(options["run"])
    if study is None:
        run = Run.open(folder, trust=options["trust"])
        return forecast_run_memory(run.resume_config(num_envs=options["num_envs"]))
    return forecast_study_memory(
        *prepare_study(read_config(study.config), {}, {}), options["workers"]
    )
