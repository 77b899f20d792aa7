"""`tune`, `resume_study` and `report_study`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.api.envs import Given, named
from slipstream.training.callbacks.console import default_callback
from slipstream.training.cluster.cluster import ClusterOptions, resolve_cluster
from slipstream.training.settings.config import Overrides, parse_overrides

if TYPE_CHECKING:
    from slipstream.studies.record.folder import StudyFolder


def tune(
    target: str | Path | Mapping[str, Any] | Given,
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
    say: Callable[[str], None] | None = None,
    show: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Searches for settings, confirms the best trials and evaluates the winner on the hold-out.

    A study of that name goes on where it stopped.

    Args:
        target: as for `train`; the section `study` of a file is read.
        study_name: folder below ``studies/``; by the environment and the time unless given. A
            path is taken as it is.
        overrides: as for `train`; ``study.fold_dispersion_penalty=0`` sets a field of the study.
        study: fields of the `study` section: n_trials, seed, ...
        from_study: name or folder of a study whose finished trials tell the sampler.
        storage: where Optuna's study is kept; SQLite in the study's folder unless given.
        workers: processes; one per core unless given. Changes no result.
        cluster: Ray's: ``auto``, ``local`` or ``HOST:PORT``, or `ClusterOptions`; its workers do
            everything, to the same bits. Changes no result.
        group_size: members of a population; measured unless given. Changes no result.
        hours: ends by then: cuts the search and keeps the confirmation's share.
        fit: a time such as ``24h``, or hours: where these settings are forecast to take longer,
            nothing is begun, and the error says which would fit.
        force_deploy: deploy the best candidate even when nothing is recommended.
        report: write `study.html` at the end.
        say: told in sentences; standard error unless given.
        show: told where the study stands, often; a line of progress is shown in a notebook, at a
            prompt and on a terminal unless given.

    Returns:
        The study's folder: `.result`, `.path`, `.policy`.

    Raises:
        SlipstreamError: with one paragraph that says what to do.
        Interrupted: a signal stopped it; the study can be resumed.
    """
    from slipstream.studies import start
    from slipstream.studies.study import Resources, parse_hours

    with _shown(show) as shown:
        return start.tune(
            named(target),
            study_name,
            parse_overrides(overrides),
            {**(study or {}), **({} if from_study is None else {"from_study": str(from_study)})},
            Resources(
                *(storage, workers, group_size, hours, force_deploy, resolve_cluster(cluster)),
                time_limit=parse_hours(time_budget),
            ),
            say,
            shown,
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
    trust: bool = False,
    report: bool = True,
    say: Callable[[str], None] | None = None,
    show: Callable[[Any], None] | None = None,
) -> StudyFolder:
    """Goes on with a study that was stopped or killed; arguments as for `tune`.

    A study that is complete is left as it is, but that its page is written where a kill kept it
    from that. `trust` is as for `evaluate`.
    """
    from slipstream.studies import start
    from slipstream.studies.study import Resources

    with _shown(show) as shown:
        return start.resume(
            str(name),
            Resources(storage, workers, group_size, hours, force_deploy, resolve_cluster(cluster)),
            trust,
            say,
            shown,
            report_study if report else None,
        )


def report_study(
    name: str | Path | StudyFolder,
    say: Callable[[str], None] | None = None,
    *,
    trust: bool = False,
) -> Path:
    """Writes `study.html` from a study's folder; `trust` is as for `evaluate`.

    Args:
        name: of the study, or its folder.
        say: told the headline and what qualifies it.

    Returns:
        Its path.
    """
    from slipstream.studies.record.folder import StudyFolder

    folder = name if isinstance(name, StudyFolder) else StudyFolder.open(str(name), trust=trust)
    from slipstream.report.study.study_page import (
        write_study_page,  # Matplotlib: only where it is needed
    )

    return write_study_page(folder, say)


@contextmanager
def _shown(show: Callable[[Any], None] | None) -> Iterator[Callable[[Any], None] | None]:
    """What is told where the study stands: what was given, else a console where somebody looks."""
    here = None if show is not None else default_callback()
    if here is None:
        yield show
        return
    with closing(here):
        yield here.show
