"""Agents: found by name in this folder, so that a new one is one new file or folder.

A file `<name>.py` that declares `Agent` at its top level is the agent of its name, and so is a
folder `<name>/` whose `<name>.py` does. Its parts:

    Config  what a user may write under `agent:`, an `AgentConfig`. In a folder it stands in
            `config.py`, so that a config can be read without waiting for what learns.
    Agent   Agent(config, specs, seeds, num_envs): acts and learns, see `agent.py`.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.agents.agent_config import AgentConfig
from slipstream.core.config import nearest
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from slipstream.agents.agent import Agent

_DECLARES = re.compile(r"^(class Agent\b|Agent\b.*=)", re.MULTILINE)


@functools.cache
def list_agents() -> tuple[str, ...]:
    """Names of all agents; no module is imported."""
    return tuple(sorted(_modules()))


@functools.cache
def _modules() -> dict[str, str]:
    """The module of each agent, by the agent's name."""
    found = {}
    for folder in map(Path, importlib.import_module(__package__).__path__):
        alone = [(f.stem, f, f.stem) for f in folder.glob("*.py") if f.stem != "agent"]
        whole = [(f.stem, f, f"{f.stem}.{f.stem}") for f in folder.glob("*/*.py")]
        whole = [one for one in whole if one[1].parent.name == one[0]]
        for name, file, module in (*alone, *whole):
            if _DECLARES.search(file.read_text(encoding="utf-8")):
                found[name] = f"{__package__}.{module}"
    return found


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
    module, folder = _modules()[name], f"{__package__}.{name}"
    light = f"{folder}.config"
    config: type[AgentConfig] = importlib.import_module(
        light if module.startswith(f"{folder}.") else module
    ).Config
    return config


def load_agent(config: AgentConfig) -> type[Agent]:
    """The class that learns with such a config."""
    for name in list_agents():
        if load_config(name) is type(config):
            found: type[Agent] = importlib.import_module(_modules()[name]).Agent
            return found
    raise ConfigError(f"No agent is configured by {type(config).__name__}.")
