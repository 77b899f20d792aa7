"""Begins a study, or goes on with one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.core.errors import ConfigError
from slipstream.core.printable import printable_lines
from slipstream.files.interruption import Interrupted
from slipstream.files.logbook import Logbook
from slipstream.files.status import Status
from slipstream.settings.target import read_config
from slipstream.studies.machinery import Pools
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.study_file import read_study
from slipstream.studies.setup import prepare
from slipstream.studies.study import Options, Study
from slipstream.training.processes.cluster import ClusterOptions

_UNREPORTED = "The study is complete, its page is not. Write it with:"
Say = Callable[[str], None]
Show = Callable[[Status], None]
Report = Callable[[StudyFolder, Say], Path]


@dataclass(frozen=True)
class Resources:
    """What decides no trial; see `slipstream.tune`."""

    storage: str | None = None
    workers: int | None = None
    group_size: int | None = None
    hours: float | None = None
    force_deploy: bool = False
    cluster: ClusterOptions | None = None

    def __post_init__(self) -> None:
        if self.hours is not None and not self.hours > 0.0:
            raise ConfigError(f"--hours {self.hours:g}: give the hours that the study may take.")
        if self.cluster is not None and self.workers is not None:
            raise ConfigError(
                "--workers counts processes of this machine alone, and with --cluster there are "
                "none: leave it out, or give --max-workers."
            )


def tune(
    target: str | Path | Mapping[str, Any],
    study_name: str | None,
    overrides: Mapping[str, Any],
    study: Mapping[str, Any],
    resources: Resources,
    say: Say | None = None,
    show: Show | None = None,
    report: Report | None = None,
) -> StudyFolder:
    """See `slipstream.tune`."""
    say = say or _to_stderr
    base, config, space = prepare(target, overrides, study, say)
    made_up = f"{base.short_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    name = made_up if study_name is None else study_name
    folder = StudyFolder.of(name)
    folder.trust = True  # what it names was named to this command
    machinery = Pools(resources.workers, resources.group_size, resources.cluster, say)
    options = Options(resources.storage, resources.hours, resources.force_deploy)
    Study(folder, base, config, space, machinery, options, say, show or _nobody).run()
    return _end(folder, report, say)


def _end(folder: StudyFolder, report: Report | None, say: Say) -> StudyFolder:
    """Says what came of it, and where: with a page its headline and warnings."""
    if report is None:
        for sentence in [*(folder.result or {})["sentences"], f"Study: {folder.path}"]:
            say(sentence)
        return folder
    try:
        say(f"Report: {report(folder, say)}")
    except KeyboardInterrupt:
        command = f"slipstream study report {folder.handle}"
        raise Interrupted(folder.path, command, _UNREPORTED) from None
    return folder


def resume(
    name: str,
    resources: Resources,
    trust: bool = False,
    say: Say | None = None,
    show: Show | None = None,
    report: Report | None = None,
) -> StudyFolder:
    """See `slipstream.resume_study`."""
    folder, say = StudyFolder.open(name, trust=trust), say or _to_stderr
    if folder.result is not None and not resources.force_deploy:
        if report is None or folder.reported:
            if not folder.locked:
                Logbook(folder.path, "study", say).enter_end()
            say(f"{folder.path} is complete; see `slipstream study status {name}`.")
            return folder
        say(f"{folder.path} is complete, but its page is missing: it is written now.")
        folder.lock()
        try:
            Logbook(folder.path, "study", say).enter_end()
        finally:
            folder.unlock()
        return _end(folder, report, say)
    read_study(folder.config, trust)  # says what to do where it was damaged
    target = read_config(folder.config)
    return tune(target, str(folder.path), {}, {}, resources, say, show, report)


def _nobody(status: Status) -> None:
    pass


def _to_stderr(message: str) -> None:
    print(printable_lines(message), file=sys.stderr)
