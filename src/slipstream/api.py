"""The Python API: what the command line does, in a few calls.

::

    run = slipstream.train("cartpole", members=4, total_steps=200_000)
    policy = slipstream.load_policy(run)
    tracks = slipstream.evaluate(run)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.nets.policy import Policy
from slipstream.nets.policy_file import unpack
from slipstream.training import checkpoint, trainer
from slipstream.training.backend import resolve_backend
from slipstream.training.best import Tracks, best_member, best_policy, evaluate_best, other_data
from slipstream.training.cluster import ClusterOptions, cluster_of
from slipstream.training.config import RunConfig, resolve
from slipstream.training.environment import Environment
from slipstream.training.events import Listener
from slipstream.training.factory import (
    carried_settings,
    chosen_environment,
    kind_of,
    make_environment,
    resolve_environment,
)
from slipstream.training.files import write_json
from slipstream.training.interruption import Interrupted
from slipstream.training.learner import check_learner, last_device
from slipstream.training.provenance import changed_facts
from slipstream.training.remarks import remarks
from slipstream.training.run import Run
from slipstream.training.run_path import free_path
from slipstream.training.sizing import check_memory, resolve_num_envs
from slipstream.training.target import Overrides, parse_overrides, passed_over
from slipstream.vector.vector_env import VectorEnv, member_indices

if TYPE_CHECKING:
    from slipstream.studies.record.folder import StudyFolder
    from slipstream.training.games import Games


def train(
    target: str | Path | Mapping[str, Any] | RunConfig,
    *,
    out: str | Path | None = None,
    overrides: Overrides = (),
    cluster: str | ClusterOptions | None = None,
    listeners: Sequence[Listener] = (),
    report: bool = True,
    say: Callable[[str], None] | None = None,
    **training: Any,
) -> Run:
    """Trains a new run to its end and writes its report.

    Args:
        target: a YAML file, a kernel's name, a ``.py`` kernel file, ``gym:ID``, a mapping of
            sections or a config.
        out: run directory, ``runs/<env>-<date>-<time>`` unless given.
        overrides: ``{"agent.learning_rate": 1e-3}`` or ``["agent.learning_rate=1e-3"]``.
        cluster: as for `tune`: its workers train the members, to the same bits.
        listeners: called with every event; `ConsoleListener` shows progress.
        report: write `report.html` at the end.
        say: told in sentences what was chosen or passed over; standard error unless given.
        **training: fields of the `training` section: num_envs, members, total_steps, seed, ...

    Returns:
        The run: `run.result`, `run.metrics()`, `run.path`.

    Raises:
        SlipstreamError: with one paragraph that says what to do.
        Interrupted: a signal stopped it; the run can be resumed.
    """
    changes = {
        **parse_overrides(overrides),
        **{f"training.{name}": v for name, v in training.items()},
    }
    config = resolve(target, changes)
    path = free_path(config, out)  # refused before anything takes time
    environment = resolve_environment(config.env_name, config.env_settings)
    learner = check_learner(config.training, environment.spec.is_image)
    config, fallback = resolve_backend(config, environment.prepared(config.training))
    config, choice = resolve_num_envs(config, environment)
    check_memory(config, environment)
    environment.check(config.env_settings, say or _to_stderr)
    said = [one for one in (config.preset_note, fallback, choice, passed_over(target)) if one]
    notes = [*environment.notes, *remarks(config, environment), *said]
    facts = {"environment": environment.facts, "notes": notes, "learner": learner}
    run = Run.create(config, path, **({"say": say} if say else {}), **facts)
    for sentence in said:
        run.say(sentence)
    begin = partial(trainer.train, run.config, cluster=cluster_of(cluster))
    return _finish(run, environment, begin, listeners, report)


def tune(
    target: str | Path | Mapping[str, Any],
    *,
    study_name: str | None = None,
    overrides: Overrides = (),
    study: Mapping[str, Any] | None = None,
    storage: str | None = None,
    workers: int | None = None,
    cluster: str | ClusterOptions | None = None,
    group_size: int | None = None,
    hours: float | None = None,
    force_deploy: bool = False,
    report: bool = True,
    say: Callable[[str], None] | None = None,
    show: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Searches for settings, confirms the best trials and evaluates the winner on the hold-out.

    A study of that name goes on where it stopped.

    Args:
        target: as for `train`; the section `study` of a file is read.
        study_name: folder below ``studies/``; by the environment and the time unless given. A
            path is taken as it is.
        overrides: as for `train`; ``study.penalty=0`` sets a field of the study.
        study: fields of the `study` section: n_trials, seed, ...
        storage: where Optuna's study is kept; SQLite in the study's folder unless given.
        workers: processes; one per core unless given. Changes no result.
        cluster: Ray's: ``auto``, ``local`` or ``HOST:PORT``, or `ClusterOptions`; its workers do
            everything, to the same bits. Changes no result.
        group_size: members of a population; measured unless given. Changes no result.
        hours: ends by then: cuts the search and keeps the confirmation's share.
        force_deploy: deploy the best candidate even when nothing is recommended.
        report: write `study.html` at the end.
        say: told in sentences; standard error unless given.
        show: told where the study stands, often.

    Returns:
        The study's folder: `.result`, `.path`, `.policy`.

    Raises:
        SlipstreamError: with one paragraph that says what to do.
        Interrupted: a signal stopped it; the study can be resumed.
    """
    from slipstream.studies import start

    return start.tune(
        target,
        study_name,
        parse_overrides(overrides),
        dict(study or {}),
        start.Resources(storage, workers, group_size, hours, force_deploy, cluster_of(cluster)),
        say,
        show,
        report_study if report else None,
    )


