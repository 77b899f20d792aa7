"""`train` and `resume`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.api.envs import EnvSource, registered_target
from slipstream.core.storage.provenance import changed_keys, reproducibility_warning
from slipstream.core.storage.signals import Interrupted
from slipstream.core.text import print_to_stderr
from slipstream.training import trainer
from slipstream.training.backend import apply_autotune, resolve_backend
from slipstream.training.callbacks.console import NotebookCallback, default_callback
from slipstream.training.callbacks.events import Callback
from slipstream.training.cluster.cluster import ClusterOptions, resolve_cluster
from slipstream.training.environments.curriculum import check_curriculum
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.factory import (
    resolve_environment,
)
from slipstream.training.runs.run import Run, free_path
from slipstream.training.runs.wandb_tracker import check_tracker, start_tracking
from slipstream.training.settings.config import (
    Overrides,
    RunConfig,
    ignored_keys,
    parse_overrides,
    resolve,
)
from slipstream.training.settings.sizing import (
    check_learner,
    check_memory,
    resolve_num_envs,
    run_warnings,
)


def train(
    target: str | Path | Mapping[str, Any] | RunConfig | EnvSource,
    *,
    out: str | Path | None = None,
    overrides: Overrides = (),
    cluster: str | ClusterOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    track: str | None = None,
    overwrite: bool = False,
    log: Callable[[str], None] | None = None,
    **training: Any,
) -> Run:
    """Train a new run and write its report.

    Args:
        target: a YAML file, a kernel name, a ``.py`` kernel file, ``gym:ID``, a mapping of
            sections, or a config. Also an environment object of any library, a factory, or a list
            of factories; see `slipstream.register`.
        out: run directory; None: ``runs/<env>-<date>-<time>``.
        overrides: ``{"agent.learning_rate": 1e-3}`` or ``["agent.learning_rate=1e-3"]``.
        cluster: as for `tune`; its workers train the members with bit-identical results.
        callbacks: called with every event. By default a `ConsoleCallback` shows progress in a
            notebook, at a prompt and on a terminal.
        report: write `report.html` at the end.
        track: ``wandb`` logs config, curves, report and policies to Weights & Biases.
        overwrite: remove an existing run at `out` once the new one is validated.
        log: called with messages on choices and ignored keys; None: standard error.
        **training: fields of the `training` section: num_envs, members, total_timesteps, seed, ...

    Returns:
        The run: `run.scores`, `run.best_member`, `run.metrics()`, `run.path`. Functions that take a
        path accept it.

    Raises:
        SlipstreamError: the config, environment or resources cannot be used.
        Interrupted: a signal stopped the training; the run can be resumed.
    """
    changes = {
        **parse_overrides(overrides),
        **{f"training.{name}": v for name, v in training.items()},
    }
    callbacks, log = _listening(callbacks, log)
    check_tracker(track)
    target = registered_target(target)
    config, opponent_note = resolve(target, changes).with_opponent()
    path = free_path(config, out, overwrite)  # fails before expensive work
    environment = resolve_environment(config.env_name, config.env_settings)
    learner = check_learner(config.training, environment.spec.is_image)
    config.agent.check_spaces(environment.spec)
    environment = environment.with_stepping(config.training.stepping)
    config, fallback = resolve_backend(config, environment)
    config, choice = resolve_num_envs(config, environment)
    environment, measured = apply_autotune(config, environment)
    check_memory(config, environment)
    check_curriculum(config.curriculum, environment, config.env_settings)
    environment.check(config.env_settings, log or print_to_stderr)
    sentences = (
        *(opponent_note, config.note, config.preset_note, fallback, choice, measured),
        ignored_keys(target),
    )
    messages = [sentence for sentence in sentences if sentence]
    notes = [*environment.notes, *run_warnings(config, environment), *messages]
    metadata: dict[str, Any] = {"environment": environment.metadata, "notes": notes}
    metadata |= {"learner": learner, **({"log": log} if log else {})}
    run = Run.create(config, path, overwrite=overwrite, **metadata)
    for message in messages:
        run.notify(message)
    begin = partial(trainer.train, run.config, cluster=resolve_cluster(cluster))
    return _finish(run, environment, begin, callbacks, report, track)


def resume(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    num_envs: int | None = None,
    cluster: str | ClusterOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    trust: bool = False,
) -> Run:
    """Resume a run that was stopped or killed.

    The final weights are bit-identical to those of an uninterrupted run. A complete run is not
    changed, except that a missing report is written. Non-deterministic Gymnasium environments start
    fresh episodes; that, and a change of the device, is logged and recorded.

    Args:
        path: run or run directory.
        device: cpu or cuda:N; None: the last device of the run.
        num_envs: sub-environments per member from now on; None: unchanged. Another number changes
            the training from there on, which is logged and recorded: existing sub-environments
            continue, and a replay buffer starts empty.
        cluster, callbacks: as for `train`.
        report: write `report.html` at the end.
        trust: as for `evaluate`.
    """
    callbacks, log = _listening(callbacks, None)
    if isinstance(path, Run):
        run = path
    else:
        run = Run.open(path, trust=trust, **({"log": log} if log else {}))
    if run.result is not None:
        return _complete(run) if report else run
    environment = resolve_environment(run.config.env_name, run.config.env_settings)
    recorded = run.provenance
    before, now = recorded.get("environment"), environment.metadata
    if before is not None and before != now:
        changed = ", ".join(changed_keys(before, now))
        run.notify(
            f"The environment changed since {run.path} started ({changed}). Results may differ."
        )
    torch = ("torch",) if recorded.get("learner") == "torch" else ()
    notice = reproducibility_warning(
        recorded, str(run.path), ("slipstream", "numba", "numpy", *torch)
    )
    if notice:
        run.notify(notice)
        run.record(notes=list(dict.fromkeys([*recorded.get("notes", []), notice])))
    config = run.resume_config(device, num_envs)
    environment, measured = apply_autotune(config, environment)
    if measured:
        run.notify(measured)
    check_learner(config.training, environment.spec.is_image)
    begin = partial(
        trainer.resume, device=device, num_envs=num_envs, cluster=resolve_cluster(cluster)
    )
    return _finish(run, environment, begin, callbacks, report)


def _finish(
    run: Run,
    environment: Environment,
    begin: Callable[..., Any],
    callbacks: Sequence[Callback],
    report: bool,
    track: str | None = None,
) -> Run:
    """Train to the end with the directory locked, and write the report."""
    run.lock()
    with start_tracking(run, track) as trackers:
        try:
            begin(run, [*callbacks, *trackers], environment=environment)
        except BaseException as error:
            run.discard_if_unused()
            if isinstance(error, KeyboardInterrupt) and run.path.exists():
                raise Interrupted(run.path, how=_AT_ONCE) from None
            raise
        finally:
            run.close()
        return _report(run) if report else run


def _listening(
    callbacks: Sequence[Callback] | None, log: Callable[[str], None] | None
) -> tuple[Sequence[Callback], Callable[[str], None] | None]:
    """Return the callbacks and the log function; by default those of a notebook or terminal."""
    if callbacks is not None:
        return callbacks, log
    progress_callback = default_callback()
    if isinstance(progress_callback, NotebookCallback):
        log = log or progress_callback.log
    return ([] if progress_callback is None else [progress_callback]), log


def _complete(run: Run) -> Run:
    """Write the report that a killed run lacks although its training is complete."""
    if run.mark_reported:
        return run
    run.notify(f"{run.path} is complete, but its report is missing. It is written now.")
    run.lock()
    try:
        run.logbook.mark_complete()
    finally:
        run.close()
    return _report(run)


def _report(run: Run) -> Run:
    from slipstream.report.run_page import report_run

    try:
        # Training already counted this access to the test split.
        run.notify(f"Report: {report_run(run, count=False, log=run.notify)}")
    except KeyboardInterrupt:
        raise Interrupted(run.path, how=_UNREPORTED) from None
    return run


_AT_ONCE = "Stopped immediately; work after the last checkpoint is repeated. Resume with:"

_UNREPORTED = "Training is complete, but its report is not. Write it with:"
