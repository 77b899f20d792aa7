"""Proof of a zone: what the openings and closings of the forex week say about naive stamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from slipstream.market.clean import bar_length, kind_of
from slipstream.market.config import DataConfig
from slipstream.market.edges import ZONES, Edges, Fit, alike, edges_of, fit, fits, likelier, pooled
from slipstream.market.finding import plural
from slipstream.market.remedy import Remedy
from slipstream.market.stamps import MISSING, Readings
from slipstream.market.table import RawTable
from slipstream.market.zone import clock

# Weekends by which another zone must be worse, and by which the proven one may be wrong.
FEWEST = 2
SLOPPY = 0.02  # a vendor's mistakes: one weekend of a year
# Share of weekends whose first bar must open with the market before stamps are said to mark closes:
# a last tick at 17:00 sharp does not make them.
EXACT = 0.2


class Proof(NamedTuple):
    """What is known about the zone of some files.

    Attributes:
        zone: the proven one, else None.
        time_is: what the stamps then mark.
        words: how it is proven, or why not.
        contenders: where none is proven, zones to name as examples: the likeliest that no file
            contradicts; None where the files say nothing about any.
    """

    zone: str | None
    time_is: str
    words: str
    contenders: tuple[str, ...] | None = None

    @property
    def remedy(self) -> Remedy | None:
        """What to write; None where nothing is proven."""
        if self.zone is None:
            return None
        if self.time_is == "open":
            return {"time_zone": self.zone}
        return {"time_zone": self.zone, "time_is": self.time_is}


def tolerated(edges: Edges) -> int:
    """Weekends with bars outside that a right zone may have."""
    return int(SLOPPY * len(edges))


def prove(tables: Sequence[RawTable], config: DataConfig) -> Proof:
    """Finds the zone of files of one source from all their weekends together."""
    forex = [table for table in tables if kind_of(table.symbol, config) == "fx"]
    if not forex:
        return Proof(None, "open", "a market that never closes does not show it")
    each = [edges_of(table, bar_length(table.readings.seconds)) for table in forex]
    proof = _judged(pooled(each), forex, config)
    if proof.zone is not None or not len(pooled(each)):
        return proof
    likely = (one.zone for one in fits(pooled(each), config.time_is))
    named = proof.contenders or (forex[0].dialect.zone_hint, *likely)
    allowed = tuple(
        zone
        for zone in named
        if all(fit(one, zone, config.time_is).outside <= tolerated(one) for one in each)
    )
    return proof._replace(contenders=allowed if proof.contenders else allowed[:1])


def _judged(edges: Edges, tables: Sequence[RawTable], config: DataConfig) -> Proof:
    if len(edges) < FEWEST:
        return Proof(None, "open", f"{plural(len(edges), 'weekend')} cannot show it")
    found = fits(edges, config.time_is)
    if found[0].outside > tolerated(edges) or 10 * found[0].lacking > len(edges):
        # Or stamps of the bars' other end: then they must be told from a missing first bar.
        found += fits(edges, "open" if config.time_is == "close" else "close")
        found.sort(key=likelier)
        if found[0].time_is != config.time_is and found[0].exact < EXACT:
            return Proof(None, "open", f"{plural(len(edges), 'weekend')} fit no known zone well")
    best = found[0]
    hints = [table.dialect.zone_hint for table in tables]
    weekends = plural(len(edges), "weekend")
    if len(tables) > 1:
        weekends += f" of {len(tables)} files"
    if best.outside > tolerated(edges):
        return Proof(None, "open", f"the openings and closings of {weekends} fit no known zone")
    rivals = [one for one in found[1:] if not beaten(one, best, edges)]
    names = alike(edges, best)
    zone = next((hint for hint in hints if hint in names), names[0])
    if rivals:
        contenders = tuple(dict.fromkeys([zone, *(one.zone for one in rivals)]))
        listed = " and ".join(contenders)
        return Proof(None, best.time_is, f"{weekends} fit {listed} equally well", contenders)
    same = [name for name in names if name != zone]
    words = f"the openings and closings of {weekends} fit {zone} and no other known zone"
    if same:
        words = (
            f"the openings and closings of {weekends} fit {zone}, which over these bars means the "
            f"same as {' and '.join(same)}, and no other known zone"
        )
    if best.time_is == "close":
        words += ", if stamps mark the closes of bars"
    return Proof(zone, best.time_is, words)


def beaten(one: Fit, best: Fit, edges: Edges) -> bool:
    """Whether `one` is so much worse than `best` that chance or a vendor cannot explain it.

    A week under other clocks has a bar outside at one end and lacks one at the other: two marks.
    Bars that a right zone may have outside leave none.
    """
    outside, lacking = one.outside - best.outside, one.lacking - best.lacking
    if outside >= 1 and outside + lacking >= FEWEST + tolerated(edges):
        return True
    if outside == lacking == 0:
        return one.holidays - best.holidays >= FEWEST
    # Equally possible, but an hour would have to be missing at most weekends.
    return outside >= 0 and lacking >= max(FEWEST, len(edges) // 2)


def among_others(table: RawTable, config: DataConfig) -> Proof:
    """The zone of naive stamps among others, from their own weekends or from where they go on."""
    naive = table.readings.naive
    part = replace(
        table,
        readings=Readings(table.readings.seconds[naive], naive[naive], "naive"),
        columns={name: column[naive] for name, column in table.columns.items()},
    )
    own = prove([part], config)
    return own if own.zone is not None else _continued(table)


def _continued(table: RawTable) -> Proof:
    """The zone in which naive stamps go on where the others leave off."""
    seconds, naive = table.readings.seconds, table.readings.naive
    known = seconds != MISSING
    seconds, naive = seconds[known], naive[known]
    seam = np.flatnonzero(naive[1:] != naive[:-1])
    size = bar_length(seconds)
    counts = {}
    for zone in ZONES:
        moments = seconds.copy()
        moments[naive] = clock(zone, seconds[naive]).utc(seconds[naive])[0]
        counts[zone] = int((np.abs(moments[seam + 1] - moments[seam]) == size).sum())
    best = max(counts, key=counts.__getitem__)
    ties = tuple(zone for zone in ZONES if counts[zone] == counts[best])
    if 2 * counts[best] <= len(seam):
        return Proof(None, "open", "under no known zone would they go on where those leave off")
    moved = {clock(zone, seconds[naive]).utc(seconds[naive])[0].tobytes() for zone in ties}
    if len(moved) > 1:
        return Proof(None, "open", f"{' and '.join(ties)} fit equally well", ties)
    return Proof(best, "open", f"under {best} they go on where those leave off")
