"""DQN (deep Q-learning) for discrete actions; off-policy, for environments with slow steps.

Compiled implementation: members learn one after another, each from its own replay buffer; two cores
may share the rows of an update. `torch_dqn.py` is the reference implementation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.core.random import stream, word
from slipstream.jit.alignment import aligned_zeros
from slipstream.jit.rng import ACT
from slipstream.jit.work_sharing import help_out, share
from slipstream.kernels.fused import CompiledActor
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.off_policy.learning import CompiledLearning, OffPolicyAgent
from slipstream.rl.compiled_loops import b1, compile_loops, f4, f8, i8, split_range
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.experience.running_mean_std import Scale, scale_row
from slipstream.rl.nets.action_selection import GREEDY_ACTOR, GreedyActor, act_greedy_discrete
from slipstream.rl.nets.layers import (
    OFFSET,
    OUTPUTS,
    backward,
    block_rows,
    forward,
    transpose_weights,
)
from slipstream.rl.nets.networks import MlpNetwork, clear_cross_gradient, dueling_values
from slipstream.rl.nets.optimizer import (
    LANES,
    StepSettings,
    TrainState,
    begin_step,
    move_weights,
    polyak_update,
    sum_gradient,
    weight_range,
)

STATISTICS = ("loss", "q_value", "gradient_norm")

_ZERO = np.float32(0.0)


class QNetworks(NamedTuple):
    """Online and target networks of M members.

    Attributes:
        online: weights of the online networks.
        target: float32 [M, P], weights of the target networks.
        table: int64 [L, 7], as in `rl/nets/layers.py`.
        relu: activation, relu or tanh.
        num_actions: n.
        stream: width of each stream of a dueling network, else 0.
        double: the online network selects the next action (double DQN).
    """

    online: TrainState
    target: NDArray[np.float32]
    table: NDArray[np.int64]
    relu: bool
    num_actions: int
    stream: int
    double: bool


class Settings(NamedTuple):
    """Settings of this iteration's updates.

    Attributes:
        step: settings of Adam.
        tau: float64 [M], Polyak factor of a target update.
        target_update_interval: gradient updates per target update.
        reward_factor: float64 [M], factor of rewards.
    """

    step: StepSettings
    tau: NDArray[np.float64]
    target_update_interval: int
    reward_factor: NDArray[np.float64]


class UpdateWorkspace(NamedTuple):
    """Memory of one member's update; each part of a batch's rows uses its own entries.

    Attributes:
        parts: parts of a batch's rows, whose gradients are summed.
        block: b, rows that are processed together.
        x: float32 [parts, b, inputs] with the column of ones set.
        outputs, d_outputs: float32 [parts, b * all outputs], outputs and their derivatives.
        next_outputs: float32 [parts, b * all outputs], the target network's outputs of next rows.
        bootstrap: float64 [parts, b], values of next rows.
        transposed: float32 [P], transposed matrices.
        values: float64 [parts, n], action values of a dueling network.
        sums: float64 [parts, 2], sums of losses and values over a part's rows.
        squares: float64 [parts, LANES], squares of the gradient, see `sum_gradient`.
        gate: shares the tasks of an update among threads, see `jit/work_sharing.py`.
    """

    parts: int
    block: int
    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    next_outputs: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    bootstrap: NDArray[np.float64]
    transposed: NDArray[np.float32]
    values: NDArray[np.float64]
    sums: NDArray[np.float64]
    squares: NDArray[np.float64]
    gate: NDArray[np.int64]


class Learner(NamedTuple):
    """Arguments of updates of M members.

    Attributes:
        scale: Observation scale.
        sums: float64 [M, S], STATISTICS of this iteration.
        updates: int64 [M], number of updates.
    """

    nets: QNetworks
    settings: Settings
    scale: Scale
    workspace: UpdateWorkspace
    sums: NDArray[np.float64]
    updates: NDArray[np.int64]


# Phases of an update, in order.
_GRADIENT, _SUM, _MOVE = 0, 1, 2

# Columns of `UpdateWorkspace.sums`.
_LOSS, _Q_VALUE = 0, 1


def update(learner: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """Update member m, which has not failed, on one batch.

    Args:
        learner: Learner.
        m: index of the member.
        batch: Batch of B transitions.
        weight: float32 [B], importance weights.
        error: float32 [B], written: absolute TD error before the update.
    """
    nets, workspace, job = learner.nets, learner.workspace, (learner, batch, weight, error)
    transpose_weights(nets.online.params[m], nets.table, workspace.transposed)
    share(workspace.gate, job, m, _GRADIENT, workspace.parts)
    share(workspace.gate, job, m, _SUM, workspace.parts)
    if not begin_step(nets.online, m, workspace.squares):
        return
    share(workspace.gate, job, m, _MOVE, workspace.parts)
    learner.updates[m] += 1
    for part in range(workspace.parts):
        learner.sums[m, 0] += workspace.sums[part, _LOSS] / len(weight)
        learner.sums[m, 1] += workspace.sums[part, _Q_VALUE] / len(weight)
    learner.sums[m, 2] += nets.online.norm[m]


def help_update(learner: Any, batch: Any, weight: Any, error: Any) -> None:
    """Execute tasks of another thread's updates until its gate closes."""
    help_out(learner.workspace.gate, (learner, batch, weight, error))


