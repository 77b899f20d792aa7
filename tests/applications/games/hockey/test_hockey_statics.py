"""L0: shapes, masses and constants of the kernel are those that Box2D makes, bit for bit."""

import numpy as np
import pytest

from slipstream.games.hockey.physics import bodies as known
from slipstream.games.hockey.physics.bodies import table

pytest.importorskip("Box2D", reason="the oracle drives the package box2d, which is not installed")

import hockey_oracle


@pytest.fixture(scope="module")
def bodies():
    game = hockey_oracle.Hockey()
    game.reset(True, 0)
    still = [body for body in game.world.bodies if not body.mass]
    return game, [*game.players, game.puck, *still]


def test_hulls_are_equal(bodies):
    made = table()
    for b, body in enumerate(bodies[1]):
        if b == known.PUCK:
            continue
        shape, n = body.fixtures[0].shape, int(made[b, known.COUNT])
        assert n == len(shape.vertices)
        for points, place in ((shape.vertices, known.VERTEX), (shape.normals, known.EDGE_NORMAL)):
            assert np.array_equal(points, made[b, place : place + 2 * n].reshape(n, 2))
        assert np.array_equal(shape.centroid, made[b, known.CENTROID : known.CENTROID + 2])
        if b >= known.MOVING:
            assert np.array_equal(body.position, made[b, known.POSITION : known.POSITION + 2])


def test_masses_are_equal(bodies):
    made, f = table(), np.float32
    for b, body in enumerate(bodies[1][: known.MOVING]):
        mass, inverse, inverse_inertia = made[b, known.MASS : known.MASS + 3]
        assert body.mass == mass and f(inverse) == f(1) / f(mass)
        x, y = made[b, known.LOCAL_CENTER : known.LOCAL_CENTER + 2].astype(f)
        assert tuple(body.localCenter) == (x, y)
        # Box2D shows the moment about the origin, and keeps the one about the centre of mass.
        inertia = body.inertia - float(f(mass) * (x * x + y * y))
        assert inverse_inertia * inertia == pytest.approx(1.0, rel=3e-7)
    assert made[0, known.MASS] == 58.000003814697266 and made[1, known.MASS] == 58.0


def test_pairs_mix_as_fixtures_do(bodies):
    f = np.float32
    for k in range(known.PAIRS):
        a, b = known.body_a(k), known.body_b(k)
        one, two = (bodies[1][i].fixtures[0] for i in (a, b))
        assert f(known.friction(a, b)) == np.sqrt(f(one.friction) * f(two.friction))
        assert f(known.restitution(b)) == max(f(one.restitution), f(two.restitution))
        assert b < known.MOVING and a != b
    assert len({(known.body_a(k), known.body_b(k)) for k in range(known.PAIRS)}) == known.PAIRS


def test_radii_are_equal(bodies):
    assert bodies[1][0].fixtures[0].shape.radius == known.RACKET_RADIUS
    assert bodies[1][2].fixtures[0].shape.radius == known.PUCK_RADIUS
