"""Contacts: the broad phase finds pairs with overlapping fat AABBs, the narrow phase their points.

A polygon and the puck touch in one point. Of two polygons, the incident edge of one is clipped to
the reference face of the other. A point with the same feature as before keeps its impulses.
"""

from __future__ import annotations

from typing import Any

from slipstream.games.hockey.physics.bodies import (
    AABB_EXTENSION,
    AABB_MULTIPLIER,
    ABSOLUTE_TOLERANCE,
    CENTROID,
    COUNT,
    EPSILON,
    LEFT_SENSOR,
    LOCAL_CENTER,
    MAX_FLOAT,
    MOVING,
    PAIRS,
    POLYGON_RADIUS,
    PUCK,
    PUCK_RADIUS,
    RACKET_RADIUS,
    RELATIVE_TOLERANCE,
    RIGHT_SENSOR,
    body_a,
    body_b,
)
from slipstream.games.hockey.physics.distance import sensor_overlaps
from slipstream.games.hockey.physics.motion import (
    dot,
    edge_normal,
    fat_aabb_contains,
    inverse_rotate,
    is_far,
    local_vertex,
    normal_projection,
    normalized,
    rotate,
    vertex_projection,
    world_vertex,
)
from slipstream.jit.float32 import add, cosine, div, mul, sine, single, sub


def is_sensor(pair: int) -> bool:
    return pair in (LEFT_SENSOR, RIGHT_SENSOR)


def wake(s: Any, body: int) -> None:
    """Wake a sleeping body."""
    if body < MOVING and not s.awake[body]:
        s.awake[body] = True
        s.sleep_time[body] = 0.0


