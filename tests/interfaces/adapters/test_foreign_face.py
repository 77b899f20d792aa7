"""Foreign environments behind Gymnasium's VectorEnv: SyncVectorEnv's results, AsyncVectorEnv's
calls and errors, and what those two get wrong."""

import multiprocessing
import re
import time
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from slipstream.adapters.batch import ForeignBatch, ResetNeededError, SpaceError
from slipstream.adapters.gymnasium_vector import ForeignVectorAdapter, check_fixed_size, make_vec
from slipstream.api import make_adapter
from slipstream.core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_server")

MODES = tuple(AutoresetMode)
SERIAL = partial(ForeignVectorAdapter, backend="serial")


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


class Reuser(gymnasium.Env):
    """Writes every observation into one array; raises, waits or shows text when told to.

    Args:
        gate: a file whose coming ends a wait.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, high=9.0, text=False, gate=None):
        self.observation_space = Text(9) if text else Box(0.0, high, (2,), np.float32)
        self.action_space = Discrete(4)
        self.render_mode = "rgb_array"
        self._row = np.zeros(2, np.float32)
        self._text, self._gate = text, gate

    def _seen(self):
        self._row[0] = self.t
        return str(self.t) if self._text else self._row

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = (options or {}).get("t", 0)
        return self._seen(), {"begun": seed} if seed is not None else {}

    def step(self, action):
        if action == 3:
            raise ZeroDivisionError("the simulator broke")
        while action == 2 and not self._gate.exists():
            time.sleep(0.001)
        self.t += 1
        return self._seen(), np.array([1.0]), self.t >= 3, False, {"t": self.t}

    def render(self):
        return np.full((2, 2, 3), self.t, np.uint8)


@pytest.mark.parametrize(
    ("mode", "backend"),
    [
        *((mode, "serial") for mode in MODES),
        (AutoresetMode.NEXT_STEP, "process"),
        *(
            pytest.param(mode, "process", marks=pytest.mark.slow)
            for mode in MODES
            if mode is not AutoresetMode.NEXT_STEP
        ),
    ],
)
def test_the_same_as_sync_vector_env(mode, backend, same_spaces, handed):
    face = ForeignVectorAdapter([cartpole] * 3, autoreset_mode=mode, backend=backend, workers=2)
    sync = SyncVectorEnv([cartpole] * 3, autoreset_mode=mode)
    try:
        assert face.observation_space == sync.observation_space
        assert face.action_space == sync.action_space
        assert face.metadata == sync.metadata
        assert same_spaces(handed.take(face.reset(seed=3)), sync.reset(seed=3))
        drawn = np.random.default_rng(0)
        for t in range(40):
            actions = drawn.integers(0, 2, 3)
            ours, theirs = handed.take(face.step(actions)), sync.step(actions)
            assert same_spaces(ours, theirs), t
            over = ours[2] | ours[3]
            if mode is AutoresetMode.DISABLED and over.any():
                masks = [{"reset_mask": over.copy()} for _ in range(2)]
                ours = handed.take(face.reset(options=masks[0]))
                assert same_spaces(ours, sync.reset(options=masks[1]))
                assert masks[0] == {}
        assert face.np_random_seed == sync.np_random_seed == (3, 4, 5)
    finally:
        face.close()
        sync.close()


def test_final_observations_outlive_an_array_that_is_used_again():
    face = SERIAL([Reuser] * 2, autoreset_mode="SameStep")
    face.reset(options={"t": 2})
    obs, rewards, *_, infos = face.step([0, 0])
    assert rewards.tolist() == [1.0, 1.0]  # of shape (1,) in the environment
    assert obs[:, 0].tolist() == [0.0, 0.0]
    assert [final[0] for final in infos["final_obs"]] == [3.0, 3.0]
    assert infos["final_info"]["t"].tolist() == [3, 3]


def test_options_for_each_copy_and_seeds_of_any_integer():
    face = SERIAL([Reuser] * 2)
    obs, infos = face.reset(seed=np.int64(5), options=[{"t": 1}, {"t": 2}])
    assert obs[:, 0].tolist() == [1.0, 2.0]
    assert infos["begun"].tolist() == [5, 6]


@pytest.mark.slow
def test_calls_can_be_begun_and_awaited_again_after_a_time_out(tmp_path):
    gate = tmp_path / "gate"
    face = ForeignVectorAdapter([partial(Reuser, gate=gate)] * 2, workers=2)
    try:
        with pytest.raises(NoAsyncCallError, match="`step_wait` without any prior call"):
            face.step_wait()
        face.reset()
        face.step_async(np.array([2, 2]))
        with pytest.raises(AlreadyPendingCallError, match="pending call to `step` to complete"):
            face.reset_async()
        with pytest.raises(multiprocessing.TimeoutError, match="has timed out after"):
            face.step_wait(timeout=0.01)
        gate.touch()
        obs = face.step_wait()[0]  # of this step, not of the one before
        assert obs[:, 0].tolist() == [1.0, 1.0]
        face.step_async(np.array([0, 0]))
        with pytest.warns(UserWarning, match="pending call to `step`"):
            face.close()
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
            face.reset()
    finally:
        face.close()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_a_copy_raises_comes_out_and_the_face_goes_on(backend):
    face = ForeignVectorAdapter([Reuser] * 3, backend=backend, workers=2)
    try:
        face.reset()
        with pytest.raises(ZeroDivisionError, match="the simulator broke") as raised:
            face.step(np.array([0, 3, 0]))
        assert any("environment 1" in note for note in raised.value.__notes__)
        assert face.reset()[0][:, 0].tolist() == [0.0, 0.0, 0.0]
        assert face.step([0, 1, 0])[0][:, 0].tolist() == [1.0, 1.0, 1.0]
    finally:
        face.close()


def test_a_copy_can_be_restarted_alone():
    face = ForeignVectorAdapter([Reuser] * 3, workers=1, on_fault="restart")
    try:
        face.reset()
        _, _, terminated, truncated, infos = face.step(np.array([0, 3, 0]))
        assert truncated.tolist() == [False, True, False] and not terminated.any()
        assert "the simulator broke" in infos["fault"][1]
        obs, *_ = face.step([0, 0, 0])
        assert obs[:, 0].tolist() == [2.0, 0.0, 2.0]
    finally:
        face.close()


def test_attributes_calls_and_pictures():
    face = ForeignVectorAdapter([cartpole] * 3, workers=2)
    try:
        face.set_attr("gravity", [1.0, 2.0, 3.0])
        assert face.get_attr("gravity") == (1.0, 2.0, 3.0)
        with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
            face.set_attr("gravity", [1.0, 2.0])
        with pytest.raises(ValueError, match="use `step` directly"):
            face.call("step", 0)
    finally:
        face.close()
    drawn = SERIAL([Reuser] * 2)
    drawn.reset()
    assert drawn.render_mode == "rgb_array"
    assert [frame.shape for frame in drawn.render()] == [(2, 2, 3)] * 2


def test_wrong_use_is_named_and_changes_nothing():
    face = SERIAL([cartpole] * 3, autoreset_mode="Disabled")
    face.reset(seed=1)
    for wrong, kind in (([0, 1], ValueError), ([0, 1, 0, 1], ValueError), (0, TypeError)):
        with pytest.raises(kind):
            face.step(wrong)
    over = np.zeros(3, np.bool_)
    while not over.any():
        *_, terminated, truncated, _ = face.step([0, 0, 0])
        over = terminated | truncated
    with pytest.raises(ResetNeededError, match="have ended, and autoreset is disabled"):
        face.step([0, 0, 0])
    with pytest.raises(ValueError, match="`worker` must be None"):
        SERIAL([cartpole], worker=print)
    for number, text in ((0, "must be a positive"), (1.5, "must be an integer")):
        with pytest.raises(ValueError, match=text):
            ForeignVectorAdapter([cartpole], max_concurrency=number)


def test_spaces_are_checked_in_gymnasiums_words():
    differ = [Reuser, partial(Reuser, 8.0)]
    with pytest.raises(
        SpaceError, match=r"spaces are not equivalent.*observation_mode=.different."
    ):
        SERIAL(differ)
    assert SERIAL(differ, observation_mode="different").observation_space.high[1, 0] == 8.0
    with pytest.raises(ValueError, match="Invalid `observation_mode`"):
        SERIAL([cartpole], observation_mode="some")
    for shared in (None, True, False):
        shown = SERIAL([partial(Reuser, text=True)] * 2, shared_memory=shared)
        assert shown.reset()[0] == ("0", "0")


class Own(gymnasium.Space):
    """A space that Gymnasium does not know."""


def test_shared_memory_is_refused_where_gymnasium_refuses_it():
    either = OneOf((Discrete(2), Box(0.0, 1.0, (2,))))
    for space in (Discrete(2), Text(5), either, Dict({"a": Text(3), "b": either})):
        check_fixed_size(space)
    listed, graph = Sequence(Discrete(2)), Graph(Box(0.0, 1.0, (1,)), None)
    for space in (listed, graph, Tuple((Text(3), graph)), Dict({"a": OneOf((listed, Text(2)))})):
        with pytest.raises(TypeError, match="has a dynamic shape"):
            check_fixed_size(space)
    with pytest.raises(ValueError, match="a custom space"):
        check_fixed_size(Tuple((Text(3), Own((), np.int64))))


class Echo(gymnasium.Env):
    """Shows the last action."""

    observation_space = action_space = Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1), {}

    def step(self, action):
        return action, 0.0, False, False, {}


def test_numbers_of_an_action_keep_their_dtype():
    batch = ForeignBatch([Echo] * 2, "Echo", AutoresetMode.NEXT_STEP, backend="serial")
    batch.reset([1, 2])
    assert batch.step([[0.1], [-0.3]]).obs.tolist() == [[0.1], [-0.3]]
    batch.close()


def test_by_name():
    with pytest.raises(ConfigError, match=re.escape("NoSuchEnv")):
        make_vec("gym:NoSuchEnv-v1", 2, backend="serial")
    face = make_vec(
        "gym:CartPole-v1",
        2,
        autoreset_mode="SameStep",
        backend="serial",
        kwargs={"max_episode_steps": 3},
    )
    face.reset(seed=1)
    for _ in range(2):
        face.step([0, 1])
    assert face.step([0, 1])[3].all()


@pytest.mark.parametrize("library", ["gymnasium", "envpool"])
def test_wrappers_are_put_around_a_faces_copies(library):
    wrappers = [{"name": "gymnasium.wrappers:TransformObservation", "kwargs": {"func": None}}]
    with pytest.raises(ConfigError, match="TransformObservation cannot be applied to"):
        make_adapter(library, "gym:CartPole-v1", 2, backend="serial", wrappers=wrappers)
    face = make_adapter(
        *(library, "gym:CliffWalking-v1", 2),
        backend="serial",
        wrappers=["gymnasium.wrappers:FlattenObservation"],
    )
    assert face.reset()[0].shape == (2, 48)
    face.close()
