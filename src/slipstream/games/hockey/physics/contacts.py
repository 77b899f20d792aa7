"""Contacts: pairs of bodies whose widened boxes overlap, and where their fixtures touch.

The broad phase lists pairs. A point that is known again keeps its impulses. A polygon and the puck
touch in a point; two polygons in the other one's edge, clipped to the face that separates most.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    ABSOLUTE,
    CENTROID,
    COUNT,
    EPSILON,
    EXTENSION,
    LARGEST,
    LEFT_SENSOR,
    MIDDLE,
    MOVING,
    PAIRS,
    POLYGON_RADIUS,
    PREDICTED,
    PUCK,
    PUCK_RADIUS,
    RACKET_RADIUS,
    RELATIVE,
    RIGHT_SENSOR,
    body_a,
    body_b,
)
from slipstream.games.hockey.physics.distance import sensor_overlaps
from slipstream.games.hockey.physics.motion import (
    corner,
    dot,
    is_far,
    normal_of,
    outward,
    placed,
    reach,
    slope,
    turn,
    turn_back,
    within_fat,
)
from slipstream.jit.float32 import add, cosine, div, mul, sine, single, sub


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


def evaluate(s: Any, d: Any, k: int) -> None:
    """Fills the pair's points, without impulses."""
    a = body_a(k)
    b = body_b(k)
    if b == PUCK:
        collide_puck(s, d, k, a)
    elif a >= MOVING and is_far(s, d, a, b):
        s.points[k] = 0
    else:
        collide_polygons(s, d, k, a, b)


def collide_puck(s: Any, d: Any, k: int, a: int) -> None:
    """A polygon and the puck: one point, the puck's centre, against a face or a corner."""
    s.points[k] = 0
    x, y = turn_back(
        single(s.sin[a]),
        single(s.cos[a]),
        sub(s.place[PUCK, 0], s.place[a, 0]),
        sub(s.place[PUCK, 1], s.place[a, 1]),
    )
    radius = add(POLYGON_RADIUS, PUCK_RADIUS)
    n = int(d.table[a, COUNT])
    face = 0
    separation = -LARGEST
    for i in range(n):
        cx, cy = corner(d, a, i)
        apart = slope(d, a, i, sub(x, cx), sub(y, cy))
        if apart > radius:
            return
        if apart > separation:
            separation = apart
            face = i
    following = face + 1 if face + 1 < n else 0
    x1, y1 = corner(d, a, face)
    x2, y2 = corner(d, a, following)
    nx, ny = outward(d, a, face)
    fx, fy = mul(0.5, add(x1, x2)), mul(0.5, add(y1, y2))
    if separation < EPSILON:  # the puck's centre is inside
        touch(s, k, nx, ny, fx, fy)
        return
    ex, ey = sub(x2, x1), sub(y2, y1)
    u1 = dot(sub(x, x1), sub(y, y1), ex, ey)
    u2 = dot(sub(x, x2), sub(y, y2), -ex, -ey)
    if u1 <= 0.0 or u2 <= 0.0:
        cx = x1 if u1 <= 0.0 else x2
        cy = y1 if u1 <= 0.0 else y2
        px, py = sub(x, cx), sub(y, cy)
        if dot(px, py, px, py) > mul(radius, radius):
            return
        nx, ny = normal_of(px, py)
        touch(s, k, nx, ny, cx, cy)
    elif dot(sub(x, fx), sub(y, fy), nx, ny) <= radius:
        touch(s, k, nx, ny, fx, fy)


def touch(s: Any, k: int, nx: float, ny: float, x: float, y: float) -> None:
    """One point at the puck's centre."""
    s.points[k] = 1
    s.flipped[k] = False
    s.face[k, 0] = nx
    s.face[k, 1] = ny
    s.face[k, 2] = x
    s.face[k, 3] = y
    s.spot[k, 0, 0] = 0.0
    s.spot[k, 0, 1] = 0.0
    s.feature[k, 0] = 0


_CORNER, _FACE = 0, 1  # kinds of features


def world(s: Any, body: int, x: float, y: float) -> tuple[float, float]:
    """A point of a body, in the world."""
    px, py = turn(s.sin[body], s.cos[body], x, y)
    return add(px, s.place[body, 0]), add(py, s.place[body, 1])


def corner_of(s: Any, d: Any, body: int, i: int) -> tuple[float, float]:
    """A corner of a body, in the world."""
    return placed(d, body, i, s.sin[body], s.cos[body], s.place[body, 0], s.place[body, 1])


def edge_separation(s: Any, d: Any, a: int, edge: int, b: int) -> float:
    """How far the deepest vertex of b lies before an edge of a."""
    nx, ny = outward(d, a, edge)
    nx, ny = turn(s.sin[a], s.cos[a], nx, ny)
    ox, oy = turn_back(s.sin[b], s.cos[b], nx, ny)
    index = 0
    least = LARGEST
    for i in range(int(d.table[b, COUNT])):
        value = reach(d, b, i, ox, oy)
        if value < least:
            least = value
            index = i
    x1, y1 = corner_of(s, d, a, edge)
    x2, y2 = corner_of(s, d, b, index)
    return dot(sub(x2, x1), sub(y2, y1), nx, ny)


