"""What measurements say: the knee, the ceiling, what fits, and which way is fastest."""

from __future__ import annotations

import time
from typing import NamedTuple

from slipstream.core.capacity import free_memory
from slipstream.training.autotune.cells import Cell, LearnSpeed, StepSpeed, busy_sentence
from slipstream.training.autotune.tuner import Findings
from slipstream.training.environments.machine_file import FastestWays, Way
from slipstream.training.settings.sizing import kept_bytes

GOOD_ENOUGH = 0.9  # of the best: the fewest copies that reach it are the knee
_BETTER = 1.05  # times as fast must worker processes or threads be to be preferred
_IDLE = 0.5  # share of waiting that is worth a sentence
_MEMORY_SHARE = 0.8  # of what is free
_LABELS = {"env": "environments", "policy": "acting", "update": "the update", "other": "all else"}


class Iteration(NamedTuple):
    """Training with so many copies, each stepped in its fastest way: shares of the time, 0 to 1.

    Attributes:
        cell: that way.
        rate: steps per second.
        shares: of environments, acting, learning and all else, by `LearnSpeed`'s names.
    """

    cell: Cell
    rate: float
    shares: dict[str, float]

    @property
    def most(self) -> float:
        """How many times faster it could be if environments took no time at all (Amdahl 1967)."""
        return 1.0 / max(1.0 - self.shares["env"], 1e-3)


def fastest(found: Findings, copies: int) -> Cell | None:
    """Of the ways in which so many copies were stepped; serial unless another is clearly better."""
    rates = {cell: s.rate for cell, s in found.stepped.items() if cell.copies == copies}
    plain = [cell for cell in rates if cell.workers == 1 and cell.backend != "process"]
    if not rates:
        return None
    best = max(rates, key=lambda cell: rates[cell])
    if plain and rates[best] < _BETTER * rates[plain[0]]:
        return plain[0]
    return best


def iteration(found: Findings, copies: int) -> Iteration | None:
    """Training with so many copies; None where it was not measured.

    A foreign environment's is put together: what acting and learning take without it, and the time
    that its copies were measured to take. A kernel's was trained on.
    """
    if found.environment.kind.compiled:
        trained = {n: one for (c, n), one in found.learned.items() if c == copies}
        if not trained:
            return None
        threads = max(trained, key=lambda n: _rate(trained[n]))
        return _shared(Cell("compiled", copies, threads), trained[threads])
    cell, learned = fastest(found, copies), found.learned.get((copies, 1))
    if cell is None or learned is None:
        return None
    seconds = learned.steps / found.stepped[cell].rate
    return _shared(cell, learned._replace(env=seconds))


def _rate(learned: LearnSpeed) -> float:
    return learned.steps / (learned.env + learned.apart)


def _shared(cell: Cell, learned: LearnSpeed) -> Iteration:
    whole = learned.env + learned.apart
    shares = {name: getattr(learned, name) / whole for name in _LABELS}
    return Iteration(cell, learned.steps / whole, shares)


def iterations(found: Findings) -> dict[int, Iteration]:
    """By copies, ascending."""
    made = {n: iteration(found, n) for n in sorted({cell.copies for cell in found.stepped})}
    return {n: one for n, one in made.items() if one is not None}


def knee(rates: dict[int, float]) -> int:
    """The fewest copies that are nearly fastest: fewer leave more updates to a budget."""
    best = max(rates.values())
    return min(n for n, rate in rates.items() if rate >= GOOD_ENOUGH * best)


def each_copy(found: Findings, cell: Cell) -> float | None:
    """Bytes that one more copy takes, from the fewest that were stepped alike; None for those."""
    alike = [
        (other.copies, one.memory)
        for other, one in found.stepped.items()
        if (other.backend, other.workers) == (cell.backend, cell.workers)
    ]
    copies, memory = min(alike)
    if copies == cell.copies:
        return None
    return max(0.0, (found.stepped[cell].memory - memory) / (cell.copies - copies))


def fitting(found: Findings) -> tuple[int, float, float] | None:
    """(copies that fit the memory that is free, bytes of each, free bytes), experience included."""
    largest = fastest(found, max((cell.copies for cell in found.stepped), default=0))
    own = None if largest is None else each_copy(found, largest)
    if largest is None or own is None:
        return None
    agent, n = found.config.agent, largest.copies
    kept = [kept_bytes(agent, found.environment, 1, k * n) for k in (1, 2)]
    each = max(own + rollout_each(found, n) + (kept[1] - kept[0]) / n, 1.0)
    free = free_memory()
    return int(_MEMORY_SHARE * free / each), each, float(free)


