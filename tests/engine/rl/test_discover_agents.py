"""Agents are found by file name: a new one is one new file."""

import sys
from abc import ABC, abstractmethod

import pytest

import slipstream.rl.agents
from slipstream import api
from slipstream.core.errors import ConfigError
from slipstream.rl.agents import agent_registry
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.training.settings.config import resolve

SOURCE = '''
"""PPO that counts its updates."""
from pydantic import Field

from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.agents.ppo.config import PPOConfig

updates = 0


class Config(PPOConfig):
    patience: int = Field(3, ge=1)


class Agent(PPO):
    def update(self, *arguments, **named):
        global updates
        updates += 1
        return super().update(*arguments, **named)
'''


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """A folder of one's own agents, with `counting` in it."""
    (tmp_path / "counting.py").write_text(SOURCE)
    monkeypatch.setattr(
        slipstream.rl.agents, "__path__", [*slipstream.rl.agents.__path__, str(tmp_path)]
    )
    forget()
    yield
    forget()
    sys.modules.pop("slipstream.rl.agents.counting", None)


def forget():
    agent_registry.list_agents.cache_clear()
    agent_registry.agent_modules.cache_clear()


def test_what_there_is():
    agents = agent_registry.list_agents()
    assert {"dqn", "ppo", "sac", "td3"} <= set(agents) and list(agents) == sorted(agents)
    assert agent_registry.load_config("ppo") == ("ppo", PPOConfig)
    assert agent_registry.load_agent(PPOConfig()) is PPO


def test_one_file_is_an_agent(counting, tmp_path):
    assert "counting" in agent_registry.list_agents()
    settings = {"agent.name": "counting", "agent.patience": 5, "training.num_envs": 8}
    config = resolve(
        "cartpole", {**settings, "training.total_timesteps": 1024, "training.shards": 1}
    )
    assert config.agent.patience == 5
    assert resolve(config.as_mapping()) == config
    api.train(config, out=tmp_path / "run", report=False, log=lambda _: None)
    assert sys.modules["slipstream.rl.agents.counting"].updates == 1024 // (
        8 * config.agent.n_steps
    )
    with pytest.raises(ConfigError, match="patience"):
        resolve("cartpole", {"agent.patience": 5})  # a key of the other agent


def test_a_torch_form_may_know_no_precision(monkeypatch):
    monkeypatch.setattr("slipstream.rl.agents.ppo.torch_ppo.Agent", lambda device: device)
    assert agent_registry.load_agent(PPOConfig(), "torch", "cpu")() == "cpu"


def test_an_unknown_agent_is_refused():
    with pytest.raises(ConfigError, match="no agent `pop`; did you mean `ppo`"):
        resolve("cartpole", {"agent.name": "pop"})


def test_an_agent_without_a_compiled_form_is_refused(monkeypatch):
    class Unfinished(ABC):
        @abstractmethod
        def act(self): ...

    monkeypatch.setattr(agent_registry, "get_agent_class", lambda config: Unfinished)
    with pytest.raises(ConfigError, match=r"no compiled implementation. Set `training.learner"):
        agent_registry.load_agent(DQNConfig())
