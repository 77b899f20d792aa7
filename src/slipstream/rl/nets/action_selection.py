"""Action selection: greedy and sampled actions from observations.

Plain loops over rows, compiled once by `loops`. The result of a row does not depend on the other
rows or their number, bit for bit. Densities are of actions in the policy's own units: discrete
actions from 0, or continuous actions of which [-1, 1] covers the environment's bounds.

The squashed Gaussian is the tanh of a normal variable:

    u = mean + std noise,  a = tanh(u),
    log p(a) = sum(-noise^2/2 - log std - log(2 pi)/2 - log(1 - tanh^2 u))

(Haarnoja et al. 2018, "Soft actor-critic", appendix C, equation 21.) The network outputs the means,
then the log standard deviations, clipped to LOG_STD_LOW..LOG_STD_HIGH as in the authors' code.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from slipstream.jit.alignment import matrix
from slipstream.jit.rng import gumbel_rows, normal_at, normal_rows, quick_normal
from slipstream.jit.simd import exp_2, log_2
from slipstream.rl.compiled_loops import Loops, b1, f4, i8
from slipstream.rl.experience.running_mean_std import SCALE, Scale, scale_row
from slipstream.rl.nets.layers import BLOCK, OFFSET, OUTPUTS, forward

LOG_STD_LOW = -20.0
LOG_STD_HIGH = 2.0
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_PER_LOG_2 = 1.0 / _LOG_2
_ROOT_HALF = math.sqrt(0.5)


class GreedyActor(NamedTuple):
    """Greedy action selection for all members.

    Attributes:
        weights: float32 [M, P].
        table: int64 [L, 7], layers of the actor.
        relu: ReLU activation, else tanh.
        squashed: Whether Box actions are the tanh of the output.
        scale: Observation scale.
        sizes, start: int64 [K], number of values and first value of each discrete component.
        half, middle, low, high: float32 [K], half range, center and bounds of a Box.
        x: float32 [BLOCK, inputs] with the column of ones set. Overwritten.
        workspace: Of `forward`. Overwritten.
    """

    weights: Any
    table: Any
    relu: bool
    squashed: bool
    scale: Scale
    sizes: Any
    start: Any
    half: Any
    middle: Any
    low: Any
    high: Any
    x: Any
    workspace: Any


class Sampler(NamedTuple):
    """Stochastic action selection for all members.

    Attributes:
        actor: Networks, scales and action mapping.
        log_std: float32 [M, K] of a Gaussian head, else [M, 0].
        keys: uint64 [T, M], noise stream of each member at step t.
        num_envs: Environments per member.
        first: Index within its member of the first environment.
        noise: float32 [BLOCK * head width], overwritten.
    """

    actor: GreedyActor
    log_std: Any
    keys: Any
    num_envs: int
    first: int
    noise: Any


def actor_outputs(actor: Any, m: int, first: int, last: int, obs: Any) -> int:
    """Write the actor's outputs [last - first, padded] to the workspace; return their offset."""
    rows = last - first
    for r in range(rows):
        scale_row(actor.scale, m, obs[first + r], actor.x[r])
    forward(actor.weights[m], actor.table, actor.relu, actor.x[:rows], actor.workspace)
    return rows * int(actor.table[len(actor.table) - 1, OFFSET])


def unscale_action(actor: Any, action: Any, out: Any) -> None:
    """Map an action [K] to the environment's range and clip it to the bounds."""
    for j in range(len(actor.half)):
        value = action[j] * actor.half[j] + actor.middle[j]
        value = actor.low[j] if value < actor.low[j] else value  # NaN stays NaN
        out[j] = actor.high[j] if value > actor.high[j] else value


# Greedy actions.


