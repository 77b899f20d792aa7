"""The loop over foreign copies that backends `serial` and `process` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from slipstream.vector.foreign_copy import ForeignCopy
from slipstream.vector.process.layout import AT

PULSES: list[Any] = []
"""Words for copies that are made in this process: a parent that watches it for hangs reads them."""


def step_each(
    stepping: Iterable[tuple[ForeignCopy, Any]],
    actions: NDArray[Any],
    rewards: Any,
    hand: Any,
    t: int,
    store: Callable[[ForeignCopy, Any], None],
    ended: Callable[[ForeignCopy, bool, bool], None],
) -> None:
    """Takes one action of each copy and counts it: the loop that vector layers are measured by.

    What an environment raises is raised from here; the copy at hand is `hand[AT]`, and a call with
    the same iterator goes on with the next one. `BEAT` does not rise between copies: who watches
    for hangs looks at both words, and an iterator that gives one copy twice must let it rise.

    Args:
        stepping: copies with their actions, as environments take them.
        actions: [E, K], the same as agents know them; rows are copies' numbers.
        rewards: takes each copy's reward under its number.
        hand: `hand[AT]` is set to the number of the copy at hand.
        t: the step's number, for messages.
        store: writes an observation that does not fit `ForeignCopy.place`, or raises.
        ended: told of a copy whose episode is over, terminated and truncated.
    """
    for copy, action in stepping:
        number = hand[AT] = copy.number
        came = copy.take(action)
        if not isinstance(came, tuple) or len(came) != 5:
            raise copy.no_step(came)
        seen, paid, terminated, truncated, copy.info = came
        if (
            type(paid) is not float
            or type(terminated) is not bool
            or type(truncated) is not bool
            or paid - paid != 0.0
        ):
            last = actions[number].tolist()
            paid, terminated, truncated = copy.checked(paid, terminated, truncated, last, t)
        place = copy.place
        if place is None:
            store(copy, seen)
        else:
            try:
                place[:] = seen
            except (TypeError, ValueError, BufferError):
                store(copy, seen)
        rewards[number] = paid
        copy.ret += paid
        copy.length = length = copy.length + 1
        if terminated or truncated or length >= copy.most:
            ended(copy, terminated, truncated or length >= copy.most)


def gone_astray(copy: ForeignCopy, terminated: bool, truncated: bool) -> None:
    """Takes the place of `ended` while actions are taken again: the episode went on before.

    Raises:
        KernelError: always.
    """
    raise copy.failure("step", "the end of an episode that had none here before")
