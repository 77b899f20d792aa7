"""Refreshing a contact: its points from the bodies' present poses, impulses carried over."""

from __future__ import annotations

from typing import Any

from slipstream.envs.hockey.physics.boxes import boxes_overlap, end_contact, is_sensor, wake
from slipstream.envs.hockey.physics.distance import sensor_overlaps
from slipstream.envs.hockey.physics.facts import MOVING
from slipstream.envs.hockey.physics.manifolds import evaluate
from slipstream.envs.hockey.physics.pairs import body_a, body_b


def update(s: Any, d: Any, k: int) -> bool:
    """True where the pair begins to touch.

    A point that was there before, by its feature, keeps the impulses that it ended with.
    """
    s.enabled[k] = True
    was = s.touching[k]
    if is_sensor(k):
        s.touching[k] = sensor_overlaps(s, d, body_a(k))
        return s.touching[k] and not was
    old = s.points[k]
    first, second = s.feature[k, 0], s.feature[k, 1]
    along0, across0 = s.impulse[k, 0, 0], s.impulse[k, 0, 1]
    along1, across1 = s.impulse[k, 1, 0], s.impulse[k, 1, 1]
    evaluate(s, d, k)
    for i in range(s.points[k]):
        along = 0.0
        across = 0.0
        if old > 0 and s.feature[k, i] == first:
            along = along0
            across = across0
        elif old > 1 and s.feature[k, i] == second:
            along = along1
            across = across1
        s.impulse[k, i, 0] = along
        s.impulse[k, i, 1] = across
    touching = s.points[k] > 0
    if touching != was:
        wake(s, body_a(k))
        wake(s, body_b(k))
    s.touching[k] = touching
    return touching and not was


def is_active(s: Any, a: int, b: int) -> bool:
    """Whether one of the bodies moves and is awake."""
    return s.awake[b] or (a < MOVING and s.awake[a])


def drop_or_update(s: Any, d: Any, place: int) -> int:
    """Looks at the contact at a place of the list.

    Returns:
        -1 where it was taken off, 1 where it begins to touch, 0 otherwise.
    """
    k = s.order[place]
    a = body_a(k)
    b = body_b(k)
    if not is_active(s, a, b):
        return 0
    if not boxes_overlap(s, a, b):
        end_contact(s, d, place)
        return -1
    return 1 if update(s, d, k) else 0
