"""Runs commands in forked children of one process that has imported everything already.

Reads a line of JSON a command, ``{"argv", "cwd", "seconds"}``, and answers with a line:
``{"code", "out", "err", "cpu", "hung"}``; `code` is negative for a signal.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

MEMORY = 12 << 30  # bytes of address space: an array of 3e9 numbers must not take the machine


def serve() -> None:
    import resource

    import gymnasium  # noqa: F401
    import numba  # noqa: F401
    import optuna  # noqa: F401
    import polars  # noqa: F401
    import tensorboardX  # noqa: F401
    from numba.core.registry import cpu_target

    import slipstream.api
    import slipstream.markets.forex.kernel  # and with it TA-Lib and pandas
    import slipstream.markets.portfolio.kernel
    import slipstream.report.run_evaluation
    import slipstream.report.run_page
    import slipstream.rl.agents.ppo.ppo
    import slipstream.studies.start  # noqa: F401
    from slipstream.cli import main

    cpu_target.typing_context.refresh()  # what Numba reads of itself when it first loads a function
    cpu_target.target_context.refresh()
    gc.freeze()  # else each child searches for garbage in all that was imported

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        cwd = Path(asked["cwd"])
        texts = [cwd.parent / f"{cwd.name}.{name}" for name in ("out", "err")]
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for number, path in enumerate(texts, 1):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                os.chdir(cwd)
                sys.argv = ["slipstream", *asked["argv"]]
                code = _exit_code(main, asked["argv"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status, usage, hung = _wait(pid, asked["seconds"])
        out, err = (path.read_text(errors="replace") for path in texts)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "out": out,
            "err": err,
            "cpu": usage.ru_utime + usage.ru_stime,
            "hung": hung,
        }
        print(json.dumps(answer), file=answers, flush=True)


def _exit_code(main: Any, argv: list[str]) -> int:
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    return int(code or 0)


def _wait(pid: int, seconds: float) -> tuple[int, Any, bool]:
    """Waits for a child, and kills its whole session after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return status, usage, False
        time.sleep(0.005)
    os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage, True


if __name__ == "__main__":
    serve()
