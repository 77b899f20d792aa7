"""Values derived from a config: num_envs, evaluations, memory, and warnings for the user.

They depend only on the config and the environment's spec, never on the machine.
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
from slipstream.rl.experience.replay.replay_config import replay_bytes
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import Players, opponent_names
from slipstream.training.settings.config import RunConfig, TrainingConfig

_HALVED = ("net_arch", "n_steps", "iteration", "num_envs")  # halving keeps these sizes compatible
LEAST_EPISODES = 4  # complete episodes that a validation must fit; else there are fewer validations
_SHORTEST = 100  # minimum step limit of evaluations without a time limit
MIN_ITERATIONS = 50  # minimum number of updates of the policy
MIN_EPISODES = 10  # minimum full-length episodes per environment
_MEMORY_SHARE = 0.8
UPDATE_SHARE = 0.9  # share of a run's time from which a warning is logged
_LESS = ("batch_size", "utd_ratio", "n_epochs", "net_arch")  # settings that shorten updates
_MORE = 1.01  # tolerated excess over the budget: iterations are not split
Learner = Literal["compiled", "torch"]


@dataclass(frozen=True)
class NumEnvsChoice:
    """An automatic choice and its reason.

    Attributes:
        num_envs: N, sub-environments per member.
        reason: sentence for the user.
    """

    num_envs: int
    reason: str


def choose_num_envs(config: RunConfig, environment: Environment) -> NumEnvsChoice:
    """Choose the largest power of two that leaves enough rollouts and episodes for learning.

    The choice depends only on the config and the environment's spec, not on the machine, its load
    or the number of members, so the same command and seed train the same weights.

    Raises:
        ConfigError: no number of sub-environments fits the agent's other sizes.
    """
    agent, spec, steps = config.agent, environment.spec, config.training.total_timesteps
    most, what = environment.kind.max_envs(spec)
    possible = [n for n in range(1, most + 1) if fits(agent, n)]
    if not possible:
        raise no_num_envs_fits(config, most, f"No num_envs up to {most} fits")
    length = agent.iteration_steps(most)
    bounds = {
        f"the most for {what}": most,
        f"{MIN_ITERATIONS} iterations of {length} steps in a budget of {steps:,}": steps
        // (length * MIN_ITERATIONS),
    }
    if agent.MAX_NUM_ENVS is not None:
        # Environments take the records in turn: with fewer, some symbol would never be used.
        kinds = len(environment.records("train"))
        if kinds > agent.MAX_NUM_ENVS:
            bounds[f"one for each of {kinds} training records"] = 1 << (kinds - 1).bit_length()
        else:
            bounds[f"the most for the agent {config.agent_name}"] = agent.MAX_NUM_ENVS
    if (
        spec.max_episode_steps is not None and spec.market is None
    ):  # a market has a reward at every bar
        limit = spec.max_episode_steps
        reason = (
            f"{MIN_EPISODES} episodes of {limit:,} steps in each environment's share of {steps:,}"
        )
        bounds[reason] = steps // (limit * MIN_EPISODES)
    reason, bound = min(bounds.items(), key=lambda item: item[1])
    powers = [n for n in possible if n & (n - 1) == 0] or possible
    chosen = max((n for n in powers if n <= bound), default=min(powers))
    noun = "environment" if chosen == 1 else "environments"
    return NumEnvsChoice(chosen, f"{chosen} {noun} per member (limit: {reason})")


def fits(agent: AgentConfig, num_envs: int) -> bool:
    """Return whether the agent's `check` accepts this num_envs."""
    try:
        agent.check(num_envs)
    except ConfigError:
        return False
    return True


def no_num_envs_fits(config: RunConfig, num_envs: int, lead: str) -> ConfigError:
    """Return the error if no num_envs fits the agent's other sizes."""
    try:
        config.agent.check(num_envs)
    except ConfigError as error:
        return ConfigError(f"{lead} the sizes of the agent. With {num_envs}: {error}")
    raise AssertionError(f"num_envs {num_envs} fits")


def resolve_num_envs(config: RunConfig, environment: Environment) -> tuple[RunConfig, str | None]:
    """Return the config with a number for `num_envs: auto`, and a notice about the choice.

    A notice is also returned if training records are left out.
    """
    n = config.training.num_envs
    if n != "auto":
        return config, _left_out(n, environment)
    choice = choose_num_envs(config, environment)
    sentences = [f"num_envs: auto chose {choice.reason}.", _left_out(choice.num_envs, environment)]
    said = " ".join(sentence for sentence in sentences if sentence)
    return config.with_training(num_envs=choice.num_envs), said


def _left_out(num_envs: int, environment: Environment) -> str | None:
    """Return a notice if there are more training records than sub-environments."""
    kinds = len(environment.records("train"))
    if num_envs >= kinds:
        return None
    return (
        f"{num_envs} of {kinds} training records are used: environments take them (such as a "
        f"market's symbols) in turn, and num_envs is {num_envs}. Set training.num_envs to at least "
        f"{kinds}."
    )


