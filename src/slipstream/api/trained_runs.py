"""What a run has learned: `evaluate`, `best_response`, `write_report`, `write_card`, ..."""

from __future__ import annotations

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
from slipstream.training.runs.policies import (
    DeployedPolicy,
    EpisodeResults,
    data_mismatch,
    deployed_folder,
    evaluate_best,
    sample_observations,
)
from slipstream.training.runs.run import CHECKPOINTS, CONFIG, Run
from slipstream.training.settings.config import Overrides, parse_overrides

if TYPE_CHECKING:
    from slipstream.training.runs.matches import MatchResult


def evaluate(
    path: str | Path | Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
    trust: bool = False,
) -> EpisodeResults:
    """Tracks of the best policies by split, member and episode: deterministic, with traces.

    Args:
        path: a run; a study's name or folder, or its `policy` folder, for the policy that it
            deployed; a policy that `write_card` handed on; or the name of a deployment, whose paper
            account's bars are scored unless `data` is given.
        data: a folder of other prices of the same kind, scored as one window.
        symbols: which of them; those of the run unless given.
        start, stop: of that window (ISO dates, UTC), half open.
        trust: code that the folder's config names (a kernel's or an agent's file, a module) may
            run, although no command of this user made the folder, or the code has changed since.

    Raises:
        TrustError: such code would run, and `trust` does not allow it.
    """
    path, data, start = placed(path, data, start)
    run = _opened(path, trust)
    if isinstance(run, DeployedPolicy):
        return run.evaluate(run.environment(data, symbols, parse_utc(start), parse_utc(stop)))
    environment = environment_of(run, data=data, symbols=symbols, start=start, stop=stop)
    if "test" in environment.splits():
        run.count_test_read()
    tracks = evaluate_best(run, environment)
    for sentence in data_mismatch(run, environment):
        run.notify(sentence)
    return tracks


def evaluate_games(
    path: str | Path | Run,
    opponents: Sequence[str] | None = None,
    *,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
    trust: bool = False,
) -> list[MatchResult]:
    """Whole games of a policy for two, from both sides; a run's are written to its `games.json`.

    Args:
        path: a run, for its best policy; a folder in its `best`; or a policy that `write_card`
            handed on.
        opponents: names of the game's bots (`random` in any game), directories of other runs,
            policies' folders, ONNX files, `snapshots` of the run's own; all bots unless given.
        games: against each.
        seed: of the games; one that chose no policy unless given.
        member: of the run, whose policy; the best one's unless given.
        trust: as for `evaluate`.

    Returns:
        What came of the games, for each opponent.
    """
    from slipstream.training.runs import matches as whole

    config, one = whole.load_learner(path, member, trust)
    name, settings = config.env_name, config.env_settings
    chosen = whole.list_bots(name) if opponents is None else opponents
    others = [
        whole.load_snapshots(one.run)
        if one.run is not None and text == SNAPSHOTS
        else whole.load_opponent(name, text)
        for text in chosen
    ]
    number = config.evaluation.test_seed if seed is None else seed
    for two in others:  # refused before anything takes time
        whole.environment_against(name, settings, 0, two)
    asked: Any = {"settings": settings, "backend": config.training.resolved_backend}
    played = [whole.play(name, one, two, games, number, **asked) for two in others]
    if one.run is not None:
        whole.write_match_results(one.run, played, number, one.member)
    return played


def write_report(
    path: str | Path | Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] | None = None,
    trust: bool = False,
) -> Path:
    """Evaluates the best policies and writes `report.html` with its pictures.

    Args:
        path: a run or a study, as for `evaluate`.
        data, symbols, start, stop: as for `evaluate`.
        out: folder of the report; the run's directory unless given, beside a study's policy.
        say: told the headline and the sentences that qualify it.
        trust: as for `evaluate`.

    Returns:
        Path of `report.html`.
    """
    from slipstream.report import run_page  # Matplotlib: not on the way to a first update

    path, data, start = placed(path, data, start)
    bars: Any = {
        "data": data,
        "symbols": symbols,
        "start": parse_utc(start),
        "stop": parse_utc(stop),
    }
    run = _opened(path, trust)
    if isinstance(run, DeployedPolicy):
        return run_page.report_deployed(run, **bars, out=out, log=say)
    return run_page.report_run(run, **bars, out=out, log=say)


def write_card(
    run: str | Path | Run,
    *,
    out: str | Path | None = None,
    licence: str | None = None,
    trust: bool = False,
) -> Path:
    """Writes a model card of a policy: what, on which data, scores, what was not shown.

    Args:
        run: a run, for its best policy; or a study's name or folder, for the one that it deployed.
        out: folder that is made of the policy and its card, to be handed on: `evaluate` and
            `load_policy` take it. Without it the card is `card.md` in the run's or study's folder.
        licence: of the data; that of a file LICENSE beside the prices unless given.
        trust: as for `evaluate`.

    Returns:
        Path of the card.
    """
    from slipstream.report import model_card

    found = _opened(run if isinstance(run, Run) else folder_of(run), trust)
    if isinstance(found, DeployedPolicy) and not path_exists(found.path.parent / LEDGER):
        raise ConfigError(
            f"{run} is a policy by itself: a card is written of a run or a study, and this one "
            "was handed on or deployed from it."
        )
    return model_card.write_card(found, None if out is None else Path(out), licence)


def _opened(path: str | Path | Run, trust: bool) -> Run | DeployedPolicy:
    """Return what a path means: a run, or the policy of a study or by itself."""
    if isinstance(path, Run):
        return path
    deployed = deployed_folder(Path(path))
    if deployed is None:
        return Run.open(path, trust=trust)
    return DeployedPolicy.open(deployed, trust)


