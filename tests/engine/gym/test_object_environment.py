"""Environment objects: trained on by what they are, copied where they can be."""

import threading

import gymnasium
import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.core.storage.signals import Interrupted
from slipstream.gym import object_environment as objects
from slipstream.training.environments.factory import make_environment

pytestmark = pytest.mark.usefixtures("one_server")


class Walk(gymnasium.Env):
    """Right pays, and 30 steps are an episode."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kind=0.0):
        self.kind, self.place = kind, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action):
        self.place += 1
        return self._seen(), float(action), False, self.place >= 30, {}

    def _seen(self):
        return np.array([self.kind, self.place / 30], np.float32)


class Locked(Walk):
    """Cannot be pickled or copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def trained(target, path, **more):
    num_received = []
    run = slipstream.train(
        target, out=path, total_timesteps=2048, report=False, log=num_received.append,
        overrides={"evaluation.episodes": 3}, **more,
    )  # fmt: skip
    return run, " ".join([*run.provenance["notes"], *num_received])


@pytest.mark.parametrize(
    ("target", "copies"),
    [
        pytest.param(Walk(), None, id="object"),
        pytest.param(lambda: Walk(), None, id="function", marks=pytest.mark.slow),
        pytest.param([Walk, lambda: Walk(1.0)], 2, id="list", marks=pytest.mark.slow),
    ],
)
def test_objects_and_functions_are_trained_on(target, copies, tmp_path):
    run, said = trained(target, tmp_path / "run")
    assert copies is None or run.config.training.num_envs == copies
    assert run.result["members"][0]["best_score"] > 15.0  # a coin's flips make 15
    assert "us per step" in said and "kernel" in said
    assert slipstream.evaluate(run).episodes[0].episode_return > 15.0
    assert slipstream.load_policy(run).act(np.zeros((4, 2), np.float32)).shape == (4,)


def test_makers_of_a_list_make_the_copies_in_turn():
    with slipstream.make_vec([Walk, lambda: Walk(1.0)], 4) as env:
        assert env.reset(seed=1)[:, 0].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_copies_of_an_object_are_apart_from_it():
    given = Walk(0.5)
    with slipstream.make_vec(given, 3) as env:
        env.reset(seed=1)
        env.step(np.ones(3, np.int64))
    assert given.place == 0


def test_what_a_function_holds_can_keep_it_in_this_process_which_is_said(tmp_path):
    lock = threading.Lock()
    run, said = trained(lambda: Walk(float(lock.locked())), tmp_path / "run", num_envs=2)
    assert run.provenance["backend"] == "serial"
    assert "cannot be pickled for worker processes" in said and "lock" in said


def test_what_cannot_be_copied_is_trained_serially_and_said(tmp_path):
    given = Locked()
    run, said = trained(given, tmp_path / "run")
    assert (run.config.training.num_envs, run.provenance["backend"]) == (1, "serial")
    assert "cannot be pickled" in said and "serially" in said
    assert run.result["members"][0]["best_score"] > 15.0
    assert given.reset(seed=1)[0].shape == (2,)  # nobody closed it


def test_training_and_evaluation_take_turns_on_the_only_copies():
    name = objects.register(Locked(), "turns")
    environment = make_environment(name, {})
    zeros = np.zeros(1, np.uint64)
    training = environment.make_envs(zeros, zeros)
    from slipstream.kernels.vector_env import allocate_buffers

    out, actions = allocate_buffers(training), np.ones((1, 1), np.int64)
    training.reset_rows(out.obs)
    for _ in range(3):
        training.step_rows(actions, out)
    assert out.valid.all() and out.obs[0, 1] == np.float32(3 / 30)
    judge = environment.make_eval_envs("test", 8)
    rows = allocate_buffers(judge)
    judge.begin(np.zeros(1, np.int64), np.zeros(1, np.int64), 5, rows.obs)
    judge.step_rows(actions, rows)
    assert rows.valid.all() and rows.obs[0, 1] == np.float32(1 / 30)
    training.step_rows(actions, out)
    assert not out.valid.any() and not out.truncated.any() and out.obs[0, 1] == 0.0
    for _ in range(30):
        training.step_rows(actions, out)
    assert out.valid.all() and out.truncated.all()
    assert training.drain_episodes().length.tolist() == [30]


