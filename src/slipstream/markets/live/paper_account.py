"""Paper account: a deployed policy on bars as they come; whatever is kept can be computed again.

The account is the kernel: its state is a function of the bars and the policy. At the start all bars
are replayed from the frozen first row (nothing is trimmed, so that features with an endless memory
are exact), and the policy must decide as the journal says. Bars that come later continue that
replay, whose state is only in memory; where they cannot, all bars are replayed again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slipstream.core.errors import CheckpointError, ConfigError, DataError, SlipstreamError
from slipstream.core.storage.atomic_io import make_folder, take_lock
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import Bars
from slipstream.markets.features.indicators import StreamHistoryError
from slipstream.markets.live.bar_store import Moment, Shape, Store
from slipstream.markets.live.drift import FeedComparison, Outside, TrainingPrices
from slipstream.markets.live.feed import Told
from slipstream.markets.live.journal import Decision, Journal
from slipstream.markets.live.price_replay import LONGEST_GAP, Kept, Pass, PriceReplay
from slipstream.training.runs.policies import DeployedPolicy

BARS, JOURNAL = "bars", "journal.db"
ROOM = 4_096  # bars that a replay is continued by before all are replayed again
_MARGIN = 8  # bars


class Wanted(NamedTuple):
    """What the rules want a broker to hold after a bar.

    Attributes:
        time: the bar's open, UTC seconds.
        units: by symbol.
        prices: last closes, by symbol.
        worth: equity by the rules, account currency.
        outside: as for `Pass`.
    """

    time: int
    units: Mapping[str, float]
    prices: Mapping[str, float]
    worth: float
    outside: Outside


class PaperAccount:
    """A paper account in a folder of its own; one process at a time works on it.

    Args:
        folder: ``bars/`` and ``journal.db`` are in it.
        policy: who decides.
        shape: of the bars.
        start: first moment decided on; the caller freezes it.
        longest_gap: missing bars after which it stands still.
        say: told what a user should know.

    Attributes:
        waiting: why there is no first decision yet.

    Raises:
        CheckpointError: what is kept is not what comes of the bars that are kept.
    """

    def __init__(
        self,
        folder: Path,
        policy: DeployedPolicy,
        shape: Shape,
        start: int | None,
        *,
        longest_gap: int = LONGEST_GAP,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder, self.policy, self.shape, self.start = folder, policy, shape, start
        self._longest_gap, self._say = longest_gap, say
        make_folder(folder)
        refusal = f"Another process works on the account {folder}: stop it first."
        self.waiting = self._compared = ""
        facts = policy.metadata.get("training_prices") or {}
        self._training_prices = {k: TrainingPrices.from_facts(one) for k, one in facts.items()}
        ends = (int(one.time[-1]) for one in self._training_prices.values() if len(one.time))
        self._trained_until = max(ends, default=-1)
        self._comparison: FeedComparison | None = None
        self._checked: Sequence[Bars] = ()  # of the feed, as it told them last
        self._replay: PriceReplay | None = None
        with ExitStack() as opened:
            opened.enter_context(take_lock(folder, refusal))
            self.store = Store(folder / BARS, shape)
            opened.callback(self.store.close)
            self.journal = Journal(folder / JOURNAL)
            opened.callback(self.journal.close)
            opened.callback(self._forget)
            self._rows = {name: self.journal.rows(name) for name in self.journal.names()}
            self._outside = Outside()
            self._replay_everything()
            self._opened = opened.pop_all()

    @property
    def decided(self) -> int:
        """Open of the last bar that was decided on; -1 before the first."""
        return max((rows[-1].time for rows in self._rows.values()), default=-1)

    @property
    def equity(self) -> dict[str, float]:
        """Of every pass at the last close, account currency."""
        return {name: rows[-1].equity for name, rows in self._rows.items()}

    @property
    def count(self) -> int:
        """Decisions of all passes so far."""
        return sum(map(len, self._rows.values()))

    @property
    def wanted(self) -> Wanted | None:
        """What a broker should hold now; None where nothing can be said of the newest bar.

        Raises:
            ConfigError: every pass is an account of its own, and a broker has one.
        """
        if len(self._rows) > 1:
            raise ConfigError(
                f"{len(self._rows)} passes are accounts of their own, and a broker has one: deploy "
                "a portfolio's policy, or one of a single symbol."
            )
        for rows in self._rows.values():
            last = rows[-1]
            if len(last.wanted) == len(self.shape.symbols):
                units = dict(zip(self.shape.symbols, last.wanted, strict=True))
                closes = self.store.closes()
                return Wanted(last.time, units, closes, last.equity, self._outside)
        return None

    def _replay_everything(self) -> None:
        """Decides on all kept bars anew; refuses a journal that says something else."""
        if not self._rows:
            return
        anew = self._replayed(None)
        made = {one.name: self._decisions(one, 0, 0.0) for one in anew}
        self._outside = _outside(anew)
        for name, rows in self._rows.items():
            for row, own in zip_longest(rows, made.get(name, [])[: len(rows)]):
                if own is None or own.time != row.time:
                    what = "there is no such bar now"
                elif own.bars != row.bars:
                    what = "bars up to it have changed"
                elif own.action != row.action:
                    what = f"the action was {row.action} and is {own.action}"
                elif own.equity != row.equity:
                    what = f"equity was {row.equity!r} and is {own.equity!r}"
                else:
                    continue
                raise CheckpointError(
                    f"The account {self.folder} cannot go on: decided anew, {name} differs at "
                    f"{stamp(row.time)} UTC from what the journal says: {what}. Bars or policy "
                    "were changed behind its back: bring back the files of before, or deploy "
                    "again, which begins a new account."
                )
        if any(len(one.time) != len(self._rows.get(one.name, ())) for one in anew):
            self._forget()  # a kill came between a bar and its decision, which `take` makes

    def take(self, told: Told) -> int:
        """Keeps what a feed tells and decides on it; the number of new decisions.

        Raises:
            DataError: a bar was revised, or too many are missing.
        """
        if told.bars is not self._checked:
            for sentence in self.store.refuse_revised(told.bars, self.decided):
                self._remark(told.clock, sentence)
            self._checked = told.bars
        new = [one for one in told.moments if one.time > self.decided]
        before = self.decided
        for moment in new:
            self._refuse_gap(before, moment.time, told.clock)
            before = moment.time
        self._refuse_silence(before, told.clock)
        if not new:
            return 0
        self.store.refuse_other_units(new)
        if not self._rows or new[0].time <= self._trained_until:
            self._compare(new)
        self.store.append(new)
        made = self._continued(new)
        if made is None:
            try:
                made = self._replayed(
                    {
                        name: np.array(
                            [row.action for row in rows], self.policy.policy.actions.dtype
                        )
                        for name, rows in self._rows.items()
                    }
                )
            except DataError as error:
                if self._rows:
                    raise
                if not self.waiting:
                    self._say(f"Nothing is decided yet: {error}")
                self.waiting = str(error)  # too few bars for a first decision
                return 0
        return self._keep(made, told.clock) if made else 0

    def _replayed(self, kept: Kept | None) -> list[Pass]:
        """Replay all bars with known decisions, and store the replay for later bars."""
        self._forget()
        self._replay = PriceReplay(self.policy, self.store.market(), self.start, kept, ROOM)
        return self._replay.passes

    def _continued(self, new: Sequence[Moment]) -> list[Pass] | None:
        """Return decisions on new bars behind the replay in memory; None if it cannot go on."""
        if self._replay is None:
            return None
        told, every = {name for one in new for name in one.bars}, self.shape.symbols
        one_each = self.policy.policy.training_context["symbols_at_once"] == 1
        traded = [name for name in every if name in told] if one_each else every
        if not traded:
            return []
        rows = self._replay.memory + len(new) + _MARGIN
        try:
            made = self._replay.advance(self.store.newest(traded, rows))
        except (SlipstreamError, StreamHistoryError):  # a replay of all bars names what is wrong
            made = None
        if made is None:
            self._forget()
        return made

    def _forget(self) -> None:
        if self._replay is not None:
            self._replay.close()
        self._replay = None

    def _compare(self, new: Sequence[Moment]) -> None:
        """Compare all bars so far with the training prices.

        Raises:
            DataError: they contradict each other.
        """
        if self._comparison is None:
            self._comparison = FeedComparison(self._training_prices)
            for name in self.shape.symbols:
                self._comparison.add(name, *self.store.closes_of(name))
        place = self.shape.columns.index("close")
        for name in self.shape.symbols:
            rows = [(one.time, one.bars[name][place]) for one in new if name in one.bars]
            time, close = np.reshape(rows, (len(rows), 2)).T
            self._comparison.add(name, time.astype(np.int64), close)
        told = self._comparison.sentence()
        if "training_prices" not in self.policy.metadata:
            told = "This deployment has no training prices to compare the feed with: deploy again."
        if told != self._compared and not self._rows:
            self._compared = told
            self._say(told)

    def _keep(self, made: Sequence[Pass], clock: float) -> int:
        """Journals what is new, after a look at whether the rest came out as before."""
        new: list[Decision] = []
        self._outside = _outside(made)
        self._warn(max(int(one.time[-1]) for one in made), clock)
        for one in made:
            rows = self._rows.get(one.name, [])
            count = len(rows) - one.before
            odd = not 0 <= count <= len(one.time)
            if odd or (count and float(one.equity[count - 1]) != rows[-1].equity):
                raise CheckpointError(
                    f"The account {self.folder} cannot go on: equity of {one.name} at "
                    f"{stamp(rows[-1].time)} UTC is no longer {rows[-1].equity!r}. Later bars "
                    "changed earlier ones: a fault of slipstream's, please report it."
                )
            new += self._decisions(one, count, clock)
        if new:
            self.journal.add(new)
        for decision in new:
            self._rows.setdefault(decision.name, []).append(decision)
        return len(new)

    def _warn(self, time: int, clock: float) -> None:
        """Remark that a feature lies outside its range in training, once a day and feature."""
        if self._outside.share > 0.0:
            at, feature = f"At the bar of {stamp(time)}", self._outside.feature.replace("[", "[[]")
            same = f"At the bar of {stamp(time).partition(' ')[0]}* UTC {feature} lies outside*"
            self._remark(clock, f"{at} UTC {self._outside}.", same)

    def _decisions(self, one: Pass, begin: int, clock: float) -> list[Decision]:
        """Rows of the journal of a pass from a place on, decided at that moment of the clock."""
        rows = zip(one.time[begin:], one.action[begin:], one.equity[begin:], strict=True)
        made = [
            Decision(one.name, int(t), self._digest(int(t)), tuple(a.tolist()), (), float(e), clock)
            for t, a, e in rows
        ]
        return [*made[:-1], *(last._replace(wanted=one.wanted) for last in made[-1:])]

    def _digest(self, time: int) -> str:
        place = bisect_right(self.store.times, time) - 1
        return self.store.digests[place] if place >= 0 else ""

    def _refuse_gap(self, before: int, now: int, clock: float) -> None:
        begun = self.start is not None and self.start < now
        missing = self.shape.missing(before, now) if before >= 0 and (self._rows or begun) else 0
        if missing:
            hole = f"{plural(missing, 'bar')} missing after {stamp(before)} UTC"
            self._remark(clock, f"{hole}.")
            if missing > self._longest_gap:
                raise DataError(
                    f"{hole}, more than --longest-gap {self._longest_gap}: nothing is decided on "
                    "bars behind such a hole. Fill it in the feed, or, where the market was shut, "
                    f"go on with --longest-gap {missing}."
                )

    def _refuse_silence(self, last: int, clock: float) -> None:
        missing = self.shape.missing(last, int(clock) - self.shape.bar_seconds) if self._rows else 0
        if missing > self._longest_gap:
            raise DataError(
                f"The feed has told no bar since {stamp(last)} UTC, {plural(missing, 'bar')} by "
                f"the calendar, more than --longest-gap {self._longest_gap}: see whether its "
                "source still runs, and begin again."
            )

    def _remark(self, clock: float, sentence: str, same: str | None = None) -> None:
        if self.journal.remark(clock, sentence, same):
            self._say(sentence)

    def close(self) -> None:
        """Closes files and lets go of the folder."""
        self._opened.close()


def _outside(passes: Sequence[Pass]) -> Outside:
    """Of the passes that go on to the newest bar."""
    newest = max(int(one.time[-1]) for one in passes)
    return max(one.outside for one in passes if int(one.time[-1]) == newest)
