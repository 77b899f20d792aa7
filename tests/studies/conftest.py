"""Members of small studies, and their weights to the bit; fakes of this folder importable."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from slipstream.market.folds import FoldPlan
from slipstream.settings.config import resolve
from slipstream.studies.engine.member import Member
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.engine.state import LiveStates
from slipstream.studies.engine.stretch import Task, run_stretch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))  # for fake_cluster
sys.path.append(str(Path(__file__).parents[1] / "report"))  # for study_world

TOY = str(Path(__file__).with_name("toy_market.py"))
SIZES = {"training.num_envs": 6, "agent.horizon": 16, "agent.minibatch": 24, "agent.widths": [16]}


class Engine:
    """Members by number, trained in a folder of their own."""

    rows = 6 * 16

    def member(self, k, env=TOY, fold=None, budget=6, test="test", **overrides):
        """Member k of a study; each has other numbers, and shapes are equal."""
        fold = k % 6 if fold is None else fold
        own = {"agent.learning_rate": 1e-3 * (k + 1), "agent.discount": 0.9 + 0.01 * (k % 7)}
        config = resolve(
            env, {**SIZES, "training.total_steps": budget * self.rows, **own, **overrides}
        )
        split = f"fold{fold}/{test}" if test == "test" else test
        return Member(
            f"search-{k // 6:05d}-{k % 6}",
            config,
            f"fold{fold}",
            split,
            1000 + k,
            budget * self.rows,
        )

    def source(self):
        return EnvironmentSource(FoldPlan(), 6)

    def train(self, members, until, folder, source=None, check_stop=lambda: None):
        """Outcomes in their order, and a digest of each member's state."""
        live = LiveStates(folder)
        until = [until] * len(members) if isinstance(until, int) else until
        tasks = [Task(member, milestone) for member, milestone in zip(members, until, strict=True)]
        outcomes = run_stretch(tasks, source or self.source(), live, check_stop)
        return outcomes, {member.name: self.digest(live, member) for member in members}

    def digest(self, live, member):
        """Of everything that a member goes on from; None where there is nothing."""
        state = live.load(member)
        return None if state is None else digest(state.tensors)


def digest(tensors):
    """Of all bits of named arrays."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


@pytest.fixture
def engine():
    return Engine()


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
