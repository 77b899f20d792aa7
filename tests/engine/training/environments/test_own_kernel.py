"""A user's own kernel is checked before anything is trained on it, and while it is trained."""

from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import KernelError
from slipstream.core.storage.provenance import changed_keys
from slipstream.training.environments import kernel_environment
from slipstream.training.environments.factory import resolve_environment

CLOCK = Path(__file__).parents[2] / "samples/clock.py"
SMALL = {"num_envs": 8, "total_timesteps": 4096}
RARE = "out[3] = s.seen[1, 0]\n    if s.sum > 30.0:\n        out[60] = 1.0"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A kernel file made of `clock.py`, with some text replaced, in a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        kernel_environment, "private_folder", lambda name: made(tmp_path / "cache" / name)
    )

    def build(*swaps, name="mine.py"):
        text = CLOCK.read_text().replace("max_steps: int = 0", "max_steps: int = 20")
        for old, new in (("((3, 0),)", "((0, 0),)"), *swaps):
            assert old in text, old
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return build


def made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def train(path, **training):
    said = []
    try:
        run = slipstream.train(path, report=False, log=said.append, **{**SMALL, **training})
    finally:
        said = [one for one in said if "check" in one]
    return run, said


@pytest.mark.slow
def test_checked_once_for_each_version(write):
    path = write()
    assert len(train(path)[1]) == 1
    assert not train(path)[1], "the same file again"
    assert len(train(path, overrides={"env.max_steps": 30})[1]) == 1, "other settings"
    write(("start = uniform(s)", "start = 0.5 * uniform(s)"))
    assert len(train(path)[1]) == 1, "an edited file"


def test_a_mistake_is_named_before_anything_is_trained(write, tmp_path):
    path = write(("out[2] = float(p.number)\n", "pass\n"))
    with pytest.raises(KernelError, match=r"`observe` left out\[2\] unwritten"):
        train(path)
    assert not list(tmp_path.glob("runs/*"))
    with pytest.raises(KernelError, match="left out"):  # it did not pass, and is not remembered
        train(path)


@pytest.mark.parametrize("members", [1, 2])
def test_rare_states_while_training(write, tmp_path, monkeypatch, members):
    """Whole numbers that random actions of the check do not reach; in shards, too."""
    monkeypatch.setattr("slipstream.training.backend.usable_cores", lambda: 2)
    path = write(
        ("out[3] = s.seen[1, 0]", RARE.replace("30.0", "7.5")),
        ("s.sum = s.sum + float(action[0]) * float(d.tenths[0])", "s.sum = s.sum + 0.4"),
    )
    text = Path(path).read_text()
    assert "out[60]" in text
    environment = resolve_environment(path, {})
    kernel = environment.kernel
    assert not kernel.built_in
    monkeypatch.setattr(kernel_environment, "check_environment", lambda *_, **__: None)
    with pytest.raises(KernelError) as error:
        train(path, members=members)
    message = str(error.value)
    line = 1 + text.splitlines().index("        out[60] = 1.0")
    assert message.startswith(f"{path}:{line}: Kernel `mine`") and "in `observe`" in message
    assert (
        "`out[60]` raised IndexError: index 60 is out of bounds for axis 0 with size 4" in message
    )


def test_built_in_kernels_are_not_checked(write, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(kernel_environment, "check_environment", refuse)
    assert resolve_environment("cartpole", {}).check({}) is None


@pytest.mark.slow
def test_resume_sees_a_helper_that_changed(write, tmp_path, monkeypatch):
    """The kernel's own file is as it was."""
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "clock_helper.py"
    helper.write_text("def nothing(x):\n    return x\n")
    path = write(
        ("from typing import Any", "from clock_helper import nothing\nfrom typing import Any"),
        ("s.start = uniform(s)", "s.start = nothing(uniform(s))"),
    )
    run, _ = train(path)
    assert run.provenance["environment"]["sources"]["mine.py"]
    helper.write_text("def nothing(x):\n    return 1.0 * x\n")
    said = []
    (run.path / "result.json").unlink()
    opened = slipstream.Run.open(run.path, said.append, trust=True)  # what changed would run
    slipstream.resume(opened, report=False)
    assert any("changed (clock_helper)" in one for one in said), said


@pytest.mark.slow
def test_discrete_actions_with_a_start_are_trained_and_evaluated(write):
    path = write(
        ("spaces.Discrete(5)", "spaces.Discrete(2, start=5)"),
        ("s.seen[1, 0] = s.sum", "s.seen[int(action[0]) - 5, 0] = s.sum"),
        ("reward = float(s.time) + s.start", "reward = 1.0 if action[0] == 6 else 0.0"),
    )
    run, _ = train(path, total_timesteps=20_000)
    policy = slipstream.load_policy(run)
    actions = policy.act(np.zeros((3, 4), np.float32))
    assert np.asarray(actions).ravel().tolist() == [6, 6, 6]


def test_sources_that_changed_are_named():
    before = {"name": "a", "sources": {"x": "1", "y": "2", "gone": "3"}, "market_sha256": "4"}
    now = {"name": "a", "sources": {"x": "1", "y": "5", "new": "3"}, "market_sha256": "6"}
    assert changed_keys(before, now) == ["market_sha256", "gone", "new", "y"]
    assert not changed_keys(now, now)
