"""Run every step in its own process; a step that fails is recorded and the next one starts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import stamp
from benchmarks.worker import WorkerError, run_worker

STEPS = {  # time limits in seconds
    "machine": 60,
    "doctor": 60,
    "tests": 240,
    "resume": 240,
    "graph": 60,
    "minibatch": 420,
    "halves": 120,
    "suite": 420,
}

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)


def run_steps(out: Path, asked: Mapping[str, Any], steps: Mapping[str, float] = STEPS) -> None:
    """Run the steps in order, print a line for each and store their answers in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    answers: dict[str, Any] = {"stamp": stamp()}
    for name, seconds in steps.items():
        began = time.monotonic()
        try:
            answer = run_worker(f"card.steps.{name}", asked, timeout=seconds)
        except WorkerError as error:
            answer = {"told": f"FAILED: {str(error).splitlines()[-1]}", "failed": str(error)}
        answers[name] = answer
        for line in str(answer["told"]).splitlines():
            print(f"{name} ({time.monotonic() - began:.0f} s): {line}", flush=True)
        (out / "card.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for the answers, card.json and gpu.json.")],
    device: Annotated[str, typer.Option(help="Device of the steps; cpu is a dry run.")] = "cuda:0",
    only: Annotated[
        list[str] | None, typer.Option("--step", help="Run only this step; may be repeated.")
    ] = None,
) -> None:
    """Run the open measurements on a GPU."""
    asked = {"device": device, "out": str(out.absolute())}
    run_steps(out, asked, {name: STEPS[name] for name in only or STEPS})


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.card")