def compute_aabb(
    d: Any, body: int, sin: float, cos: float, x: float, y: float
) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top of a moving body with its origin at (x, y)."""
    if body == PUCK:
        r = PUCK_RADIUS
        return sub(x, r), sub(y, r), add(x, r), add(y, r)
    r = RACKET_RADIUS
    left, bottom = world_vertex(d, body, 0, sin, cos, x, y)
    right = left
    top = bottom
    for i in range(1, int(d.table[body, COUNT])):
        px, py = world_vertex(d, body, i, sin, cos, x, y)
        left = min(left, px)
        bottom = min(bottom, py)
        right = max(right, px)
        top = max(top, py)
    return sub(left, r), sub(bottom, r), add(right, r), add(top, r)


def synchronize(s: Any, d: Any, body: int) -> None:
    """Update the fat AABB of a body that moved through its sweep."""
    if fat_aabb_contains(s, body):
        return
    sin0 = 0.0
    cos0 = 1.0
    if body != PUCK:
        sin0 = sine(s.angle0[body])
        cos0 = cosine(s.angle0[body])
    mx, my = rotate(sin0, cos0, d.table[body, LOCAL_CENTER], d.table[body, LOCAL_CENTER + 1])
    x0 = sub(s.center0[body, 0], mx)
    y0 = sub(s.center0[body, 1], my)
    update_fat_aabb(s, d, body, sin0, cos0, x0, y0)


def update_fat_aabb(
    s: Any, d: Any, body: int, sin0: float, cos0: float, x0: float, y0: float
) -> None:
    """Recompute the fat AABB if the body leaves it between the given and its current pose."""
    sin, cos, x, y = s.sin[body], s.cos[body], s.position[body, 0], s.position[body, 1]
    left, bottom, right, top = compute_aabb(d, body, sin0, cos0, x0, y0)
    left1, bottom1, right1, top1 = compute_aabb(d, body, sin, cos, x, y)
    left = min(left, left1)
    bottom = min(bottom, bottom1)
    right = max(right, right1)
    top = max(top, top1)
    inside = s.fat_aabb[body, 0] <= left and s.fat_aabb[body, 1] <= bottom
    if inside and right <= s.fat_aabb[body, 2] and top <= s.fat_aabb[body, 3]:
        return
    dx = mul(AABB_MULTIPLIER, sub(x, x0))
    dy = mul(AABB_MULTIPLIER, sub(y, y0))
    left = sub(left, AABB_EXTENSION)
    bottom = sub(bottom, AABB_EXTENSION)
    right = add(right, AABB_EXTENSION)
    top = add(top, AABB_EXTENSION)
    if dx < 0.0:
        left = add(left, dx)
    else:
        right = add(right, dx)
    if dy < 0.0:
        bottom = add(bottom, dy)
    else:
        top = add(top, dy)
    s.fat_aabb[body, 0] = left
    s.fat_aabb[body, 1] = bottom
    s.fat_aabb[body, 2] = right
    s.fat_aabb[body, 3] = top
    s.moved[body] = True


def aabbs_overlap(s: Any, a: int, b: int) -> bool:
    apart_x = s.fat_aabb[b, 0] > s.fat_aabb[a, 2] or s.fat_aabb[a, 0] > s.fat_aabb[b, 2]
    apart_y = s.fat_aabb[b, 1] > s.fat_aabb[a, 3] or s.fat_aabb[a, 1] > s.fat_aabb[b, 3]
    return not (apart_x or apart_y)


def find_contacts(s: Any, d: Any) -> None:
    """Add the overlapping pairs of bodies with new AABBs, in the order of pair numbers."""
    if not (s.moved[0] or s.moved[1] or s.moved[2]):
        return
    for k in range(PAIRS):
        a = body_a(k)
        b = body_b(k)
        moved = s.moved[b] or (a < MOVING and s.moved[a])
        if moved and not s.in_contact_list[k] and aabbs_overlap(s, a, b):
            begin_contact(s, k, a, b)
    for body in range(MOVING):
        s.moved[body] = False


def begin_contact(s: Any, k: int, a: int, b: int) -> None:
    """Insert a pair at the head of the contact list, without points."""
    for i in range(s.contact_count, 0, -1):
        s.contact_order[i] = s.contact_order[i - 1]
    s.contact_order[0] = k
    s.contact_count = s.contact_count + 1
    s.in_contact_list[k] = True
    s.enabled[k] = True
    s.touching[k] = False
    s.point_count[k] = 0
    s.toi_known[k] = False
    s.toi_count[k] = 0
    if not is_sensor(k):
        wake(s, a)
        wake(s, b)


def end_contact(s: Any, d: Any, index: int) -> None:
    """Remove the pair at an index of the contact list."""
    k = s.contact_order[index]
    if s.point_count[k] > 0 and not is_sensor(k):
        wake(s, body_a(k))
        wake(s, body_b(k))
    s.in_contact_list[k] = False
    s.touching[k] = False
    s.contact_count = s.contact_count - 1
    for i in range(index, s.contact_count):
        s.contact_order[i] = s.contact_order[i + 1]


def evaluate(s: Any, d: Any, k: int) -> None:
    """Compute the contact points of a pair, without impulses."""
    a = body_a(k)
    b = body_b(k)
    if b == PUCK:
        collide_puck(s, d, k, a)
    elif a >= MOVING and is_far(s, d, a, b):
        s.point_count[k] = 0
    else:
        collide_polygons(s, d, k, a, b)


def collide_puck(s: Any, d: Any, k: int, a: int) -> None:
    """Collide a polygon with the puck: one point, against a face or a vertex."""
    s.point_count[k] = 0
    x, y = inverse_rotate(
        single(s.sin[a]),
        single(s.cos[a]),
        sub(s.position[PUCK, 0], s.position[a, 0]),
        sub(s.position[PUCK, 1], s.position[a, 1]),
    )
    radius = add(POLYGON_RADIUS, PUCK_RADIUS)
    n = int(d.table[a, COUNT])
    face = 0
    separation = -MAX_FLOAT
    for i in range(n):
        cx, cy = local_vertex(d, a, i)
        normal_separation = normal_projection(d, a, i, sub(x, cx), sub(y, cy))
        if normal_separation > radius:
            return
        if normal_separation > separation:
            separation = normal_separation
            face = i
    next_face = face + 1 if face + 1 < n else 0
    x1, y1 = local_vertex(d, a, face)
    x2, y2 = local_vertex(d, a, next_face)
    nx, ny = edge_normal(d, a, face)
    fx, fy = mul(0.5, add(x1, x2)), mul(0.5, add(y1, y2))
    if separation < EPSILON:  # the puck's centre is inside
        set_contact_point(s, k, nx, ny, fx, fy)
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
        nx, ny = normalized(px, py)
        set_contact_point(s, k, nx, ny, cx, cy)
    elif dot(sub(x, fx), sub(y, fy), nx, ny) <= radius:
        set_contact_point(s, k, nx, ny, fx, fy)


def set_contact_point(s: Any, k: int, nx: float, ny: float, x: float, y: float) -> None:
    """Set one contact point at the puck's centre."""
    s.point_count[k] = 1
    s.flipped[k] = False
    s.face[k, 0] = nx
    s.face[k, 1] = ny
    s.face[k, 2] = x
    s.face[k, 3] = y
    s.local_point[k, 0, 0] = 0.0
    s.local_point[k, 0, 1] = 0.0
    s.feature[k, 0] = 0


