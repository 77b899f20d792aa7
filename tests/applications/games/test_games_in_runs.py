"""Games in runs, studies and clusters."""

from __future__ import annotations

import numpy as np
import optuna
import pytest

import slipstream
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.studies.start import prepare_study
from slipstream.training.callbacks.events import Updated
from slipstream.training.cluster.cluster import Shared
from slipstream.training.cluster.node_service import (
    NodeCompatibility,
    NodeService,
    environment_payload,
)
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import run_warnings, update_share_warning
from slipstream.training.trainer import resume, train

optuna.logging.set_verbosity(optuna.logging.WARNING)


def test_what_will_help_follows_from_the_agent():
    told = update_share_warning(
        resolve("hockey", {"agent.name": "td3", "training.num_envs": 8}), 0.993
    )
    assert told == (
        "Updates take 99% of the time, so more environments do not speed up training. To train "
        "faster, reduce agent.batch_size, agent.utd_ratio or agent.net_arch, or use PPO or a GPU "
        "(training.device)."
    )
    told = update_share_warning(resolve("cartpole", {"training.num_envs": 8}), 0.96)
    assert "n_epochs" in told and "PPO" not in told and "utd_ratio" not in told


def test_a_games_metrics_stand_beside_its_scores(tmp_path):
    values = {
        "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
        "env": {"name": "hockey", "opponents": {"idle": 1.0}},
        "training": {"num_envs": 8, "total_timesteps": 128},
        "evaluation": {"episodes": 3},
    }
    run = slipstream.train(values, out=tmp_path / "run", report=False)
    table = run.evaluations()
    won, lost = table["won"][-1], table["lost"][-1]
    assert 0.0 <= won <= 1.0 and won + lost <= 1.0 + 1e-9 and "catches" in table


class Node(NodeService):
    """One that does nothing."""

    def answer(self, request, arrays):
        return b""


def test_a_game_arrives_with_who_judges_it():
    """Hockey's self-play is evaluated against bots: a second environment of the same rules."""
    config = resolve("hockey", {"env.self_play": {}})
    environment = resolve_environment(config.env_name, config.env_settings)
    stored = [np.array(one) for one in environment.data]
    owner = NodeCompatibility.from_environment(environment, config)
    sent = environment_payload(environment, Shared.of(environment.data))
    found = Node(owner.payload(), stored).restored(sent, [])
    assert found.kernel is environment.kernel is found.evaluator.kernel
    assert found.self_play.training.names == ("snapshots",)
    assert found.evaluator.loaded.params == environment.evaluator.loaded.params


def test_a_game_that_ends_itself_is_not_cut():
    """Hockey's games of 251 steps were cut after 120 and counted as drawn."""
    given = {"training.total_timesteps": 60_000, "env.self_play": {"opponents": {"random": 1}}}
    config = resolve("hockey", given)
    environment = resolve_environment(config.env_name, config.env_settings)
    assert not any("declares no time limit" in one for one in run_warnings(config, environment))
    assert (
        environment.make_eval_envs("test", 1, max_steps=120).episode_state["next_limit"].min() > 251
    )


def test_a_game_without_opponents_gets_those_that_it_suggests():
    said = []
    base, _, _ = prepare_study("hockey", {}, {}, said.append)
    opponents = base.env_settings["opponents"]
    assert opponents["weak"] == 1.0 and opponents["strong"] == 3.0
    assert len(said) == 1 and "names no opponent" in said[0]
    base, _, _ = prepare_study("hockey", {"env.opponents": {"weak": 1}}, {}, said.append)
    assert base.env_settings["opponents"]["strong"] == 0.0 and len(said) == 1


PPO = {"agent.n_steps": 16, "agent.batch_size": 32, "agent.n_epochs": 1, "agent.net_arch": [8]}


def _stop_after(path, updates):
    left = [updates]

    def listen(event):
        if isinstance(event, Updated):
            left[0] -= 1
            if left[0] == 0:
                request_stop(path)

    return listen


def _last(run):
    tensors, _ = checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])
    return {name: value.tobytes() for name, value in tensors.items()}


def test_self_play_that_was_asked_to_stop_ends_with_the_same_state(tmp_path):
    env = {"name": "hockey", "self_play": {}}
    training = {"num_envs": 2, "total_timesteps": 320, "checkpoint_every": 0.25}
    config = resolve({"env": env, "training": training}, {**PPO, "evaluation.episodes": 2})
    whole = Run.create(config, tmp_path / "whole")
    train(config, whole, [])
    whole.close()
    for after in (1, 5, 10):  # the last one cuts the last validation short
        run = Run.create(config, tmp_path / f"after-{after}")
        with pytest.raises(Interrupted):
            train(config, run, [_stop_after(run.path, after)])
        run.close()
        again = Run.open(run.path)
        resume(again)
        again.close()
        assert _last(again) == _last(whole), after


@pytest.mark.slow
@pytest.mark.parametrize("number", [8, 2])
def test_a_game_goes_on_with_another_number_of_environments(tmp_path, number):
    told = {"num_envs": 4, "members": 1, "total_timesteps": 2048, "shards": 1, "report": False}
    with pytest.raises(Interrupted):
        slipstream.train(
            "hockey",
            out=tmp_path / "run",
            overrides=PPO,
            callbacks=[_stop_after(tmp_path / "run", 8)],
            log=lambda _: None,
            **told,
        )
    run = Run.open(tmp_path / "run", lambda _: None)
    slipstream.resume(run, num_envs=number, report=False)
    assert [one["num_envs"] for one in run.num_envs_history] == [4, number]
    assert run.result["members"][0]["failed"] is False
    assert len(_last(run)["cut"]) == number * 1
