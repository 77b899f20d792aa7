"""Opponents of learners in self-play: opponent pool, snapshots of a population, match results."""

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
from slipstream.core.storage.checkpoint import strip_prefix
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
    """Opponents and their weights.

    Attributes:
        names: names as written in the config.
        weights: [kinds], unnormalized weight of each opponent.
        networks: networks of trained policies, by index in `names`.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    networks: Mapping[int, OpponentNetworks] = field(default_factory=dict)

    @classmethod
    def from_weights(
        cls, key: str, opponents: Mapping[str, float], spec: EnvSpec, game: str, stochastic: bool
    ) -> OpponentPool:
        """Resolve the names of opponents and load their policies.

        Args:
            key: config key of the weights, for messages.
            opponents: weight by name.
            spec: spec of one player.
            game: short name of the game.
            stochastic: policies sample their actions; else they take the most likely ones.

        Raises:
            ConfigError: an unknown name, a policy of another game or shape, or all weights are 0.
        """
        if not any(opponents.values()):
            raise ConfigError(
                f"All weights in `{key}` are 0. Give one opponent a weight, such as "
                f"`{{{next(iter(opponents))}: 1}}`."
            )
        networks = {}
        for k, name in enumerate(opponents):
            if name in _BUILT_IN:
                continue
            if not is_file(name):
                raise _unknown_opponent(key, name)
            networks[k] = load_opponent_network(name, spec, game, stochastic)
        weights = tuple(float(weight) for weight in opponents.values())
        return cls(tuple(opponents), weights, networks)

    @property
    def cumulative_shares(self) -> NDArray[np.float64]:
        """Cumulative probability of each opponent, [kinds]; the last one is 1."""
        total = np.cumsum(self.weights)
        return np.asarray(total / total[-1], np.float64)

    @property
    def short_names(self) -> dict[int, str]:
        """Unique names for tables, by index."""
        short = [re.sub(r"[^\w.-]+", "-", short_name(name)) for name in self.names]
        return {
            kind: name if short.count(name) == 1 else f"{name}-{kind}"
            for kind, name in enumerate(short)
        }

    @property
    def snapshot_kind(self) -> int:
        """Index of the snapshots; -1 if they do not play."""
        return self.names.index(SNAPSHOTS) if SNAPSHOTS in self.names else -1

    def without_snapshots(self) -> OpponentPool:
        """Return the pool for trained policies: without snapshots, `random` if nothing is left."""
        if self.snapshot_kind < 0:
            return self
        others = {n: w for n, w in zip(self.names, self.weights, strict=True) if n != SNAPSHOTS}
        if not any(others.values()):
            others = {**others, RANDOM: 1.0}
        weights = {**dict.fromkeys(self.names, 0.0), **others}  # indices stay the same
        return replace(self, names=tuple(weights), weights=tuple(weights.values()))

    @property
    def random_kind(self) -> int:
        """Index of the random player; -1 if it does not play."""
        return self.names.index(RANDOM) if RANDOM in self.names else -1


def load_opponent_network(
    name: str, spec: EnvSpec, game: str, stochastic: bool
) -> OpponentNetworks:
    """Load the network of a policy or of an ONNX file.

    Args:
        name: directory of a run, folder of a policy, or file.
        spec, game, stochastic: see `OpponentPool.from_weights`.

    Raises:
        ConfigError: it is missing, or of another game or shape.
    """
    if name.endswith(".onnx"):
        return read_onnx(Path(name).expanduser(), spec)
    try:
        policy = read_policy(name)
    except (ConfigError, CheckpointError) as error:
        raise ConfigError(f"The opponent {name} cannot be loaded: {error}") from error
    trained_on = policy.training_context.get("environment")
    if trained_on is not None and trained_on != game:
        raise ConfigError(
            f"The opponent {name} was trained on {trained_on}, but this game is {game}. Choose a "
            "policy of the same game."
        )
    actions, required = policy.actions.description(), ActionMap(spec.action_space).description()
    if policy.observation_shape != spec.observation_shape or actions != required:
        raise ConfigError(
            f"The opponent {name} has observations {policy.observation_shape} and actions "
            f"{actions}, but a player of {game} has {spec.observation_shape} and {required}. Train "
            "it with these settings, or use the settings that it was trained with."
        )
    if policy.scale is None:
        raise image_error()
    scale = policy.scale
    flat = policy.parameters.flat
    return networks_from_policy(
        policy, flat, scale.mean, scale.inverse_std, scale.limit, stochastic
    )


def _unknown_opponent(key: str, name: str) -> ConfigError:
    advice = did_you_mean(name, _BUILT_IN, f"give {' or '.join(_BUILT_IN)},")
    return ConfigError(
        f"`{key}` names an unknown opponent `{name}`; {advice} the directory of a run, the folder "
        "of a policy, or an .onnx file. Bots of a game have their own keys in `env` (hockey: "
        "`env.opponents`)."
    )


_BUILT_IN = (SNAPSHOTS, RANDOM)


WINDOW = 100  # games in the moving average of a win rate


class SnapshotPool:
    """Snapshots of M members, at most K each. The first one has the untrained weights.

    Results and snapshots are added between iterations, never during a rollout. A new snapshot
    replaces the oldest of K. If the oldest is still playing, it moves to a spare slot and finishes
    its games there; their results are ignored. Until then no further snapshot replaces one that is
    still playing.

    Args:
        policy: policy of the members during training.
        config: self-play settings.

    Attributes:
        weights: float32 [M, K + 1, P]; the last slot is the spare one.
        mean, inverse_std: float32 [M, K + 1, D], scaling of observations.
        serial: int64 [M, K + 1], serial number of the snapshot in a slot; -1: empty.
        num_taken: int64 [M], snapshots taken so far.
        win_rate: float64 [M, K], estimated share of points that the member wins against each.
        num_games: int64 [M, K], games in that estimate.
        cumulative_shares: float64 [M, K], cumulative sampling probability of each.
        active_serials: an int64 [E] for each batch of training environments: serial number of the
            snapshot in the running game, -1 for none. Written by the environment.
        relocations: number of snapshots moved to the spare slot since construction.
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
        self.active_serials: list[NDArray[np.int64]] = []
        self.relocations = 0
        self.num_taken = np.zeros(m, np.int64)
        self.win_rate = np.full((m, k), 0.5)
        self.num_games = np.zeros((m, k), np.int64)
        self.cumulative_shares = np.zeros((m, k))
        self.snapshot(np.ones(m, np.bool_))

    @property
    def members(self) -> int:
        """Number of members."""
        return len(self.weights)

    @property
    def networks(self) -> OpponentNetworks:
        """All M x (K + 1) networks, ordered by member; they share memory with the pool."""
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
        """Return the indices in `networks` of the snapshots `serial` of the members `rows`, [n]."""
        spare = self.serial.shape[1] - 1
        moved = self.serial[rows, spare] == serial
        return np.where(moved, spare, serial % spare) + rows * (spare + 1)

    def _is_playing(self, member: int, slot: int) -> bool:
        """Return whether the snapshot in a slot is in a running game."""
        serial = self.serial[member, slot]
        active = [serials.reshape(self.members, -1)[member] for serials in self.active_serials]
        return bool(serial >= 0 and any((serials == serial).any() for serials in active))

    def can_snapshot(self) -> NDArray[np.bool_]:
        """Return which members have a slot for another snapshot, [M]."""
        spare = self.serial.shape[1] - 1
        oldest = (self.num_taken % spare).tolist()
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
            k = int(self.num_taken[m]) % spare
            if self._is_playing(m, k):
                for values in (self.weights, self.mean, self.inverse_std, self.serial):
                    values[m, spare] = values[m, k]
                self.relocations += 1
            self.weights[m, k] = flat[m]
            self.mean[m, k], self.inverse_std[m, k] = scale.mean[m], scale.inverse_std[m]
            self.serial[m, k] = self.num_taken[m]
            self.win_rate[m, k], self.num_games[m, k] = 0.5, 0
            self.num_taken[m] += 1
        self.update_shares()

    def record_game(self, member: int, serial: int, points: float) -> None:
        """Update a win rate with one game: `points` is 1 for a win, 0.5 for a draw, else 0.

        rate += (points - rate) / (n + 2) after n games, the mean with a prior of one draw. n is
        limited to WINDOW, so older games fade.
        """
        slot = serial % self.win_rate.shape[1]
        if self.serial[member, slot] != serial:
            return  # it was replaced
        n = min(int(self.num_games[member, slot]), WINDOW)
        self.win_rate[member, slot] += (points - self.win_rate[member, slot]) / (n + 2)
        self.num_games[member, slot] += 1

    def update_shares(self) -> None:
        """Compute the sampling probabilities of the next iteration from the win rates.

        PFSP weights as in Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent
        reinforcement learning".
        """
        config, serial = self._config, self.serial[:, :-1]
        exists = serial >= 0
        if config.sampling == "latest":
            weight = (serial == self.num_taken[:, None] - 1).astype(np.float64)
        elif config.sampling == "uniform":
            weight = exists.astype(np.float64)
        else:
            hard = config.pfsp_weighting == "hard"
            loss_rate = 1.0 - self.win_rate
            weight = np.where(exists, loss_rate**2.0 if hard else self.win_rate * loss_rate, 0.0)
            weight += np.where(exists, 1e-6, 0.0)  # a snapshot that always loses still plays
        self.cumulative_shares[:] = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True)

    def with_uniform_shares(self) -> SnapshotPool:
        """Return a pool of the same snapshots with equal sampling probabilities."""
        uniform, exists = copy(self), self.serial[:, :-1] >= 0
        uniform.cumulative_shares = np.cumsum(exists, axis=1) / exists.sum(axis=1, keepdims=True)
        return uniform

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint, member axis first."""
        return {name: getattr(self, name).copy() for name in _POOL_STATE}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state_dict()`; one without the spare slot is accepted."""
        for name, values in state.items():
            getattr(self, name)[tuple(map(slice, values.shape))] = values
        self.update_shares()


