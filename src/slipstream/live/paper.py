"""Paper: a deployment's account led by a feed, and beside it what `evaluate` makes of its bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.core.reader import read_json
from slipstream.core.text import printable
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.files.files import make_folder, plain, write_json, write_sealed
from slipstream.files.interruption import Interrupted, Interruption
from slipstream.files.lock import take_lock
from slipstream.files.logbook import Logbook
from slipstream.files.status import DEPLOYMENT, Status
from slipstream.live.account import BARS, JOURNAL, LONGEST_GAP, PaperAccount
from slipstream.live.deployment import ACCOUNTS, Deployment
from slipstream.live.feed import REPLAY, TAIL, PriceFeed
from slipstream.live.journal import Decision, Journal
from slipstream.live.limits import KILL, killed
from slipstream.live.store import Shape
from slipstream.market.finding import stamp
from slipstream.runs.policies import DeployedPolicy, forced_sentences

GRACE = 5.0  # seconds
_LOOK_SECONDS = 1.0
_CURVE, _MOVED = 1_000, 200  # points and changes that are kept for the dashboard
ACCOUNT, RERUN = "account.json", "rerun.json"


def paper(
    name: str | Path,
    feed: str | None = None,
    *,
    start: int | None = None,
    longest_gap: int = LONGEST_GAP,
    grace: float = GRACE,
    once: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
    trust: bool = False,
) -> int:
    """Leads the paper account of a deployment; the number of decisions it came to.

    A replay ends with its bars. A file that grows is watched until somebody interrupts; where
    another version comes into force meanwhile, its own account goes on. `slipstream status`,
    `watch`, `log` and `stop` know the deployment's folder as they know a run's.

    Args:
        name: of the deployment, or its folder.
        feed: ``replay:DIR`` or ``tail:FILE``; the account's own unless given.
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
        Interrupted: somebody asked it to stop; nothing is lost.
    """
    found, total = Deployment.open(name), 0
    handle = printable(str(name))
    refusal = (
        f"Another process leads the account of {handle}: see `slipstream status {handle}`, or stop "
        f"it with `slipstream stop {handle}`."
    )
    log = Logbook(found.path, DEPLOYMENT, say)

    def tell(sentence: str) -> None:
        say(sentence)
        log.say(sentence)

    make_folder(found.path / ACCOUNTS)
    held = take_lock(found.path / ACCOUNTS, refusal)
    with held, Interruption(found.path) as asked, log:
        while True:  # a version after the other
            version, policy, begun = found.current, found.policy(trust), _begun(found)
            feed = (begun or {}).get("feed") if feed is None else feed
            if feed is None:
                raise ConfigError(
                    f"{handle} has no account yet: name its feed, as in `slipstream paper {handle} "
                    "--feed replay:DIR`, or tail:FILE."
                )
            shape = Shape.of(policy.facts["shape"])
            source = PriceFeed(feed, policy.facts["feed"], shape, grace, known=begun is not None)
            folder = found.account(version)
            first = _frozen(folder, begun, feed, source, start, handle)
            opened = PaperAccount(folder, policy, shape, first, longest_gap=longest_gap, say=tell)
            with closing(opened) as account:
                while found.current == version or source.replays:
                    log.show(_status(account, source, policy), at_once=not total)
                    if killed(found.path):
                        raise ConfigError(
                            f"{found.path / KILL} is there: {handle} stands still until the file "
                            f"is removed; then go on with `slipstream paper {handle}`."
                        )
                    told = source.look(account.decided, first)
                    count = account.take(told)
                    total += count
                    if count:
                        texts = (f"{key} {value:,.2f}" for key, value in account.equity.items())
                        tell(f"{_text(account.decided)}  equity {', '.join(texts)}")
                    if asked.requested:
                        how = "Stopped after a bar. Go on with:"
                        raise Interrupted(found.path, f"slipstream paper {handle}", how)
                    if told.moments:
                        continue
                    if source.replays or once:
                        log.show(_status(account, source, policy), at_once=True)
                        if not account.equity:
                            raise DataError(account.waiting or "The feed told no bar to decide on.")
                        return total
                    time.sleep(_LOOK_SECONDS)
            start = None
            tell(f"Version {found.current} is in force now, and its own account goes on.")


def _status(account: PaperAccount, source: PriceFeed, policy: DeployedPolicy) -> Status:
    scores = {f"equity {name}": [worth] * 3 for name, worth in account.equity.items()}
    return Status(
        DEPLOYMENT,
        phase=source.name,
        done=account.count,
        unit="decisions",
        scores=scores,
        notes=forced_sentences(policy.facts),
    )


def _frozen(
    folder: Path,
    begun: Mapping[str, Any] | None,
    feed: str,
    source: PriceFeed,
    start: int | None,
    handle: str,
) -> int | None:
    """The first moment that an account decides on: the one it keeps, else a new one."""
    if begun is None:
        first = _first(source, start)
        make_folder(folder)
        kind, _, place = feed.partition(":")
        if kind in (REPLAY, TAIL):  # whoever goes on with it may be in another folder
            feed = f"{kind}:{Path(place).expanduser().absolute()}"
        write_sealed(folder / ACCOUNT, {"start": first, "feed": feed})
        return first
    kept: int | None = begun["start"]
    if start is not None and start != kept:
        raise ConfigError(
            f"The account of {handle} began at {_text(kept)} and keeps that start: leave out "
            "--from, or deploy again, which begins a new account."
        )
    return kept


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
        curve: open of a bar and equity at its close, as `evaluate` has them, thinned.
        moved: opens at which what is held changed, units before and after, the newest ones.
        fills, costs: of `evaluate` so far; costs in account currency.
        closed: equity of `evaluate` after it has sold out at the last close, account currency.
    """

    name: str
    rows: list[Decision]
    equal: int
    both: int
    first: int | None
    curve: list[tuple[int, float]]
    moved: list[tuple[int, Any, Any]]
    fills: int
    costs: float
    closed: float


def compared(name: str, trust: bool = False) -> list[ComparedPass]:
    """The journal beside `slipstream evaluate NAME`, which reads the kept files as any others.

    What `evaluate` says is kept in the account's folder, for the dashboard.
    """
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
        at, stride = opens[track.trace["bar"]], -(-len(equity) // _CURVE)
        curve = [(int(at[k]), float(equity[k])) for k in range(0, len(equity), stride)]
        units = track.trace["units"].tolist() if "units" in track.trace else []
        moved = [(int(at[k]), units[k - 1], units[k]) for k in range(1, len(units))]
        moved = [one for one in moved if one[1] != one[2]][-_MOVED:]
        costs = sum(float(track.trace[name][-1]) for name in track.trace if "cost_" in name)
        made.append(
            ComparedPass(
                track.name,
                rows,
                equal,
                both,
                first,
                curve,
                moved,
                int(track.trace["fills"][-1]),
                costs,
                float(equity[-1]),
            )
        )
    journal.close()
    kept = [{**one._asdict(), "rows": len(one.rows)} for one in made]
    write_json(found.account(found.current) / RERUN, plain({"at": time.time(), "passes": kept}))
    return made