def best_edge(s: Any, d: Any, a: int, b: int) -> tuple[float, int]:
    """Separation and edge of a that separates most, found by climbing from the one towards b."""
    bx, by = world(s, b, d.table[b, CENTROID], d.table[b, CENTROID + 1])
    ax, ay = world(s, a, d.table[a, CENTROID], d.table[a, CENTROID + 1])
    dx, dy = turn_back(s.sin[a], s.cos[a], sub(bx, ax), sub(by, ay))
    n = int(d.table[a, COUNT])
    edge = 0
    most = -LARGEST
    for i in range(n):
        value = slope(d, a, i, dx, dy)
        if value > most:
            most = value
            edge = i
    before = edge - 1 if edge >= 1 else n - 1
    after = edge + 1 if edge + 1 < n else 0
    here = edge_separation(s, d, a, edge, b)
    lower = edge_separation(s, d, a, before, b)
    upper = edge_separation(s, d, a, after, b)
    if lower > here and lower > upper:
        step = n - 1
        best, separation = before, lower
    elif upper > here:
        step = 1
        best, separation = after, upper
    else:
        return here, edge
    for _ in range(n):
        edge = (best + step) % n
        value = edge_separation(s, d, a, edge, b)
        if value > separation:
            best, separation = edge, value
        else:
            break
    return separation, best


def incident_edge(s: Any, d: Any, a: int, edge: int, b: int) -> None:
    """Puts into `clip` the edge of b that faces the edge of a most."""
    nx, ny = outward(d, a, edge)
    nx, ny = turn(s.sin[a], s.cos[a], nx, ny)
    nx, ny = turn_back(s.sin[b], s.cos[b], nx, ny)
    index = 0
    least = LARGEST
    n = int(d.table[b, COUNT])
    for i in range(n):
        value = slope(d, b, i, nx, ny)
        if value < least:
            least = value
            index = i
    for j in range(2):
        vertex = index + j if index + j < n else 0
        x, y = corner_of(s, d, b, vertex)
        s.clip[j, 0] = x
        s.clip[j, 1] = y
        s.clip_feature[j] = feature(edge, vertex, _FACE, _CORNER)


def feature(index_a: int, index_b: int, kind_a: int, kind_b: int) -> int:
    """What a point is made of, by which it is known again in the next step."""
    return index_a + 256 * index_b + 65536 * kind_a + 131072 * kind_b


def flip(of: int) -> int:
    """The same feature with the two shapes swapped."""
    return feature(of // 256 % 256, of % 256, of // 131072, of // 65536 % 2)


def clip_line(s: Any, nx: float, ny: float, offset: float, vertex: int) -> bool:
    """Cuts the segment in `clip` at a line; False where less than a segment is left."""
    x0, y0, x1, y1 = s.clip[0, 0], s.clip[0, 1], s.clip[1, 0], s.clip[1, 1]
    first, second = s.clip_feature[0], s.clip_feature[1]
    distance0 = sub(dot(nx, ny, x0, y0), offset)
    distance1 = sub(dot(nx, ny, x1, y1), offset)
    count = 0
    if distance0 <= 0.0:
        count += 1
    if distance1 <= 0.0:
        s.clip[count, 0] = x1
        s.clip[count, 1] = y1
        s.clip_feature[count] = second
        count += 1
    if mul(distance0, distance1) < 0.0:
        share = div(distance0, sub(distance0, distance1))
        s.clip[count, 0] = add(x0, mul(share, sub(x1, x0)))
        s.clip[count, 1] = add(y0, mul(share, sub(y1, y0)))
        s.clip_feature[count] = feature(vertex, first // 256 % 256, _CORNER, _FACE)
        count += 1
    return count == 2


def collide_polygons(s: Any, d: Any, k: int, a: int, b: int) -> None:
    """Two polygons: none, one or two points."""
    s.points[k] = 0
    radius = add(POLYGON_RADIUS, POLYGON_RADIUS)
    apart_a, edge_a = best_edge(s, d, a, b)
    if apart_a > radius:
        return
    apart_b, edge_b = best_edge(s, d, b, a)
    if apart_b > radius:
        return
    flipped = apart_b > add(mul(RELATIVE, apart_a), ABSOLUTE)
    one = b if flipped else a
    two = a if flipped else b
    edge = edge_b if flipped else edge_a
    incident_edge(s, d, one, edge, two)
    clip_to_face(s, d, k, one, edge, two, flipped, radius)


def clip_to_face(
    s: Any, d: Any, k: int, one: int, edge: int, two: int, flipped: bool, radius: float
) -> None:
    """Clips the incident edge of body `two` to a face of body `one`; keeps what is near it."""
    after = edge + 1 if edge + 1 < int(d.table[one, COUNT]) else 0
    x1, y1 = corner(d, one, edge)
    x2, y2 = corner(d, one, after)
    lx, ly = normal_of(sub(x2, x1), sub(y2, y1))
    middle_x, middle_y = mul(0.5, add(x1, x2)), mul(0.5, add(y1, y2))
    tx, ty = turn(s.sin[one], s.cos[one], lx, ly)
    nx, ny = ty, -tx
    wx1, wy1 = world(s, one, x1, y1)
    wx2, wy2 = world(s, one, x2, y2)
    front = dot(nx, ny, wx1, wy1)
    side1 = add(-dot(tx, ty, wx1, wy1), radius)
    side2 = add(dot(tx, ty, wx2, wy2), radius)
    if not clip_line(s, -tx, -ty, side1, edge):
        return
    if not clip_line(s, tx, ty, side2, after):
        return
    s.flipped[k] = flipped
    s.face[k, 0] = ly
    s.face[k, 1] = -lx
    s.face[k, 2] = middle_x
    s.face[k, 3] = middle_y
    count = 0
    for i in range(2):
        x, y = s.clip[i, 0], s.clip[i, 1]
        if sub(dot(nx, ny, x, y), front) <= radius:
            px, py = sub(x, s.place[two, 0]), sub(y, s.place[two, 1])
            px, py = turn_back(s.sin[two], s.cos[two], px, py)
            s.spot[k, count, 0] = px
            s.spot[k, count, 1] = py
            known = s.clip_feature[i]
            s.feature[k, count] = flip(known) if flipped else known
            count += 1
    s.points[k] = count


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