def work(job: Any, m: int, phase: int, part: int) -> None:
    """Execute one task of member m's update: a part of the rows, or a part of the weights.

    Args:
        job: learner, batch, weight and error, as for `update`.
        m: index of the member.
        phase: phase of the update.
        part: index of the part.
    """
    learner, batch, weight, error = job
    nets, settings, workspace = learner.nets, learner.settings, learner.workspace
    if phase == _GRADIENT:
        add_gradient(learner, m, part, batch, weight, error)
    elif phase == _SUM:
        sum_gradient(nets.online, m, part, workspace.squares)
    else:
        lo, hi = weight_range(nets.online, part, workspace.parts)
        move_weights(nets.online, m, lo, hi, settings.step)
        if nets.online.steps[m] % settings.target_update_interval == 0:
            weights = nets.online.params[m, lo:hi]
            polyak_update(nets.target[m, lo:hi], weights, settings.tau[m])


def add_gradient(learner: Any, m: int, part: int, batch: Any, weight: Any, error: Any) -> None:
    """Compute the gradient of a part of the batch."""
    nets, workspace = learner.nets, learner.workspace
    weights, gradient = nets.online.params[m], nets.online.gradients[m, part]
    gradient[:] = _ZERO
    workspace.values[part] = 0.0
    loss, q_value = 0.0, 0.0
    lo, hi = split_range(len(weight), part, workspace.parts)
    x, y, d_y = workspace.x[part], workspace.outputs[part], workspace.d_outputs[part]
    for first in range(lo, hi, workspace.block):
        b = min(workspace.block, hi - first)
        bootstrap_values(learner, m, part, batch, first, b)
        load_observations(learner, m, batch.obs, first, x[:b])
        forward(weights, nets.table, nets.relu, x[:b], y)
        block_loss, block_value = output_gradient(learner, m, part, batch, weight, error, first, b)
        loss += block_loss
        q_value += block_value
        backward(workspace.transposed, gradient, nets.table, nets.relu, x[:b], y, d_y)
    if nets.stream > 0:
        clear_cross_gradient(gradient, nets.table, nets.stream, nets.num_actions)
    workspace.sums[part, _LOSS], workspace.sums[part, _Q_VALUE] = loss, q_value


def load_observations(learner: Any, m: int, obs: Any, first: int, x: Any) -> None:
    """Scale observations of member m into x [b, inputs]."""
    for r in range(len(x)):
        scale_row(learner.scale, m, obs[first + r], x[r])


def bootstrap_values(learner: Any, m: int, part: int, batch: Any, first: int, b: int) -> None:
    """Compute the target network's value of the next action into `bootstrap`.

    It is 0 after a termination (discount 0), where the mask may allow no action.
    """
    nets, workspace = learner.nets, learner.workspace
    x, outputs = workspace.x[part, :b], workspace.outputs[part]
    next_outputs = workspace.next_outputs[part]
    load_observations(learner, m, batch.obs_next, first, x)
    forward(nets.target[m], nets.table, nets.relu, x, next_outputs)
    if nets.double:
        forward(nets.online.params[m], nets.table, nets.relu, x, outputs)
    last = len(nets.table) - 1
    width, at = nets.table[last, OUTPUTS], b * nets.table[last, OFFSET]
    masked = batch.mask_next.shape[1] > 0
    for r in range(b):
        workspace.bootstrap[part, r] = 0.0
        if batch.discount[first + r] == _ZERO:
            continue
        values_next = next_outputs[at + r * width : at + (r + 1) * width]
        # Dueling: the state value is the same for all actions, so advantages select the best one.
        selector = outputs[at + r * width : at + (r + 1) * width] if nets.double else values_next
        best, top = 0, -math.inf
        for j in range(nets.num_actions):
            if (not masked or batch.mask_next[first + r, j]) and float(selector[j]) > top:
                best, top = j, float(selector[j])
        workspace.bootstrap[part, r] = action_value(learner, part, values_next, best)