_CORNER, _FACE = 0, 1  # kinds of features


def world_point(s: Any, body: int, x: float, y: float) -> tuple[float, float]:
    """Return a point of a body in world coordinates."""
    px, py = rotate(s.sin[body], s.cos[body], x, y)
    return add(px, s.position[body, 0]), add(py, s.position[body, 1])


def body_vertex(s: Any, d: Any, body: int, i: int) -> tuple[float, float]:
    """Return a vertex of a body in world coordinates."""
    return world_vertex(
        d, body, i, s.sin[body], s.cos[body], s.position[body, 0], s.position[body, 1]
    )


def edge_separation(s: Any, d: Any, a: int, edge: int, b: int) -> float:
    """Return the separation of the deepest vertex of b from an edge of a."""
    nx, ny = edge_normal(d, a, edge)
    nx, ny = rotate(s.sin[a], s.cos[a], nx, ny)
    ox, oy = inverse_rotate(s.sin[b], s.cos[b], nx, ny)
    index = 0
    minimum = MAX_FLOAT
    for i in range(int(d.table[b, COUNT])):
        value = vertex_projection(d, b, i, ox, oy)
        if value < minimum:
            minimum = value
            index = i
    x1, y1 = body_vertex(s, d, a, edge)
    x2, y2 = body_vertex(s, d, b, index)
    return dot(sub(x2, x1), sub(y2, y1), nx, ny)


def best_edge(s: Any, d: Any, a: int, b: int) -> tuple[float, int]:
    """Return the largest separation and its edge of a, by hill climbing from the edge towards b."""
    bx, by = world_point(s, b, d.table[b, CENTROID], d.table[b, CENTROID + 1])
    ax, ay = world_point(s, a, d.table[a, CENTROID], d.table[a, CENTROID + 1])
    dx, dy = inverse_rotate(s.sin[a], s.cos[a], sub(bx, ax), sub(by, ay))
    n = int(d.table[a, COUNT])
    edge = 0
    maximum = -MAX_FLOAT
    for i in range(n):
        value = normal_projection(d, a, i, dx, dy)
        if value > maximum:
            maximum = value
            edge = i
    previous = edge - 1 if edge >= 1 else n - 1
    following = edge + 1 if edge + 1 < n else 0
    current = edge_separation(s, d, a, edge, b)
    lower = edge_separation(s, d, a, previous, b)
    upper = edge_separation(s, d, a, following, b)
    if lower > current and lower > upper:
        step = n - 1
        best, separation = previous, lower
    elif upper > current:
        step = 1
        best, separation = following, upper
    else:
        return current, edge
    for _ in range(n):
        edge = (best + step) % n
        value = edge_separation(s, d, a, edge, b)
        if value > separation:
            best, separation = edge, value
        else:
            break
    return separation, best


def incident_edge(s: Any, d: Any, a: int, edge: int, b: int) -> None:
    """Write the edge of b that faces the edge of a most into `clip`."""
    nx, ny = edge_normal(d, a, edge)
    nx, ny = rotate(s.sin[a], s.cos[a], nx, ny)
    nx, ny = inverse_rotate(s.sin[b], s.cos[b], nx, ny)
    index = 0
    minimum = MAX_FLOAT
    n = int(d.table[b, COUNT])
    for i in range(n):
        value = normal_projection(d, b, i, nx, ny)
        if value < minimum:
            minimum = value
            index = i
    for j in range(2):
        vertex = index + j if index + j < n else 0
        x, y = body_vertex(s, d, b, vertex)
        s.clip[j, 0] = x
        s.clip[j, 1] = y
        s.clip_feature[j] = feature(edge, vertex, _FACE, _CORNER)


def feature(index_a: int, index_b: int, kind_a: int, kind_b: int) -> int:
    """Return the id of a contact point, by which the next step matches it."""
    return index_a + 256 * index_b + 65536 * kind_a + 131072 * kind_b


def flip(feature_id: int) -> int:
    """Return the feature id with the two shapes swapped."""
    return feature(
        feature_id // 256 % 256, feature_id % 256, feature_id // 131072, feature_id // 65536 % 2
    )


