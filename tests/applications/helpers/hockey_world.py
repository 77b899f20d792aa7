"""The kernel beside the oracle: the same start, the same actions, every number compared."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from slipstream.games.hockey.kernel import create_bodies, shoot_at_goal
from slipstream.games.hockey.physics.bodies import LEFT_SENSOR, PLAYER1_PLAYER2, PUCK, RIGHT_SENSOR
from slipstream.kernels.interpreter import Records
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.kernels.vector_env import allocate_buffers, member_indices

pytest.importorskip("Box2D", reason="the oracle drives the package box2d, which is not installed")

import hockey_oracle as oracle

MODES = ("normal", "train_shooting", "train_defense")
PLAY = ("random", "chase", "hug", "bots")


class Game:
    """One compiled (or interpreted) copy that begins where the oracle's game begins."""

    def __init__(self, mode="normal", keep=True, backend="compiled"):
        self.kernel = load_kernel("hockey")
        config = {"mode": mode, "puck_hold": keep, "time_out": "terminated"}
        loaded = self.kernel.load(self.kernel.configure(config))
        self.env = KernelVectorEnv(
            self.kernel, loaded, *member_indices([0], 1), backend=backend, autoreset_mode=HOLD
        )
        self.data, self.keep = loaded.data, keep
        self.out = allocate_buffers(self.env)
        self.env.reset(self.out.obs)
        self.real = oracle.Hockey(mode.upper(), keep)

    def begin(self, seed):
        """The oracle's start of that seed; player 1 has the first puck where it is odd."""
        self.env.reset(self.out.obs)
        self.real.reset(bool(seed % 2), seed)
        self.s = Records(self.env.state)[0]
        key = self.env.state["key"][0]
        self.env.state[:] = 0
        self.env.state["key"] = key
        self.s.time_limit = oracle.LIMITS[self.real.mode]
        create_bodies(self.s, self.data, *self.real.players[1].position, *self.real.puck.position)
        if self.real.aim is not None:
            shoot_at_goal(self.s, self.data, self.real.aim[1])
        self.t = 0

    def step(self, action):
        """Both take the step; the names of what differs."""
        reward, done = self.real.step(action)
        rows = np.asarray(action, np.float32).reshape(1, 2, -1)
        self.env.step(rows, self.out, self.t)
        self.t += 1
        return self.differences(reward, done)

    def differences(self, reward, done):
        s, real, found = self.s, self.real, []
        for b, body in enumerate([*real.players, real.puck]):
            pairs = {
                "position": (s.position[b], body.position),
                "center": (s.center[b], body.worldCenter),
                "linear_velocity": (s.linear_velocity[b], body.linearVelocity),
                "angular_velocity": ([s.angular_velocity[b]], [body.angularVelocity]),
                "awake": ([s.awake[b]], [body.awake]),
            }
            if b != PUCK:
                pairs["angle"] = ([s.angle[b]], [body.angle])
            found += [f"{n} {b}" for n, (x, y) in pairs.items() if list(x) != list(y)]
        facts = {
            "reward": (np.float32(reward), self.out.reward[0, 0]),
            "reward 2": (np.float32(real.reward(1)), self.out.reward[0, 1]),
            "done": (done, bool(self.out.terminated[0])),
            "winner": (real.winner, s.winner),
            "holds": (real.has, list(s.hold_steps)),
            "contacts": (len(real.world.contacts), s.contact_count),
        }
        found += [name for name, (x, y) in facts.items() if x != y]
        for player in range(2):
            if not np.array_equal(real.observation(player), self.out.obs[0, player]):
                found.append(f"observation {player}")
        return found

    def kinds(self):
        """Return the classes of contact of the last step."""
        s = self.s
        touching = [int(k) for k in s.contact_order[: s.contact_count] if s.touching[k]]
        found = set()
        for k in touching:
            if k in (LEFT_SENSOR, RIGHT_SENSOR):
                found.add("sensor")
            elif k == PLAYER1_PLAYER2:
                found.add("racket-racket")
            elif k > PLAYER1_PLAYER2:
                found.add("puck-racket")
            elif k % 3 == PUCK:
                found.add("puck-wall")
            else:
                found.add(f"racket-wall, {s.point_count[k]} points")
        if any(s.toi_count[k] for k in s.contact_order[: s.contact_count]):
            found.add("stopped within the step")
        if len([k for k in touching if k not in (LEFT_SENSOR, RIGHT_SENSOR)]) > 1:
            found.add("two contacts or more")
        if max(s.hold_steps) > 0:
            found.add("held")
        return found or {"free"}


