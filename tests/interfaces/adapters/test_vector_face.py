"""Kernels behind Gymnasium's VectorEnv: as its SyncVectorEnv does it, checks, arrays that stay."""

import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers

from slipstream.adapters.batch import ActionError, ClosedError, ResetNeededError, ScalarActionError
from slipstream.adapters.gymnasium_env import EnvAdapter
from slipstream.adapters.gymnasium_vector import make_vec
from slipstream.core.errors import ConfigError

MODES = tuple(AutoresetMode)
CLOCK = {"records": [[3, 0], [0, 4], [2, 2]]}  # ended by either, or by both at once


def cartpole(num_envs=3, mode="NextStep", **settings):
    return make_vec("cartpole", num_envs, autoreset_mode=mode, backend="serial", **settings)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", ["clock", "cartpole"])
def test_the_same_as_single_copies_under_sync_vector_env(
    mode, name, kernel_file, same_spaces, handed
):
    target = kernel_file(name) if name == "clock" else name
    settings = {"records": [[3, 0]]} if name == "clock" else {}
    face = make_vec(target, 3, autoreset_mode=mode, backend="serial", **settings)
    single = partial(EnvAdapter, target, backend="serial", **settings)
    sync = SyncVectorEnv([single] * 3, autoreset_mode=mode)
    assert face.observation_space == sync.observation_space
    assert face.action_space == sync.action_space
    drawn = np.random.default_rng(0)
    assert same_spaces(handed.take(face.reset(seed=[5, 9, 2])), sync.reset(seed=[5, 9, 2]))
    ends = 0
    for t in range(60):
        actions = drawn.integers(0, face.single_action_space.n, 3)
        ours, theirs = handed.take(face.step(actions)), sync.step(actions)
        assert same_spaces(ours, theirs), t
        over = ours[2] | ours[3]
        ends += over.sum()
        if mode is AutoresetMode.DISABLED and over.any():
            seeds = [None, 4, None]
            masks = [{"reset_mask": over.copy()} for _ in range(2)]
            ours = handed.take(face.reset(seed=seeds, options=masks[0]))
            assert same_spaces(ours, sync.reset(seed=seeds, options=masks[1]))
    assert ends > 3
    sync.close()


def test_a_seed_counts_up_over_the_copies_and_later_resets_go_on(same_spaces):
    face = cartpole()
    first, infos = face.reset(seed=5)
    assert infos == {}
    assert same_spaces(first, face.reset(seed=[5, 6, 7])[0])
    assert same_spaces(first, face.reset(seed=np.int64(5))[0])
    second, third = face.reset()[0], face.reset()[0]
    assert not np.array_equal(second, third)
    face.reset(seed=5)
    assert same_spaces(second, face.reset()[0])
    one = EnvAdapter("cartpole", backend="serial")
    assert same_spaces(one.reset(seed=6)[0], first[1])


def test_same_step_shows_final_observation_metrics_and_statistics(kernel_file):
    face = make_vec(
        kernel_file("clock"),
        3,
        autoreset_mode="SameStep",
        backend="serial",
        statistics=True,
        **CLOCK,
    )
    face.reset(seed=1)
    assert face.step([1, 1, 1])[4] == {}
    obs, rewards, terminated, truncated, infos = face.step([1, 1, 1])
    assert rewards.dtype == np.float64
    assert terminated.tolist() == truncated.tolist() == [False, False, True]  # both are told
    assert obs[2, 0] == 0.0 and infos["final_obs"][2][0] == 2.0
    assert infos["final_obs"][0] is None
    assert infos["_final_info"].tolist() == [False, False, True]
    final = infos["final_info"]
    assert final["metrics"]["sum"].tolist() == pytest.approx([0.0, 0.0, 0.2])
    assert final["metrics"]["_sum"].tolist() == [False, False, True]
    assert final["episode"]["l"].tolist() == [0, 0, 2]
    assert final["episode"]["r"][2] == pytest.approx(3.0 + 2 * infos["final_obs"][2][1])


def test_next_step_ignores_the_action_of_a_copy_that_has_ended():
    face = cartpole(mode="NextStep")
    face.reset(seed=3)
    over = np.zeros(3, np.bool_)
    while not over.any():
        last, _, terminated, truncated, _ = face.step([0, 0, 0])
        over = terminated | truncated
    one, two = cartpole(mode="NextStep"), face
    obs, rewards, terminated, truncated, _ = two.step([1, 1, 1])
    assert (rewards[over] == 0.0).all() and not (terminated | truncated)[over].any()
    assert (rewards[~over] == 1.0).all()
    assert not np.array_equal(obs[over], last[over])
    one.close()


