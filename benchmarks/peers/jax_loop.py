"""Training loops in jax, compiled as one program: the form of PureJaxRL, written for the CPU.

Environments, acting, the update and, for SAC, the replay are one jitted function that is called
repeatedly; only a counter leaves the device. Sizes are those of slipstream's rows. Compiling is
timed separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, random

from benchmarks.worker import side_by_side, stay_on

Tree = Any  # a pytree of arrays

_STARTS = 256  # initial rows of a replay
_REPLAY = 100_000  # transitions
_STEPS_A_CALL = 256  # and updates


def ppo_cartpole(processes: int, threads: int, seconds: float, **asked: Any) -> dict[str, float]:
    """Measure training steps per second of PPO on CartPole over whole iterations, 64x64 networks.

    Args:
        processes: concurrent trainings, each on its own core; their rates are added.
        threads: cores of a single process.
        seconds: duration of the measurement.
        asked: n_envs, n_steps, n_epochs, batch_size and `generator`, jax's random generator.
    """
    return side_by_side(
        "peers.jax_loop.ppo_alone", {"seconds": seconds, **asked}, processes, threads
    )


def sac_pendulum(processes: int, threads: int, seconds: float, **asked: Any) -> dict[str, float]:
    """Measure training steps per second of SAC on Pendulum, with an update of 256 rows a step.

    Args:
        processes, threads, seconds: as for `ppo_cartpole`.
        asked: `width` of both hidden layers; `generator`.
    """
    return side_by_side(
        "peers.jax_loop.sac_alone", {"seconds": seconds, **asked}, processes, threads
    )


def dqn_cartpole(processes: int, threads: int, seconds: float, **asked: Any) -> dict[str, float]:
    """Measure training steps per second of DQN on CartPole, an update of 64 rows every 4 steps.

    Args:
        processes, threads, seconds: as for `ppo_cartpole`.
        asked: `generator`.
    """
    return side_by_side(
        "peers.jax_loop.dqn_alone", {"seconds": seconds, **asked}, processes, threads
    )


def ppo_alone(
    cores: list[int],
    n_envs: int,
    n_steps: int,
    n_epochs: int,
    batch_size: int,
    generator: str,
    seconds: float,
) -> dict[str, float]:
    """Measure PPO in this process, on the given cores."""
    _settle(cores, generator)
    steps = n_envs * n_steps
    return _rate(*_ppo(n_envs, n_steps, n_epochs, steps // batch_size), steps, seconds)


def sac_alone(cores: list[int], width: int, generator: str, seconds: float) -> dict[str, float]:
    """Measure SAC in this process, on the given cores."""
    _settle(cores, generator)
    return _rate(*_sac(width), _STEPS_A_CALL, seconds)


def dqn_alone(cores: list[int], generator: str, seconds: float) -> dict[str, float]:
    """Measure DQN in this process, on the given cores."""
    _settle(cores, generator)
    return _rate(*_dqn(), 4 * _STEPS_A_CALL, seconds)


def _settle(cores: list[int], generator: str) -> None:
    """Set cores and generator before jax creates its client, which starts a thread per core."""
    stay_on(cores)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_prng_impl", generator)


def _rate(
    state: Tree, step: Callable[[Tree], Tree], steps: int, seconds: float
) -> dict[str, float]:
    """Measure steps per second of a compiled call, repeated after warm-up calls."""
    began = time.perf_counter()
    call = jax.jit(step, donate_argnums=0).lower(state).compile()
    compiling = time.perf_counter() - began
    for _ in range(3):
        state = jax.block_until_ready(call(state))
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        state, calls = jax.block_until_ready(call(state)), calls + 1
    return {
        "steps_per_second": steps * calls / (time.perf_counter() - began),
        "compile_seconds": compiling,
    }


# Networks and Adam


def _mlp(key: jax.Array, sizes: list[int]) -> Tree:
    keys = random.split(key, len(sizes) - 1)
    return [
        (random.normal(k, (m, n)) * jnp.sqrt(2.0 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _apply(layers: Tree, x: jax.Array, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    for weights, bias in layers[:-1]:
        x = activation(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def _adam_start(params: Tree) -> Tree:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32)


def _adam(params: Tree, grads: Tree, moments: Tree, rate: float) -> tuple[Tree, Tree]:
    first, second, t = moments
    t = t + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
    by = rate * jnp.sqrt(1.0 - 0.999**t) / (1.0 - 0.9**t)
    params = jax.tree.map(lambda p, m, v: p - by * m / (jnp.sqrt(v) + 1e-8), params, first, second)
    return params, (first, second, t)


# CartPole and PPO


def _cartpole(state: jax.Array, action: jax.Array) -> jax.Array:
    """Make Gymnasium's Euler step; state [envs, 4]."""
    x, v, angle, turn = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    part = (force + 0.05 * turn**2 * sin) / 1.1
    bent = (9.8 * sin - cos * part) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    pushed = part - 0.05 * bent * cos / 1.1
    return jnp.stack([x + 0.02 * v, v + 0.02 * pushed, angle + 0.02 * turn, turn + 0.02 * bent], 1)


