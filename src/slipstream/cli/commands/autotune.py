"""`slipstream autotune`: measure the fastest way to step an environment on this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.options import Target
from slipstream.core.terminal import print_text

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.training.autotuner import BenchmarkCase, Measurements

app = typer.Typer()
_COLUMNS = (
    *("envs", "backend", "workers", "steps/s", "cores", "waiting", "MiB", "KiB/env", "training/s"),
)
_MAX_ERROR_LENGTH = 400  # characters of an environment's error message
_LEGEND = """* fastest; workers: worker processes, or threads if compiled; cores: mean busy cores;
waiting: idle share of the stepping processes; MiB: proportional set size (PSS) of all processes;
training/s: environment steps per second, acting and learning included
"""


@app.command(
    rich_help_panel="Diagnostics",
    epilog="Example: slipstream autotune gym:Acrobot-v1 --seconds 30",
)
def autotune(
    target: Target,
    seconds: Annotated[
        float,
        typer.Option(min=5, max=86_400, help="Measure for this many seconds, after start-up."),
    ] = 60.0,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a config with the smallest num_envs that trains at nearly full speed.",
        ),
    ] = None,
) -> None:
    """Measure backends, num_envs, workers and threads.

    Choices that do not change results (backend, workers, threads) are stored and used by
    `backend: auto`. num_envs changes learning, so it is only written to FILE.
    """
    from slipstream.core.errors import ConfigError, ResourceError
    from slipstream.core.safe_io import path_exists
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.training.autotuner import iterations, saturation_point, to_cache_entry, tune
    from slipstream.training.environments.autotune_cache import Tunable, save_entry
    from slipstream.training.settings.config import resolve

    config, _ = resolve(target).with_opponent()
    if write is not None and path_exists(write):
        raise ConfigError(f"{write} exists already. Name another file with --write.")
    with _progress() as log:
        measurements = tune(config, seconds, log)
    if not measurements.step_speeds and not measurements.interrupted:
        raise ResourceError(
            " ".join(_problems(measurements) + _excluded(measurements, seconds, target))
        )
    _show(measurements, seconds, target)
    if measurements.interrupted:
        print_text("Interrupted: nothing was written.")
        raise typer.Exit(130)
    tunable = measurements.environment.part(Tunable)
    identity = None if tunable is None else tunable.identity
    if identity is not None:
        path = save_entry(identity, to_cache_entry(measurements))
        print_text(
            f"`backend: auto` uses these measurements from now on ({path}). No result changes."
        )
    trained = iterations(measurements)
    if not trained:
        return
    num_envs = saturation_point({n: measurement.rate for n, measurement in trained.items()})
    if write is not None:
        tuned_config, _ = resolve(target, {"training.num_envs": num_envs}).with_opponent()
        write_text(write, tuned_config.to_yaml())
        print_text(
            f"{write} has num_envs: {num_envs}. This changes the number of updates in a budget, so "
            "compare the scores."
        )
    elif num_envs != measurements.config.training.num_envs:
        print_text(
            f"`slipstream train {shlex.quote(target)} --num-envs {num_envs}` uses the smallest "
            "number of sub-environments at nearly full speed; --write FILE writes it to a config. "
            "This changes the number of updates in a budget, so compare the scores."
        )


def _show(measurements: Measurements, seconds: float, target: str) -> None:
    """Print the table, the failed measurements and the conclusions."""
    from rich.console import Console

    from slipstream.training.autotuner import recommendations

    print_text(
        f"{measurements.config.env_name}, one member, random actions, {measurements.seconds:.0f} s"
    )
    Console().print(_table(measurements))
    print_text(_LEGEND)
    for sentence in (
        *_problems(measurements),
        *_excluded(measurements, seconds, target),
        *recommendations(measurements),
    ):
        print_text(f"- {sentence}")


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that updates a status line on a terminal's standard error.

    No thread redraws the line, because child processes are forked.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with Live(Text(""), console=console, auto_refresh=False, transient=True) as live:
        yield lambda what: live.update(Text(f"measuring: {what}", no_wrap=True), refresh=True)


def _table(measurements: Measurements) -> Table:
    """Return a table with one row per measured configuration."""
    from rich import box
    from rich.table import Table

    from slipstream.training.autotuner import bytes_per_env, fastest_case, iteration

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    cases = sorted(
        measurements.step_speeds, key=lambda case: (case.num_envs, case.backend == "process", case)
    )
    for case in cases:
        measured, memory = measurements.step_speeds[case], bytes_per_env(measurements, case)
        trained = iteration(measurements, case.num_envs)
        best = case == (
            fastest_case(measurements, case.num_envs) if trained is None else trained.case
        )
        table.add_row(
            f"{case.num_envs:,}",
            case.backend + (" *" if best else ""),
            str(case.workers),
            f"{measured.rate:,.0f}",
            f"{measured.cores:.1f}",
            f"{measured.waiting:.0%}",
            f"{measured.memory / 2**20:,.0f}",
            "-" if memory is None else f"{memory / 2**10:,.0f}",
            f"{trained.rate:,.0f}" if best and trained is not None else "",
        )
    return table


def _problems(measurements: Measurements) -> list[str]:
    """Return one sentence per backend that could not be measured."""
    sentences = []
    for backend in dict.fromkeys(case.backend for case in measurements.problems):
        failed = {
            case: reason
            for case, reason in measurements.problems.items()
            if case.backend == backend
        }
        numbers = ", ".join(dict.fromkeys(str(case.num_envs) for case in failed))
        error = next(iter(failed.values())).partition("Traceback (most recent")[0]
        error = " ".join(error.split()).rstrip(".")
        short = len(error) <= _MAX_ERROR_LENGTH
        error = f"{error}." if short else f"{error[:_MAX_ERROR_LENGTH]} ..."
        sentences.append(f"`{backend}` could not be measured with {numbers} envs: {error}")
    return sentences


def _excluded(measurements: Measurements, seconds: float, target: str) -> list[str]:
    """Return a sentence about the configurations that the time budget excluded."""
    if not measurements.skipped:
        return []

    def named(case: BenchmarkCase) -> str:
        return f"{case.num_envs} {case.backend}"

    listed = ", ".join(dict.fromkeys(map(named, measurements.skipped)))
    return [
        f"The time budget excluded: {listed}. `slipstream autotune {shlex.quote(target)} "
        f"--seconds {5 * seconds:.0f}` includes them."
    ]
