"""How many copies per member: measured on this machine, within what learning can bear."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
import psutil

from slipstream.agents.agent_config import AgentConfig
from slipstream.agents.inputs import update_bytes
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.experience.rollout import rollout_bytes
from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment
from slipstream.training.workers import make_workers

CANDIDATES = (8, 16, 32, 64, 128, 256, 512, 1024)
MARKET_COPIES = 64  # measured: 12 copies reach 95 % of the optimum in 100,000 steps, 256 reach 86 %
MIN_UPDATES = 50  # optimiser updates per member, below which little is learned
MIN_ROLLOUTS = 20  # policies must be tried out, too
GOOD_ENOUGH = 0.9  # of the best speed: the fewest copies that reach it are taken
_SECONDS = 0.3  # of measurement for each candidate
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Choice:
    """What was chosen and why.

    Attributes:
        num_envs: N, copies per member.
        speeds: environment steps per second measured, by N.
        limit: the largest N that was considered, and the reason.
        reason: a sentence for the user.
    """

    num_envs: int
    speeds: dict[int, float]
    limit: int
    reason: str


def choose_num_envs(config: RunConfig, environment: Environment) -> Choice:
    """Measures short rollouts and updates; takes the fewest copies that are nearly fastest."""
    agent, training = config.agent, config.training
    limit = MARKET_COPIES if environment.spec.market is not None else CANDIDATES[-1]
    candidates = [n for n in CANDIDATES if n <= limit and _fits(agent, training.total_steps, n)]
    if not candidates:  # a short run or an unusual minibatch: the fewest that divide
        n = next((n for n in range(1, limit + 1) if _divides(agent, n)), None)
        if n is None:
            raise ConfigError(
                f"No number of copies up to {limit} makes the minibatch {agent.minibatch} divide "
                f"a rollout of agent.horizon = {agent.horizon}; choose a minibatch that divides "
                "horizon x num_envs."
            )
        return Choice(n, {}, limit, f"{n} copies per member: the budget allows no more")
    speeds = {n: _speed(config, environment, n) for n in candidates}
    best = max(speeds.values())
    chosen = next(n for n in candidates if speeds[n] >= GOOD_ENOUGH * best)
    figures = ", ".join(f"{n}: {speed:,.0f}" for n, speed in speeds.items())
    reason = f"{chosen} copies per member (steps per second measured: {figures})"
    return Choice(chosen, speeds, candidates[-1], reason)


def resolve_num_envs(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """The config with a number for `num_envs: auto`, and a sentence about the choice."""
    if config.training.num_envs != "auto":
        return config, None
    choice = choose_num_envs(config, environment)
    return config.with_training(num_envs=choice.num_envs), f"num_envs: auto chose {choice.reason}."


def check_memory(config: RunConfig, environment: Environment) -> int:
    """Bytes that the rollouts of all members and their updates take.

    Raises:
        ResourceError: they cannot fit into this machine's memory; nothing has been allocated.
    """
    spec, n = environment.spec, int(config.training.num_envs)
    size = rollout_bytes(
        config.agent.horizon,
        config.training.members,
        n,
        spec.observation_shape,
        spec.observation_dtype,
        spec.action_width,
        spec.action_dtype,
    ) + update_bytes(spec, config.agent.horizon, config.training.members, n)
    size += _weight_bytes(config, int(np.prod(spec.observation_shape)), spec.action_width)
    free = psutil.virtual_memory().available
    if size > _MEMORY_SHARE * free:
        raise ResourceError(
            f"Training {config.training.members} members x {n} copies x "
            f"{config.agent.horizon} steps needs {size / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free. Lower training.num_envs, agent.horizon, "
            "agent.widths or training.members."
        )
    return size


def _weight_bytes(config: RunConfig, inputs: int, outputs: int) -> int:
    """Weights, gradients and two moments, float32, of actor and critic."""
    widths = (inputs, *config.agent.widths, outputs)
    weights = sum(a * b for a, b in itertools.pairwise(widths))
    return 4 * 4 * 2 * weights * config.training.members


def _divides(agent: AgentConfig, num_envs: int) -> bool:
    return agent.minibatch is None or (agent.horizon * num_envs) % agent.minibatch == 0


def _fits(agent: AgentConfig, total_steps: int, num_envs: int) -> bool:
    if not _divides(agent, num_envs):
        return False
    rollouts = total_steps // (agent.horizon * num_envs)
    updates = rollouts * agent.epochs * (agent.horizon * num_envs // agent.rows(num_envs))
    return rollouts >= MIN_ROLLOUTS and updates >= MIN_UPDATES


def _speed(config: RunConfig, environment: Environment, num_envs: int) -> float:
    """Steps per second of all members together, with the workers that training will have."""
    config = config.with_training(num_envs=num_envs)
    rates: list[float] = []
    with make_workers(config, environment) as workers:
        workers.call("reset")
        spent = 0.0
        while spent < _SECONDS or len(rates) < 2:
            began = time.perf_counter()
            workers.call("iterate", 0.0)
            seconds = time.perf_counter() - began
            spent += seconds
            rates.append(config.training.members * num_envs * config.agent.horizon / seconds)
    return float(np.median(rates[1:]))
