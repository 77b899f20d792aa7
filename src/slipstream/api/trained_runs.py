"""Functions on trained runs: `evaluate`, `load_policy`, `best_response`, `export`, reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.api.training import train
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import folder_kinds
from slipstream.core.safe_io import path_exists
from slipstream.core.storage import checkpoint
from slipstream.core.storage.status_file import LEDGER
from slipstream.core.text import parse_utc
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.callbacks.events import Callback
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import (
    DataWindow,
    frozen_settings,
    load_environment,
)
from slipstream.training.environments.parts import SNAPSHOTS
from slipstream.training.evaluation_result import EvaluationResult
from slipstream.training.runs.policies import (
    DeployedPolicy,
    data_mismatch,
    deployed_folder,
    evaluate_best,
    sample_observations,
)
from slipstream.training.runs.run import CHECKPOINTS, CONFIG, Run
from slipstream.training.settings.config import Overrides, parse_overrides

if TYPE_CHECKING:
    from slipstream.rl.nets.onnx_graph import ExportResult
    from slipstream.training.runs.matches import BestResponse, GamesResult


def evaluate(
    path: str | os.PathLike[str],
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
    trust: bool = False,
) -> EvaluationResult:
    """Evaluate the best policies, one of each member.

    A run without prices is evaluated on new episodes, split "test", which selected no policy. A run
    on prices is evaluated on its windows.

    Args:
        path: a run; a study's name or folder, or its `policy` folder, for the deployed policy; a
            policy exported by `write_model_card`; or a deployment's name, which is evaluated on the
            bars of its paper account unless `data` is given.
        data: folder of other prices of the same kind, evaluated as one window.
        symbols: symbols to evaluate; None: those of the run.
        start, stop: half-open window of ISO dates, UTC.
        trust: allow code that the folder's config names (a kernel or agent file, a module) even if
            no command of this user created the folder, or the code changed since.

    Returns:
        The episodes with their traces, mean returns and intervals. `print` shows a table.

    Raises:
        TrustError: such code is required and not trusted.
    """
    path, data, start = resolve_source(path, data, start)
    run = _open_source(path, trust)
    if isinstance(run, DeployedPolicy):
        return run.evaluate(run.environment(data, symbols, parse_utc(start), parse_utc(stop)))
    environment = environment_from_run(run, data=data, symbols=symbols, start=start, stop=stop)
    if "test" in environment.splits():
        run.count_test_read()
    result = evaluate_best(run, environment)
    for sentence in data_mismatch(run, environment):
        run.notify(sentence)
    return result


def evaluate_games(
    path: str | os.PathLike[str],
    opponents: Sequence[str] | None = None,
    *,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
    trust: bool = False,
) -> GamesResult:
    """Play matches of a two-player policy from both sides.

    The results of a run are written to its `games.json`.

    Args:
        path: a run, for its best policy; a folder in its `best`; or a policy exported by
            `write_model_card`.
        opponents: names of the game's bots (`random` in any game), other runs, policy folders, ONNX
            files, or `snapshots` of the run itself; None: all bots.
        games: matches per opponent.
        seed: seed of the matches; None: the run's test seed, which selected no policy.
        member: member of the run; None: the best one.
        trust: as for `evaluate`.

    Returns:
        One result per opponent: `player2`, `win_rate`, `interval`, ... `print` shows a table.
    """
    from slipstream.training.runs import matches

    config, player1 = matches.load_learner(path, member, trust)
    name, settings = config.env_name, config.env_settings
    chosen = matches.list_bots(name) if opponents is None else opponents
    others = [
        matches.load_snapshots(player1.run)
        if player1.run is not None and text == SNAPSHOTS
        else matches.load_opponent(name, text)
        for text in chosen
    ]
    number = config.evaluation.test_seed if seed is None else seed
    for player2 in others:  # fails before expensive work
        matches.environment_against(name, settings, 0, player2)
    options: Any = {"settings": settings, "backend": config.training.resolved_backend}
    played = [matches.play(name, player1, player2, games, number, **options) for player2 in others]
    if player1.run is not None:
        matches.write_match_results(player1.run, played, number, player1.member)
    return matches.GamesResult(played)


def write_report(
    path: str | os.PathLike[str],
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
    out: str | Path | None = None,
    log: Callable[[str], None] | None = None,
    trust: bool = False,
) -> Path:
    """Evaluate the best policies and write `report.html` with its figures.

    Args:
        path: a run or a study, as for `evaluate`.
        data, symbols, start, stop: as for `evaluate`.
        out: folder of the report; None: the run's directory, or beside a study's policy.
        log: called with the headline and its qualifications.
        trust: as for `evaluate`.

    Returns:
        Path of `report.html`.
    """
    from slipstream.report import run_page  # imports Matplotlib

    path, data, start = resolve_source(path, data, start)
    bars: Any = {
        "data": data,
        "symbols": symbols,
        "start": parse_utc(start),
        "stop": parse_utc(stop),
    }
    run = _open_source(path, trust)
    if isinstance(run, DeployedPolicy):
        return run_page.report_deployed(run, **bars, out=out, log=log)
    return run_page.report_run(run, **bars, out=out, log=log)


def write_model_card(
    run: str | os.PathLike[str],
    *,
    out: str | Path | None = None,
    licence: str | None = None,
    trust: bool = False,
) -> Path:
    """Write a model card: data, scores with confidence intervals, limitations.

    Args:
        run: a run, for its best policy; or a study's name or folder, for its deployed policy.
        out: new folder for the policy and its model card, ready to share; `evaluate` and
            `load_policy` accept it. None: `card.md` in the folder of the run or study.
        licence: licence of the data; None: that of a file LICENSE beside the prices.
        trust: as for `evaluate`.

    Returns:
        Path of the model card.
    """
    from slipstream.report import model_card

    source = _open_source(run if isinstance(run, Run) else find_folder(run), trust)
    if isinstance(source, DeployedPolicy) and not path_exists(source.path.parent / LEDGER):
        raise ConfigError(
            f"A model card requires a run or a study, and {run} is a policy folder. Name the run "
            "or study that it came from."
        )
    return model_card.write_model_card(source, None if out is None else Path(out), licence)


def _open_source(path: str | os.PathLike[str], trust: bool) -> Run | DeployedPolicy:
    """Open a run, or the policy of a study or policy folder."""
    if isinstance(path, Run):
        return path
    deployed = deployed_folder(Path(path))
    if deployed is None:
        return Run.open(path, trust=trust)
    return DeployedPolicy.open(deployed, trust)


def load_policy(path: str | os.PathLike[str], member: int | None = None) -> Policy:
    """Load the policy that validation selected: of `member`, else of the best member.

    ``policy.act(obs, mask=None, deterministic=True)`` takes one observation or a batch, in the
    environment's own spaces, and returns actions of its action space. A study's folder, or its
    `policy` folder, gives the study's deployed policy. No code from the folder is imported.
    """
    deployed = None if isinstance(path, Run) else deployed_folder(Path(path))
    if deployed is not None:
        tensors, manifest = checkpoint.load(deployed)
        return unpack(tensors, manifest.get("policy"))
    run = path if isinstance(path, Run) else Run.open(path)
    return run.best_policy(member)


def export(
    path: str | os.PathLike[str],
    onnx: str | Path,
    *,
    member: int | None = None,
    opset: int = 17,
    trust: bool = False,
) -> ExportResult:
    """Export a policy as an ONNX file after comparing its outputs with the policy's.

    The graph scales observations, applies masks, and maps outputs to the environment's actions; it
    takes the most likely action. docs/guides/policies.md describes its inputs and outputs.

    Args:
        path: a run, or a study for its deployed policy.
        onnx: output file.
        member: member of a run; None: the best one.
        opset: ONNX operator set version.
        trust: as for `evaluate`; the environment provides the observations for the comparison.

    Returns:
        The file and the result of the comparison: `path`, `max_difference`, `runtime`, ...

    Raises:
        ConfigError: there is no such opset.
        ResourceError: onnx is not installed, or the outputs differ.
    """
    from slipstream.rl.nets.onnx_graph import write_onnx

    run = _open_source(path, trust)
    policy = load_policy(run, member) if isinstance(run, Run) else run.policy
    name, settings = run.config.env_name, run.config.env_settings
    environment = load_environment(name, settings, DataWindow())
    return write_onnx(policy, *sample_observations(policy, environment), Path(onnx), opset)


def environment_from_run(
    run: Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
) -> Environment:
    """Return the environment of a run; with options, one window of (other) prices.

    Raises:
        ConfigError: the environment has no prices, or a date cannot be parsed.
    """
    carried = frozen_settings(run.provenance)
    window = DataWindow(data, symbols, parse_utc(start), parse_utc(stop), carried)
    return load_environment(run.config.env_name, run.config.env_settings, window)


def resolve_source(
    path: str | os.PathLike[str], data: str | Path | None = None, start: str | None = None
) -> tuple[str | os.PathLike[str], str | Path | None, str | None]:
    """Return the policy source, prices and start date; for a deployment its policy and bars."""
    if isinstance(path, Run):
        return path, data, start
    folder = find_folder(path)
    for kind in folder_kinds(folder):
        return kind.scored(folder, data, start)
    return folder, data, start


def find_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a run, study, deployment or policy, by path or name.

    Raises:
        CheckpointError: there is no such folder, or the name is ambiguous.
    """
    folder = Path(path).expanduser()
    markers = (CONFIG, CHECKPOINTS, checkpoint.MANIFEST, LEDGER)
    if any(path_exists(folder / marker) for marker in markers):
        return folder
    from slipstream.studies.record.inspection import lookup

    return lookup(path)[0]


