"""Evaluation of the selected policies of a run or study, with all baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from slipstream.core.text import plural
from slipstream.kernels.env_checker import random_actions
from slipstream.report.history import (
    episode_curves,
    learning_curves,
    origin_lines,
    resource_columns,
)
from slipstream.report.inputs import (
    RANDOM_DRAWS,
    Backtest,
    Baselines,
    EvaluationWindow,
    GameEvaluation,
    PolicyChoice,
    RunEvaluation,
    SplitBacktest,
)
from slipstream.report.statistics import Floats
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.evaluator import PolicyInput, run_episodes
from slipstream.training.environments.factory import (
    DataWindow,
    frozen_settings,
    load_environment,
)
from slipstream.training.environments.parts import NUMBERS, get_holdout_register, opponent_names
from slipstream.training.episode_result import score_values
from slipstream.training.runs.policies import (
    DeployedPolicy,
    data_mismatch,
    evaluate_best,
    forced_gate_warnings,
)
from slipstream.training.runs.run import Run
from slipstream.training.settings.sizing import EvaluationPlan, final_evaluator, run_warnings

_NOT_NEW = "This window is not known to begin after the {}: not all new."
# Split -> display name; the only split of a game has episodes that selected no policy.
_LABELS = {"train_window": "train", "window": "chosen window"}
_GAME_LABELS = {"test": "fresh episodes", "train": "evaluation"}
_RANDOM_EPISODES = 100
_RANDOM_SEED = 20_260_103
_NUM_ENVS = 32


def evaluate_run(
    path: str | Path | Run,
    *,
    draws: int = RANDOM_DRAWS,
    count: bool = True,
    **window: Unpack[EvaluationWindow],
) -> RunEvaluation:
    """Evaluate every member's best policy and all baselines.

    Args:
        path: the run directory.
        draws: matched random traders.
        count: count this access to the test split in the run directory.
        window: bars to score instead of the run's own splits.

    Raises:
        CheckpointError: there is no run, or it has no policy.
        ConfigError: other prices were requested and the environment has none.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    members = run.best.present
    chosen = DataWindow(**window, frozen=frozen_settings(run.provenance))
    environment = load_environment(run.config.env_name, run.config.env_settings, chosen)
    splits, agent = environment.splits(), run.config.agent
    reads = 1
    if "test" in splits:
        reads = run.count_test_read() if count else max(run.test_reads, 1)
    market = environment.spec.market is not None
    unseen = _all_new(run, environment) if "window" in splits else "test" in splits
    meaningless = NUMBERS if opponent_names(environment) else ()
    evaluation = RunEvaluation(
        title=f"{run.path.name}: {run.config.short_name}",
        tracks=evaluate_best(run, environment, record=market).by_split(),
        source=run,
        unseen=unseen,
        member_numbers=tuple(members),
        member=members.index(run.best.highest),
        member_reason="the best on validation" if len(members) > 1 else "",
        same_settings=not any(isinstance(getattr(agent, n), tuple) for n in agent.PER_MEMBER),
        curves=learning_curves(run, market),
        episodes=episode_curves(run, environment.spec, meaningless),
        resources=resource_columns(run.metrics()),
        trials=len(members),  # the displayed member is the best one
        earlier_uses=get_holdout_register(environment).record_access(f"run {run.path}"),
        holdout_reads=reads,
        notes=_notes(run, environment),
        provenance=provenance_lines(run, environment),
    )
    plan = EvaluationPlan.from_config(run.config, environment)
    backend = run.config.training.resolved_backend
    evaluation = add_baselines(environment, evaluation, backend=backend, draws=draws, plan=plan)
    if evaluation.market is not None:
        return evaluation
    return replace(
        evaluation, game=evaluate_game(run, environment, members, members[evaluation.member])
    )