def load_policy(path: str | Path | Run, member: int | None = None) -> Policy:
    """The policy that validation chose: of `member`, else of the best one.

    ``policy.act(obs, mask=None, deterministic=True)`` takes one observation or a batch as the
    environment itself shows them, and returns its own actions. A study's folder, or its `policy`
    folder, gives the policy that the study deploys. Nothing that a config names is imported.
    """
    deployed = None if isinstance(path, Run) else deployed_folder(Path(path))
    if deployed is not None:
        tensors, manifest = checkpoint.load(deployed)
        return unpack(tensors, manifest.get("policy"))
    run = path if isinstance(path, Run) else Run.open(path)
    return run.best_policy(member)


def export(
    path: str | Path | Run,
    onnx: str | Path,
    *,
    member: int | None = None,
    opset: int = 17,
    trust: bool = False,
) -> dict[str, Any]:
    """Writes a policy as an ONNX file, once it has acted there as it does here.

    The graph scales, masks, and maps actions to the environment's own; it takes the most likely
    one. docs/policies.md says what goes in and comes out.

    Args:
        path: a run, or a study for the policy that it deployed.
        onnx: the file.
        member: of a run, whose policy; the best one's unless given.
        opset: version of ONNX's operators.
        trust: as for `evaluate`: the environment shows the observations for the comparison.

    Returns:
        What came of the comparison: `observations`, `largest_difference`, `ran_by`, ...

    Raises:
        ConfigError: there is no such opset.
        ResourceError: onnx is not installed, or the file would act differently.
    """
    from slipstream.rl.nets.onnx_graph import write_onnx

    run = _opened(path, trust)
    policy = load_policy(run, member) if isinstance(run, Run) else run.policy
    name, settings = run.config.env_name, run.config.env_settings
    environment = load_environment(name, settings, DataWindow())
    return write_onnx(policy, *sample_observations(policy, environment), Path(onnx), opset)


def environment_of(
    run: Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
) -> Environment:
    """The environment of a run; with any of the options, one window of (other) prices.

    Raises:
        ConfigError: the environment has no prices, or a date cannot be read.
    """
    carried = frozen_settings(run.provenance)
    window = DataWindow(data, symbols, parse_utc(start), parse_utc(stop), carried)
    return load_environment(run.config.env_name, run.config.env_settings, window)


def placed(
    path: str | Path | Run, data: str | Path | None = None, start: str | None = None
) -> tuple[str | Path | Run, str | Path | None, str | None]:
    """Path, prices and first moment to score; of a deployment its policy and its bars."""
    if isinstance(path, Run):
        return path, data, start
    folder = folder_of(path)
    for kind in folder_kinds(folder):
        return kind.scored(folder, data, start)
    return folder, data, start


def folder_of(path: str | Path) -> Path:
    """The folder of a run, a study, a deployment or a policy, by its path or a name.

    Raises:
        CheckpointError: it is none of them, or several have that name.
    """
    own = Path(path).expanduser()
    known = (CONFIG, CHECKPOINTS, checkpoint.MANIFEST, LEDGER)
    if any(path_exists(own / one) for one in known):
        return own
    from slipstream.studies.record.inspection import lookup

    return lookup(path)[0]


def best_response(
    path: str | Path | Run,
    *,
    steps: int | None = None,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
    drawn: bool = False,
    out: str | Path | None = None,
    overrides: Overrides = (),
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    say: Callable[[str], None] | None = None,
    trust: bool = False,
) -> tuple[Run, MatchResult]:
    """Trains a best response against a frozen policy for two, and plays whole games with it.

    The share of them that it wins is a lower bound of what the policy can lose: a better response
    may win more. It goes into `games.json` of the response's run.

    Args:
        path: a run, a folder in its `best`, or a policy that `write_card` handed on.
        steps: that the response is trained for; as the policy was unless given.
        games: played in the end, from both sides.
        seed: of the games; one that chose no policy unless given.
        member: of the run, whose policy; the best one's unless given.
        drawn: the policy draws its actions, in training and in the games, else it takes the most
            likely ones.
        out: the response's run directory, ``runs/<env>-<date>-<time>`` unless given.
        overrides: of the response's config, which is the policy's own.
        callbacks, say: as for `train`.
        report: write `report.html` of the response.
        trust: as for `evaluate`.

    Returns:
        The response's run, and its games as the response sees them.

    Raises:
        ConfigError: it is no policy for two.
        CheckpointError: there is no policy yet, or it is damaged.
    """
    from slipstream.training.runs import matches as whole

    config, two = whole.load_learner(path, member, trust)
    whole.check_game(config.env_name, games)
    assert two.path is not None
    whole.environment_against(
        config.env_name, config.env_settings, 0, two
    )  # refused before training
    changes: dict[str, Any] = {} if steps is None else {"training.total_timesteps": steps}
    run = train(
        whole.best_response_config(config, two.path, drawn),
        out=out,
        overrides={**changes, **parse_overrides(overrides)},
        callbacks=callbacks,
        report=False,
        say=say,
    )
    number = run.config.evaluation.test_seed if seed is None else seed
    backend = run.config.training.resolved_backend
    one = whole.load_player(run)
    played = whole.play(run.config.env_name, one, two, games, number, backend=backend, drawn=drawn)
    whole.write_match_results(run, [played], number)
    if report:
        run.notify(f"Report: {write_report(run, say=run.notify)}")
    return run, played
