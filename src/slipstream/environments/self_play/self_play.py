"""What an environment of two players knows of self-play: its settings and who plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.environments.players import RANDOM, SNAPSHOTS
from slipstream.environments.self_play.config import SelfPlayConfig
from slipstream.environments.self_play.networks import SeatNetworks
from slipstream.environments.self_play.opponents import (
    LineUp,
    Opponents,
    SnapshotPool,
    opponent_network,
)
from slipstream.environments.self_play.seat_env import SeatEnv, seat_spec
from slipstream.nets.policy import Policy
from slipstream.vector.kernel.copies import KernelVectorEnv


@dataclass(frozen=True)
class SelfPlay:
    """Settings that were understood.

    Attributes:
        config: as they were written.
        name: short name of the game; spec: of both seats.
        training, evaluation: who is met.
        network_of: reads an opponent's policy or ONNX file, `drawn` or not.
        pool: of the members that are trained; None where nobody learns.
    """

    config: SelfPlayConfig
    name: str
    spec: Spec
    training: LineUp
    evaluation: LineUp
    network_of: Callable[..., SeatNetworks]
    pool: SnapshotPool | None = None

    @classmethod
    def of(
        cls, config: SelfPlayConfig, name: str, spec: Spec, read_policy: Callable[[str], Policy]
    ) -> SelfPlay:
        """Finds out who is meant; `read_policy` opens what is named by a place on disk.

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
        seen, drawn = seat_spec(spec), not config.deterministic
        chosen = config.evaluation or {RANDOM: 1.0}
        network_of = partial(opponent_network, spec=seen, game=name, read_policy=read_policy)
        own = partial(network_of, drawn=drawn)
        training = LineUp.of("env.self_play.opponents", config.opponents, own)
        evaluation = LineUp.of("env.self_play.evaluation", chosen, own)
        return cls(config, name, spec, training, evaluation, network_of)

    def against(
        self, opponents: Mapping[str, float], deterministic: bool | None = None
    ) -> SelfPlay:
        """The same with other opponents in evaluations."""
        drawn = not (self.config.deterministic if deterministic is None else deterministic)
        line_up = LineUp.of("opponents", opponents, partial(self.network_of, drawn=drawn))
        return replace(self, evaluation=line_up)

    def with_members(self, policy: Policy) -> tuple[SelfPlay, Opponents]:
        """With snapshots of members that are trained from now on."""
        line_ups = (self.training, self.evaluation)
        pool = None
        if any(line_up.snapshots >= 0 for line_up in line_ups):
            pool = SnapshotPool(policy, self.config)
        decided = self.spec.winner is not None
        return replace(self, pool=pool), Opponents(policy.members, self.config, pool, decided)

    def seated(self, game: KernelVectorEnv) -> SeatEnv:
        """Training copies that show one seat."""
        return SeatEnv(game, self.training, self.pool, evaluation=False)

    def evaluated(self, game: KernelVectorEnv) -> SeatEnv:
        """Evaluation copies: the learner has seat 0 in even episodes, seat 1 in odd ones."""
        line_up = self.evaluation if self.pool is not None else self.evaluation.settled()
        return SeatEnv(game, line_up, self.pool, evaluation=True)