def act_greedy_box(actor: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any) -> None:
    """Select Box actions for environments lo..hi-1 of member m.

    Args:
        actor: GreedyActor.
        obs: float32 [E, D].
        mask: Unused.
        out: float32 [E, K], rows lo..hi-1 are written.
    """
    width = actor.table[len(actor.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = actor_outputs(actor, m, first, last, obs)
        head = matrix(actor.workspace, at, last - first, width)
        for e in range(first, last):
            for j in range(len(actor.half)):
                mean = head[e - first, j]
                out[e, j] = np.float32(math.tanh(mean)) if actor.squashed else mean
            unscale_action(actor, out[e], out[e])


def act_greedy_discrete(
    actor: Any, m: int, lo: int, hi: int, obs: Any, mask: Any, out: Any
) -> None:
    """Select the first largest logit of each discrete component for environments lo..hi-1.

    Args:
        actor: GreedyActor.
        obs: float32 [E, D].
        mask: bool [E, mask_size] of allowed actions, or [0, 0] for none.
        out: int64 [E, K], rows lo..hi-1 are written.
    """
    masked = mask.shape[0] > 0
    width = actor.table[len(actor.table) - 1, OUTPUTS]
    for begin in range(lo, hi, BLOCK):
        end = min(begin + BLOCK, hi)
        at = actor_outputs(actor, m, begin, end, obs)
        head = matrix(actor.workspace, at, end - begin, width)
        for e in range(begin, end):
            first = 0
            for c in range(len(actor.sizes)):
                last = first + actor.sizes[c]
                best, top = first, -math.inf
                for j in range(first, last):
                    if (not masked or mask[e, j]) and head[e - begin, j] > top:
                        best, top = j, float(head[e - begin, j])
                out[e, c] = best - first + actor.start[c]
                first = last


def act_greedy_box_members(actor: Any, num_envs: int, obs: Any, mask: Any, out: Any) -> None:
    """Apply `act_greedy_box` to all members with `num_envs` environments each."""
    for m in range(len(actor.weights)):
        act_greedy_box(actor, m, m * num_envs, (m + 1) * num_envs, obs, mask, out)


def act_greedy_discrete_members(actor: Any, num_envs: int, obs: Any, mask: Any, out: Any) -> None:
    """Apply `act_greedy_discrete` to all members with `num_envs` environments each."""
    for m in range(len(actor.weights)):
        act_greedy_discrete(actor, m, m * num_envs, (m + 1) * num_envs, obs, mask, out)


# Sampled actions.


def act_categorical(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Sample discrete actions of all members' environments at step t.

    Args:
        sampler: Sampler.
        t: Step.
        obs: float32 [E, D], unscaled.
        mask: bool [E, mask_size] of allowed actions, or [0, 0] for none.
        action: int64 [E, K], the policy's actions, written.
        log_prob: float32 [E], written.
        out: int64 [E, K], the environments' actions, written.
    """
    actor, width = sampler.actor, 0
    padded = actor.table[len(actor.table) - 1, OUTPUTS]
    for c in range(len(actor.sizes)):
        width += actor.sizes[c]
    for m in range(len(actor.weights)):
        begin = m * sampler.num_envs
        for lo in range(begin, begin + sampler.num_envs, BLOCK):
            hi = min(lo + BLOCK, begin + sampler.num_envs)
            at = actor_outputs(actor, m, lo, hi, obs)
            head = actor.workspace[at : at + (hi - lo) * padded].reshape(1, hi - lo, padded)
            noise = sampler.noise[: (hi - lo) * width].reshape(1, (hi - lo) * width)
            counter = (sampler.first + lo - begin) * width
            gumbel_rows(sampler.keys[t, m : m + 1], counter, noise)
            sample_categorical(
                head, noise, mask[lo:hi], actor.sizes, action[lo:hi], log_prob[lo:hi]
            )
            for e in range(lo, hi):
                for c in range(len(actor.sizes)):
                    out[e, c] = action[e, c] + actor.start[c]


def act_gaussian(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Sample Box actions from a Gaussian head; action, out: float32 [E, K]; mask is unused."""
    actor, width = sampler.actor, len(sampler.actor.half)
    padded = actor.table[len(actor.table) - 1, OUTPUTS]
    for m in range(len(actor.weights)):
        begin = m * sampler.num_envs
        for lo in range(begin, begin + sampler.num_envs, BLOCK):
            hi = min(lo + BLOCK, begin + sampler.num_envs)
            at = actor_outputs(actor, m, lo, hi, obs)
            head = actor.workspace[at : at + (hi - lo) * padded].reshape(1, hi - lo, padded)
            noise = sampler.noise[: (hi - lo) * width].reshape(1, (hi - lo) * width)
            counter = (sampler.first + lo - begin) * width
            normal_rows(sampler.keys[t, m : m + 1], counter, noise)
            log_std = sampler.log_std[m : m + 1]
            sample_gaussian(head, noise, log_std, action[lo:hi], log_prob[lo:hi])
            for e in range(lo, hi):
                unscale_action(actor, action[e], out[e])


def act_squashed_gaussian(
    sampler: Any, t: int, obs: Any, mask: Any, action: Any, log_prob: Any, out: Any
) -> None:
    """Sample Box actions from the head `squashed_gaussian`; see `act_gaussian`."""
    for m in range(len(sampler.actor.weights)):
        lo = m * sampler.num_envs
        hi = lo + sampler.num_envs
        key, place = sampler.keys[t, m], sampler.first
        act_member_squashed_gaussian(
            sampler.actor, m, key, place, lo, hi, obs, False, action, log_prob, out
        )


def act_member_squashed_gaussian(
    actor: Any, m: int, key: Any, place: int, lo: int, hi: int, obs: Any, uniform: bool, action:
        Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """Sample actions of environments lo..hi-1 of member m.

    Args:
        actor: GreedyActor.
        key: Key of a stream. Environment e uses its normal numbers from (place + e - lo) K on.
        uniform: Sample uniformly from [-1, 1] instead, by the quantiles of the same numbers.
        obs, action, log_prob, out: As for `act_gaussian`; rows lo..hi-1 are written.
    """
    width, padded = len(actor.half), actor.table[len(actor.table) - 1, OUTPUTS]
    for first in range(lo, hi, BLOCK):
        last = min(first + BLOCK, hi)
        at = actor_outputs(actor, m, first, last, obs)
        for e in range(first, last):
            head, total = actor.workspace[at + (e - first) * padded :], 0.0
            for j in range(width):
                noise = float(normal_at(key, (place + e - lo) * width + j))
                if uniform:
                    action[e, j] = math.erf(noise * _ROOT_HALF)
                    total -= _LOG_2
                else:
                    log_std = clip_log_std(float(head[width + j]))
                    u, density = sample_squashed(float(head[j]), log_std, noise)
                    action[e, j] = math.tanh(u)
                    total += density
            unscale_action(actor, action[e], out[e])
            log_prob[e] = total


# Distributions.


def sample_categorical(
    head: Any, noise: Any, mask: Any, sizes: Any, action: Any, log_prob: Any
) -> None:
    """Sample each discrete component: argmax(logits + Gumbel noise) is a sample of their softmax.

    Args:
        head: float32 [M, >= R, padded].
        noise: float32 [M, R * logits].
        mask: bool [M * R, mask_size] of allowed actions, or [0, 0] for none.
        sizes: int64 [K].
        action: int64 [M * R, K], written.
        log_prob: float32 [M * R], written.
    """
    masked = mask.shape[0] > 0
    width = 0
    for c in range(len(sizes)):
        width += sizes[c]
    rows = noise.shape[1] // width
    for m in range(head.shape[0]):
        for i in range(rows):
            e = m * rows + i
            total_log = 0.0
            first = 0
            for c in range(len(sizes)):
                last = first + sizes[c]
                best = first
                score = -math.inf
                top = -math.inf
                for j in range(first, last):
                    if masked and not mask[e, j]:
                        continue
                    z = float(head[m, i, j])
                    top = max(top, z)
                    if z + noise[m, i * width + j] > score:
                        score = z + noise[m, i * width + j]
                        best = j
                total = 0.0
                for j in range(first, last):
                    if not masked or mask[e, j]:
                        total += math.exp(float(head[m, i, j]) - top)
                total_log += float(head[m, i, best]) - top - math.log(total)
                action[e, c] = best - first
                first = last
            log_prob[e] = total_log


def sample_gaussian(head: Any, noise: Any, log_std: Any, action: Any, log_prob: Any) -> None:
    """Sample mean + std * noise.

    Args:
        head: float32 [M, >= R, padded].
        noise: float32 [M, R * K], standard normal.
        log_std: float32 [M, K].
        action: float32 [M * R, K], written.
        log_prob: float32 [M * R], written.
    """
    half_log = 0.5 * math.log(2.0 * math.pi)
    width = log_std.shape[1]
    rows = noise.shape[1] // width
    for m in range(head.shape[0]):
        for i in range(rows):
            e = m * rows + i
            total_log = 0.0
            for j in range(width):
                inverse = math.exp(-float(log_std[m, j]))
                action[e, j] = head[m, i, j] + noise[m, i * width + j] / inverse
                # From the stored float32 action: the update recomputes exactly this.
                u = (action[e, j] - head[m, i, j]) * inverse
                total_log -= 0.5 * u * u + float(log_std[m, j]) + half_log
            log_prob[e] = total_log


def clip_log_std(z: float) -> float:
    """Clip an output to the range of log standard deviations; NaN is preserved."""
    z = LOG_STD_LOW if z < LOG_STD_LOW else z
    return LOG_STD_HIGH if z > LOG_STD_HIGH else z


def log_tanh_derivative(u: float) -> float:
    """Return log(1 - tanh^2 u) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))), accurate for large u."""
    size = abs(u)
    return 2.0 * (_LOG_2 - size - math.log1p(math.exp(-2.0 * size)))


def sample_squashed(mean: float, log_std: float, noise: float) -> tuple[float, float]:
    """Sample one action component from standard normal noise.

    Returns:
        u, whose tanh is the action, and its contribution to log p.
    """
    u = mean + math.exp(log_std) * noise
    return u, -0.5 * noise * noise - log_std - _HALF_LOG_2_PI - log_tanh_derivative(u)


def sample_squashed_many(
    key: Any, place: int, noise: Any, std: Any, action: Any, log_prob: Any
) -> None:
    """Sample n action components from n places of a stream; vectorized `sample_squashed`.

    Actions are accurate to 1e-8, and so is log p for |u| up to 1e8.

    Args:
        key: np.uint64, key of the stream.
        place: First place in the stream.
        noise, log_prob: float64 [n], written: standard normal numbers, contributions to log p.
        std: float64 [n], log standard deviations, replaced by standard deviations.
        action: float64 [n], means, replaced by actions.
    """
    for i in range(len(noise)):
        noise[i] = quick_normal(key, place + i)
        log_std = std[i]
        std[i] = exp_2(log_std * _PER_LOG_2)
        u = action[i] + std[i] * noise[i]
        size = abs(u)
        small = exp_2(-2.0 * _PER_LOG_2 * size)
        tanh = (1.0 - small) / (1.0 + small)
        action[i] = -tanh if u < 0.0 else tanh
        slope = 2.0 * (_LOG_2 - size - _LOG_2 * log_2(1.0 + small))
        log_prob[i] = -0.5 * noise[i] * noise[i] - log_std - _HALF_LOG_2_PI - slope


GREEDY_ACTOR = GreedyActor(  # an example of its type
    *(f4(2), i8(2), True, True, SCALE, i8(1), i8(1), f4(1), f4(1), f4(1), f4(1), f4(2), f4(1))
)


@functools.cache
def loops() -> Loops:
    """Compiled functions of this module that a policy calls, by name."""
    sampler = Sampler(GREEDY_ACTOR, f4(2), np.zeros((1, 1), np.uint64), 1, 0, f4(1))
    box, of_choices = (f4(2), f4(1), f4(2)), (i8(2), f4(1), i8(2))
    return Loops(
        "nets",
        {
            act_greedy_box_members: (GREEDY_ACTOR, 1, f4(2), b1(2), f4(2)),
            act_greedy_discrete_members: (GREEDY_ACTOR, 1, f4(2), b1(2), i8(2)),
            act_gaussian: (sampler, 0, f4(2), b1(2), *box),
            act_squashed_gaussian: (sampler, 0, f4(2), b1(2), *box),
            act_categorical: (sampler, 0, f4(2), b1(2), *of_choices),
            sample_categorical: (f4(3), f4(2), b1(2), i8(1), i8(2), f4(1)),
            sample_gaussian: (f4(3), f4(2), f4(2), f4(2), f4(1)),
        },
    )
