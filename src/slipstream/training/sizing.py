"""How many copies per member: what learning can bear, from the config and the spaces alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import psutil

from slipstream.agents.ppo.inputs import update_bytes
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.experience.rollout import rollout_bytes
from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment

# The most that are taken, however large the budget. A foreign environment is stepped one copy after
# another, so more than share the cost of a decision only make rollouts rarer.
FOREIGN_COPIES = 8
MARKET_COPIES = 64  # measured: 12 copies reach 95 % of the optimum in 100,000 steps, 256 reach 86 %
KERNEL_COPIES = 256
MIN_ROLLOUTS = 50  # as often, at least, is the policy improved and tried out
MIN_EPISODES = 10  # of full length, that each copy has time for
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class Choice:
    """What was chosen and why.

    Attributes:
        num_envs: N, copies per member.
        reason: a sentence for the user.
    """

    num_envs: int
    reason: str


def choose_num_envs(config: RunConfig, environment: Environment) -> Choice:
    """The most copies, a power of two, that leave learning enough rollouts and episodes.

    The answer follows from the config and the environment's spec: neither the machine, nor how busy
    it is, nor the number of members has a say, so the same command and seed train the same weights.

    Raises:
        ConfigError: no number of copies makes the minibatch divide a rollout.
    """
    agent, spec, steps = config.agent, environment.spec, config.training.total_steps
    most, kind = KERNEL_COPIES, "a kernel"
    if spec.market is not None:
        most, kind = MARKET_COPIES, "a market"
    elif environment.kernel is None:
        most, kind = FOREIGN_COPIES, "a Gymnasium environment"
    possible = [n for n in range(1, most + 1) if _divides(config, n)]
    if not possible:
        raise ConfigError(
            f"No number of copies up to {most} makes the minibatch {agent.minibatch} divide "
            f"a rollout of agent.horizon = {agent.horizon}; choose a minibatch that divides "
            "horizon x num_envs."
        )
    bounds = {
        f"the most for {kind}": most,
        f"{MIN_ROLLOUTS} rollouts of {agent.horizon} steps in a budget of {steps:,}": steps
        // (agent.horizon * MIN_ROLLOUTS),
    }
    if spec.max_episode_steps is not None and spec.market is None:  # a market pays at every bar
        limit = spec.max_episode_steps
        reason = f"{MIN_EPISODES} episodes of {limit:,} steps in each copy's share of {steps:,}"
        bounds[reason] = steps // (limit * MIN_EPISODES)
    reason, bound = min(bounds.items(), key=lambda item: item[1])
    powers = [n for n in possible if n & (n - 1) == 0] or possible
    chosen = max((n for n in powers if n <= bound), default=min(powers))
    return Choice(chosen, f"{chosen} copies per member ({reason})")


def resolve_num_envs(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """The config with a number for `num_envs: auto`, and a sentence about the choice."""
    if config.training.num_envs != "auto":
        return config, None
    choice = choose_num_envs(config, environment)
    return config.with_training(num_envs=choice.num_envs), f"num_envs: auto is {choice.reason}."


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
    outputs = spec.choices or spec.action_width
    size += _weight_bytes(config, int(np.prod(spec.observation_shape)), outputs)
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


def _divides(config: RunConfig, num_envs: int) -> bool:
    minibatch = config.agent.minibatch
    return minibatch is None or (config.agent.horizon * num_envs) % minibatch == 0
