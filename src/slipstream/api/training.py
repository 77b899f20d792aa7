"""`train` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slipstream.api.envs import Given, named
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
    target: str | Path | Mapping[str, Any] | RunConfig | Given,
    *,
    out: str | Path | None = None,
    overrides: Overrides = (),
    cluster: str | ClusterOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    track: str | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] | None = None,
    **training: Any,
) -> Run:
    """Trains a new run to its end and writes its report.

    Args:
        target: a YAML file, a kernel's name, a ``.py`` kernel file, ``gym:ID``, a mapping of
            sections or a config; or an environment object of any library, a function that makes
            one, or a list of functions, see `slipstream.register`.
        out: run directory, ``runs/<env>-<date>-<time>`` unless given.
        overrides: ``{"agent.learning_rate": 1e-3}`` or ``["agent.learning_rate=1e-3"]``.
        cluster: as for `tune`: its workers train the members, to the same bits.
        callbacks: called with every event; `ConsoleCallback` shows progress, and is what listens
            in a notebook, at a prompt and on a terminal unless others are given.
        report: write `report.html` at the end.
        track: ``wandb`` sends config, curves, report and policies to Weights & Biases, too.
        overwrite: remove the run that lies at `out`, as soon as everything else is known to fit.
        say: told in sentences what was chosen or passed over; standard error unless given.
        **training: fields of the `training` section: num_envs, members, total_timesteps, seed, ...

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
    callbacks, say = _listening(callbacks, say)
    check_tracker(track)
    target = named(target)
    config, seat = resolve(target, changes).with_opponent()
    path = free_path(config, out, overwrite)  # refused before anything takes time
    environment = resolve_environment(config.env_name, config.env_settings)
    learner = check_learner(config.training, environment.spec.is_image)
    config.agent.check_spaces(environment.spec)
    environment = environment.with_stepping(config.training.stepping)
    config, fallback = resolve_backend(config, environment)
    config, choice = resolve_num_envs(config, environment)
    environment, measured = apply_autotune(config, environment)
    check_memory(config, environment)
    check_curriculum(config.curriculum, environment, config.env_settings)
    environment.check(config.env_settings, say or print_to_stderr)
    sentences = (
        *(seat, config.note, config.preset_note, fallback, choice, measured),
        ignored_keys(target),
    )
    said = [one for one in sentences if one]
    notes = [*environment.notes, *run_warnings(config, environment), *said]
    facts: dict[str, Any] = {
        "environment": environment.metadata,
        "notes": notes,
        "learner": learner,
    }
    facts |= {"say": say} if say else {}
    run = Run.create(config, path, overwrite=overwrite, **facts)
    for sentence in said:
        run.notify(sentence)
    begin = partial(trainer.train, run.config, cluster=resolve_cluster(cluster))
    return _finish(run, environment, begin, callbacks, report, track)


def resume(
    path: str | Path | Run,
    *,
    device: str | None = None,
    num_envs: int | None = None,
    cluster: str | ClusterOptions | None = None,
    callbacks: Sequence[Callback] | None = None,
    report: bool = True,
    trust: bool = False,
) -> Run:
    """Goes on with a run that was stopped or killed, to the same weights as if it had not been.

    A run that is complete is left as it is, but that its report is written where a kill kept it
    from that. Gymnasium environments that are not deterministic begin
    fresh episodes, which is said and recorded; so is going on on another device.

    Args:
        path: a run.
        device: cpu or cuda:N; where it was trained last unless given.
        num_envs: copies per member from now on, as until now unless given. Another number makes
            another training from there on, which is said and recorded: copies that are there
            already go on, and a replay begins empty.
        cluster, callbacks: as for `train`.
        report: write `report.html` at the end.
        trust: as for `evaluate`.
    """
    callbacks, say = _listening(callbacks, None)
    if isinstance(path, Run):
        run = path
    else:
        run = Run.open(path, trust=trust, **({"say": say} if say else {}))
    if run.result is not None:
        return _complete(run) if report else run
    environment = resolve_environment(run.config.env_name, run.config.env_settings)
    facts = run.provenance
    before, now = facts.get("environment"), environment.metadata
    if before is not None and before != now:
        changed = ", ".join(changed_keys(before, now))
        run.notify(
            f"Since {run.path} began, its environment changed ({changed}); results may differ."
        )
    own = ("torch",) if facts.get("learner") == "torch" else ()
    other = reproducibility_warning(facts, str(run.path), ("slipstream", "numba", "numpy", *own))
    if other:
        run.notify(other)
        run.record(notes=list(dict.fromkeys([*facts.get("notes", []), other])))
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
    """Trains to the end, alone in the directory, and reports."""
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
    callbacks: Sequence[Callback] | None, say: Callable[[str], None] | None
) -> tuple[Sequence[Callback], Callable[[str], None] | None]:
    """Who listens and who is told in sentences: a notebook's cell, unless others are named."""
    if callbacks is not None:
        return callbacks, say
    here = default_callback()
    if isinstance(here, NotebookCallback):
        say = say or here.say
    return ([] if here is None else [here]), say


def _complete(run: Run) -> Run:
    """Writes what a run lacks that was killed after its result was written."""
    if run.mark_reported:
        return run
    run.notify(f"{run.path} is complete, but its report is missing: it is written now.")
    run.lock()
    try:
        run.logbook.mark_complete()
    finally:
        run.close()
    return _report(run)


def _report(run: Run) -> Run:
    from slipstream.report.run_page import report_run

    try:
        # The same look at the test split as the score that training printed.
        run.notify(f"Report: {report_run(run, count=False, log=run.notify)}")
    except KeyboardInterrupt:
        raise Interrupted(run.path, how=_UNREPORTED) from None
    return run


_AT_ONCE = "Stopped at once: what came after the last checkpoint is done again. Resume with:"

_UNREPORTED = "Training is complete, its report is not. Write it with:"
