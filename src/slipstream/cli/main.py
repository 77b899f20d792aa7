"""Command discovery, and conversion of errors to one paragraph and an exit code."""

from __future__ import annotations

import errno
import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import typer
from typer.core import TyperGroup

from slipstream.cli import commands, error_reporting
from slipstream.cli.background import detach_if_requested
from slipstream.cli.options import add_cores_option
from slipstream.core.child_process import EXIT_BUSY, EXIT_TIME_BUDGET, JOB_VARIABLE, RESUME_MESSAGE
from slipstream.core.errors import BusyError, SlipstreamError
from slipstream.core.extras import EXTRAS, pip_install_command
from slipstream.core.plugins import find_owner, merge_offers, skip_on_error

# Arguments of pip that install a module, if they differ from its name.
_PIP_WORDS = {
    "gym_anytrading": ("--no-deps", "gym-anytrading==2.0.0"),
    "stable_baselines3": EXTRAS["sb3"],
    "envpool": EXTRAS["envpool"],
    "torch": EXTRAS["torch"],
    "ray": EXTRAS["ray"],
}

# Sections of the help and their commands, in the order of their use. Commands name their section
# as `rich_help_panel`; those of plug-ins follow.
TOPICS = {
    "Train": ("init", "train", "resume", "evaluate", "demo"),
    "Studies": ("tune", "study"),
    "Trading": ("data", "deploy", "rollback", "paper"),
    "Games": ("rank", "best-response"),
    "Jobs": ("status", "watch", "log", "stop", "jobs", "dash"),
    "Policies": ("policy", "model-card", "export"),
    "Diagnostics": ("list", "check", "doctor", "autotune", "selftest"),
}


class _Commands(TyperGroup):
    """Group that lists commands by topic, lets Ctrl-C through and answers former names.

    Typer would print "Aborted!" for Ctrl-C.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per topic."""
        listed = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        limit = formatter.width - 6 - max((len(name) for name, _ in listed), default=0)
        topics: dict[str, list[tuple[str, str]]] = {topic: [] for topic in TOPICS}
        for name, command in listed:
            if command is not None and not command.hidden:
                topic = getattr(command, "rich_help_panel", None) or "Other commands"
                topics.setdefault(topic, []).append((name, command.get_short_help_str(limit)))
        for topic, rows in topics.items():
            order = TOPICS.get(topic, ())
            rows.sort(key=lambda row: order.index(row[0]) if row[0] in order else len(order))
            if rows:
                with formatter.section(topic):
                    formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise error_reporting.CommandInterrupted from None
        except Exception as error:  # Typer hides the class of its usage errors
            error_reporting.name_renamed(error)
            raise


app = typer.Typer(
    name="slipstream",
    cls=_Commands,
    help="Train reinforcement-learning agents on thousands of environments at once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_BUILT_IN = {
    module.name: f"{commands.__name__}.{module.name}"
    for module in pkgutil.iter_modules(commands.__path__)
}


def _load_commands() -> Iterator[Any]:
    """Yield the command modules; a faulty one of another package is reported and skipped."""
    offers = merge_offers("commands")
    foreign = {key: name for key, name in offers.items() if not name.startswith("slipstream.")}
    built_in = {key: name for key, name in offers.items() if key not in foreign} | _BUILT_IN
    loaded = {module: importlib.import_module(module) for module in built_in.values()}
    taken = set[str]()
    if foreign:  # collecting names takes 0.1 s
        taken = {name for module in loaded.values() for name in _command_names(module.app)}
    for _, name in sorted([*built_in.items(), *foreign.items()]):
        if name in loaded:
            yield loaded[name]
            continue
        with skip_on_error(f"The command module {name}", find_owner("commands", name)):
            module = importlib.import_module(name)
            add_cores_option(module.app)
            words, names = set(getattr(module, "FILE_COMMANDS", ())), _command_names(module.app)
            if not all(isinstance(word, str) for word in words):
                raise TypeError(f"`FILE_COMMANDS` must list names of commands, got {words}")
            if names & taken:
                raise ValueError(f"there is already a command {', '.join(sorted(names & taken))}")
            taken |= names
            loaded[name] = module
        if name in loaded:
            yield loaded[name]


def _command_names(commands: typer.Typer) -> set[str]:
    """Return the command-line names of an app's commands."""
    if isinstance(commands.info.name, str):
        return {commands.info.name}
    return set(typer.main.get_group(commands).commands)


