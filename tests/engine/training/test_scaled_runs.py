"""Runs that go on with another number of copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.shard import resized

PPO = {"agent.n_steps": 16, "agent.batch_size": 32, "agent.n_epochs": 1}
DQN = {
    "agent.name": "dqn",
    "agent.batch_size": 16,
    "agent.learning_starts": 64,
    "agent.iteration": 16,
}
CASES = {
    "ppo": ("cartpole", PPO, 2),
    "scaled rewards": ("pendulum", {**PPO, "agent.reward_scaling": "on"}, 2),
    "dqn": ("cartpole", DQN, 2),
    "prioritised": ("cartpole", {**DQN, "agent.prioritised": True}, 1),
    "td3": ("pendulum", {**DQN, "agent.name": "td3"}, 1),
    "foreign": ("gym:CartPole-v1", PPO, 1),
}


def stop_at(steps, path):
    def listen(event):
        if isinstance(event, Updated) and event.progress.steps >= steps:
            request_stop(path)

    return listen


def state(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def bits(run):
    return {name: value.tobytes() for name, value in state(run).items()}


def stopped(path, name, settings, members):
    told = {"num_envs": 4, "members": members, "total_timesteps": 2048, "keep_last": 1, "shards": 1}
    with pytest.raises(Interrupted):
        slipstream.train(
            name, out=path, overrides=settings, callbacks=[stop_at(512, path)], report=False,
            log=lambda _: None, **told,
        )  # fmt: skip
    return Run.open(path, lambda _: None)


QUICK = {("ppo", 8)}


@pytest.mark.parametrize(
    ("case", "copies"),
    [
        pytest.param(*one, marks=[] if one in QUICK else pytest.mark.slow)
        for one in itertools.product(CASES, (8, 2))
    ],
)
def test_a_run_goes_on_with_other_copies_and_says_so(tmp_path, case, copies):
    name, settings, members = CASES[case]
    run = stopped(tmp_path / "run", name, settings, members)
    before = state(run)
    seen = []
    slipstream.resume(run, num_envs=copies, callbacks=[seen.append])
    after = [event for event in seen if isinstance(event, Updated)]
    at = run.num_envs_history[1]["steps"]
    assert run.num_envs_history == [{"steps": 0, "num_envs": 4}, {"steps": at, "num_envs": copies}]
    each = 16 * copies
    assert [one.progress.steps for one in after][:2] == [at + each, at + 2 * each]
    assert run.result["members"][0]["failed"] is False
    page = (run.path / "report.html").read_text()
    assert f"4 environments each, {copies} from step {at:,} on" in page
    (note,) = (one for one in run.provenance["notes"] if "num_envs" in one)
    assert f"From step {at:,}" in note and "differ" in note
    assert ("replay buffer starts empty" in note) == (settings.get("agent.name") in ("dqn", "td3"))
    ended = state(run)
    assert len(ended["cut"]) == members * copies
    weights = [key for key in before if key.startswith("agent.") and "moment" not in key]
    assert any(not np.array_equal(before[key], ended[key]) for key in weights)
    assert (ended["episodes"] >= before["episodes"]).all()


@pytest.mark.slow
def test_killed_after_that_it_ends_with_the_same_bits(tmp_path):
    """Kill the run before or after its first checkpoint with another num_envs."""
    for name, where in (("calm", None), ("early", 1), ("late", 6)):
        run = stopped(tmp_path / name, "cartpole", PPO, 2)
        if where is not None:
            at, path = state_steps(run), run.path
            with pytest.raises(Interrupted):
                slipstream.resume(
                    run, num_envs=8, callbacks=[stop_at(at + where * 128, path)], report=False
                )
            run = Run.open(path, lambda _: None)
        slipstream.resume(run, num_envs=8 if where is None else None, report=False)
        assert len(run.num_envs_history) == 2
    calm, *others = (bits(Run.open(tmp_path / name)) for name in ("calm", "early", "late"))
    for other in others:
        assert other == calm


def state_steps(run):
    return int(checkpoint.checkpoints(run.path / "checkpoints")[-1].name.partition("-")[2])


def test_sizes_that_do_not_fit_are_refused_and_nothing_is_changed(tmp_path):
    run = stopped(tmp_path / "run", "cartpole", PPO, 1)
    with pytest.raises(ConfigError, match="num_envs"):
        slipstream.resume(run, num_envs=0, report=False)
    assert run.num_envs_history == [{"steps": 0, "num_envs": 4}]
    slipstream.resume(run, report=False)
    assert run.result is not None


def test_copies_that_are_there_stay_and_others_begin():
    """Of two members: copies by the first axis or beside the members' one; what is kept by neither
    stays."""
    old = {
        "flat": np.arange(4), "beside": np.arange(4.0).reshape(2, 2), "member": np.array([7, 8]),
        "env.replay.written": np.arange(4), "log": np.ones((4, 3), np.int64),
    }  # fmt: skip
    new = {
        "flat": np.full(6, -1), "beside": np.full((2, 3), -1.0), "member": np.array([0, 0]),
        "env.replay.written": np.zeros(6, np.int64), "log": np.zeros((6, 2), np.int64),
    }  # fmt: skip
    made = resized(old, new, 2)
    assert made["flat"].tolist() == [0, 1, -1, 2, 3, -1]
    assert made["beside"].tolist() == [[0, 1, -1], [2, 3, -1]]
    assert made["member"].tolist() == [7, 8]
    assert made["env.replay.written"].tolist() == [0] * 6
    assert made["log"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]] * 2
    fewer = resized(old, {name: value[:2] for name, value in old.items()} | {
        "beside": np.zeros((2, 1)), "flat": np.zeros(2, np.int64)}, 2)  # fmt: skip
    assert fewer["flat"].tolist() == [0, 2] and fewer["beside"].tolist() == [[0], [2]]