@dataclass(frozen=True)
class EvaluationPlan:
    """Amount of evaluation, derived from config and spec, in steps and not in seconds.

    A lane is a sequence of complete episodes within `steps` steps; an episode that would exceed
    them is not counted. Lanes are independent, and the mean of a lane is unbiased for any relation
    of lengths and returns (Glynn and Heidelberger 1990, "Bias properties of budget constrained
    simulations"), as a lane has time for the longest episode.

    Attributes:
        every: share of the budget between validations.
        num_envs: lanes of a validation; a score is the mean of their means.
        steps: steps of a lane; None if each is one episode of any length.
        max_episodes: maximum episodes of a validation.
        test_episodes: complete episodes of each policy scored at the end.
        max_steps: steps after which an episode without a time limit is truncated.
    """

    every: float
    num_envs: int
    steps: int | None
    max_episodes: int
    test_episodes: int
    max_steps: int

    @classmethod
    def from_config(cls, config: RunConfig, environment: Environment) -> EvaluationPlan:
        """Create the plan of a run's validations; numbers in the config are used unchanged."""
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
    """Create the evaluator of selected policies, on a market's split or on new episodes."""
    settings, plan = config.evaluation, EvaluationPlan.from_config(config, environment)
    return Evaluator(
        environment,
        split,
        games=plan.test_episodes,
        seed=settings.test_seed if environment.spec.market is None else settings.seed,
        backend=config.training.resolved_backend,
        max_steps=plan.max_steps,
        stochastic=not settings.deterministic,
        check_stop=check_stop,
    )


def check_memory(config: RunConfig, environment: Environment, memory: int | None = None) -> int:
    """Return the bytes of experience and updates of all members.

    Args:
        config, environment: config and environment of a run.
        memory: available bytes; None for the free memory.

    Raises:
        ResourceError: they do not fit; nothing has been allocated.
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
            f"Training {training.members} members x {training.num_envs} environments needs "
            f"{_gib(size)}, {_gib(terms[main])} of it for {main}, but {_gib(free)} are free. "
            f"{format_suggestions(size_suggestions(paths, partial(size_of, config), enough))}"
        )
    return size


def _terms(config: RunConfig, environment: Environment) -> dict[str, int]:
    """Return the bytes of a run by purpose."""
    agent, members, n = config.agent, config.training.members, config.num_envs
    spec, plan = environment.spec, agent.replay(n)
    kept = (
        f"replay buffers of {plan.buffer_size:,} transitions per member"
        if plan
        else "replay buffers"
    )
    return {
        kept: storage_bytes(agent, environment, members, n),
        **agent_terms(agent, spec, members, n),
    }


def agent_terms(agent: AgentConfig, spec: EnvSpec, members: int, num_envs: int) -> dict[str, int]:
    """Return the bytes of an agent of M members without replay buffers, by purpose."""
    networks = members * agent.bytes(spec, 1, 1)
    return {
        "networks and updates": networks,
        f"rollouts of {agent.iteration_steps(num_envs)} steps": agent.bytes(spec, members, num_envs)
        - networks,
    }


def storage_bytes(agent: AgentConfig, environment: Environment, members: int, num_envs: int) -> int:
    """Return the bytes of the replay buffers of M members; 0 for an on-policy agent."""
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
    """Return the largest value of each setting that is enough on its own; others are left out.

    Args:
        paths: settings to reduce, such as agent.net_arch.
        size: returns the value of a setting; 0 if there is none.
        enough: returns whether a setting with at most that value is enough; then lower ones are.

    Returns:
        Halved values if other sizes must match, else values rounded to two digits.
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
    """Return a setting's value, the largest layer of several; 0 if it is not a number."""
    section, _, name = path.partition(".")
    value = getattr(getattr(config, section), name, None) or 0
    return max(value) if isinstance(value, tuple) else value


