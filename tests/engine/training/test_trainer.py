"""The whole loop: the same weights for any number of shards, alone or together, killed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import ResourceError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.training.backend import make_workers
from slipstream.training.callbacks.events import (
    Checkpointed,
    Evaluated,
    Failed,
    Finished,
    Progress,
    Started,
    Updated,
)
from slipstream.training.callbacks.progress_reporter import phases_of
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import Trainer, resume, train

SETTINGS = {
    "env": {
        "name": "cartpole",
        "max_steps": 50,
    },  # a time limit that is reached: final observations
    "agent": {"n_steps": 32, "batch_size": 128, "n_epochs": 2},
    "training": {
        "num_envs": 8,
        "total_timesteps": 2_560,
        "checkpoint_every": 0.2,
        "backend": "auto",
    },
    "evaluation": {"episodes": 10, "every": 0.5},
}


def _config(members=1, **overrides):
    return resolve(SETTINGS, {"training.members": members, **overrides})


def _final_state(run):
    folder = checkpoint.checkpoints(run.path / "checkpoints")[-1]
    return checkpoint.load(folder)[0]


def _train(tmp_path, name, config, callbacks=()):
    run = Run.create(config, tmp_path / name)
    train(run.config, run, callbacks)
    run.close()
    return run


def _assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def _member(state, m, total):
    """One member's rows; the run's own bookkeeping counts members, too."""
    return {name: np.split(values, total)[m] for name, values in state.items()}


def test_events_come_in_order_and_members_learn_separately(tmp_path):
    events = []
    run = _train(tmp_path, "run", _config(members=3), [events.append])
    kinds = [type(event) for event in events]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    assert kinds.count(Updated) == 10
    assert kinds.count(Evaluated) == 2
    assert kinds.count(Checkpointed) == 5
    last = [event for event in events if isinstance(event, Updated)][-1]
    assert last.progress.steps == 2_560
    assert last.progress.updates == 10 * 2 * 2  # iterations x epochs x minibatches of 256 rows
    assert last.metrics["score"].shape == (3,)
    assert len(set(last.metrics["policy_loss"].tolist())) == 3
    result = run.result
    assert [member["seed"] for member in result["members"]] == [0, 1, 2]
    assert all(member["best_score"] >= 9 for member in result["members"])


@pytest.mark.parametrize("shards", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_shards_change_no_bit(tmp_path, shards):
    one = _train(tmp_path, "one", _config(members=5, **{"training.shards": 1}))
    cut = _train(tmp_path, "cut", _config(members=5, **{"training.shards": shards}))
    _assert_same(_final_state(one), _final_state(cut))


@pytest.mark.parametrize(
    "members",
    [pytest.param(2, marks=pytest.mark.slow), 7, pytest.param(24, marks=pytest.mark.slow)],
)
def test_a_member_alone_equals_itself_in_a_population(tmp_path, members):
    together = _final_state(_train(tmp_path, "all", _config(members=members)))
    m = members - 1
    alone = _final_state(_train(tmp_path, "alone", _config(**{"training.seed": m})))
    _assert_same(alone, _member(together, m, members))


def test_settings_may_differ_between_members(tmp_path):
    rates = [1e-3, 1e-5]
    both = _final_state(
        _train(tmp_path, "both", _config(members=2, **{"agent.learning_rate": rates}))
    )
    change = {"training.seed": 1, "agent.learning_rate": rates[1]}
    alone = _final_state(_train(tmp_path, "alone", _config(**change)))
    _assert_same(alone, _member(both, 1, 2))


class StopAt:
    """Asks the trainer to stop, as a signal would, after so many updates."""

    def __init__(self, updates):
        self.left = updates

    def __call__(self, event):
        if isinstance(event, Updated):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("environment", "members"),
    [
        ("cartpole", 3),
        ("pendulum", 1),
        pytest.param("cartpole", 1, marks=pytest.mark.slow),
        pytest.param("pendulum", 3, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_resumes_to_the_same_weights(tmp_path, members, environment):
    config = _config(members=members, **{"env": {"name": environment, "max_steps": 50}})
    whole = _train(tmp_path, "whole", config)
    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises(Interrupted, match="slipstream resume"):
        train(run.config, run, [StopAt(3)])
    run.close()
    assert run.result is None
    again = Run.open(run.path)
    resume(again)
    again.close()
    _assert_same(_final_state(whole), _final_state(again))
    rows = again.metrics()
    assert rows["steps"] == whole.metrics()["steps"]
    assert rows["score"] == whole.metrics()["score"]


def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    config = _config(
        members=2, **{"training.total_timesteps": 25_600, "training.checkpoint_every": 0.1}
    )
    whole = _train(tmp_path, "whole", config)
    run = Run.create(config, tmp_path / "killed")
    program = (
        "import sys; from slipstream.training.runs.run import Run;"
        "from slipstream.training.trainer import train;"
        "run = Run.open(sys.argv[1]); train(run.config, run)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(run.path)])
    folder = run.path / "checkpoints"
    deadline = time.monotonic() + 120
    while not checkpoint.checkpoints(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.checkpoints(folder), "no checkpoint within two minutes"
    again = Run.open(run.path)
    resume(again)
    again.close()
    _assert_same(_final_state(whole), _final_state(again))


def test_a_corrupt_checkpoint_falls_back_to_the_one_before(tmp_path):
    config = _config(**{"training.keep_last": 3})
    whole = _train(tmp_path, "whole", config)
    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        train(run.config, run, [StopAt(7)])
    run.close()
    newest = checkpoint.checkpoints(run.path / "checkpoints")[-1] / checkpoint.STATE
    newest.write_bytes(newest.read_bytes()[:-7])
    said = []
    again = Run.open(run.path, said.append)
    resume(again)
    again.close()
    assert any("corrupt" in sentence for sentence in said)
    _assert_same(_final_state(whole), _final_state(again))


def test_a_member_that_fails_stops_alone(tmp_path):
    events = []
    config = _config(members=2, **{"agent.max_grad_norm": None})
    # No setting that is allowed makes a member diverge at once.
    agent = config.agent.model_copy(update={"learning_rate": (3e-4, 1e38)})
    run = _train(tmp_path, "run", replace(config, agent=agent), [events.append])
    failed = [event.member for event in events if isinstance(event, Failed)]
    assert failed == [1]
    good, bad = run.result["members"]
    assert (good["failed"], bad["failed"]) == (False, True)
    healthy = _config(**{"agent.max_grad_norm": None, "agent.learning_rate": 3e-4})
    alone = _final_state(_train(tmp_path, "alone", healthy))
    state = _member(_final_state(run), 0, 2)
    _assert_same(alone, state)


def test_a_lost_worker_is_named(tmp_path):
    config = _config(members=2, **{"training.shards": 2})
    environment = resolve_environment(config.env_name, config.env_settings)
    with make_workers(config, environment) as workers:
        workers.call("reset")
        pid = workers._children[1].pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ResourceError, match=rf"member 1 \(pid {pid}\) was killed by SIGKILL"):
            workers.call("iterate", 0.0)


def test_workers_end_with_their_parent(tmp_path):
    program = (
        "import os, signal, sys; from slipstream.training.settings.config import resolve;"
        "from slipstream.training.environments.factory import resolve_environment;"
        "from slipstream.training.backend import make_workers;"
        "s = {'training.members': 3, 'training.shards': 3, 'training.num_envs': 8};"
        "c = resolve('cartpole', s);"
        "w = make_workers(c, resolve_environment(c.env_name, c.env_settings)); w.call('reset');"
        "print(*[p.pid for p in w._children], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    deadline = time.monotonic() + 60
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or read
        return False


@pytest.mark.slow
def test_an_error_in_a_worker_reaches_the_user(tmp_path):
    kernel = tmp_path / "broken.py"
    kernel.write_text(
        "from slipstream.kernels.classic.cartpole import *\n"
        "from slipstream.kernels.classic import cartpole\n"
        "import math\n"
        "def step(s, action, p, d):\n"
        "    s.x = s.x + 0.01\n"
        "    reward = 1.0\n"
        "    if s.x > 0.3:\n"
        "        reward = math.nan\n"
        "    return reward, False, False\n"
    )
    config = resolve(str(kernel), {"training": SETTINGS["training"], "training.members": 2})
    config = config.with_training(members=2, shards=2)
    run = Run.create(config, tmp_path / "run")
    with pytest.raises(Exception, match=r"NaN or infinite: environment \d+ .*last action"):
        Trainer(run.config, run).train()
    run.close()


def test_that_copies_will_not_help_is_said_by_the_line_beside_it(tmp_path, monkeypatch):
    """After 40 seconds of starting, an update of a second an iteration has 90 % from 396 on."""
    run, told = Run.create(_config(), tmp_path / "run"), []
    monkeypatch.setattr(Run, "notify", lambda _, sentence: told.append(sentence))
    trainer = Trainer(run.config, run)
    for k in range(1, 500):
        spent = {"seconds_env": 0.01 * k, "seconds_update": float(k), "wall": 1.01 * k + 40.0}
        now = Progress(10**6, k, k, k, **spent)
        trainer._log_update_share(now)
        assert len(told) == (phases_of(now)["update"] >= 0.9 * now.wall) == (k >= 396)
    assert told[0].startswith("Updates take 90% of the time, so more environments do not")
    run.close()