def best_response(
    path: str | os.PathLike[str],
    *,
    total_timesteps: int | None = None,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
    deterministic: bool = True,
    out: str | Path | None = None,
    overrides: Overrides = (),
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    log: Callable[[str], None] | None = None,
    trust: bool = False,
) -> BestResponse:
    """Train a best response to a frozen two-player policy, and play matches with it.

    Its win rate is a lower bound of the policy's exploitability. The result is written to
    `games.json` of the response's run.

    Args:
        path: a run, a folder in its `best`, or a policy exported by `write_model_card`.
        total_timesteps: timesteps that the response trains for; None: those of the policy.
        games: evaluation matches, from both sides.
        seed: seed of the matches; None: the run's test seed, which selected no policy.
        member: member of the run; None: the best one.
        deterministic: take the policy's most likely actions, in training and in the matches;
            False samples them.
        out: the response's run directory; None: ``runs/<env>-<date>-<time>``.
        overrides: overrides of the response's config, which is that of the policy.
        callbacks, log: as for `train`.
        report: write `report.html` of the response.
        trust: as for `evaluate`.

    Returns:
        The response: `run`, `win_rate`, `interval`, and its games as `match`.

    Raises:
        ConfigError: the policy is not for a two-player game.
        CheckpointError: there is no policy yet, or it is damaged.
    """
    from slipstream.training.runs import matches

    config, player2 = matches.load_learner(path, member, trust)
    matches.check_game(config.env_name, games)
    assert player2.path is not None
    # Fails before training.
    matches.environment_against(config.env_name, config.env_settings, 0, player2)
    changes: dict[str, Any] = {}
    if total_timesteps is not None:
        changes["training.total_timesteps"] = total_timesteps
    run = train(
        matches.best_response_config(config, player2.path, not deterministic),
        out=out,
        overrides={**changes, **parse_overrides(overrides)},
        callbacks=callbacks,
        report=False,
        log=log,
    )
    number = run.config.evaluation.test_seed if seed is None else seed
    backend = run.config.training.resolved_backend
    player1 = matches.load_player(run)
    played = matches.play(
        run.config.env_name,
        player1,
        player2,
        games,
        number,
        backend=backend,
        drawn=not deterministic,
    )
    matches.write_match_results(run, [played], number)
    if report:
        run.notify(f"Report: {write_report(run, log=run.notify)}")
    return matches.BestResponse(run, played)
