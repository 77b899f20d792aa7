"""How many copies per member: what learning can bear, from the config and the spaces alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from slipstream.core.capacity import free_memory
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.kernels.spec import Spec
from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.experience.replay.plan import replay_bytes
from slipstream.training.environments.environment import LONGEST, Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.players import opponent_names
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.mending import limited, mended, mends, size_of

LEAST_EPISODES = 4  # whole ones that a validation has time for, else there are fewer validations
_SHORTEST = 100  # steps of an episode without a time limit
MIN_ITERATIONS = 50  # as often, at least, is the policy improved and tried out
MIN_EPISODES = 10  # of full length, that each copy has time for
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class ChosenCopies:
    """What was chosen and why.

    Attributes:
        num_envs: N, copies per member.
        reason: a sentence for the user.
    """

    num_envs: int
    reason: str


def choose_num_envs(config: RunConfig, environment: Environment) -> ChosenCopies:
    """The most copies, a power of two, that leave learning enough rollouts and episodes.

    The answer follows from the config and the environment's spec: neither the machine, nor how busy
    it is, nor the number of members has a say, so the same command and seed train the same weights.

    Raises:
        ConfigError: no number of copies fits the agent's other sizes.
    """
    agent, spec, steps = config.agent, environment.spec, config.training.total_steps
    most, what = environment.kind.most_copies(spec)
    possible = [n for n in range(1, most + 1) if fits(agent, n)]
    if not possible:
        raise no_copies_fit(config, most, f"No number of copies up to {most} fits")
    length = agent.iteration_steps(most)
    bounds = {
        f"the most for {what}": most,
        f"{MIN_ITERATIONS} iterations of {length} steps in a budget of {steps:,}": steps
        // (length * MIN_ITERATIONS),
    }
    if agent.MOST_COPIES is not None:
        # Copies take the records in turn: with fewer, some symbol would never be seen.
        kinds = len(environment.records("train"))
        if kinds > agent.MOST_COPIES:
            bounds[f"one for each of {kinds} training records"] = 1 << (kinds - 1).bit_length()
        else:
            bounds[f"the most for the agent {config.agent_name}"] = agent.MOST_COPIES
    if spec.max_episode_steps is not None and spec.market is None:  # a market pays at every bar
        limit = spec.max_episode_steps
        reason = f"{MIN_EPISODES} episodes of {limit:,} steps in each copy's share of {steps:,}"
        bounds[reason] = steps // (limit * MIN_EPISODES)
    reason, bound = min(bounds.items(), key=lambda item: item[1])
    powers = [n for n in possible if n & (n - 1) == 0] or possible
    chosen = max((n for n in powers if n <= bound), default=min(powers))
    copies = "copy" if chosen == 1 else "copies"
    return ChosenCopies(chosen, f"{chosen} {copies} per member ({reason})")


def fits(agent: AgentConfig, num_envs: int) -> bool:
    """Whether the agent's `check` has nothing against this number of copies."""
    try:
        agent.check(num_envs)
    except ConfigError:
        return False
    return True


def no_copies_fit(config: RunConfig, copies: int, lead: str) -> ConfigError:
    """What to say where no number of copies fits the agent's other sizes; `copies` is one."""
    try:
        config.agent.check(copies)
    except ConfigError as error:
        return ConfigError(f"{lead} the sizes of the agent. With {copies}: {error}")
    raise AssertionError(f"{copies} copies fit")


