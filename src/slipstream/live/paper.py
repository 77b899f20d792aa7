"""Paper: a deployment's account led by a feed, and beside it what `evaluate` makes of its bars."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.reader import read_json
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.files.files import make_folder, write_sealed
from slipstream.live.account import BARS, JOURNAL, LONGEST_GAP, PaperAccount
from slipstream.live.deployment import Deployment
from slipstream.live.feed import PriceFeed
from slipstream.live.journal import Decision, Journal
from slipstream.live.store import Shape
from slipstream.market.finding import stamp

GRACE = 5.0  # seconds
_LOOK_SECONDS = 1.0
ACCOUNT = "account.json"


def paper(
    name: str,
    feed: str,
    *,
    start: int | None = None,
    longest_gap: int = LONGEST_GAP,
    grace: float = GRACE,
    once: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> int:
    """Leads the paper account of a deployment; the number of decisions it came to.

    A replay ends with its bars. A file that grows is watched until somebody interrupts.

    Args:
        name: of the deployment.
        feed: ``replay:DIR`` or ``tail:FILE``.
        start: first moment decided on, UTC seconds, for a new account. Unless given, a replay
            begins with the first bar at which all features are there, a growing file with its
            newest closed bar.
        longest_gap: missing bars after which the account stands still.
        grace: seconds after a bar's end at which it counts as closed.
        once: end when all that has closed is decided on.
        say: told every decision, and what a user should know.
        trust: as for `slipstream evaluate`.

    Raises:
        SlipstreamError: a bar was revised, too many are missing, or bars cannot be read: the
            account stands still, and goes on where the same call finds that mended.
    """
    found = Deployment.open(name)
    policy = found.policy(trust)
    shape = Shape.of(policy.facts["shape"])
    folder = found.account(found.current)
    begun = _begun(found)
    source = PriceFeed(feed, policy.facts["feed"], shape, grace, known=begun is not None)
    if begun is None:
        first = _first(source, start)
        make_folder(folder)
        write_sealed(folder / ACCOUNT, {"start": first, "feed": feed})
    else:
        first = begun["start"]
        if start is not None and start != first:
            raise ConfigError(
                f"The account of {name} began at {_text(first)} and keeps that start: leave out "
                "--from, or deploy again, which begins a new account."
            )
    account = PaperAccount(folder, policy, shape, first, longest_gap=longest_gap, say=say)
    total = 0
    try:
        while True:
            told = source.look(account.decided, first)
            count = account.take(told)
            total += count
            if count:
                worth = ", ".join(f"{key} {value:,.2f}" for key, value in account.equity.items())
                say(f"{_text(account.decided)}  equity {worth}")
            if told.moments:
                continue
            if source.replays or once:
                if not account.equity:
                    raise DataError(account.waiting or "The feed told no bar to decide on.")
                return total
            time.sleep(_LOOK_SECONDS)
    finally:
        account.close()


def _begun(found: Deployment) -> dict[str, Any] | None:
    return read_json(
        found.account(found.current) / ACCOUNT,
        CheckpointError,
        "Deploy again, which begins a new account.",
        shape={"feed": str},
    )


def _first(source: PriceFeed, start: int | None) -> int | None:
    """The first moment to decide on, frozen before anything is decided."""
    if start is not None or source.replays:
        return start
    told = source.look(-1)
    while not told.moments:  # being written this moment
        time.sleep(_LOOK_SECONDS)
        told = source.look(-1)
    return told.moments[-1].time


def _text(second: int | None) -> str:
    return "the first usable bar" if second is None else f"{stamp(second)} UTC"


def kept_bars(found: Deployment) -> tuple[Path, int]:
    """The folder of an account's bars, and the first moment decided on.

    Raises:
        CheckpointError: it has decided on nothing yet.
    """
    folder, first = found.account(found.current), None
    if (folder / JOURNAL).is_file():
        with closing(Journal(folder / JOURNAL)) as journal:
            first = min((journal.rows(name)[0].time for name in journal.names()), default=None)
    if first is None:
        raise CheckpointError(
            f"The account of {found.path.name} has decided on nothing yet: lead it with "
            f"`slipstream paper {found.path.name} --feed replay:DIR`, or tail:FILE."
        )
    return folder / BARS, first


class ComparedPass(NamedTuple):
    """One pass of the account beside `evaluate` on the same bars.

    Attributes:
        name: of the pass.
        rows: the journal's.
        equal: decisions, of those that both have, with equal action and equity; `both` of them.
        first: where they differ first, None where they do not.
        closed: equity of `evaluate` after it has sold out at the last close, account currency.
    """

    name: str
    rows: list[Decision]
    equal: int
    both: int
    first: int | None
    closed: float


def compared(name: str, trust: bool = False) -> list[ComparedPass]:
    """The journal beside `slipstream evaluate NAME`, which reads the kept files as any others."""
    found = Deployment.open(name)
    policy = found.policy(trust)
    folder, start = kept_bars(found)
    environment = policy.environment(folder, None, start)
    assert isinstance(environment, KernelEnvironment)
    opens = environment.loaded.data.time
    made = []
    journal = Journal(found.account(found.current) / JOURNAL)
    for track in policy.evaluate(environment)["window"][0]:
        rows = journal.rows(track.name)
        theirs = {int(opens[bar - 1]): k for k, bar in enumerate(track.trace["bar"])}
        equity = track.trace["equity"]
        both, equal, first = 0, 0, None
        for row in rows:
            k = theirs.get(row.time)
            if k is None:  # the last one: `evaluate` has no bar behind it
                continue
            both += 1
            same = tuple(track.actions[k].tolist()) == row.action
            same &= k == 0 or float(equity[k - 1]) == row.equity
            equal += same
            first = row.time if first is None and not same else first
        made.append(ComparedPass(track.name, rows, equal, both, first, float(equity[-1])))
    journal.close()
    return made
