"""Who may act in the other seat: a line-up, a population's snapshots, results against them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.text import did_you_mean
from slipstream.games.ratings import Ratings, openskill_missing
from slipstream.games.self_play.config import SelfPlayConfig, is_file
from slipstream.games.self_play.opponent_networks import (
    OpponentNetworks,
    image_error,
    networks_from_policy,
    read_onnx,
)
from slipstream.jit.alignment import aligned_zeros
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import Episodes
from slipstream.rl.nets.actions import ActionMap
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import read_policy
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.parts import RANDOM, SNAPSHOTS, short_name
from slipstream.training.episode_result import EpisodeResult


@dataclass(frozen=True)
class OpponentPool:
    """Opponents with their shares of the episodes.

    Attributes:
        names: as they were written.
        weights: [kinds], of each; not summed to 1.
        networks: of trained policies, by their place in `names`.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    networks: Mapping[int, OpponentNetworks] = field(default_factory=dict)

    @classmethod
    def of(
        cls, where: str, opponents: Mapping[str, float], spec: EnvSpec, game: str, drawn: bool
    ) -> OpponentPool:
        """Finds out what the names mean; policies are read.

        Args:
            where: the key that they were written under, for messages.
            opponents: weight by name.
            spec: of one seat.
            game: its short name.
            drawn: policies draw their actions, else they take the most likely ones.

        Raises:
            ConfigError: a name that is nothing, of another game or shape; weights that are all 0.
        """
        if not any(opponents.values()):
            raise ConfigError(
                f"Every weight in `{where}` is 0, so nobody would play: give one of them a weight, "
                f"`{{{next(iter(opponents))}: 1}}`."
            )
        networks = {}
        for k, name in enumerate(opponents):
            if name in _BUILT_IN:
                continue
            if not is_file(name):
                raise _unknown_opponent(where, name)
            networks[k] = load_opponent_network(name, spec, game, drawn)
        weights = tuple(float(weight) for weight in opponents.values())
        return cls(tuple(opponents), weights, networks)

    @property
    def shares(self) -> NDArray[np.float64]:
        """[kinds], summed up: the last one is 1."""
        total = np.cumsum(self.weights)
        return np.asarray(total / total[-1], np.float64)

    @property
    def short_names(self) -> dict[int, str]:
        """Names for tables by kind, numbered where two would be the same."""
        short = [re.sub(r"[^\w.-]+", "-", short_name(name)) for name in self.names]
        return {
            kind: name if short.count(name) == 1 else f"{name}-{kind}"
            for kind, name in enumerate(short)
        }

    @property
    def snapshots(self) -> int:
        """Which kind they are; -1: they do not play."""
        return self.names.index(SNAPSHOTS) if SNAPSHOTS in self.names else -1

    def without_snapshots(self) -> OpponentPool:
        """For policies that were trained: nobody meets snapshots, and `random` plays where nobody
        else would."""
        if self.snapshots < 0:
            return self
        others = {n: w for n, w in zip(self.names, self.weights, strict=True) if n != SNAPSHOTS}
        if not any(others.values()):
            others = {**others, RANDOM: 1.0}
        kept = {**dict.fromkeys(self.names, 0.0), **others}  # everybody keeps their number
        return replace(self, names=tuple(kept), weights=tuple(kept.values()))

    @property
    def random(self) -> int:
        """Which kind is the player that does anything allowed; -1: it does not play."""
        return self.names.index(RANDOM) if RANDOM in self.names else -1


def load_opponent_network(name: str, spec: EnvSpec, game: str, drawn: bool) -> OpponentNetworks:
    """The network of a policy or of an ONNX file.

    Args:
        name: of a run's directory, a policy's folder or a file.
        spec, game, drawn: see `OpponentPool.of`.

    Raises:
        ConfigError: it is missing, or of another game or shape.
    """
    if name.endswith(".onnx"):
        return read_onnx(Path(name).expanduser(), spec)
    try:
        policy = read_policy(name)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"The opponent {name} cannot play: {error}") from error
    known = policy.training_context.get("environment")
    if known is not None and known != game:
        raise ConfigError(
            f"The opponent {name} was trained on {known}, and this game is {game}: name a policy "
            "of the same game."
        )
    own, here = policy.actions.description(), ActionMap(spec.action_space).description()
    if policy.observation_shape != spec.observation_shape or own != here:
        raise ConfigError(
            f"The opponent {name} sees {policy.observation_shape} and acts in {own}; a seat of "
            f"{game} shows {spec.observation_shape} and takes {here}. Train it with the "
            "settings that are used here, or use those it was trained with."
        )
    if policy.scale is None:
        raise image_error()
    scale = policy.scale
    flat = policy.parameters.flat
    return networks_from_policy(policy, flat, scale.mean, scale.inverse_std, scale.limit, drawn)