def evaluate_deployed(
    policy: Path | DeployedPolicy, *, draws: int = RANDOM_DRAWS, **window: Unpack[EvaluationWindow]
) -> RunEvaluation:
    """Evaluate a single policy that was deployed by a study or exported by a run.

    It is evaluated on other prices, or on fresh episodes of a game.

    Args:
        policy: the policy or its folder.
        draws, window: see `evaluate_run`; a market requires a selection of bars.
    """
    deployed = policy if isinstance(policy, DeployedPolicy) else DeployedPolicy.open(policy)
    environment = deployed.environment(**window)
    market, facts = environment.spec.market is not None, deployed.metadata
    owner = "study" if "study" in facts else "policy"
    names = ("development", "holdout") if owner == "study" else ("train", "validation", "test")
    new = is_window_after(environment, facts, names)
    notes = forced_gate_warnings(facts)
    if market and not new:
        notes.append(_NOT_NEW.format(f"{owner}'s own prices end"))
    digest = environment.provenance.get("market_sha256")
    work = {"Study": f"{deployed.title}: {facts.get('label')}"} if owner == "study" else {}
    evaluation = RunEvaluation(
        title=f"{deployed.title}: {deployed.config.short_name}",
        tracks=deployed.evaluate(environment, record=market).by_split(),
        source=deployed,
        unseen=new or not market,
        notes=(*notes, *deployed.warnings(environment)),
        provenance=origin_lines({}, work, deployed.config.hash, digest),
    )
    plan = EvaluationPlan.from_config(deployed.config, environment)
    backend = deployed.config.training.resolved_backend
    return add_baselines(environment, evaluation, backend=backend, draws=draws, plan=plan)


def add_baselines(
    environment: Environment,
    run: RunEvaluation,
    *,
    backend: str = "compiled",
    draws: int = RANDOM_DRAWS,
    plan: EvaluationPlan | None = None,
) -> RunEvaluation:
    """Replay the baselines and stress tests of a run and add the environment's metadata.

    Args:
        environment: training environment with its data.
        run: tracks by split; the headline uses "test" if it exists, else the last split.
        backend: backend of the kernels.
        draws: matched random traders.
        plan: evaluation plan of a random policy in a game.
    """
    holdout = "test" if "test" in run.tracks else list(run.tracks)[-1]
    run = replace(
        run,
        environment=environment,
        notes=(*environment.notes, *run.notes),
        accepted=tuple(environment.provenance.get("accepted", ())),
    )
    if environment.kind.compiled:
        backend = environment.kind.select_backend(backend)
    backtest = environment.part(Backtest)
    if backtest is not None:
        backtests = {name: backtest.for_split(name, backend) for name in run.tracks}
        return _with_prices(backtests, run, holdout, draws)
    # An environment without a backtest is displayed like a game.
    games, longest = _RANDOM_EPISODES, MAX_EVAL_STEPS
    if plan is not None:
        games, longest = min(games, plan.test_episodes), plan.max_steps
    return replace(
        run,
        holdout=_GAME_LABELS.get(holdout, holdout),
        tracks={_GAME_LABELS.get(name, name): members for name, members in run.tracks.items()},
        random_policy=random_policy(environment, holdout, backend, games, longest),
    )


def _with_prices(
    backtests: Mapping[str, SplitBacktest], run: RunEvaluation, holdout: str, draws: int
) -> RunEvaluation:
    """Add market, prices, baselines and stress tests to a run."""
    held, agent = backtests[holdout], run.tracks[holdout][run.member]
    comparisons: dict[str, Baselines] = {}
    if held.is_comparable:
        for name, split in backtests.items():
            baselines = split.compare(agent, draws) if name == holdout else split.rule_baselines()
            comparisons[_LABELS.get(name, name)] = baselines
    return replace(
        run,
        holdout=_LABELS.get(holdout, holdout),
        tracks={
            _LABELS.get(name, name): [backtests[name].name_tracks(tracks) for tracks in members]
            for name, members in run.tracks.items()
        },
        market=held.market,
        prices=held.prices,
        baselines=comparisons,
        stress=held.stress_test(agent) if comparisons else None,
        round_trips=tuple(held.round_trips()) if comparisons else (),
        financing=held.has_financing,
    )


def random_policy(
    environment: Environment,
    split: str,
    backend: str = "auto",
    games: int = _RANDOM_EPISODES,
    longest: int = MAX_EVAL_STEPS,
) -> Floats:
    """Return returns [games] of episodes with uniformly random allowed actions."""
    random = np.random.Generator(np.random.PCG64(_RANDOM_SEED))

    def act(seen: PolicyInput) -> NDArray[Any]:
        return random_actions(environment.spec, len(seen.obs), random, seen.mask)

    with environment.make_eval_envs(split, min(_NUM_ENVS, games), 1, backend, longest) as env:
        tracks = run_episodes(env, act, games, _RANDOM_SEED, record=False)[0]
    return np.array([track.episode_return for track in tracks])


