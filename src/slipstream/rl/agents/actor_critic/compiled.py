"""The compiled form of agents with an actor and two critics: members one after another."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.jit.draws import ACT
from slipstream.jit.memory import zeros
from slipstream.kernels.fused import Acting
from slipstream.kernels.spec import Spec
from slipstream.rl.agents.actor_critic.base import ActorCritic
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig
from slipstream.rl.agents.actor_critic.update import (
    CRITICS,
    DONE,
    NEXT,
    OWN,
    Learned,
    Learner,
    Nets,
    Scale,
    Space,
    help_update,
    update,
    work,
)
from slipstream.rl.agents.off_policy.learning import CompiledLearning
from slipstream.rl.experience.compiled import (
    compile_loops,
    of_bool,
    of_float32,
    of_float64,
    of_int64,
)
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.adam import LANES
from slipstream.rl.nets.compiled import DECIDER
from slipstream.rl.nets.layers import OUTPUTS, WEIGHT, block_rows
from slipstream.rl.nets.modes import Decider
from slipstream.rl.nets.networks import MlpNetwork, input_width, padded

# Bound by the renderer: (by, m, key, uniform, lo, hi, obs, action, log_prob, out) draws actions for
# copies lo..hi-1, all of them member m's and in their order.
#   by: Explorer; key: of the step's noise; uniform: whether they are uniform in [-1, 1];
#   obs: float32 [E, D]; action: float32 [E, K], the policy's own in [-1, 1]; log_prob: float32 [E],
#   of it; out: float32 [E, K], what environments receive. Rows lo..hi-1 are written.
explore: Any = None

_ACT = np.uint64(ACT)


class Explorer(NamedTuple):
    """Who acts for M members.

    Attributes:
        decider: of the actor, and of the environment's bounds.
        seeds: uint64 [M]; steps: int64 [M], environment steps that each member took so far.
        noise: float64 [M], deviation of what is added to a policy's action, where some is.
        warm_up: steps of uniform actions at first; copies: N.
    """

    decider: Decider
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    noise: NDArray[np.float64]
    warm_up: int
    copies: int


def explore_rows(
    by: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Actions of all members' copies, whose steps are counted; t and mask are unused."""
    for m in range(len(by.steps)):
        key = stream(by.seeds[m], _ACT, np.uint64(by.steps[m]))
        uniform, lo = by.steps[m] < by.warm_up, m * by.copies
        explore(by, m, key, uniform, lo, lo + by.copies, obs, action, log_prob, out)
        by.steps[m] += by.copies


_EXPLORER = Explorer(DECIDER, np.zeros(1, np.uint64), of_int64(1), of_float64(1), 1, 1)

# The arguments of `explore_rows`, as examples of their types; arrays are C-contiguous.
_ROWS = (
    *(_EXPLORER, 0, of_float32(2), of_bool(2)),
    *(of_float32(2), of_float32(1), of_float32(2)),
)


@functools.cache
def loops(name: str, explore: Callable[..., None]) -> dict[str, Any]:
    """Compiled forms of the functions above, by their names; `off_policy/learning.py` has more.

    Args:
        name: of the agent; explore: how it acts, see above.
    """
    return compile_loops(name, {explore_rows: _ROWS}, {"explore": cast(FunctionType, explore)})


def turn_all(net: Nets, learned: Learned) -> None:
    """Transposes the matrices of every network, after weights came from elsewhere.

    As `turn` and `turn_critic` do for one member; an agent that is made need not wait for those.
    """
    _turn_members(net.actor, learned.actor.weights, learned.turned_actor, 0)
    for critic, turned in zip(learned.critics, learned.turned_critics, strict=True):
        _turn_members(net.critic, critic.weights, turned, net.columns)


def _turn_members(
    table: NDArray[np.int64],
    weights: NDArray[np.float32],
    turned: NDArray[np.float32],
    first_rows: int,
) -> None:
    """Of all M members at once; of the first layer so many rows."""
    m = len(weights)
    for i, (inputs, outputs, at) in enumerate(table[:, : WEIGHT + 1].tolist()):
        rows = inputs if i > 0 else first_rows
        place = slice(at, at + rows * outputs)
        columns = weights[:, place].reshape(m, rows, outputs).transpose(0, 2, 1)
        turned[:, place].reshape(m, outputs, rows)[:] = columns


