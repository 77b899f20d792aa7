"""What a user must know about a run that its config does not say at first sight."""

from __future__ import annotations

from slipstream.rl.agents.off_policy.config import VECTOR_STEP
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.players import Players
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sizing import EvaluationPlan

UPDATE_SHARE = 0.9  # of a run's time, from which on that is said
_LESS = {
    "batch": "smaller batches (agent.batch)",
    "updates_per_step": "fewer updates a step (agent.updates_per_step; train_freq elsewhere)",
    "epochs": "fewer epochs (agent.epochs)",
    "widths": "smaller networks (agent.widths)",
}
_MORE = 1.01  # of the budget: whole iterations nearly always make a few steps more


def remarks(config: RunConfig, environment: Environment) -> tuple[str, ...]:
    """Sentences: steps trained beyond the budget, what is evaluated, episodes that nothing ends.

    Args:
        config: resolved; `num_envs` is a number.
        environment: the config's.
    """
    found = []
    copies, budget = int(config.training.num_envs), config.training.total_steps
    each = config.iteration_steps
    trained = -(-budget // each) * each
    if trained > _MORE * budget:
        times = "one iteration" if trained == each else f"{trained // each} iterations"
        found.append(
            f"total_steps is {budget:,}, and {trained:,} steps per member are trained: {times} "
            f"of {each // copies} steps x {copies} copies."
        )
    if copies > 1 and getattr(config.agent, "updates_per_step", None) == VECTOR_STEP:
        found.append(
            f"agent.updates_per_step is vector_step: {copies} environment steps share one update. "
            "Speeds and scores do not compare with runs of other num_envs: their work differs."
        )
    training = config.training
    processes = "process" in environment.kind.backends and training.backend != "serial"
    if training.workers != "auto" and not processes:
        found.append("training.workers does nothing here: it needs worker processes.")
    plan, settings = EvaluationPlan.of(config, environment), config.evaluation
    spec = environment.spec
    if spec.market is None and settings.episodes == "auto" and plan.lanes < settings.most_episodes:
        many = f"{plan.lanes} x {plan.steps:,} steps" if plan.steps else f"{plan.lanes} episodes"
        found.append(
            f"Validation takes at most {settings.share:g} of the budget's steps "
            f"(evaluation.share): after every {plan.every:.3g} of it {many}, of which whole "
            f"episodes count; the result is measured on {plan.final}. A number in "
            "evaluation.episodes is taken as it is."
        )
    if (players := environment.part(Players)) is not None:
        found += players.remarks
    if spec.market is None and spec.max_episode_steps is None:
        found.append(
            f"{config.short_name} declares no time limit: an evaluation cuts an episode that did "
            f"not end by itself after {plan.longest:,} steps (evaluation.max_steps), and counts "
            "the rewards until then."
        )
    return tuple(found)


def update_takes(config: RunConfig, share: float) -> str:
    """Where nearly all time goes into learning: what will help, and what will not."""
    ways = [way for name, way in _LESS.items() if hasattr(config.agent, name)]
    ways += ["PPO"] if config.agent.replay(config.num_envs) is not None else []
    ways += ["a card (training.device)"] if config.training.device == "cpu" else []
    listed = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else "".join(ways)
    will = f"; {listed} will" if ways else ""
    return f"The update takes {share:.0%} of the time: more copies will not help{will}."


def began_anew(copies: int, total: int, name: str) -> str:
    """Where a resumed run departs from one that was never stopped."""
    return (
        f"{copies} of {total} copies of {name} did not come back to where they stood when their "
        "actions were taken again (it is not deterministic, or its episodes are too long): they "
        "begin fresh episodes, and the run differs from one that was never stopped."
    )
