"""Who sits where in an episode, and what the learner's seat shows; loops over copies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from slipstream.core.random import stream, word
from slipstream.environments.self_play.brains import uniform_at
from slipstream.machine.draws import OPPONENT

DRAWN, ALTERNATING = 0, 1  # how the learner's seat is found
_OPPONENT = np.uint64(OPPONENT)
_ONE = np.uint64(1)
# Places in the stream of an episode's opponent.
_SEAT = np.uint64(0)
_KIND = 1
_SLOT = 2
_NOISE = np.uint64(3)


class Seats(NamedTuple):
    """What was drawn for the running episode of each copy.

    Attributes:
        seat: int64 [E], the learner's, 0 or 1.
        kind: int64 [E], the opponent's number in its line-up.
        slot: int64 [E], of a snapshot, else 0; serial: int64 [E], its number, else -1.
        noise: uint64 [E], the stream of the opponent's actions.
    """

    seat: Any
    kind: Any
    slot: Any
    serial: Any
    noise: Any


class Draw(NamedTuple):
    """What is drawn from: M members.

    Attributes:
        sides: DRAWN or ALTERNATING.
        shares: float64 [kinds], shares of the line-up, summed up.
        slots: float64 [M, K], shares of each member's snapshots, summed up.
        serial: int64 [M, K], numbers of its snapshots.
        snapshots: which kind they are, -1 for none.
    """

    sides: int
    shares: Any
    slots: Any
    serial: Any
    snapshots: int


def draw_seats(by: Any, rows: Any, book: Any, seats: Any) -> None:
    """Draws seat and opponent of the episode that each of the copies `rows` has just begun.

    Both follow from (seed, index, episode), as the episode's own stream does.

    Args:
        by: Draw; rows: int64 [n]; book: of the copies, [E]; seats: Seats, written.
    """
    copies = len(book) // len(by.slots)
    for e in rows:
        b = book[e]
        episode = b.episode - _ONE
        key = word(stream(b.seed, b.index, episode), _OPPONENT)
        seats.noise[e] = word(key, _NOISE)
        side = b.index + episode if by.sides == ALTERNATING else word(key, _SEAT)
        seats.seat[e] = np.int64(side & _ONE)
        kind = place(by.shares, uniform_at(key, _KIND))
        seats.kind[e], seats.slot[e], seats.serial[e] = kind, 0, -1
        if kind == by.snapshots:
            m = e // copies
            slot = place(by.slots[m], uniform_at(key, _SLOT))
            seats.slot[e], seats.serial[e] = slot, by.serial[m, slot]


def place(shares: Any, u: float) -> int:
    """The first place whose sum of shares passes u; the last one for what rounding left over."""
    for i in range(len(shares) - 1):
        if u < shares[i]:
            return i
    return len(shares) - 1


def show_seat(
    seat: Any, obs: Any, mask: Any, reward: Any, to_obs: Any, to_mask: Any, to_reward: Any
) -> None:
    """Copies what belongs to the learner's seat.

    Args:
        seat: int64 [E]; obs: float32 [E, 2, D]; mask: bool [E, 2, n]; reward: float32 [E, 2].
        to_obs, to_mask, to_reward: the same without the second axis; [0, ...] is left out.
    """
    for e in range(len(to_obs)):
        for j in range(to_obs.shape[1]):
            to_obs[e, j] = obs[e, seat[e], j]
    for e in range(len(to_mask)):
        for j in range(to_mask.shape[1]):
            to_mask[e, j] = mask[e, seat[e], j]
    for e in range(len(to_reward)):
        to_reward[e] = reward[e, seat[e]]


def seat_boxes(seat: Any, actions: Any, joint: Any) -> None:
    """Puts the learner's actions, float32 [E, K], into both seats' [E, 2, K]."""
    for e in range(len(seat)):
        for j in range(actions.shape[1]):
            joint[e, seat[e], j] = actions[e, j]


def seat_choices(seat: Any, actions: Any, joint: Any) -> None:
    """The same for int64."""
    for e in range(len(seat)):
        for j in range(actions.shape[1]):
            joint[e, seat[e], j] = actions[e, j]
