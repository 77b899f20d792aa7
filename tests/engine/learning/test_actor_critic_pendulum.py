"""SAC and TD3 swing the pendulum up within 20,000 steps, their torch forms, too."""

import pytest

import slipstream


@pytest.mark.slow
@pytest.mark.timeout(900)  # on a busy machine
@pytest.mark.parametrize(("name", "copies"), [("sac", 1), ("sac", 8), ("td3", 1)])
def test_pendulum_is_solved_by_every_seed(tmp_path, name, copies):
    scores = _scores(tmp_path, name, members=5, num_envs=copies, total_timesteps=20_000)
    assert min(scores) >= -200, scores


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_pendulum_is_solved_by_the_torch_form(tmp_path, name):
    own = {"training.learner": "torch"}
    scores = _scores(tmp_path, name, members=1, num_envs=1, total_timesteps=20_000, overrides=own)
    assert min(scores) >= -200, scores


def _scores(tmp_path, name, **training):
    """Of each member's best policy by validation, on 100 fresh episodes."""
    run = slipstream.train(
        {"env": "pendulum", "agent": {"name": name, "net_arch": [64, 64]}},
        out=tmp_path / "run",
        report=False,
        **training,
    )
    return [member["test_score"] for member in run.result["members"]]
