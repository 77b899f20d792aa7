"""What follows from a config: copies, evaluations and memory, and what a user must know of it.

Choices depend on the config and the environment's spec alone, never on the machine.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from slipstream.core.capacity import free_memory
from slipstream.core.errors import ConfigError, ResourceError
from slipstream.core.extras import import_optional
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.agent import AgentConfig
from slipstream.rl.agents.off_policy.config import VECTOR_STEP
from slipstream.rl.experience.replay.plan import replay_bytes
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import Players, opponent_names
from slipstream.training.settings.config import RunConfig, TrainingConfig

_HALVED = ("net_arch", "n_steps", "iteration", "num_envs")  # other values would seldom fit together
LEAST_EPISODES = 4  # whole ones that a validation has time for, else there are fewer validations
_SHORTEST = 100  # steps of an episode without a time limit
MIN_ITERATIONS = 50  # as often, at least, is the policy improved and tried out
MIN_EPISODES = 10  # of full length, that each copy has time for
_MEMORY_SHARE = 0.8
UPDATE_SHARE = 0.9  # of a run's time, from which on that is said
_LESS = {
    "batch_size": "smaller batches (agent.batch_size)",
    "utd_ratio": "fewer updates a step (agent.utd_ratio; train_freq elsewhere)",
    "n_epochs": "fewer epochs (agent.n_epochs)",
    "net_arch": "smaller networks (agent.net_arch)",
}
_MORE = 1.01  # of the budget: whole iterations nearly always make a few steps more
Learner = Literal["compiled", "torch"]


@dataclass(frozen=True)
class NumEnvsChoice:
    """What was chosen and why.

    Attributes:
        num_envs: N, copies per member.
        reason: a sentence for the user.
    """

    num_envs: int
    reason: str


def choose_num_envs(config: RunConfig, environment: Environment) -> NumEnvsChoice:
    """The most copies, a power of two, that leave learning enough rollouts and episodes.

    The answer follows from the config and the environment's spec: neither the machine, nor how busy
    it is, nor the number of members has a say, so the same command and seed train the same weights.

    Raises:
        ConfigError: no number of copies fits the agent's other sizes.
    """
    agent, spec, steps = config.agent, environment.spec, config.training.total_timesteps
    most, what = environment.kind.max_envs(spec)
    possible = [n for n in range(1, most + 1) if fits(agent, n)]
    if not possible:
        raise no_num_envs_fits(config, most, f"No number of copies up to {most} fits")
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
    noun = "environment" if chosen == 1 else "environments"
    return NumEnvsChoice(chosen, f"{chosen} {noun} per member ({reason})")


def fits(agent: AgentConfig, num_envs: int) -> bool:
    """Whether the agent's `check` has nothing against this number of copies."""
    try:
        agent.check(num_envs)
    except ConfigError:
        return False
    return True


def no_num_envs_fits(config: RunConfig, num_envs: int, lead: str) -> ConfigError:
    """What to say where no number of copies fits the agent's other sizes; `copies` is one."""
    try:
        config.agent.check(num_envs)
    except ConfigError as error:
        return ConfigError(f"{lead} the sizes of the agent. With {num_envs}: {error}")
    raise AssertionError(f"{num_envs} copies fit")


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


