"""Phases: they change between iterations, weights change all the time, a resume goes on exactly."""

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.rl.experience.replay.ring import ENDING, NONE
from slipstream.training.environments.curriculum import Anneal, Curriculum, CurriculumConfig
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import RunConfig
from slipstream.training.shard import Shard

HOCKEY = {"name": "hockey", "opponents": {"weak": 1.0}}
TWO = {
    "phases": [
        {
            "name": "shooting",
            "episodes": 6,
            "env": {"mode": "train_shooting", "opponents": {"idle": 1.0}},
            "anneal": {"reward.touch": {"start": 4.0, "final": 1.0, "hold": 2, "over": 3}},
        },
        {"name": "game", "steps": 128},
    ]
}
SMALL = {
    "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 4, "total_timesteps": 100_000, "members": 2, "shards": 1},
    "evaluation": {"episodes": 2, "every": 1.0},
}


def config_of(curriculum, **more):
    return RunConfig.from_mapping({"env": HOCKEY, **SMALL, "curriculum": curriculum, **more})


def shard_of(config, members=range(2), total=2):
    environment = resolve_environment(config.env_name, config.env_settings)
    phases = Curriculum(config.curriculum, environment, config.env_settings, len(members))
    seeds = list(range(total))
    return Shard(environment, config.agent, seeds, members, 4, curriculum=phases)


def test_a_number_is_held_then_moves_linearly_then_stays():
    anneal = Anneal(start=20.0, final=1.5, hold=600, over=400)
    assert anneal.share(np.array([0, 600, 700, 1000, 5000])).tolist() == [0, 0, 0.25, 1, 1]
    assert Anneal(start=1.0, final=0.0, hold=3).share(np.array([2, 3])).tolist() == [0, 1]


def test_phases_and_weights_follow_the_members_own_episodes():
    shard = shard_of(config_of(TWO))
    shard.reset()
    (env,), seen, before = shard.collector.envs, [], np.zeros(2, int)
    for _ in range(60):
        params = env.params.copy()
        episodes = shard.recent.counts.copy()
        state = {name: env.state[name].copy() for name in ("mode", "time")}
        metrics = shard.iterate(0.0)
        for m in range(2):
            seen.append((int(metrics["phase"][m]), float(params["touch"][m])))
            if before[m] == 0:
                touch = 4.0 - 3.0 * min(max((episodes[m] - 2) / 3, 0.0), 1.0)
                assert params["touch"][m] == pytest.approx(touch)
                assert (state["mode"][4 * m : 4 * m + 4] == 1).all()
            if metrics["phase"][m] == 1 and before[m] == 0:  # the change is just done
                own = slice(4 * m, 4 * m + 4)
                assert (env.state["mode"][own] == 0).all() and not env.state["time"][own].any()
                assert env.params["touch"][m] == 0.0 and shard.recent.counts[m] >= 6
        before = metrics["phase"]
        if (before >= 2).all():
            break
    assert (before == 2).all() and {touch for _, touch in seen} >= {4.0, 0.0}


def test_the_new_episodes_observations_begin_the_next_rollout():
    shard = shard_of(config_of({"phases": [{"steps": 64, "env": {"mode": "train_defense"}}, {}]}))
    shard.reset()
    shard.iterate(0.0)
    rollout = shard.collector.experience
    assert np.abs(rollout.obs[-1, :, 0]).max() == pytest.approx(3.0)  # rackets stand at their homes
    assert not rollout.obs[-1, :, 3:6].any()
    last = rollout.obs[-1].copy()
    shard.iterate(0.0)
    assert np.array_equal(rollout.obs[0], last)


def test_a_member_alone_is_the_same_as_among_others():
    config = config_of(TWO)
    both, second = shard_of(config), shard_of(config, range(1, 2))
    both.reset()
    second.reset()
    for _ in range(12):
        together, alone = both.iterate(0.0), second.iterate(0.0)
        assert together["phase"][1] == alone["phase"][0]
        assert np.array_equal(both.collector.experience.obs[:, 4:], second.collector.experience.obs)


