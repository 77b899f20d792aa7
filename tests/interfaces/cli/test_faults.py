"""Whatever happens is one paragraph and an exit code, and no reader's leaving stops the work."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from slipstream import api
from slipstream.cli.error_reporting import InterruptHandler
from slipstream.core.child_process import RESUME_MESSAGE
from slipstream.core.errors import ConfigError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.training.runs.run import Run

TRAIN = ["train", "cartpole", "--num-envs", "8", "--total-timesteps", "4096", "--members", "2"]
TRAIN += ["--set", "training.shards=1", "--set", "agent.n_steps=32", "--no-report"]
TRAIN += ["--set", "evaluation.episodes=4", "--out", "run"]


def shell(line, folder, **environment):
    """Runs a line of bash in which $S is slipstream; stdout, stderr and code of the line."""
    program = f"{shlex.quote(sys.executable)} -c 'from slipstream.cli import main; main()'"
    return subprocess.run(
        ["bash", "-c", f'S() {{ {program} "$@"; }}; {line}'],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def complete(folder):
    return json.loads((folder / "run" / "result.json").read_text())["progress"]["steps"] >= 4096


LOST = {
    # Long enough for `head` to be gone before the last lines.
    "head": ("S {train} --total-timesteps 60000 | head -1; exit ${{PIPESTATUS[0]}}", "Broken pipe"),
    "full": ("S {train} > /dev/full", "No space left on device"),
    "closed": ("S {train} >&-", None),
    "both full": ("S {train} > /dev/full 2> /dev/full", None),
    "both read by nobody": ("S {train} |& true; exit ${{PIPESTATUS[0]}}", None),
    "no input": ("S {train} <&- > /dev/null", None),
}


QUICK = ("full",)


@pytest.mark.parametrize(
    "how", [how if how in QUICK else pytest.param(how, marks=pytest.mark.slow) for how in LOST]
)
def test_training_goes_on_without_its_readers(tmp_path, how):
    line, reason = LOST[how]
    done = shell(line.format(train=" ".join(TRAIN)), tmp_path)
    assert done.returncode == 0, done.stderr
    assert complete(tmp_path)
    if reason is not None:
        assert f"Standard output is lost ({reason}). The work continues" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.slow
def test_an_ascii_terminal_is_enough(tmp_path):
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = shell(" ".join(["S", *TRAIN, "&& S list && S init cartpole"]), tmp_path, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert complete(tmp_path)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_listing_says_that_it_could_not_be_written(tmp_path):
    done = shell("S list | head -1; exit ${PIPESTATUS[0]}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("list", "init cartpole", "--version"):
        done = shell(f"S {command} > /dev/full", tmp_path)
        assert done.returncode == 2, command
        assert done.stderr == "Standard output could not be written (No space left on device).\n"


def test_what_nobody_expected_is_one_paragraph_with_a_file(slipstream, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for error, code, words in (
        (ZeroDivisionError("a\nb"), 1, "ZeroDivisionError: a b"),
        (RecursionError(), 1, "Please report it"),
        (MemoryError(), 2, "not enough memory"),
        (OSError(5, "Input/output error", "prices.csv"), 2, "prices.csv"),
        (ModuleNotFoundError("no", name="slipstream.gone"), 1, "Please report it"),
    ):

        def fail(*arguments, error=error):
            raise error

        monkeypatch.setattr(sys.modules["slipstream.cli.main"], "_command", lambda: fail)
        outcome = slipstream("train", "cartpole")
        assert outcome.code == code
        assert words in outcome.err
        assert outcome.err.count("\n") == 1 and outcome.out == ""
        details = Path(re.search(r"in (/.*slipstream-error-\S+\.txt)", outcome.err)[1])
        assert type(error).__name__ in details.read_text() and "fail" in details.read_text()


def test_a_folder_whose_name_is_not_text_has_reports_and_is_refused_by_the_queue(
    slipstream, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    name = os.fsdecode(b"run\xff")
    words = [*(word for word in TRAIN if word not in ("--no-report", "run")), name]
    outcome = slipstream(*words)
    assert outcome.code == 0, outcome.err
    assert r"run\udcff" in (tmp_path / name / "report.html").read_text()
    outcome = slipstream("jobs", "add", "--", *words[:-1], f"{name}2")
    assert outcome.code == 2 and r"run\udcff2 is not" in outcome.err
    assert outcome.err.count("\n") == 1 and "cannot be used here" in outcome.err


CRASHING = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Crashing(CartPoleEnv):
    def step(self, action):
        os.abort()

gymnasium.register("Crashing-v0", Crashing)
"""


