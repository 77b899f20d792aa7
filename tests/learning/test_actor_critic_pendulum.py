"""SAC and TD3 swing the pendulum up within 20,000 steps."""

import pytest

import slipstream


@pytest.mark.long
@pytest.mark.timeout(900)  # on a busy machine
@pytest.mark.parametrize(("name", "copies"), [("sac", 1), ("sac", 8), ("td3", 1)])
def test_pendulum_is_solved_by_every_seed(tmp_path, name, copies):
    """The best policy by validation, on 100 fresh episodes."""
    run = slipstream.train(
        {"env": "pendulum", "agent": {"name": name, "widths": [64, 64]}},
        out=tmp_path / "run",
        members=5,
        num_envs=copies,
        total_steps=20_000,
        report=False,
    )
    scores = [member["test_score"] for member in run.result["members"]]
    assert min(scores) >= -200, scores