def resume_study(
    name: str | Path,
    *,
    storage: str | None = None,
    workers: int | None = None,
    cluster: str | ClusterOptions | None = None,
    group_size: int | None = None,
    hours: float | None = None,
    force_deploy: bool = False,
    report: bool = True,
    say: Callable[[str], None] | None = None,
    show: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Goes on with a study that was stopped or killed; arguments as for `tune`.

    A study that is complete is left as it is.
    """
    from slipstream.studies import start

    return start.resume(
        str(name),
        start.Resources(storage, workers, group_size, hours, force_deploy, cluster_of(cluster)),
        say,
        show,
        report_study if report else None,
    )


def report_study(name: str | Path | StudyFolder) -> Path:
    """Writes `study.html` from a study's folder.

    Returns:
        Its path.
    """
    from slipstream.studies.record.folder import StudyFolder

    folder = name if isinstance(name, StudyFolder) else StudyFolder.open(str(name))
    from slipstream.report.study.page import write_study_page  # Matplotlib: only where it is needed

    return write_study_page(folder)


def resume(
    path: str | Path | Run,
    *,
    device: str | None = None,
    cluster: str | ClusterOptions | None = None,
    listeners: Sequence[Listener] = (),
    report: bool = True,
) -> Run:
    """Goes on with a run that was stopped or killed, to the same weights as if it had not been.

    A run that is complete is left as it is. Gymnasium environments that are not deterministic begin
    fresh episodes, which is said and recorded; so is going on on another device.

    Args:
        path: a run.
        device: cpu or cuda:N; where it was trained last unless given.
        cluster, listeners: as for `train`.
        report: write `report.html` at the end.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    if run.result is not None:
        return run
    environment = resolve_environment(run.config.env_name, run.config.env_settings)
    before, now = run.provenance.get("environment"), environment.facts
    if before is not None and before != now:
        changed = ", ".join(changed_facts(before, now))
        run.say(f"Since {run.path} began, its environment changed ({changed}); results may differ.")
    device = device or last_device(run)
    training = run.config.with_training(device=device).training
    check_learner(training, environment.spec.is_image)
    begin = partial(trainer.resume, device=device, cluster=cluster_of(cluster))
    return _finish(run, environment, begin, listeners, report)


def evaluate(
    path: str | Path | Run,
    *,
    data: str | Path | None = None,
    symbols: Sequence[str] | None = None,
    start: str | None = None,
    stop: str | None = None,
) -> Tracks:
    """Tracks of the best policies by split, member and episode: deterministic, with traces.

    Args:
        path: a run.
        data: a folder of other prices of the same kind, scored as one window.
        symbols: which of them; those of the run unless given.
        start, stop: of that window (ISO dates, UTC), half open.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    environment = environment_of(run, data=data, symbols=symbols, start=start, stop=stop)
    if "test" in environment.splits():
        run.count_test_read()
    tracks = evaluate_best(run, environment)
    for sentence in other_data(run, environment):
        run.say(sentence)
    return tracks


def evaluate_games(
    path: str | Path | Run,
    opponents: Sequence[str] | None = None,
    *,
    games: int = 1_000,
    seed: int | None = None,
    member: int | None = None,
) -> list[Games]:
    """Whole games of a run's best policy for two, from both sides; written to `games.json`.

    Args:
        path: a run.
        opponents: names of the game's bots, and directories of other runs; all bots unless given.
        games: against each.
        seed: of the games; one that chose no policy unless given.
        member: whose policy; the best one's unless given.

    Returns:
        What came of the games, for each opponent.
    """
    from slipstream.training import games as whole

    run = path if isinstance(path, Run) else Run.open(path)
    name = run.config.env_name
    chosen = whole.bots(name) if opponents is None else opponents
    others = [whole.opponent_of(name, text) for text in chosen]
    one = whole.player_of(run, member)
    number = run.config.evaluation.test_seed if seed is None else seed
    if not others:
        raise ConfigError(f"{run.path} plays `{name}`, which is no game for two with bots.")
    backend = run.config.training.chosen_backend
    played = [whole.play(name, one, two, games, number, backend=backend) for two in others]
    write_json(run.path / "games.json", {"seed": number, "games": [g.as_dict() for g in played]})
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
) -> Path:
    """Evaluates the best policies and writes `report.html` with its pictures.

    Args:
        path: a run.
        data, symbols, start, stop: as for `evaluate`.
        out: folder of the report; the run's directory unless given.
        say: told the headline and the sentences that qualify it.

    Returns:
        Path of `report.html`.
    """
    from slipstream.report.report import report_run  # Matplotlib: not on the way to a first update

    return report_run(
        path,
        data=data,
        symbols=symbols,
        start=_moment(start),
        stop=_moment(stop),
        out=out,
        say=say,
    )


def load_policy(path: str | Path | Run, member: int | None = None) -> Policy:
    """The policy that validation chose: of `member`, else of the best one.

    ``policy.act(obs, mask=None, deterministic=True)`` takes one observation or a batch as the
    environment itself shows them, and returns its own actions. A study's folder, or its `policy`
    folder, gives the policy that the study deploys.
    """
    if not isinstance(path, Run):
        deployed = deployed_folder(Path(path))
        if deployed is not None:
            tensors, manifest = checkpoint.load(deployed)
            return unpack(tensors, manifest["policy"])
    run = path if isinstance(path, Run) else Run.open(path)
    return best_policy(run, best_member(run) if member is None else member)


def check(target: str | Path | Mapping[str, Any], *, steps: int = 1_000, **env: Any) -> None:
    """Runs a kernel under watch, interpreted and compiled, and compares both bit for bit.

    `train` and `tune` do so by themselves with a kernel file, once for each version of it.

    Args:
        target: as for `train`, but no Gymnasium environment.
        steps: of every run, with random actions.
        **env: fields of the environment's Config.

    Raises:
        KernelError: the first rule found broken, with file, line and remedy.
    """
    config = resolve(target, {f"env.{name}": value for name, value in env.items()})
    kind_of(config.env_name).check_rules(config.env_name, config.env_settings, steps)


def make_vec(
    target: str | Path | Mapping[str, Any],
    num_envs: int,
    *,
    seed: int = 0,
    backend: str = "auto",
    **env: Any,
) -> VectorEnv:
    """`num_envs` copies of an environment stepped together.

    ::

        env = slipstream.make_vec("cartpole", num_envs=8)
        obs = env.reset(seed=3)
        obs, reward, terminated, truncated = env.step(policy.act(obs, mask=env.mask))

    Args:
        target: as for `train`.
        num_envs: how many.
        seed: their random streams follow from it and their index.
        backend: auto, serial, compiled or process; see docs/start.md.
        **env: fields of the environment's Config; ``kwargs={...}`` for ``gym:ID``.

    Returns:
        The copies: `reset` and `step` return fresh arrays, or write into the caller's.

    Raises:
        SlipstreamError: with one paragraph that says what to do.
    """
    config = resolve(target, {f"env.{name}": value for name, value in env.items()})
    if num_envs < 1:
        raise ConfigError(f"`num_envs` must be at least 1, it is {num_envs}.")
    environment = make_environment(config.env_name, config.env_settings)
    # First episodes of random length are for learning: here every episode is whole.
    return environment.copies(*member_indices([seed], num_envs), backend, stagger=False)


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
    carried = carried_settings(run.provenance)
    return chosen_environment(run.config, data, symbols, _moment(start), _moment(stop), carried)


def _finish(
    run: Run,
    environment: Environment,
    begin: Callable[..., Any],
    listeners: Sequence[Listener],
    report: bool,
) -> Run:
    """Trains to the end, alone in the directory, and reports."""
    run.lock()
    try:
        begin(run, listeners, environment=environment)
    except BaseException as error:
        run.discard_if_unused()
        if isinstance(error, KeyboardInterrupt) and run.path.exists():
            raise Interrupted(run.path, how=_AT_ONCE) from None
        raise
    finally:
        run.close()
    if report:
        from slipstream.report.report import report_run

        try:
            # The same look at the test split as the score that training has just printed.
            run.say(f"Report: {report_run(run, count=False, say=run.say)}")
        except KeyboardInterrupt:
            command = f"slipstream evaluate {run.path}"
            raise Interrupted(run.path, command, _UNREPORTED) from None
    return run


_AT_ONCE = "Stopped at once: what came after the last checkpoint is done again. Go on with:"
_UNREPORTED = "Training is complete, its report is not. Write it with:"


def deployed_folder(path: Path) -> Path | None:
    """The folder of a study's deployable policy that a path means; None where it means a run."""
    if (path / checkpoint.MANIFEST).is_file():
        return path
    if (path / "ledger.db").is_file():
        if not (path / "policy" / checkpoint.MANIFEST).is_file():
            raise CheckpointError(
                f"The study {path} has deployed no policy: it is not complete, or it recommends "
                f"nothing. See `slipstream study status {path.name}`."
            )
        return path / "policy"
    return None


def _moment(text: str | None) -> int | None:
    """UTC seconds of an ISO date or time; without a zone it is UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a date: write 2024-01-31 or 2024-01-31T12:00."
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)