_POOL_STATE = ("weights", "mean", "inverse_std", "serial", "num_taken", "win_rate", "num_games")
RECENT = 100  # games in the shares of wins, draws and losses


class SelfPlayOpponents:
    """Opponents of M members and their match results.

    Args:
        members: number of members, M.
        config: self-play settings.
        pool: pool of snapshots; None if none play.
        has_winner: the game declares a winner.
        make_rating_env: makes an environment of games against a pool.

    Attributes:
        ratings: ratings of the members against their pools; None without a pool or a winner.
        results: float64 [M, RECENT], results of the last games: 1, 0 or -1; NaN if there are none.
        played: int64 [M], games so far.
        iterations, episodes, games: int64 [M], counts since the last snapshot; `games` counts those
            with a result.
        points: float64 [M], points won in `games`.
    """

    def __init__(
        self,
        members: int,
        config: SelfPlayConfig,
        pool: SnapshotPool | None,
        has_winner: bool,
        make_rating_env: Callable[[SnapshotPool], Environment],
    ) -> None:
        self._make_rating_env, self._config, self.pool, self._has_winner = (
            make_rating_env,
            config,
            pool,
            has_winner,
        )
        self.results = np.full((members, RECENT), np.nan)
        self.played, self.iterations, self.episodes, self.games = np.zeros((4, members), np.int64)
        self.points = np.zeros(members)
        rates = pool is not None and has_winner
        self.ratings = Ratings(members, config.slots) if rates else None

    def record_games(self, ended: Episodes, num_envs: int) -> None:
        """Record the games of an iteration, in the order (t, e).

        Args:
            ended: finished episodes of all members.
            num_envs: sub-environments per member.
        """
        serials = ended.metrics["snapshot"].astype(np.int64).tolist()
        members = ended.e // num_envs
        np.add.at(self.episodes, members, 1)
        if not self._has_winner:
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
        """End an iteration: take the snapshots that are due."""
        self.iterations += 1
        if self.pool is None:
            return
        due = self._due() & self.pool.can_snapshot()
        for counter in (self.iterations, self.episodes, self.games, self.points):
            counter[due] = 0
        self.pool.snapshot(due)
        if self.ratings is not None:
            self.ratings.add_snapshots(due, (self.pool.num_taken - 1) % self._config.slots)

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
        """Return an environment of games against all snapshots equally often; None if unrated."""
        if self.pool is None or self.ratings is None or openskill_missing():
            return None
        return self._make_rating_env(self.pool.with_uniform_shares())

    def rate(self, games: Sequence[Sequence[EpisodeResult]]) -> dict[str, NDArray[np.float64]]:
        """Rate the members by games in the rating environment."""
        assert self.ratings is not None
        return self.ratings.update(games)

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Return shares of recent wins, draws and losses [M], and the number of snapshots."""
        columns = {}
        if self._has_winner:
            columns = outcome_fractions(self.results)
        if self.pool is not None:
            columns["snapshots"] = self.pool.num_taken.astype(np.float64)
        return columns

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint, member axis first."""
        state = {name: getattr(self, name).copy() for name in _STATE}
        if self.pool is not None:
            state |= {f"pool.{name}": value for name, value in self.pool.state_dict().items()}
        if self.ratings is not None:
            ratings = self.ratings.state_dict()
            state |= {f"ratings.{name}": value for name, value in ratings.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a `state_dict()`."""
        for name in _STATE:
            getattr(self, name)[:] = state[name]
        for prefix, part in (("pool.", self.pool), ("ratings.", self.ratings)):
            if part is not None:
                part.load_state_dict(strip_prefix(prefix, state))


_STATE = ("results", "played", "iterations", "episodes", "games", "points")


def outcome_fractions(results: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return shares [M] of wins, draws and losses in results [M, n]; NaN is no game."""
    count = np.isfinite(results).sum(axis=1)
    games = np.where(count > 0, count, np.nan)
    outcomes = {"wins": results > 0, "draws": results == 0, "losses": results < 0}
    return {name: mask.sum(axis=1) / games for name, mask in outcomes.items()}
