"""The hockey game driven by the real Box2D (package `box2d`), as slow and plain as can be.

Written from the game's rules (docs/guides/hockey.md). What the kernel computes is compared with it
step by
step. Every reset builds a fresh world; the counters of the puck's holders survive a reset, as in
the original, unless `clear` is given.
"""

from __future__ import annotations

import math
from typing import Any

import Box2D
import numpy as np

W, H, SCALE, FPS = 10.0, 8.0, 60.0, 50.0
CENTER_X, CENTER_Y = W / 2, H / 2
DT = 1.0 / FPS
NORMAL, TRAIN_SHOOTING, TRAIN_DEFENSE = "NORMAL", "TRAIN_SHOOTING", "TRAIN_DEFENSE"
LIMITS = {NORMAL: 250, TRAIN_SHOOTING: 80, TRAIN_DEFENSE: 80}
RACKET = [(-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10)]
WALL = [(-250, 10), (-250, -10), (250, -10), (250, 10)]
POST = [(-10, 135), (10, 128), (10, -5), (-10, -5)]


def _scaled(points: Any, x: float = 1.0, y: float = 1.0, factor: float = 1.0) -> Any:
    return [(x * px / SCALE * factor, y * py / SCALE * factor) for px, py in points]


class _Listener(Box2D.b2ContactListener):
    def __init__(self, game: Hockey) -> None:
        Box2D.b2ContactListener.__init__(self)
        self.game = game

    def BeginContact(self, contact: Any) -> None:  # noqa: N802
        game = self.game
        bodies = {contact.fixtureA.body.userData, contact.fixtureB.body.userData}
        if "puck" not in bodies:
            return
        if "right goal" in bodies:
            game.done, game.winner = True, 1
        if "left goal" in bodies:
            game.done, game.winner = True, -1
        speed = game.puck.linearVelocity[0]
        for player, catches in ((0, speed < 0.1), (1, speed > -0.1)):
            if f"player {player}" in bodies and game.keep and game.has[player] == 0 and catches:
                game.has[player] = 15


