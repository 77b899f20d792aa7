"""One thread a process, for test workers share the cores; no files of the user but the tests' own.

Hypothesis draws the same examples everywhere and at any speed: what fails here fails there.

No test depends on the folder in which pytest was started: all run in a folder that is empty before
and after each test (`own_place`), and no test leaves a file in the checkout (`clean_checkout`).
"""

import faulthandler
import functools
import gc
import locale
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from slipstream.core.storage import provenance

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of some hundred processes that tests
sys.dont_write_bytecode = False  # begin would compile 250 files of ours again, for half a second
#: Settings of the user's shell that no test asks for, and that programs it starts would follow: a
#: proxy between a test and its own server, another repository for git, a terminal where a pipe is.
FOREIGN = re.compile(
    r"(?i:(http|https|ftp|all|no)_proxy)|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TTY_\w+"
    r"|(GIT|RAY|WANDB|SLURM|APCA)_\w+|SLIPSTREAM_(?!CACHE$)\w+|PYTHONWARNINGS|PYTHONOPTIMIZE"
)
for _name in filter(FOREIGN.fullmatch, list(os.environ)):
    del os.environ[_name]
for _number in (signal.SIGINT, signal.SIGHUP):  # a shell in the background ignores them, and we
    if signal.getsignal(_number) == signal.SIG_IGN:  # would: what is ignored stays ignored
        _usual = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, _usual)
# Files that tests read and write without an encoding are UTF-8 in every locale. Programs that they
# start have the user's locale.
with suppress(locale.Error):
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# pytest reports a crash to the terminal. In a forked child, which a test crashes on purpose, the
# report goes to the standard error that pytest captures.
os.register_at_fork(after_in_child=lambda: faulthandler.is_enabled() and faulthandler.enable(2))
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


ROOT = Path(__file__).parents[1]
#: Words of a skip for a Python package that is absent; such a skip fails with ``--all-packages``.
ABSENT = re.compile(r"could not import|is not installed|needs requirements-|pip install|is absent")
#: What the peers' lock cannot install: other systems' packages.
ELSEWHERE = re.compile(r"the original environment is not installed|PostgreSQL|git is not|Chromium")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-packages",
        action="store_true",
        help="A test that is skipped because a package is absent fails (`make test-all`).",
    )


