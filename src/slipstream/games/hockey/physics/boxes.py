"""The broad phase: widened boxes, and the list of pairs whose boxes overlap."""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    COUNT,
    EXTENSION,
    LEFT_SENSOR,
    MIDDLE,
    MOVING,
    PAIRS,
    PREDICTED,
    PUCK,
    PUCK_RADIUS,
    RACKET_RADIUS,
    RIGHT_SENSOR,
    body_a,
    body_b,
)
from slipstream.games.hockey.physics.motion import placed, turn, within_fat
from slipstream.jit.float32 import add, cosine, mul, sine, sub


def is_sensor(pair: int) -> bool:
    return pair in (LEFT_SENSOR, RIGHT_SENSOR)


def wake(s: Any, body: int) -> None:
    """A sleeping body begins to move again; nothing happens to others."""
    if body < MOVING and not s.awake[body]:
        s.awake[body] = True
        s.still[body] = 0.0


def box(
    d: Any, body: int, sin: float, cos: float, x: float, y: float
) -> tuple[float, float, float, float]:
    """Left, bottom, right, top of a moving body whose origin is at (x, y)."""
    if body == PUCK:
        r = PUCK_RADIUS
        return sub(x, r), sub(y, r), add(x, r), add(y, r)
    r = RACKET_RADIUS
    left, bottom = placed(d, body, 0, sin, cos, x, y)
    right = left
    top = bottom
    for i in range(1, int(d.table[body, COUNT])):
        px, py = placed(d, body, i, sin, cos, x, y)
        left = min(left, px)
        bottom = min(bottom, py)
        right = max(right, px)
        top = max(top, py)
    return sub(left, r), sub(bottom, r), add(right, r), add(top, r)


def synchronize(s: Any, d: Any, body: int) -> None:
    """Fits the widened box of a body that went from the sweep's begin to its present place."""
    if within_fat(s, body):
        return
    sin0 = 0.0
    cos0 = 1.0
    if body != PUCK:
        sin0 = sine(s.angle0[body])
        cos0 = cosine(s.angle0[body])
    mx, my = turn(sin0, cos0, d.table[body, MIDDLE], d.table[body, MIDDLE + 1])
    x0 = sub(s.center0[body, 0], mx)
    y0 = sub(s.center0[body, 1], my)
    move_box(s, d, body, sin0, cos0, x0, y0)


def move_box(s: Any, d: Any, body: int, sin0: float, cos0: float, x0: float, y0: float) -> None:
    """Widens the box anew where the body, from the given pose to its own, would leave it."""
    sin, cos, x, y = s.sin[body], s.cos[body], s.place[body, 0], s.place[body, 1]
    left, bottom, right, top = box(d, body, sin0, cos0, x0, y0)
    left1, bottom1, right1, top1 = box(d, body, sin, cos, x, y)
    left = min(left, left1)
    bottom = min(bottom, bottom1)
    right = max(right, right1)
    top = max(top, top1)
    inside = s.fat[body, 0] <= left and s.fat[body, 1] <= bottom
    if inside and right <= s.fat[body, 2] and top <= s.fat[body, 3]:
        return
    dx = mul(PREDICTED, sub(x, x0))
    dy = mul(PREDICTED, sub(y, y0))
    left = sub(left, EXTENSION)
    bottom = sub(bottom, EXTENSION)
    right = add(right, EXTENSION)
    top = add(top, EXTENSION)
    if dx < 0.0:
        left = add(left, dx)
    else:
        right = add(right, dx)
    if dy < 0.0:
        bottom = add(bottom, dy)
    else:
        top = add(top, dy)
    s.fat[body, 0] = left
    s.fat[body, 1] = bottom
    s.fat[body, 2] = right
    s.fat[body, 3] = top
    s.moved[body] = True


def boxes_overlap(s: Any, a: int, b: int) -> bool:
    apart_x = s.fat[b, 0] > s.fat[a, 2] or s.fat[a, 0] > s.fat[b, 2]
    apart_y = s.fat[b, 1] > s.fat[a, 3] or s.fat[a, 1] > s.fat[b, 3]
    return not (apart_x or apart_y)


def find_contacts(s: Any, d: Any) -> None:
    """Lists the pairs of bodies with new boxes that overlap, in the order of their numbers."""
    if not (s.moved[0] or s.moved[1] or s.moved[2]):
        return
    for k in range(PAIRS):
        a = body_a(k)
        b = body_b(k)
        news = s.moved[b] or (a < MOVING and s.moved[a])
        if news and not s.listed[k] and boxes_overlap(s, a, b):
            begin_contact(s, k, a, b)
    for body in range(MOVING):
        s.moved[body] = False


def begin_contact(s: Any, k: int, a: int, b: int) -> None:
    """Puts a pair at the head of the list, as yet without points."""
    for i in range(s.contacts, 0, -1):
        s.order[i] = s.order[i - 1]
    s.order[0] = k
    s.contacts = s.contacts + 1
    s.listed[k] = True
    s.enabled[k] = True
    s.touching[k] = False
    s.points[k] = 0
    s.toi_known[k] = False
    s.toi_count[k] = 0
    if not is_sensor(k):
        wake(s, a)
        wake(s, b)


def end_contact(s: Any, d: Any, place: int) -> None:
    """Takes the pair at that place off the list."""
    k = s.order[place]
    if s.points[k] > 0 and not is_sensor(k):
        wake(s, body_a(k))
        wake(s, body_b(k))
    s.listed[k] = False
    s.touching[k] = False
    s.contacts = s.contacts - 1
    for i in range(place, s.contacts):
        s.order[i] = s.order[i + 1]
