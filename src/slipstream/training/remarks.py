"""What a user must know about a run that its config does not say at first sight."""

from __future__ import annotations

from slipstream.training.config import RunConfig
from slipstream.training.environment import Environment

_MORE = 1.01  # of the budget: whole rollouts nearly always make a few steps more


def remarks(config: RunConfig, environment: Environment) -> tuple[str, ...]:
    """Sentences: steps that are trained beyond the budget, and episodes that nothing ends.

    Args:
        config: resolved; `num_envs` is a number.
        environment: the config's.
    """
    found = []
    training, horizon = config.training, config.agent.horizon
    copies, budget = int(training.num_envs), training.total_steps
    rollout = horizon * copies
    trained = -(-budget // rollout) * rollout
    if trained > _MORE * budget:
        rollouts = "one rollout" if trained == rollout else f"{trained // rollout} rollouts"
        found.append(
            f"total_steps is {budget:,}, and {trained:,} steps per member are trained: {rollouts} "
            f"of {horizon} steps x {copies} copies."
        )
    spec = environment.spec
    if spec.market is None and spec.max_episode_steps is None:
        found.append(
            f"{config.short_name} has no time limit: an evaluation cuts an episode after "
            f"{config.evaluation.max_steps:,} steps (evaluation.max_steps)."
        )
    return tuple(found)
