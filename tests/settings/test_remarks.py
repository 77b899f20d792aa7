"""What is said of a run whose time goes into learning."""

from slipstream.settings.config import resolve
from slipstream.settings.remarks import update_takes


def test_what_will_help_follows_from_the_agent():
    told = update_takes(resolve("hockey", {"agent.name": "td3", "training.num_envs": 8}), 0.993)
    assert told.startswith("The update takes 99% of the time: more copies will not help; smaller ")
    assert "train_freq" in told and told.endswith("PPO or a card (training.device) will.")
    told = update_takes(resolve("cartpole", {"training.num_envs": 8}), 0.96)
    assert "epochs" in told and "PPO" not in told and "train_freq" not in told
