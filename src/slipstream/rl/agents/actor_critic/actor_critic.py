"""Agents with an actor and two critics: shared state, and acting of the compiled implementation.

`ActorCritic` has networks, settings and counters. `CompiledActorCritic` updates members one after
another in the loops of `actor_critic_update.py`.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.jit.alignment import aligned_zeros
from slipstream.jit.rng import ACT
from slipstream.kernels.fused import CompiledActor
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.actor_critic.actor_critic_update import (
    BUFFER,
    CRITICS,
    NEXT_POLICY,
    POLICY,
    STATISTICS,
    VALUE,
    LearnedState,
    Learner,
    NetworkTables,
    Settings,
    UpdateStats,
    Workspace,
    help_update,
    update,
    work,
)
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig
from slipstream.rl.agents.off_policy.learning import CompiledLearning, OffPolicyAgent
from slipstream.rl.compiled_loops import b1, compile_loops, f4, f8, i8
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.action_selection import GREEDY_ACTOR, GreedyActor
from slipstream.rl.nets.layers import OUTPUTS, WEIGHT, block_rows
from slipstream.rl.nets.networks import Activation, Mlp, MlpNetwork, input_width, padded
from slipstream.rl.nets.optimizer import LANES, Parameters, tensor_offsets


class Critics:
    """Two Q networks of M members.

    The smaller of two values is overestimated less (Fujimoto et al. 2018, "Addressing function
    approximation error in actor-critic methods").

    Args:
        numbers: D, size of an observation.
        width: K, size of an action.
        net_arch: hidden layer widths.
        activation: activation between layers.
        seeds: [M]; a member's initial weights depend only on its seed.
        first: number of the first matrix; the actor has those before it.

    Attributes:
        groups: parameters of each critic.
        targets: float32 [M, P], target weights of each critic, initially equal to its weights.
        table: int64 [L, 7], as `rl/nets/layers.py` reads it.
        mlp: layers; the input is the action followed by the observation.
    """

    def __init__(
        self,
        numbers: int,
        width: int,
        net_arch: Sequence[int],
        activation: Activation,
        seeds: Sequence[int],
        first: int,
    ) -> None:
        sizes = (width + numbers, *net_arch, 1)
        self.mlp = Mlp("critic", sizes, activation, None)
        self.groups = [Parameters(self.mlp.shapes(), len(seeds)) for _ in range(CRITICS)]
        self.table = self.mlp.table(tensor_offsets(self.mlp.shapes())[0])
        for c, group in enumerate(self.groups):
            self.mlp.initialize(group.weights, seeds, first + c * len(self.mlp.layers))
        self.targets: list[NDArray[np.float32]] = [group.flat.copy() for group in self.groups]


class ActorCritic(OffPolicyAgent):
    """State shared by the implementations of SAC and TD3.

    Args:
        config, specs, seeds, num_envs, parts: as for `PopulationAgent`.

    Attributes:
        statistics: names of an update's statistics, STATISTICS first.
        critics: both critics with their targets.
        noise: standard deviation of exploration noise, see `Explorer`; empty without noise.
        stats: statistics of the updates of this iteration.
    """

    statistics: ClassVar[tuple[str, ...]] = STATISTICS
    config: ActorCriticConfig

    def __init__(
        self,
        config: ActorCriticConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts)
        policy = self.policy
        assert isinstance(policy.network, MlpNetwork)
        self.numbers = int(np.prod(policy.observation_shape))
        self.critics = Critics(
            *(self.numbers, policy.actions.width, config.net_arch, config.activation, policy.seeds),
            *(len(policy.network.mlps[0].layers),),
        )
        for c, group in enumerate(self.critics.groups):
            self.groups[f"critic_{c}"] = group
            self.targets[f"critic_{c}"] = self.critics.targets[c]
        sums = np.zeros((self.members, len(self.statistics) + 1))
        self.stats = UpdateStats(sums, self.updates, np.zeros(self.members, np.int64))
        self.noise = np.zeros(0)

    @property
    def num_updates(self) -> NDArray[np.int64]:
        return self.critics.groups[0].arrays.steps

    @property
    def policy_delay(self) -> int:
        """Critic updates per actor update."""
        return 1

    @property
    def settings(self) -> Settings:
        """Settings of this iteration's updates, [M] each."""
        return Settings(
            step=self.step_settings,
            tau=self.tau,
            reward_factor=self.reward_factor,
            target_update_interval=self.config.target_update_interval,
            policy_delay=self.policy_delay,
        )

    def collect_metrics(self) -> dict[str, NDArray[Any]]:
        """Return the metrics of an iteration, [M] by name, and reset their sums.

        Returns:
            Means over updates of critic_loss, value (of the batch's actions), actor_loss and
            gradient_norm (of the actor, before clipping); and `extra_metrics`.
        """
        sums, updates, actor_updates = self.stats
        counts = np.where(
            np.arange(sums.shape[1]) <= VALUE, updates[:, None], actor_updates[:, None]
        )
        means = sums / np.maximum(counts, 1)
        metrics = {
            **dict(zip((*self.statistics, "gradient_norm"), means.T.copy(), strict=True)),
            **self.extra_metrics(),
        }
        sums[:], actor_updates[:] = 0.0, 0
        return metrics

    def extra_metrics(self) -> dict[str, NDArray[Any]]:
        """Return additional metrics of an iteration, [M] by name."""
        return {}


# Bound by codegen: (explorer, m, key, uniform, lo, hi, obs, action, log_prob, out)
# samples actions for environments lo..hi-1 of member m, in order.
#   explorer: Explorer; key: stream of the step's noise; uniform: true for uniform actions in
#   [-1, 1]; obs: float32 [E, D]; action: float32 [E, K], the policy's actions in [-1, 1];
#   log_prob: float32 [E], their log probabilities; out: float32 [E, K], environment actions.
#   Rows lo..hi-1 are written.
explore: Any = None

_ACT = np.uint64(ACT)


class Explorer(NamedTuple):
    """Arguments of exploration for M members.

    Attributes:
        greedy_actor: The actor and the environment's bounds.
        seeds: uint64 [M].
        steps: int64 [M], environment steps of each member so far.
        noise: float64 [M], standard deviation of exploration noise, if any.
        learning_starts: Initial steps with uniform actions.
        num_envs: N.
    """

    greedy_actor: GreedyActor
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    noise: NDArray[np.float64]
    learning_starts: int
    num_envs: int


def explore_rows(
    explorer: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Select actions for all members' environments and count steps; t and mask are unused."""
    for m in range(len(explorer.steps)):
        key = stream(explorer.seeds[m], _ACT, np.uint64(explorer.steps[m]))
        uniform, lo = explorer.steps[m] < explorer.learning_starts, m * explorer.num_envs
        explore(explorer, m, key, uniform, lo, lo + explorer.num_envs, obs, action, log_prob, out)
        explorer.steps[m] += explorer.num_envs


_EXPLORER = Explorer(GREEDY_ACTOR, np.zeros(1, np.uint64), i8(1), f8(1), 1, 1)


@functools.cache
def loops(name: str, explore: Callable[..., None]) -> dict[str, Any]:
    """Compile the functions above; `off_policy/learning.py` has more.

    Args:
        name: Name of the agent.
        explore: Function that samples the agent's actions; see `explore` above.
    """
    examples = (_EXPLORER, 0, f4(2), b1(2), f4(2), f4(1), f4(2))
    return compile_loops(name, {explore_rows: examples}, {"explore": cast(FunctionType, explore)})


def transpose_all(net: NetworkTables, learned: LearnedState) -> None:
    """Transpose the matrices of every network after weights were loaded.

    This is `transpose_weights` and `transpose_critic` for all members in NumPy, so that creating an
    agent does not wait for their compilation.
    """
    _transpose_members(net.actor, learned.actor.params, learned.transposed_actor, 0)
    for critic, transposed in zip(learned.critics, learned.transposed_critics, strict=True):
        _transpose_members(net.critic, critic.params, transposed, net.columns)


def _transpose_members(
    table: NDArray[np.int64],
    weights: NDArray[np.float32],
    transposed: NDArray[np.float32],
    first_rows: int,
) -> None:
    """Transpose the matrices of all M members; only `first_rows` rows of the first layer."""
    m = len(weights)
    for i, (inputs, outputs, at) in enumerate(table[:, : WEIGHT + 1].tolist()):
        rows = inputs if i > 0 else first_rows
        place = slice(at, at + rows * outputs)
        columns = weights[:, place].reshape(m, rows, outputs).transpose(0, 2, 1)
        transposed[:, place].reshape(m, outputs, rows)[:] = columns


_NO_MASK = np.zeros((0, 0), np.bool_)


class CompiledActorCritic(CompiledLearning, ActorCritic):
    """M members that act and learn from their replay buffers in compiled loops.

    A member's weights depend only on its own seed, settings and experience, bit for bit. Subclasses
    add the functions that `actor_critic_update.py` calls to `hooks`.

    Attributes:
        explore_loop: plain function that samples actions; see `explore`.
    """

    explore_loop: ClassVar[Callable[..., None]]
    update_loop = staticmethod(update)
    help_loop = staticmethod(help_update)
    hooks: ClassVar[Mapping[str, Callable[..., None]]] = {"work": work}

    def __init__(
        self,
        config: ActorCriticConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
    ) -> None:
        self.gradient_parts = config.parts(num_envs)
        super().__init__(config, specs, seeds, num_envs, self.gradient_parts)
        network = self.policy.network
        assert isinstance(network, MlpNetwork)
        width = self.policy.actions.width
        relu = config.activation == "relu"
        self._net = NetworkTables(network.tables[0], self.critics.table, relu, width, padded(width))
        critic1, critic2 = self.critics.groups
        transposed = [
            aligned_zeros(group.flat.shape) for group in (self.policy.parameters, critic1, critic2)
        ]
        self._learned = LearnedState(
            *(self.policy.parameters.arrays, (critic1.arrays, critic2.arrays)),
            *((self.critics.targets[0], self.critics.targets[1]), transposed[0]),
            (transposed[1], transposed[2]),
        )
        self.tasks = max(self.gradient_parts, CRITICS)
        self._statistics = np.zeros((self.tasks, len(self.statistics)))
        self._workspace = self._make_workspace()
        self._extra = self.make_extra(self._workspace)
        self._actor = self.policy.actor(num_envs)
        self._loops = loops(self.name, self.explore_loop)
        self.refresh()

    @abstractmethod
    def make_extra(self, workspace: Workspace) -> Any:
        """Return `Learner.own`: additional state of the agent's loops, a NamedTuple."""

    def _make_workspace(self) -> Workspace:
        net, batch, parts = self._net, self.config.batch_size, self.gradient_parts
        block = block_rows(self.config.net_arch, batch)
        actor, critic = (int(table[:, OUTPUTS].sum()) for table in (net.actor, net.critic))
        numbers, k = self.numbers, net.width
        actor_x = aligned_zeros((batch, input_width(numbers)))
        critic_x = aligned_zeros(
            (len((NEXT_POLICY, BUFFER, POLICY)), batch, input_width(numbers + k))
        )
        actor_x[:, numbers], critic_x[:, :, k + numbers] = 1.0, 1.0
        tasks = self.tasks
        return Workspace(
            block=block,
            actor_x=actor_x,
            critic_x=critic_x,
            actor_y=aligned_zeros((batch * actor,)),
            actor_d=aligned_zeros((parts, block * actor)),
            critic_y=aligned_zeros((tasks, CRITICS, block * critic)),
            critic_d=aligned_zeros((tasks, block * critic)),
            cost=np.zeros(batch),
            td_target=np.zeros(batch),
            d_x=aligned_zeros((parts, block, net.columns)),
            td_error=np.zeros((CRITICS, batch)),
            squares=aligned_zeros((tasks, LANES), np.float64),
        )

    def refresh(self) -> None:
        """Pass this iteration's weights, settings and scales to the loops."""
        scale = self.policy.scale
        assert scale is not None
        self._explorer = Explorer(
            *(self._actor.greedy_actor, self.seeds, self.steps, self.noise),
            *(self.config.learning_starts, self.num_envs),
        )
        self.learner = Learner(
            net=self._net,
            learned=self._learned,
            extra=self._extra,
            settings=self.settings,
            scale=scale.arrays,
            seeds=self.seeds,
            statistics=self._statistics,
            stats=self.stats,
            workspace=self._workspace,
            parts=self.gradient_parts,
            gate=self.gate,
        )
        transpose_all(self._net, self._learned)

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        obs = rollout.obs[t].reshape(len(self._env_actions), -1)
        self._loops["explore_rows"](
            *(self._explorer, t, obs, _NO_MASK),
            *(rollout.actions[t], rollout.log_prob[t], self._env_actions),
        )
        return self._env_actions

    def compiled_actor(self, lo: int = 0, hi: int | None = None) -> CompiledActor:
        return CompiledActor(self._loops["explore_rows"], self._explorer)
