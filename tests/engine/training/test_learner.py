"""Selection of the implementation and device, errors, and whole runs with torch."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
import torch

from slipstream import api
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.storage import checkpoint
from slipstream.rl.agents import torch_agent
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.ppo import torch_ppo as ppo_form
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.nets import torch_device
from slipstream.studies.start import base_config
from slipstream.training.callbacks.events import Checkpointed
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import TrainingConfig, resolve
from slipstream.training.settings.sizing import check_learner, select_learner
from slipstream.training.trainer import resume, train

SETTINGS = {
    "env": {"name": "cartpole", "max_steps": 30},
    "agent": {"n_steps": 16, "batch_size": 32, "n_epochs": 2},
    "training": {"num_envs": 4, "total_timesteps": 256, "learner": "torch", "members": 3},
    "evaluation": {"episodes": 4, "every": 0.5},
}


@pytest.mark.parametrize(
    ("learner", "device", "image", "expected"),
    [
        ("auto", "cpu", False, "compiled"),
        ("auto", "cpu", True, "torch"),
        ("auto", "cuda", False, "torch"),
        ("torch", "cpu", False, "torch"),
        ("compiled", "cpu", False, "compiled"),
    ],
)
def test_auto_follows_from_config_and_spaces(learner, device, image, expected):
    assert select_learner(learner, device, image) == expected


@pytest.mark.parametrize(
    ("device", "image", "why"), [("cuda:1", False, "cuda:1"), ("cpu", True, "images")]
)
def test_the_compiled_form_refuses_what_it_cannot_do(device, image, why):
    with pytest.raises(ConfigError, match=f"{why}.*Set training.learner to auto"):
        select_learner("compiled", device, image)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"precision": "bfloat16_products"},
            "compiled implementation.*Set training.learner to torch",
        ),
        ({"precision": "tf32", "learner": "torch"}, "device is cpu: only GPUs support TF32"),
    ],
)
def test_a_precision_that_form_or_device_lacks_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        check_learner(TrainingConfig(**settings), False)


def test_a_missing_torch_is_named_with_its_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for training, image, what in (
        (TrainingConfig(learner="torch"), False, "training.learner"),
        (TrainingConfig(), True, "images"),
        (TrainingConfig(device="cuda"), False, "on cuda"),
    ):
        with pytest.raises(ResourceError, match=rf"{what}.*pip install"):
            check_learner(training, image)
    assert check_learner(TrainingConfig(), False) == "compiled"


@pytest.mark.parametrize(
    ("built", "cards", "words"),
    [
        (False, 0, "CPU-only build.*pip install --force-reinstall torch"),
        (True, 0, "there is no GPU.*nvidia-smi"),
        (True, 1, "1 GPU: only cuda:0"),
        (True, 2, "2 GPUs: cuda:0 to cuda:1"),
    ],
)
def test_a_card_that_is_not_there(monkeypatch, built, cards, words):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    with pytest.raises(ResourceError, match=f"cuda:2 is not available.*{words}.*cpu"):
        check_learner(TrainingConfig(device="cuda:2"), False)
    assert torch_device.get_device("cpu") == torch.device("cpu")


def test_an_amd_card_that_is_not_there(monkeypatch):
    """A build for ROCm has no CUDA and answers to its name."""
    monkeypatch.setattr(torch.version, "hip", "6.4.2")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ResourceError, match=r"HIP_VISIBLE.*ROCm 6\.4\.2.*`rocm-smi`.*cpu"):
        check_learner(TrainingConfig(device="cuda"), False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert check_learner(TrainingConfig(device="cuda"), False) == "torch"


def _run(tmp_path, name, **changes):
    run = Run.create(resolve(SETTINGS, changes), tmp_path / name)
    train(run.config, run)
    run.close()
    return _state(run)


def _state(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def _same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


def test_members_of_the_torch_form_alone_and_in_shards(tmp_path):
    one, two = (_run(tmp_path, f"{n}", **{"training.shards": n}) for n in (1, 2))
    _same(one, two)
    alone = _run(tmp_path, "alone", **{"training.members": 1, "training.seed": 1})
    _same(alone, {name: np.split(values, 3)[1] for name, values in one.items()})


class Pictures(gymnasium.Env):
    """The action must name the bright half; only the episode's seed is random."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, 8, 8), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 10
        return self._look(), {}

    def _look(self):
        self._side = int(self.np_random.integers(2))
        picture = np.zeros((1, 8, 8), np.uint8)
        picture[:, :, 4 * self._side : 4 * self._side + 4] = 200
        return picture

    def step(self, action):
        reward = float(action == self._side)
        self._left -= 1
        return self._look(), reward, self._left == 0, False, {}


gymnasium.register("Pictures-v0", entry_point=Pictures)
IMAGES = {
    "env": "gym:Pictures-v0",
    "training.learner": "auto",
    "agent.net_arch": [16],
    "training.shards": 1,
}


