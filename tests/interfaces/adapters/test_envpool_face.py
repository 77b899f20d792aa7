"""EnvPool's interface: the rows of NEXT_STEP, environment numbers, first come first served."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from slipstream.adapters.batch import ActionError, ResetNeededError
from slipstream.adapters.envpool import EnvPoolAdapter
from slipstream.adapters.gymnasium_vector import make_vec
from slipstream.api import make_adapter
from slipstream.core.errors import ConfigError


def test_all_at_once_it_is_the_vector_env(handed, same_spaces):
    pool = EnvPoolAdapter("cartpole", 3, seed=5, backend="serial")
    face = make_vec("cartpole", 3, autoreset_mode="NextStep", backend="serial")
    obs, info = handed.take(pool.reset())
    assert same_spaces(obs, face.reset(seed=5)[0])
    assert info["env_id"].dtype == np.int32 and len(pool) == 3 and not pool.is_async
    drawn = np.random.default_rng(0)
    for _ in range(40):
        actions = drawn.integers(0, 2, 3)
        one, other = handed.take(pool.step(actions)), face.step(actions)
        assert same_spaces(one[0], other[0]) and same_spaces(one[2:4], other[2:4])
        assert one[1].dtype == np.float32 and np.array_equal(one[1], other[1])
    assert pool.observation_space == face.single_observation_space


def test_results_come_in_the_order_they_were_sent(handed, same_spaces):
    pool = EnvPoolAdapter("cartpole", 4, batch_size=2, seed=5, backend="serial")
    alone = [make_vec("cartpole", 1, backend="serial") for _ in range(4)]
    expected = [face.reset(seed=5 + e)[0][0] for e, face in enumerate(alone)]
    pool.async_reset()
    drawn = np.random.default_rng(0)
    order = [0, 1, 2, 3]
    for _ in range(60):
        obs, _, _, _, info = handed.take(pool.recv())
        ids = info["env_id"]
        assert ids.tolist() == order[:2]
        assert all(same_spaces(row, expected[e]) for row, e in zip(obs, ids.tolist(), strict=True))
        actions, ids = drawn.integers(0, 2, 2), ids[::-1]
        pool.send(actions, ids)
        for action, e in zip(actions, ids.tolist(), strict=True):
            expected[e] = alone[e].step([action])[0][0]
        order = order[2:] + ids.tolist()
    assert pool.is_async


def test_elapsed_steps_and_ends_of_both_kinds(kernel_file):
    pool = EnvPoolAdapter(kernel_file("clock"), 2, backend="serial", records=[[2, 2], [0, 3]])
    pool.reset()
    rows = [pool.step([0, 0]) for _ in range(4)]
    assert [row[4]["elapsed_step"].tolist() for row in rows] == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert rows[1][2].tolist() == [True, False] and rows[1][3].tolist() == [False, False]
    assert rows[2][3].tolist() == [False, True] and rows[2][1][0] == 0.0


def test_some_can_be_reset():
    pool = EnvPoolAdapter("cartpole", 4, backend="serial")
    pool.reset()
    pool.step(np.zeros(4, int))
    obs, info = pool.reset(options={"reset_mask": [False, True, False, True]})
    assert obs.shape == (2, 4) and info["env_id"].tolist() == [1, 3]
    with pytest.warns(UserWarning, match="`seed` is ignored"):
        pool.reset(seed=1)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gymnasium_environments_step_as_under_sync_vector_env(backend, handed, same_spaces):
    pool = EnvPoolAdapter("gym:CartPole-v1", 3, seed=5, backend=backend, workers=2)
    sync = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    try:
        assert same_spaces(handed.take(pool.reset())[0], sync.reset(seed=5)[0])
        drawn = np.random.default_rng(0)
        for _ in range(40):
            actions = drawn.integers(0, 2, 3)
            one, other = handed.take(pool.step(actions)), sync.step(actions)
            assert same_spaces(one[0], other[0]) and same_spaces(one[2:4], other[2:4])
            assert one[1].dtype == np.float32 and np.array_equal(one[1], other[1])
    finally:
        pool.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gymnasium_environments_step_at_their_own_pace(backend, handed, same_spaces):
    pool = EnvPoolAdapter("gym:CartPole-v1", 4, batch_size=2, seed=5, backend=backend, workers=2)
    alone = [SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]) for _ in range(4)]
    expected = [env.reset(seed=5 + e)[0][0] for e, env in enumerate(alone)]
    drawn, seen = np.random.default_rng(0), np.zeros(4, int)
    try:
        pool.async_reset()
        for _ in range(60):
            obs, _, _, _, info = handed.take(pool.recv())
            ids = info["env_id"]
            assert all(
                same_spaces(row, expected[e]) for row, e in zip(obs, ids.tolist(), strict=True)
            )
            actions = drawn.integers(0, 2, 2)
            pool.send(actions, ids)
            with pytest.raises(ResetNeededError, match="results that were not received"):
                pool.send(actions, ids)
            for action, e in zip(actions, ids.tolist(), strict=True):
                expected[e] = alone[e].step([action])[0][0]
                seen[e] += 1
        assert (seen > 0).all()
        pool.async_reset()  # whatever is under way
        assert len(pool.recv()[0]) == 2
    finally:
        pool.close()


def test_nested_observations_are_batched():
    pool = EnvPoolAdapter("gym:Blackjack-v1", 3, batch_size=2, backend="serial")
    pool.async_reset()
    first, _, _, _, info = pool.recv()
    assert [part.shape for part in first] == [(2,), (2,), (2,)]
    pool.send(np.zeros(2, int), info["env_id"])
    *_, info = pool.recv()  # one that waited, and one that was just sent
    assert info["env_id"].tolist() == [2, 0]


def test_settings_are_further_arguments():
    assert make_adapter("envpool", "cartpole", 2, backend="serial", max_steps=5).spec
    with pytest.raises(ConfigError, match="max_step"):
        make_adapter("envpool", "cartpole", 2, backend="serial", max_stepz=5)
    limited = make_adapter(
        "envpool", "gym:CartPole-v1", 2, backend="serial", kwargs={"max_episode_steps": 7}
    )
    assert limited.spec.max_episode_steps == 7


def test_wrappers_of_gymnasium_take_it_as_they_take_a_pool():
    pool = EnvPoolAdapter("cartpole", 3, seed=5, backend="serial")
    assert isinstance(pool, gymnasium.vector.VectorEnv) and isinstance(pool, gymnasium.Env)
    assert gymnasium.Wrapper(pool).render_mode is None and not pool.closed
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(pool)
    counted.reset(seed=None)
    returns, told = np.zeros(3), 0
    drawn = np.random.default_rng(0)
    for _ in range(60):
        _, reward, terminated, truncated, info = counted.step(drawn.integers(0, 2, 3))
        returns += reward
        for e in np.flatnonzero(terminated | truncated).tolist():
            assert info["episode"]["r"][e] == returns[e] and info["_episode"][e]
            told += 1
        returns[terminated | truncated] = 0.0
    assert told > 3
    counted.close()
    assert pool.closed


def test_actions_by_name_as_pools_take_them(same_spaces):
    pools = [EnvPoolAdapter("cartpole", 3, seed=5, backend="serial") for _ in range(2)]
    for pool in pools:
        pool.reset()
    ids = np.array([2, 0, 1], np.int32)
    pools[0].send({"action": np.array([1, 0, 0]), "env_id": ids, "players.env_id": ids})
    pools[1].send(np.array([1, 0, 0]), ids)
    one, other = (pool.recv() for pool in pools)
    assert one[4]["env_id"].tolist() == [2, 0, 1] and same_spaces(one[:4], other[:4])
    with pytest.raises(ActionError, match="a dict with `action` and `env_id`"):
        pools[0].send({"obs": np.zeros(3)})


def test_what_a_pool_has_not_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"cannot be rendered. Omit `render_mode`"):
        make_adapter("envpool", "cartpole", 2, backend="serial", render_mode="rgb_array")
    with pytest.raises(ConfigError, match="has no XLA interface"):
        EnvPoolAdapter("cartpole", 2, backend="serial").xla()
    with pytest.raises(ConfigError, match=r"hockey has 2 players.*opponents=.'weak'"):
        EnvPoolAdapter("hockey", 2, backend="serial")


def test_wrong_use_is_named():
    pool = EnvPoolAdapter("cartpole", 4, batch_size=2, backend="serial")
    with pytest.raises(ResetNeededError, match="needs 2 results, but 0 are in flight"):
        pool.recv()
    pool.async_reset()
    with pytest.raises(ResetNeededError, match="results that were not received"):
        pool.send([0], [1])
    first = pool.recv()[4]["env_id"]
    for ids in ([4], [0, 0], [-1], [0.5], []):
        with pytest.raises(ActionError, match="`env_id` must be"):
            pool.send(np.zeros(len(ids), int), ids)
    with pytest.raises(ActionError, match="shape"):
        pool.send([0], first)
    with pytest.raises(ConfigError, match="`batch_size` must be from 1"):
        EnvPoolAdapter("cartpole", 4, batch_size=5, backend="serial")
    with pytest.raises(ValueError, match="Unsupported reset options"):
        pool.reset(options={"low": 1})


def test_a_pool_that_was_closed_says_so():
    pool = EnvPoolAdapter("cartpole", 2, backend="serial")
    pool.async_reset()
    pool.close()
    for call in (pool.async_reset, pool.recv):
        with pytest.raises(ConfigError, match="was closed"):
            call()