def _ppo(n_envs: int, n_steps: int, epochs: int, parts: int) -> tuple[Tree, Callable[[Tree], Tree]]:
    """Return the initial training state, and an iteration: rollout, advantages, epochs."""
    key = random.key(1)
    start = random.uniform(key, (n_envs, 4), minval=-0.05, maxval=0.05)
    params = _mlp(key, [4, 64, 64, 2]), _mlp(key, [4, 64, 64, 1])

    def act(carry: Tree, key: jax.Array) -> tuple[Tree, Tree]:
        params, obs, age = carry
        logits = _apply(params[0], obs, jnp.tanh)
        value = _apply(params[1], obs, jnp.tanh)[:, 0]
        choose, reset = random.split(key)
        action = random.categorical(choose, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
        after, age = _cartpole(obs, action), age + 1
        ended = (jnp.abs(after[:, 0]) > 2.4) | (jnp.abs(after[:, 2]) > 0.2095) | (age >= 500)
        fresh = random.uniform(reset, (n_envs, 4), minval=-0.05, maxval=0.05)
        after = jnp.where(ended[:, None], fresh, after)
        row = (obs, action, log_prob, value, jnp.ones(n_envs), ended)
        return (params, after, jnp.where(ended, 0, age)), row

    def loss(params: Tree, rows: Tree) -> jax.Array:
        obs, action, old, advantage, goal = rows
        log_probs = jax.nn.log_softmax(_apply(params[0], obs, jnp.tanh))
        value = _apply(params[1], obs, jnp.tanh)[:, 0]
        ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0] - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 0.8, 1.2) * advantage
        entropy = -(jnp.exp(log_probs) * log_probs).sum(1).mean()
        gain = jnp.minimum(ratio * advantage, clipped).mean()
        return 0.5 * ((value - goal) ** 2).mean() - gain - 0.01 * entropy

    def minibatch(carry: Tree, rows: Tree) -> tuple[Tree, None]:
        params, moments = carry
        grads = jax.grad(loss)(params, rows)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-6)), grads)
        return _adam(params, grads, moments, 3e-4), None

    def iteration(state: Tree) -> Tree:
        params, moments, obs, age, key = state
        key, acting, order = random.split(key, 3)
        (_, obs, age), rows = lax.scan(act, (params, obs, age), random.split(acting, n_steps))
        seen, action, log_prob, value, reward, ended = rows
        last = _apply(params[1], obs, jnp.tanh)[:, 0]

        def back(carry: Tree, row: Tree) -> tuple[Tree, jax.Array]:
            advantage, after = carry
            reward, value, ended = row
            live = 1.0 - ended
            advantage = reward + 0.99 * after * live - value + 0.99 * 0.95 * live * advantage
            return (advantage, value), advantage

        begin = (jnp.zeros(n_envs), last)
        _, advantage = lax.scan(back, begin, (reward, value, ended), reverse=True)
        flat = [
            array.reshape(-1, *array.shape[2:]) for array in (seen, action, log_prob, advantage)
        ]
        flat.append((advantage + value).reshape(-1))

        def epoch(carry: Tree, key: jax.Array) -> tuple[Tree, None]:
            mixed = random.permutation(key, n_envs * n_steps)
            drawn = [array[mixed].reshape(parts, -1, *array.shape[1:]) for array in flat]
            carry, _ = lax.scan(minibatch, carry, drawn)
            return carry, None

        (params, moments), _ = lax.scan(epoch, (params, moments), random.split(order, epochs))
        return params, moments, obs, age, key

    first = (params, _adam_start(params), start, jnp.zeros(n_envs, jnp.int32), random.key(2))
    return first, iteration


