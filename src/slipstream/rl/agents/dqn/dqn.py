"""Deep Q-learning from a replay, for one choice of a few where steps should not be wasted.

The compiled form: members one after another, each from its own replay. One update, whose rows two
cores may share, epsilon-greedy choices, then who does both; `torch_form.py` is the definition.
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
from slipstream.rl.compiled_loops import b1, compile_loops, f4, f8, i8, range_of
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.experience.scaling import Scale, scale_row
from slipstream.rl.nets.action_selection import DECIDER, Decider, decide_choices
from slipstream.rl.nets.layers import OUTPUTS, PLACE, backward, block_rows, forward, turn
from slipstream.rl.nets.networks import MlpNetwork, clear_across, join_streams
from slipstream.rl.nets.optimizer import (
    LANES,
    StepSettings,
    TrainState,
    begin_step,
    lines_of,
    move_weights,
    polyak_update,
    sum_gradient,
)

STATISTICS = ("loss", "q_value", "gradient_norm")

_ZERO = np.float32(0.0)


class QNetworks(NamedTuple):
    """The online network and its target, of M members.

    Attributes:
        weights: of the online network; target: float32 [M, P].
        table: int64 [L, 7]; relu: else tanh.
        choices: n; stream: of a dueling network, else 0.
        double: whether the online network names the next choice.
    """

    weights: TrainState
    target: NDArray[np.float32]
    table: NDArray[np.int64]
    relu: bool
    choices: int
    stream: int
    double: bool


class Settings(NamedTuple):
    """Numbers of the config and of this iteration, float64 [M].

    Attributes:
        step: of Adam's steps.
        tau: Polyak factor of a target update.
        target_update_interval: gradient updates between target updates.
        reward_factor: what rewards are multiplied by.
    """

    step: StepSettings
    tau: NDArray[np.float64]
    target_update_interval: int
    reward_factor: NDArray[np.float64]


class UpdateWorkspace(NamedTuple):
    """Memory of one member's update; each part of a batch's rows has places of its own.

    Attributes:
        parts: of a batch's rows, whose gradients are summed; block: b, rows that pass at once.
        x: float32 [parts, b, inputs], the column of ones in place.
        outputs, others, d_outputs: float32 [parts, b * all outputs]; `others` are of next rows.
        bootstrap: float64 [parts, b], values of next rows.
        turned: float32 [P], transposed matrices; values: float64 [parts, n].
        seen: float64 [parts, 2], sums over a part's rows of losses and values.
        squares: float64 [parts, LANES], of the gradient: see `sum_gradient`.
        gate: where threads come by the tasks of an update, see `jit/work_sharing.py`.
    """

    parts: int
    block: int
    x: NDArray[np.float32]
    outputs: NDArray[np.float32]
    others: NDArray[np.float32]
    d_outputs: NDArray[np.float32]
    bootstrap: NDArray[np.float64]
    turned: NDArray[np.float32]
    values: NDArray[np.float64]
    seen: NDArray[np.float64]
    squares: NDArray[np.float64]
    gate: NDArray[np.int64]


class Learner(NamedTuple):
    """What updates read and change, of M members.

    Attributes:
        scale: of observations.
        sums: float64 [M, S], STATISTICS of this iteration; updates: int64 [M], their number.
    """

    nets: QNetworks
    settings: Settings
    scale: Scale
    space: UpdateWorkspace
    sums: NDArray[np.float64]
    updates: NDArray[np.int64]


# Phases of an update, each after the one before it is done.
_GRADIENT, _SUM, _MOVE = 0, 1, 2

# Columns of `UpdateWorkspace.seen`.
_LOSS, _Q_VALUE = 0, 1


def update(by: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """Improves member m, which has not failed, by one batch.

    Args:
        by: Learner; batch: Batch of B transitions.
        weight: float32 [B], importance of each.
        error: float32 [B], written: size of the error of what was chosen, before the update.
    """
    nets, space, job = by.nets, by.space, (by, batch, weight, error)
    turn(nets.weights.weights[m], nets.table, space.turned)
    share(space.gate, job, m, _GRADIENT, space.parts)
    share(space.gate, job, m, _SUM, space.parts)
    if not begin_step(nets.weights, m, space.squares):
        return
    share(space.gate, job, m, _MOVE, space.parts)
    by.updates[m] += 1
    for part in range(space.parts):
        by.sums[m, 0] += space.seen[part, _LOSS] / len(weight)
        by.sums[m, 1] += space.seen[part, _Q_VALUE] / len(weight)
    by.sums[m, 2] += nets.weights.norm[m]


def help_update(by: Any, batch: Any, weight: Any, error: Any) -> None:
    """Takes part in another thread's updates until its gate closes."""
    help_out(by.space.gate, (by, batch, weight, error))


