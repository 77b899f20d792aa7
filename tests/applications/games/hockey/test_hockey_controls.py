"""Negative controls: a port that is wrong in one thing fails the comparison with the oracle."""

import hockey_world
import pytest

from slipstream.games.hockey import kernel, players
from slipstream.games.hockey.physics import world
from slipstream.games.hockey.physics.bodies import STEP
from slipstream.games.hockey.physics.motion import add, div, mul
from slipstream.jit.float32 import single


def other_damping(s, d, body):
    """v / (1 + h c)."""
    for axis in range(2):
        s.center0[body, axis] = s.center[body, axis]
        gain = mul(STEP, mul(d.table[body, 41], s.force[body, axis]))
        speed = add(s.linear_velocity[body, axis], gain)
        s.linear_velocity[body, axis] = div(speed, single(1.0 + STEP * s.linear_damping[body]))
    s.angle0[body] = s.angle[body]
    gain = mul(mul(STEP, d.table[body, 42]), s.torque[body])
    s.angular_velocity[body] = div(
        add(s.angular_velocity[body], gain), single(1.0 + STEP * s.angular_damping[body])
    )


def nothing(s, d):
    """No continuous collision."""


def not_pushed(*arguments):
    """Overlaps stay."""
    return True


def slowed(s, player, fx, fy):
    """The force at a border that the original's source seems to mean."""
    x = s.position[player, 0]
    if (player == 0 and x < 1.5 and fx < 0.0) or (player == 1 and x > 8.5 and fx > 0.0):
        fx = -s.linear_velocity[player, 0]
    s.force[player, 0] = add(s.force[player, 0], fx)
    s.force[player, 1] = add(s.force[player, 1], fy)


def spinless(s):
    """The puck's spin dropped, as by `set_state`."""
    s.angular_velocity[2] = 0.0
    fast = (
        s.linear_velocity[2, 0] * s.linear_velocity[2, 0]
        + s.linear_velocity[2, 1] * s.linear_velocity[2, 1]
        > 625.0
    )
    s.linear_damping[2] = 10.0 if fast else single(0.05)


WRONG = {
    "damping": [(world, "integrate_velocity", other_damping)],
    "no continuous collision": [(world, "solve_continuous", nothing)],
    "no push-out": [(world, "solve_positions", not_pushed)],
    "border": [(players, "apply_force_within_half", slowed)],
    "spin": [(kernel, "limit_puck_speed", spinless)],
    "sweeps": [(world, "VELOCITY_ITERATIONS", 8), (world, "POSITION_ITERATIONS", 3)],
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "spin")) for n in WRONG]
)
def test_a_wrong_port_fails(monkeypatch, name):
    for module, part, other in WRONG[name]:
        monkeypatch.setattr(module, part, other)
    count = hockey_world.Count()
    for seed, (mode, kind) in enumerate(
        [("normal", "chase"), ("train_shooting", "hug"), ("normal", "chase")], 1
    ):
        count.play(hockey_world.Game(mode, backend="serial"), seed, kind, steps=120)
    assert count.whole < 0.99 * count.episodes, str(count)
