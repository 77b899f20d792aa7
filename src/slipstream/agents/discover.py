"""Agents: found by file name in this folder, so that a new one is one new file.

A module here that declares `Agent` at its top level is the agent of its name. Its parts:

    Config  what a user may write under `agent:`, an `AgentConfig`. It may stand in
            `<name>_config.py` instead, so that a config can be read without waiting for PyTorch.
    Agent   Agent(config, specs, seeds, num_envs): acts and learns; `ppo.PPO` shows what it has.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

from slipstream.agents.agent_config import AgentConfig
from slipstream.core.config import nearest
from slipstream.core.errors import ConfigError

_DECLARES = re.compile(r"^(class Agent\b|Agent\b.*=)", re.MULTILINE)


@functools.cache
def list_agents() -> tuple[str, ...]:
    """Names of all agents; no module is imported."""
    folders = importlib.import_module(__package__).__path__
    files = [file for folder in folders for file in Path(folder).glob("*.py")]
    texts = {file.stem: file.read_text(encoding="utf-8") for file in files}
    return tuple(sorted(name for name, text in texts.items() if _DECLARES.search(text)))


@functools.cache
def load_config(name: str) -> type[AgentConfig]:
    """The Config of an agent.

    Raises:
        ConfigError: there is no such agent.
    """
    known = list_agents()
    if name not in known:
        guess = nearest(name, known)
        advice = f"did you mean `{guess}`?" if guess else f"known: {', '.join(known)}."
        raise ConfigError(f"There is no agent `{name}`; {advice}")
    light = f"{__package__}.{name}_config"
    found = importlib.util.find_spec(light) is not None
    module = importlib.import_module(light if found else f"{__package__}.{name}")
    config: type[AgentConfig] = module.Config
    return config


def load_agent(config: AgentConfig) -> Any:
    """The class that learns with such a config."""
    for name in list_agents():
        if load_config(name) is type(config):
            return importlib.import_module(f"{__package__}.{name}").Agent
    raise ConfigError(f"No agent is configured by {type(config).__name__}.")