def rollout_each(found: Findings, n: int = 1_024) -> float:
    """Bytes of one more copy's part of a rollout and its update, beside n copies'."""
    agent, spec = found.config.agent, found.environment.spec
    return (agent.bytes(spec, 1, 2 * n) - agent.bytes(spec, 1, n)) / n


def on_card(found: Findings, memory: float) -> int | None:
    """Copies whose experience fits a card of so many bytes: 0.8 memory / bytes of a copy's rollout.

    Copies are stepped by the processor, and a replay stays there. None where nothing of a copy lies
    on the card for longer than a step.
    """
    if found.config.agent.replay(1) is not None:
        return None
    networks = found.config.agent.bytes(found.environment.spec, 1, 1)
    return int(_MEMORY_SHARE * (memory - networks) / max(rollout_each(found), 1.0))


def measured(found: Findings) -> FastestWays:
    """What the machine file keeps: the fastest way of each number of copies."""
    ways = {}
    for copies in sorted({cell.copies for cell in found.stepped}):
        one = iteration(found, copies)
        cell = one.cell if one is not None else fastest(found, copies)
        if cell is not None:
            ways[copies] = Way(cell.backend, cell.workers)
    return FastestWays(time.strftime("%Y-%m-%d"), ways)


def sentences(found: Findings) -> list[str]:
    """What is to be known, in words."""
    trained = iterations(found)
    said = []
    own = trained.get(int(found.config.training.num_envs))
    if own is not None:
        said += [_fastest(found, own), _ceiling(own)]
    if len(trained) > 1:
        said.append(_knee(trained))
    waits = _waiting(found, own)
    busy = busy_sentence(found.others).strip()
    return [*([busy] if busy else []), *said, *waits, *filter(None, [fit_sentence(found)])]


def _fastest(found: Findings, own: Iteration) -> str:
    cell, plain = own.cell, found.stepped.get(Cell("serial", own.cell.copies, 1))
    beside = ""
    if cell.backend == "process" and plain is not None:
        beside = f", {found.stepped[cell].rate / plain.rate:.1f}x `serial`"
    return (
        f"{_copies(cell.copies)} (what num_envs is) step fastest by {_way(cell)}: "
        f"{found.stepped[cell].rate:,.0f} steps/s{beside}; a training makes about "
        f"{own.rate:,.0f} steps/s."
    )


def _ceiling(own: Iteration) -> str:
    rest = {name: share for name, share in own.shares.items() if name != "env"}
    largest = max(rest, key=lambda name: rest[name])
    shown = ", ".join(f"{_LABELS[name]} {share:.0%}" for name, share in own.shares.items())
    return (
        f"Of that training's time: {shown}. More environments, or faster ones, cannot give more "
        f"than {own.most:.1f}x; {_LABELS[largest]} is {rest[largest]:.0%}."
    )


def _knee(trained: dict[int, Iteration]) -> str:
    rates = {n: one.rate for n, one in trained.items()}
    at, best = knee(rates), max(rates, key=lambda n: rates[n])
    return (
        f"The knee: {_copies(at)} are the fewest that train at {GOOD_ENOUGH:.0%} of the fastest "
        f"({rates[at]:,.0f} of {rates[best]:,.0f} steps/s, with {best:,})."
    )


def _waiting(found: Findings, own: Iteration | None) -> list[str]:
    """What long waiting means."""
    stepped: StepSpeed | None = None if own is None else found.stepped.get(own.cell)
    if own is None or stepped is None or stepped.waiting < _IDLE:
        return []
    if own.cell.backend == "compiled":
        return []  # its threads wait for each other where copies are few
    if own.cell.backend == "process":
        return [
            f"Workers wait {stepped.waiting:.0%} of the time: the environment sleeps, or steps are "
            "too short for processes."
        ]
    return [
        f"The process that steps waits {stepped.waiting:.0%} of the time: the environment sleeps "
        "(a simulator, a network), and more workers than cores overlap that."
    ]


def fit_sentence(found: Findings) -> str:
    """How many copies fit into memory; empty where that was not measured."""
    fit = fitting(found)
    if fit is None:
        return ""
    copies, each, free = fit
    return (
        f"About {float(f'{copies:.2g}'):,.0f} copies fit into the {free / 2**30:.1f} GiB of "
        f"memory that are free ({each / 2**10:,.0f} KiB each, with their share of the experience)."
    )


def _copies(n: int) -> str:
    return "1 copy" if n == 1 else f"{n:,} copies"


def _way(cell: Cell) -> str:
    if cell.backend == "serial":
        return "`serial`"
    noun = "workers" if cell.backend == "process" else "threads"
    return f"`{cell.backend}`, {cell.workers} {noun if cell.workers > 1 else noun[:-1]}"
