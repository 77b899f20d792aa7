"""Registry of agents: by name in this folder, or by the path of a user's file.

A file `<name>.py` that declares `Agent` at its top level is the agent of that name. So is a folder
`<name>/` with such a file. It declares two classes, see `agent.py`:

    Config  The fields under `agent:`. A folder declares it in `config.py`, so that a config can be
            read without importing the algorithm.
    Agent   Agent(config, specs, seeds, num_envs) acts and learns. A folder may have a reference
            implementation in `torch_<name>.py`, whose Agent also takes `device`, and `precision`
            if it supports more than float32.
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
from slipstream.core.field_names import renamed_agent_member
from slipstream.core.text import closest_match, did_you_mean
from slipstream.kernels.kernel_registry import import_file
from slipstream.rl.agents.agent import Agent, AgentConfig

_CONTRACT = "agent"  # module of the base classes
_MIN_SIMILARITY = 0.8  # of a misspelled member and the right name
_EXPERIENCE_TYPES = ("rollout", "replay")
_DECLARES = re.compile(r"^(class Agent\b|Agent\b.*=)", re.MULTILINE)


@functools.cache
def list_agents() -> tuple[str, ...]:
    """Return the names of the built-in agents without importing their modules."""
    return tuple(sorted(agent_modules()))


@functools.cache
def agent_modules() -> dict[str, str]:
    """Return the module of each agent by name."""
    modules = {}
    for folder in map(Path, importlib.import_module(__package__).__path__):
        files = [(f, f.stem) for f in folder.glob("*.py") if f.stem != _CONTRACT]
        files += [
            (f, f"{f.stem}.{f.stem}") for f in folder.glob("*/*.py") if f.parent.name == f.stem
        ]
        for file, module in files:
            if _DECLARES.search(file.read_text(encoding="utf-8")):
                modules[file.stem] = f"{__package__}.{module}"
    return modules


def load_config(name: str) -> tuple[str, type[AgentConfig]]:
    """Return the name of an agent, or the absolute path of a file, and its Config.

    Raises:
        ConfigError: There is no such agent, or the file violates the contract.
        KernelError: The file cannot be imported.
    """
    if name.endswith(".py"):
        path = Path(name).expanduser().resolve()
        return str(path), _user_config(import_file(path, "agent"))
    known = list_agents()
    if name not in known:
        raise ConfigError(
            f"There is no agent `{name}`; {did_you_mean(name, known)} Name your own agent by the "
            "path of its file (`my_agent.py`)."
        )
    module, folder = agent_modules()[name], f"{__package__}.{name}"
    config_module = f"{folder}.config" if module.startswith(f"{folder}.") else module
    config: type[AgentConfig] = importlib.import_module(config_module).Config
    return name, config


def _user_config(module: ModuleType) -> type[AgentConfig]:
    """Return the Config of a user's file after checking both classes against the contract."""
    for name, base in (("Config", AgentConfig), ("Agent", Agent)):
        part: Any = getattr(module, name, None)
        is_declared = isinstance(part, type) and part.__module__ == module.__name__
        if not (is_declared and issubclass(part, base)):
            raise ConfigError(
                f"{module.__file__} is not an agent: it lacks a class {name}({base.__name__}), "
                f"with `from {base.__module__} import {base.__name__}`. "
                f"docs/guides/custom-agent.md "
                "shows the shortest agent."
            )
        _check_names(part, base, f"{module.__file__}: `{name}.")
        missing = sorted(getattr(part, "__abstractmethods__", ()))
        if missing:
            raise ConfigError(
                f"{module.__file__}: `{name}` lacks {', '.join(missing)}; see {base.__module__} "
                "for their contract."
            )
    _check_experience(module.Agent, f"{module.__file__}: `Agent`")
    config: type[AgentConfig] = module.Config
    return config


def _check_names(part: type, base: type, where: str) -> None:
    """Raise ConfigError for former or misspelled names of the contract in a user's class.

    Only names that the class does not override itself are candidates, so that helpers such as
    `updates` beside `update` are allowed.
    """
    defined, inherited = set[str](), set[str]()
    for cls in part.__mro__[:-1]:  # without `object`
        is_user_class = not cls.__module__.startswith(("slipstream.", "pydantic"))
        (defined if is_user_class else inherited).update(vars(cls))
    for cls in base.__mro__:  # attributes that are set in `__init__`
        inherited.update(vars(cls).get("__annotations__", ()))
    candidates = [name for name in sorted(inherited - defined) if not name.startswith("_")]
    for name in sorted(defined - inherited - set(getattr(part, "model_fields", ()))):
        if name.startswith("_"):
            continue
        new_name = renamed_agent_member(name)
        if new_name in inherited:
            raise ConfigError(f"{where}{name}` is called `{new_name}`. Rename it.")
        guess = closest_match(name, candidates, _MIN_SIMILARITY)
        if guess:
            raise ConfigError(
                f"{where}{name}` is not part of the agent contract; did you mean `{guess}`? Rename "
                "it, or start a name of your own with an underscore."
            )


def _check_experience(agent: type[Agent], what: str) -> None:
    """Raise ConfigError if an agent lacks a valid `experience_type`, or `learn` for a replay."""
    kind = getattr(agent, "experience_type", None)
    if kind not in _EXPERIENCE_TYPES:
        problem = "has no `experience_type`"
        if kind is not None:
            problem = f"has the unknown experience_type {kind!r}"
        raise ConfigError(
            f'{what} {problem}. Set `experience_type = "rollout"` in the class if `update` learns '
            'from rollouts, or `experience_type = "replay"` if `learn` uses a replay buffer.'
        )
    if kind == "replay" and agent.learn is Agent.learn:
        raise ConfigError(
            f'{what} has experience_type = "replay" but no method `learn`. Add '
            '`learn(replay, updates, run_tasks)`, or set `experience_type = "rollout"`.'
        )


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
    module = sys.modules[type(config).__module__]
    is_single_file = hasattr(module, "Agent")
    name = module.__name__.split(".")[-1 if is_single_file else -2]
    if learner == "torch":
        torch_module = f"{module.__name__.rpartition('.')[0]}.torch_{name}"
        if is_single_file or importlib.util.find_spec(torch_module) is None:
            raise ConfigError(
                f"The agent `{name}` has no torch implementation, which images, devices other than "
                "cpu and `training.learner: torch` require. Choose an agent with one, such as ppo."
            )
        options = {} if precision == "float32" else {"precision": precision}
        return partial(importlib.import_module(torch_module).Agent, device=device, **options)
    agent = get_agent_class(config)
    if inspect.isabstract(agent):
        raise ConfigError(
            f"The agent `{name}` has no compiled implementation. Set `training.learner: torch`."
        )
    _check_experience(agent, f"The agent `{name}`")
    return agent


def get_agent_class(config: AgentConfig) -> type[Agent]:
    """Return the compiled implementation, from the module of the config or of the folder."""
    module = sys.modules[type(config).__module__]
    if not hasattr(module, "Agent"):
        module = importlib.import_module(agent_modules()[module.__name__.split(".")[-2]])
    agent: type[Agent] = module.Agent
    return agent
