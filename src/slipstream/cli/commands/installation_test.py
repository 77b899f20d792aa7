"""`slipstream selftest`: whether everything works on this machine."""

from __future__ import annotations

import typer

from slipstream.core.terminal import show_table, tell

app = typer.Typer()


@app.command()
def selftest() -> None:
    """Compiles, trains, is killed and resumed, evaluates, reports: two minutes on two cores."""
    import tempfile
    from pathlib import Path

    from slipstream.jobs.selftest import SelfTestError, optional
    from slipstream.jobs.selftest import selftest as steps

    folder = Path(tempfile.mkdtemp(prefix="slipstream-selftest-"))
    try:
        for what, seconds in steps(folder):
            tell(f"ok      {what} ({seconds:.0f} s)")
    except SelfTestError as error:
        tell(f"FAILED  {error}. What it printed and made is in {folder}.")
        raise typer.Exit(1) from None
    show_table(("optional", "here"), optional())
    tell(f"slipstream works here. What was made is in {folder}, and may be deleted.")
