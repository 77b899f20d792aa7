"""`slipstream selftest`: end-to-end test of the installation."""

from __future__ import annotations

import typer

from slipstream.core.terminal import print_table, print_text

app = typer.Typer()


@app.command(rich_help_panel="Diagnostics", epilog="Example: slipstream selftest")
def selftest() -> None:
    """Test the installation end to end in about two minutes.

    The test compiles, trains, kills and resumes a run, evaluates it and writes a report.
    """
    import tempfile
    from pathlib import Path

    from slipstream.jobs.smoke_test import SmokeTestError, list_optional
    from slipstream.jobs.smoke_test import run_smoke_test as steps

    folder = Path(tempfile.mkdtemp(prefix="slipstream-selftest-"))
    try:
        for what, seconds in steps(folder):
            print_text(f"ok      {what} ({seconds:.0f} s)")
    except SmokeTestError as error:
        print_text(f"FAILED  {error}. Its output and files are in {folder}.")
        raise typer.Exit(1) from None
    print_table(("optional", "here"), list_optional())
    print_text(f"slipstream works here. The files in {folder} may be deleted.")
