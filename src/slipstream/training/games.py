"""Whole games of one policy against another, or against a kernel's own bots, from both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import model_in, nearest
from slipstream.core.discover import load_kernel
from slipstream.core.errors import ConfigError
from slipstream.nets.actions import ActionMap
from slipstream.nets.policy import Policy
from slipstream.training.best import best_member, best_policy
from slipstream.training.environment import LONGEST
from slipstream.training.kernel_environment import KernelEnvironment
from slipstream.training.run import Run
from slipstream.vector.vector_env import VectorEnv, blank

COPIES = 1_024  # at once; their number changes nothing but speed
_SIDES = ("left", "right")


@dataclass(frozen=True)
class Player:
    """Who plays: a policy, or one of the kernel's bots by its name.

    Attributes:
        name: in tables.
        policy: None for a bot.
        env: settings that the policy was trained under.
    """

    name: str
    policy: Policy | None = None
    env: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Games:
    """J games as `one` sees them.

    Attributes:
        one, two: the players' names.
        result: int64 [J]: 1 won, 0 drawn, -1 lost.
        left: bool [J], where `one` played.
        length: int64 [J], steps.
    """

    one: str
    two: str
    result: NDArray[np.int64]
    left: NDArray[np.bool_]
    length: NDArray[np.int64]

    def shares(self) -> dict[str, tuple[float, float, float]]:
        """Share of games won, drawn and lost, each with its 95 % interval (Wilson)."""
        names = {"won": 1, "drawn": 0, "lost": -1}
        counts = {name: int((self.result == value).sum()) for name, value in names.items()}
        return {name: wilson(count, len(self.result)) for name, count in counts.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for a file."""
        decided, steps = int((self.result != 0).sum()), int(self.length.sum())
        sides = {"won_left": self.left, "won_right": ~self.left}
        return {
            "one": self.one,
            "two": self.two,
            "games": len(self.result),
            **{name: list(share) for name, share in self.shares().items()},
            **{n: float((self.result[at] == 1).mean()) for n, at in sides.items() if at.any()},
            "decided_per_1000_steps": 1000.0 * decided / steps,
            "mean_length": float(self.length.mean()),
        }


def wilson(count: int, total: int, z: float = 1.959964) -> tuple[float, float, float]:
    """A share and the ends of its 95 % interval (Wilson 1927)."""
    share, square = count / total, z * z / total
    middle = share + square / 2.0
    half = z * math.sqrt(share * (1.0 - share) / total + square / (4.0 * total))
    scale = 1.0 + square
    return share, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def player_of(path: str | Path | Run, member: int | None = None) -> Player:
    """The policy that validation chose in a run."""
    run = path if isinstance(path, Run) else Run.open(path)
    chosen = best_member(run) if member is None else member
    return Player(run.path.name, best_policy(run, chosen), run.config.env_settings)


def bots(kernel_name: str) -> list[str]:
    """Opponents that a kernel plays itself; none where it has no `opponents` and `side`."""
    fields = load_kernel(kernel_name).Config.model_fields
    if not {"opponents", "side"} <= set(fields):
        return []
    seat = model_in(fields["opponents"].annotation)
    return [name for name in (seat.model_fields if seat else {}) if name != "agent"]


def opponent_of(kernel_name: str, text: str) -> Player:
    """A bot by its name, or a run's policy by its directory.

    Raises:
        ConfigError: it is neither.
        CheckpointError: the run has no policy yet.
    """
    known = bots(kernel_name)
    if text in known:
        return Player(text)
    if not Path(text).exists():
        guess = nearest(text, known)
        advice = f"did you mean `{guess}`?" if guess else f"bots: {', '.join(known) or 'none'}."
        raise ConfigError(
            f"There is no opponent `{text}`: it is neither a bot of `{kernel_name}` nor the "
            f"directory of a run; {advice}"
        )
    run = Run.open(text)
    if run.config.env_name != kernel_name:
        raise ConfigError(
            f"The opponent {text} plays `{run.config.env_name}`, not `{kernel_name}`: choose a run "
            "of the same game."
        )
    return player_of(run)


