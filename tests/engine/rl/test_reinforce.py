"""The contract of an agent holds for a second one, a file that nothing else in the house knows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.rl.agents.agent_registry import load_config
from slipstream.studies.record.ledger import Ledger
from slipstream.training.callbacks.events import Updated
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard
from slipstream.training.trainer import resume, train

REINFORCE = Path(__file__).parents[1] / "samples/reinforce.py"


def config_of(env, members=1, steps=2_560, **overrides):
    settings = {
        "env": env,
        "agent": {"name": str(REINFORCE), "steps": 32},
        "training": {"members": members, "num_envs": 8, "total_timesteps": steps},
        "evaluation": {"episodes": 10, "every": 0.5},
    }
    return resolve(settings, {"training.checkpoint_every": 0.2, **overrides})


def trained(config, path):
    run = Run.create(config, path)
    try:
        train(run.config, run)
    finally:
        run.close()
    return run


def state_of(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


@pytest.mark.slow
def test_it_solves_cartpole_and_leaves_a_run_like_any_other(tmp_path):
    run = slipstream.train(
        "cartpole",
        overrides={"agent.name": str(REINFORCE), "training.members": 3},
        total_timesteps=30_000,
        num_envs=16,
        out=tmp_path / "run",
        log=lambda _: None,
    )
    scores = [member["test_score"] for member in run.result["members"]]
    assert min(scores) > 400, scores  # random play: 22
    assert (run.path / "report.html").exists()
    assert run.metrics()["entropy"][0] == pytest.approx(np.log(2), abs=0.05)
    policy = slipstream.load_policy(run)
    falling = np.array([0.0, 0.0, 0.1, 1.0], np.float32)  # to the right: push right
    assert policy.act(falling) == 1 and policy.act(-falling) == 0


def values(probe, **agent):
    """What the baseline expects of [1, 0, 0] and [0, 0, 0], after 60 iterations; and the policy."""
    config = config_of({"name": "probes", "probe": probe}, **agent)
    shard = Shard(
        resolve_environment("probes", config.env_settings), config.agent, [3, 4], range(2), 8
    )
    shard.reset()
    for _ in range(60):
        shard.iterate(0.0)
    agent = shard.agent
    seen = np.zeros((2, 2, 3), np.float32)
    seen[0, :, 0] = 1.0
    return agent._baseline(agent._inputs(np.repeat(seen, 8, axis=1)))[:, ::8], agent.policy


def test_probes_have_their_known_values_and_policies():
    known = {"one": (0, 1.0), "observed": (1, 0.0), "delayed": (1, 0.9)}
    for probe, (first, second) in known.items():
        found, _ = values(probe, **{"agent.gamma": 0.9})
        if probe != "one":  # which never shows a one
            assert found[:, 0] == pytest.approx(first, abs=0.02), probe
        assert found[:, 1] == pytest.approx(second, abs=0.02), probe
    found, _ = values("endless", **{"agent.gamma": 0.9})
    assert found[:, 1] == pytest.approx(10.0, abs=0.1)  # a time limit is no end
    _, policy = values("matched")
    seen = np.array([[1, 0, 0], [-1, 0, 0]] * 2, np.float32)
    assert policy.act_rows(seen)[:, 0].tolist() == [1, 0, 1, 0]


class StopAt:
    """Asks the run to stop at iteration n, as a signal would."""

    def __init__(self, n):
        self.n = n

    def __call__(self, event):
        if isinstance(event, Updated) and event.progress.iterations == self.n:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("members", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, members):
    config = config_of({"name": "cartpole", "max_steps": 50}, members)
    whole = trained(config, tmp_path / "whole")
    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        train(run.config, run, [StopAt(3)])
    run.close()
    again = Run.open(run.path)
    resume(again)
    again.close()
    assert_same(state_of(whole), state_of(again))


@pytest.mark.slow
def test_a_member_is_the_same_alone_and_in_shards(tmp_path):
    env = {"name": "cartpole", "max_steps": 50}
    rates = {"agent.learning_rate": [0.1, 0.5, 1.0]}
    one = trained(config_of(env, 3, **rates, **{"training.shards": 1}), tmp_path / "one")
    two = trained(config_of(env, 3, **rates, **{"training.shards": 2}), tmp_path / "two")
    assert_same(state_of(one), state_of(two))
    alone = config_of(env, 1, **{"agent.learning_rate": 0.5, "training.seed": 1})
    own, beside = state_of(trained(alone, tmp_path / "alone")), state_of(one)
    for name, value in own.items():
        each = len(beside[name]) // 3
        assert value.tobytes() == beside[name][each : 2 * each].tobytes(), name


@pytest.mark.slow
def test_a_study_searches_its_settings(tmp_path):
    config = config_of({"name": "cartpole"}, steps=2_560)
    study = {"n_trials": 4, "max_concurrent_trials": 2, "final_seeds": 2}
    study["confirmation"] = {"top": 1, "seeds": 2}
    folder = slipstream.tune(
        {**config.as_mapping(), "study": study},
        study_name=str(tmp_path / "study"),
        workers=1,
        force_deploy=True,
        report=False,
        log=lambda _: None,
    )
    with Ledger(folder.ledger, read_only=True) as ledger:
        asked = [set(ask.params) for ask in ledger.suggestions().values()]
    assert asked == [{"agent.learning_rate"}] * 4  # the one range beside a default
    assert slipstream.load_policy(folder.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_what_does_not_fit_is_refused(tmp_path):
    pendulum = config_of("pendulum")
    with pytest.raises(ConfigError, match="reinforce learns one discrete action per step"):
        trained(pendulum, tmp_path / "pendulum")
    with pytest.raises(ConfigError, match="n_steps"):
        config_of("cartpole", **{"agent.n_steps": 16})  # a key of another agent
    with pytest.raises(ConfigError, match=r"no agent file .*missing\.py"):
        resolve("cartpole", {"agent.name": "missing.py"})
    with pytest.raises(ConfigError, match=r"my_agent\.py"):
        resolve("cartpole", {"agent.name": "reinforc"})


def test_half_an_agent_is_refused(tmp_path):
    text = REINFORCE.read_text()
    cases = {
        "lacks a class Agent": text.replace("class Agent(", "class Other("),
        "`Agent` lacks update": text.replace(
            "def update(self, rollout", "def improve(self, rollout"
        ),
        "`Config` lacks bytes, rows": text.replace("def rows", "def a").replace(
            "def bytes", "def b"
        ),
    }
    for words, source in cases.items():
        file = tmp_path / "half.py"
        file.write_text(source)
        with pytest.raises(ConfigError, match=words):
            load_config(str(file))


TYPE = 'experience_type = "rollout"'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (TYPE, 'wants = "rollout"', "`Agent.wants` is called `experience_type`. Rename it"),
        (TYPE, 'experience_typ = "rollout"', "`Agent.experience_typ` .* mean `experience_type`"),
        (TYPE, "pass", "`Agent` has no `experience_type`. Set `experience_type = "),
        (TYPE, 'experience_type = "on_policy"', "unknown experience_type 'on_policy'. Set"),
        (TYPE, 'experience_type = "replay"', "but no method `learn`. Add"),
        (TYPE, f"{TYPE}; state_versoin = 3", "`Agent.state_versoin` .* mean `state_version`"),
        (TYPE, f"{TYPE}; halves = None", "`Agent.halves` is called `double_buffered_ranges`"),
        ("def update(self, r", "def updaet(self, r", "`Agent.updaet` .* mean `update`"),
        ("PER_MEMBER:", "PER_MEMBERS:", "`Config.PER_MEMBERS` .* mean `PER_MEMBER`"),
        ("PER_MEMBER:", "MOST_COPIES:", "`Config.MOST_COPIES` is called `MAX_NUM_ENVS`"),
    ],
)
def test_misspelled_and_former_names_of_the_contract_are_refused(old, new, words, tmp_path):
    """Before this check, such a class silently counted as a rollout agent with the defaults."""
    text = REINFORCE.read_text()
    assert old in text
    file = tmp_path / "misspelled.py"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=words) as caught:
        load_config(str(file))
    assert "misspelled.py" in str(caught.value) and "\n" not in str(caught.value)


def test_names_beside_the_contract_are_allowed(tmp_path):
    """`updates` resembles `update`, which the class has; private and other names are free."""
    file = tmp_path / "beside.py"
    file.write_text(
        REINFORCE.read_text().replace(TYPE, f"{TYPE}; updates = 0; _wants = 1; baseline_rate = 0.5")
    )
    assert load_config(str(file))[0] == str(file)