# CartPole and DQN


def _dqn() -> tuple[Tree, Callable[[Tree], Tree]]:
    """Return the initial training state, and a call of 1,024 steps with an update every 4 steps."""
    net = _mlp(random.key(1), [4, 64, 64, 2])

    def act(carry: Tree, key: jax.Array) -> tuple[Tree, None]:
        net, replay, obs, age, count = carry
        explore, choose, reset = random.split(key, 3)
        best = jnp.argmax(_apply(net, obs, jax.nn.relu), 1)
        drawn = random.randint(choose, (1,), 0, 2)
        action = jnp.where(random.uniform(explore, (1,)) < 0.05, drawn, best)
        after, age = _cartpole(obs, action), age + 1
        ended = (jnp.abs(after[:, 0]) > 2.4) | (jnp.abs(after[:, 2]) > 0.2095)
        parts = [obs[0], action.astype(jnp.float32), ended.astype(jnp.float32), after[0]]
        replay = lax.dynamic_update_slice(
            replay, jnp.concatenate(parts)[None], (count % _REPLAY, 0)
        )
        over = ended | (age >= 500)
        fresh = random.uniform(reset, (1, 4), minval=-0.05, maxval=0.05)
        after = jnp.where(over[:, None], fresh, after)
        return (net, replay, after, jnp.where(over, 0, age), count + 1), None

    def some(state: Tree, key: jax.Array) -> tuple[Tree, None]:
        net, target, moments, replay, obs, age, count = state
        sample, acting = random.split(key)
        playing, _ = lax.scan(act, (net, replay, obs, age, count), random.split(acting, 4))
        _, replay, obs, age, count = playing
        rows = replay[random.randint(sample, (64,), 0, jnp.minimum(count, _REPLAY))]
        after = _apply(target, rows[:, 6:], jax.nn.relu).max(1)
        goal = 1.0 + 0.99 * (1.0 - rows[:, 5]) * after

        def loss(net: Tree) -> jax.Array:
            values = _apply(net, rows[:, :4], jax.nn.relu)
            chosen = jnp.take_along_axis(values, rows[:, 4:5].astype(jnp.int32), 1)[:, 0]
            off = jnp.abs(chosen - goal)
            return jnp.where(off < 1.0, 0.5 * off**2, off - 0.5).mean()

        net, moments = _adam(net, jax.grad(loss)(net), moments, 1e-3)
        keep = (count // 4) % 2500 != 0
        target = jax.tree.map(lambda t, n: jnp.where(keep, t, n), target, net)
        return (net, target, moments, replay, obs, age, count), None

    def call(state: Tree) -> Tree:
        key, use = random.split(state[-1])
        inner, _ = lax.scan(some, state[0], random.split(use, _STEPS_A_CALL))
        return inner, key

    obs, age = jnp.zeros((1, 4)), jnp.zeros(1, jnp.int32)
    replay = jnp.zeros((_REPLAY, 10)) + 0.1  # the first update needs a full batch
    target = jax.tree.map(jnp.copy, net)
    inner = (net, target, _adam_start(net), replay, obs, age, jnp.int32(_STARTS))
    return (inner, random.key(2)), call


# Pendulum and SAC


def _sac(width: int) -> tuple[Tree, Callable[[Tree], Tree]]:
    """Return the initial training state, and a call of 256 steps with a 256-row update a step."""
    keys = random.split(random.key(1), 3)
    actor = _mlp(keys[0], [3, width, width, 2])
    critics = tuple(_mlp(key, [4, width, width, 1]) for key in keys[1:])
    targets = jax.tree.map(jnp.copy, critics)
    temperature = jnp.zeros(())
    params = (actor, critics, temperature)

    def seen(angle: jax.Array, turn: jax.Array) -> jax.Array:
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), turn])

    def draw(actor: Tree, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw squashed normal actions; return them with their log-probabilities."""
        mean, log_std = jnp.split(_apply(actor, obs, jax.nn.relu), 2, -1)
        log_std = jnp.clip(log_std, -20.0, 2.0)
        noise = random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        density = -0.5 * noise**2 - log_std - 0.9189385
        squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return jnp.tanh(raw), (density - squash).sum(-1)

    def judge(critics: Tree, obs: jax.Array, action: jax.Array) -> list[jax.Array]:
        x = jnp.concatenate([obs, action], -1)
        return [_apply(critic, x, jax.nn.relu)[:, 0] for critic in critics]

    def update(carry: Tree, rows: Tree, key: jax.Array) -> Tree:
        (actor, critics, temperature), targets, (of_actor, of_critics, of_alpha) = carry
        obs, action, reward, after = rows
        alpha = jnp.exp(temperature)
        one, two = random.split(key)
        follow, log_prob = draw(actor, after, one)
        worth = jnp.minimum(*judge(targets, after, follow)) - alpha * log_prob
        goal = reward + 0.99 * worth  # Pendulum has no ends, only a time limit

        def of_judging(critics: Tree) -> jax.Array:
            return sum(((q - goal) ** 2).mean() for q in judge(critics, obs, action))

        critics, of_critics = _adam(critics, jax.grad(of_judging)(critics), of_critics, 3e-4)

        def of_acting(actor: Tree) -> tuple[jax.Array, jax.Array]:
            drawn, log_prob = draw(actor, obs, two)
            worth = jnp.minimum(*judge(critics, obs, drawn))
            return (alpha * log_prob - worth).mean(), log_prob.mean()

        grads, entropy = jax.grad(of_acting, has_aux=True)(actor)
        actor, of_actor = _adam(actor, grads, of_actor, 3e-4)
        temperature, of_alpha = _adam(temperature, -(entropy - 1.0), of_alpha, 3e-4)
        targets = jax.tree.map(lambda t, c: 0.995 * t + 0.005 * c, targets, critics)
        return (actor, critics, temperature), targets, (of_actor, of_critics, of_alpha)

    def step(state: Tree, key: jax.Array) -> tuple[Tree, None]:
        learning, replay, (angle, turn, age), count = state
        act, reset, sample, noise = random.split(key, 4)
        obs = seen(angle, turn)
        action, _ = draw(learning[0][0], obs[None], act)
        torque = 2.0 * action[0, 0]
        off = (angle + jnp.pi) % (2.0 * jnp.pi) - jnp.pi
        reward = -(off**2 + 0.1 * turn**2 + 0.001 * torque**2)
        turn = jnp.clip(turn + (15.0 * jnp.sin(angle) + 3.0 * torque) * 0.05, -8.0, 8.0)
        angle = angle + turn * 0.05
        row = jnp.concatenate([obs, action[0], reward[None], seen(angle, turn)])
        replay = lax.dynamic_update_slice(replay, row[None], (count % _REPLAY, 0))
        count, age = count + 1, age + 1
        drawn = replay[random.randint(sample, (256,), 0, jnp.minimum(count, _REPLAY))]
        learning = update(learning, (drawn[:, :3], drawn[:, 3:4], drawn[:, 4], drawn[:, 5:]), noise)
        fresh = random.uniform(reset, (2,), minval=-1.0) * jnp.array([jnp.pi, 1.0])
        ended = age >= 200
        angle, turn = jnp.where(ended, fresh, jnp.stack([angle, turn]))
        return (learning, replay, (angle, turn, jnp.where(ended, 0, age)), count), None

    def call(state: Tree) -> Tree:
        key, use = random.split(state[-1])
        inner, _ = lax.scan(step, state[0], random.split(use, _STEPS_A_CALL))
        return inner, key

    moments = tuple(_adam_start(tree) for tree in params)
    replay = jnp.zeros((_REPLAY, 8)) + 0.1  # the first update needs a full batch
    pendulum = (jnp.float32(0.3), jnp.float32(0.0), jnp.int32(0))
    inner = ((params, targets, moments), replay, pendulum, jnp.int32(_STARTS))
    return (inner, random.key(2)), call