class Hockey:
    """One game. `step` takes both players' actions, 8 numbers (6 without `keep`)."""

    def __init__(self, mode: str = NORMAL, keep: bool = True) -> None:
        self.mode, self.keep = mode, keep
        self.has = [0, 0]
        self.one_starts = True

    def reset(
        self, one_starting: bool | None = None, seed: int | None = None, clear: bool = True
    ) -> None:
        draw = np.random.Generator(np.random.PCG64(seed))
        self.one_starts = (not self.one_starts) if one_starting is None else one_starting
        if clear:
            self.has = [0, 0]
        self.done, self.winner, self.time = False, 0, 0

        def uniform(low: float, high: float) -> float:
            return float(draw.uniform(low, high, 1)[0])

        one, two = (W / 5, CENTER_Y), (4 * W / 5, CENTER_Y)
        if self.mode != NORMAL:
            x = 4 * W / 5 + uniform(-W / 3, W / 6)
            two = (x, CENTER_Y + uniform(-H / 4, H / 4))
        self.aim = None
        if self.mode == TRAIN_DEFENSE:
            x = CENTER_X + uniform(0, W / 3)
            puck = (x, CENTER_Y + 0.8 * uniform(-H / 2, H / 2))
            aim = (0.0, CENTER_Y + 0.6 * uniform(-75 / SCALE, 75 / SCALE))
            self.aim = aim
        else:
            left = self.mode == TRAIN_SHOOTING or self.one_starts
            x = CENTER_X + (-1 if left else 1) * uniform(1, 2)
            puck = (x, CENTER_Y + uniform(-1, 1))
        self.build(one, two, puck)
        if self.aim is not None:
            self.kick(self.aim)

    def kick(self, aim: Any) -> None:
        """Towards `aim` at 60 m/s in the first step."""
        away = self.puck.position - aim
        away = away / away.length
        force = away * 60 * self.puck.mass / DT
        self.puck.ApplyForceToCenter(-force, True)

    def build(self, one: Any, two: Any, puck: Any) -> None:
        """A fresh world with the bodies at rest at the given places."""
        self.listener = _Listener(self)
        self.world = Box2D.b2World(gravity=(0, 0), contactListener=self.listener)
        y = H - 0.5
        for place, points in (
            ((CENTER_X, y), _scaled(WALL)),
            ((CENTER_X, 0.5), _scaled(WALL)),
            ((CENTER_X - 245 / SCALE, y), _scaled(POST, 1, -1)),
            ((CENTER_X - 245 / SCALE, 0.5), _scaled(POST)),
            ((CENTER_X + 245 / SCALE, y), _scaled(POST, -1, -1)),
            ((CENTER_X + 245 / SCALE, 0.5), _scaled(POST, -1, 1)),
        ):
            self._static(place, points, "wall", [(0x11, 0x11, False)])
        box = _scaled([(-10, 75), (10, 75), (10, -75), (-10, -75)])
        kinds = [(0x10, 0x01, True), (0x10, 0x10, False)]
        self._static((CENTER_X - 255 / SCALE, CENTER_Y), box, "left goal", kinds)
        self._static((CENTER_X + 255 / SCALE, CENTER_Y), box, "right goal", kinds)
        self.players = [self._racket(one, 1, "player 0"), self._racket(two, -1, "player 1")]
        self.puck = self.world.CreateDynamicBody(
            position=(float(puck[0]), float(puck[1])),
            userData="puck",
            linearDamping=0.05,
            fixtures=Box2D.b2FixtureDef(
                shape=Box2D.b2CircleShape(radius=13 / SCALE, pos=(0, 0)),
                density=7.0,
                friction=0.1,
                restitution=0.95,
                categoryBits=0x01,
                maskBits=0x10,
            ),
        )

    def _static(self, place: Any, points: Any, name: str, kinds: Any) -> None:
        self.world.CreateStaticBody(
            position=place,
            userData=name,
            fixtures=[
                Box2D.b2FixtureDef(
                    shape=Box2D.b2PolygonShape(vertices=points),
                    density=0,
                    friction=0.1,
                    restitution=0.0,
                    categoryBits=category,
                    maskBits=mask,
                    isSensor=sensor,
                )
                for category, mask, sensor in kinds
            ],
        )

    def _racket(self, place: Any, side: int, name: str) -> Any:
        return self.world.CreateDynamicBody(
            position=(float(place[0]), float(place[1])),
            userData=name,
            fixtures=Box2D.b2FixtureDef(
                shape=Box2D.b2PolygonShape(vertices=_scaled(RACKET, side, 1, 1.2)),
                density=200.0 / 1.2,
                friction=1.0,
                restitution=0.0,
                categoryBits=0x10,
                maskBits=0x11,
            ),
        )

    def step(self, action: Any) -> tuple[float, bool]:
        """Reward of player 1 and whether the game is over."""
        action = np.clip(np.asarray(action), -1, 1).astype(np.float32)
        width = 4 if self.keep else 3
        for player in range(2):
            mine = action[player * width : (player + 1) * width]
            self._push(player, mine)
            self._turn(player, float(mine[2]))
        v = self.puck.linearVelocity
        self.puck.linearDamping = 10.0 if math.sqrt(v[0] ** 2 + v[1] ** 2) > 25 else 0.05
        if self.keep:
            for player in range(2):
                self._hold(player, float(action[player * width + 3]))
        self.world.Step(DT, 6 * 30, 2 * 30)
        self.world.ClearForces()
        if self.time >= LIMITS[self.mode]:
            self.done = True
        reward = self.reward(0)
        self.time += 1
        return reward, self.done

    def _push(self, player: int, mine: Any) -> None:
        body, sign = self.players[player], 1 - 2 * player
        velocity = np.array([body.linearVelocity[0], body.linearVelocity[1]])
        speed = float(np.sqrt(np.sum(velocity**2)))
        force = mine[:2] * np.float32(6000.0 * sign)
        x, vx = body.position[0], body.linearVelocity[0]
        if (player == 0 and x > CENTER_X - W / 20) or (player == 1 and x < CENTER_X + W / 20):
            force[0] = 0
            if sign * vx > 0:
                force[0] += -2 * vx * body.mass / DT
            force[0] += -sign * (x - CENTER_X) * vx * body.mass / DT
            body.linearDamping = 20.0
        elif speed < 10:
            body.linearDamping = 5.0
        else:
            body.linearDamping = 20.0
            gain = np.float32(DT) * force / np.float32(body.mass)
            if not float(np.sqrt(np.sum((velocity + gain) ** 2))) < speed:
                return
        body.ApplyForceToCenter(self._bounded(player, force).tolist(), True)

    def _bounded(self, player: int, force: Any) -> Any:
        """At the borders of its half a racket stops and is not pushed on."""
        body = self.players[player]
        x, y = body.position
        if player == 0:
            stop_x = (x < W / 2 - 210 / SCALE and force[0] < 0) or (x > CENTER_X and force[0] > 0)
        else:
            stop_x = (x > W / 2 + 210 / SCALE and force[0] > 0) or (x < CENTER_X and force[0] < 0)
        if stop_x:
            body.linearVelocity[0] = 0.0
            force[0] = 0
        if (y > H - 1.2 and force[1] > 0) or (y < 1.2 and force[1] < 0):
            body.linearVelocity[1] = 0.0
            force[1] = 0
        return force

    def _turn(self, player: int, action: float) -> None:
        body = self.players[player]
        if abs(body.angle) > math.pi / 3:
            torque = 0.0
            if body.angle * body.angularVelocity > 0:
                torque = -0.1 * body.angularVelocity * body.mass / DT
            torque += -0.1 * body.angle * body.mass / DT
            body.angularDamping = 10.0
        else:
            torque = action * 400.0
            body.angularDamping = 2.0
        body.ApplyTorque(torque, True)

    def _hold(self, player: int, shoot: float) -> None:
        body, puck = self.players[player], self.puck
        if self.has[player] > 1:
            puck.position = body.position
            puck.linearVelocity = body.linearVelocity
            self.has[player] -= 1
            if self.has[player] == 1 or shoot > 0.5:
                sign = 1 - 2 * player
                ray = Box2D.b2Vec2(sign * math.cos(body.angle), sign * math.sin(body.angle))
                puck.ApplyForceToCenter(ray * puck.mass / DT * 60, True)
                self.has[player] = 0

    def closeness(self, player: int) -> float:
        x = self.puck.position[0]
        sign = 1 - 2 * player
        if sign * (x - CENTER_X) < 0 and sign * self.puck.linearVelocity[0] <= 0:
            x, y = self.players[player].position - self.puck.position
            factor = -30.0 / ((250 / SCALE) * LIMITS[self.mode] / 2)
            return math.sqrt(x**2 + y**2) * factor
        return 0.0

    def reward(self, player: int) -> float:
        base = 10.0 * self.winner * (1 - 2 * player) if self.done else 0.0
        return base + self.closeness(player)

    def observation(self, player: int = 0) -> Any:
        """Return the observation of one player: float64 [18] or [16]."""
        sign = 1 - 2 * player
        out = []
        for body in (self.players[player], self.players[1 - player]):
            out += [sign * x for x in body.position - (CENTER_X, CENTER_Y)]
            out += [body.angle, sign * body.linearVelocity[0], sign * body.linearVelocity[1]]
            out += [body.angularVelocity]
        puck = self.puck
        out += [sign * x for x in puck.position - (CENTER_X, CENTER_Y)]
        out += [sign * puck.linearVelocity[0], sign * puck.linearVelocity[1]]
        if self.keep:
            out += [self.has[player], self.has[1 - player]]
        return np.array(out)
