"""Evaluates the chosen policies of a run directory for a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.report.game import outcomes as game_outcomes
from slipstream.report.inputs import Chosen, Game, RunEvaluation
from slipstream.report.learning import curves, episode_curves
from slipstream.report.market.stress import RANDOM_DRAWS
from slipstream.report.origin import origin
from slipstream.report.provenance import machine_columns
from slipstream.report.run.gather import gather
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluation import Evaluator
from slipstream.training.environments.factory import carried_settings, chosen_environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.record.track import values
from slipstream.training.runs.best import (
    best_member,
    best_policy,
    evaluate_best,
    other_data,
    present_members,
)
from slipstream.training.runs.deployed import DeployedPolicy
from slipstream.training.runs.games import read_games
from slipstream.training.runs.run import Run
from slipstream.training.self_play.outcomes import NUMBERS
from slipstream.training.settings.remarks import remarks
from slipstream.training.settings.sizing import EvaluationPlan

_NOT_NEW = "This window is not known to begin after the {}: not all new."
_FORCED = "The study recommended nothing; deployed by --force-deploy."


def evaluate_run(
    path: str | Path | Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    draws: int = RANDOM_DRAWS,
    count: bool = True,
) -> RunEvaluation:
    """Evaluates every member's best policy and all baselines.

    Args:
        path: the run directory.
        data: folder of other prices to score instead of the run's own splits.
        symbols: which of the prices; those of the run unless given.
        start, stop: score only the bars in this half-open range, UTC seconds.
        draws: matched random traders.
        count: this is one more look at the test split, which the run directory counts.

    Raises:
        CheckpointError: no run, or no policy in it.
        ConfigError: other prices were asked for and the environment has none.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    members = present_members(run)
    environment = chosen_environment(
        run.config, data, symbols, start, stop, carried_settings(run.provenance)
    )
    chosen = "window" in environment.splits()
    reads = 1
    if "test" in environment.splits():
        reads = run.count_test_read() if count else max(run.test_reads, 1)
    agent, backend = run.config.agent, run.config.training.chosen_backend
    same = not any(isinstance(getattr(agent, name), tuple) for name in agent.PER_MEMBER)
    compiled = isinstance(environment, KernelEnvironment)
    found = gather(
        environment,
        evaluate_best(run, environment, record=environment.spec.market is not None),
        unseen=_all_new(run, environment) if chosen else None,
        title=f"{run.path.name}: {run.config.short_name}",
        numbers=tuple(members),
        member=members.index(best_member(run)),
        member_reason="the best on validation" if len(members) > 1 else "",
        same_settings=same,
        curves=curves(run, environment.spec.market is not None),
        episodes=episode_curves(
            run, environment.spec, NUMBERS if environment.opponent_names else ()
        ),
        trials=len(members),  # the shown one is the best of them
        holdout_reads=reads,
        notes=_notes(run, environment),
        provenance=provenance(run, environment),
        backend=environment.chosen_backend(backend) if compiled else backend,
        draws=draws,
        plan=EvaluationPlan.of(run.config, environment),
    )
    found = replace(found, machine=machine_columns(run.metrics()))
    return found if found.market is not None else _with_game(found, run, environment, members)


def _with_game(
    found: RunEvaluation, run: Run, environment: Environment, members: Sequence[int]
) -> RunEvaluation:
    """How the policies were chosen, and games against each opponent where there are two players."""
    shown = members[found.member]
    own = game(run, environment, members, shown)
    tracks = found.tracks[found.holdout][found.member]
    outcomes = game_outcomes.outcomes(run, shown, tracks, environment.opponent_names)
    played = tuple(read_games(run)) if outcomes else ()
    return replace(found, game=replace(own, outcomes=outcomes, played=played))


def evaluate_deployed(
    policy: Path | DeployedPolicy,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: int | None = None,
    stop: int | None = None,
    draws: int = RANDOM_DRAWS,
) -> RunEvaluation:
    """Evaluates the policy that a study deployed, on other prices or on a game's fresh episodes.

    Args:
        policy: it, or its folder.
        data, symbols, start, stop, draws: as for `evaluate_run`; a market needs a choice of bars.
    """
    deployed = policy if isinstance(policy, DeployedPolicy) else DeployedPolicy.open(policy)
    environment = deployed.environment(data, symbols, start, stop)
    market = environment.spec.market is not None
    facts, backend = deployed.facts, deployed.config.training.chosen_backend
    new = begins_after(environment, facts, ("development", "holdout"))
    notes = [_FORCED] if facts.get("forced") else []
    if market and not new:
        notes.append(_NOT_NEW.format("study's own prices end"))
    compiled = isinstance(environment, KernelEnvironment)
    work = {"Study": f"{facts.get('study')}, trial {facts.get('trial')}: {facts.get('label')}"}
    return gather(
        environment,
        deployed.evaluate(environment, record=market),
        unseen=new if market else None,
        title=f"{facts.get('study')}, trial {facts.get('trial')}: {deployed.config.short_name}",
        notes=(*notes, *deployed.remarks(environment)),
        provenance=origin(
            {}, work, deployed.config.hash, environment.provenance.get("market_sha256")
        ),
        backend=environment.chosen_backend(backend) if compiled else backend,
        draws=draws,
        plan=EvaluationPlan.of(deployed.config, environment),
    )