def test_a_study_of_images_may_round():
    config = base_config(
        {**SETTINGS, "env": "gym:Pictures-v0", "training": {"precision": "bfloat16_products"}}
    )
    assert check_learner(config.training, image=True) == "torch"


@pytest.mark.slow
def test_images_learn_in_the_torch_form(tmp_path):
    longer = {"training.total_timesteps": 2048, "training.members": 1, "agent.learning_rate": 3e-3}
    run = api.train(
        {**SETTINGS, "env": {"name": "gym:Pictures-v0"}},
        out=tmp_path / "run",
        overrides={name: value for name, value in (IMAGES | longer).items() if name != "env"},
        report=False,
        log=lambda sentence: None,
    )
    assert run.provenance["learner"] == "torch"
    assert run.result["members"][0]["best_score"] > 8.0  # of 10; half of them by chance


@pytest.mark.slow
def test_dqn_learns_from_images(tmp_path):
    agent = {
        **{
            "name": "dqn",
            "net_arch": [16],
            "batch_size": 32,
            "learning_starts": 100,
            "iteration": 256,
        },
        **{"learning_rate": 3e-3, "exploration_steps": 500, "gamma": 0.5},
    }
    run = api.train(
        {"env": {"name": "gym:Pictures-v0"}, "agent": agent},
        out=tmp_path / "run",
        total_timesteps=1536,
        report=False,
        log=lambda sentence: None,
    )
    assert run.provenance["learner"] == "torch"
    assert run.result["members"][0]["best_score"] > 8.0


def test_what_does_not_learn_from_images_is_refused():
    spec = resolve_environment("gym:Pictures-v0", {}).spec
    DQNConfig().check_spaces(spec)
    with pytest.raises(ConfigError, match=r"agent\.dueling does not support image"):
        DQNConfig(dueling=True).check_spaces(spec)
    with pytest.raises(ConfigError, match=r"sac does not support image.*Choose ppo"):
        SACConfig().check_spaces(spec)


@pytest.mark.slow
def test_images_are_killed_and_resumed(tmp_path):
    settings = {**SETTINGS, "env": {"name": "gym:Pictures-v0"}}
    changes = {name: value for name, value in IMAGES.items() if name != "env"}
    whole = Run.create(resolve(settings, changes), tmp_path / "whole")
    train(whole.config, whole)
    whole.close()
    cut = Run.create(resolve(settings, changes), tmp_path / "cut")
    _stopped(cut)
    resume(cut)
    cut.close()
    _same(_state(cut), _state(whole))


def _stopped(run):
    """Trains until the first checkpoint."""

    def leave(event):
        if isinstance(event, Checkpointed):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(run.config, run, [leave])
    run.close()


@pytest.mark.parametrize(("precision", "where"), [("float32", "cpu"), ("tf32", "cpu in float32")])
def test_a_run_goes_on_elsewhere_only_when_asked(tmp_path, monkeypatch, precision, where):
    """The card is a processor in disguise here: everything but torch's device is as on one."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch_agent, "get_device", lambda name: cpu)
    monkeypatch.setattr(torch_device, "get_device", lambda name: cpu)
    said = []
    settings = {"device": "cuda:0", "learner": "auto", "precision": precision}
    config = resolve(SETTINGS, {f"training.{name}": one for name, one in settings.items()})
    run = Run.create(config, tmp_path / "run", log=said.append)
    _stopped(run)
    assert run.device == "cuda:0"
    api.resume(run, device="cpu", report=False)
    assert run.device == "cpu" and run.config.training.device == "cuda:0"
    moved = [note for note in run.provenance["notes"] if f"is trained on {where}, " in note]
    assert len(moved) == 1 and "before on cuda:0" in moved[0] and moved[0] in said
    assert run.result is not None


def test_a_run_says_once_that_its_card_lacks_memory(tmp_path, monkeypatch):
    """The card is a processor in disguise, which calculates members together as a card does."""
    monkeypatch.setattr(torch_agent, "get_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(torch_agent, "member_batches", lambda members, _: [slice(0, members)])
    told, update = [], ppo_form.PPOGroup.update

    def lacking(group, *arguments):
        if group.count == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return update(group, *arguments)

    monkeypatch.setattr(ppo_form.PPOGroup, "update", lacking)
    config = resolve(SETTINGS, {"training.device": "cuda:0", "training.learner": "auto"})
    run = Run.create(config, tmp_path / "run", log=told.append)
    train(config, run)
    said = [one for one in told if "lacks memory for all 3 members" in one]
    assert len(said) == 1 and said[0] in run.provenance["notes"]
    run.close()


def test_a_run_is_not_moved_to_a_card_that_is_not_there(tmp_path):
    run = Run.create(resolve(SETTINGS), tmp_path / "run")
    _stopped(run)
    if torch.cuda.device_count() == 0:
        with pytest.raises(ResourceError, match="cuda:7 is not available"):
            api.resume(run, device="cuda:7", report=False)
        assert run.device == "cpu" and "notes" not in run.provenance