def _unknown_opponent(where: str, name: str) -> ConfigError:
    advice = did_you_mean(name, _BUILT_IN, f"give {' or '.join(_BUILT_IN)},")
    return ConfigError(
        f"`{where}` names the opponent `{name}`, and there is no such thing; {advice} or name a "
        "trained policy by the directory of its run, by its own folder, or by a file that ends in "
        ".onnx. Players of a game's own are no networks and have keys of their own in `env` "
        "(hockey: `env.opponents`)."
    )


_BUILT_IN = (SNAPSHOTS, RANDOM)


WINDOW = 100  # games that an estimate remembers, once there were more


class SnapshotPool:
    """Snapshots of M members, K of each at most. The first one is of the untrained weights.

    Nothing changes while a rollout is collected: results and snapshots enter between iterations. A
    snapshot takes the place of the oldest one where all K are taken. Is that one in a game under
    way, it is moved to a spare place, where it plays its games to their end: they say nothing about
    its successor, and nobody else meets it. The next such snapshot waits until then.

    Args:
        policy: of the members, as it is trained.
        config: how many, and which of them play.

    Attributes:
        weights: float32 [M, K + 1, P]; mean, inverse_std: float32 [M, K + 1, D], observation
            scales; the last place is the spare one.
        serial: int64 [M, K + 1], number of the snapshot in a place; -1: empty.
        taken: int64 [M], snapshots taken so far.
        rate: float64 [M, K], estimated share of points that the member wins against each.
        games: int64 [M, K], results that the estimate follows from.
        shares: float64 [M, K], how often each is met, summed up.
        met: int64 [E] each, of all copies that train: the number of the snapshot in the running
            game, -1 for none. Whoever steps them writes it.
        moves: how often a snapshot was moved, since this object was made.
    """

    def __init__(self, policy: Policy, config: SelfPlayConfig) -> None:
        if policy.scale is None:
            raise image_error()
        self._policy, self._config = policy, config
        m, k = policy.members, config.slots
        self.weights: NDArray[np.float32] = aligned_zeros(
            (m, k + 1, policy.parameters.flat.shape[1])
        )
        self.mean = np.zeros((m, k + 1, policy.scale.mean.shape[1]), np.float32)
        self.inverse_std = self.mean.copy()
        self.serial = np.full((m, k + 1), -1, np.int64)
        self.met: list[NDArray[np.int64]] = []
        self.moves = 0
        self.taken = np.zeros(m, np.int64)
        self.rate = np.full((m, k), 0.5)
        self.games = np.zeros((m, k), np.int64)
        self.shares = np.zeros((m, k))
        self.snapshot(np.ones(m, np.bool_))

    @property
    def members(self) -> int:
        """M."""
        return len(self.weights)

    @property
    def networks(self) -> OpponentNetworks:
        """All M x (K + 1) networks, member after member; they change with the pool."""
        m, k = self.serial.shape
        scale = self._policy.scale
        assert scale is not None
        return networks_from_policy(
            self._policy,
            self.weights.reshape(m * k, -1),
            self.mean.reshape(m * k, -1),
            self.inverse_std.reshape(m * k, -1),
            np.repeat(scale.limit, k, axis=0),
            not self._config.deterministic,
        )

    def network_index(
        self, rows: NDArray[np.int64], serial: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Which of all networks the snapshots `serial` of the members `rows` are, [n] each."""
        spare = self.serial.shape[1] - 1
        moved = self.serial[rows, spare] == serial
        return np.where(moved, spare, serial % spare) + rows * (spare + 1)

    def _is_playing(self, member: int, slot: int) -> bool:
        """Whether the snapshot in a place is in a game under way."""
        serial = self.serial[member, slot]
        own = [met.reshape(self.members, -1)[member] for met in self.met]
        return bool(serial >= 0 and any((met == serial).any() for met in own))

    def can_snapshot(self) -> NDArray[np.bool_]:
        """Whether members have room for another snapshot, [M]."""
        spare = self.serial.shape[1] - 1
        oldest = (self.taken % spare).tolist()
        return np.array(
            [
                not (self._is_playing(m, k) and self._is_playing(m, spare))
                for m, k in enumerate(oldest)
            ]
        )

    def snapshot(self, members: NDArray[np.bool_]) -> None:
        """Freeze the current weights of the members in a mask [M]; `can_snapshot` must allow it."""
        scale, flat = self._policy.scale, self._policy.parameters.flat
        assert scale is not None
        for m in np.flatnonzero(members).tolist():
            spare = self.serial.shape[1] - 1
            k = int(self.taken[m]) % spare
            if self._is_playing(m, k):
                for values in (self.weights, self.mean, self.inverse_std, self.serial):
                    values[m, spare] = values[m, k]
                self.moves += 1
            self.weights[m, k] = flat[m]
            self.mean[m, k], self.inverse_std[m, k] = scale.mean[m], scale.inverse_std[m]
            self.serial[m, k] = self.taken[m]
            self.rate[m, k], self.games[m, k] = 0.5, 0
            self.taken[m] += 1
        self.update_shares()

    def record_game(self, member: int, serial: int, points: float) -> None:
        """Takes one game into the estimate: `points` is 1 for a win, 1/2 for a draw, 0.

        rate += (points - rate) / (n + 2) after n games: their mean and one game at 1/2; from WINDOW
        games on older ones fade.
        """
        slot = serial % self.rate.shape[1]
        if self.serial[member, slot] != serial:
            return  # another one sits there now
        n = min(int(self.games[member, slot]), WINDOW)
        self.rate[member, slot] += (points - self.rate[member, slot]) / (n + 2)
        self.games[member, slot] += 1

    def update_shares(self) -> None:
        """Makes the shares of the next iteration from the estimates.

        The weights of `pfsp` are those of Vinyals et al. 2019, "Grandmaster level in StarCraft II
        using multi-agent reinforcement learning".
        """
        config, serial = self._config, self.serial[:, :-1]
        there = serial >= 0
        if config.sampling == "latest":
            weight = (serial == self.taken[:, None] - 1).astype(np.float64)
        elif config.sampling == "uniform":
            weight = there.astype(np.float64)
        else:
            hard = config.pfsp_weighting == "hard"
            lost = 1.0 - self.rate
            weight = np.where(there, lost**2.0 if hard else self.rate * lost, 0.0)
            weight += np.where(there, 1e-6, 0.0)  # who is always beaten is still met at times
        self.shares[:] = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True)

    def with_uniform_shares(self) -> SnapshotPool:
        """The same snapshots as they are now, each met as often as the others."""
        even, there = copy(self), self.serial[:, :-1] >= 0
        even.shares = np.cumsum(there, axis=1) / there.sum(axis=1, keepdims=True)
        return even

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from, member axis first."""
        names = ("weights", "mean", "inverse_std", "serial", "taken", "rate", "games")
        return {name: getattr(self, name).copy() for name in names}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`; from one of before the spare place, too."""
        for name, values in state.items():
            getattr(self, name)[tuple(map(slice, values.shape))] = values
        self.update_shares()


RECENT = 100  # games that shares of wins, draws and losses are of


class SelfPlayOpponents:
    """Whom M members play against, and how their games ended.

    Args:
        members: M.
        config: when snapshots are taken.
        pool: of snapshots; None where none play.
        decided: the game says who won.
        make_even: makes an environment of games against a pool.

    Attributes:
        ratings: of the members by games against their pools; None where there are none.
        results: float64 [M, RECENT], 1, 0 or -1 of the last games; NaN before them.
        played: int64 [M], games so far.
        iterations, episodes, games: int64 [M], since the last snapshot; of `games` the result is
            known. points: float64 [M], won in those.
    """

    def __init__(
        self,
        members: int,
        config: SelfPlayConfig,
        pool: SnapshotPool | None,
        decided: bool,
        make_even: Callable[[SnapshotPool], Environment],
    ) -> None:
        self._evenly, self._config, self.pool, self._decided = make_even, config, pool, decided
        self.results = np.full((members, RECENT), np.nan)
        self.played, self.iterations, self.episodes, self.games = np.zeros((4, members), np.int64)
        self.points = np.zeros(members)
        rates = pool is not None and decided
        self.ratings = Ratings(members, config.slots) if rates else None

    def record_games(self, ended: Episodes, copies: int) -> None:
        """Takes an iteration's games in, in the order (t, e).

        Args:
            ended: of all members; copies: of each.
        """
        serials = ended.metrics["snapshot"].astype(np.int64).tolist()
        members = ended.e // copies
        np.add.at(self.episodes, members, 1)
        if not self._decided:
            return
        results = ended.metrics["won"] - ended.metrics["lost"]
        for i, m in enumerate(members.tolist()):
            result = float(results[i])
            points = 0.5 * (result + 1.0)
            self.results[m, self.played[m] % RECENT] = result
            self.played[m] += 1
            self.games[m] += 1
            self.points[m] += points
            if self.pool is not None and serials[i] >= 0:
                self.pool.record_game(m, serials[i], points)

    def advance(self) -> None:
        """Ends an iteration: snapshots of the weights as they are now, where they are due."""
        self.iterations += 1
        if self.pool is None:
            return
        due = self._due() & self.pool.can_snapshot()
        for since in (self.iterations, self.episodes, self.games, self.points):
            since[due] = 0
        self.pool.snapshot(due)
        if self.ratings is not None:
            self.ratings.add_snapshots(due, (self.pool.taken - 1) % self._config.slots)

    def _due(self) -> NDArray[np.bool_]:
        config = self._config
        due = np.zeros(len(self.iterations), np.bool_)
        if config.snapshot_iterations is not None:
            due |= self.iterations >= config.snapshot_iterations
        if config.snapshot_episodes is not None:
            due |= self.episodes >= config.snapshot_episodes
        if config.snapshot_win_rate is not None:
            enough = self.games >= config.gate_episodes
            due |= enough & (self.points >= config.snapshot_win_rate * self.games)
        return due

    def rating_environment(self) -> Environment | None:
        """Games of each member against its snapshots, all equally often; none without ratings."""
        if self.pool is None or self.ratings is None or openskill_missing():
            return None
        return self._evenly(self.pool.with_uniform_shares())

    def rate(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[np.float64]]:
        """Rate the members by games of a rehearsal."""
        assert self.ratings is not None
        return self.ratings.update(games)

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Shares of recent games [M] by name, NaN before the first; and snapshots taken."""
        found = {}
        if self._decided:
            found = outcome_fractions(self.results)
        if self.pool is not None:
            found["snapshots"] = self.pool.taken.astype(np.float64)
        return found

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything that training goes on from, member axis first."""
        state = {name: getattr(self, name).copy() for name in _STATE}
        if self.pool is not None:
            state |= {f"pool.{name}": value for name, value in self.pool.state_dict().items()}
        if self.ratings is not None:
            own = self.ratings.state_dict()
            state |= {f"ratings.{name}": value for name, value in own.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from `state_dict()`."""
        for name in _STATE:
            getattr(self, name)[:] = state[name]
        for prefix, part in (("pool.", self.pool), ("ratings.", self.ratings)):
            if part is not None:
                own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
                part.load_state_dict(own)


_STATE = ("results", "played", "iterations", "episodes", "games", "points")


def outcome_fractions(results: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Shares [M] of wins, draws and losses among results [M, n]; NaN counts as no game."""
    known = np.isfinite(results).sum(axis=1)
    games = np.where(known > 0, known, np.nan)
    names = {"wins": results > 0, "draws": results == 0, "losses": results < 0}
    return {name: where.sum(axis=1) / games for name, where in names.items()}
