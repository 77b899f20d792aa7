"""Malformed input of every kind ends in exit code 2 and one paragraph, within ten seconds.

`make test` takes a sample of most families, `make test-all` all cases of all of them (some
thousands). What may be accepted stands in `accepted.py` with its reason.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from accepted import may_be_accepted
from artefacts import artefacts, make
from broken_kernels import kernels
from calls import folders, options, targets
from configs import studies, texts, values_of_wrong_kind
from curricula import curricula
from environments import environments
from malformed import Case
from prices import prices

from slipstream.markets.synthetic import SyntheticCrypto, SyntheticForex

SECONDS = 10.0  # of processor time; on a busy machine the clock may say more
HERE = Path(__file__).parent
SAMPLE = 5  # cases of a family that `make test` runs
CHUNKS = 6  # parts of a family that `make test-all` runs, so that processes share the work


class Server:
    """Commands in forked children of one process; see server.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.count = 0

    def run(self, case: Case) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        case.arrange(folder)
        argv = [word.replace("{folder}", str(folder)) for word in case.argv]
        asked = {"argv": argv, "cwd": str(folder), "seconds": 90.0}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        shutil.rmtree(folder, ignore_errors=True)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def complaint(case: Case, answer: dict[str, Any]) -> str | None:
    """What is wrong with how a command ended; None where it ended as it should."""
    text = answer["out"] + answer["err"]
    # What a data check finds is its output, and says by the exit code whether it can be loaded.
    said = answer["err"] or (answer["out"] if case.argv[:2] == ("data", "check") else "")
    last = said.strip().splitlines()[-1:]
    if answer["hung"] or answer["cpu"] > SECONDS:
        return f"took {answer['cpu']:.0f} s of processor time{', hung' * answer['hung']}"
    if "Traceback" in text or answer["code"] < 0:
        return f"exit code {answer['code']}: {text.strip()[-400:]}"
    if answer["code"] == 0 and may_be_accepted(case.name):
        return None
    if answer["code"] != 2:
        return f"exit code {answer['code']}: {text.strip()[-300:]}"
    if "\x1b" in answer["err"]:
        return f"an escape sequence reached the terminal: {last}"
    if not last or len(last[0].split()) < 4:
        return f"no sentence: {last}"
    return None


def family(
    name: str, made: Callable[[], Path], markets: Callable[[], dict[str, Path]]
) -> list[Case]:
    """All cases of one kind."""
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "values": lambda: values_of_wrong_kind(markets()),
        "texts": texts,
        "curricula": curricula,
        "studies": studies,
        "options": options,
        "targets": targets,
        "folders": folders,
        "kernels": kernels,
        "environments": environments,
        "prices": prices,
        "artefacts": lambda: artefacts(made()),
    }
    return list(makers[name]())


FAMILIES = (
    *("values", "texts", "curricula", "studies", "options", "targets", "folders"),
    *("kernels", "environments", "prices", "artefacts"),
)


# What is dear is made once for all tests of a process, when the first of them asks for it.


@pytest.fixture(scope="module")  # no longer: other tests count the children of their process
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("served"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    @cache
    def ready() -> Path:
        folder = tmp_path_factory.mktemp("made")
        make(folder)
        return folder

    return ready


@pytest.fixture(scope="session")
def markets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[str, Path]]:
    @cache
    def ready() -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("markets")
        SyntheticForex().write(folder / "forex", 4000, 0)
        SyntheticCrypto().write(folder / "portfolio", 4000, 0)
        return {"forex": folder / "forex", "portfolio": folder / "portfolio"}

    return ready


def check(server: Server, cases: list[Case]) -> None:
    wrong = []
    for case in cases:
        answer = server.run(case)
        if answer["code"] == 0 and answer["cpu"] > SECONDS:  # it compiled: once, and now it is fast
            answer = server.run(case)
        found = complaint(case, answer)
        if found is not None:
            wrong.append(f"{case.name}: {found}")
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ("values", "artefacts"))) for n in FAMILIES],
)
def test_a_sample_of_malformed_input(name: str, server: Server, made: Any, markets: Any) -> None:
    cases = family(name, made, markets)
    check(server, random.Random(name).sample(cases, min(SAMPLE, len(cases))))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", FAMILIES)
def test_malformed_input(name: str, chunk: int, server: Server, made: Any, markets: Any) -> None:
    check(server, family(name, made, markets)[chunk::CHUNKS])


@pytest.mark.slow
def test_names_are_unique_and_there_are_enough(made: Any, markets: Any, tmp_path: Path) -> None:
    quick = [name for name in FAMILIES if name not in ("values", "artefacts")]
    names = [case.name for name in quick for case in family(name, made, markets)]
    assert len(names) == len(set(names)) >= 300
