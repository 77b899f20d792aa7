"""What a player sees and does: observations, the original's bots, and actions as forces.

A player sees everything from the own side, turned by half a turn for player 1. Numbers that the
game's rules calculate in double precision are rounded where they become forces.
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
NEAR_X, FAR_X = 1.5, 8.5  # borders that a racket's origin is not pushed over
LOW_Y, HIGH_Y = 1.2, 8.0 - 1.2
MAX_SPEED, MAX_PUCK_SPEED = 10.0, 25.0
MAX_ANGLE = math.pi / 3.0
HOLD_STEPS = 15


def apply_translation(s: Any, d: Any, player: int, ax: float, ay: float) -> None:
    """Translation: full force below the top speed, none across the middle."""
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
    """A racket at a border of its half that is pushed on stops there, at once."""
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
    """Rotation: beyond 60 degrees the racket turns back by itself."""
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
    """A puck above the top speed is braked."""
    vx, vy = s.linear_velocity[PUCK, 0], s.linear_velocity[PUCK, 1]
    fast = math.sqrt(vx * vx + vy * vy) > MAX_PUCK_SPEED
    s.linear_damping[PUCK] = 10.0 if fast else single(0.05)


def carry_puck(s: Any, d: Any, player: int, shoot: float) -> bool:
    """A caught puck is carried; True where it is shot."""
    if s.holds[player] <= 1:
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
    s.holds[player] = s.holds[player] - 1
    if s.holds[player] != 1 and shoot <= 0.5:
        return False
    sign = 1.0 - 2.0 * player
    wake(s, PUCK)
    angle = s.angle[player]
    shoot_puck(s, d, single(sign * math.cos(angle)), single(sign * math.sin(angle)))
    s.holds[player] = 0
    return True


def shoot_puck(s: Any, d: Any, x: float, y: float) -> None:
    """A shot in a direction of length 1."""
    mass = d.table[PUCK, MASS]
    fx = mul(div(mul(x, mass), STEP_F32), SHOT)
    fy = mul(div(mul(y, mass), STEP_F32), SHOT)
    s.force[PUCK, 0] = add(s.force[PUCK, 0], fx)
    s.force[PUCK, 1] = add(s.force[PUCK, 1], fy)


def observed_value(s: Any, player: int, place: int) -> float:
    """Number `position` of 16: six of the own racket, six of the other one, four of the puck."""
    sign = 1.0 - 2.0 * player
    body = player if place < 6 else (1 - player if place < 12 else PUCK)
    what = place % 6
    if body == PUCK and what > 1:
        return float(sign * s.linear_velocity[PUCK, what - 2])
    if what == 0:
        return sign * sub(s.position[body, 0], CENTER_X)
    if what == 1:
        return sign * sub(s.position[body, 1], CENTER_Y)
    if what == 2:
        return float(s.angle[body])
    if what == 5:
        return float(s.angular_velocity[body])
    return float(sign * s.linear_velocity[body, what - 3])


def observe(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """16 numbers, and with keep mode how many steps each player may hold the puck."""
    for place in range(16):
        out[place] = observed_value(s, player, place)
    if p.keep:
        out[16] = float(s.holds[player])
        out[17] = float(s.holds[1 - player])


def draw_player_kind(
    s: Any, agent: float, weak: float, strong: float, unskilled: float, idle: float
) -> int:
    """Draws who acts in a seat, by weights; nothing is drawn where it is settled."""
    total = agent + weak + strong + unskilled + idle
    most = max(agent, weak, strong, unskilled, idle)
    at = 0.5 * total if most == total else total * uniform(s)
    if at < agent:
        return AGENT
    if at < agent + weak:
        return WEAK
    if at < agent + weak + strong:
        return STRONG
    if at < agent + weak + strong + unskilled:
        return RANDOM
    return IDLE


def act_scripted(s: Any, p: Any, d: Any, player: int, out: Any) -> None:
    """Writes the action of the player's kind into a row of 4 numbers."""
    kind = s.kind[player]
    for i in range(4):
        out[i] = 0.0
    if kind == RANDOM:
        for i in range(4):
            out[i] = 2.0 * uniform(s) - 1.0
    elif kind in (WEAK, STRONG):
        bot(s, player, 0.5 if kind == WEAK else 10.0, out)


def bot(s: Any, player: int, gain: float, out: Any) -> None:
    """Goes behind the puck and strikes it, else home; the racket swings all the time."""
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
            apart = math.sqrt((x - px) * (x - px) + (y - py) * (y - py))
            tx = px + 0.2
            ty = py + observed_value(s, player, 15) * apart * 0.1
    angle = math.pi / 3.0 * math.sin(s.phase[player])
    out[0] = steer(tx - x, observed_value(s, player, 3), gain, 0.1)
    out[1] = steer(ty - y, observed_value(s, player, 4), gain / 5.0, 0.1)
    out[2] = steer(
        angle - observed_value(s, player, 2), observed_value(s, player, 5), gain / 2.0, 1.0
    )
    held = s.holds[player]
    out[3] = 1.0 if held > 0 and held < 7 else 0.0


def steer(error: float, speed: float, gain: float, late: float) -> float:
    """Proportional control that brakes where the target is less than `late` seconds away."""
    divisor = speed + 0.01
    soon = divisor != 0.0 and abs(error / divisor) < late
    brake = speed * 0.5 if soon else 0.0
    return min(max(error * gain - brake, -1.0), 1.0)