def action_value(learner: Any, part: int, row: Any, choice: int) -> float:
    """Return Q of one action from a row of outputs."""
    if learner.nets.stream == 0:
        return float(row[choice])
    values = learner.workspace.values[part]
    dueling_values(row, learner.nets.num_actions, values)
    return float(values[choice])


def output_gradient(
    learner: Any, m: int, part: int, batch: Any, weight: Any, error: Any, first: int, b: int
) -> tuple[float, float]:
    """Compute derivatives of a block's loss with respect to the outputs into d_outputs[part].

    The error is e = Q(s, a) - (f r + discount Q'(s', a')), where f is the member's reward factor.
    The Huber loss of a row is e^2 / 2 for |e| <= 1, else |e| - 1/2. Its derivative is e clipped to
    [-1, 1] (Mnih et al. 2015, "Methods").

    Returns:
        The block's sums of weighted losses and of the values of the batch's actions.
    """
    nets, workspace = learner.nets, learner.workspace
    last = len(nets.table) - 1
    width, at = nets.table[last, OUTPUTS], b * nets.table[last, OFFSET]
    loss, q_value, share = 0.0, 0.0, 1.0 / len(weight)
    factor = learner.settings.reward_factor[m]
    for r in range(b):
        row = workspace.outputs[part, at + r * width : at + (r + 1) * width]
        to = workspace.d_outputs[part, at + r * width : at + (r + 1) * width]
        to[:] = _ZERO
        choice = int(batch.action[first + r, 0])
        value = action_value(learner, part, row, choice)
        td_target = float(batch.reward[first + r]) * factor
        td_target += float(batch.discount[first + r]) * workspace.bootstrap[part, r]
        e = value - td_target
        size = abs(e)
        error[first + r] = size
        w = float(weight[first + r])
        loss += w * (0.5 * e * e if size <= 1.0 else size - 0.5)
        q_value += value
        d = w * share * (e if size <= 1.0 else math.copysign(1.0, e))
        if not size < math.inf:
            d = e  # not a number: the member is noticed by its gradient
        if nets.stream == 0:
            to[choice] = d
        else:  # dQ_a / dA_j = [j = a] - 1 / n, dQ_a / dV = 1
            for j in range(nets.num_actions):
                to[j] = -d / nets.num_actions
            to[choice] = d - d / nets.num_actions
            to[nets.num_actions] = d
    return loss, q_value


_SHIFT = np.uint64(11)
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53
_ACT = np.uint64(ACT)
_TWO = np.uint64(2)
_ONE = np.uint64(1)

# Columns of `Explorer.settings`.
INITIAL = 0
FINAL = 1
STEPS = 2


class Explorer(NamedTuple):
    """Arguments of epsilon-greedy exploration for M members.

    Attributes:
        greedy_actor: Selects greedy actions 0..n-1.
        seeds: uint64 [M].
        steps: int64 [M], environment steps of each member so far.
        settings: float64 [M, 3], initial and final epsilon, and steps of the decay.
        learning_starts: Initial steps with random actions.
        num_envs: N.
        start: The environment's first action.
    """

    greedy_actor: GreedyActor
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    settings: NDArray[np.float64]
    learning_starts: int
    num_envs: int
    start: int


def get_epsilon(explorer: Any, m: int) -> float:
    """Return epsilon of member m's next step."""
    if explorer.steps[m] < explorer.learning_starts:
        return 1.0
    settings = explorer.settings[m]
    if explorer.steps[m] >= settings[STEPS]:
        return float(settings[FINAL])
    return float(
        settings[INITIAL]
        + (settings[FINAL] - settings[INITIAL]) * (explorer.steps[m] / settings[STEPS])
    )