def test_a_resumed_curriculum_goes_on_exactly():
    one, other = shard_of(config_of(TWO)), shard_of(config_of(TWO))
    one.reset()
    for _ in range(9):
        one.iterate(0.0)
    other.set_state(one.get_state())
    for _ in range(9):
        first, second = one.iterate(0.0), other.iterate(0.0)
        for name in first:
            assert np.array_equal(first[name], second[name], equal_nan=True), name
    assert first["phase"].min() >= 1


@pytest.mark.parametrize("prioritised", [False, True])
def test_a_phase_may_begin_without_what_was_kept(prioritised):
    agent = {
        "name": "dqn",
        "net_arch": [8],
        "batch_size": 8,
        "learning_starts": 16,
        "iteration": 16,
    }
    agent |= {"buffer_size": 400, "utd_ratio": 0.5, "prioritised": prioritised}
    phases = [{"steps": 192}, {"steps": 128, "env": {"gravity": 5.0}, "clear_replay": True}, {}]
    config = RunConfig.from_mapping(
        {
            "env": {"name": "cartpole"},
            "agent": agent,
            "training": {"num_envs": 4, "total_timesteps": 1000, "members": 2},
            "curriculum": {"phases": phases},
        }
    )
    one, other = shard_of(config), shard_of(config)
    one.reset()
    held = []
    for _ in range(4):
        one.iterate(0.0)
        held.append(one.collector.replay.num_valid.tolist())
    assert held[:2] == [[64, 64], [128, 128]] and held[2] == [0, 0] and held[3][0] <= 64
    rows = one.collector.replay.ring.rows
    assert (rows[..., ENDING] != NONE).sum() == sum(held[3])
    chunks = [one.collector.replay.chunk_builders(m) for m in range(2)]
    kept = [[(name, make()) for name, make in chunks[m].items()] for m in range(2)]
    other.collector.set_state(
        {k.removeprefix("env."): v for k, v in one.get_state().items() if k.startswith("env.")},
        kept,
    )
    assert np.array_equal(other.collector.replay.num_valid, one.collector.replay.num_valid)


def test_a_run_ends_with_its_last_phase(tmp_path):
    phases = [{"steps": 128, "env": {"mode": "train_shooting"}}, {"steps": 192}]
    values = {"env": HOCKEY, **SMALL, "curriculum": {"phases": phases}}
    run = slipstream.train(values, out=tmp_path / "run", report=False)
    table = run.metrics()
    assert max(table["steps"]) == 320 and run.result is not None
    assert [table["phase"][i] for i in range(0, 10, 2)] == [0, 1, 1, 1, 2]
    assert RunConfig.from_mapping(run.config.as_mapping()) == run.config


def test_what_cannot_be_a_phase_is_refused():
    def refused(phases, match, env=HOCKEY):
        with pytest.raises(ConfigError, match=match):
            config = RunConfig.from_mapping({"env": env, "curriculum": {"phases": phases}})
            environment = resolve_environment(config.env_name, config.env_settings)
            Curriculum(config.curriculum, environment, config.env_settings, 1)

    refused([{"env": {"mode": "normal"}}, {"steps": 3}], "has no end")
    refused([{"steps": 3, "episodes": 4}], "one of them")
    refused([{"steps": 3, "env": {"mode": "NORMAL2"}}], "mode")
    refused([{"steps": 3, "env": {"puck_hold": False}}], "changes observations")
    refused([{"steps": 3, "env": {"opponents": None}}], "number of players")
    refused([{"steps": 3, "surprise": 1}], "known key")
    refused([{"anneal": {"puck_hold": {"start": 1, "final": 0}}}], "changes observations")
    refused([{"anneal": {"reward.gold": {"start": 1, "final": 0}}}], "gold")
    refused([{"steps": 3}], "not one", env={"name": "gym:Pendulum-v1"})
    assert CurriculumConfig().phases == ()
