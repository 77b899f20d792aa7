"""`slipstream study work`: waits for a study, checks this machine, lends its cores, and leaves."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.studies.machines.desk import GuestDesk, Posted
from slipstream.studies.machines.entry import Entry, Premises
from slipstream.studies.machines.lender import Lender
from slipstream.studies.record.storage import shown, storage_url
from slipstream.training import provenance
from slipstream.training.interruption import Interrupted, Interruption

_POLL_SECONDS = 1.0


def lend(
    study: str,
    storage: str,
    workers: int,
    data_dir: str | None,
    env: str | None,
    wait_minutes: float,
    say: Callable[[str], None],
) -> int:
    """See `slipstream.work_on_study`."""
    url = storage_url(storage, Path())
    if not url.startswith("postgresql"):
        raise ConfigError(
            f"--storage {shown(storage)}: machines meet in a PostgreSQL database, the one that "
            "`slipstream tune` was given: postgresql://USER:PASSWORD@HOST/DATABASE."
        )
    command = f"slipstream study work {study} --storage {shown(storage)}"
    done = 0
    premises: Premises | None = None
    before: Entry | None = None
    with (
        Interruption() as asked,
        tempfile.TemporaryDirectory(prefix="slipstream-work-") as folder,
    ):
        began = False
        while True:
            posted = _await(url, study, wait_minutes, began, asked, say)
            if posted is None:
                if asked.requested:
                    raise Interrupted(Path(study), command)
                break
            began = True
            entry = Entry.read(posted.facts)
            same = replace(entry, host="", process=0)  # whoever runs it now
            if premises is None or same != before:
                premises, before = Premises(entry, data_dir, env), same
                if entry.processor != provenance.processor():
                    say(
                        f"Note: this machine's processor is {provenance.processor()}, that of "
                        f"{entry.host} {entry.processor}: last bits of results may differ."
                    )
            lender = Lender(
                url,
                study,
                posted.session,
                premises,
                workers,
                Path(folder),
                60 * wait_minutes,
                say,
            )
            lent = "a worker" if workers == 1 else f"{workers} workers"
            say(f"Lending {lent} to the study {study} of {entry.host}.")
            last = lender.run(lambda: asked.requested)
            done += lender.done
            if asked.requested:
                raise Interrupted(Path(study), command)
            if last is None:
                break
    say(f"The study {study} has ended; this machine reached {done:,} milestones of members.")
    return done


def _await(
    url: str,
    study: str,
    minutes: float,
    began: bool,
    asked: Interruption,
    say: Callable[[str], None],
) -> Posted | None:
    """A study that somebody runs; None where it has ended, or a signal came."""
    deadline, told, known = time.monotonic() + 60 * minutes, False, ""
    desk: GuestDesk | None = None
    try:
        while not asked.requested:
            try:
                if desk is None:
                    desk = GuestDesk(url, study)
                    desk.make_tables()
                posted = desk.posted()
                names = desk.studies()
            except ResourceError:
                if not told:  # a wrong address is said at once
                    raise
                if desk is not None:
                    desk.close()
                desk = None
            else:
                if posted is not None and posted.alive:
                    return posted
                if posted is None and began:
                    return None
                known = f"studies there: {', '.join(names)}" if names else "there is no study there"
                state = "is not run by anybody now" if posted else f"has not begun ({known})"
                if not told:
                    told = True
                    say(f"The study {study} {state}; waiting for it up to {minutes:g} minutes.")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"No process has run the study {study} in {shown(url)} for {minutes:g} "
                    f"minutes; {known}. Start it with `slipstream tune ... --study-name {study} "
                    "--storage ...` on one machine, then this command again."
                )
            time.sleep(min(_POLL_SECONDS, 60 * minutes))
        return None
    finally:
        if desk is not None:
            with suppress(ResourceError):
                desk.close()
