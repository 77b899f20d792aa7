"""`slipstream list`, `check` and `doctor`: environments, kernel rules, machine diagnostics."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import Target
from slipstream.core.storage.status_file import MARKER_FILES, RUN, STUDY
from slipstream.core.terminal import Trust, print_table, print_text

app = typer.Typer()


@app.command("list", rich_help_panel="Diagnostics", epilog="Example: slipstream list")
def list_() -> None:
    """List environments, agents and backends.

    `slipstream jobs --all` lists runs and studies.
    """
    from slipstream.kernels.kernel_registry import kernel_modules
    from slipstream.rl.agents.agent_registry import agent_modules

    environments = [
        (name, _first_sentence(module)) for name, module in sorted(kernel_modules().items())
    ]
    environments += [
        ("gym:ID", "any Gymnasium environment, such as gym:Acrobot-v1"),
        ("my_env.py", "a kernel file of your own (docs/guides/custom-environment.md)"),
    ]
    backends = [
        ("auto", "compiled for kernels; process or serial for gym:ID, as measured"),
        ("compiled", "kernels compiled to one loop over all sub-environments"),
        ("process", "sub-environments in worker processes with shared memory"),
        (
            "serial",
            "one sub-environment after the other, not compiled; the reference of `compiled`",
        ),
    ]
    agents = [(name, _first_sentence(module)) for name, module in sorted(agent_modules().items())]
    for what_, rows in (("environment", environments), ("agent", agents), ("backend", backends)):
        print_table((what_, "description"), rows)


@app.command(rich_help_panel="Diagnostics", epilog="Example: slipstream check my_env.py")
def check(
    target: Target,
    steps: Annotated[
        int, typer.Option(min=1, help="Run this many steps with random actions.")
    ] = 1_000,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="ENV.B=C",
            help="Set a field of the environment, such as env.length=5; repeatable.",
        ),
    ] = None,
) -> None:
    """Check a kernel against the kernel rules.

    The kernel runs interpreted and compiled. The command reports the first rule that it breaks.
    """
    from slipstream import api
    from slipstream.core.errors import ConfigError
    from slipstream.training.settings.config import parse_overrides

    settings = {}
    for path, value in parse_overrides(set_ or []).items():
        section, _, key = path.partition(".")
        if section != "env" or not key:
            raise ConfigError(f"--set {path} is not below `env`. Write it as env.length=5.")
        settings[key] = value
    api.check(target, steps=steps, **settings)
    print_text(f"{target} complies with the kernel rules.")


@app.command(rich_help_panel="Diagnostics", epilog="Example: slipstream doctor runs/first")
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Environment whose `auto` choices are explained, or run whose speed is analysed.",
            show_default="this machine alone",
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Report this machine's resources and the automatic choices.

    For a run directory or name, report where the run spent its time.
    """
    from slipstream.cli.doctor import (
        capacity_rows,
        kernel_rows,
        machine_rows,
        run_rows,
        sizing_rows,
    )

    folder = None if target is None else _folder(target)
    if folder is not None and (folder / MARKER_FILES[RUN]).is_file():
        rows = run_rows(str(folder), trust)
    else:
        if folder is not None and (folder / MARKER_FILES[STUDY]).is_file():
            target = str(folder / MARKER_FILES[STUDY])
        rows = machine_rows()
        if target is not None:
            rows += kernel_rows(target) + sizing_rows(target) + capacity_rows(target)
    print_table(("what", "found"), rows)


def _folder(target: str) -> Path | None:
    """Return the folder of a run or study; None for a target that can be trained."""
    from slipstream.core.storage.folder_registry import find_folder
    from slipstream.studies.record.folder import STUDIES
    from slipstream.training.environments.factory import get_kind

    if get_kind(target).is_known or Path(target).is_file():
        return None
    folders = [path for path in (Path(target), Path(STUDIES) / target) if path.is_dir()]
    return folders[0] if folders else find_folder(target)


def _first_sentence(module: str) -> str:
    """Return the first sentence of a module's docstring without importing the module."""
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        return f"not available: there is no module {module}"
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_bytes())) or ""
    return docstring.partition("\n\n")[0].replace("\n", " ").rstrip(".")