_NO_MASK = np.zeros((0, 0), np.bool_)


class CompiledActorCritic(CompiledLearning, ActorCritic):
    """M members that act, and learn from what they kept. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: they are the
    same bits whoever is beside it.

    Attributes:
        explore_loop: the plain function that draws actions, see `explore`; an agent adds to
            `given`, of `CompiledLearning`, what `update.py` leaves open.
    """

    explore_loop: ClassVar[Callable[..., None]]
    update_loop = staticmethod(update)
    help_loop = staticmethod(help_update)
    given: ClassVar[Mapping[str, Callable[..., None]]] = {"work": work}

    def __init__(
        self,
        config: ActorCriticConfig,
        specs: Spec | Sequence[Spec],
        seeds: Sequence[int],
        num_envs: int,
    ) -> None:
        self.gradient_parts = config.parts(num_envs)
        super().__init__(config, specs, seeds, num_envs, self.gradient_parts)
        network = self.policy.network
        assert isinstance(network, MlpNetwork)
        width = self.policy.actions.width
        relu = config.activation == "relu"
        self._net = Nets(network.tables[0], self.critics.table, relu, width, padded(width))
        one, two = self.critics.groups
        turned = [zeros(group.flat.shape) for group in (self.policy.parameters, one, two)]
        self._learned = Learned(
            *(self.policy.parameters.arrays, (one.arrays, two.arrays)),
            *((self.critics.targets[0], self.critics.targets[1]), turned[0]),
            (turned[1], turned[2]),
        )
        self.tasks = max(self.gradient_parts, CRITICS)
        self._statistics = np.zeros((self.tasks, len(self.statistics)))
        self._space = self._make_space()
        self._own = self.make_own(self._space)
        self._actor = self.policy.actor(num_envs)
        self._loops = loops(self.name, self.explore_loop)
        self.refresh()

    @abstractmethod
    def make_own(self, space: Space) -> Any:
        """`Learner.own`: what the agent's loops read and change besides, a NamedTuple."""

    def _make_space(self) -> Space:
        net, batch, parts = self._net, self.config.batch, self.gradient_parts
        block = block_rows(self.config.widths, batch)
        actor, critic = (int(table[:, OUTPUTS].sum()) for table in (net.actor, net.critic))
        numbers, k = self.numbers, net.width
        actor_x = zeros((batch, input_width(numbers)))
        critic_x = zeros((len((NEXT, DONE, OWN)), batch, input_width(numbers + k)))
        actor_x[:, numbers], critic_x[:, :, k + numbers] = 1.0, 1.0
        tasks = self.tasks
        return Space(
            block=block,
            actor_x=actor_x,
            critic_x=critic_x,
            actor_y=zeros((batch * actor,)),
            actor_d=zeros((parts, block * actor)),
            critic_y=zeros((tasks, CRITICS, block * critic)),
            critic_d=zeros((tasks, block * critic)),
            cost=np.zeros(batch),
            goal=np.zeros(batch),
            d_x=zeros((parts, block, net.columns)),
            gap=np.zeros((CRITICS, batch)),
            lanes=np.zeros((tasks, LANES)),
            squares=np.zeros(parts),
        )

    def refresh(self) -> None:
        """Hands the loops this iteration's weights, settings and scales."""
        scale = self.policy.scale
        assert scale is not None
        self._explorer = Explorer(
            *(self._actor.decider, self.seeds, self.steps, self.noise),
            *(self.config.learning_starts, self.num_envs),
        )
        self.learner = Learner(
            net=self._net,
            learned=self._learned,
            own=self._own,
            settings=self.settings,
            scale=Scale(scale.mean, scale.inverse_std, scale.limit),
            seeds=self.seeds,
            statistics=self._statistics,
            tally=self.tally,
            space=self._space,
            parts=self.gradient_parts,
            gate=self.gate,
        )
        turn_all(self._net, self._learned)

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        obs = rollout.obs[t].reshape(len(self._env_actions), -1)
        self._loops["explore_rows"](
            *(self._explorer, t, obs, _NO_MASK),
            *(rollout.actions[t], rollout.log_prob[t], self._env_actions),
        )
        return self._env_actions

    def acting(self, lo: int = 0, hi: int | None = None) -> Acting:
        return Acting(self._loops["explore_rows"], self._explorer)
