"""A kernel in which several players act: of two, one may learn while the other is somebody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self, cast

from numpy.typing import NDArray

from slipstream.core.config import Config, model_in
from slipstream.core.errors import ConfigError
from slipstream.core.random import word
from slipstream.games.self_play.config import (
    DEFAULTS,
    SelfPlayConfig,
    extended,
    seated,
    self_play_of,
)
from slipstream.games.self_play.opponents import LineUp, SelfPlayOpponents, SnapshotPool
from slipstream.games.self_play.ratings import lacking
from slipstream.games.self_play.seat_env import SeatEnv, seat_spec
from slipstream.jit.reached import Reachable
from slipstream.kernels.copies import KernelVectorEnv
from slipstream.kernels.kernel import Kernel
from slipstream.kernels.spec import Spec
from slipstream.kernels.vector_env import VectorEnv
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind
from slipstream.training.environments.parts import RANDOM, SNAPSHOTS, Players

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
    spec: Spec
    training: LineUp
    evaluation: LineUp
    pool: SnapshotPool | None = None

    @classmethod
    def of(cls, config: SelfPlayConfig, name: str, spec: Spec) -> SelfPlay:
        """Finds out who is meant in a game of that short name.

        Raises:
            ConfigError: opponents that cannot play; settings that need a winner that the game does
                not declare.
        """
        if config.by_results and spec.winner is None:
            what = "sampling: pfsp" if config.sampling == "pfsp" else "snapshot_win_rate"
            raise ConfigError(
                f"`env.self_play.{what}` follows who won, which {name} does not say: name a metric "
                "in its Spec, winner='...', or leave it out."
            )
        never = (config.snapshot_iterations, config.snapshot_episodes, config.snapshot_win_rate)
        if SNAPSHOTS in config.opponents and all(when is None for when in never):
            raise ConfigError(
                "`env.self_play` has snapshots as opponents and never takes one: give "
                "`snapshot_iterations`, `snapshot_episodes` or `snapshot_win_rate`."
            )
        seat, drawn = seat_spec(spec), not config.deterministic
        met = config.evaluation or {RANDOM: 1.0}
        training = LineUp.of("env.self_play.opponents", config.opponents, seat, name, drawn)
        evaluation = LineUp.of("env.self_play.evaluation", met, seat, name, drawn)
        return cls(config, spec, training, evaluation)


@dataclass(frozen=True)
class GameEnvironment(KernelEnvironment, Players):
    """A kernel of several players and what it has loaded.

    Attributes:
        self_play: of a game of two of which one seat is shown; None: all seats are.
        judge: environment of evaluations in self-play, where the kernel suggests it; None: this.
    """

    self_play: SelfPlay | None = None
    judge: GameEnvironment | None = None

    extended = staticmethod(extended)

    def configured(self, config: Config) -> Self:
        asked, suggested = self_play_of(config), self.kernel.hook("EVALUATION")
        if asked is None:
            return self
        seats, judge = SelfPlay.of(asked, self.kind.short_name, self.spec), None
        if suggested is not None and asked.evaluation is None:
            judge = self.kind.load(config.model_dump() | suggested | {"self_play": None})
        spec = seat_spec(self.spec)
        return replace(self, spec=spec, self_play=seats, judge=cast(GameEnvironment | None, judge))

    @property
    def varied(self) -> bool:
        return self.self_play is None  # a batch of copies meets one line-up

    @property
    def observed_bytes(self) -> int | None:
        return super().observed_bytes if self.self_play is None else None

    def without_rules(self) -> Self:
        judge = None if self.judge is None else self.judge.without_rules()
        return replace(super().without_rules(), judge=judge)

    def with_rules(self, kernel: Kernel, arrays: Sequence[NDArray[Any]]) -> Self:
        judge = None if self.judge is None else self.judge.with_rules(kernel, arrays)
        return replace(super().with_rules(kernel, arrays), judge=judge)

    def spec_of(self, records: tuple[Any, ...]) -> Spec:
        spec = super().spec_of(records)
        return spec if self.self_play is None else seat_spec(spec)

    def stepped(self, env: KernelVectorEnv, evaluation: bool) -> VectorEnv:
        seats = self.self_play
        if seats is None:
            return env
        met = seats.evaluation if evaluation else seats.training
        settled = evaluation and seats.pool is None
        return SeatEnv(env, met.settled() if settled else met, seats.pool, evaluation)

    def evaluation(self, *args: Any, **options: Any) -> VectorEnv:
        own = super().evaluation if self.judge is None else self.judge.evaluation
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
        met = LineUp.of("opponents", opponents, seat_spec(seats.spec), game, drawn)
        own = replace(seats, evaluation=met, pool=seats.pool if pool is None else pool)
        return replace(self, spec=seat_spec(own.spec), self_play=own, judge=None)

    # As players.

    @classmethod
    def seated(cls, name: str, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        return seated(KernelKind(name).kernel, settings)

    @classmethod
    def bots(cls, name: str) -> list[str]:
        fields = KernelKind(name).model.model_fields
        seat = model_in(fields["opponents"].annotation) if _has_bots(name) else None
        return [one for one in seat.model_fields if one != "agent"] if seat else [RANDOM]

    @classmethod
    def facing(
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
                "Spec, winner='...', above 0 where player 0 did and below 0 where player 1 did."
            )
        return environment

    @classmethod
    def answering(cls, name: str, opponent: str, drawn: bool) -> dict[str, Any]:
        met = {opponent: 1.0}
        seats = {"opponents": met, "evaluation": met, "deterministic": not drawn}
        own = {"opponents": {"agent": 1.0}, "side": "both"} if _has_bots(name) else {}
        return {"self_play": seats, **own}

    @classmethod
    def past(
        cls, settings: Mapping[str, Any], policy: Policy, state: Mapping[str, NDArray[Any]]
    ) -> SnapshotPool | None:
        own = {k.removeprefix(_POOL): value for k, value in state.items() if k.startswith(_POOL)}
        if not own:
            return None
        seats = SelfPlayConfig.model_validate(settings["self_play"])
        pool = SnapshotPool(policy, seats.model_copy(update={"deterministic": True}))
        pool.load_state_dict(own)
        return pool

    @property
    def names(self) -> Mapping[int, str]:
        met = self.judge or self
        players = met.kernel.hook("PLAYERS") or ()
        own = {-number: name for number, name in enumerate(players)}
        seats = met.self_play
        return own if seats is None else own | seats.evaluation.settled().short_names

    @property
    def repeated(self) -> frozenset[str]:
        seats, kernel = (self.judge or self).self_play, self.kernel
        if seats is None or any(word in Reachable.within(f) for f in (kernel.reset, kernel.step)):
            return frozenset()
        met = seats.evaluation.settled()
        return frozenset(met.short_names[k] for k, one in met.networks.items() if not one.drawn)

    @property
    def remarks(self) -> tuple[str, ...]:
        rated = self.self_play is not None and SNAPSHOTS in self.self_play.config.opponents
        unrated = lacking() if rated else None
        return () if unrated is None else (unrated,)

    def trained(self, policy: Policy) -> tuple[Environment, SelfPlayOpponents | None]:
        if self.self_play is None:
            return self, None
        seats, pool = self.self_play, None
        if max(seats.training.snapshots, seats.evaluation.snapshots) >= 0:
            pool = SnapshotPool(policy, seats.config)
        environment = replace(self, self_play=replace(seats, pool=pool))
        decided, evenly = seats.spec.winner is not None, partial(environment.against, _PAST, True)
        return environment, SelfPlayOpponents(policy.members, seats.config, pool, decided, evenly)


def _has_bots(name: str) -> bool:
    """Whether a kernel acts in the second seat by itself, by its keys `opponents` and `side`."""
    return {"opponents", "side"} <= set(KernelKind(name).model.model_fields)
