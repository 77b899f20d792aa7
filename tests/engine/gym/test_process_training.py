"""Training through worker processes: the same weights; failures cost steps, not runs."""

import json
import os

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError, KernelError, SlipstreamError
from slipstream.gym.process import launcher
from slipstream.training import autotuner
from slipstream.training.environments.environment import SteppingConfig
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import run_warnings

ENV = """
import os
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Flaky(CartPoleEnv):
    def __init__(self, every=0):
        super().__init__()
        self.every, self.count = every, 0

    def step(self, action):
        self.count += 1
        if self.every and self.count % self.every == 0:
            raise RuntimeError("the simulator lost its licence")
        return super().step(action)

gymnasium.register("FlakyProcess-v0", Flaky, max_episode_steps=40)
"""


FIRST = """
import os
import signal
import time
import gymnasium
import numpy as np

class First(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how, log, after=0):
        self.how, self.log, self.left = how, log, after

    def reset(self, *, seed=None, options=None):
        with open(self.log, "a") as file:
            print(os.getpid(), file=file)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        if self.left >= 0:
            return np.zeros(2, np.float32), 1.0, False, False, {}
        if self.left == -1:
            print("stepped at last")
        if self.how == "exit":
            os._exit(0)
        if self.how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "hang":
            time.sleep(1000)
        return np.zeros(2, np.float32), 1.0, False, False, {}

gymnasium.register("FirstSteps-v0", First, max_episode_steps=40)
"""


#: Seconds before a call counts as hanging: only where it does, as a busy machine is slow.
PATIENCE = {"exit": 60.0, "crash": 60.0, "hang": 0.5}


@pytest.fixture
def first(tmp_path, monkeypatch):
    """Its name, kwargs by what it does, and who has reset it so far."""
    (tmp_path / "first_steps.py").write_text(FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    log = tmp_path / "log"

    def who():
        return {int(line) for line in log.read_text().split()} if log.exists() else set()

    return "gym:first_steps:FirstSteps-v0", lambda how: {"how": how, "log": str(log)}, who


@pytest.fixture
def flaky(tmp_path, monkeypatch):
    (tmp_path / "flaky_process.py").write_text(ENV)
    monkeypatch.syspath_prepend(tmp_path)
    return "gym:flaky_process:FlakyProcess-v0"


def trained(env, out, every=0, **training):
    config = {
        "env": {"name": env, "kwargs": {"every": every}},
        "agent": {"name": "ppo", "n_steps": 32, "net_arch": [8], "n_epochs": 1, "batch_size": 64},
        "training": {"num_envs": 4, "total_timesteps": 512, "workers": 2, **training},
        "evaluation": {"episodes": 4, "every": 0.5},
    }
    said = []
    run = slipstream.train(config, out=out, report=False, log=said.append)
    return run, said


def weights(run):
    tensors, _ = run.load_checkpoint()
    return {name: value for name, value in tensors.items() if name.startswith("agent.")}


@pytest.mark.parametrize("members", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_weights_are_those_of_the_serial_backend(flaky, tmp_path, members):
    runs = [
        trained(flaky, tmp_path / backend, backend=backend, members=members, shards=members)[0]
        for backend in ("serial", "process")
    ]
    one, other = map(weights, runs)
    assert one and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
    scores = [[m["test_score"] for m in run.result["members"]] for run in runs]
    assert scores[0] == scores[1]


def test_failures_are_said_and_recorded_and_the_run_goes_on(flaky, tmp_path):
    run, said = trained(flaky, tmp_path / "run", every=70, backend="process")
    faults = run.provenance["faults"]
    assert faults["number"] > 2 and "lost its licence" in faults["last"][0]
    assert any("not used for learning" in sentence for sentence in said)
    assert run.result["members"][0]["test_score"] is not None
    assert json.dumps(faults)


@pytest.mark.slow
def test_a_fault_may_end_the_run(flaky, tmp_path):
    with pytest.raises(KernelError, match=r"lost its licence"):
        trained(flaky, tmp_path / "run", every=70, backend="process", on_fault="raise")


def test_backends_are_tried_in_order_and_the_choice_is_said_and_recorded(
    flaky, tmp_path, monkeypatch
):
    run, said = trained(flaky, tmp_path / "one", backend="process", backend_fallback=["serial"])
    assert run.config.training.backend == "process"
    assert not any("steps the environments" in sentence for sentence in said)

    def absent(method):
        raise ConfigError("no files can be handed over")

    monkeypatch.setattr(launcher, "check_method", absent)
    run, said = trained(flaky, tmp_path / "two", backend="process", backend_fallback=["serial"])
    assert run.config.training.backend == "serial"
    wanted = r"Backend `serial` steps the environments: `process` does not work here (no files"
    (sentence,) = [sentence for sentence in said if "steps the environments" in sentence]
    assert sentence.startswith(wanted) and sentence in run.provenance["notes"]
    with pytest.raises(ConfigError, match=r"None of training.backend.*no files"):
        trained(flaky, tmp_path / "three", backend="process", backend_fallback=["process"])


def test_a_kernel_is_compiled_not_stepped_by_processes(tmp_path):
    with pytest.raises(ConfigError, match=r"cartpole.*backend `process`.*compiled"):
        slipstream.train("cartpole", out=tmp_path / "run", backend="process", total_timesteps=1000)
    assert not (tmp_path / "run").exists()


def test_evaluation_repeats_lost_episodes(flaky, tmp_path):
    """Scores with faults are those without: an episode is begun again from its first step."""
    from slipstream.gym.gymnasium_environment import GymnasiumKind
    from slipstream.training.environments.evaluator import run_episodes

    found = []
    for every, backend in ((0, "serial"), (45, "process")):
        environment = GymnasiumKind(flaky).load({"kwargs": {"every": every}})
        with environment.make_eval_envs("test", 2, 1, backend) as env:
            tracks: list[list[EpisodeResult]] = run_episodes(
                env, lambda seen: np.full((2, 1), 1) * (seen.step[:, None] % 2), 5, 7
            )
            faults = env.drain_faults()
        found.append(
            [(track.episode_return, track.length, len(track.actions)) for track in tracks[0]]
        )
    assert found[0] == found[1] and faults


def test_auto_takes_processes_where_a_step_is_long_and_they_can_be_had(
    flaky, tmp_path, monkeypatch
):
    from dataclasses import replace

    from slipstream.gym.gymnasium_environment import GymnasiumKind
    from slipstream.kernels.vector_env import member_indices

    seeds = member_indices([0], 8)
    environment = GymnasiumKind(flaky).load({})
    assert environment.step_seconds is None and environment.probed().step_seconds > 0.0
    for seconds, wanted in ((1e-7, "serial"), (0.1, "process")):
        with replace(
            environment, step_seconds=seconds, stepping=SteppingConfig(workers=2)
        ).make_envs(*seeds) as env:
            assert env.backend == wanted

    def absent(method):
        raise ConfigError("no files can be handed over")

    monkeypatch.setattr(launcher, "check_method", absent)
    with replace(environment, step_seconds=0.1, stepping=SteppingConfig(workers=2)).make_envs(
        *seeds
    ) as env:
        assert env.backend == "serial"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exit code 0"),
        ("crash", "SIGSEGV"),
        pytest.param("hang", "more than 0.5 s", marks=pytest.mark.slow),
    ],
)
def test_first_steps_are_taken_by_a_worker(first, tmp_path, how, words):
    name, kwargs, who = first
    config = {"env": {"name": name, "kwargs": kwargs(how)}, "agent": {"name": "ppo"}}
    with pytest.raises(KernelError, match=rf"first steps.*{words}.*Fix the environment"):
        slipstream.train(
            config, out=tmp_path / "run", hang_seconds=PATIENCE[how], log=lambda said: None
        )
    assert not (tmp_path / "run").exists() and who() and os.getpid() not in who()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "exit",
            "member 0 .*ended with exit code 0 while it called an environment of gym:first_steps",
        ),
        ("crash", "killed by SIGSEGV while it called"),
        pytest.param("hang", "a call of environment 0 .* more than 0.5 s", marks=pytest.mark.slow),
    ],
)
def test_what_ends_its_process_later_is_said(first, tmp_path, monkeypatch, how, words):
    """A run of one member has a child to step copies that processes are too slow for."""
    name, kwargs, who = first
    monkeypatch.setattr(
        "slipstream.training.backend._WITH_THREADS", set()
    )  # another test may have loaded torch
    config = {"env": {"name": name, "kwargs": {**kwargs(how), "after": 100}}}
    with pytest.raises(SlipstreamError, match=words):
        slipstream.train(
            config,
            out=tmp_path / "run",
            total_timesteps=4_000,
            num_envs=2,
            hang_seconds=PATIENCE[how],
        )
    assert who() and os.getpid() not in who()