def test_a_crash_in_an_environment_says_where(tmp_path):
    (tmp_path / "crashing.py").write_text(CRASHING)
    paths = {"PYTHONPATH": _paths(tmp_path)}
    done = shell("S train gym:crashing:Crashing-v0", tmp_path, **paths)
    assert done.returncode == 2, done.stderr  # a worker takes its first steps
    assert re.search(r"killed by SIGABRT \(.*crashing\.py:8\)", done.stderr)
    here = "--set training.backend=serial"
    done = shell(f"S train gym:crashing:Crashing-v0 {here}", tmp_path, **paths)
    assert done.returncode == 128 + signal.SIGABRT
    assert re.search(r"Aborted\n.*crashing\.py\", line 8 in step", done.stderr, re.DOTALL)


def _paths(folder):
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def test_where_no_file_can_be_written_the_traceback_is_shown(slipstream, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))

    def fail(*arguments):
        raise ZeroDivisionError("a")

    monkeypatch.setattr(sys.modules["slipstream.cli.main"], "_command", lambda: fail)
    outcome = slipstream("list")
    assert outcome.code == 1
    assert "Traceback" in outcome.err and "traceback is above" in outcome.err


@pytest.mark.parametrize(
    "moment", [0.5, *(pytest.param(t, marks=pytest.mark.slow) for t in (1.0, 1.5, 2.0, 4.0, 8.0))]
)
def test_ctrl_c_at_any_moment(tmp_path, moment):
    program = "from slipstream.cli import main; print('ready', flush=True); main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *TRAIN, "--total-timesteps", "100000000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    time.sleep(moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err, err
    assert process.returncode == 130
    if (tmp_path / "run" / "config.yaml").exists():
        assert f"Resume with: slipstream resume {shlex.quote(str(tmp_path / 'run'))}" in err
        assert Run.open(tmp_path / "run").load_checkpoint() is not None
    else:
        assert err.count("\n") <= 1


def test_ctrl_c_inside_a_finalizer_is_raised_again_without_a_traceback(capsys):
    """The import system's callbacks swallow exceptions: the traceback was printed there."""

    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1_000):  # the handler runs here
                pass

    with InterruptHandler() as pressed:
        with pytest.raises(KeyboardInterrupt):
            Finalized()
            time.sleep(30)
        assert pressed.requested
    assert capsys.readouterr().err == ""


def test_ctrl_c_that_a_library_swallows_is_heard_by_the_training(slipstream, monkeypatch):
    def swallow(*arguments, **keywords):
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return train(*arguments, **keywords)

    train = api.train
    monkeypatch.setattr("slipstream.api.training.train", swallow)
    outcome = slipstream(*TRAIN)
    assert outcome.code == 130 and "Resume with: slipstream resume" in outcome.err


def test_ctrl_c_before_there_is_a_command(slipstream, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["slipstream.cli.main"], "_command", lambda: interrupt)
    outcome = slipstream("list")
    assert (outcome.code, outcome.err) == (130, f"Interrupted. {RESUME_MESSAGE}\n")


def test_ctrl_c_while_the_report_is_written(slipstream, monkeypatch):
    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.report.run_page.report_run", interrupt)
    outcome = slipstream(*[one for one in TRAIN if one != "--no-report"])
    assert outcome.code == 130
    assert f"slipstream resume {shlex.quote(str(Path('run').absolute()))}" in outcome.err


@pytest.mark.parametrize("limit", ["-n 64", pytest.param("-n 40", marks=pytest.mark.slow)])
def test_more_shards_than_the_system_allows(tmp_path, limit):
    line = " ".join(["S", *TRAIN, "--members 40"]).replace("shards=1", "shards=40")
    done = shell(f"S list > /dev/null; ulimit {limit}; {line}", tmp_path)
    assert done.returncode == 2, done.stderr
    assert "worker process could not be started" in done.stderr
    assert "training.shards" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()  # nothing began


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_one_paragraph(tmp_path):
    done = shell(f"S list > /dev/null; ulimit -f 2; S {' '.join(TRAIN)}", tmp_path)
    assert done.returncode == 2, done.stderr
    assert "larger than files may be here" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 20_000, "nested more than 50 deep"),
        ("env: " + "{a: " * 2_000 + "1" + "}" * 2_000, "nested more than 50 deep"),
        ("a: &a [*a]", "is nested in its own anchor"),
        ("env: &e {name: cartpole, more: *e}", "is nested in its own anchor"),
        ("a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n"
            for k in range(9)
        ), "more than 200,000 values"),
    ],
    ids=["flow", "braces", "recursive list", "recursive section", "laughs"],
)  # fmt: skip
def test_yaml_that_nobody_wrote_by_hand(slipstream, text, words):
    Path("my.yaml").write_text(text)
    outcome = slipstream("train", "my.yaml")
    assert outcome.code == 2
    assert words in outcome.err and outcome.err.count("\n") == 1