def fail_where_a_package_is_absent(
    config: pytest.Config, report: pytest.CollectReport | pytest.TestReport
) -> None:
    """Makes a failure of a skip whose reason says that a package of our locks is absent."""
    if not (config.getoption("all_packages") and report.skipped and "xfail" not in vars(report)):
        return
    *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
    if ABSENT.search(str(reason)) and not ELSEWHERE.search(str(reason)):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {reason}; with --all-packages no package may be absent"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Iterator[None]:
    report = yield
    fail_where_a_package_is_absent(collector.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    fail_where_a_package_is_absent(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported stays: searching it for garbage took a fourth of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest begins first, so that no worker is left with it at the end.

    Worksteal gives each worker a stretch of the list, and who is done takes from the end of
    another's: the front stays together, and its files share what they made.
    """

    def patience(item: pytest.Item) -> float:
        timeout = item.get_closest_marker("timeout")
        long = item.get_closest_marker("slow") is not None
        return (float(timeout.args[0]) if timeout else 300.0) if long else 0.0

    items.sort(key=patience, reverse=True)


@pytest.fixture(autouse=True, scope="session")
def own_files(tmp_path_factory):
    """What a developer measured, or made, changes no test; child processes follow it, too.

    Yields an empty folder, in which tests run: whatever lies where pytest was started, such as the
    runs of a demo, is out of their way.
    """
    empty = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_MACHINE", str(tmp_path_factory.mktemp("machine")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.chdir(empty)
        yield empty


@pytest.fixture(autouse=True)
def own_place(own_files):
    """Fail a test that changes what the tests after it find, and undo the change.

    That is: the working directory, a file in it, and the cores that this process may use. A test
    that writes to relative paths calls ``monkeypatch.chdir(tmp_path)`` first.
    """
    before = place()
    yield
    after, left = place(), sorted(path.name for path in own_files.iterdir())
    for name in left:
        path = own_files / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder, cores = before
    os.chdir(folder)
    if cores != after[1]:
        os.sched_setaffinity(0, cores)
    assert after == before, f"the test leaves other tests {after} instead of {before}"
    assert not left, f"the test left {left} in the working directory: it must write below tmp_path"


def place() -> tuple[str, set[int]]:
    """Return the working directory and the cores of this process."""
    return os.getcwd(), os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture(autouse=True, scope="module")
def clean_checkout(known_files):
    """Fail the last test of a file if new files are in the checkout, caches apart."""
    yield
    new = sorted(files_of_checkout() - known_files)
    known_files.update(new)
    assert not new, f"left in the checkout by tests of this file or by those beside them: {new}"


@pytest.fixture
def _free_alarm():
    """Lend the timer of pytest's own time limit to the test."""
    seconds, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.fixture(scope="session")
def known_files():
    """Files and folders of the checkout that the session found or has already reported."""
    return files_of_checkout()


def files_of_checkout() -> set[str]:
    """Return the paths of what is in the checkout and is neither hidden nor a cache."""
    found = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [one for one in folders if not one.startswith((".", "__pycache__"))]
        found.update(os.path.join(folder, one) for one in (*files, *folders))
    return found


@pytest.fixture(autouse=True, scope="session")
def no_waiting():
    """In this process nobody waits for the disk, of which power cuts are tried in others; git is
    asked about this checkout once, and a package's files about its version, not by each of some
    hundred runs; and they look at their memory without going through all pages of it, which are
    many here (`exact_memory` does)."""
    ask = provenance.describe_commit
    known = functools.cache(lambda: ask(ROOT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(metadata, "version", functools.cache(metadata.version))
        patch.setattr(psutil.Process, "memory_full_info", psutil.Process.memory_info)
        patch.setattr(
            provenance,
            "describe_commit",
            lambda folder: known() if folder.is_relative_to(ROOT) else ask(folder),
        )
        yield


_memory_full_info = psutil.Process.memory_full_info


@pytest.fixture
def smallest_study():
    """The config of a study of two trials that takes a second."""
    return {
        "env": {"name": "cartpole"},
        "agent": {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "net_arch": [4]},
        "training": {"num_envs": 2, "total_timesteps": 64},
        "study": {
            "n_trials": 2,
            "fold_seeds": 2,
            "pruning": {"rungs": []},
            "confirmation": {"top": 1, "seeds": 1, "bootstrap": 20},
            "final_seeds": 1,
            "space": {"agent.learning_rate": {"low": 1e-4, "high": 1e-3}},
        },
    }


@pytest.fixture
def exact_memory(monkeypatch):
    """Pages that processes share are counted once, as outside of tests."""
    monkeypatch.setattr(psutil.Process, "memory_full_info", _memory_full_info)


@pytest.fixture(scope="module")
def one_server():
    """Workers of a file's environments are forked by one server, and end with their environment.

    A server of its own for each takes an interpreter's start, longer than most of their tests. It
    has the search path of the first one.
    """
    # NumPy, which reads the threads that it may have
    from slipstream.gym.process import process_driver
    from slipstream.gym.process.process_pool import ProcessPool

    owner, kept, close = os.getpid(), ProcessPool(), ProcessPool.close

    def process_pool(method):
        fresh = ProcessPool(method)  # it may be refused
        return kept if method == "forkserver" and os.getpid() == owner else fresh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_driver, "ProcessPool", process_pool)
        patch.setattr(ProcessPool, "close", lambda self: None if self is kept else close(self))
        yield
    kept.close()


@pytest.fixture(autouse=True, scope="module")
def own_garbage():
    """What a file's tests leave unclosed is an error there; what is imported is not searched again.

    Hundreds of thousands of objects of Numba and torch took a tenth of the time.
    """
    gc.freeze()
    yield
    gc.collect()