def work(job: Any, m: int, phase: int, part: int) -> None:
    """One task of member m's update: of a part of the rows, or of a part of the weights.

    Args:
        job: Learner, batch, weight and error, as for `update`.
    """
    by, batch, weight, error = job
    nets, settings, space = by.nets, by.settings, by.space
    if phase == _GRADIENT:
        add_gradient(by, m, part, batch, weight, error)
    elif phase == _SUM:
        sum_gradient(nets.weights, m, part, space.squares)
    else:
        lo, hi = lines_of(nets.weights, part, space.parts)
        move_weights(nets.weights, m, lo, hi, settings.step)
        if nets.weights.steps[m] % settings.target_update_interval == 0:
            weights = nets.weights.weights[m, lo:hi]
            polyak_update(nets.target[m, lo:hi], weights, settings.tau[m])


def add_gradient(by: Any, m: int, part: int, batch: Any, weight: Any, error: Any) -> None:
    """The gradient of a part of the batch's rows, into its place."""
    nets, space = by.nets, by.space
    weights, gradient = nets.weights.weights[m], nets.weights.gradients[m, part]
    gradient[:] = _ZERO
    space.values[part] = 0.0
    loss, q_value = 0.0, 0.0
    lo, hi = range_of(len(weight), part, space.parts)
    x, y, d_y = space.x[part], space.outputs[part], space.d_outputs[part]
    for first in range(lo, hi, space.block):
        b = min(space.block, hi - first)
        next_values(by, m, part, batch, first, b)
        load(by, m, batch.obs, first, x[:b])
        forward(weights, nets.table, nets.relu, x[:b], y)
        more, value = output_gradient(by, m, part, batch, weight, error, first, b)
        loss += more
        q_value += value
        backward(space.turned, gradient, nets.table, nets.relu, x[:b], y, d_y)
    if nets.stream > 0:
        clear_across(gradient, nets.table, nets.stream, nets.choices)
    space.seen[part, _LOSS], space.seen[part, _Q_VALUE] = loss, q_value


def load(by: Any, m: int, obs: Any, first: int, x: Any) -> None:
    """Scales observations of member m, from the first on, into x [b, inputs]."""
    for r in range(len(x)):
        scale_row(by.scale, m, obs[first + r], x[r])


def next_values(by: Any, m: int, part: int, batch: Any, first: int, b: int) -> None:
    """What the choice made next is worth to the target network, into `bootstrap`.

    Where nothing follows (discount 0) it is 0: nothing need be allowed there.
    """
    nets, space = by.nets, by.space
    x, outputs, others = space.x[part, :b], space.outputs[part], space.others[part]
    load(by, m, batch.obs_next, first, x)
    forward(nets.target[m], nets.table, nets.relu, x, others)
    if nets.double:
        forward(nets.weights.weights[m], nets.table, nets.relu, x, outputs)
    last = len(nets.table) - 1
    width, at = nets.table[last, OUTPUTS], b * nets.table[last, PLACE]
    masked = batch.mask_next.shape[1] > 0
    for r in range(b):
        space.bootstrap[part, r] = 0.0
        if batch.discount[first + r] == _ZERO:
            continue
        worth = others[at + r * width : at + (r + 1) * width]
        # Streams' sums are the same for all choices: advantages alone name the greatest.
        judge = outputs[at + r * width : at + (r + 1) * width] if nets.double else worth
        best, top = 0, -math.inf
        for j in range(nets.choices):
            if (not masked or batch.mask_next[first + r, j]) and float(judge[j]) > top:
                best, top = j, float(judge[j])
        space.bootstrap[part, r] = value_of(by, part, worth, best)


def value_of(by: Any, part: int, row: Any, choice: int) -> float:
    """Q of one choice from a row of outputs."""
    if by.nets.stream == 0:
        return float(row[choice])
    values = by.space.values[part]
    join_streams(row, by.nets.choices, values)
    return float(values[choice])


