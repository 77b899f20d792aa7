"""Foreign environments behind the same interface: spaces, seeds, ends, and their errors."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from slipstream.core.child_process import AT, BEAT, HEARTBEAT_WORDS
from slipstream.core.errors import ConfigError, KernelError, ResourceError
from slipstream.core.random import stream
from slipstream.gym.env_factory import flatten_spaces, make_gymnasium
from slipstream.gym.foreign_env import ForeignEnv
from slipstream.gym.sub_env import SubEnv, step_envs, unwrap_step
from slipstream.kernels.env_checker import allocate_buffers, random_actions
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.vector_env import member_indices


class Toy(gymnasium.Env):
    """Ends when told; keeps one buffer for all its observations, as some environments do."""

    def __init__(self, terminate_at=3, truncate_at=0, observation=None, action=None, reward=1.0):
        self.plain = observation is None
        self.observation_space = spaces.Box(-9, 9, (2,), np.float64) if self.plain else observation
        self.action_space = spaces.Discrete(3, start=5) if action is None else action
        self.ends = (terminate_at, truncate_at)
        self.reward, self.seen = reward, []
        self.buffer = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.buffer[:] = 0, self.np_random.random()
        return self._observation(), {}

    def step(self, action):
        self.seen.append(action)
        assert self.action_space.contains(action)
        self.time += 1
        self.buffer[0] = self.time
        terminate_at, truncate_at = self.ends
        reward = self.reward(self.time) if callable(self.reward) else self.reward
        ended = (bool(n and self.time >= n) for n in (terminate_at, truncate_at))
        return self._observation(), reward, *ended, {}

    def _observation(self):
        if self.plain:
            return self.buffer
        self.observation_space.seed(self.time)
        return self.observation_space.sample()


gymnasium.register("SlipstreamToy-v0", Toy, disable_env_checker=True, order_enforce=False)


def toys(num_envs=2, seeds=(3,), at_end=RESET, **kwargs):
    rows, indices = member_indices(seeds, num_envs)
    return ForeignEnv("SlipstreamToy-v0", rows, indices, kwargs=kwargs, at_end=at_end)


def inner(env, e):
    """The environment of copy e, inside all wrappers."""
    return env.driver.group.sub_envs[e].unwrapped


def begun(env):
    out = allocate_buffers(env)
    env.reset(out.obs)
    return out


def step(env, t=0, action=0):
    out = allocate_buffers(env)
    rows = np.full((env.num_envs, env.spec.action_dim), action, env.spec.action_dtype)
    env.step(rows, out, t)
    return out


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float64), 6),
        (spaces.Discrete(4), 4),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.MultiBinary(3), 3),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (3,), np.float32)}), 5),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))), 5),
        (spaces.Box(0, 255, (4,), np.uint8), 4),
    ],
)
def test_observations_are_one_row(space, size):
    env = toys(observation=space)
    assert env.spec.observation_space.shape == (size,) and env.spec.observation_dtype == np.float32
    obs = begun(env).obs
    expected = spaces.flatten(space, inner(env, 0)._observation())
    assert np.array_equal(obs[0], expected.astype(np.float32))


def test_images_stay_bytes_channels_first():
    space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    env = toys(observation=space)
    assert env.spec.observation_dtype == np.uint8 and env.spec.observation_shape == (3, 6, 5)
    obs = begun(env).obs
    assert np.array_equal(obs[1], np.moveaxis(inner(env, 1)._observation(), -1, 0))


@pytest.mark.parametrize(
    ("space", "row", "native"),
    [
        (spaces.Discrete(3, start=5), [2], 7),
        (spaces.MultiDiscrete([3, 2], start=[1, 4]), [2, 1], [3, 5]),
        (spaces.MultiDiscrete([[3, 2], [2, 2]]), [2, 1, 0, 1], [[2, 1], [0, 1]]),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (spaces.Box(-2, 2, (2, 2), np.float64), [0.5, 1, 0, -1], [[0.5, 1.0], [0.0, -1.0]]),
    ],
)
def test_actions_reach_the_environment_as_it_knows_them(space, row, native):
    env = toys(num_envs=1, action=space)
    begun(env)
    assert env.spec.action_dim == len(row)
    step(env, action=row)
    assert np.array_equal(inner(env, 0).seen[0], native)
    assert space.contains(inner(env, 0).seen[0])


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (spaces.Box(0, 1, (1,)), spaces.Text(3), "action space"),
        (spaces.Box(0, 1, (1,)), spaces.Dict({"a": spaces.Discrete(2)}), "MultiDiscrete"),
        (spaces.Sequence(spaces.Discrete(2)), spaces.Discrete(2), "no fixed flat size"),
        (spaces.Graph(spaces.Discrete(2), None), spaces.Discrete(2), "no fixed flat size"),
    ],
)
def test_spaces_without_a_fixed_form_are_refused(observation, action, words):
    with pytest.raises(ConfigError, match=f"gym:X.*{words}"):
        flatten_spaces("X", observation, action)


def test_reset_within_the_step_that_ends():
    env = toys(num_envs=1, terminate_at=2)
    first = begun(env).obs.copy()
    one, two = step(env, 0), step(env, 1)
    assert one.obs[0].tolist() == [1.0, first[0, 1]] and not one.terminated[0]
    assert two.terminated[0] and not two.truncated[0]
    assert two.obs[0, 0] == 0.0 and two.obs[0, 1] != first[0, 1]
    done = env.drain_episodes()
    assert (done.t.tolist(), done.returns.tolist(), done.length.tolist()) == ([1], [2.0], [2])
    assert done.metrics == {} and len(env.drain_final_obs().obs) == 0


@pytest.mark.parametrize(
    ("mode", "terminate_at", "truncate_at", "kept"),
    [
        (RESET, 0, 2, 2),
        (RESET, 2, 2, 0),
        (RESET, 2, 0, 0),
        (RESET_KEEP_ALL, 2, 0, 2),
        (HOLD, 0, 2, 0),
    ],
)
def test_final_observations(mode, terminate_at, truncate_at, kept):
    """Kept as they were, although the environment has used its buffer again."""
    env = toys(at_end=mode, terminate_at=terminate_at, truncate_at=truncate_at)
    first = begun(env).obs.copy()
    step(env, 0)
    out = step(env, 1)
    finals = env.drain_final_obs()
    assert len(finals.obs) == kept and finals.index.shape == (kept, 2)
    for row, (t, e) in zip(finals.obs, finals.index, strict=True):
        assert t == 1 and row.tolist() == [2.0, first[e, 1]]
    assert (out.obs[:, 0] == (2.0 if mode == HOLD else 0.0)).all()
    if mode == HOLD:
        waiting = step(env, 2)
        assert (waiting.reward == 0).all() and not waiting.truncated.any()


def test_seeds_are_of_member_index_and_episode():
    many, alone = toys(num_envs=3, seeds=(1, 2)), toys(num_envs=1, seeds=(2,))
    outs = [begun(many), begun(alone)]
    assert len(set(outs[0].obs[:, 1])) == 6
    for t in range(9):
        assert outs[0].obs[3].tolist() == outs[1].obs[0].tolist()
        outs = [step(many, t), step(alone, t)]


def test_begin_and_resume():
    env = toys(at_end=HOLD, num_envs=2)
    out = begun(env)
    env.begin(np.array([1, 0]), np.array([4, 5]), 9, out.obs)
    again = allocate_buffers(env)
    env.begin(np.array([0, 1]), np.array([4, 5]), 9, again.obs)
    assert (out.obs == again.obs[::-1]).all()


def walk(env, out, steps, seed):
    draw = np.random.default_rng(seed)
    for t in range(steps):
        env.step(random_actions(env.spec, env.num_envs, draw), out, t)
    return out


@pytest.mark.parametrize("target", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1"])
@pytest.mark.parametrize("steps", [0, 1, 33])
def test_a_saved_copy_comes_back_to_where_it_stood(target, steps):
    """Equal to one that was never stopped, from then on, within and beyond the episode."""
    rows = member_indices([4], 3)
    whole, again = (ForeignEnv(target, *rows) for _ in range(2))
    first = walk(whole, begun(whole), steps, 0)
    state, saved = whole.get_state(), first.obs.copy()
    second = allocate_buffers(again)
    again.set_state(state, second.obs)
    assert again.num_restarted == 0 and np.array_equal(second.obs, saved)
    for mine, theirs in zip(again.get_state().items(), state.items(), strict=True):
        assert mine[0] == theirs[0] and np.array_equal(mine[1], theirs[1])
    whole.drain_episodes()
    for t in range(60):
        walk(whole, first, 1, t), walk(again, second, 1, t)
        assert all(map(np.array_equal, first[:4], second[:4]))
    assert all(map(np.array_equal, whole.drain_episodes()[:4], again.drain_episodes()[:4]))


def test_copies_that_do_not_repeat_themselves_begin_fresh_episodes():
    draws = iter(range(1_000_000))
    env, other = (toys(reward=lambda time: float(next(draws)), terminate_at=9) for _ in range(2))
    walk(env, begun(env), 5, 0)
    state, obs = env.get_state(), allocate_buffers(other).obs
    other.set_state(state, obs)
    assert other.num_restarted == 2 and (obs[:, 0] == 0).all()
    assert other.get_state()["episode"].tolist() == [2, 2]


def test_episodes_too_long_to_be_kept_begin_afresh(monkeypatch):
    from slipstream.gym import foreign_env

    monkeypatch.setattr(foreign_env, "LONGEST_LOG", 4)
    env, other = toys(terminate_at=9), toys(terminate_at=9)
    for steps, fresh in ((4, 0), (1, 2)):
        walk(env, begun(env) if steps == 4 else allocate_buffers(env), steps, 0)
        other.set_state(env.get_state(), allocate_buffers(other).obs)
        assert other.num_restarted == fresh


def test_actions_are_kept_over_more_steps_than_an_episode_has(monkeypatch):
    from slipstream.gym import foreign_env

    monkeypatch.setattr(foreign_env, "LONGEST_LOG", 4)
    env, other = toys(terminate_at=3), toys(terminate_at=3)
    out = begun(env)
    for steps in (4, 7, 3):
        walk(env, out, steps, steps)
        other.set_state(env.get_state(), allocate_buffers(other).obs)
        assert other.num_restarted == 0
        for name, value in env.get_state().items():
            assert np.array_equal(value, other.get_state()[name]), name


def test_actions_come_as_gymnasium_hands_them_over():
    env = toys()
    begun(env)
    step(env, 0, 2)
    (action,) = inner(env, 0).seen
    assert action == 7 and type(action) is np.int64  # as of Discrete.sample() and SyncVectorEnv


def test_every_episode_has_the_seed_of_its_number():
    class Seeds(Toy):
        def reset(self, *, seed=None, options=None):
            self.seen.append(seed)
            return super().reset(seed=seed)

    env = Seeds()
    copy = SubEnv("seeds", 0)
    copy.set_env(env)
    asked = [(2, 5, e) for e in [*range(70), 3, 40, 39]] + [(2, 6, 39), (3, 6, 39), (3, 6, 40)]
    for numbers in asked:
        copy.reset(numbers[2], seed=copy.episode_seed(*numbers))
    with np.errstate(over="ignore"):
        words = [stream(*(np.uint64(n) for n in numbers)) for numbers in asked]
    assert env.seen == [int(word & np.uint64(2**31 - 1)) for word in words]


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_rewards_must_be_finite(reward):
    env = toys(reward=reward)
    begun(env)
    with pytest.raises(KernelError, match=r"reward (nan|inf) .environment 0, step 4.*\[1\]"):
        step(env, 4, 1)


def test_rewards_of_one_element(recwarn):
    env = toys(reward=np.array([2.5]))
    begun(env)
    assert step(env).reward.tolist() == [2.5, 2.5] and not recwarn.list


def test_errors_inside_are_named():
    env = toys(reward=lambda time: 1 / 0)
    begun(env)
    with pytest.raises(KernelError, match=r"ZeroDivisionError.*environment 0, step 2, episode 0"):
        step(env, 2)


def test_missing_packages_are_named(monkeypatch):
    def absent(*_args, **_kwargs):
        raise gymnasium.error.DependencyNotInstalled('Box2D is absent, run pip install "box2d"')

    monkeypatch.setattr(gymnasium, "make", absent)
    with pytest.raises(ResourceError, match=r'gym:LunarLander-v3.*pip install "box2d"'):
        make_gymnasium("LunarLander-v3")


def test_gymnasiums_time_limit_is_kept():
    rows, indices = member_indices([0], 1)
    env = ForeignEnv("Pendulum-v1", rows, indices)
    begun(env)
    draw = np.random.default_rng(0)
    out = allocate_buffers(env)
    for t in range(200):
        env.step(random_actions(env.spec, 1, draw), out, t)
        assert bool(out.truncated[0]) == (t == 199)
    assert env.drain_final_obs().index.tolist() == [[199, 0]]
    env.close()


def test_choices_are_one_hot_and_their_scale_is_fixed():
    """Mean 0 and the deviation of an even choice among n, sqrt(n - 1) / n, however rare one is."""
    box, choice = spaces.Box(-1, 1, (2,)), spaces.Discrete(5)
    env = toys(observation=spaces.Dict({"a": choice, "b": spaces.Tuple((box, choice))}))
    mean, std = [0] * 5 + [np.nan] * 2 + [0] * 5, [0.4] * 5 + [np.nan] * 2 + [0.4] * 5
    assert np.array_equal(env.spec.fixed_mean, np.float32(mean), equal_nan=True)
    assert np.array_equal(env.spec.fixed_std, np.float32(std), equal_nan=True)
    assert toys().spec.fixed_mean is None
    for space, wanted in (
        (spaces.MultiBinary((2, 2)), [0.5] * 4),
        (spaces.MultiDiscrete([2, 5]), [0.5] * 2 + [0.4] * 5),
        (spaces.Discrete(1), [1.0]),
    ):
        assert np.allclose(toys(observation=space).spec.fixed_std, wanted)


def test_time_limits_hold_where_the_usual_wrappers_are_passed_by():
    """Twice: the first episode is stepped through the wrappers, which check its first calls."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=7)
    copy = SubEnv("CartPole-v1", 0)
    copy.set_env(env)
    rewards, hand = [0.0], [0] * HEARTBEAT_WORDS
    seen, ends = [], []

    def store(copy, shown):
        seen.append(shown)

    def ended(copy, last, terminated, truncated):
        ends.append((copy.length, terminated, truncated))

    for episode in range(3):
        copy.reset(episode, seed=copy.episode_seed(1, 0, episode))
        seen.clear(), ends.clear()
        for action in (0, 1) * 4:
            step_envs([(copy, action)], list, rewards, hand, 0, store, ended)
            assert rewards == [1.0]
            if ends:
                break
        assert ends == [(7, False, True)]
        with np.errstate(over="ignore"):
            word = stream(np.uint64(1), np.uint64(0), np.uint64(episode))
        env.unwrapped.reset(seed=int(word & np.uint64(2**31 - 1)))
        again = [env.unwrapped.step(action)[0] for action in (0, 1, 0, 1, 0, 1, 0)]
        assert np.array_equal(seen, again)
    step, limit, checked = unwrap_step(env)
    assert copy.step_fn == step == env.unwrapped.step and limit == 7 and not checked
    other = gymnasium.wrappers.RecordEpisodeStatistics(env)
    assert unwrap_step(other)[0] == other.step


class Breaks(gymnasium.Env):
    """Raises at the action 1."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            raise ValueError("broken")
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_watched_beat_is_even_after_a_failure_and_its_words_are_given_back(monkeypatch):
    words = memoryview(bytearray(8 * HEARTBEAT_WORDS)).cast("Q")
    monkeypatch.setattr("slipstream.gym.serial_driver.HEARTBEATS", pulses := [words])
    env = ForeignEnv(Breaks, *member_indices([3], 2))
    assert not pulses
    env.reset(allocate_buffers(env).obs)
    with pytest.raises(KernelError, match="broken"):
        env.step(np.array([[0], [1]]), allocate_buffers(env))
    assert words[AT] == 1 and words[BEAT] % 2 == 0
    env.close()
    assert len(pulses) == 1 and pulses[0] is words
