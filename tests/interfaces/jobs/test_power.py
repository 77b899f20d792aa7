"""The power fails after any call of a training, a study or a queue: nothing promised is lost.

Each is recorded once, and its disk rebuilt as a power cut could leave it (`disk.py`). Then a user's
commands run on it: they end in the bits of the undisturbed one. Or they say in one paragraph what
to do, and the command that began it, given again, ends in those bits.
"""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from aftermath import Recording, State, slipstream
from disk import lay, look
from syscalls import MISSING, available, record

from slipstream.cli.main import main
from slipstream.core.storage import checkpoint, yaml_file
from slipstream.core.storage.csv_table import read_table
from slipstream.core.storage.resource_monitor import COLUMNS, WALL
from slipstream.jobs.queue import JobQueue
from slipstream.markets.live.journal import Journal
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.training.population.member_state import LiveStates, PolicyStore
from slipstream.training.runs.run import Run

TOY = Path(__file__).parents[2] / "engine/samples/toy_market.py"
MAIN = [sys.executable, "-c", "from slipstream.cli import main; main()"]
SMALL = ["agent.n_steps=16", "agent.batch_size=32", "agent.n_epochs=1", "agent.net_arch=[8]"]
TRAIN = [
    *("--num-envs=4", "--members=3", "--total-timesteps=1536", "--no-report"),
    *(f"--set={one}" for one in (*SMALL, "evaluation.episodes=4", "training.keep_last=2")),
    "--set=training.checkpoint_every=0.3333",
]
STUDY = {
    "env": {"name": str(TOY)},
    "agent": {"n_steps": 16, "batch_size": 24, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 6, "total_timesteps": 384},
    "evaluation": {"deterministic": False},  # so that everybody trades, and may win
    "study": {
        "n_trials": 4,
        "max_concurrent_trials": 2,
        "folds": {"method": "kfold", "groups": 2},
        "pruning": {"rungs": [0.5], "startup": 2},
        "confirmation": {"top": 2, "seeds": 2, "bootstrap": 50},
        "final_seeds": 2,
        "space": {"agent.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    },
}
_CLOCKS = {WALL, "wall", *COLUMNS}


class Place:
    """A disk below a folder that stays, where programs are recorded and tried again.

    Args:
        folder: of the test.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "disk"
        self.variables = {"XDG_STATE_HOME": str(self.root / "state")}
        self.root.mkdir()

    def record(self, *command: str) -> Recording:
        """Record the file operations of a program; no shared map writes a durable file."""
        calls = list(record(command, self.folder / "log", self.folder, self.variables))
        (self.folder / "log").unlink()
        found = Recording(self.root, calls)
        assert found.end == look(self.root)
        assert not found.maps
        return found

    def __call__(self, *words: str):
        """A command of slipstream on the disk."""
        return slipstream(*words, cwd=self.folder, variables=self.variables)

    def each(self, recording: Recording, most: int, after: Callable[[State], str]) -> None:
        """Does on a sample of states what a user would, and says how each ended."""
        counts, faults = Counter[str](), list[str]()
        for state in recording.states(most):
            lay(state.image, self.root)
            try:
                counts[f"{state.cut.name}: {after(state)}"] += 1
            except AssertionError as fault:
                faults.append(f"{state}: {str(fault)[:1500]}")
                print(faults[-1], flush=True)
        print(f"{len(recording.calls)} calls, {len(recording)} states, tried:", dict(counts))
        assert not faults, (
            f"{len(faults)} faults of {counts.total() + len(faults)}\n" + "\n\n".join(faults[:10])
        )


def here(*words: str) -> int:
    """A command in this process, whose children then have what it loaded and compiled."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path.resolve())


@pytest.fixture
def watched():
    """Programs can be watched here: a long test that is not tried anywhere would be no test."""
    if not available():
        pytest.fail(MISSING)


def run_bits(path: Path):
    """All that a run learned and wrote down, but for seconds."""
    run = Run.open(path)
    newest, _ = checkpoint.load(checkpoint.checkpoints(path / "checkpoints")[-1])
    best = {member: run.best.load(member) for member in run.members}
    tables = [
        {name: rows for name, rows in table.items() if not _clock(name)}
        for table in (run.metrics(), run.evaluations())
    ]
    assert run.result is not None
    return (
        _bytes(newest),
        {member: (_bytes(tensors), facts["score"]) for member, (tensors, facts) in best.items()},
        tables,
        run.result["members"],
    )


def _clock(name: str) -> bool:
    return name in _CLOCKS or name.startswith("seconds")


def _bytes(tensors):
    return {name: value.tobytes() for name, value in tensors.items()}


def study_bits(path: Path):
    """All that a study asked, learned, decided and opened."""
    with Ledger(path / "ledger.db") as ledger:
        asks = [(a.trial, a.time, dict(a.params)) for a in ledger.suggestions().values()]
        verdicts = [(v.trial, v.stage, v.kind, v.score, v.folds) for v in ledger.decisions()]
        outcomes = {
            (phase, *key): (one.failed, one.backtests and one.backtests.returns.tobytes())
            for phase in ("search", "confirm", "final")
            for key, one in ledger.outcomes(phase).items()
        }
    kept = PolicyStore(path / "weights")
    weights = {name: kept.get(name) for _, name, _ in outcomes}
    result = StudyFolder(path).result
    assert result is not None
    return (
        asks,
        verdicts,
        outcomes,
        {name: _bytes(one[0]) for name, one in weights.items() if one is not None},
        [result[name] for name in ("confirmation", "winner", "holdout")],
        (path / "policy" / "state.safetensors").read_bytes(),
        openings(path.parents[1]),
    )


def openings(root: Path) -> list[int]:
    """Return the hold-out's openings by the ledger, the user's register and the other one."""
    asked = (
        ("studies/one/ledger.db", "SELECT count(*) FROM openings"),
        ("state/slipstream/holdouts/openings.db", "SELECT count(*) FROM seen"),
        ("studies/.openings.db", "SELECT count(*) FROM seen"),
    )
    found = []
    for path, question in asked:
        number = 0
        with suppress(sqlite3.OperationalError):  # not there, or without its tables
            if (root / path).exists():
                with closing(sqlite3.connect(root / path)) as table:
                    ((number,),) = table.execute(question).fetchall()
        found.append(number)
    return found


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_training_goes_on_to_the_same_bits(place, watched):
    run = place.root / "runs" / "one"
    command = ["train", *TRAIN, f"--out={run}", "cartpole"]
    warm = ["train", *TRAIN, f"--out={place.folder}/warm", "cartpole"]
    assert here(*warm) == here("evaluate", f"{place.folder}/warm") == 0
    recording = place.record(*MAIN, *command)
    assert sum(Path(call.to).name.startswith("step-") for call in recording.calls) == 3
    expected = run_bits(run)

    def after(state: State) -> str:
        place("status", str(run)).check(0, 2)
        place("evaluate", str(run)).check(0, 2)
        again = place("resume", "--no-report", str(run)).check(0, 2)
        if again.code:
            place(*command).check(0)
        assert run_bits(run) == expected
        return "begun again, as it says" if again.code else "the same bits"

    place.each(recording, 150, after)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_study_goes_on_to_the_same_bits_and_forgets_no_opening(place, watched):
    study, config = place.root / "studies" / "one", place.folder / "study.yaml"
    config.write_text(yaml_file.dump(STUDY))
    command = ["tune", "--no-report", "--force-deploy", "--workers=2"]
    assert here(*command, f"--study-name={place.folder}/warm", str(config)) == 0
    command += [f"--study-name={study}", str(config)]
    recording = place.record(*MAIN, *command)
    expected = study_bits(study)
    assert expected[-1] == [1, 1, 1] and expected[4][2]["opening"] == 1
    opened_before(recording, place.folder / "after")

    def after(state: State) -> str:
        place("status", str(study)).check(0, 2)
        place("study", "status", str(study)).check(0, 2)
        again = place("resume", "--no-report", "--force-deploy", str(study)).check(0, 2)
        if again.code:
            place(*command).check(0)
        place("study", "status", str(study)).check(0)
        assert study_bits(study) == expected
        return "begun again, as it says" if again.code else "the same bits"

    place.each(recording, 120, after)


def opened_before(recording: Recording, folder: Path) -> None:
    """From the first word of the final training on no power cut leaves the hold-out unopened."""
    begun, looked = False, 0
    for state in recording.states():
        call = state.call
        begun |= b"final training" in call.data or Path(call.path).name.startswith("final-")
        if not begun:
            continue
        named = ("openings.db", "ledger.db")
        databases = {
            path: content
            for path, content in state.image.items()
            if content is None or any(name in path for name in named)
        }
        lay(databases, folder)
        assert openings(folder) == [1, 1, 1], str(state)
        looked += 1
    assert looked > 100


QUEUE = """
import os, subprocess, sys, time
from slipstream.jobs.queue import STOPPED, user_queue
from slipstream.jobs.job_process import stop_process
root, *train = sys.argv[1:]
main = [sys.executable, "-c", "from slipstream.cli import main; main()"]
said = open(os.path.dirname(root) + "/said", "ab", 0)
def tell(words): said.write(words.encode() + b"\\n")
def jobs(*words): subprocess.run([*main, "jobs", *words], check=True)
def retry(name):
    tell(f"retrying {name}")
    jobs("retry", name)
    tell(f"retried {name}")
config = os.path.dirname(root) + "/c.yaml"
more = "--total-timesteps=40_000"
for name, *target in (("a", "cartpole"), ("b", "cartpole", more), ("c", config)):
    jobs("add", "--", "train", *train, f"--out={root}/runs/{name}", *target)
    tell(f"added {name}")
tell("stopping b")
jobs("stop", "b")  # before it begins
tell("stopped b")
jobs("run", "--until-idle", "--cores=1")
retry("b")
supervisor = subprocess.Popen([*main, "jobs", "run", "--until-idle", "--cores=1"])
while not os.path.exists(root + "/runs/b/metrics.csv"):
    time.sleep(0.005)
tell("stopping b")
with user_queue() as queue:  # at work: as `jobs stop` does it, but at once
    queue.set_target(queue.job(2), STOPPED)
    stop_process(queue.job(2))
    assert supervisor.wait() == 0 and not queue.job(2).final_state
tell("stopped b")
retry("b")
jobs("run", "--until-idle", "--cores=1")
"""


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_queue_loses_no_job_and_begins_none_twice(place, watched):
    (place.folder / "c.yaml").write_text("env: cartpole\ntraining: {seed: 7}\n")
    runs = {name: place.root / "runs" / name for name in "abc"}
    recording = place.record(sys.executable, "-c", QUEUE, str(place.root), *TRAIN)
    expected = {name: run_bits(path) for name, path in runs.items()}
    queue = place.root / "state" / "slipstream" / "jobs"

    def after(state: State) -> str:
        added = {word.split()[1] for word in state.said if word.startswith("added")}
        place("jobs", "--all").check(0)
        with JobQueue(queue) as table:
            jobs = {job.name: job for job in table.jobs()}
        assert added <= jobs.keys(), (added, state.said)
        last = [word for word in state.said if word.endswith(" b")][-1:]
        assert last != ["stopped b"] or jobs["b"].target_state == "stopped"
        assert last != ["retried b"] or jobs["b"].target_state == "complete"
        done = {name for name, job in jobs.items() if job.final_state == "complete"}
        assert all(run_bits(runs[name]) == expected[name] for name in done)
        before = {name: (runs[name] / "metrics.csv").stat().st_mtime_ns for name in done}
        place("jobs", "run", "--until-idle").check(0)
        with JobQueue(queue) as table:
            for job in table.jobs():
                assert job.final_state != "failed", job
                if job.target_state == "stopped" and not job.final_state:
                    table.retry(job)
        place("jobs", "run", "--until-idle").check(0)
        for name in jobs:
            assert run_bits(runs[name]) == expected[name]
        assert before == {name: (runs[name] / "metrics.csv").stat().st_mtime_ns for name in done}
        return f"{len(jobs)} jobs, {len(done)} done before"

    place.each(recording, 60, after)


FILES = """
import numpy, sys
from pathlib import Path
from types import SimpleNamespace
from slipstream.core.storage.atomic_io import make_folder, atomic_folder, write_bytes
from slipstream.core.storage.csv_table import CsvTable
from slipstream.training.population.member_state import LiveStates, State
folder = Path(sys.argv[1]) / "above" / "below"
said = open(sys.argv[1] + "/../said", "ab", 0)
make_folder(folder)
said.write(b"folder\\n")
for content in (b"1", b"2" * 5000):
    write_bytes(folder / "file", content)
    said.write(b"file\\n")
for content in (b"1", b"2" * 5000):
    with atomic_folder(folder / "whole") as place:
        (place / "one").write_bytes(content)
        (place / "two").write_bytes(content)
    said.write(b"whole\\n")
table = CsvTable(folder / "table.csv", print)
for step in (1, 2):
    table.append([{"step": step}])
    table.sync()
    said.write(b"row\\n")
live, ones = LiveStates(folder), {"a": numpy.ones(3)}
member = SimpleNamespace(name="member", fingerprint="its")
live.save(member, State(1, ones))
live.save(member, State(2, ones, (ones, {})))
said.write(b"policy\\n")
live.keep_policy_only(member)
"""


@pytest.mark.skipif(not available(), reason=MISSING)
def test_files_are_whole_when_their_writer_has_said_so(place):
    recording = place.record(sys.executable, "-c", FILES, str(place.root))
    folder, versions = place.root / "above" / "below", [None, b"1", b"2" * 5000]

    def after(state: State) -> str:
        said = Counter(state.said)
        assert folder.is_dir() or not said
        assert held(folder / "file") in versions[said["file"] :][:2]
        one, two = (held(folder / "whole" / name) for name in ("one", "two"))
        replaced = said["whole"] == 1  # for an instant it is absent
        assert one == two and (one in versions[said["whole"] :][:2] or (replaced and one is None))
        steps = read_table(folder / "table.csv").get("step", [])
        assert steps in [[], [1.0], [1.0, 2.0]][said["row"] :][:2]
        policy = LiveStates(folder).policy("member")
        assert policy is not None or not said["policy"]
        return "whole"

    place.each(recording, 10_000, after)


def held(path: Path) -> bytes | None:
    """Return the content of a file, or None."""
    return path.read_bytes() if path.exists() else None


ADD = """
import os, sys
from slipstream.jobs.job_process import job_environment
from slipstream.jobs.queue import user_queue
from pathlib import Path
said = open(sys.argv[1] + "/../said", "ab", 0)
for name in "ab":
    with user_queue() as queue:
        queue.add("run", Path("/") / name, ["train"], ["resume"], job_environment())
    said.write(name.encode() + b"\\n")
"""


@pytest.mark.skipif(not available(), reason=MISSING)
def test_a_job_that_was_added_is_there(place):
    recording = place.record(sys.executable, "-c", ADD, str(place.root))

    def after(state: State) -> str:
        with JobQueue(place.root / "state" / "slipstream" / "jobs") as queue:
            assert [job.name for job in queue.jobs()][: len(state.said)] == list(state.said)
        return "all there"

    place.each(recording, 10_000, after)
    assert [one.said for one in recording.states()][-1] == ("a", "b")


INTEND = """
import sys
from pathlib import Path
from slipstream.core.storage.atomic_io import make_folder
from slipstream.markets.live.journal import Decision, Journal, PlannedOrder
said = open(sys.argv[1] + "/../said", "ab", 0)
folder = Path(sys.argv[1]) / "account"
make_folder(folder)
journal = Journal(folder / "journal.db")
for bar in range(3):
    journal.add_decisions([Decision("all", bar, "hash", (0.5,), (1.0, 2.0), 100.0, 5.0)])
    said.write(b"decided\\n")
    journal.begin_bar(bar, 100.0, 99.0)
    made = [PlannedOrder(f"{bar}{symbol}", bar, symbol, 0, 1.0) for symbol in "AB"]
    journal.add_orders(made)
    said.write(b"intended\\n")  # from here on it may have been sent
    journal.update_orders([one._replace(state="filled", filled=1.0, average=2.0) for one in made])
    said.write(b"filled\\n")
    journal.end_bar(bar, "traded", {"A": (1.0, 1.0, "")})
    said.write(b"ended\\n")
"""


@pytest.mark.skipif(not available(), reason=MISSING)
def test_an_order_that_may_have_been_sent_is_known(place):
    """No power cut forgets an intent: nothing is sent under another id than before."""
    recording = place.record(sys.executable, "-c", INTEND, str(place.root))

    def after(state: State) -> str:
        said = Counter(state.said)
        path = place.root / "account" / "journal.db"
        if not path.parent.is_dir():
            assert not said
            return "nothing"
        with closing(Journal(path)) as journal:
            rows, intents, traded = (
                journal.decisions("all"),
                journal.orders(),
                journal.executed_bars(),
            )
        assert len(rows) in (said["decided"], said["decided"] + 1)
        assert len(intents) in (2 * said["intended"], 2 * said["intended"] + 2)
        filled = sum(one.state == "filled" for one in intents)
        assert filled in (2 * said["filled"], 2 * said["filled"] + 2)
        assert sum(one.outcome == "traded" for one in traded) - said["ended"] in (0, 1)
        return "all known"

    place.each(recording, 600, after)