def _left_out(num_envs: int, environment: Environment) -> str | None:
    """A sentence where there are more training records than copies that take them in turn."""
    kinds = len(environment.records("train"))
    if num_envs >= kinds:
        return None
    return (
        f"{num_envs} of {kinds} training records are trained on: copies take them (a market's "
        f"symbols, say) in turn, and there are {num_envs}. Give training.num_envs at least {kinds}."
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
    num_envs: int
    steps: int | None
    max_episodes: int
    test_episodes: int
    max_steps: int

    @classmethod
    def from_config(cls, config: RunConfig, environment: Environment) -> EvaluationPlan:
        """For a run's validations; what the config gives as a number is taken as it is."""
        settings, budget, spec = (
            config.evaluation,
            config.training.total_timesteps,
            environment.spec,
        )
        every = settings.every if settings.every_steps is None else settings.every_steps / budget
        max_steps = min(MAX_EVAL_STEPS, max(_SHORTEST, budget // 500))
        if settings.max_steps != "auto":
            max_steps = settings.max_steps
        most = settings.max_episodes
        if spec.market is not None or settings.episodes != "auto":
            return cls(every, most, None, most, most, max_steps)
        length, allowed = spec.max_episode_steps or max_steps, settings.share * budget
        wanted = math.ceil(1 / every)
        number = max(1, min(wanted, int(allowed / (LEAST_EPISODES * length))))
        each = int(allowed / number)
        num_envs = min(most, max(1, each // length))
        final = min(most, max(LEAST_EPISODES, int(allowed / 2) // length))
        if number < wanted:
            every = 1 / number
        if num_envs == most or not environment.kind.can_abort or opponent_names(environment):
            return cls(every, num_envs, None, num_envs, final, max_steps)
        return cls(every, num_envs, max(length, each // num_envs), most, final, max_steps)


def final_evaluator(
    config: RunConfig,
    environment: Environment,
    split: str = "test",
    check_stop: Callable[[], None] = lambda: None,
) -> Evaluator:
    """Make what scores policies that were chosen, on a market's split or on fresh episodes."""
    settings, plan = config.evaluation, EvaluationPlan.from_config(config, environment)
    return Evaluator(
        environment,
        split,
        games=plan.test_episodes,
        seed=settings.test_seed if environment.spec.market is None else settings.seed,
        backend=config.training.resolved_backend,
        max_steps=plan.max_steps,
        drawn=not settings.deterministic,
        check_stop=check_stop,
    )


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
            f"{format_suggestions(size_suggestions(paths, partial(size_of, config), enough))}"
        )
    return size


def _terms(config: RunConfig, environment: Environment) -> dict[str, int]:
    """Bytes of a run by what takes them."""
    agent, members, n = config.agent, config.training.members, config.num_envs
    spec, plan = environment.spec, agent.replay(n)
    kept = f"replays of {plan.capacity:,} transitions a member" if plan else "replays"
    return {
        kept: storage_bytes(agent, environment, members, n),
        **agent_terms(agent, spec, members, n),
    }


def agent_terms(agent: AgentConfig, spec: EnvSpec, members: int, num_envs: int) -> dict[str, int]:
    """Bytes of an agent of M members without a replay, by what takes them."""
    networks = members * agent.bytes(spec, 1, 1)
    return {
        "networks and what an update needs": networks,
        f"rollouts of {agent.iteration_steps(num_envs)} steps": agent.bytes(spec, members, num_envs)
        - networks,
    }


def storage_bytes(agent: AgentConfig, environment: Environment, members: int, num_envs: int) -> int:
    """Bytes of the replays of M members; 0 for an agent that wants rollouts."""
    plan = agent.replay(num_envs)
    if plan is None:
        return 0
    rules = environment.part(KernelEnvironment)
    seen = None if rules is None else rules.observed_bytes
    return replay_bytes(plan, environment.spec, members, num_envs, seen)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def size_suggestions(
    paths: Iterable[str], size: Callable[[str], int], enough: Callable[[str, int], bool]
) -> dict[str, int]:
    """The largest value of each setting that mends it alone; without those that cannot.

    Args:
        paths: of settings that are to be lowered, such as agent.net_arch.
        size: what a setting is; 0 where there is none.
        enough: whether a setting of at most that value is small enough; then lower ones are, too.

    Returns:
        Halves of what it is, where other sizes must agree with it; else two digits and zeros.
    """
    found = {}
    for path in paths:
        now = size(path)
        if path.rpartition(".")[2] in _HALVED:
            values = [now >> k for k in range(1, now.bit_length())]
            best = [value for value in values if enough(path, value)]
        else:
            tens = range(len(str(now)))
            known = {digits * 10**e for e in tens for digits in range(1, 100)}
            values = sorted((value for value in known if value < now), reverse=True)
            best = values[bisect.bisect_left(values, True, key=partial(enough, path)) :]
        if best:
            found[path] = best[0]
    return found


def size_of(config: RunConfig, path: str) -> int:
    """A setting of a config, the largest layer of several; 0 where there is no such number."""
    section, _, name = path.partition(".")
    value = getattr(getattr(config, section), name, None) or 0
    return max(value) if isinstance(value, tuple) else value


def limited(config: RunConfig, path: str, most: int) -> RunConfig | None:
    """A config with a setting, each layer of several, of at most a number.

    None where the agent's other sizes do not agree with that.
    """
    section, _, name = path.partition(".")
    part = getattr(config, section)
    value = getattr(part, name)
    less = tuple(min(one, most) for one in value) if isinstance(value, tuple) else min(value, most)
    made = replace(config, **{section: part.model_copy(update={name: less})})
    try:
        return made.with_num_envs(made.num_envs)
    except ConfigError:
        return None


def format_suggestions(found: Mapping[str, int]) -> str:
    """What to do about a refusal, in a sentence."""
    if not found:
        return "No setting mends that alone: lower several of them, or take a larger machine."
    listed = ", or ".join(f"{path} to {most:,}" for path, most in found.items())
    return f"Each of these mends it alone: lower {listed}."


def run_warnings(config: RunConfig, environment: Environment) -> tuple[str, ...]:
    """Sentences: steps trained beyond the budget, what is evaluated, episodes that nothing ends.

    Args:
        config: resolved; `num_envs` is a number.
        environment: the config's.
    """
    found = []
    copies, budget = int(config.training.num_envs), config.training.total_timesteps
    each = config.iteration_steps
    trained = -(-budget // each) * each
    if trained > _MORE * budget:
        times = "one iteration" if trained == each else f"{trained // each} iterations"
        found.append(
            f"total_timesteps is {budget:,}, and {trained:,} steps per member are trained: {times} "
            f"of {each // copies} steps x {copies} copies."
        )
    if copies > 1 and getattr(config.agent, "utd_ratio", None) == VECTOR_STEP:
        found.append(
            f"agent.utd_ratio is vector_step: {copies} environment steps share one update. "
            "Speeds and scores do not compare with runs of other num_envs: their work differs."
        )
    training = config.training
    processes = "process" in environment.kind.backends and training.backend != "serial"
    if training.workers != "auto" and not processes:
        found.append("training.workers does nothing here: it needs worker processes.")
    plan, settings = EvaluationPlan.from_config(config, environment), config.evaluation
    spec = environment.spec
    if (
        spec.market is None
        and settings.episodes == "auto"
        and plan.num_envs < settings.max_episodes
    ):
        many = (
            f"{plan.num_envs} x {plan.steps:,} steps" if plan.steps else f"{plan.num_envs} episodes"
        )
        found.append(
            f"Validation takes at most {settings.share:g} of the budget's steps "
            f"(evaluation.share): after every {plan.every:.3g} of it {many}, of which whole "
            f"episodes count; the result is measured on {plan.test_episodes}. A number in "
            "evaluation.episodes is taken as it is."
        )
    if (players := environment.part(Players)) is not None:
        found += players.warnings
    if spec.market is None and spec.max_episode_steps is None:
        found.append(
            f"{config.short_name} declares no time limit: an evaluation cuts an episode that did "
            f"not end by itself after {plan.max_steps:,} steps (evaluation.max_steps), and counts "
            "the rewards until then."
        )
    return tuple(found)


def update_share_warning(config: RunConfig, share: float) -> str:
    """Where nearly all time goes into learning: what will help, and what will not."""
    ways = [way for name, way in _LESS.items() if hasattr(config.agent, name)]
    ways += ["PPO"] if config.agent.replay(config.num_envs) is not None else []
    ways += ["a card (training.device)"] if config.training.device == "cpu" else []
    listed = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else "".join(ways)
    will = f"; {listed} will" if ways else ""
    return f"The update takes {share:.0%} of the time: more copies will not help{will}."


def select_learner(learner: str, device: str, image: bool) -> Learner:
    """The form that a config means: it follows from config and spaces, never from the machine.

    Args:
        learner, device: of the config's section `training`.
        image: whether observations are images.

    Raises:
        ConfigError: the compiled form is asked for and cannot do it.
    """
    needed = None
    if device != "cpu":
        needed = f"training.device is {device}"
    elif image:
        needed = "the observations are images"
    if learner == "compiled" and needed is not None:
        raise ConfigError(
            f"training.learner is 'compiled', and {needed}: the compiled form learns from rows of "
            "numbers on the processor. Leave training.learner at auto, which takes the torch form."
        )
    if learner == "auto":
        return "compiled" if needed is None else "torch"
    return "torch" if learner == "torch" else "compiled"


def check_learner(training: TrainingConfig, image: bool | None) -> Learner:
    """`learner_of`, refused in a paragraph where this machine lacks what it takes.

    Args:
        training: the config's section.
        image: whether observations are images; None before that is known: the rest is checked.

    Raises:
        ConfigError: as there; the form or device has no such precision.
        ResourceError: no torch, no build of it for GPUs, or no such card.
    """
    learner = select_learner(training.learner, training.device, bool(image))
    if image is not None:
        _check_precision(training, learner)
    if learner == "torch":
        import_optional("torch", _purpose(training), "torch")
        from slipstream.rl.nets.torch_device import device_of  # torch: only where it is used

        device_of(training.device)
    return learner


def _check_precision(training: TrainingConfig, learner: Learner) -> None:
    precision = training.precision
    if precision != "float32" and learner == "compiled":
        raise ConfigError(
            f"training.precision is {precision}, and the compiled form calculates in float32 "
            "alone. Set training.learner to torch, name a card as training.device, or leave "
            "training.precision at float32."
        )
    if precision == "tf32" and training.device == "cpu":
        raise ConfigError(
            "training.precision is tf32 and training.device is cpu: only a card has TF32. Name "
            "one, or set training.precision to float32 or bfloat16_products."
        )


def _purpose(training: TrainingConfig) -> str:
    if training.device != "cpu":
        return f"Training on {training.device}"
    if training.learner == "torch":
        return "`training.learner: torch`"
    return "Learning from images"
