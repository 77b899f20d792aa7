"""Two-player games as single-agent environments.

`GameEnvironment` is the environment that training sees. `SelfPlayEnv` steps the games and lets an
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

_OUTCOME = (Metric("won", "games"), Metric("lost", "games"))
_ABOUT = (Metric("seat", "0 or 1"), Metric("opponent", "number"), Metric("snapshot", "number"))
_NO_SERIALS = np.full((1, 1), -1, np.int64)


def player_spec(spec: EnvSpec) -> EnvSpec:
    """The outside of one seat of a game of two.

    Raises:
        ConfigError: more or fewer players, or what they see is no row of numbers.
    """
    if spec.players != 2:
        raise ConfigError(
            f"`env.self_play` says who acts in the second seat of a game of two, and here "
            f"{spec.players} player(s) act from outside: leave the section out (hockey: give "
            "`env.opponents.agent` a weight)."
        )
    if spec.observation_dtype != np.float32:
        raise ConfigError(
            "`env.self_play` shows rows of numbers, and these observations are images: make them "
            "a Box of float32."
        )
    outcome = _OUTCOME if spec.winner is not None else ()
    return replace(spec, players=1, metrics=(*spec.metrics, *outcome, *_ABOUT))


class SelfPlayEnv(VectorEnv):
    """Copies of a game of two; rows are those of the learner's seat, [E, ...].

    The other seat acts by a snapshot, a trained policy, or at random. Seat and opponent are drawn
    where an episode begins, from (seed, index, episode). An episode's metrics say whether the
    learner has `won` or `lost` it, its `seat`, the `opponent` (its place in the line-up) and the
    `snapshot`'s number, -1 for none.

    A kernel whose STATE has `seat` and `kind` [2] draws the learner's seat in its own `reset`; it
    acts in the other one by itself where ``kind[1 - seat]`` is not 0, as a player of its own of
    that number: the opponent is minus that number then.

    Args:
        game: the copies; they belong to this one from now on.
        line_up: who plays, and how often.
        pool: of snapshots.
        evaluation: the copies hold where an episode ends, and episode j is begun with the learner
            in seat j % 2; else its seat is drawn.

    Raises:
        ConfigError: snapshots play, and there is no pool.
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
            and opponent_pool.snapshots >= 0
            and opponent_pool.weights[opponent_pool.snapshots] > 0.0
        ):
            raise ConfigError(
                "The opponent `snapshots` is the learner's own past, and here nobody learns: name "
                "another opponent, such as `env.self_play.opponents: {random: 1}`."
            )
        self.game, self.opponent_pool, self._pool = game, opponent_pool, pool
        self._evaluation = evaluation
        self._kernel_draws = {"seat", "kind"} <= set(game.state.dtype.names or ())
        self.num_envs, self.backend, self.mask_size = game.num_envs, game.backend, game.mask_size
        self.spec = player_spec(game.spec)
        e, inner = self.num_envs, allocate_buffers(game)
        self._obs, self._reward, self._mask = inner.obs, inner.reward, inner.mask
        self._joint = np.zeros((e, 2, self.spec.action_dim), self.spec.action_dtype)
        seat, kind, serial = np.zeros((3, e), np.int64)
        self._matches = Matches(seat, kind, serial, np.zeros(e, np.uint64))
        self._moves = 0  # of the pool, that were followed
        if pool is not None and not evaluation:
            pool.met.append(serial)
        self._loops = loops()
        self._kind = "continuous" if self.spec.action_dtype == np.float32 else "discrete"
        self._players = self._acting_opponents()
        # Of episodes that ended: seat, kind, serial; of final observations: seat.
        self._log: list[NDArray[np.int64]] = []
        self._final_seats: list[NDArray[np.int64]] = []

    def _acting_opponents(self) -> list[tuple[int, str, OpponentNetworks, OpponentBatch]]:
        """Kind, loop, networks and buffers of each opponent that acts by a loop of ours."""
        e, opponent_pool = self.num_envs, self.opponent_pool
        found: list[tuple[int, str, OpponentNetworks]] = []
        if opponent_pool.random >= 0:
            found.append((opponent_pool.random, "random", empty_networks(self.spec.action_space)))
        for kind, networks in opponent_pool.networks.items():
            found.append((kind, "act", with_buffers(networks)))
        if self._pool is not None and opponent_pool.snapshots >= 0:
            found.append((opponent_pool.snapshots, "act", self._pool.networks))
        mask = np.zeros((0, 0, 0), np.bool_) if self._mask is None else self._mask
        obs, step = self._obs.reshape(e, 2, -1), np.zeros(e, np.int64)
        order, seats, self._steps = np.zeros(e, np.int64), self._matches, step
        players = []
        for kind, what, networks in found:
            network, first = np.full(e, -1, np.int64), np.zeros(len(networks.weights) + 1, np.int64)
            table = OpponentBatch(obs, mask, seats.seat, network, seats.noise, step, order, first)
            players.append((kind, f"{what}_{self._kind}", networks, table))
        return players

    def reset_rows(self, obs: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> None:
        self._log.clear()
        self._final_seats.clear()
        self.game.reset_rows(self._obs, self._mask)
        self._draw_matches(np.arange(self.num_envs))
        self._write_learner_rows(obs, mask)

    def step_rows(self, actions: NDArray[Any], out: StepBuffers, t: int = 0) -> None:
        if actions.shape != (self.num_envs, self.spec.action_dim):
            raise ValueError(f"`actions` has the shape {actions.shape} in {self.num_envs} copies")
        if self._pool is not None and self._moves != self._pool.moves:
            self._assign_networks(np.arange(self.num_envs))
            self._moves = self._pool.moves
        self._loops[f"place_{self._kind}"](self._matches.seat, actions, self._joint)
        self._steps[:] = self.game.episode_state["length"]
        for _, loop, networks, table in self._players:
            self._loops[loop](networks, table, self._joint)
        both = StepBuffers(
            self._obs, self._reward, out.terminated, out.truncated, out.valid, self._mask
        )
        self.game.step_rows(self._joint, both, t)
        # Rewards belong to the seats of the episode that ended here, observations to the next one.
        self._write_learner_rows(None, None, out.reward)
        ended = np.flatnonzero(out.terminated | out.truncated)
        if len(ended):
            self._log_episodes(ended, out.terminated[ended])
        self._write_learner_rows(out.obs, out.mask)

    def _log_episodes(self, ended: NDArray[np.int64], terminated: NDArray[np.bool_]) -> None:
        """Keeps what is known of episodes that ended, and seats the next ones."""
        seats = self._matches
        columns = (seats.seat, seats.kind, seats.serial)
        self._log.append(np.stack([column[ended] for column in columns]))
        if not self._evaluation:
            self._final_seats.append(seats.seat[ended[~terminated]])
            self._draw_matches(ended)

    def _draw_matches(self, rows: NDArray[np.int64]) -> None:
        """Draws seat and opponent of episodes that have just begun."""
        seats, pool, opponent_pool = self._matches, self._pool, self.opponent_pool
        shares, serial = (_NO_SHARES, _NO_SERIALS) if pool is None else (pool.shares, pool.serial)
        sides = ALTERNATING if self._evaluation else DRAWN
        draw = MatchDistribution(
            sides, opponent_pool.shares, shares, serial, opponent_pool.snapshots
        )
        self._loops["draw_matches"](draw, rows, self.game.episode_state, seats)
        if self._kernel_draws:
            seats.seat[rows] = self.game.state["seat"][rows]
            own = self.game.state["kind"][rows, 1 - seats.seat[rows]]
            acting = rows[own != 0]
            seats.kind[acting], seats.serial[acting] = -own[own != 0], -1
        self._assign_networks(rows)

    def _assign_networks(self, rows: NDArray[np.int64]) -> None:
        """Tells the loops which network acts in which copy."""
        seats, pool = self._matches, self._pool
        for kind, *_, table in self._players:
            at = np.zeros_like(rows)
            if kind == self.opponent_pool.snapshots and pool is not None:
                at = pool.network_index(rows // (self.num_envs // pool.members), seats.serial[rows])
            table.network[rows] = np.where(seats.kind[rows] == kind, at, -1)

    def _write_learner_rows(
        self,
        obs: NDArray[Any] | None,
        mask: NDArray[np.bool_] | None,
        reward: NDArray[np.float32] | None = None,
    ) -> None:
        """Writes the learner's rows of what is given."""
        e = self.num_envs
        seen = _NO_OBS if obs is None else obs.reshape(e, -1)
        if obs is not None and obs.shape != (e, *self.spec.observation_shape):
            raise ValueError(f"`obs` has the shape {obs.shape} in {e} copies")
        allowed = self._mask
        if allowed is None:
            allowed, mask = _NO_MASKS, None
        allowed_to = _NO_MASK if mask is None else mask
        reward_to = _NO_REWARD if reward is None else reward
        both = self._obs.reshape(e, 2, -1)
        self._loops["copy_learner_rows"](
            self._matches.seat, both, allowed, self._reward, seen, allowed_to, reward_to
        )

    def drain_final_obs(self) -> FinalObs:
        both = self.game.drain_final_obs()
        seat = np.concatenate([*self._final_seats, _NONE])
        self._final_seats.clear()
        return FinalObs(both.obs[np.arange(len(seat)), seat], both.index)

    def drain_episodes(self) -> Episodes:
        both = self.game.drain_episodes()
        log = np.concatenate([*self._log, np.zeros((3, 0), np.int64)], axis=1)
        self._log.clear()
        seat, kind, serial = log
        metrics = dict(both.metrics)
        if self.spec.winner is not None:
            points = metrics[self.spec.winner] * (1.0 - 2.0 * seat)
            metrics["won"] = (points > 0.0).astype(np.float64)
            metrics["lost"] = (points < 0.0).astype(np.float64)
        columns = {"seat": seat, "opponent": kind, "snapshot": serial}
        metrics |= {name: column.astype(np.float64) for name, column in columns.items()}
        return both._replace(returns=both.returns[np.arange(len(seat)), seat], metrics=metrics)

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
        seats = {f"seats.{name}": column.copy() for name, column in self._matches._asdict().items()}
        return {**self.game.get_state(), **seats}

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        obs: NDArray[Any],
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.game.set_state(state, self._obs, self._mask)
        for name, column in self._matches._asdict().items():
            column[:] = state[f"seats.{name}"]
        self._log.clear()
        self._final_seats.clear()
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


DRAWN, ALTERNATING = 0, 1  # how the learner's seat is found
_OPPONENT = np.uint64(OPPONENT)
_ONE = np.uint64(1)
# Places in the stream of an episode's opponent.
_SEAT = np.uint64(0)
_KIND = 1
_SLOT = 2
_NOISE = np.uint64(3)


class Matches(NamedTuple):
    """What was drawn for the running episode of each copy.

    Attributes:
        seat: int64 [E], the learner's, 0 or 1.
        kind: int64 [E], the opponent's number in its line-up.
        serial: int64 [E], number of a snapshot, else -1.
        noise: uint64 [E], the stream of the opponent's actions.
    """

    seat: Any
    kind: Any
    serial: Any
    noise: Any


class MatchDistribution(NamedTuple):
    """What is drawn from: M members.

    Attributes:
        sides: DRAWN or ALTERNATING.
        shares: float64 [kinds], shares of the line-up, summed up.
        slots: float64 [M, K], shares of each member's snapshots, summed up.
        serial: int64 [M, K + 1], numbers of its snapshots.
        snapshots: which kind they are, -1 for none.
    """

    sides: int
    shares: Any
    slots: Any
    serial: Any
    snapshots: int


def draw_matches(draw: Any, rows: Any, book: Any, seats: Any) -> None:
    """Draws seat and opponent of the episode that each of the copies `rows` has just begun.

    Both follow from (seed, index, episode), as the episode's own stream does.

    Args:
        draw: MatchDistribution; rows: int64 [n]; book: of the copies, [E]; seats: Matches, written.
    """
    copies = len(book) // len(draw.slots)
    for e in rows:
        b = book[e]
        episode = b.episode - _ONE
        key = word(stream(b.seed, b.index, episode), _OPPONENT)
        seats.noise[e] = word(key, _NOISE)
        side = b.index + episode if draw.sides == ALTERNATING else word(key, _SEAT)
        seats.seat[e] = np.int64(side & _ONE)
        kind = sample_index(draw.shares, uniform_at(key, _KIND))
        seats.kind[e], seats.serial[e] = kind, -1
        if kind == draw.snapshots:
            m = e // copies
            slot = sample_index(draw.slots[m], uniform_at(key, _SLOT))
            seats.serial[e] = draw.serial[m, slot]


def sample_index(shares: Any, u: float) -> int:
    """The first place whose sum of shares passes u; the last one for what rounding left over."""
    for i in range(len(shares) - 1):
        if u < shares[i]:
            return i
    return len(shares) - 1


def copy_learner_rows(
    seat: Any, obs: Any, mask: Any, reward: Any, to_obs: Any, to_mask: Any, to_reward: Any
) -> None:
    """Copies what belongs to the learner's seat.

    Args:
        seat: int64 [E]; obs: float32 [E, 2, D]; mask: bool [E, 2, n]; reward: float32 [E, 2].
        to_obs, to_mask, to_reward: the same without the second axis; [0, ...] is left out.
    """
    for e in range(len(to_obs)):
        for j in range(to_obs.shape[1]):
            to_obs[e, j] = obs[e, seat[e], j]
    for e in range(len(to_mask)):
        for j in range(to_mask.shape[1]):
            to_mask[e, j] = mask[e, seat[e], j]
    for e in range(len(to_reward)):
        to_reward[e] = reward[e, seat[e]]


def place_continuous(seat: Any, actions: Any, joint: Any) -> None:
    """Puts the learner's actions, float32 [E, K], into both seats' [E, 2, K]."""
    for e in range(len(seat)):
        for j in range(actions.shape[1]):
            joint[e, seat[e], j] = actions[e, j]


def place_discrete(seat: Any, actions: Any, joint: Any) -> None:
    """The same for int64."""
    for e in range(len(seat)):
        for j in range(actions.shape[1]):
            joint[e, seat[e], j] = actions[e, j]


_KEYS = np.zeros(1, np.uint64)
_ROWS, _LINE, _NUMBERS = f4(2), f4(1), i8(1)
_NETWORKS = empty_networks(spaces.Discrete(2))
_TABLE = OpponentBatch(
    obs=f4(3),
    mask=b1(3),
    seat=_NUMBERS,
    network=_NUMBERS,
    noise=_KEYS,
    step=_NUMBERS,
    order=_NUMBERS,
    first=_NUMBERS,
)
_SEATS = Matches(i8(1), i8(1), i8(1), _KEYS)
_DRAW = MatchDistribution(0, f8(1), f8(2), i8(2), 0)

# The arguments of every loop, as examples of their types; arrays are C-contiguous.
_EXAMPLES: dict[Callable[..., Any], tuple[Any, ...]] = {
    act_continuous: (_NETWORKS, _TABLE, f4(3)),
    act_discrete: (_NETWORKS, _TABLE, i8(3)),
    random_continuous: (_NETWORKS, _TABLE, f4(3)),
    random_discrete: (_NETWORKS, _TABLE, i8(3)),
    draw_matches: (_DRAW, i8(1), np.zeros(1, episode_state_dtype(2)), _SEATS),
    copy_learner_rows: (_NUMBERS, f4(3), b1(3), _ROWS, _ROWS, b1(2), _LINE),
    place_continuous: (i8(1), f4(2), f4(3)),
    place_discrete: (i8(1), i8(2), i8(3)),
}


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled forms of the functions above, by their names."""
    return compile_loops("self_play", _EXAMPLES)


_SIDES = ("left", "right")
_POOL = "pool."  # in a state of `SelfPlayOpponents`
_PAST = {SNAPSHOTS: 1.0}


@dataclass(frozen=True)
class SelfPlay:
    """Settings that were understood.

    Attributes:
        config: as they were written.
        spec: of both seats.
        training, evaluation: who is met.
        pool: of the members that are trained; None where nobody learns.
    """

    config: SelfPlayConfig
    spec: EnvSpec
    training: OpponentPool
    evaluation: OpponentPool
    pool: SnapshotPool | None = None

    @classmethod
    def of(cls, config: SelfPlayConfig, name: str, spec: EnvSpec) -> SelfPlay:
        """Finds out who is meant in a game of that short name.

        Raises:
            ConfigError: opponents that cannot play; settings that need a winner that the game does
                not declare.
        """
        if config.needs_results and spec.winner is None:
            what = "sampling: pfsp" if config.sampling == "pfsp" else "snapshot_win_rate"
            raise ConfigError(
                f"`env.self_play.{what}` follows who won, which {name} does not say: name a metric "
                "in its EnvSpec, winner='...', or leave it out."
            )
        never = (config.snapshot_iterations, config.snapshot_episodes, config.snapshot_win_rate)
        if SNAPSHOTS in config.opponents and all(when is None for when in never):
            raise ConfigError(
                "`env.self_play` has snapshots as opponents and never takes one: give "
                "`snapshot_iterations`, `snapshot_episodes` or `snapshot_win_rate`."
            )
        seat, drawn = player_spec(spec), not config.deterministic
        met = config.evaluation or {RANDOM: 1.0}
        training = OpponentPool.of("env.self_play.opponents", config.opponents, seat, name, drawn)
        evaluation = OpponentPool.of("env.self_play.evaluation", met, seat, name, drawn)
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
        asked, suggested = get_self_play(config), self.kernel.hook("EVALUATION")
        if asked is None:
            return self
        seats, evaluator = SelfPlay.of(asked, self.kind.short_name, self.spec), None
        if suggested is not None and asked.evaluation is None:
            evaluator = self.kind.load(config.model_dump() | suggested | {"self_play": None})
        spec = player_spec(self.spec)
        return replace(
            self, spec=spec, self_play=seats, evaluator=cast(GameEnvironment | None, evaluator)
        )

    @property
    def has_params(self) -> bool:
        return self.self_play is None  # a batch of copies meets one line-up

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
        seats = self.self_play
        if seats is None:
            return env
        met = seats.evaluation if evaluation else seats.training
        trained_elsewhere = evaluation and seats.pool is None
        return SelfPlayEnv(
            env, met.without_snapshots() if trained_elsewhere else met, seats.pool, evaluation
        )

    def make_eval_envs(self, *args: Any, **options: Any) -> VectorEnv:
        own = super().make_eval_envs if self.evaluator is None else self.evaluator.make_eval_envs
        return own(*args, **options)

    def against(
        self,
        opponents: Mapping[str, float],
        deterministic: bool | None = None,
        pool: SnapshotPool | None = None,
    ) -> Self:
        """The same game, whose evaluations meet other opponents; see `SelfPlayConfig`.

        Args:
            opponents: weight by name.
            deterministic: their policies take the most likely action; as configured unless given.
            pool: of the snapshots among them; the trained members' own unless given.

        Raises:
            ConfigError: one that is missing, of another game or shape; no game of two.
        """
        game = self.kind.short_name
        seats = self.self_play or SelfPlay.of(DEFAULTS, game, self.spec)
        drawn = not (seats.config.deterministic if deterministic is None else deterministic)
        met = OpponentPool.of("opponents", opponents, player_spec(seats.spec), game, drawn)
        own = replace(seats, evaluation=met, pool=seats.pool if pool is None else pool)
        return replace(self, spec=player_spec(own.spec), self_play=own, evaluator=None)

    # As players.

    @classmethod
    def with_opponent(
        cls, name: str, settings: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        return with_default_opponent(KernelKind(name).kernel, settings)

    @classmethod
    def bots(cls, name: str) -> list[str]:
        fields = KernelKind(name).model.model_fields
        seat = find_model(fields["opponents"].annotation) if _has_bots(name) else None
        return [one for one in seat.model_fields if one != "agent"] if seat else [RANDOM]

    @classmethod
    def load_against(
        cls,
        name: str,
        settings: Mapping[str, Any],
        seat: int,
        opponent: str,
        drawn: bool = False,
        past: Any = None,
    ) -> GameEnvironment:
        changed = {**settings, "self_play": None}
        own = _has_bots(name) and past is None and opponent in cls.bots(name)
        if _has_bots(name):
            changed |= {"opponents": {opponent if own else "agent": 1.0}, "side": _SIDES[seat]}
        environment = cast(GameEnvironment, KernelKind(name).load(changed))
        if not own:  # where a kernel draws no seats itself, seat 0 is that of even episodes
            environment = environment.against({opponent: 1.0}, deterministic=not drawn, pool=past)
        if "won" not in [metric.name for metric in environment.spec.metrics]:
            raise ConfigError(
                f"`{environment.kind.short_name}` does not say who won: name a metric in its "
                "EnvSpec, winner='...', above 0 where player 0 did and below 0 where player 1 did."
            )
        return environment

    @classmethod
    def best_response_settings(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
        met = {opponent: 1.0}
        seats = {"opponents": met, "evaluation": met, "deterministic": not drawn}
        own = {"opponents": {"agent": 1.0}, "side": "both"} if _has_bots(name) else {}
        return {"self_play": seats, **own}

    @classmethod
    def past(
        cls, settings: Mapping[str, Any], policy: Policy, state: Mapping[str, NDArray[Any]]
    ) -> SnapshotPool | None:
        own = strip_prefix(_POOL, state)
        if not own:
            return None
        seats = SelfPlayConfig.model_validate(settings["self_play"])
        pool = SnapshotPool(policy, seats.model_copy(update={"deterministic": True}))
        pool.load_state_dict(own)
        return pool

    @property
    def names(self) -> Mapping[int, str]:
        met = self.evaluator or self
        players = met.kernel.hook("PLAYERS") or ()
        own = {-number: name for number, name in enumerate(players)}
        seats = met.self_play
        return own if seats is None else own | seats.evaluation.without_snapshots().short_names

    @property
    def deterministic_opponents(self) -> frozenset[str]:
        seats, kernel = (self.evaluator or self).self_play, self.kernel
        if seats is None or any(
            word in ClosureBinder.reachable_functions(f) for f in (kernel.reset, kernel.step)
        ):
            return frozenset()
        met = seats.evaluation.without_snapshots()
        return frozenset(met.short_names[k] for k, one in met.networks.items() if not one.drawn)

    @property
    def warnings(self) -> tuple[str, ...]:
        rated = self.self_play is not None and SNAPSHOTS in self.self_play.config.opponents
        unrated = openskill_missing() if rated else None
        return () if unrated is None else (unrated,)

    def for_training(self, policy: Policy) -> tuple[Environment, SelfPlayOpponents | None]:
        if self.self_play is None:
            return self, None
        seats, pool = self.self_play, None
        if max(seats.training.snapshots, seats.evaluation.snapshots) >= 0:
            pool = SnapshotPool(policy, seats.config)
        environment = replace(self, self_play=replace(seats, pool=pool))
        decided, make_even = (
            seats.spec.winner is not None,
            partial(environment.against, _PAST, True),
        )
        return environment, SelfPlayOpponents(
            policy.members, seats.config, pool, decided, make_even
        )


def _has_bots(name: str) -> bool:
    """Whether a kernel acts in the second seat by itself, by its keys `opponents` and `side`."""
    return {"opponents", "side"} <= set(KernelKind(name).model.model_fields)