def play(
    kernel_name: str,
    one: Player,
    two: Player,
    games: int,
    seed: int,
    *,
    settings: Mapping[str, Any] | None = None,
    backend: str = "auto",
    copies: int = COPIES,
) -> Games:
    """Plays `games` games with the most likely actions, `one` on the left in every other one.

    Game j has the random stream (seed, j, 0), whichever copy plays it: the number of copies changes
    nothing.

    Args:
        kernel_name: of a kernel with `opponents` and `side`.
        one: has a policy.
        two: a policy or a bot.
        games: how many.
        seed: of the games.
        settings: of the kernel; those that `one` was trained under unless given.
        backend: how the copies are stepped.
        copies: at once.

    Raises:
        ConfigError: no game is asked for, or a player does not fit the game.
    """
    if games < 1:
        raise ConfigError(f"--games {games}: give 1 or more.")
    if not bots(kernel_name):
        raise ConfigError(
            f"`{kernel_name}` is no game for two with opponents to choose from; `slipstream "
            "evaluate RUN` scores its policies."
        )
    result, length = np.zeros(games, np.int64), np.zeros(games, np.int64)
    numbers = np.arange(games)
    base = {**(settings if settings is not None else one.env or {})}
    for side, name in enumerate(_SIDES):
        own = numbers[numbers % 2 == side]
        if not len(own):
            continue
        environment = _between(kernel_name, base, name, two)
        act = _acting(environment, side, one, two)
        size = min(copies, len(own))
        with environment.evaluation("train", size, 1, backend, LONGEST) as env:
            for first in range(0, len(own), size):
                part = own[first : first + size]
                result[part], length[part] = _block(env, act, part, seed, side)
    return Games(one.name, two.name, result, numbers % 2 == 0, length)


_Act: TypeAlias = Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[Any]]


def _between(
    kernel_name: str, settings: Mapping[str, Any], side: str, two: Player
) -> KernelEnvironment:
    """The game with the learner's seat on one side, and a bot or a second policy on the other."""
    who = {"agent" if two.policy is not None else two.name: 1.0}
    changed = {**settings, "opponents": who, "side": side}
    changed.pop("self_play", None)
    return KernelEnvironment.load(kernel_name, changed)


def _acting(environment: KernelEnvironment, seat: int, one: Player, two: Player) -> _Act:
    """What both policies do with rows of the game, in one call."""
    for player in (one, two):
        if player.policy is not None:
            _check_fit(environment, player)
    first, second = one.policy, two.policy
    assert first is not None
    if second is None:
        return lambda obs, mask: first.act_rows(obs, mask=mask)

    def act(obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        rows = []
        for player, policy in ((seat, first), (1 - seat, second)):
            own = None if mask is None else np.ascontiguousarray(mask[:, player])
            rows.append(policy.act_rows(np.ascontiguousarray(obs[:, player]), mask=own))
        return np.ascontiguousarray(np.stack(rows if seat == 0 else rows[::-1], axis=1))

    return act


def _check_fit(environment: KernelEnvironment, player: Player) -> None:
    policy, spec = player.policy, environment.spec
    assert policy is not None
    here, theirs = spec.observation_shape, policy.observation_shape
    if here != theirs:
        raise ConfigError(
            f"{player.name} sees {theirs} numbers, and this game shows {here}: choose a policy of "
            "the same settings (with or without `keep`)."
        )
    acts, wanted = policy.actions.description(), ActionMap(spec.action).description()
    if acts != wanted:
        raise ConfigError(
            f"{player.name} acts in {acts}, and this game takes {wanted}: choose a policy of the "
            "same `action_fineness` and `keep`."
        )


def _block(
    env: VectorEnv, act: _Act, numbers: NDArray[np.int64], seed: int, side: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Result and length of some games, as the learner on that side sees them."""
    out, copies = blank(env), np.arange(len(numbers))
    env.begin(copies, numbers, seed, out.obs, out.mask)
    running = np.ones(len(numbers), np.bool_)
    result, length = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    t = 0
    while running.any():
        env.step(act(out.obs, out.mask), out, t)
        t += 1
        ended = env.drain_episodes()
        if "won" in ended.metrics:
            result[ended.e] = ended.metrics["won"] - ended.metrics["lost"]
        else:
            result[ended.e] = ended.metrics["winner"] * (1 - 2 * side)
        length[ended.e] = ended.length
        running[ended.e] = False
    return result, length
