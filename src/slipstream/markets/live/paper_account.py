"""Paper account: a deployed policy that decides on new bars, reproducible from its stored files.

The account is the kernel: its state is a function of the bars and the policy. At start-up all bars
are replayed from the first row, which is fixed (nothing is trimmed, so features with infinite
memory are exact), and the policy must repeat the decisions of the journal. Later bars continue this
replay, whose state is only in memory. If that is not possible, all bars are replayed again.
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
from slipstream.core.storage.atomic_io import acquire_lock, make_folder
from slipstream.core.text import plural, stamp
from slipstream.markets.data.bars import Bars
from slipstream.markets.features.indicators import StreamHistoryError
from slipstream.markets.live.bar_store import BarGroup, BarSchema, BarStore
from slipstream.markets.live.drift import FeatureDrift, FeedComparison, TrainingPrices
from slipstream.markets.live.feed import FeedUpdate
from slipstream.markets.live.journal import Decision, Journal
from slipstream.markets.live.price_replay import MAX_GAP, KnownActions, PriceReplay, ReplayPass
from slipstream.training.runs.policies import DeployedPolicy

BARS, JOURNAL = "bars", "journal.db"
SPARE_BARS = 4_096  # bars appended to a replay before all bars are replayed again
_MARGIN = 8  # bars


class TargetPosition(NamedTuple):
    """Position that a broker should hold after a bar, according to the trading rules.

    Attributes:
        time: the bar's open, UTC seconds.
        units: by symbol.
        prices: last closes, by symbol.
        rules_equity: equity according to the rules, account currency.
        drift: as in `ReplayPass`.
    """

    time: int
    units: Mapping[str, float]
    prices: Mapping[str, float]
    rules_equity: float
    drift: FeatureDrift


class PaperAccount:
    """Paper account in its own folder, used by one process at a time.

    Args:
        folder: folder that contains ``bars/`` and ``journal.db``.
        policy: the deployed policy.
        schema: symbols and columns of the bars.
        start: first time decided on; the caller stores it.
        max_gap: number of missing bars after which the account stops.
        notify: called with messages for the user.

    Attributes:
        waiting_reason: reason why there is no first decision yet.

    Raises:
        CheckpointError: the stored decisions cannot be reproduced from the stored bars.
    """

    def __init__(
        self,
        folder: Path,
        policy: DeployedPolicy,
        schema: BarSchema,
        start: int | None,
        *,
        max_gap: int = MAX_GAP,
        notify: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.folder, self.policy, self.schema, self.start = folder, policy, schema, start
        self._max_gap, self._notify = max_gap, notify
        make_folder(folder)
        refusal = f"Another process uses the account {folder}. Stop it first."
        self.waiting_reason = self._comparison_summary = ""
        metadata = policy.metadata.get("training_prices") or {}
        self._training_prices = {
            k: TrainingPrices.from_metadata(prices) for k, prices in metadata.items()
        }
        ends = (
            int(prices.time[-1]) for prices in self._training_prices.values() if len(prices.time)
        )
        self._trained_until = max(ends, default=-1)
        self._comparison: FeedComparison | None = None
        self._checked_bars: Sequence[Bars] = ()  # bars of the last feed update
        self._replay: PriceReplay | None = None
        with ExitStack() as opened:
            opened.enter_context(acquire_lock(folder, refusal))
            self.store = BarStore(folder / BARS, schema)
            opened.callback(self.store.close)
            self.journal = Journal(folder / JOURNAL)
            opened.callback(self.journal.close)
            opened.callback(self._drop_replay)
            self._decisions = {
                name: self.journal.decisions(name) for name in self.journal.pass_names()
            }
            self._drift = FeatureDrift()
            self._verify_journal()
            self._resources = opened.pop_all()

    @property
    def last_decided(self) -> int:
        """Open of the last bar that was decided on; -1 before the first decision."""
        return max((rows[-1].time for rows in self._decisions.values()), default=-1)

    @property
    def equity(self) -> dict[str, float]:
        """Equity of each pass at the last close, account currency."""
        return {name: rows[-1].equity for name, rows in self._decisions.items()}

    @property
    def num_decisions(self) -> int:
        """Number of decisions of all passes."""
        return sum(map(len, self._decisions.values()))

    @property
    def target(self) -> TargetPosition | None:
        """Position that a broker should hold now; None if it is unknown for the newest bar.

        Raises:
            ConfigError: there are several passes, each with its own account, and a broker has one.
        """
        if len(self._decisions) > 1:
            raise ConfigError(
                f"{len(self._decisions)} passes are accounts of their own, and a broker has one: "
                "deploy "
                "a portfolio's policy, or one of a single symbol."
            )
        for rows in self._decisions.values():
            last = rows[-1]
            if len(last.target_units) == len(self.schema.symbols):
                units = dict(zip(self.schema.symbols, last.target_units, strict=True))
                closes = self.store.last_closes()
                return TargetPosition(last.time, units, closes, last.equity, self._drift)
        return None

    def _verify_journal(self) -> None:
        """Replay all stored bars and raise if a decision differs from the journal."""
        if not self._decisions:
            return
        passes = self._replay_all(None)
        decisions = {
            replay_pass.name: self._make_decisions(replay_pass, 0, 0.0) for replay_pass in passes
        }
        self._drift = _current_drift(passes)
        for name, rows in self._decisions.items():
            for row, decision in zip_longest(rows, decisions.get(name, [])[: len(rows)]):
                if decision is None or decision.time != row.time:
                    what = "the bar no longer exists"
                elif decision.bars_digest != row.bars_digest:
                    what = "bars up to it have changed"
                elif decision.action != row.action:
                    what = f"the action was {row.action}, now {decision.action}"
                elif decision.equity != row.equity:
                    what = f"equity was {row.equity!r}, now {decision.equity!r}"
                else:
                    continue
                raise CheckpointError(
                    f"The account {self.folder} cannot continue: {name} differs from the journal "
                    "at "
                    f"{stamp(row.time)} UTC: {what}. Bars or policy were modified. Restore the "
                    "previous files, or deploy again, which starts a new account."
                )
        if any(
            len(replay_pass.time) != len(self._decisions.get(replay_pass.name, ()))
            for replay_pass in passes
        ):
            self._drop_replay()  # killed between a bar and its decision: `process` decides

    def process(self, update: FeedUpdate) -> int:
        """Store the bars of a feed update, decide on them, and return the number of new decisions.

        Raises:
            DataError: a bar was revised, or too many are missing.
        """
        if update.bars is not self._checked_bars:
            for sentence in self.store.check_revisions(update.bars, self.last_decided):
                self._notice(update.clock, sentence)
            self._checked_bars = update.bars
        new = [new_group for new_group in update.groups if new_group.time > self.last_decided]
        before = self.last_decided
        for group in new:
            self._check_gap(before, group.time, update.clock)
            before = group.time
        self._check_silence(before, update.clock)
        if not new:
            return 0
        self.store.check_spread_units(new)
        if not self._decisions or new[0].time <= self._trained_until:
            self._compare_with_training(new)
        self.store.append(new)
        passes = self._continue_replay(new)
        if passes is None:
            try:
                passes = self._replay_all(
                    {
                        name: np.array(
                            [row.action for row in rows], self.policy.policy.actions.dtype
                        )
                        for name, rows in self._decisions.items()
                    }
                )
            except DataError as error:
                if self._decisions:
                    raise
                if not self.waiting_reason:
                    self._notify(f"No decision yet: {error}")
                self.waiting_reason = str(error)  # too few bars for the first decision
                return 0
        return self._store_decisions(passes, update.clock) if passes else 0

    def _replay_all(self, known_actions: KnownActions | None) -> list[ReplayPass]:
        """Replay all bars with known decisions, and store the replay for later bars."""
        self._drop_replay()
        self._replay = PriceReplay(
            self.policy, self.store.market(), self.start, known_actions, SPARE_BARS
        )
        return self._replay.passes

    def _continue_replay(self, new: Sequence[BarGroup]) -> list[ReplayPass] | None:
        """Decide on new bars by continuing the replay in memory; None if it cannot continue."""
        if self._replay is None:
            return None
        update, every = {name for group in new for name in group.bars}, self.schema.symbols
        one_each = self.policy.policy.training_context["symbols_at_once"] == 1
        traded = [name for name in every if name in update] if one_each else every
        if not traded:
            return []
        rows = self._replay.memory + len(new) + _MARGIN
        try:
            passes = self._replay.advance(self.store.newest_market(traded, rows))
        except (SlipstreamError, StreamHistoryError):  # a replay of all bars raises the exact error
            passes = None
        if passes is None:
            self._drop_replay()
        return passes

    def _drop_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
        self._replay = None

    def _compare_with_training(self, new: Sequence[BarGroup]) -> None:
        """Compare all bars so far with the training prices.

        Raises:
            DataError: they contradict each other.
        """
        if self._comparison is None:
            self._comparison = FeedComparison(self._training_prices)
            for name in self.schema.symbols:
                self._comparison.add(name, *self.store.close_history(name))
        close_column = self.schema.columns.index("close")
        for name in self.schema.symbols:
            rows = [
                (group.time, group.bars[name][close_column]) for group in new if name in group.bars
            ]
            time, close = np.reshape(rows, (len(rows), 2)).T
            self._comparison.add(name, time.astype(np.int64), close)
        update = self._comparison.summary()
        if "training_prices" not in self.policy.metadata:
            update = (
                "The feed cannot be compared: the deployment has no training prices. Deploy again."
            )
        if update != self._comparison_summary and not self._decisions:
            self._comparison_summary = update
            self._notify(update)

    def _store_decisions(self, passes: Sequence[ReplayPass], clock: float) -> int:
        """Write new decisions to the journal after checking that earlier ones are unchanged."""
        new: list[Decision] = []
        self._drift = _current_drift(passes)
        self._warn_about_drift(max(int(replay_pass.time[-1]) for replay_pass in passes), clock)
        for replay_pass in passes:
            rows = self._decisions.get(replay_pass.name, [])
            count = len(rows) - replay_pass.num_before
            inconsistent = not 0 <= count <= len(replay_pass.time)
            if inconsistent or (count and float(replay_pass.equity[count - 1]) != rows[-1].equity):
                raise CheckpointError(
                    f"The account {self.folder} cannot continue: equity of {replay_pass.name} at "
                    f"{stamp(rows[-1].time)} UTC is no longer {rows[-1].equity!r}. Later bars "
                    "changed earlier ones. This is a bug in slipstream, please report it."
                )
            new += self._make_decisions(replay_pass, count, clock)
        if new:
            self.journal.add_decisions(new)
        for decision in new:
            self._decisions.setdefault(decision.name, []).append(decision)
        return len(new)

    def _warn_about_drift(self, time: int, clock: float) -> None:
        """Warn that a feature is outside its training range, once per day and feature."""
        if self._drift.share > 0.0:
            at, feature = f"At the bar of {stamp(time)}", self._drift.feature.replace("[", "[[]")
            same = f"At the bar of {stamp(time).partition(' ')[0]}* UTC {feature} is outside*"
            self._notice(clock, f"{at} UTC {self._drift}.", same)

    def _make_decisions(self, replay_pass: ReplayPass, begin: int, clock: float) -> list[Decision]:
        """Return the journal rows of a pass from index `begin`, decided at time `clock`."""
        rows = zip(
            replay_pass.time[begin:],
            replay_pass.action[begin:],
            replay_pass.equity[begin:],
            strict=True,
        )
        decisions = [
            Decision(
                replay_pass.name,
                int(t),
                self._digest(int(t)),
                tuple(a.tolist()),
                (),
                float(e),
                clock,
            )
            for t, a, e in rows
        ]
        return [
            *decisions[:-1],
            *(last._replace(target_units=replay_pass.target_units) for last in decisions[-1:]),
        ]

    def _digest(self, time: int) -> str:
        index = bisect_right(self.store.times, time) - 1
        return self.store.digests[index] if index >= 0 else ""

    def _check_gap(self, before: int, now: int, clock: float) -> None:
        has_begun = self.start is not None and self.start < now
        missing = (
            self.schema.count_missing(before, now)
            if before >= 0 and (self._decisions or has_begun)
            else 0
        )
        if missing:
            hole = f"{plural(missing, 'bar')} missing after {stamp(before)} UTC"
            self._notice(clock, f"{hole}.")
            if missing > self._max_gap:
                raise DataError(
                    f"{hole}, more than --max-gap {self._max_gap}. No decisions are made "
                    "after such a gap. Fill it in the feed, or, if the market was closed, continue "
                    f"with --max-gap {missing}."
                )

    def _check_silence(self, last: int, clock: float) -> None:
        missing = (
            self.schema.count_missing(last, int(clock) - self.schema.bar_seconds)
            if self._decisions
            else 0
        )
        if missing > self._max_gap:
            raise DataError(
                f"The feed returned no bar since {stamp(last)} UTC, {plural(missing, 'bar')} by "
                f"the calendar, more than --max-gap {self._max_gap}. Check that its source "
                "is running, then restart."
            )

    def _notice(self, clock: float, sentence: str, same: str | None = None) -> None:
        if self.journal.add_notice(clock, sentence, same):
            self._notify(sentence)

    def close(self) -> None:
        """Close all files and release the folder."""
        self._resources.close()


def _current_drift(passes: Sequence[ReplayPass]) -> FeatureDrift:
    """Return the largest drift of the passes that include the newest bar."""
    newest = max(int(replay_pass.time[-1]) for replay_pass in passes)
    return max(replay_pass.drift for replay_pass in passes if int(replay_pass.time[-1]) == newest)
