"""Observations, the original's bots, and actions as forces.

Observations are relative to the player's own side, rotated by 180 degrees for player 1. Values that
the rules compute in double precision are rounded when they become forces.
"""

from __future__ import annotations

import math
from typing import Any

from slipstream.core.random import uniform
from slipstream.games.hockey.config import AGENT, IDLE, RANDOM, STRONG, WEAK
from slipstream.games.hockey.physics.bodies import MASS, PUCK
from slipstream.games.hockey.physics.bodies import STEP as STEP_F32
from slipstream.games.hockey.physics.contacts import find_contacts, update_fat_aabb, wake
from slipstream.games.hockey.physics.motion import reset_sweep
from slipstream.jit.float32 import add, div, mul, single, sub

STEP = 0.02
FORCE, TORQUE, SHOT = 6000.0, 400.0, 60.0
CENTER_X, CENTER_Y, ZONE = 5.0, 4.0, 0.5
NEAR_X, FAR_X = 1.5, 8.5  # limits of a racket's origin
LOW_Y, HIGH_Y = 1.2, 8.0 - 1.2
MAX_SPEED, MAX_PUCK_SPEED = 10.0, 25.0
MAX_ANGLE = math.pi / 3.0
HOLD_STEPS = 15


def apply_translation(s: Any, d: Any, player: int, ax: float, ay: float) -> None:
    """Apply the translation: full force below the maximum speed, none across the middle."""
    sign = 1.0 - 2.0 * player
    x, vx, vy = s.position[player, 0], s.linear_velocity[player, 0], s.linear_velocity[player, 1]
    mass = d.table[player, MASS]
    fx, fy = mul(ax, sign * FORCE), mul(ay, sign * FORCE)
    if sign * (x - CENTER_X) > -ZONE:
        fx = 0.0
        if sign * vx > 0.0:
            fx = single(-2.0 * vx * mass / STEP)
        fx = add(fx, single(-sign * (x - CENTER_X) * vx * mass / STEP))
        s.linear_damping[player] = 20.0
    else:
        speed = math.sqrt(vx * vx + vy * vy)
        if speed < MAX_SPEED:
            s.linear_damping[player] = 5.0
        else:
            s.linear_damping[player] = 20.0
            wx = vx + div(mul(STEP_F32, fx), mass)
            wy = vy + div(mul(STEP_F32, fy), mass)
            if math.sqrt(wx * wx + wy * wy) >= speed:
                return
    apply_force_within_half(s, player, fx, fy)


def apply_force_within_half(s: Any, player: int, fx: float, fy: float) -> None:
    """Apply a force; a racket at a border of its half that is pushed outwards stops at once."""
    x, y = s.position[player, 0], s.position[player, 1]
    if player == 0:
        stops = (x < NEAR_X and fx < 0.0) or (x > CENTER_X and fx > 0.0)
    else:
        stops = (x > FAR_X and fx > 0.0) or (x < CENTER_X and fx < 0.0)
    if stops:
        s.linear_velocity[player, 0] = 0.0
        fx = 0.0
    if (y > HIGH_Y and fy > 0.0) or (y < LOW_Y and fy < 0.0):
        s.linear_velocity[player, 1] = 0.0
        fy = 0.0
    wake(s, player)
    s.force[player, 0] = add(s.force[player, 0], fx)
    s.force[player, 1] = add(s.force[player, 1], fy)


def apply_rotation(s: Any, d: Any, player: int, action: float) -> None:
    """Apply the rotation; beyond 60 degrees the racket turns back by itself."""
    angle, w, mass = s.angle[player], s.angular_velocity[player], d.table[player, MASS]
    if abs(angle) > MAX_ANGLE:
        torque = 0.0
        if angle * w > 0.0:
            torque = -0.1 * w * mass / STEP
        torque = torque + -0.1 * angle * mass / STEP
        s.angular_damping[player] = 10.0
    else:
        torque = action * TORQUE
        s.angular_damping[player] = 2.0
    wake(s, player)
    s.torque[player] = add(s.torque[player], single(torque))


def limit_puck_speed(s: Any) -> None:
    """Brake a puck above the maximum speed."""
    vx, vy = s.linear_velocity[PUCK, 0], s.linear_velocity[PUCK, 1]
    fast = math.sqrt(vx * vx + vy * vy) > MAX_PUCK_SPEED
    s.linear_damping[PUCK] = 10.0 if fast else single(0.05)


