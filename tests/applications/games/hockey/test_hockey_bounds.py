"""Swept bounds skip only pairs in which the exact algorithms find no contact."""

import numpy as np

from slipstream.games.hockey.physics import bodies, motion
from slipstream.games.hockey.physics import world as physics
from slipstream.games.hockey.physics.contacts import collide_polygons, compute_aabb, evaluate
from slipstream.games.hockey.physics.distance import time_of_impact
from slipstream.games.hockey.physics.motion import set_pose
from slipstream.jit.float32 import cosine, sine
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import allocate_buffers, member_indices

SAMPLES = 250


def world():
    kernel = load_kernel("hockey")
    loaded = kernel.load(kernel.configure({}))
    env = KernelVectorEnv(kernel, loaded, *member_indices([0], 1), backend="serial")
    env.reset(allocate_buffers(env).obs)
    return Records(env.state)[0], loaded.data


def single(x):
    return float(np.float32(x))


def on_the_way(s, d, draw, body):
    """A body between two poses near the borders, as fast as they move at most."""
    x, y = draw.choice([1.2, 5.0, 8.8]) + draw.normal(0, 0.5), draw.choice([1, 7, 2.8, 5.2])
    s.center0[body] = [single(x), single(y + draw.normal(0, 0.4))]
    s.center[body] = [
        single(v + w) for v, w in zip(s.center0[body], draw.normal(0, 0.2, 2), strict=True)
    ]
    s.angle0[body] = single(draw.uniform(-1.7, 1.7)) if body < bodies.PUCK else 0.0
    turned = single(draw.normal(0, 0.2)) if body < bodies.PUCK else 0.0
    s.angle[body] = single(s.angle0[body] + turned)
    s.alpha[:] = 0.0
    set_pose(s, d, body)


def test_nothing_touches_what_is_far():
    (s, d), draw = world(), np.random.default_rng(0)
    far = near = 0
    for sample in range(SAMPLES):
        body = sample % 3
        on_the_way(s, d, draw, body)
        for still in range(bodies.MOVING, bodies.BODIES):
            if not motion.is_far(s, d, still, body):
                near += 1
                continue
            far += 1
            assert time_of_impact(s, d, still, body) < 0.0
            if body < bodies.PUCK:
                pair = 3 * (still - bodies.MOVING) + body
                collide_polygons(s, d, pair, still, body)
                assert s.point_count[pair] == 0
    assert far > SAMPLES and near > SAMPLES // 2


def test_bounds_hold_the_boxes_of_both_ends():
    (s, d), draw = world(), np.random.default_rng(1)
    slack = []
    for sample in range(SAMPLES):
        body = sample % 3
        on_the_way(s, d, draw, body)
        end = compute_aabb(d, body, s.sin[body], s.cos[body], *s.position[body])
        whole = motion.swept_aabb(s, body)
        s.center[body], s.angle[body] = s.center0[body], s.angle0[body]
        set_pose(s, d, body)
        begin = compute_aabb(
            d, body, sine(s.angle0[body]), cosine(s.angle0[body]), *s.position[body]
        )
        for side in range(4):
            outer = min if side < 2 else max
            exact = outer(begin[side], end[side])
            assert outer(whole[side], exact) == whole[side]
            slack.append(abs(whole[side] - exact))
    assert np.median(slack) < 0.02


def test_sweeps_that_go_round_a_circle_end_the_same_without_marks(monkeypatch):
    """The puck between a racket and a wall: two contacts, and the puck's alone."""
    for count in (1, 2):
        ends = []
        for marks in (True, False):
            s, d = world()
            for body, x, y, vx, vy in ((0, 3.0, 6.93, 3.0, 2.0), (2, 3.2, 7.115, -1.0, 4.0)):
                s.center[body] = [single(x), single(y)]
                s.linear_velocity[body] = [vx, vy]
                set_pose(s, d, body)
            for place, k in enumerate((bodies.PLAYER1_PUCK, 2)[:count]):
                s.island[place] = k
                evaluate(s, d, k)
                assert s.point_count[k] == 1
            if not marks:
                monkeypatch.setattr(physics, "is_repeated", lambda s, count: False)
            physics.solve_velocities(s, d, count, False)
            ends.append((s.linear_velocity[:3].tolist(), s.angular_velocity[:3].tolist()))
        assert ends[0] == ends[1]
        monkeypatch.undo()
