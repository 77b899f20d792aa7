"""`tune`, `resume_study` and `report_study`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.api.envs import EnvSource, registered_target
from slipstream.training.callbacks.console import default_callback
from slipstream.training.cluster.cluster import ClusterOptions, resolve_cluster
from slipstream.training.settings.config import Overrides, parse_overrides

if TYPE_CHECKING:
    from slipstream.studies.record.folder import StudyFolder


def tune(
    target: str | Path | Mapping[str, Any] | EnvSource,
    *,
    study_name: str | None = None,
    overrides: Overrides = (),
    study: Mapping[str, Any] | None = None,
    from_study: str | Path | None = None,
    storage: str | None = None,
    workers: int | None = None,
    cluster: str | ClusterOptions | None = None,
    group_size: int | None = None,
    hours: float | None = None,
    time_budget: str | float | None = None,
    force_deploy: bool = False,
    report: bool = True,
    log: Callable[[str], None] | None = None,
    on_progress: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Search hyperparameters, confirm the best trials and evaluate the winner on the hold-out.

    An existing study of that name is resumed.

    Args:
        target: as for `train`; a file's section `study` is read.
        study_name: folder below ``studies/``, or a path; None: environment and time.
        overrides: as for `train`; ``study.fold_dispersion_penalty=0`` sets a field of the study.
        study: fields of the `study` section: n_trials, seed, ...
        from_study: study whose finished trials warm-start the sampler, by name or folder.
        storage: storage of the Optuna study; None: SQLite in the study's folder.
        workers: number of processes; None: one per core. It does not change results.
        cluster: Ray cluster ``auto``, ``local`` or ``HOST:PORT``, or `ClusterOptions`. Its workers
            do all the training. It does not change results.
        group_size: trials that train together as one population; None: measured. It does not change
            results.
        hours: time limit; the search ends early enough to leave the confirmation its share.
        time_budget: duration such as ``24h``, or hours. A study that is forecast to take longer
            is not started; the error names settings that fit.
        force_deploy: deploy the best candidate even if none is recommended.
        report: write `study.html` at the end.
        log: called with messages; None: standard error.
        on_progress: called with the study's progress; None: a progress line in a notebook, at a
            prompt and on a terminal.

    Returns:
        The study: `study.outcome`, `study.path`, and `load_policy(study)` if a policy was deployed.

    Raises:
        SlipstreamError: the config, data or resources cannot be used.
        Interrupted: a signal stopped the study; it can be resumed.
    """
    from slipstream.studies import start
    from slipstream.studies.study import Resources, parse_hours

    with _shown(on_progress) as shown:
        return start.tune(
            registered_target(target),
            study_name,
            parse_overrides(overrides),
            {**(study or {}), **({} if from_study is None else {"from_study": str(from_study)})},
            Resources(
                *(storage, workers, group_size, hours, force_deploy, resolve_cluster(cluster)),
                time_limit=parse_hours(time_budget),
            ),
            log,
            shown,
            report_study if report else None,
        )


def resume_study(
    name: str | os.PathLike[str],
    *,
    storage: str | None = None,
    workers: int | None = None,
    cluster: str | ClusterOptions | None = None,
    group_size: int | None = None,
    hours: float | None = None,
    force_deploy: bool = False,
    trust: bool = False,
    report: bool = True,
    log: Callable[[str], None] | None = None,
    on_progress: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Resume a study that was stopped or killed; arguments as for `tune`.

    A complete study is not changed, except that a missing report is written. `trust` is as for
    `evaluate`.
    """
    from slipstream.studies import start
    from slipstream.studies.study import Resources

    with _shown(on_progress) as shown:
        return start.resume(
            os.fspath(name),
            Resources(storage, workers, group_size, hours, force_deploy, resolve_cluster(cluster)),
            trust,
            log,
            shown,
            report_study if report else None,
        )


def report_study(
    name: str | os.PathLike[str],
    log: Callable[[str], None] | None = None,
    *,
    trust: bool = False,
) -> Path:
    """Write `study.html` from a study's folder; `trust` is as for `evaluate`.

    Args:
        name: study name or folder.
        log: called with the headline and its qualifications.

    Returns:
        Path of `study.html`.
    """
    from slipstream.studies.record.folder import StudyFolder

    folder = (
        name if isinstance(name, StudyFolder) else StudyFolder.open(os.fspath(name), trust=trust)
    )
    from slipstream.report.study.study_page import (
        write_study_page,  # imports Matplotlib
    )

    return write_study_page(folder, log)


@contextmanager
def _shown(show: Callable[[Any], None] | None) -> Iterator[Callable[[Any], None] | None]:
    """Yield the given progress callback, else the default one of a notebook or terminal."""
    default = None if show is not None else default_callback()
    if default is None:
        yield show
        return
    with closing(default):
        yield default.show