def output_gradient(
    by: Any, m: int, part: int, batch: Any, weight: Any, error: Any, first: int, b: int
) -> tuple[float, float]:
    """Derivatives of a block's loss with respect to the outputs, in their place of d_outputs[part].

    With the error e = Q(s, a) - (f r + discount Q'(s', a')), f the member's factor of rewards, a
    row's loss is Huber's: e^2 / 2 within 1 and |e| - 1/2 beyond, whose derivative is e cut at 1
    (Mnih et al. 2015, "Methods").

    Returns:
        the block's sums of weighted losses and of the values of what was chosen.
    """
    nets, space = by.nets, by.space
    last = len(nets.table) - 1
    width, at = nets.table[last, OUTPUTS], b * nets.table[last, PLACE]
    loss, q_value, share = 0.0, 0.0, 1.0 / len(weight)
    factor = by.settings.reward_factor[m]
    for r in range(b):
        row = space.outputs[part, at + r * width : at + (r + 1) * width]
        to = space.d_outputs[part, at + r * width : at + (r + 1) * width]
        to[:] = _ZERO
        choice = int(batch.action[first + r, 0])
        value = value_of(by, part, row, choice)
        goal = float(batch.reward[first + r]) * factor
        goal += float(batch.discount[first + r]) * space.bootstrap[part, r]
        e = value - goal
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
            for j in range(nets.choices):
                to[j] = -d / nets.choices
            to[choice] = d - d / nets.choices
            to[nets.choices] = d
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
    """Who chooses for M members.

    Attributes:
        decider: of greatest values, in choices 0..n-1.
        seeds: uint64 [M]; steps: int64 [M], environment steps that each member took so far.
        settings: float64 [M, 3], epsilon's first and last value and the steps it falls over.
        warm_up: steps of random choices at first.
        copies: N; start: what the environment calls its first choice.
    """

    decider: Decider
    seeds: NDArray[np.uint64]
    steps: NDArray[np.int64]
    settings: NDArray[np.float64]
    warm_up: int
    copies: int
    start: int


def epsilon_of(by: Any, m: int) -> float:
    """Share of random choices at member m's next step."""
    if by.steps[m] < by.warm_up:
        return 1.0
    own = by.settings[m]
    if by.steps[m] >= own[STEPS]:
        return float(own[FINAL])
    return float(own[INITIAL] + (own[FINAL] - own[INITIAL]) * (by.steps[m] / own[STEPS]))


