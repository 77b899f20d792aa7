"""Snapshots, estimates, shares; and nothing but a member's own games decides its weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import slipstream
from slipstream.games.self_play.config import SelfPlayConfig
from slipstream.games.self_play.opponents import SelfPlayOpponents, SnapshotPool
from slipstream.kernels.vector_env import Episodes
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.training.environments.factory import make_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.shard import Shard, select_members
from slipstream.training.trainer import Trainer
from slipstream.training.workers import ThreadPool

TICTACTOE = "tictactoe"
SELF_PLAY = {
    "opponents": {"snapshots": 3.0, "random": 1.0},
    "slots": 3,
    "snapshot_iterations": 2,
    "sampling": "pfsp",
}
AGENT = {"n_steps": 16, "batch_size": 64, "net_arch": (16, 16), "n_epochs": 2}


def shard(
    seeds=(7,),
    num_envs=16,
    run=None,
    backend="auto",
    members=None,
    n_steps=16,
    learner="auto",
    **own,
):
    settings = {"self_play": {**SELF_PLAY, **own}}
    environment = make_environment(TICTACTOE, settings)
    members = range(len(seeds)) if members is None else members
    config = PPOConfig(**{**AGENT, "n_steps": n_steps})
    options = {"backend": backend, "run_tasks": run, "learner": learner}
    made = Shard(environment, config, seeds, members, num_envs, **options)
    made.reset()
    return made


def states(made, iterations):
    for _ in range(iterations):
        made.iterate(0.0)
    return made.get_state()


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_member_alone_equals_it_in_a_population():
    """Seven iterations: the pool of three was filled and its oldest snapshot replaced."""
    together = states(shard((7, 8, 9)), 7)
    assert together["opponents.pool.num_taken"].tolist() == [4, 4, 4]
    assert sorted(together["opponents.pool.serial"][0, :3]) == [1, 2, 3]
    for m, seed in enumerate((7, 8, 9)):
        alone = states(shard((seed,)), 7)
        assert_equal(alone, select_members(together, range(m, m + 1), 3))
    parted = states(shard((7, 8, 9), members=range(1, 3)), 7)
    assert_equal(parted, select_members(together, range(1, 3), 3))


def test_slices_and_the_interpreted_backend_change_nothing(monkeypatch):
    whole = states(shard(), 4)
    crew = ThreadPool(2)
    sliced = shard(run=crew.run)
    sliced.agent.parts = 2
    environment = make_environment(TICTACTOE, {"self_play": SELF_PLAY})
    monkeypatch.setattr(PPOConfig, "ROWS_TO_SHARE", 2)
    cut = Shard(environment, PPOConfig(**AGENT), (7,), range(1), 16, run_tasks=crew.run)
    cut.reset()
    assert len(cut.collector.envs) == 2
    same = Shard(environment, PPOConfig(**AGENT), (7,), range(1), 16)
    same.reset()
    assert_equal(states(cut, 4), states(same, 4))
    crew.close()
    monkeypatch.undo()
    assert_equal(states(shard(backend="serial"), 4), whole)


# Games last up to nine steps, so that in iterations of four some outlive even a second snapshot.
CROWDED = {"slots": 1, "snapshot_iterations": 1, "n_steps": 4}


@pytest.mark.parametrize("settings", [{}, CROWDED])
def test_going_on_gives_the_same_bits(settings):
    straight = states(shard((7, 8), **settings), 6)
    first = states(shard((7, 8), **settings), 3)
    second = shard((7, 8), **settings)
    second.set_state(first)
    assert_equal(states(second, 3), straight)


@pytest.mark.parametrize("learner", ["compiled", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [CROWDED, {**CROWDED, "n_steps": 16}, {**CROWDED, "slots": 8, "sampling": "uniform"}],
)
def test_a_game_under_way_keeps_its_opponent(settings, learner):
    """The same weights act in it to its end, whichever place they lie in."""
    if learner == "torch":
        pytest.importorskip("torch")
    made = shard((7, 8), learner=learner, **settings)
    (env,), pool = made.collector.envs, made._opponents.pool
    met, moved = {}, set()

    def act(networks, table, actions):
        for e, k in enumerate(table.network.tolist()):
            if k < 0 or not len(networks.weights) > 1:
                continue
            game = (e, int(env.game.episode_state["episode"][e]))
            weights = networks.weights[k].tobytes()
            assert met.setdefault(game, weights) == weights
            if k % pool.serial.shape[1] == settings["slots"]:
                moved.add(game)
        loop(networks, table, actions)

    loop = env._loops["act_discrete"]
    env._loops = {**env._loops, "act_discrete": act}
    for _ in range(24):
        made.iterate(0.0)
    assert len(set(met.values())) > 8
    assert len(moved) > 4
    assert (pool.num_taken < 25).all() == (settings["n_steps"] == 4)  # there a snapshot had to wait


def test_a_run_with_two_workers_equals_one_and_resumes(tmp_path):
    training = {"members": 2, "num_envs": 16, "total_timesteps": 6 * 256, "checkpoint_every": 0.5}
    found = []
    for shards in (1, 2):
        config = resolve(
            {
                "env": {"name": TICTACTOE, "self_play": SELF_PLAY},
                "agent": AGENT,
                "training": {**training, "shards": shards},
                "evaluation": {"every": 0.3, "episodes": 10},
            }
        )
        run = Run.create(config, tmp_path / str(shards))
        result = Trainer(run.config, run).train()
        run.close()
        found.append((run.load_checkpoint()[0], result["members"]))
    assert_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    # Killed after its first checkpoint: the last one is gone.
    run = Run.open(tmp_path / "2")
    last = sorted((run.path / "checkpoints").glob("step-*"))[-1]
    last.rename(tmp_path / "gone")
    (run.path / "result.json").unlink()
    again = slipstream.resume(run.path, report=False)
    assert_equal(again.load_checkpoint()[0], found[0][0])


class _Scale:
    mean = np.zeros((1, 2), np.float32)
    inverse_std = np.ones((1, 2), np.float32)


class _Parameters:
    def __init__(self):
        self.flat = np.zeros((1, 4), np.float32)


class _Policy:
    members, scale = 1, _Scale()

    def __init__(self):
        self.parameters = _Parameters()


def pool(**settings):
    policy = _Policy()
    made = SnapshotPool(policy, SelfPlayConfig(slots=3, **settings))
    return policy, made


def test_the_oldest_snapshot_makes_room():
    policy, made = pool()
    for value in range(1, 5):
        policy.parameters.flat[:] = value
        made.snapshot(np.array([True]))
    assert made.serial.tolist() == [[3, 4, 2, -1]]
    assert made.weights[0, :3, 0].tolist() == [3.0, 4.0, 2.0]
    np.testing.assert_allclose(made.cumulative_shares, [[1 / 3, 2 / 3, 1.0]])


def test_estimates_by_hand():
    """One game at 1/2 before all others: after a win and a loss (1/2 + 1 + 0) / 3 = 1/2."""
    _, made = pool()
    made.record_game(0, 0, 1.0)
    assert made.win_rate[0, 0] == 0.75
    made.record_game(0, 0, 0.0)
    assert made.win_rate[0, 0] == pytest.approx(0.5)
    made.record_game(0, 5, 1.0)  # a snapshot that is gone
    assert made.num_games.tolist() == [[2, 0, 0]]


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [("hard", [0.8**2, 0.5**2, 0.1**2]), ("even", [0.16, 0.25, 0.09])],
)
def test_pfsp_by_hand(weighting, weights):
    _, made = pool(sampling="pfsp", pfsp_weighting=weighting)
    for _ in range(2):
        made.snapshot(np.array([True]))
    made.win_rate[0] = 0.2, 0.5, 0.9
    made.update_shares()
    expected = np.array(weights) + 1e-6
    np.testing.assert_allclose(made.cumulative_shares[0], np.cumsum(expected) / expected.sum())


def test_the_latest_alone():
    _, made = pool(sampling="latest")
    made.snapshot(np.array([True]))
    assert made.cumulative_shares.tolist() == [[0.0, 1.0, 1.0]]


def ended(results, e=None):
    n = len(results)
    zeros = np.zeros(n, np.int64)
    points = np.array(results, float)
    metrics = {
        "won": np.maximum(points, 0),
        "lost": np.maximum(-points, 0),
        "snapshot": np.zeros(n),
    }
    return Episodes(zeros, zeros if e is None else np.array(e), np.zeros(n), zeros + 1, metrics)


def test_when_a_snapshot_is_due():
    config = SelfPlayConfig(
        slots=3, snapshot_iterations=None, snapshot_win_rate=0.75, gate_episodes=4
    )
    made = SelfPlayOpponents(
        1, config, SnapshotPool(_Policy(), config), has_winner=True, make_rating_env=None
    )
    for results, taken in (
        ([1, 1, 1], 1),  # too few games
        ([-1], 2),  # 3 of 4
        ([1, 1, 0, -1], 2),  # 2.5 of 4
        ([1, 1, 1, 1, 1], 2),  # 7.5 of 9 is more than 3/4
    ):
        made.record_games(ended(results), 1)
        made.advance()
        if results == [1, 1, 1, 1, 1]:
            taken = 3
        assert made.pool.num_taken.tolist() == [taken]
    assert made.metrics()["wins"] == pytest.approx([10 / 13])
    by_episodes = SelfPlayConfig(slots=3, snapshot_iterations=None, snapshot_episodes=4)
    made = SelfPlayOpponents(
        1, by_episodes, SnapshotPool(_Policy(), by_episodes), has_winner=False, make_rating_env=None
    )
    for _ in range(3):
        made.record_games(ended([1, -1]), 1)
        made.advance()
    assert made.pool.num_taken.tolist() == [2]
    assert "wins" not in made.metrics()


def test_evaluation_has_both_sides(tmp_path):
    environment = make_environment(TICTACTOE, {"self_play": SELF_PLAY})
    made = shard()
    evaluator = environment.against({"random": 1.0})
    assert replace(evaluator).self_play.evaluation.names == ("random",)
    from slipstream.training.environments.evaluator import Evaluator

    tracks = [
        Evaluator(evaluator, "train", games=20, seed=5, max_envs=copies).run(made.agent.policy)[0]
        for copies in (1, 7, 20)
    ]
    assert [track.metrics["player"] for track in tracks[0]] == [0.0, 1.0] * 10
    assert all(
        track.episode_return == track.metrics["won"] - track.metrics["lost"] for track in tracks[0]
    )
    for other in tracks[1:]:
        assert [t.metrics for t in other] == [t.metrics for t in tracks[0]]