def game(run: Run, environment: Environment, members: Sequence[int], shown: int) -> Game:
    """How the policies of a run without prices were chosen."""
    settings, agent = run.config.evaluation, run.config.agent
    plan = EvaluationPlan.of(run.config, environment)
    result = run.result or {}
    last = {one["member"]: one for one in result.get("members", [])}
    total = run.config.training.members
    varied = [name for name in agent.PER_MEMBER if isinstance(getattr(agent, name), tuple)]
    columns = {name: agent.per_member(name, total) for name in varied}
    differing = {name: column for name, column in columns.items() if len(set(column)) > 1}
    chosen = []
    for member in members:
        manifest, own = run.load_best(member)[1], last.get(member, {})
        chosen.append(
            Chosen(
                seed=run.config.training.seed + member,
                steps=int(manifest["steps"]),
                score=float(manifest["score"]),
                last=own.get("last_score"),
                last_error=own.get("last_error"),
                settings={name: float(column[member]) for name, column in differing.items()},
            )
        )
    policy, sampled = best_policy(run, shown), np.empty(0)
    if policy.actions.drawn:
        evaluator = Evaluator(
            environment,
            "test",
            games=plan.final,
            seed=settings.test_seed,
            backend=run.config.training.chosen_backend,
            longest=plan.longest,
        )
        with closing(evaluator):
            (drawn,) = evaluator.run(policy, drawn=True)
        sampled = values(drawn, environment.spec)
    validated = run.evaluations().get("steps", [])
    trained = (*validated, *run.metrics().get("steps", []))  # it may have ended between two
    return Game(
        chosen=tuple(chosen),
        steps=int(max((step for step in trained if isinstance(step, float)), default=0)),
        validations=len(set(validated)),
        budget=run.config.training.total_steps,
        sampled=sampled,
        longest=plan.longest if environment.spec.max_episode_steps is None else None,
    )


def _notes(run: Run, environment: Environment) -> tuple[str, ...]:
    """Who is left out, and whether a chosen window is not new to the run."""
    left_out = sorted(set(range(run.config.training.members)) - set(present_members(run)))
    notes = [f"Member {member} has no validated policy and is left out." for member in left_out]
    if "window" in environment.splits() and not _all_new(run, environment):
        notes.append(_NOT_NEW.format("run's validation ends"))
    return (*notes, *other_data(run, environment), *remarks(run.config, environment))


def _all_new(run: Run, environment: Environment) -> bool:
    """Whether the chosen window is known to begin after all bars that the run has used."""
    return begins_after(environment, run.provenance, ("train", "validation"))


def begins_after(environment: Environment, facts: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether the chosen window is known to begin after all of the named ones of `facts`."""
    windows = (facts.get("environment") or {}).get("windows_utc_seconds") or {}
    used = [int(windows[name][1]) for name in names if name in windows]
    if not used or not isinstance(environment, KernelEnvironment):
        return False
    loaded, declares = environment.loaded, environment.kernel.market_pass
    if declares is None:
        return False
    passes = [declares(p, loaded.data) for p in loaded.params["window"]]
    return min(int(one.time[one.first]) for one in passes) >= max(used)


def provenance(run: Run, environment: Environment) -> dict[str, str]:
    """Where the run comes from, each fact a line."""
    training = run.config.training
    work = (
        f"{training.total_steps:,} steps per member, {training.members} member(s), "
        f"{training.num_envs} copies each, seed {training.seed}"
    )
    result = run.result or {}
    if "updates_per_step" in result:
        rows = int(result["update_rows"])
        work += f"; {result['updates_per_step']:.3g} updates of {rows:,} rows for each step"
    digest = environment.provenance.get("market_sha256")
    return origin(run.provenance, {"Training": work}, run.config.hash, digest)