def limited(config: RunConfig, path: str, most: int) -> RunConfig | None:
    """Return the config with a setting, or each of its layers, limited to a number.

    None if the agent's other sizes do not fit.
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
    """Format size suggestions as a sentence."""
    if not found:
        return "No single setting is enough: reduce several, or use a larger machine."
    listed = ", or ".join(f"{path} to {most:,}" for path, most in found.items())
    return f"Each of these is enough on its own: reduce {listed}."


def run_warnings(config: RunConfig, environment: Environment) -> tuple[str, ...]:
    """Return warnings: steps beyond the budget, evaluation amounts, episodes without an end.

    Args:
        config: resolved config; `num_envs` is a number.
        environment: environment of the config.
    """
    found = []
    num_envs, budget = int(config.training.num_envs), config.training.total_timesteps
    each = config.iteration_steps
    trained = -(-budget // each) * each
    if trained > _MORE * budget:
        times = "one iteration" if trained == each else f"{trained // each} iterations"
        found.append(
            f"total_timesteps is {budget:,}, but {trained:,} steps per member are trained: {times} "
            f"of {each // num_envs} steps x {num_envs} environment{'s' * (num_envs > 1)}."
        )
    if num_envs > 1 and getattr(config.agent, "utd_ratio", None) == VECTOR_STEP:
        found.append(
            f"agent.utd_ratio is vector_step: {num_envs} environment steps share one update. "
            "Speeds and scores are not comparable with runs of another num_envs."
        )
    training = config.training
    processes = "process" in environment.kind.backends and training.backend != "serial"
    if training.workers != "auto" and not processes:
        found.append("training.workers has no effect here: it requires worker processes.")
    plan, settings = EvaluationPlan.from_config(config, environment), config.evaluation
    spec = environment.spec
    if (
        spec.market is None
        and settings.episodes == "auto"
        and plan.num_envs < settings.max_episodes
    ):
        size = f"{plan.num_envs} episodes"
        if plan.steps:
            size = (
                f"{plan.steps:,} steps in each of {plan.num_envs} environments (complete episodes)"
            )
        found.append(
            f"Evaluation is limited to {settings.share:.0%} of the training steps "
            f"(evaluation.share): {size}, every {plan.every:.3g} of the budget. The final "
            f"score uses {plan.test_episodes} episodes. Set evaluation.episodes for a fixed number."
        )
    if (players := environment.part(Players)) is not None:
        found += players.warnings
    if spec.market is None and spec.max_episode_steps is None:
        found.append(
            f"{config.short_name} declares no time limit: an evaluation truncates episodes after "
            f"{plan.max_steps:,} steps (evaluation.max_steps) and counts the rewards until then."
        )
    return tuple(found)


def update_share_warning(config: RunConfig, share: float) -> str:
    """Return a warning that updates take nearly all time, with settings that help."""
    sizes = [f"agent.{name}" for name in _LESS if hasattr(config.agent, name)]
    others = ["PPO"] if config.agent.replay(config.num_envs) is not None else []
    others += ["a GPU (training.device)"] if config.training.device == "cpu" else []
    ways = [
        f"{verb} {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"
        for verb, names in (("reduce", sizes), ("use", others))
        if names
    ]
    fix = f" To train faster, {', or '.join(ways)}." if ways else ""
    return (
        f"Updates take {share:.0%} of the time, so more environments do not speed up training.{fix}"
    )


def select_learner(learner: str, device: str, image: bool) -> Learner:
    """Return the implementation for a config; it never depends on the machine.

    Args:
        learner, device: values of the config's section `training`.
        image: True if observations are images.

    Raises:
        ConfigError: the compiled implementation is required but does not support this.
    """
    needed = None
    if device != "cpu":
        needed = f"training.device is {device}"
    elif image:
        needed = "the observations are images"
    if learner == "compiled" and needed is not None:
        raise ConfigError(
            f"training.learner is 'compiled', but {needed}: the compiled implementation requires "
            "vector observations on the CPU. Set training.learner to auto, which uses torch."
        )
    if learner == "auto":
        return "compiled" if needed is None else "torch"
    return "torch" if learner == "torch" else "compiled"


def check_learner(training: TrainingConfig, image: bool | None) -> Learner:
    """Return `select_learner`, after checking that this machine supports it.

    Args:
        training: section of the config.
        image: True if observations are images; None if unknown, the rest is checked.

    Raises:
        ConfigError: see `select_learner`, or the precision is not supported.
        ResourceError: torch, a GPU build of torch, or the GPU is missing.
    """
    learner = select_learner(training.learner, training.device, bool(image))
    if image is not None:
        _check_precision(training, learner)
    if learner == "torch":
        import_optional("torch", _purpose(training), "torch")
        from slipstream.rl.nets.torch_device import get_device  # imports torch

        get_device(training.device)
    return learner


def _check_precision(training: TrainingConfig, learner: Learner) -> None:
    precision = training.precision
    if precision != "float32" and learner == "compiled":
        raise ConfigError(
            f"training.precision is {precision}, but the compiled implementation supports only "
            "float32. Set training.learner to torch, training.device to a GPU, or "
            "training.precision to float32."
        )
    if precision == "tf32" and training.device == "cpu":
        raise ConfigError(
            "training.precision is tf32 but training.device is cpu: only GPUs support TF32. Set "
            "training.device to a GPU, or training.precision to float32 or bfloat16_products."
        )


def _purpose(training: TrainingConfig) -> str:
    if training.device != "cpu":
        return f"Training on {training.device}"
    if training.learner == "torch":
        return "`training.learner: torch`"
    return "Learning from images"
