"""Agents: found by name in this folder, or by the path of a user's own file.

A file `<name>.py` that declares `Agent` at its top level is the agent of its name, and so is a
folder `<name>/` whose `<name>.py` does. Its parts, see `agent.py`:


    Config  the fields under `agent:`. In a folder it is declared in `config.py`, so that a
            config can be read without waiting for what learns.
    Agent   Agent(config, specs, seeds, num_envs): acts and learns. A folder may have its torch form
            in `torch_<name>.py`, whose Agent takes `device`, too, and `precision` where
            it is not float32.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.core.text import did_you_mean
from slipstream.kernels.kernel_registry import import_file
from slipstream.rl.agents.agent import Agent, AgentConfig

_CONTRACT = "agent"  # the file of the base class, which is no agent
_DECLARES = re.compile(r"^(class Agent\b|Agent\b.*=)", re.MULTILINE)


@functools.cache
def list_agents() -> tuple[str, ...]:
    """Names of the built-in agents; no module is imported."""
    return tuple(sorted(agent_modules()))


@functools.cache
def agent_modules() -> dict[str, str]:
    """The module of each agent, by the agent's name."""
    found = {}
    for folder in map(Path, importlib.import_module(__package__).__path__):
        alone = [(f.stem, f, f.stem) for f in folder.glob("*.py") if f.stem != _CONTRACT]
        whole = [(f.stem, f, f"{f.stem}.{f.stem}") for f in folder.glob("*/*.py")]
        whole = [one for one in whole if one[1].parent.name == one[0]]
        for name, file, module in (*alone, *whole):
            if _DECLARES.search(file.read_text(encoding="utf-8")):
                found[name] = f"{__package__}.{module}"
    return found


def load_config(name: str) -> tuple[str, type[AgentConfig]]:
    """An agent's name, of a file its absolute path, and its Config.

    Raises:
        ConfigError: there is no such agent, or the file holds none.
        KernelError: the file fails to import.
    """
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        return str(path), _own_config(import_file(path, "agent"))
    known = list_agents()
    if name not in known:
        raise ConfigError(
            f"There is no agent `{name}`; {did_you_mean(name, known)} A file of your own is named "
            "by its path (`my_agent.py`)."
        )
    module, folder = agent_modules()[name], f"{__package__}.{name}"
    light = f"{folder}.config"
    config: type[AgentConfig] = importlib.import_module(
        light if module.startswith(f"{folder}.") else module
    ).Config
    return name, config


def _own_config(module: ModuleType) -> type[AgentConfig]:
    """The Config of a user's file, whose two classes keep the contract."""
    for name, base in (("Config", AgentConfig), ("Agent", Agent)):
        part: Any = getattr(module, name, None)
        own = isinstance(part, type) and part.__module__ == module.__name__
        if not (own and issubclass(part, base)):
            raise ConfigError(
                f"{module.__file__} is not an agent: it lacks a class {name}({base.__name__}), "
                f"with `from {base.__module__} import {base.__name__}`. "
                f"docs/guides/custom-agent.md "
                "shows the shortest agent."
            )
        missing = sorted(getattr(part, "__abstractmethods__", ()))
        if missing:
            raise ConfigError(
                f"{module.__file__}: `{name}` lacks {', '.join(missing)}; see {base.__module__} "
                "for their contract."
            )
    config: type[AgentConfig] = module.Config
    return config


def load_agent(
    config: AgentConfig, learner: str = "compiled", device: str = "cpu", precision: str = "float32"
) -> Callable[..., Agent]:
    """Return the class that builds an agent of a config, compiled or torch.

    Args:
        config: Instance of the agent's Config.
        learner: `compiled`, or `torch` for the reference implementation.
        device, precision: Device and precision of the torch implementation.

    Raises:
        ConfigError: The agent has no such implementation.
    """
    home = sys.modules[type(config).__module__]
    alone = hasattr(home, "Agent")
    name = home.__name__.split(".")[-1 if alone else -2]
    if learner == "torch":
        form = f"{home.__name__.rpartition('.')[0]}.torch_{name}"
        if alone or importlib.util.find_spec(form) is None:
            raise ConfigError(
                f"The agent `{name}` has no torch form, which images, devices other than cpu and "
                "`training.learner: torch` need; choose an agent that has one, such as ppo."
            )
        how = {} if precision == "float32" else {"precision": precision}
        return partial(importlib.import_module(form).Agent, device=device, **how)
    found = get_agent_class(config)
    if inspect.isabstract(found):
        raise ConfigError(
            f"The agent `{name}` has no compiled form. Set `training.learner: torch` to train it "
            "by its torch form."
        )
    return found


def get_agent_class(config: AgentConfig) -> type[Agent]:
    """The compiled form: the class beside the config's, or in the folder's own file."""
    home = sys.modules[type(config).__module__]
    if not hasattr(home, "Agent"):
        home = importlib.import_module(agent_modules()[home.__name__.split(".")[-2]])
    found: type[Agent] = home.Agent
    return found