@pytest.mark.slow
def test_a_lone_member_is_the_same_here_and_in_a_child(first, tmp_path, monkeypatch, capfd):
    name, kwargs, _ = first
    monkeypatch.setattr("slipstream.training.backend._WITH_THREADS", set())
    config = {"env": {"name": name, "kwargs": {**kwargs(""), "after": 1}}}
    runs = []
    for backend in ("auto", "serial"):
        more = {"total_timesteps": 4_000, "num_envs": 2, "backend": backend, "report": False}
        runs.append(slipstream.train(config, out=tmp_path / backend, **more))
        assert "stepped at last" in capfd.readouterr().out
    one, other = map(weights, runs)
    assert one and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


@pytest.mark.slow
def test_this_process_steps_no_copy_unless_that_is_asked_for(first):
    name, kwargs, who = first
    slipstream.make_vec(name, 2, kwargs=kwargs("")).close()
    config = resolve({"env": {"name": name, "kwargs": kwargs("")}})
    autotuner.tune(config, 20.0)
    assert len(who()) > 1 and os.getpid() not in who()
    resolve_environment(name, {"kwargs": kwargs("")}).probed(
        config.with_training(backend="serial").training.stepping
    )
    assert os.getpid() in who()


def test_a_machine_is_not_measured_with_what_ends_its_process(first):
    name, kwargs, _ = first
    with pytest.raises(KernelError, match="ended without an error"):
        autotuner.tune(resolve({"env": {"name": name, "kwargs": kwargs("exit")}}), 100.0)


def test_settings_that_do_nothing_are_said():
    def said(target, **training):
        config = resolve(target, {f"training.{name}": value for name, value in training.items()})
        environment = resolve_environment(config.env_name, config.env_settings)
        config = config.with_training(num_envs=8)
        return any(
            "training.workers has no effect" in one for one in run_warnings(config, environment)
        )

    assert said("cartpole", workers=2) and said("gym:CartPole-v1", backend="serial", workers=2)
    assert not said("gym:CartPole-v1", workers=2) and not said("cartpole")
