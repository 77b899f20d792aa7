"""Paper account: a deployed policy on bars as they come; whatever is kept can be computed again.

The account is the kernel: its state is a function of the bars and the policy. Whenever bars have
come, all of them are replayed from the frozen first row (nothing is trimmed, so that features with
an endless memory are exact), with the decisions of the journal, and the policy decides on what is
new. At the start it decides on everything anew, and must decide as it did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.environments.environment import Environment, PriceWindow
from slipstream.environments.episodes import Seen
from slipstream.environments.evaluation import decide
from slipstream.environments.factory import carried_settings, chosen_environment
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.files.files import make_folder
from slipstream.files.lock import take_lock
from slipstream.live.feed import Told
from slipstream.live.journal import Decision, Journal
from slipstream.live.ranges import Outside, Ranges
from slipstream.live.store import Shape, Store
from slipstream.market.calendar import DAY
from slipstream.market.finding import plural, stamp
from slipstream.market.market import Market
from slipstream.runs.policies import DeployedPolicy, check_fit
from slipstream.vector.kernel.copies import KernelVectorEnv
from slipstream.vector.kernel.retake import Retaking

BARS, JOURNAL = "bars", "journal.db"
LONGEST_GAP = 12  # bars; a longer hole ends a portfolio's pass

Kept = Mapping[str, NDArray[Any]]
"""Actions [n, K] that were decided before, by pass."""


class Pass(NamedTuple):
    """One pass over the bars so far.

    Attributes:
        name: a symbol, or all that a portfolio holds.
        time: int64 [n], opens of the bars decided on.
        action: [n, K].
        equity: float64 [n], account currency, at those bars' closes.
        wanted: units after the next fill, of the last decision.
        outside: of the features at the last bar the one that lies furthest outside its range in
            training.
    """

    name: str
    time: NDArray[np.int64]
    action: NDArray[Any]
    equity: NDArray[np.float64]
    wanted: tuple[float, ...]
    outside: Outside


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


def passes_over(
    policy: DeployedPolicy, market: Market, start: int | None, kept: Kept | None = None
) -> list[Pass]:
    """Replays a market in memory, whose last bar nobody decides on, and decides on the rest.

    Args:
        policy: who decides.
        market: the bars, and a flat one ahead of them.
        start: first moment decided on, UTC seconds; the first usable bar unless given.
        kept: what was decided before; everything is decided anew unless given.

    Raises:
        DataError: too few bars to decide on any.
    """
    config, carried = policy.config, carried_settings(policy.facts)
    window = PriceWindow(start=start, carried=carried, market=market)
    environment = chosen_environment(config.env_name, config.env_settings, window)
    assert isinstance(environment, KernelEnvironment)
    check_fit(policy.policy, environment)
    going_on = {"sells_at_end": False, "early_end": 0}  # the last bar is no end
    records = tuple(
        record._replace(**{key: going_on[key] for key in going_on if key in record._fields})
        for record in environment.records("window")
    )
    environment = environment.with_records("window", records)
    names, known = _names(environment), kept or {}
    env = environment.evaluation("window", len(names), backend=config.training.chosen_backend)
    assert isinstance(env, KernelVectorEnv)
    with closing(env):
        taken = [known.get(name, _nothing(env)) for name in names]
        actions, traces, newest = _followed(env, policy, taken)
    capital = environment.spec.market.initial_equity if environment.spec.market else 0.0
    times, ranges = environment.loaded.data.time, Ranges.of(policy.facts)
    found = []
    for name, action, trace, obs in zip(names, actions, traces, newest, strict=True):
        equity = np.append(capital, trace["equity"][:-1])
        units = np.atleast_1d(trace["units"][-1]) if "units" in trace else ()
        wanted = tuple(float(one) for one in units)
        outside = Outside() if ranges is None else ranges.outside(policy, obs)
        found.append(Pass(name, times[trace["bar"] - 1], action, equity, wanted, outside))
    return found


def _nothing(env: KernelVectorEnv) -> NDArray[Any]:
    return np.zeros((0, env.spec.action_width), env.spec.action_dtype)


def _followed(
    env: KernelVectorEnv, policy: DeployedPolicy, taken: Sequence[NDArray[Any]]
) -> tuple[list[NDArray[Any]], list[dict[str, NDArray[Any]]], NDArray[Any]]:
    """Takes each copy through what was decided before, then decides until its pass ends.

    Args:
        env: P copies, one a pass, that hold where it ends.
        policy: who decides.
        taken: [P] of actions [n, K].

    Returns:
        Of each pass all actions and the trace; [P, *shape], what was seen last before a decision.
    """
    settings, names, every = policy.config.evaluation, env.spec.trace, np.arange(env.num_envs)
    again = Retaking(env)
    out, seed = again.out, settings.seed if settings.drawn else None
    env.begin(every, every, settings.seed, out.obs, out.mask)
    past = [again.run(e, actions, names) for e, actions in enumerate(taken)]
    steps = np.array([len(one["bar"]) for one in past])
    newest, begun = out.obs.copy(), steps.copy()
    made = list[NDArray[Any]]()
    traces = {name: list[NDArray[Any]]() for name in names}
    while (running := env.book["held"] == 0).any():
        newest[running] = out.obs[running]
        made.append(decide(policy.policy, Seen(out.obs, out.mask, every, steps), seed).copy())
        env.step(made[-1], out)
        steps += running
        for name, values in env.read(names).items():
            traces[name].append(values)

    def whole(e: int, before: NDArray[Any], after: list[NDArray[Any]]) -> NDArray[Any]:
        own = [rows[e : e + 1] for rows in after[: steps[e] - begun[e]]]
        return np.concatenate([before[: begun[e]], *own])

    return (
        [whole(e, taken[e], made) for e in range(env.num_envs)],
        [
            {name: whole(e, past[e][name], traces[name]) for name in names}
            for e in range(env.num_envs)
        ],
        newest,
    )


def _names(environment: Environment) -> list[str]:
    names = environment.episode_names("window") or []
    if len(set(names)) < len(names):
        raise DataError(
            f"The bars make {len(names)} passes of {names[0]}: a hole in all assets of more than "
            f"{LONGEST_GAP} bars ends a pass, and an account is one pass. Fill the hole in the "
            "feed, or deploy again, which begins a new account behind it."
        )
    return names


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
        self.waiting = ""
        with ExitStack() as opened:
            opened.enter_context(take_lock(folder, refusal))
            self.store = Store(folder / BARS, shape)
            opened.callback(self.store.close)
            self.journal = Journal(folder / JOURNAL)
            opened.callback(self.journal.close)
            self._rows = {name: self.journal.rows(name) for name in self.journal.names()}
            self._outside, self._warned = Outside(), set[tuple[str, int]]()
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
        anew = passes_over(self.policy, self.store.market(True), self.start)
        made = {one.name: one for one in anew}
        self._outside = max(one.outside for one in anew)
        for name, rows in self._rows.items():
            own = made.get(name)
            for k, row in enumerate(rows):
                known = own is not None and k < len(own.time)
                what = None
                if not known or own is None or int(own.time[k]) != row.time:
                    what = "there is no such bar now"
                elif self._digest(row.time) != row.bars:
                    what = "bars up to it have changed"
                elif tuple(own.action[k].tolist()) != row.action:
                    what = f"the action was {row.action} and is {tuple(own.action[k].tolist())}"
                elif float(own.equity[k]) != row.equity:
                    what = f"equity was {row.equity!r} and is {float(own.equity[k])!r}"
                if what is not None:
                    raise CheckpointError(
                        f"The account {self.folder} cannot go on: decided anew, {name} differs at "
                        f"{stamp(row.time)} UTC from what the journal says: {what}. Bars or policy "
                        "were changed behind its back: bring back the files of before, or deploy "
                        "again, which begins a new account."
                    )

    def take(self, told: Told) -> int:
        """Keeps what a feed tells and decides on it; the number of new decisions.

        Raises:
            DataError: a bar was revised, or too many are missing.
        """
        if told.bars:
            for sentence in self.store.refuse_revised(told.bars, self.decided):
                self._remark(told.clock, sentence)
        new = [one for one in told.moments if one.time > self.decided]
        before = self.decided
        for moment in new:
            self._refuse_gap(before, moment.time, told.clock)
            before = moment.time
        self._refuse_silence(before, told.clock)
        if not new:
            return 0
        self.store.append(new)
        kept = {
            name: np.array([row.action for row in rows], self.policy.policy.actions.dtype)
            for name, rows in self._rows.items()
        }
        try:
            made = passes_over(self.policy, self.store.market(True), self.start, kept)
        except DataError as error:
            if self._rows:
                raise
            self.waiting = str(error)  # too few bars for a first decision
            return 0
        return self._keep(made, told.clock)

    def _keep(self, made: Sequence[Pass], clock: float) -> int:
        """Journals what is new, after a look at whether the rest came out as before."""
        new: list[Decision] = []
        self._outside = max(one.outside for one in made)
        self._warn(max(int(one.time[-1]) for one in made), clock)
        for one in made:
            rows = self._rows.get(one.name, [])
            count = len(rows)
            if count and (len(one.time) < count or float(one.equity[count - 1]) != rows[-1].equity):
                raise CheckpointError(
                    f"The account {self.folder} cannot go on: equity of {one.name} at "
                    f"{stamp(rows[-1].time)} UTC is no longer {rows[-1].equity!r}. Later bars "
                    "changed earlier ones: a fault of slipstream's, please report it."
                )
            for k in range(count, len(one.time)):
                time, last = int(one.time[k]), k == len(one.time) - 1
                new.append(
                    Decision(
                        one.name,
                        time,
                        self._digest(time),
                        tuple(one.action[k].tolist()),
                        one.wanted if last else (),
                        float(one.equity[k]),
                        float(clock),
                    )
                )
        if new:
            self.journal.add(new)
        for decision in new:
            self._rows.setdefault(decision.name, []).append(decision)
        return len(new)

    def _warn(self, time: int, clock: float) -> None:
        """Remarks that a feature lies outside its range in training, once a day."""
        known = (self._outside.feature, time // DAY)
        if self._outside.share > 0.0 and known not in self._warned:
            self._warned.add(known)
            self._remark(clock, f"At the bar of {stamp(time)} UTC {self._outside}.")

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

    def _remark(self, clock: float, sentence: str) -> None:
        if self.journal.remark(clock, sentence):
            self._say(sentence)

    def close(self) -> None:
        """Closes files and lets go of the folder."""
        self._opened.close()
