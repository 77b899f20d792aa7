"""A PostgreSQL server for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def server():
    """The URL of a PostgreSQL server of the tests' own, from Debian's packages."""
    found = shutil.which("initdb") or max(
        (str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None
    )
    if found is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql): not tested with it")
    # Not below pytest's folders, which the server's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="slipstream-postgresql-"))
    who = {}
    if os.geteuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        name = "postgres" if "postgres" in names else "nobody"
        who = {"user": name, "cwd": "/"}
        shutil.chown(folder, name)
    data, tools, log = folder / "data", Path(found).resolve().parent, folder / "log"

    def run(*command):
        with log.open("a") as said:
            subprocess.run(command, check=True, stdout=said, stderr=said, **who)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # No socket file: its path may have some 100 characters only, and TMPDIR be longer.
    settings = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off"
    new = ["-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    try:
        run(found, "-D", data, *new)
        run(tools / "pg_ctl", "-D", data, "-w", "-l", folder / "server", "-o", settings, "start")
    except (OSError, subprocess.CalledProcessError) as error:
        words = log.read_text()[-300:]
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"PostgreSQL cannot start a server here ({error}): {words}")
    yield f"postgresql://tester@127.0.0.1:{port}/postgres"
    run(tools / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)