@pytest.mark.parametrize(
    "kind",
    [
        "gymnasium",
        pytest.param("sb3", marks=[pytest.mark.slow, pytest.mark.peers]),
        pytest.param("wrapped", marks=pytest.mark.peers),
    ],
)
def test_vector_environments_of_others_are_trained_on(kind, tmp_path):
    if kind == "gymnasium":
        given = gymnasium.vector.SyncVectorEnv([Walk] * 3)
    else:
        sb3 = pytest.importorskip("stable_baselines3", reason="requirements/peers.lock has SB3")
        given = sb3.common.vec_env.DummyVecEnv([Walk] * 3)
        if kind == "wrapped":  # what lies around it holds its copies
            given = sb3.common.vec_env.VecFrameStack(given, 2)
    run, said = trained(given, tmp_path / "run")
    assert run.config.training.num_envs == 3
    assert run.result["members"][0]["best_score"] > 15.0
    assert ("new episodes after each validation" in said) == (kind == "wrapped")


@pytest.mark.slow
def test_a_search_takes_functions_and_refuses_what_cannot_be_made_again(tmp_path):
    study = {"n_trials": 2, "confirmation": {"top": 1, "seeds": 1}, "final_seeds": 1}
    less = {"training.total_timesteps": 1024, "training.num_envs": 2, "evaluation.episodes": 2}
    folder = slipstream.tune(
        lambda: Walk(), study_name=str(tmp_path / "study"), study=study, overrides=less,
        workers=1, report=False, log=lambda sentence: None,
    )  # fmt: skip
    assert folder.result is not None
    with pytest.raises(ConfigError, match="Pass a function that creates one"):
        slipstream.tune(
            Locked(), study_name=str(tmp_path / "other"), study=study, workers=1, report=False,
            log=lambda sentence: None,
        )  # fmt: skip


def test_a_stopped_run_goes_on_and_elsewhere_says_what_to_register(tmp_path, monkeypatch):
    def stop(event):
        if type(event).__name__ == "Updated" and event.progress.steps >= 1024:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        slipstream.train(
            Walk, out=tmp_path / "run", total_timesteps=3072, num_envs=2, report=False,
            overrides={"evaluation.episodes": 2, "agent.n_steps": 64}, callbacks=[stop],
            checkpoint_every=0.1, log=lambda sentence: None,
        )  # fmt: skip
    known = dict(objects._REGISTRY)
    monkeypatch.setattr(objects, "_REGISTRY", {})
    with pytest.raises(
        ConfigError, match=r'slipstream\.register\(lambda: Walk\(\), "Walk(-\d)?"\)'
    ):
        slipstream.resume(tmp_path / "run", report=False)
    monkeypatch.setattr(objects, "_REGISTRY", known)
    assert slipstream.resume(tmp_path / "run", report=False).result is not None


def test_names(monkeypatch):
    monkeypatch.setattr(objects, "_REGISTRY", {})
    one, other = Walk(), Walk()
    assert objects.register(one) == objects.register(one) == "object:Walk"
    assert objects.register(other) == "object:Walk-2"
    assert objects.register(lambda: Walk()) == "object:environment"
    assert objects.register(other, "Walk") == "object:Walk"


@pytest.mark.parametrize("junk", [3, [], object(), [Walk, 3]])
def test_junk_is_refused_in_one_paragraph(junk):
    with pytest.raises(ConfigError, match="is not an environment") as caught:
        slipstream.train(junk)
    assert "\n" not in str(caught.value)


def test_fixed_copies_are_said(tmp_path):
    with pytest.raises(ConfigError, match="has 1 sub-environments"):
        slipstream.train(
            Locked(), out=tmp_path / "run", num_envs=4, report=False, log=lambda sentence: None
        )


def test_one_object_handed_out_twice_is_refused(tmp_path):
    only = Walk()
    with pytest.raises(slipstream.SlipstreamError, match="the same environment twice"):
        slipstream.train(
            lambda: only, out=tmp_path / "run", num_envs=2, report=False, log=lambda sentence: None
        )
