"""`slipstream tune-machine`: how copies are stepped fastest here, and what more could give."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.options import Target
from slipstream.core.terminal import tell

if TYPE_CHECKING:
    from rich.table import Table

    from slipstream.training.autotune import Cell, Measurements

app = typer.Typer()
_COLUMNS = (
    *("copies", "backend", "by", "steps/s", "cores", "waiting", "MiB", "KiB/copy", "training/s"),
)
_LONGEST = 400  # characters of what an environment raised
_LEGEND = """* fastest; by: worker processes, or threads where compiled; cores: busy on average;
waiting: of the processes that step; MiB: of all processes, shared pages in parts (PSS);
training/s: steps per second with acting and learning
"""


@app.command()
def tune_machine(
    target: Target,
    seconds: Annotated[
        float, typer.Option(min=5, max=86_400, help="Budget; starting takes a few more.")
    ] = 60.0,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a config with the fewest copies that train nearly fastest."
        ),
    ] = None,
) -> None:
    """Measures backends, copies, workers and threads, and what more copies could give.

    What changes no result (backend, workers, threads) is remembered for `backend: auto`; what
    learning depends on (the number of copies) is written into FILE only, where one is named.
    """
    from slipstream.core.errors import ConfigError, ResourceError
    from slipstream.core.safe_io import is_there
    from slipstream.core.storage.atomic_io import write_text
    from slipstream.training.autotune import iterations, knee, measured, tune
    from slipstream.training.environments.autotune_cache import Tunable, remember
    from slipstream.training.settings.config import resolve

    config, _ = resolve(target).seated()
    if write is not None and is_there(write):
        raise ConfigError(f"{write} is there already: name another file with --write.")
    with _progress() as say:
        found = tune(config, seconds, say)
    if not found.stepped and not found.interrupted:
        raise ResourceError(" ".join(_problems(found) + _left(found, seconds, target)))
    _show(found, seconds, target)
    if found.interrupted:
        tell("Interrupted: nothing was written.")
        raise typer.Exit(130)
    tunable = found.environment.part(Tunable)
    identity = None if tunable is None else tunable.identity
    if identity is not None:
        path = remember(identity, measured(found))
        tell(f"`backend: auto` goes by it from now on ({path}); no result depends on it.")
    trained = iterations(found)
    if not trained:
        return
    copies = knee({n: one.rate for n, one in trained.items()})
    if write is not None:
        chosen, _ = resolve(target, {"training.num_envs": copies}).seated()
        write_text(write, chosen.to_yaml())
        tell(
            f"{write} has {copies} copies: a budget then has other updates, so look at the scores."
        )
    elif copies != found.config.training.num_envs:
        tell(
            f"`slipstream train {shlex.quote(target)} --num-envs {copies}` trains with the knee's "
            "copies, and --write FILE writes them into a config: a budget then has other updates, "
            "so look at the scores, too."
        )


def _show(found: Measurements, seconds: float, target: str) -> None:
    """The table, what could not be measured, and what all of it means."""
    from rich.console import Console

    from slipstream.training.autotune import sentences

    tell(f"{found.config.env_name}, one member, random actions, {found.seconds:.0f} s")
    Console().print(_table(found))
    tell(_LEGEND)
    for sentence in (*_problems(found), *_left(found, seconds, target), *sentences(found)):
        tell(f"- {sentence}")


@contextmanager
def _progress() -> Iterator[Any]:
    """A line on a terminal's standard error; no thread redraws it, for children are forked."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with Live(Text(""), console=console, auto_refresh=False, transient=True) as live:
        yield lambda what: live.update(Text(f"measuring: {what}", no_wrap=True), refresh=True)


def _table(found: Measurements) -> Table:
    """A row for each way of stepping."""
    from rich import box
    from rich.table import Table

    from slipstream.training.autotune import bytes_per_env, fastest, iteration

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    for cell in sorted(found.stepped, key=lambda one: (one.copies, one.backend == "process", one)):
        one, each = found.stepped[cell], bytes_per_env(found, cell)
        trained = iteration(found, cell.copies)
        best = cell == (fastest(found, cell.copies) if trained is None else trained.cell)
        table.add_row(
            f"{cell.copies:,}",
            cell.backend + (" *" if best else ""),
            str(cell.workers),
            f"{one.rate:,.0f}",
            f"{one.cores:.1f}",
            f"{one.waiting:.0%}",
            f"{one.memory / 2**20:,.0f}",
            "-" if each is None else f"{each / 2**10:,.0f}",
            f"{trained.rate:,.0f}" if best and trained is not None else "",
        )
    return table


def _problems(found: Measurements) -> list[str]:
    """What could not be measured, a sentence for each backend."""
    said = []
    for backend in dict.fromkeys(cell.backend for cell in found.problems):
        mine = {cell: why for cell, why in found.problems.items() if cell.backend == backend}
        copies = ", ".join(dict.fromkeys(str(cell.copies) for cell in mine))
        first = next(iter(mine.values())).partition("Traceback (most recent")[0]
        first = " ".join(first.split()).rstrip(".")
        first = f"{first}." if len(first) <= _LONGEST else f"{first[:_LONGEST]} ..."
        said.append(f"`{backend}` could not be measured with {copies} copies: {first}")
    return said


def _left(found: Measurements, seconds: float, target: str) -> list[str]:
    """What there was no time for."""
    if not found.left_out:
        return []

    def named(cell: Cell) -> str:
        return f"{cell.copies} {cell.backend}"

    shown = ", ".join(dict.fromkeys(map(named, found.left_out)))
    return [
        f"There was no time for: {shown}. `slipstream tune-machine {shlex.quote(target)} --seconds "
        f"{5 * seconds:.0f}` has it."
    ]
