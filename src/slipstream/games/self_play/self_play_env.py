"""Two-player games as single-agent environments.

`GameEnvironment` is the environment for training. `SelfPlayEnv` steps the games and lets an
opponent act for the other player.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.config import Config, find_model
from slipstream.core.errors import ConfigError
from slipstream.core.random import stream, word
from slipstream.core.storage.checkpoint import strip_prefix
from slipstream.games.ratings import openskill_missing
from slipstream.games.self_play.config import (
    DEFAULTS,
    SelfPlayConfig,
    get_self_play,
    with_default_opponent,
    with_self_play_key,
)
from slipstream.games.self_play.opponent_networks import (
    OpponentBatch,
    OpponentNetworks,
    act_continuous,
    act_discrete,
    empty_networks,
    random_continuous,
    random_discrete,
    with_buffers,
)
from slipstream.games.self_play.opponents import OpponentPool, SelfPlayOpponents, SnapshotPool
from slipstream.jit.dependencies import ClosureBinder
from slipstream.jit.rng import OPPONENT, uniform_at
from slipstream.kernels.kernel import Kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import episode_state_dtype
from slipstream.kernels.spec import EnvSpec, Metric
from slipstream.kernels.vector_env import (
    Episodes,
    FinalObs,
    StepBuffers,
    VectorEnv,
    allocate_buffers,
)
from slipstream.rl.compiled_loops import b1, compile_loops, f4, f8, i8
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind
from slipstream.training.environments.parts import RANDOM, SNAPSHOTS, Players

_OUTCOME_METRICS = (Metric("won", "games"), Metric("lost", "games"))
_MATCH_METRICS = (
    Metric("player", "0 or 1"),
    Metric("opponent", "number"),
    Metric("snapshot", "number"),
)
_NO_SERIALS = np.full((1, 1), -1, np.int64)


def player_spec(spec: EnvSpec) -> EnvSpec:
    """Return the spec of one player of a two-player game.

    Raises:
        ConfigError: the number of players is not 2, or observations are images.
    """
    if spec.players != 2:
        raise ConfigError(
            f"`env.self_play` requires a game for two players, but here {spec.players} player(s) "
            "act from outside. Remove the section (hockey: give `env.opponents.agent` a weight)."
        )
    if spec.observation_dtype != np.float32:
        raise ConfigError(
            "`env.self_play` requires vector observations, but these are images. Use a Box of "
            "float32."
        )
    outcome = _OUTCOME_METRICS if spec.winner is not None else ()
    return replace(spec, players=1, metrics=(*spec.metrics, *outcome, *_MATCH_METRICS))


class SelfPlayEnv(VectorEnv):
    """Batch of a two-player game with one learner; rows are the learner's, [E, ...].

    The other player is a snapshot, a trained policy, or random. The learner's player and the
    opponent are drawn from (seed, index, episode) when an episode begins. Metrics of an episode are
    `won`, `lost`, the learner's `player`, the `opponent` (its index in the pool) and the serial
    number of the `snapshot`, -1 for none.

    A kernel whose STATE has `learner` and `kind` [2] draws the learner's player in its `reset`. It
    acts for the other player itself if ``kind[1 - learner]`` is not 0: the opponent is then a bot,
    and the metric is minus its kind.

    Args:
        game: environments of the game; owned by this object.
        opponent_pool: opponents and their weights.
        pool: pool of snapshots.
        evaluation: finished environments wait, and the learner of episode j is player j % 2; else
            it is drawn.

    Raises:
        ConfigError: snapshots play, but there is no pool.
    """

    def __init__(
        self,
        game: KernelVectorEnv,
        opponent_pool: OpponentPool,
        pool: SnapshotPool | None,
        evaluation: bool,
    ) -> None:
        if (
            pool is None
            and opponent_pool.snapshot_kind >= 0
            and opponent_pool.weights[opponent_pool.snapshot_kind] > 0.0
        ):
            raise ConfigError(
                "The opponent `snapshots` requires a learner, and there is none. Choose another "
                "opponent, such as `env.self_play.opponents: {random: 1}`."
            )
        self.game, self.opponent_pool, self._pool = game, opponent_pool, pool
        self._evaluation = evaluation
        self._kernel_draws_learner = {"learner", "kind"} <= set(game.state.dtype.names or ())
        self.num_envs, self.backend, self.mask_size = game.num_envs, game.backend, game.mask_size
        self.spec = player_spec(game.spec)
        e, inner = self.num_envs, allocate_buffers(game)
        self._obs, self._reward, self._mask = inner.obs, inner.reward, inner.mask
        self._joint_actions = np.zeros((e, 2, self.spec.action_dim), self.spec.action_dtype)
        learner, kind, serial = np.zeros((3, e), np.int64)
        self._matches = Matches(learner, kind, serial, np.zeros(e, np.uint64))
        self._relocations = 0  # of the pool, that are already followed
        if pool is not None and not evaluation:
            pool.active_serials.append(serial)
        self._loops = loops()
        self._kind = "continuous" if self.spec.action_dtype == np.float32 else "discrete"
        self._actors = self._acting_opponents()
        # Finished episodes: learner, kind, serial; final observations: learner.
        self._log: list[NDArray[np.int64]] = []
        self._final_learners: list[NDArray[np.int64]] = []

    def _acting_opponents(self) -> list[tuple[int, str, OpponentNetworks, OpponentBatch]]:
        """Return kind, loop, networks and buffers of each opponent outside the kernel."""
        e, opponent_pool = self.num_envs, self.opponent_pool
        actors: list[tuple[int, str, OpponentNetworks]] = []
        if opponent_pool.random_kind >= 0:
            actors.append(
                (opponent_pool.random_kind, "random", empty_networks(self.spec.action_space))
            )
        for kind, networks in opponent_pool.networks.items():
            actors.append((kind, "act", with_buffers(networks)))
        if self._pool is not None and opponent_pool.snapshot_kind >= 0:
            actors.append((opponent_pool.snapshot_kind, "act", self._pool.networks))
        mask = np.zeros((0, 0, 0), np.bool_) if self._mask is None else self._mask
        obs, step = self._obs.reshape(e, 2, -1), np.zeros(e, np.int64)
        env_order, matches, self._steps = np.zeros(e, np.int64), self._matches, step
        players = []
        for kind, prefix, networks in actors:
            network, first = np.full(e, -1, np.int64), np.zeros(len(networks.weights) + 1, np.int64)
            batch = OpponentBatch(
                obs, mask, matches.learner, network, matches.noise, step, env_order, first
            )
            players.append((kind, f"{prefix}_{self._kind}", networks, batch))
        return players

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._log.clear()
        self._final_learners.clear()
        self.game.reset_rows(self._obs, self._mask)
        self._draw_matches(np.arange(self.num_envs))
        self._write_learner_rows(obs, mask)

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        if actions.shape != (self.num_envs, self.spec.action_dim):
            raise ValueError(
                f"`actions` must have the shape {(self.num_envs, self.spec.action_dim)}, got "
                f"{actions.shape}."
            )
        if self._pool is not None and self._relocations != self._pool.relocations:
            self._assign_networks(np.arange(self.num_envs))
            self._relocations = self._pool.relocations
        self._loops[f"write_{self._kind}"](self._matches.learner, actions, self._joint_actions)
        self._steps[:] = self.game.episode_state["length"]
        for _, loop, networks, batch in self._actors:
            self._loops[loop](networks, batch, self._joint_actions)
        both = StepBuffers(
            self._obs, self._reward, out.terminated, out.truncated, out.valid, self._mask
        )
        self.game.step_rows(self._joint_actions, both, t)
        # Rewards belong to the learners of the ended episodes, observations to those of the next.
        self._write_learner_rows(None, None, out.reward)
        ended = np.flatnonzero(out.terminated | out.truncated)
        if len(ended):
            self._log_episodes(ended, out.terminated[ended])
        self._write_learner_rows(out.obs, out.mask)

    def _log_episodes(self, ended: NDArray[np.int64], terminated: NDArray[np.bool_]) -> None:
        """Log finished episodes and draw the next matches."""
        matches = self._matches
        columns = (matches.learner, matches.kind, matches.serial)
        self._log.append(np.stack([column[ended] for column in columns]))
        if not self._evaluation:
            self._final_learners.append(matches.learner[ended[~terminated]])
            self._draw_matches(ended)

    def _draw_matches(self, rows: NDArray[np.int64]) -> None:
        """Draw learner and opponent of episodes that have just begun."""
        matches, pool, opponent_pool = self._matches, self._pool, self.opponent_pool
        distribution = MatchDistribution(
            ALTERNATING if self._evaluation else SAMPLED,
            opponent_pool.cumulative_shares,
            _NO_SHARES if pool is None else pool.cumulative_shares,
            _NO_SERIALS if pool is None else pool.serial,
            opponent_pool.snapshot_kind,
        )
        self._loops["draw_matches"](distribution, rows, self.game.episode_state, matches)
        if self._kernel_draws_learner:
            matches.learner[rows] = self.game.state["learner"][rows]
            kernel_kind = self.game.state["kind"][rows, 1 - matches.learner[rows]]
            bots = rows[kernel_kind != 0]
            matches.kind[bots], matches.serial[bots] = -kernel_kind[kernel_kind != 0], -1
        self._assign_networks(rows)

    def _assign_networks(self, rows: NDArray[np.int64]) -> None:
        """Set the network that acts in each sub-environment."""
        matches, pool = self._matches, self._pool
        for kind, *_, batch in self._actors:
            index = np.zeros_like(rows)
            if kind == self.opponent_pool.snapshot_kind and pool is not None:
                members = rows // (self.num_envs // pool.members)
                index = pool.network_index(members, matches.serial[rows])
            batch.network[rows] = np.where(matches.kind[rows] == kind, index, -1)

    def _write_learner_rows(
        self,
        obs: NDArray[Any] | None,
        mask: NDArray[np.bool_] | None,
        reward: NDArray[np.float32] | None = None,
    ) -> None:
        """Write the learner's rows into the given arrays."""
        e = self.num_envs
        obs_rows = _NO_OBS if obs is None else obs.reshape(e, -1)
        if obs is not None and obs.shape != (e, *self.spec.observation_shape):
            expected = (e, *self.spec.observation_shape)
            raise ValueError(f"`obs` must have the shape {expected}, got {obs.shape}.")
        both_masks = self._mask
        if both_masks is None:
            both_masks, mask = _NO_MASKS, None
        mask_rows = _NO_MASK if mask is None else mask
        reward_rows = _NO_REWARD if reward is None else reward
        both_obs = self._obs.reshape(e, 2, -1)
        self._loops["copy_learner_rows"](
            self._matches.learner,
            both_obs,
            both_masks,
            self._reward,
            obs_rows,
            mask_rows,
            reward_rows,
        )

    def drain_final_obs(self) -> FinalObs:
        both = self.game.drain_final_obs()
        learner = np.concatenate([*self._final_learners, _NONE])
        self._final_learners.clear()
        return FinalObs(both.obs[np.arange(len(learner)), learner], both.index)

    def drain_episodes(self) -> Episodes:
        both = self.game.drain_episodes()
        log = np.concatenate([*self._log, np.zeros((3, 0), np.int64)], axis=1)
        self._log.clear()
        learner, kind, serial = log
        metrics = dict(both.metrics)
        if self.spec.winner is not None:
            points = metrics[self.spec.winner] * (1.0 - 2.0 * learner)
            metrics["won"] = (points > 0.0).astype(np.float64)
            metrics["lost"] = (points < 0.0).astype(np.float64)
        columns = {"player": learner, "opponent": kind, "snapshot": serial}
        metrics |= {name: column.astype(np.float64) for name, column in columns.items()}
        return both._replace(
            returns=both.returns[np.arange(len(learner)), learner], metrics=metrics
        )

    def begin(
        self,
        env_ids: NDArray[np.int64],
        episodes: NDArray[np.int64],
        seed: int,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.game.begin(env_ids, episodes, seed, self._obs, self._mask)
        self._draw_matches(env_ids)
        self._write_learner_rows(obs, mask)

    def restart(
        self,
        env_ids: NDArray[np.int64],
        seeds: NDArray[np.uint64] | None,
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.game.restart(env_ids, seeds, self._obs, self._mask)
        self._draw_matches(env_ids)
        self._write_learner_rows(obs, mask)

    def hold(self, held: NDArray[np.bool_]) -> None:
        self.game.hold(held)

    def read(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return self.game.read(names)

    def get_state(self) -> dict[str, NDArray[Any]]:
        matches = {
            f"matches.{name}": column.copy() for name, column in self._matches._asdict().items()
        }
        return {**self.game.get_state(), **matches}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.game.set_state(state, self._obs, self._mask)
        for name, column in self._matches._asdict().items():
            column[:] = state[f"matches.{name}"]
        self._log.clear()
        self._final_learners.clear()
        self._assign_networks(np.arange(self.num_envs))
        self._write_learner_rows(obs, mask)

    def close(self) -> None:
        self.game.close()


_NONE = np.zeros(0, np.int64)
_NO_SHARES = np.ones((1, 1))
_NO_OBS = np.zeros((0, 0), np.float32)
_NO_MASKS = np.zeros((0, 0, 0), np.bool_)
_NO_MASK = np.zeros((0, 0), np.bool_)
_NO_REWARD = np.zeros(0, np.float32)


SAMPLED, ALTERNATING = 0, 1  # choice of the learner's player
_OPPONENT = np.uint64(OPPONENT)
_ONE = np.uint64(1)
# Counters in the random stream of an episode's opponent.
_LEARNER = np.uint64(0)
_KIND = 1
_SLOT = 2
_NOISE = np.uint64(3)


class Matches(NamedTuple):
    """Match of the running episode of each sub-environment.

    Attributes:
        learner: int64 [E], player that learns, 0 or 1.
        kind: int64 [E], index of the opponent in its pool.
        serial: int64 [E], serial number of the snapshot; -1 for none.
        noise: uint64 [E], random stream of the opponent's actions.
    """

    learner: Any
    kind: Any
    serial: Any
    noise: Any


class MatchDistribution(NamedTuple):
    """Distribution of matches for M members.

    Attributes:
        mode: SAMPLED or ALTERNATING.
        opponent_shares: float64 [kinds], cumulative probabilities of the opponents.
        snapshot_shares: float64 [M, K], cumulative probabilities of each member's snapshots.
        serial: int64 [M, K + 1], serial numbers of the snapshots.
        snapshots: index of the snapshots in the pool of opponents; -1 for none.
    """

    mode: int
    opponent_shares: Any
    snapshot_shares: Any
    serial: Any
    snapshots: int


def draw_matches(distribution: Any, rows: Any, episode_state: Any, matches: Any) -> None:
    """Draw learner and opponent of the episodes that have just begun in `rows`.

    Both depend only on (seed, index, episode), as the episode's random stream does.

    Args:
        distribution: MatchDistribution.
        rows: int64 [n], indices of sub-environments.
        episode_state: [E], records of the batch loop.
        matches: Matches, written.
    """
    envs_per_member = len(episode_state) // len(distribution.snapshot_shares)
    for e in rows:
        b = episode_state[e]
        episode = b.episode - _ONE
        key = word(stream(b.seed, b.index, episode), _OPPONENT)
        matches.noise[e] = word(key, _NOISE)
        parity = b.index + episode if distribution.mode == ALTERNATING else word(key, _LEARNER)
        matches.learner[e] = np.int64(parity & _ONE)
        kind = sample_index(distribution.opponent_shares, uniform_at(key, _KIND))
        matches.kind[e], matches.serial[e] = kind, -1
        if kind == distribution.snapshots:
            m = e // envs_per_member
            slot = sample_index(distribution.snapshot_shares[m], uniform_at(key, _SLOT))
            matches.serial[e] = distribution.serial[m, slot]


def sample_index(shares: Any, u: float) -> int:
    """Return the first index whose cumulative share exceeds u, else the last index."""
    for i in range(len(shares) - 1):
        if u < shares[i]:
            return i
    return len(shares) - 1


def copy_learner_rows(
    learner: Any, obs: Any, mask: Any, reward: Any, to_obs: Any, to_mask: Any, to_reward: Any
) -> None:
    """Copy the rows of the learner.

    Args:
        learner: int64 [E].
        obs: float32 [E, 2, D].
        mask: bool [E, 2, n].
        reward: float32 [E, 2].
        to_obs, to_mask, to_reward: outputs without the second axis; skipped if their length is 0.
    """
    for e in range(len(to_obs)):
        for j in range(to_obs.shape[1]):
            to_obs[e, j] = obs[e, learner[e], j]
    for e in range(len(to_mask)):
        for j in range(to_mask.shape[1]):
            to_mask[e, j] = mask[e, learner[e], j]
    for e in range(len(to_reward)):
        to_reward[e] = reward[e, learner[e]]


def write_continuous(learner: Any, actions: Any, joint: Any) -> None:
    """Write the learner's actions, float32 [E, K], into the joint actions [E, 2, K]."""
    for e in range(len(learner)):
        for j in range(actions.shape[1]):
            joint[e, learner[e], j] = actions[e, j]


def write_discrete(learner: Any, actions: Any, joint: Any) -> None:
    """Write the learner's actions, int64 [E, K], into the joint actions [E, 2, K]."""
    for e in range(len(learner)):
        for j in range(actions.shape[1]):
            joint[e, learner[e], j] = actions[e, j]


_KEYS = np.zeros(1, np.uint64)
_ROWS, _LINE, _NUMBERS = f4(2), f4(1), i8(1)
_NETWORKS = empty_networks(spaces.Discrete(2))
_BATCH = OpponentBatch(
    obs=f4(3),
    mask=b1(3),
    learner=_NUMBERS,
    network=_NUMBERS,
    noise=_KEYS,
    step=_NUMBERS,
    env_order=_NUMBERS,
    first=_NUMBERS,
)
_MATCHES = Matches(i8(1), i8(1), i8(1), _KEYS)
_DISTRIBUTION = MatchDistribution(0, f8(1), f8(2), i8(2), 0)

# Example arguments of every loop, which define the types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    act_continuous: (_NETWORKS, _BATCH, f4(3)),
    act_discrete: (_NETWORKS, _BATCH, i8(3)),
    random_continuous: (_NETWORKS, _BATCH, f4(3)),
    random_discrete: (_NETWORKS, _BATCH, i8(3)),
    draw_matches: (_DISTRIBUTION, i8(1), np.zeros(1, episode_state_dtype(2)), _MATCHES),
    copy_learner_rows: (_NUMBERS, f4(3), b1(3), _ROWS, _ROWS, b1(2), _LINE),
    write_continuous: (i8(1), f4(2), f4(3)),
    write_discrete: (i8(1), i8(2), i8(3)),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Return the compiled loops by name."""
    return compile_loops("self_play", _EXAMPLES)


_SIDES = ("left", "right")
_POOL = "pool."  # prefix in a state of `SelfPlayOpponents`
_SNAPSHOTS_ONLY = {SNAPSHOTS: 1.0}


@dataclass(frozen=True)
class SelfPlay:
    """Resolved self-play settings.

    Attributes:
        config: validated settings.
        spec: spec of both players.
        training, evaluation: opponents in training and in evaluations.
        pool: snapshots of the members in training; None without training.
    """

    config: SelfPlayConfig
    spec: EnvSpec
    training: OpponentPool
    evaluation: OpponentPool
    pool: SnapshotPool | None = None

    @classmethod
    def from_config(cls, config: SelfPlayConfig, name: str, spec: EnvSpec) -> SelfPlay:
        """Resolve the opponents of a game.

        Args:
            config: validated settings.
            name: short name of the game.
            spec: spec of both players.

        Raises:
            ConfigError: an opponent does not fit the game, or settings require a winner that the
                game does not declare.
        """
        if config.needs_results and spec.winner is None:
            key = "sampling: pfsp" if config.sampling == "pfsp" else "snapshot_win_rate"
            raise ConfigError(
                f"`env.self_play.{key}` requires results, but {name} declares no winner. Name "
                "a metric in its EnvSpec, winner='...', or remove the key."
            )
        triggers = (config.snapshot_iterations, config.snapshot_episodes, config.snapshot_win_rate)
        if SNAPSHOTS in config.opponents and all(trigger is None for trigger in triggers):
            raise ConfigError(
                "`env.self_play` has snapshots as opponents but never takes one. Set "
                "`snapshot_iterations`, `snapshot_episodes` or `snapshot_win_rate`."
            )

        def make_pool(key: str, weights: Mapping[str, float]) -> OpponentPool:
            return OpponentPool.from_weights(
                f"env.self_play.{key}", weights, player_spec(spec), name, not config.deterministic
            )

        training = make_pool("opponents", config.opponents)
        evaluation = make_pool("evaluation", config.evaluation or {RANDOM: 1.0})
        return cls(config, spec, training, evaluation)


@dataclass(frozen=True)
class GameEnvironment(KernelEnvironment, Players):
    """Environment of a kernel with several players.

    Attributes:
        self_play: opponents of a two-player game in which one player learns; None: all players act
            from outside.
        evaluator: environment for evaluations, if the kernel declares one; None: this one.
    """

    self_play: SelfPlay | None = None
    evaluator: GameEnvironment | None = None

    extended = staticmethod(with_self_play_key)

    def with_config(self, config: Config) -> Self:
        section, suggestion = get_self_play(config), self.kernel.hook("EVALUATION")
        if section is None:
            return self
        self_play, evaluator = SelfPlay.from_config(section, self.kind.short_name, self.spec), None
        if suggestion is not None and section.evaluation is None:
            evaluator = self.kind.load(config.model_dump() | suggestion | {"self_play": None})
        spec = player_spec(self.spec)
        return replace(
            self, spec=spec, self_play=self_play, evaluator=cast(GameEnvironment | None, evaluator)
        )

    @property
    def has_params(self) -> bool:
        return self.self_play is None  # a batch has a single pool of opponents

    @property
    def observed_bytes(self) -> int | None:
        return super().observed_bytes if self.self_play is None else None

    def without_rules(self) -> Self:
        evaluator = None if self.evaluator is None else self.evaluator.without_rules()
        return replace(super().without_rules(), evaluator=evaluator)

    def with_rules(self, kernel: Kernel, arrays: Sequence[NDArray[Any]]) -> Self:
        evaluator = None if self.evaluator is None else self.evaluator.with_rules(kernel, arrays)
        return replace(super().with_rules(kernel, arrays), evaluator=evaluator)

    def spec_for(self, records: tuple[Any, ...]) -> EnvSpec:
        spec = super().spec_for(records)
        return spec if self.self_play is None else player_spec(spec)

    def stepped(self, env: KernelVectorEnv, evaluation: bool) -> VectorEnv:
        self_play = self.self_play
        if self_play is None:
            return env
        opponents = self_play.evaluation if evaluation else self_play.training
        if evaluation and self_play.pool is None:  # the policy is already trained
            opponents = opponents.without_snapshots()
        return SelfPlayEnv(env, opponents, self_play.pool, evaluation)

    def make_eval_envs(self, *args: Any, **options: Any) -> VectorEnv:
        make = super().make_eval_envs if self.evaluator is None else self.evaluator.make_eval_envs
        return make(*args, **options)

    def against(
        self,
        opponents: Mapping[str, float],
        deterministic: bool | None = None,
        pool: SnapshotPool | None = None,
    ) -> Self:
        """Return the game with other opponents in evaluations; see `SelfPlayConfig`.

        Args:
            opponents: weight by name.
            deterministic: their policies take the most likely action; None: as configured.
            pool: pool of the snapshots among them; None: the pool of the trained members.

        Raises:
            ConfigError: an opponent is missing or does not fit, or the game is not for two players.
        """
        game = self.kind.short_name
        self_play = self.self_play or SelfPlay.from_config(DEFAULTS, game, self.spec)
        spec = player_spec(self_play.spec)
        if deterministic is None:
            deterministic = self_play.config.deterministic
        evaluation = OpponentPool.from_weights(
            "opponents", opponents, spec, game, not deterministic
        )
        pool = self_play.pool if pool is None else pool
        changed = replace(self_play, evaluation=evaluation, pool=pool)
        return replace(self, spec=spec, self_play=changed, evaluator=None)

    # Implementation of `Players`.

    @classmethod
    def with_opponent(
        cls, name: str, settings: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        return with_default_opponent(KernelKind(name).kernel, settings)

    @classmethod
    def bots(cls, name: str) -> list[str]:
        fields = KernelKind(name).model.model_fields
        weights = find_model(fields["opponents"].annotation) if _has_bots(name) else None
        return [kind for kind in weights.model_fields if kind != "agent"] if weights else [RANDOM]

    @classmethod
    def load_against(
        cls,
        name: str,
        settings: Mapping[str, Any],
        player: int,
        opponent: str,
        drawn: bool = False,
        past: Any = None,
    ) -> GameEnvironment:
        env = {**settings, "self_play": None}
        is_bot = _has_bots(name) and past is None and opponent in cls.bots(name)
        if _has_bots(name):
            env |= {"opponents": {opponent if is_bot else "agent": 1.0}, "side": _SIDES[player]}
        environment = cast(GameEnvironment, KernelKind(name).load(env))
        if not is_bot:  # without bots, the learner is player 0 in even episodes
            environment = environment.against({opponent: 1.0}, deterministic=not drawn, pool=past)
        if "won" not in [metric.name for metric in environment.spec.metrics]:
            raise ConfigError(
                f"`{environment.kind.short_name}` declares no winner. Name a metric in its EnvSpec,"
                " winner='...', that is above 0 if player 0 won and below 0 if player 1 won."
            )
        return environment

    @classmethod
    def best_response_settings(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
        weights = {opponent: 1.0}
        self_play = {"opponents": weights, "evaluation": weights, "deterministic": not drawn}
        keys = {"opponents": {"agent": 1.0}, "side": "both"} if _has_bots(name) else {}
        return {"self_play": self_play, **keys}

    @classmethod
    def past(
        cls, settings: Mapping[str, Any], policy: Policy, state: Mapping[str, NDArray[Any]]
    ) -> SnapshotPool | None:
        tensors = strip_prefix(_POOL, state)
        if not tensors:
            return None
        section = SelfPlayConfig.model_validate(settings["self_play"])
        pool = SnapshotPool(policy, section.model_copy(update={"deterministic": True}))
        pool.load_state_dict(tensors)
        return pool

    @property
    def names(self) -> Mapping[int, str]:
        environment = self.evaluator or self
        players = environment.kernel.hook("PLAYERS") or ()
        bots = {-number: name for number, name in enumerate(players)}
        self_play = environment.self_play
        if self_play is None:
            return bots
        return bots | self_play.evaluation.without_snapshots().short_names

    @property
    def deterministic_opponents(self) -> frozenset[str]:
        self_play, kernel = (self.evaluator or self).self_play, self.kernel
        if self_play is None or any(
            word in ClosureBinder.reachable_functions(f) for f in (kernel.reset, kernel.step)
        ):
            return frozenset()
        pool = self_play.evaluation.without_snapshots()
        return frozenset(
            pool.short_names[k] for k, networks in pool.networks.items() if not networks.stochastic
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        has_snapshots = self.self_play is not None and SNAPSHOTS in self.self_play.config.opponents
        message = openskill_missing() if has_snapshots else None
        return () if message is None else (message,)

    def for_training(self, policy: Policy) -> tuple[Environment, SelfPlayOpponents | None]:
        if self.self_play is None:
            return self, None
        self_play, pool = self.self_play, None
        if max(self_play.training.snapshot_kind, self_play.evaluation.snapshot_kind) >= 0:
            pool = SnapshotPool(policy, self_play.config)
        environment = replace(self, self_play=replace(self_play, pool=pool))
        opponents = SelfPlayOpponents(
            members=policy.members,
            config=self_play.config,
            pool=pool,
            has_winner=self_play.spec.winner is not None,
            make_rating_env=partial(environment.against, _SNAPSHOTS_ONLY, True),
        )
        return environment, opponents


def _has_bots(name: str) -> bool:
    """Return whether a kernel has bots, by its keys `opponents` and `side`."""
    return {"opponents", "side"} <= set(KernelKind(name).model.model_fields)