def explore(explorer: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """Select actions of environments lo..hi-1 of member m, in order.

    Args:
        explorer: Explorer.
        obs: float32 [E, D].
        mask: bool [E, num_actions] of allowed actions, or [0, 0] for none.
        out: int64 [E, 1], rows lo..hi-1 are written: 0..n-1.
    """
    act_greedy_discrete(explorer.greedy_actor, m, lo, hi, obs, mask, out)
    epsilon = get_epsilon(explorer, m)
    key = stream(explorer.seeds[m], _ACT, np.uint64(explorer.steps[m]))
    masked = mask.shape[0] > 0
    num_actions = explorer.greedy_actor.sizes[0]
    for e in range(lo, hi):
        place = _TWO * np.uint64(e - lo)
        if float(word(key, place) >> _SHIFT) * _TO_UNIT >= epsilon:
            continue
        u = float(word(key, place + _ONE) >> _SHIFT) * _TO_UNIT
        allowed = num_actions
        if masked:
            allowed = 0
            for j in range(num_actions):
                if mask[e, j]:
                    allowed += 1
        wanted = int(u * float(allowed))
        if not masked:
            out[e, 0] = wanted
            continue
        for j in range(num_actions):
            if mask[e, j]:
                if wanted == 0:
                    out[e, 0] = j
                wanted -= 1


def explore_rows(
    explorer: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Select actions of all members' environments and count steps.

    Args:
        explorer: Explorer.
        t: Unused.
        obs, mask: As for `explore`.
        action: int64 [E, 1], 0..n-1.
        log_prob: Not written.
        out: int64 [E, 1], environment actions.
    """
    for m in range(len(explorer.steps)):
        lo = m * explorer.num_envs
        explore(explorer, m, lo, lo + explorer.num_envs, obs, mask, action)
        explorer.steps[m] += explorer.num_envs
    for e in range(len(out)):
        out[e, 0] = action[e, 0] + explorer.start


def explore_discrete(
    keys: NDArray[np.uint64],
    epsilon: NDArray[np.float64],
    num_envs: int,
    num_actions: int,
    mask: NDArray[np.bool_] | None,
    out: NDArray[np.int64],
) -> None:
    """Replace some greedy actions by random ones, in NumPy; see `explore`.

    Args:
        keys: uint64 [M], of this step.
        epsilon: float64 [M].
        num_envs: N.
        num_actions: n.
        mask: bool [E, n] or None.
        out: int64 [E, 1], some rows are replaced.
    """
    with np.errstate(over="ignore"):
        places = _TWO * np.arange(num_envs, dtype=np.uint64)
        first, second = word(keys[:, None], places), word(keys[:, None], places + _ONE)
    random = ((first >> _SHIFT) * _TO_UNIT < epsilon[:, None]).ravel()
    u = ((second >> _SHIFT) * _TO_UNIT).ravel()
    allowed = np.ones((len(out), num_actions), np.bool_) if mask is None else mask
    wanted = (u * allowed.sum(1)).astype(np.int64)
    ranks = np.cumsum(allowed, axis=1) - 1
    chosen = ((ranks == wanted[:, None]) & allowed).argmax(1)
    out[random, 0] = chosen[random]


_EXPLORER = Explorer(GREEDY_ACTOR, np.zeros(1, np.uint64), i8(1), f8(2), 0, 1, 0)


@functools.cache
def loops() -> dict[str, Any]:
    """Compile `explore_rows`."""
    examples = (_EXPLORER, 0, f4(2), b1(2), i8(2), f4(1), i8(2))
    return compile_loops("dqn", {explore_rows: examples})


class BaseDQN(OffPolicyAgent):
    """State shared by the compiled and the torch implementation of DQN.

    Args:
        config, specs, seeds, num_envs, parts: as for `PopulationAgent`.

    Attributes:
        sums: float64 [M, S], STATISTICS summed over this iteration's updates.
    """

    config: DQNConfig
    head = "q"

    def __init__(
        self,
        config: DQNConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts, dueling=config.dueling)
        policy = self.policy
        members = self.members
        self.num_actions = policy.actions.head_width
        self.targets["values"] = policy.parameters.flat.copy()
        names = ("exploration_initial_eps", "exploration_final_eps", "exploration_steps")
        self.exploration = np.stack([config.per_member(name, members) for name in names], 1)
        self.sums = np.zeros((members, len(STATISTICS)))

    @property
    def epsilon(self) -> NDArray[np.float64]:
        """Epsilon of each member's next step, [M]."""
        initial, final, steps = self.exploration.T
        share = np.minimum(self.steps / np.maximum(steps, 1), 1.0)
        falling = initial + (final - initial) * np.where(steps > 0, share, 1.0)
        return np.where(self.steps < self.config.learning_starts, 1.0, falling)

    def collect_metrics(self) -> dict[str, NDArray[Any]]:
        """Return the metrics of an iteration, [M] by name, and reset their sums.

        Returns:
            Means over updates of loss, q_value (of the batch's actions) and gradient_norm; and
            epsilon.
        """
        means = self.sums / np.maximum(self.updates, 1)[:, None]
        metrics = {
            **dict(zip(STATISTICS, means.T.copy(), strict=True)),
            "epsilon": self.epsilon,
        }
        self.sums[:] = 0.0
        return metrics


_NO_MASK = np.zeros((0, 0), np.bool_)


class DQN(CompiledLearning, BaseDQN):
    """M members that act epsilon-greedily and learn from their replay buffers.

    A member's weights depend only on its own seed, settings and experience, bit for bit.
    """

    name = "dqn"
    update_loop = staticmethod(update)
    help_loop = staticmethod(help_update)
    hooks: ClassVar[Mapping[str, Callable[..., None]]] = {"work": work}

    def __init__(
        self,
        config: DQNConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
    ) -> None:
        parts = self.tasks = config.parts(num_envs)
        super().__init__(config, specs, seeds, num_envs, parts)
        network = self.policy.network
        if not isinstance(network, MlpNetwork):
            raise ConfigError(
                "The compiled implementation of DQN does not support image observations. Set "
                "training.learner to auto or torch."
            )
        self._actor = self.policy.actor(num_envs)
        self._nets = QNetworks(
            online=self.policy.parameters.arrays,
            target=self.targets["values"],
            table=network.tables[0],
            relu=config.activation == "relu",
            num_actions=self.num_actions,
            stream=network.stream,
            double=config.double,
        )
        block = block_rows(config.net_arch, config.batch_size)
        x = aligned_zeros((parts, block, self.policy.input_width))
        x[:, :, int(np.prod(self.policy.observation_shape))] = 1.0
        outputs, next_outputs, d_outputs = (
            aligned_zeros((parts, network.num_outputs(block))) for _ in range(3)
        )
        self._workspace = UpdateWorkspace(
            parts=parts,
            block=block,
            x=x,
            outputs=outputs,
            next_outputs=next_outputs,
            d_outputs=d_outputs,
            bootstrap=np.zeros((parts, block)),
            transposed=aligned_zeros(self.policy.parameters.flat.shape[1:]),
            values=np.zeros((parts, self.num_actions)),
            sums=np.zeros((parts, 2)),
            squares=aligned_zeros((parts, LANES), np.float64),
            gate=self.gate,
        )
        self._explore = loops()["explore_rows"]
        self.refresh()

    def refresh(self) -> None:
        """Rebuild the arguments of the loops from the current settings and scales."""
        config, scale, greedy_actor = self.config, self.policy.scale, self._actor.greedy_actor
        assert scale is not None
        self.explorer = Explorer(
            greedy_actor=greedy_actor._replace(start=np.zeros_like(greedy_actor.start)),
            seeds=self.seeds,
            steps=self.steps,
            settings=self.exploration,
            learning_starts=config.learning_starts,
            num_envs=self.num_envs,
            start=int(greedy_actor.start[0]),
        )
        rate, factor = self.tau, self.reward_factor
        self.learner = Learner(
            nets=self._nets,
            settings=Settings(self.step_settings, rate, config.target_update_interval, factor),
            scale=scale.arrays,
            workspace=self._workspace,
            sums=self.sums,
            updates=self.updates,
        )

    def act(self, rollout: Rollout, t: int, lo: int = 0, hi: int | None = None) -> NDArray[Any]:
        obs = rollout.obs[t].reshape(len(rollout.obs[t]), -1)
        mask = _NO_MASK if rollout.mask is None else rollout.mask[t]
        self._explore(
            *(self.explorer, t, obs, mask),
            *(rollout.actions[t], rollout.log_prob[t], self._env_actions),
        )
        return self._env_actions

    def compiled_actor(self, lo: int = 0, hi: int | None = None) -> CompiledActor:
        return CompiledActor(self._explore, self.explorer)


Agent = DQN