@pytest.mark.parametrize(
    ("mask", "kind", "text"),
    [
        ([True, False, True], TypeError, "must be a numpy array"),
        (np.array([True]), ValueError, "must have shape `(3,)`, got (1,)"),
        (np.array([1, 0, 1]), TypeError, "must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), ValueError, "at least one True value, got reset_mask=[False False"),
    ],
)
def test_masks_are_checked_as_gymnasium_does(mask, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        cartpole().reset(options={"reset_mask": mask})


def test_seeds_of_another_number_and_options_are_refused():
    face = cartpole()
    with pytest.raises(ValueError, match="must match num_envs=3 but got length=2"):
        face.reset(seed=[1, 2])
    with pytest.raises(TypeError, match="`seed` must be an integer"):
        face.reset(seed="one")
    with pytest.raises(ConfigError, match="no reset options"):
        face.reset(options={"low": 1})


@pytest.mark.parametrize(
    ("actions", "kind", "text"),
    [
        (0, ScalarActionError, "one action for each of 3 environments"),
        ([0, 1], ActionError, "shape (2,) instead of (3,)"),
        ([0, 1, 0, 1], ActionError, "shape (4,) instead of (3,)"),
        ([0, 1, 2], ActionError, "2 at (2, 0), which is no integer from 0 to 1"),
        ([0.0, 1.0, 0.0], ActionError, "float64 of shape (3,)"),
        (["a", "b", "c"], ActionError, "instead of integer from 0 to 1"),
    ],
)
def test_wrong_actions_step_nothing(actions, kind, text, same_spaces):
    face = cartpole()
    face.reset(seed=1)
    with pytest.raises(kind, match=re.escape(text)):
        face.step(actions)
    other = cartpole()
    other.reset(seed=1)
    assert same_spaces(face.step([1, 1, 1]), other.step([1, 1, 1]))
    assert issubclass(ActionError, ValueError) and issubclass(ScalarActionError, TypeError)


def test_numbers_beyond_their_bounds_are_refused():
    face = make_vec("pendulum", 2, backend="serial")
    face.reset(seed=1)
    with pytest.raises(ActionError, match=r"3\.0 at \(1, 0\), outside the action space .* Clip"):
        face.step(np.array([[0.0], [3.0]], np.float32))
    with pytest.raises(ActionError, match="NaN or infinity"):
        face.step(np.array([[0.0], [np.nan]], np.float32))
    face.step(np.array([[2.000001], [-2.0]]))  # rounding


def test_masked_choices_are_told_and_kept(kernel_file):
    face = make_vec(kernel_file("masked"), 2, autoreset_mode="Disabled", backend="serial")
    _, infos = face.reset(seed=1)
    assert infos["action_mask"].shape == (2, 5) and infos["_action_mask"].all()
    forbidden = np.array([[0, 0], [0, 2]])  # place 2 + 2 of the mask
    assert not infos["action_mask"][:, 4].any()
    with pytest.raises(ActionError, match="an action of environment 1 is masked out"):
        face.step(forbidden)
    assert EnvAdapter(kernel_file("masked"), backend="serial").reset(seed=1)[1]["action_mask"].any()


def test_unready_and_closed_faces_say_so():
    face = cartpole(mode="Disabled")
    with pytest.raises(ResetNeededError, match="call `reset` before the first `step`"):
        face.step([0, 0, 0])
    face.reset(options={"reset_mask": np.array([True, False, True])})
    with pytest.raises(ResetNeededError, match="missing for environments 1"):
        face.step([0, 0, 0])
    face.reset()
    over = np.zeros(3, np.bool_)
    while not over.any():
        *_, terminated, truncated, _ = face.step([0, 0, 0])
        over = terminated | truncated
    with pytest.raises(ResetNeededError, match="autoreset is disabled, and episodes have ended"):
        face.step([0, 0, 0])
    assert issubclass(ResetNeededError, gymnasium.error.ResetNeeded)
    face.close()
    face.close()
    for call in (face.reset, partial(face.step, [0, 0, 0])):
        with pytest.raises(ClosedError, match="after a call to `close"):
            call()


@pytest.mark.parametrize("given", [{"backend": "process"}, {"workers": 2}])
def test_kernels_are_stepped_in_this_process(given):
    with pytest.raises(ConfigError, match=r"kernel.*(compiled|in this process)"):
        make_vec("cartpole", num_envs=5, **given)


def test_gymnasium_makes_them_by_id_and_wraps_them():
    face = gymnasium.make_vec(
        "slipstream.adapters.registration:slipstream/cartpole-v0",
        num_envs=4,
        autoreset_mode="SameStep",
        backend="serial",
    )
    assert face.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert face.spec.kwargs["num_envs"] == 4
    wrapped = wrappers.RecordEpisodeStatistics(face)
    wrapped.reset(seed=2)
    ended = 0
    for _ in range(40):
        infos = wrapped.step(np.zeros(4, np.int64))[4]
        ended += len(infos.get("final_info", {}).get("episode", infos.get("episode", {})))
    assert ended > 0
    normalised = wrappers.NormalizeReward(cartpole(mode="NextStep"))
    normalised.reset(seed=1)
    assert np.isfinite(normalised.step([0, 1, 0])[1]).all()
    sync = gymnasium.make_vec(
        "slipstream/cartpole-v0", num_envs=2, vectorization_mode="sync", backend="serial"
    )
    assert np.array_equal(sync.reset(seed=2)[0], face.reset(seed=2)[0][:2])


def test_unknown_modes_backends_and_foreign_names_are_refused():
    with pytest.raises(ConfigError, match=r"must be one of .*, got 'Sometimes'"):
        cartpole(mode="Sometimes")
    with pytest.raises(ConfigError, match="cannot run on backend"):
        make_vec("cartpole", 2, backend="threads")
    with pytest.raises(ConfigError, match="at least 1"):
        make_vec("cartpole", 0)
    with pytest.raises(ConfigError, match="2 players"):
        make_vec("hockey", 2, backend="serial")
