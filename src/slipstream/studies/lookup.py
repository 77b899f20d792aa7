"""Looks up a run or a study by what people call it, and says or ends what a process does there."""

from __future__ import annotations

from pathlib import Path

from slipstream.core.errors import CheckpointError
from slipstream.core.printable import printable
from slipstream.core.reader import is_there
from slipstream.files import register
from slipstream.files.interruption import ask_to_stop
from slipstream.files.lines import run_lines, stamp
from slipstream.files.lock import is_locked
from slipstream.files.status import Status, read_status
from slipstream.studies.record.folder import StudyFolder


def status(name: str | Path) -> Status | None:
    """What a run or a study last said of itself; None before its first word.

    Args:
        name: a run's directory, or a study's name or folder.
    """
    return read_status(lookup(name)[0])


def stop(name: str | Path) -> bool:
    """Asks whoever works on a run or study to end after the iteration under way, as Ctrl-C does.

    Returns:
        Whether a process works on it; otherwise nothing is asked.
    """
    folder, _ = lookup(name)
    if not at_work(folder):
        return False
    ask_to_stop(folder)
    return True


def lookup(name: str | Path) -> tuple[Path, StudyFolder | None]:
    """The folder that a name means, and the study where it is one.

    Raises:
        CheckpointError: it is neither a run nor a study.
    """
    path = Path(name).expanduser().absolute()
    if is_there(path / "config.yaml"):
        return path, None
    study = StudyFolder.of(str(name))
    if not study.exists and not is_there(study.config):
        raise CheckpointError(
            f"{name} is neither a run nor a study: give the directory that `slipstream train` "
            "printed, or the name that `slipstream tune` was given."
        )
    study = StudyFolder.open(str(name))
    return study.path, study


def at_work(folder: Path) -> bool:
    """Whether a process works there, as far as can be seen from here."""
    found = read_status(folder)
    if found is None:  # just begun
        return is_locked(folder)
    return found.judged() in ("running", "silent")


def lines(name: str | Path) -> list[str]:
    """Where a run or a study stands, for people."""
    folder, study = lookup(name)
    if study is not None:
        from slipstream.studies.status import status_lines

        return status_lines(study)
    return run_lines(folder)


def made(kind: str) -> tuple[list[tuple[str, ...]], int]:
    """Runs or studies that this user's commands made, from the register, the newest first.

    Args:
        kind: ``run`` or ``study``.

    Returns:
        Of each: name, environment, state, progress, since when, folder; how many more are not
        where they were.
    """
    rows, entries = list[tuple[str, ...]](), register.entries(kind)
    there = [one for one in entries if one.present]
    for one in there:
        path = Path(one.path)
        try:
            found = read_status(path)
        except CheckpointError:
            found = None
        state = "unknown" if found is None else found.judged()
        progress = "" if found is None else f"{found.done:,} of {found.of:,} {found.unit}"
        row = (path.name, one.name, state, progress, stamp(one.began), one.path)
        rows.append(tuple(map(printable, row)))
    return rows, len(entries) - len(there)