def explore(by: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """Choices of copies lo..hi-1, all of them member m's and in their order.

    Args:
        by: Explorer; obs: float32 [E, D].
        mask: bool [E, choices] of allowed choices, or [0, 0] for none.
        out: int64 [E, 1], rows lo..hi-1 are written: 0..n-1.
    """
    decide_choices(by.decider, m, lo, hi, obs, mask, out)
    epsilon = epsilon_of(by, m)
    key = stream(by.seeds[m], _ACT, np.uint64(by.steps[m]))
    masked = mask.shape[0] > 0
    choices = by.decider.sizes[0]
    for e in range(lo, hi):
        place = _TWO * np.uint64(e - lo)
        if float(word(key, place) >> _SHIFT) * _TO_UNIT >= epsilon:
            continue
        u = float(word(key, place + _ONE) >> _SHIFT) * _TO_UNIT
        allowed = choices
        if masked:
            allowed = 0
            for j in range(choices):
                if mask[e, j]:
                    allowed += 1
        wanted = int(u * float(allowed))
        if not masked:
            out[e, 0] = wanted
            continue
        for j in range(choices):
            if mask[e, j]:
                if wanted == 0:
                    out[e, 0] = j
                wanted -= 1


def explore_rows(
    by: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Choices of all members' copies, whose steps are counted.

    Args:
        by: Explorer; t: row, which nothing depends on; obs, mask: as for `explore`.
        action: int64 [E, 1], 0..n-1; log_prob: not written; out: int64 [E, 1], what the copies
            receive.
    """
    for m in range(len(by.steps)):
        lo = m * by.copies
        explore(by, m, lo, lo + by.copies, obs, mask, action)
        by.steps[m] += by.copies
    for e in range(len(out)):
        out[e, 0] = action[e, 0] + by.start


def explore_choices(
    keys: NDArray[np.uint64],
    epsilon: NDArray[np.float64],
    copies: int,
    choices: int,
    mask: NDArray[np.bool_] | None,
    out: NDArray[np.int64],
) -> None:
    """What `explore` puts in the place of some greatest values, in NumPy.

    Args:
        keys: uint64 [M], of this step; epsilon: float64 [M].
        copies: N; choices: n; mask: bool [E, n] or None.
        out: int64 [E, 1], of which some are replaced.
    """
    with np.errstate(over="ignore"):
        places = _TWO * np.arange(copies, dtype=np.uint64)
        first, second = word(keys[:, None], places), word(keys[:, None], places + _ONE)
    random = ((first >> _SHIFT) * _TO_UNIT < epsilon[:, None]).ravel()
    u = ((second >> _SHIFT) * _TO_UNIT).ravel()
    allowed = np.ones((len(out), choices), np.bool_) if mask is None else mask
    wanted = (u * allowed.sum(1)).astype(np.int64)
    ranks = np.cumsum(allowed, axis=1) - 1
    chosen = ((ranks == wanted[:, None]) & allowed).argmax(1)
    out[random, 0] = chosen[random]


_EXPLORER = Explorer(DECIDER, np.zeros(1, np.uint64), i8(1), f8(2), 0, 1, 0)


@functools.cache
def loops() -> dict[str, Any]:
    """Compiled form of `explore_rows`, by its name."""
    examples = (_EXPLORER, 0, f4(2), b1(2), i8(2), f4(1), i8(2))
    return compile_loops("dqn", {explore_rows: examples})


class BaseDQN(OffPolicyAgent):
    """M members; a form adds how they act and learn.

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
        self.choices = policy.actions.head_width
        self.targets["values"] = policy.parameters.flat.copy()
        names = ("exploration_initial_eps", "exploration_final_eps", "exploration_steps")
        self.exploration = np.stack([config.per_member(name, members) for name in names], 1)
        self.sums = np.zeros((members, len(STATISTICS)))

    @property
    def epsilon(self) -> NDArray[np.float64]:
        """[M], share of random choices at each member's next step."""
        initial, final, steps = self.exploration.T
        share = np.minimum(self.steps / np.maximum(steps, 1), 1.0)
        falling = initial + (final - initial) * np.where(steps > 0, share, 1.0)
        return np.where(self.steps < self.config.learning_starts, 1.0, falling)

    def finished(self) -> dict[str, NDArray[Any]]:
        """loss, q_value (of what was chosen) and gradient_norm, means over updates; epsilon."""
        means = self.sums / np.maximum(self.updates, 1)[:, None]
        metrics = {
            **dict(zip(STATISTICS, means.T.copy(), strict=True)),
            "epsilon": self.epsilon,
        }
        self.sums[:] = 0.0
        return metrics


_NO_MASK = np.zeros((0, 0), np.bool_)


class DQN(CompiledLearning, BaseDQN):
    """M members that act epsilon-greedily, and learn from what they kept. Members never mix.

    A member's numbers follow from its seed, its settings and its experience alone: they are the
    same bits whoever is beside it.
    """

    name = "dqn"
    update_loop = staticmethod(update)
    help_loop = staticmethod(help_update)
    given: ClassVar[Mapping[str, Callable[..., None]]] = {"work": work}

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
                "The compiled form of DQN learns from rows of numbers; images learn in the torch "
                "form: leave training.learner at auto."
            )
        self._actor = self.policy.actor(num_envs)
        self._nets = QNetworks(
            weights=self.policy.parameters.arrays,
            target=self.targets["values"],
            table=network.tables[0],
            relu=config.activation == "relu",
            choices=self.choices,
            stream=network.stream,
            double=config.double,
        )
        block = block_rows(config.net_arch, config.batch_size)
        x = aligned_zeros((parts, block, self.policy.input_width))
        x[:, :, int(np.prod(self.policy.observation_shape))] = 1.0
        outputs, others, d_outputs = (
            aligned_zeros((parts, network.numbers(block))) for _ in range(3)
        )
        self._space = UpdateWorkspace(
            parts=parts,
            block=block,
            x=x,
            outputs=outputs,
            others=others,
            d_outputs=d_outputs,
            bootstrap=np.zeros((parts, block)),
            turned=aligned_zeros(self.policy.parameters.flat.shape[1:]),
            values=np.zeros((parts, self.choices)),
            seen=np.zeros((parts, 2)),
            squares=aligned_zeros((parts, LANES), np.float64),
            gate=self.gate,
        )
        self._explore = loops()["explore_rows"]
        self.refresh()

    def refresh(self) -> None:
        """Hands the loops this iteration's settings and scales."""
        config, scale, decider = self.config, self.policy.scale, self._actor.decider
        assert scale is not None
        self.explorer = Explorer(
            decider=decider._replace(start=np.zeros_like(decider.start)),
            seeds=self.seeds,
            steps=self.steps,
            settings=self.exploration,
            warm_up=config.learning_starts,
            copies=self.num_envs,
            start=int(decider.start[0]),
        )
        rate, factor = self.tau, self.reward_factor
        self.learner = Learner(
            nets=self._nets,
            settings=Settings(self.step_settings, rate, config.target_update_interval, factor),
            scale=scale.arrays,
            space=self._space,
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

    def acting(self, lo: int = 0, hi: int | None = None) -> CompiledActor:
        return CompiledActor(self._explore, self.explorer)


Agent = DQN