def evaluate_game(
    run: Run, environment: Environment, members: Sequence[int], shown: int
) -> GameEvaluation:
    """Collect how the policies of a run without prices were chosen."""
    training, agent = run.config.training, run.config.agent
    plan = EvaluationPlan.from_config(run.config, environment)
    last = {member["member"]: member for member in (run.result or {}).get("members", [])}
    varied = [name for name in agent.PER_MEMBER if isinstance(getattr(agent, name), tuple)]
    columns = {name: agent.per_member(name, training.members) for name in varied}
    differing = {name: column for name, column in columns.items() if len(set(column)) > 1}
    chosen = []
    for member in members:
        manifest, member_result = run.best.load(member)[1], last.get(member, {})
        chosen.append(
            PolicyChoice(
                steps=int(manifest["steps"]),
                score=float(manifest["score"]),
                last=member_result.get("last_score"),
                last_error=member_result.get("last_error"),
                settings={name: float(column[member]) for name, column in differing.items()},
            )
        )
    policy, sampled = run.best_policy(shown), np.empty(0)
    if policy.actions.is_stochastic:
        with closing(final_evaluator(run.config, environment)) as evaluator:
            (tracks,) = evaluator.run(policy, stochastic=True)
        sampled = score_values(tracks, environment.spec)
    validated = run.evaluations().get("steps", [])
    trained = (
        *validated,
        *run.metrics().get("steps", []),
    )  # training may have ended between two validations
    return GameEvaluation(
        chosen=tuple(chosen),
        steps=int(max((step for step in trained if isinstance(step, float)), default=0)),
        validations=len(set(validated)),
        budget=training.total_timesteps,
        sampled=sampled,
        longest=plan.max_steps if environment.spec.max_episode_steps is None else None,
    )


def _notes(run: Run, environment: Environment) -> tuple[str, ...]:
    """Return notes on members that are left out, and on a chosen window that is not new."""
    left_out = sorted(set(range(run.config.training.members)) - set(run.best.present))
    notes = [f"Member {member} has no validated policy and is left out." for member in left_out]
    if "window" in environment.splits() and not _all_new(run, environment):
        notes.append(_NOT_NEW.format("run's validation ends"))
    return (*notes, *data_mismatch(run, environment), *run_warnings(run.config, environment))


def _all_new(run: Run, environment: Environment) -> bool:
    """Return True if the chosen window begins after all bars that the run has used."""
    return is_window_after(environment, run.provenance, ("train", "validation"))


def is_window_after(
    environment: Environment, facts: Mapping[str, Any], names: Sequence[str]
) -> bool:
    """Return True if the chosen window begins after all of the named windows."""
    windows = (facts.get("environment") or {}).get("windows_utc_seconds") or {}
    used = [int(windows[name][1]) for name in names if name in windows]
    until = facts.get("trained_until")  # policy of a deployment
    used += [] if until is None else [int(until)]
    backtest = environment.part(Backtest)
    if not used or backtest is None:
        return False
    return backtest.for_split("window").start_time >= max(used)


def provenance_lines(run: Run, environment: Environment) -> dict[str, str]:
    """Return the provenance of the run: label and text."""
    training = run.config.training
    first, *later = run.num_envs_history
    envs = f"{plural(first['num_envs'], 'environment')} each"
    envs += "".join(f", {change['num_envs']} from step {change['steps']:,} on" for change in later)
    work = (
        f"{training.total_timesteps:,} steps per member, {plural(training.members, 'member')}, "
        f"{envs}, seed {training.seed}"
    )
    result = run.result or {}
    if "utd_ratio" in result:
        rows = int(result["update_rows"])
        work += f"; {result['utd_ratio']:.3g} updates per environment step, {rows:,} rows each"
    digest = environment.provenance.get("market_sha256")
    return origin_lines(run.provenance, {"Training": work}, run.config.hash, digest)
