"""The policies that validation chose, and how they do on every split."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TypeAlias

from slipstream.core.conditions import check_conditions, differences
from slipstream.core.errors import ConfigError
from slipstream.environments.environment import Environment
from slipstream.environments.episodes import lost_sentence
from slipstream.environments.evaluation import Evaluator
from slipstream.files.track import Track
from slipstream.nets.actions import ActionMap
from slipstream.nets.policy import Policy
from slipstream.nets.policy_file import unpack
from slipstream.runs.openings import look
from slipstream.runs.run import Run
from slipstream.settings.config import RunConfig
from slipstream.settings.sizing import EvaluationPlan

Tracks: TypeAlias = Mapping[str, list[list[Track]]]
"""Evaluation episodes by split, then by member that has a policy, then by episode."""

_ORDER = ("train_window", "train", "validation", "test", "window")


def evaluate_best(run: Run, environment: Environment, *, record: bool = True) -> Tracks:
    """Runs every member's best policy through every split, in the order of time.

    A game has one, "test": fresh episodes that chose no policy. Deterministic: equal however many
    copies evaluate.

    Args:
        run: has at least one best policy.
        environment: the run's own, or one of the same kind with other prices.
        record: keep actions and traces.
    """
    policies = [best_policy(run, member) for member in run.best.present]
    look(environment, f"run {run.path}")
    return evaluate_policies(policies, run.config, environment, record=record)


def evaluate_policies(
    policies: Sequence[Policy],
    config: RunConfig,
    environment: Environment,
    *,
    record: bool = True,
) -> Tracks:
    """The same of policies at hand, each in the place of a member.

    Args:
        policies: each of one member.
        config: how they are evaluated, and the backend.
        environment, record: as for `evaluate_best`.

    Raises:
        ConfigError: the environment means something else to a policy than what it was trained on.
    """
    settings, plan = config.evaluation, EvaluationPlan.of(config, environment)
    market = environment.spec.market is not None
    splits = [split for split in _ORDER if split in environment.splits()] if market else ["test"]
    if {"train_window", "window"} & set(splits):
        splits.remove("train")  # random starts: the whole window says more
    tracks: dict[str, list[list[Track]]] = {}
    for policy in policies:
        _check_fit(policy, environment)
    for split in splits:
        evaluator = Evaluator(
            environment,
            split,
            games=plan.final,
            seed=settings.seed if market else settings.test_seed,
            backend=config.training.chosen_backend,
            longest=plan.longest,
            drawn=settings.drawn,
        )
        with closing(evaluator):
            tracks[split] = [evaluator.run(policy, record=record)[0] for policy in policies]
            said = lost_sentence(evaluator.drain_faults())
        if said:
            print(said, file=sys.stderr)
    return tracks


def _check_fit(policy: Policy, environment: Environment) -> None:
    """Refuses data that mean something else to the policy than what it was trained on."""
    check_conditions(policy.conditions, environment.conditions)
    here = environment.spec.observation_shape
    if here != policy.observation_shape:
        raise ConfigError(
            f"The policy was trained on observations of shape {policy.observation_shape}, and "
            f"these prices make {here}: choose as many symbols, with the same columns, as in "
            "training."
        )
    own, theirs = policy.actions.description(), ActionMap(environment.spec.action).description()
    if own != theirs:
        raise ConfigError(
            f"The policy acts in {own}, and this environment takes {theirs}: choose settings that "
            "give the same actions as in training."
        )


def best_policy(run: Run, member: int) -> Policy:
    """The policy that validation chose for a member."""
    tensors, manifest = run.best.load(member)
    return unpack(tensors, manifest.get("policy"))


def other_data(run: Run, environment: Environment) -> list[str]:
    """Sentences about data that the best policies were not trained on, and yet act on here."""
    trained = best_policy(run, run.best.present[0]).conditions
    same = "window" not in environment.splits()
    return differences(trained, environment.conditions, same_data=same)