def odd_files():
    os.mkfifo("pipe.yaml")
    Path("folder.yaml").mkdir()
    Path("zero.yaml").symlink_to("/dev/zero")
    Path("loop.yaml").symlink_to("loop.yaml")
    return ["pipe.yaml", "folder.yaml", "zero.yaml", "loop.yaml", "x" * 300 + ".yaml", "none.yaml"]


def test_targets_that_are_no_files(slipstream):
    for name in odd_files():
        outcome = slipstream("train", name)
        assert outcome.code == 2 and "cannot be read" in outcome.err, name
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "cartpole", "--out", "y" * 300),
        ("train", "cartpole", "--set", "evaluation.episodes=1e9"),
        ("resume", "y" * 300),
        ("evaluate", "y" * 300),
        ("train", "y" * 300),
        ("train", "y" * 5000 + ".py"),
    ],
)
def test_names_and_numbers_beyond_reason(slipstream, arguments):
    outcome = slipstream(*arguments)
    assert outcome.code == 2, outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [("status",), ("data", "check"), ("study", "status")])
def test_a_path_that_is_too_long_is_named_without_a_traceback(slipstream, arguments):
    outcome = slipstream(*arguments, "/".join(["d" * 250] * 25))
    assert outcome.code == 2 and outcome.err.count("\n") == 1, outcome.err
    assert "long" in outcome.err and "slipstream-error" not in outcome.err


@pytest.mark.slow
def test_a_working_folder_that_was_deleted_is_named(tmp_path):
    for command in ("train cartpole --total-timesteps 256", "status x", "doctor"):
        done = shell(f"mkdir gone; cd gone; rmdir ../gone; S {command}", tmp_path)
        assert done.returncode == 2, done.stderr
        assert "working directory was deleted" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "value", ['!!bool "x"', '!!timestamp "x"', '!!int "x"', '!!float "x"', '!!null "x"']
)
def test_a_tag_that_does_not_fit_its_value_is_one_paragraph(slipstream, value):
    Path("my.yaml").write_text(f"env: cartpole\ntraining: {{total_timesteps: {value}}}\n")
    outcome = slipstream("train", "my.yaml")
    assert outcome.code == 2 and outcome.err.count("\n") == 1, outcome.err


def test_a_setting_given_twice_is_refused(slipstream):
    twice = ["--set", "agent.net_arch=[8]", "--set", "agent.net_arch=[16]"]
    outcome = slipstream("train", "cartpole", *twice)
    assert outcome.code == 2 and "agent.net_arch is set twice" in outcome.err
    both = ["--set", "training.total_timesteps=512", "--total-timesteps", "256"]
    outcome = slipstream("train", "cartpole", *both)
    assert outcome.code == 2 and "by --total-timesteps. Remove one of them" in outcome.err


def test_a_budget_that_ends_before_the_first_update_is_refused(slipstream):
    dqn = ["--set", "agent.name=dqn", "--no-report", "--out", "run"]
    outcome = slipstream("train", "cartpole", *dqn, "--total-timesteps", "900")
    assert outcome.code == 2 and "before its first update" in outcome.err
    remedy = re.search(r"agent\.learning_starts=\d+", outcome.err)[0]
    assert (
        slipstream("train", "cartpole", *dqn, "--total-timesteps", "900", "--set", remedy).code == 0
    )


def test_a_kernel_file_whose_name_holds_a_null_is_refused():
    with pytest.raises(ConfigError, match="There is no kernel file"):
        load_kernel("x\0y.py")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_program_is_imported_is_one_sentence(tmp_path, number):
    """The program sends it to itself as soon as its own code runs."""
    lines = (
        "import os, sys; sys.argv = ['/x/bin/slipstream', 'list']\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'slipstream.cli.main': os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import slipstream.cli\n"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert done.returncode == -number
    assert done.stderr == f"Stopped by {number.name}. {RESUME_MESSAGE}\n"


def test_a_library_of_another_program_sets_no_handlers():
    before = signal.getsignal(signal.SIGTERM)
    importlib.reload(importlib.import_module("slipstream.cli"))
    assert signal.getsignal(signal.SIGTERM) is before