def carry_puck(s: Any, d: Any, player: int, shoot: float) -> bool:
    """Move a caught puck with its racket; return true if it is shot."""
    if s.hold_steps[player] <= 1:
        return False
    s.position[PUCK, 0] = s.position[player, 0]
    s.position[PUCK, 1] = s.position[player, 1]
    s.center[PUCK, 0] = s.position[PUCK, 0]
    s.center[PUCK, 1] = s.position[PUCK, 1]
    reset_sweep(s, PUCK)
    update_fat_aabb(s, d, PUCK, 0.0, 1.0, s.position[PUCK, 0], s.position[PUCK, 1])
    find_contacts(s, d)
    s.linear_velocity[PUCK, 0] = s.linear_velocity[player, 0]
    s.linear_velocity[PUCK, 1] = s.linear_velocity[player, 1]
    if s.linear_velocity[PUCK, 0] != 0.0 or s.linear_velocity[PUCK, 1] != 0.0:
        wake(s, PUCK)
    s.hold_steps[player] = s.hold_steps[player] - 1
    if s.hold_steps[player] != 1 and shoot <= 0.5:
        return False
    sign = 1.0 - 2.0 * player
    wake(s, PUCK)
    angle = s.angle[player]
    shoot_puck(s, d, single(sign * math.cos(angle)), single(sign * math.sin(angle)))
    s.hold_steps[player] = 0
    return True


def shoot_puck(s: Any, d: Any, x: float, y: float) -> None:
    """Apply the force of a shot along a unit vector."""
    mass = d.table[PUCK, MASS]
    fx = mul(div(mul(x, mass), STEP_F32), SHOT)
    fy = mul(div(mul(y, mass), STEP_F32), SHOT)
    s.force[PUCK, 0] = add(s.force[PUCK, 0], fx)
    s.force[PUCK, 1] = add(s.force[PUCK, 1], fy)


def observed_value(s: Any, player: int, index: int) -> float:
    """Return one of 16 values: six of the player's racket, six of the opponent's, four of the
    puck.
    """
    sign = 1.0 - 2.0 * player
    body = player if index < 6 else (1 - player if index < 12 else PUCK)
    quantity = index % 6
    if body == PUCK and quantity > 1:
        return float(sign * s.linear_velocity[PUCK, quantity - 2])
    if quantity == 0:
        return sign * sub(s.position[body, 0], CENTER_X)
    if quantity == 1:
        return sign * sub(s.position[body, 1], CENTER_Y)
    if quantity == 2:
        return float(s.angle[body])
    if quantity == 5:
        return float(s.angular_velocity[body])
    return float(sign * s.linear_velocity[body, quantity - 3])


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Write 16 values; with `puck_hold` also the steps that each player may hold the puck."""
    for index in range(16):
        out[index] = observed_value(s, player, index)
    if p.puck_hold:
        out[16] = float(s.hold_steps[player])
        out[17] = float(s.hold_steps[1 - player])


def draw_player_kind(
    s: Any, agent: float, weak: float, strong: float, unskilled: float, idle: float
) -> int:
    """Draw the kind of a player by weight; a single kind uses no random number."""
    total = agent + weak + strong + unskilled + idle
    largest = max(agent, weak, strong, unskilled, idle)
    u = 0.5 * total if largest == total else total * uniform(s)
    if u < agent:
        return AGENT
    if u < agent + weak:
        return WEAK
    if u < agent + weak + strong:
        return STRONG
    if u < agent + weak + strong + unskilled:
        return RANDOM
    return IDLE


def act_scripted(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Write the action of a built-in player into a row of 4 values."""
    kind = s.kind[player]
    for i in range(4):
        out[i] = 0.0
    if kind == RANDOM:
        for i in range(4):
            out[i] = 2.0 * uniform(s) - 1.0
    elif kind in (WEAK, STRONG):
        bot(s, player, 0.5 if kind == WEAK else 10.0, out)


def bot(s: Any, player: int, gain: float, out: Any) -> None:
    """Write a bot's action: move behind the puck and strike it, else return; always swing."""
    s.phase[player] = s.phase[player] + 0.2 * uniform(s)
    x, y, px, py = (
        observed_value(s, player, 0),
        observed_value(s, player, 1),
        observed_value(s, player, 12),
        observed_value(s, player, 13),
    )
    tx = -3.5
    ty = 0.0
    if observed_value(s, player, 14) < 30.0 / 60.0:
        ty = py
        if x < px and abs(y - py) < 30.0 / 60.0:
            distance = math.sqrt((x - px) * (x - px) + (y - py) * (y - py))
            tx = px + 0.2
            ty = py + observed_value(s, player, 15) * distance * 0.1
    angle = math.pi / 3.0 * math.sin(s.phase[player])
    out[0] = steer(tx - x, observed_value(s, player, 3), gain, 0.1)
    out[1] = steer(ty - y, observed_value(s, player, 4), gain / 5.0, 0.1)
    out[2] = steer(
        angle - observed_value(s, player, 2), observed_value(s, player, 5), gain / 2.0, 1.0
    )
    held = s.hold_steps[player]
    out[3] = 1.0 if held > 0 and held < 7 else 0.0


def steer(error: float, speed: float, gain: float, brake_time: float) -> float:
    """Return a proportional control that brakes within `brake_time` seconds of the target."""
    divisor = speed + 0.01
    near = divisor != 0.0 and abs(error / divisor) < brake_time
    brake = speed * 0.5 if near else 0.0
    return min(max(error * gain - brake, -1.0), 1.0)