_MODULES = list(_load_commands())
for _module in _MODULES:
    app.add_typer(_module.app)
add_cores_option(app)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Train reinforcement-learning agents on thousands of environments at once."""
    context.obj = detach_if_requested  # commands call it for --background and --replace
    if version:
        from slipstream.core.version import __version__

        typer.echo(f"slipstream {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; entry point of `slipstream`.

    Exit codes: 0 success, 1 internal error, 2 user error, 130 interrupted (after a checkpoint if
    there was something to save).
    """
    options = sys.argv[1:] if arguments is None else arguments
    with (
        _on_command_line(),
        error_reporting.resilient_output(_writes_files(options)) as output,
        error_reporting.InterruptHandler() as ctrl_c,
    ):
        try:
            with _as_job() as report_exit:
                code = _run(arguments)
                report_exit(code)
        except SlipstreamError as error:  # the job queue cannot be updated
            error_reporting.print_error(str(error))
            code = error_reporting.USER_ERROR
        code = {
            EXIT_BUSY: error_reporting.USER_ERROR,
            EXIT_TIME_BUDGET: error_reporting.INTERRUPTED,
        }.get(code, code)
        # A library may report Ctrl-C as an error of its own.
        if ctrl_c.requested and code == error_reporting.INTERNAL_ERROR:
            code = error_reporting.INTERRUPTED
        sys.stdout.flush()
        lost = output.lost
        if (
            code == 0
            and lost is not None
            and lost.errno != errno.EPIPE
            and not _writes_files(options)
        ):
            error_reporting.print_error(
                f"Standard output could not be written ({lost.strerror or lost})."
            )
            code = error_reporting.USER_ERROR
    sys.exit(code)


@contextmanager
def _on_command_line() -> Iterator[None]:
    """Let error messages name command-line options instead of Python arguments."""
    before, SlipstreamError.on_command_line = SlipstreamError.on_command_line, True
    try:
        yield
    finally:
        SlipstreamError.on_command_line = before


def _as_job() -> AbstractContextManager[Callable[[int], None]]:
    """Return a context that reports the exit code to the queue that started this process."""
    if JOB_VARIABLE not in os.environ:
        return nullcontext(lambda code: None)
    from slipstream.jobs.job_process import report_to_queue

    return report_to_queue()


@functools.cache
def _command() -> Any:
    """Return the Click command of `app`; Typer would build it at each call, in 0.03 s."""
    return typer.main.get_command(app)


def _run(arguments: list[str] | None) -> int:
    """Run a command, print its errors and return the exit code."""
    try:
        _command()(arguments)
    except SystemExit as stop:
        if stop.code == error_reporting.INTERRUPTED:  # Typer prints nothing
            error_reporting.print_error(f"Interrupted. {RESUME_MESSAGE}")
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except SlipstreamError as error:
        error_reporting.print_error(
            error_reporting.adapt_suggestions(
                str(error), sys.argv[1:] if arguments is None else arguments
            )
        )
        return EXIT_BUSY if isinstance(error, BusyError) else error_reporting.USER_ERROR
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "slipstream":
            return error_reporting.report_internal_error(error)
        error_reporting.print_error(_missing_module(error))
        return error_reporting.USER_ERROR
    except (error_reporting.CommandInterrupted, KeyboardInterrupt):  # before or inside a command
        error_reporting.print_error(f"Interrupted. {RESUME_MESSAGE}")
        return error_reporting.INTERRUPTED
    except Exception as error:
        # Looked up by name: its module is only imported by the commands that train.
        if type(error).__name__ != "Interrupted":
            return error_reporting.report_internal_error(error)
        error_reporting.print_error(str(error))
        return EXIT_TIME_BUDGET if getattr(error, "final", False) else error_reporting.INTERRUPTED
    return 0


def _writes_files(arguments: list[str]) -> bool:
    """Return whether a command produces files, so that its standard output may be lost."""
    file_commands = {
        command for module in _MODULES for command in getattr(module, "FILE_COMMANDS", ())
    }
    return bool({" ".join(arguments[:1]), " ".join(arguments[:2])} & file_commands)


def _missing_module(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    line = pip_install_command(*_PIP_WORDS.get(package, (package,)))
    return f"This needs the package {package}, which is not installed. Install it: {line}"
