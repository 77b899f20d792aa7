"""Validations by steps or episodes, and a game's metrics beside the scores."""

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.training.callbacks.events import Updated
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.trainer import Trainer

SMALL = {
    "env": {"name": "cartpole"},
    "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 8, "total_timesteps": 2048},
}


def trained(tmp_path, **evaluation):
    values = {**SMALL, "evaluation": {"episodes": 2, **evaluation}}
    return slipstream.train(values, out=tmp_path / "run", report=False)


def test_every_so_many_steps(tmp_path):
    run = trained(tmp_path, every_steps=500)
    # iterations of 128 steps: the first at or past each multiple of 500
    assert run.evaluations()["steps"] == [512, 1024, 1536, 2048]


def test_every_so_many_episodes(tmp_path):
    run = trained(tmp_path, every_episodes=20)
    episodes = dict(zip(run.metrics()["steps"], run.metrics()["episodes"], strict=True))
    steps = run.evaluations()["steps"]
    marks = [episodes[step] // 20 for step in steps[:-1]]
    assert len(marks) > 1 and all(b > a for a, b in zip([0, *marks], marks, strict=False))
    expected = [s for s in episodes if s > 128 and episodes[s] // 20 > episodes[s - 128] // 20]
    assert steps[: len(expected)] == expected


def test_scoring_has_seconds_of_its_own(tmp_path):
    run = trained(tmp_path, every=0.5)
    columns = run.metrics()
    seconds = dict(zip(columns["steps"], columns["seconds_validate"], strict=True))
    assert seconds[1024] == 0.0 < seconds[2048]  # an iteration's row is written before it
    total = run.result["progress"]
    assert seconds[2048] < total["seconds_validate"] < total["wall"]


def test_an_eta_waits_until_it_can_be_known(tmp_path):
    told = []

    def listen(event):
        if isinstance(event, Updated):
            told.append((event.progress.steps, event.eta))

    values = {**SMALL, "evaluation": {"episodes": 2, "every": 0.25}}
    slipstream.train(values, out=tmp_path / "run", report=False, callbacks=[listen])
    assert all(eta is None for steps, eta in told if steps <= 512)  # nothing was validated before
    assert all(eta > 0.0 for steps, eta in told if steps > 512)


@pytest.mark.parametrize(
    ("episodes", "known"), [(2, 50.0), ("auto", 50.0), ("auto", None), (2, None)]
)
def test_an_eta_counts_validations_and_the_last_test(tmp_path, episodes, known):
    budget = 200_000
    training = {"num_envs": 8, "total_timesteps": budget}
    evaluation = {"episodes": episodes, "every": 0.25}
    config = RunConfig.from_mapping({**SMALL, "training": training, "evaluation": evaluation})
    trainer = Trainer(config, Run.create(config, tmp_path / "run"))
    progress = trainer.progress
    for steps, wall in [(128, 600.0), (256, 601.0), (384, 602.0)]:  # the first one compiled
        progress.steps, progress.updates, progress.wall = steps, steps, wall
        trainer._step_clock.add(progress)
    trainer._validation_seconds = known
    seconds, plan = (budget - 384) / 128, trainer.plan
    last = 2 * plan.test_episodes / (plan.num_envs if plan.steps is None else plan.max_episodes)
    if known is not None:
        assert trainer._eta() == pytest.approx(seconds + (4 + last) * known)
        trainer._validated = budget // 2
        assert trainer._eta() == pytest.approx(seconds + (2 + last) * known)
    elif episodes == "auto":  # its budget is known before the first one: a fifth of the steps
        most = 0.2 * budget / 128
        assert seconds < trainer._eta() <= seconds + most * (1 + last / 4) + 1e-6
    else:
        assert trainer._eta() is None


def test_one_measure_only():
    with pytest.raises(ConfigError, match="not both"):
        RunConfig.from_mapping({**SMALL, "evaluation": {"every_steps": 1, "every_episodes": 1}})