def clip_line(s: Any, nx: float, ny: float, offset: float, vertex: int) -> bool:
    """Clip the segment in `clip` to a line; return whether two points are left."""
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
        fraction = div(distance0, sub(distance0, distance1))
        s.clip[count, 0] = add(x0, mul(fraction, sub(x1, x0)))
        s.clip[count, 1] = add(y0, mul(fraction, sub(y1, y0)))
        s.clip_feature[count] = feature(vertex, first // 256 % 256, _CORNER, _FACE)
        count += 1
    return count == 2


def collide_polygons(s: Any, d: Any, k: int, a: int, b: int) -> None:
    """Collide two polygons: zero to two contact points."""
    s.point_count[k] = 0
    radius = add(POLYGON_RADIUS, POLYGON_RADIUS)
    separation_a, edge_a = best_edge(s, d, a, b)
    if separation_a > radius:
        return
    separation_b, edge_b = best_edge(s, d, b, a)
    if separation_b > radius:
        return
    flipped = separation_b > add(mul(RELATIVE_TOLERANCE, separation_a), ABSOLUTE_TOLERANCE)
    reference = b if flipped else a
    incident = a if flipped else b
    edge = edge_b if flipped else edge_a
    incident_edge(s, d, reference, edge, incident)
    clip_to_face(s, d, k, reference, edge, incident, flipped, radius)


def clip_to_face(
    s: Any, d: Any, k: int, reference: int, edge: int, incident: int, flipped: bool, radius: float
) -> None:
    """Clip the incident edge to the reference face; keep the points within `radius`."""
    after = edge + 1 if edge + 1 < int(d.table[reference, COUNT]) else 0
    x1, y1 = local_vertex(d, reference, edge)
    x2, y2 = local_vertex(d, reference, after)
    lx, ly = normalized(sub(x2, x1), sub(y2, y1))
    middle_x, middle_y = mul(0.5, add(x1, x2)), mul(0.5, add(y1, y2))
    tx, ty = rotate(s.sin[reference], s.cos[reference], lx, ly)
    nx, ny = ty, -tx
    wx1, wy1 = world_point(s, reference, x1, y1)
    wx2, wy2 = world_point(s, reference, x2, y2)
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
            px, py = sub(x, s.position[incident, 0]), sub(y, s.position[incident, 1])
            px, py = inverse_rotate(s.sin[incident], s.cos[incident], px, py)
            s.local_point[k, count, 0] = px
            s.local_point[k, count, 1] = py
            feature_id = s.clip_feature[i]
            s.feature[k, count] = flip(feature_id) if flipped else feature_id
            count += 1
    s.point_count[k] = count


def update(s: Any, d: Any, k: int) -> bool:
    """Update a contact; return whether the pair begins to touch.

    A point with the same feature as before keeps its impulses.
    """
    s.enabled[k] = True
    was_touching = s.touching[k]
    if is_sensor(k):
        s.touching[k] = sensor_overlaps(s, d, body_a(k))
        return s.touching[k] and not was_touching
    old_count = s.point_count[k]
    first, second = s.feature[k, 0], s.feature[k, 1]
    normal0, tangent0 = s.impulse[k, 0, 0], s.impulse[k, 0, 1]
    normal1, tangent1 = s.impulse[k, 1, 0], s.impulse[k, 1, 1]
    evaluate(s, d, k)
    for i in range(s.point_count[k]):
        normal = 0.0
        tangent = 0.0
        if old_count > 0 and s.feature[k, i] == first:
            normal = normal0
            tangent = tangent0
        elif old_count > 1 and s.feature[k, i] == second:
            normal = normal1
            tangent = tangent1
        s.impulse[k, i, 0] = normal
        s.impulse[k, i, 1] = tangent
    touching = s.point_count[k] > 0
    if touching != was_touching:
        wake(s, body_a(k))
        wake(s, body_b(k))
    s.touching[k] = touching
    return touching and not was_touching


def is_active(s: Any, a: int, b: int) -> bool:
    """Return whether one of the bodies moves and is awake."""
    return s.awake[b] or (a < MOVING and s.awake[a])


def drop_or_update(s: Any, d: Any, index: int) -> int:
    """Update or remove the contact at an index of the list.

    Returns:
        -1 if it was removed, 1 if it begins to touch, else 0.
    """
    k = s.contact_order[index]
    a = body_a(k)
    b = body_b(k)
    if not is_active(s, a, b):
        return 0
    if not aabbs_overlap(s, a, b):
        end_contact(s, d, index)
        return -1
    return 1 if update(s, d, k) else 0