def resolve_num_envs(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """The config with a number for `num_envs: auto`, and a sentence about the choice.

    Either number has one where it leaves out some of what could be trained on.
    """
    n = config.training.num_envs
    if n != "auto":
        return config, _left_out(n, environment)
    choice = choose_num_envs(config, environment)
    sentences = [f"num_envs: auto is {choice.reason}.", _left_out(choice.num_envs, environment)]
    said = " ".join(sentence for sentence in sentences if sentence)
    return config.with_training(num_envs=choice.num_envs), said


def _left_out(copies: int, environment: Environment) -> str | None:
    """A sentence where there are more training records than copies that take them in turn."""
    kinds = len(environment.records("train"))
    if copies >= kinds:
        return None
    return (
        f"{copies} of {kinds} training records are trained on: copies take them (a market's "
        f"symbols, say) in turn, and there are {copies}. Give training.num_envs at least {kinds}."
    )


@dataclass(frozen=True)
class EvaluationPlan:
    """How much is evaluated, from the config and the spec alone: in steps, not in seconds.

    A lane is a sequence of whole episodes that may take `steps` steps; the episode that would take
    more is not counted. Lanes are independent, and the mean of a lane is that of all episodes
    whatever their lengths have to do with their returns (Glynn and Heidelberger 1990, "Bias
    properties of budget constrained simulations"): a lane has time for the longest episode.

    Attributes:
        every: share of the budget between validations.
        lanes: of a validation; a score is the mean of their means.
        steps: of a lane; None where each is one episode, however long.
        most: episodes of a validation, at most.
        final: whole episodes of each policy that is scored at the end.
        longest: steps after which an episode without a time limit of its own is cut.
    """

    every: float
    lanes: int
    steps: int | None
    most: int
    final: int
    longest: int

    @classmethod
    def of(cls, config: RunConfig, environment: Environment) -> EvaluationPlan:
        """For a run's validations; what the config gives as a number is taken as it is."""
        settings, budget, spec = config.evaluation, config.training.total_steps, environment.spec
        every = settings.every if settings.every_steps is None else settings.every_steps / budget
        longest = min(LONGEST, max(_SHORTEST, budget // 500))
        if settings.max_steps != "auto":
            longest = settings.max_steps
        most = settings.most_episodes
        if spec.market is not None or settings.episodes != "auto":
            return cls(every, most, None, most, most, longest)
        length, allowed = spec.max_episode_steps or longest, settings.share * budget
        wanted = math.ceil(1 / every)
        number = max(1, min(wanted, int(allowed / (LEAST_EPISODES * length))))
        each = int(allowed / number)
        lanes = min(most, max(1, each // length))
        final = min(most, max(LEAST_EPISODES, int(allowed / 2) // length))
        if number < wanted:
            every = 1 / number
        if lanes == most or not environment.kind.leaves or opponent_names(environment):
            return cls(every, lanes, None, lanes, final, longest)
        return cls(every, lanes, max(length, each // lanes), most, final, longest)

    def as_mapping(self) -> dict[str, Any]:
        """For result.json, plain values."""
        return asdict(self)


def check_memory(config: RunConfig, environment: Environment, memory: int | None = None) -> int:
    """Bytes that the experience of all members and their updates take.

    Args:
        config, environment: of a run.
        memory: bytes that it may have, most of them; those that are free unless given.

    Raises:
        ResourceError: they cannot fit into that memory; nothing has been allocated.
    """
    terms = _terms(config, environment)
    size = sum(terms.values())
    free = free_memory() if memory is None else memory
    if size > _MEMORY_SHARE * free:

        def enough(path: str, most: int) -> bool:
            less = limited(config, path, most)
            return less is not None and (
                sum(_terms(less, environment).values()) <= _MEMORY_SHARE * free
            )

        sizes = (f"agent.{name}" for name in config.agent.SIZES)
        paths = ("training.members", *sizes, "training.num_envs")
        main, training = max(terms, key=lambda name: terms[name]), config.training
        raise ResourceError(
            f"Training {training.members} members x {training.num_envs} copies needs {_gib(size)}, "
            f"{_gib(terms[main])} of it for {main}, and {_gib(free)} are free. "
            f"{mended(mends(paths, partial(size_of, config), enough))}"
        )
    return size


def _terms(config: RunConfig, environment: Environment) -> dict[str, int]:
    """Bytes of a run by what takes them."""
    agent, members, n = config.agent, config.training.members, config.num_envs
    spec, plan = environment.spec, agent.replay(n)
    kept = f"replays of {plan.capacity:,} transitions a member" if plan else "replays"
    return {
        kept: kept_bytes(agent, environment, members, n),
        **agent_terms(agent, spec, members, n),
    }


def agent_terms(agent: AgentConfig, spec: Spec, members: int, num_envs: int) -> dict[str, int]:
    """Bytes of an agent of M members without a replay, by what takes them."""
    networks = members * agent.bytes(spec, 1, 1)
    return {
        "networks and what an update needs": networks,
        f"rollouts of {agent.iteration_steps(num_envs)} steps": agent.bytes(spec, members, num_envs)
        - networks,
    }


def kept_bytes(agent: AgentConfig, environment: Environment, members: int, num_envs: int) -> int:
    """Bytes of the replays of M members; 0 for an agent that wants rollouts."""
    plan = agent.replay(num_envs)
    if plan is None:
        return 0
    rules = environment.part(KernelEnvironment)
    seen = None if rules is None else rules.observed_bytes
    return replay_bytes(plan, environment.spec, members, num_envs, seen)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