@dataclass
class Count:
    """Steps and differing steps by class of contact, and how episodes went."""

    steps: dict = field(default_factory=dict)
    wrong: dict = field(default_factory=dict)
    episodes: int = 0
    whole: int = 0
    first: list = field(default_factory=list)

    def __str__(self):
        lines = [f"{self.whole} of {self.episodes} episodes identical to the end"]
        lines += [f"{k}: {n} steps, {self.wrong.get(k, 0)} differ" for k, n in self.steps.items()]
        return "\n".join([*lines, *self.first[:5]])

    def play(self, game, seed, kind, steps=300):
        """One episode, to its end or to the first difference."""
        game.begin(seed)
        player = Play(kind, seed, game.keep)
        self.episodes += 1
        for t in range(steps):
            wrong = game.step(player.act(game.real))
            for name in game.kinds():
                self.steps[name] = self.steps.get(name, 0) + 1
                self.wrong[name] = self.wrong.get(name, 0) + bool(wrong)
            if wrong:
                self.first.append(f"{game.real.mode}, seed {seed}, {kind}, step {t}: {wrong}")
                return
            if game.real.done:
                break
        self.whole += 1


class Play:
    """Both players' actions: new random ones now and then, after the puck, along the borders."""

    def __init__(self, kind, seed, keep):
        self.kind, self.draw, self.keep, self.t = kind, np.random.default_rng(seed), keep, 0
        self.phase = self.draw.uniform(0, np.pi, 2)
        self.action = np.zeros((2, 4))

    def act(self, real):
        if self.t % 9 == 0:
            self.action = self.draw.uniform(-1, 1, (2, 4))
        for player in range(2):
            row, seen = self.action[player], real.observation(player)
            if self.kind == "chase":
                row[:2] = np.clip(3 * (seen[12:14] - seen[:2]), -1, 1)
            elif self.kind == "hug":
                corner = (-4.5, 3.8 if self.t // 60 % 2 else -3.8)
                row[:2] = np.clip(2 * (corner - seen[:2]), -1, 1)
            elif self.kind == "bots":
                self.action[player] = self.bot(player, seen)
        self.t += 1
        return self.action[:, : 4 if self.keep else 3].ravel()

    def bot(self, player, seen):
        """Strong and weak, from the rules."""
        self.phase[player] += self.draw.uniform(0, 0.2)
        kp, own, puck = (10.0, 0.5)[player], seen[:3], seen[12:16]
        target = np.array([-3.5, 0.0, np.pi / 3 * np.sin(self.phase[player])])
        if puck[2] < 0.5:
            target[1] = puck[1]
            if own[0] < puck[0] and abs(own[1] - puck[1]) < 0.5:
                apart = np.hypot(*(own[:2] - puck[:2]))
                target[:2] = puck[0] + 0.2, puck[1] + puck[3] * apart * 0.1
        error, speed = target - own, seen[3:6]
        brake = np.abs(error / (speed + 0.01)) < [0.1, 0.1, 1.0]
        move = np.clip(error * [kp, kp / 5, kp / 2] - speed * brake * 0.5, -1, 1)
        shoot = float(len(seen) > 16 and 0 < seen[16] < 7)
        return [*move, shoot]
