"""Run a kernel and check what its source cannot show.

from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.env_checker import check_environment

check_environment(load_kernel("my_env.py"))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import KernelError, wrap_user_error
from slipstream.core.random import stream
from slipstream.kernels.interpreter import (
    Record,
    Records,
    empty_mask_message,
    first_empty_component,
)
from slipstream.kernels.kernel import Kernel, KernelData, params_table
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.source_lint import check_kernel
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.validation import check_spec, validate_kernel_data
from slipstream.kernels.vector_env import VectorEnv, allocate_buffers, member_indices

_RECORDS, _RUNS = 8, 24  # Params records to run: per split, in all
_LINES = 3_000_000  # lines of an interpreted call, after which it counts as endless
_PATIENCE = 5  # times as many steps for an episode to end


def check_environment(
    kernel: Kernel,
    config: Config | Mapping[str, Any] | None = None,
    *,
    steps: int = 200,
    num_envs: int = 4,
    seed: int = 0,
    loaded: KernelData | None = None,
) -> None:
    """Check a kernel by running it: interpreted and watched, then against compiled code.

    Checked: indices are inside their arrays; observations are in their space, written completely,
    and have no side effects; masks allow at least one action; a reset depends on its random stream
    only; actions, Params and Data are never written; rewards are finite float64 and flags are bool;
    the same seed gives bit-identical results; interpreted and compiled trajectories are
    bit-identical.

    Args:
        kernel: from `load_kernel`.
        config: contents of `env:`, or a Config; its defaults if omitted.
        steps: steps of every run, with random actions. A watched run continues to the end of its
            first episode, at most five times as far.
        num_envs: environments stepped together in the comparison.
        seed: seed of actions and environments.
        loaded: result of `load`, if known; `config` is then ignored.

    Raises:
        KernelError: the first violation.
    """
    check_kernel(kernel)
    if loaded is None:
        settings = config if isinstance(config, Config) else kernel.configure(config or {})
        loaded = kernel.load(settings)
    # User kernels are validated already. Data arrays are read-only from here on.
    watched = validate_kernel_data(kernel, loaded) if kernel.built_in else loaded
    kernel = kernel.specialize(loaded)
    for split, records in loaded.params.items():
        spec = kernel.spec(records[0], loaded.data)
        if kernel.built_in:
            check_spec(kernel, spec)
        table = Records(params_table(kernel, records))
        per_params = min(_RECORDS, max(1, _RUNS // len(loaded.params)))
        for row in range(min(len(records), per_params)):
            where = f"Kernel `{kernel.name}`, Params record {row} of split `{split}`"
            _EnvWatch(kernel, watched, spec, table[row], where).run(steps, seed)
    rows, indices = member_indices([seed], num_envs)
    for who, backend in (
        ("two runs of one seed", "serial"),
        ("interpreted and compiled", "compiled"),
    ):
        envs = [
            KernelVectorEnv(kernel, loaded, rows, indices, backend=name)
            for name in ("serial", backend)
        ]
        compare_envs(envs[0], envs[1], steps, seed, who)


def random_actions(
    spec: EnvSpec, rows: int, draw: np.random.Generator, mask: NDArray[np.bool_] | None = None
) -> NDArray[Any]:
    """Return uniform random actions [E, (P,) K] among the allowed ones.

    Components of an unbounded Box are drawn from a normal distribution.
    """
    shape = (rows,) if spec.players == 1 else (rows, spec.players)
    size, space = (*shape, spec.action_dim), spec.action_space
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(x, space.shape).ravel() for x in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        inside = draw.uniform(np.where(bounded, low, -1.0), np.where(bounded, high, 1.0), size)
        return np.where(bounded, inside, draw.standard_normal(size)).astype(np.float32)
    counts = space.nvec.ravel() if isinstance(space, spaces.MultiDiscrete) else [spec.num_actions]
    start = np.asarray(getattr(space, "start", 0)).ravel()
    if mask is None:  # no array per action: there may be billions
        return np.asarray(draw.integers(counts, size=size) + start, np.int64)
    chance = np.where(mask, draw.random((*shape, spec.num_actions)), -1.0)
    parts = np.split(chance, np.cumsum(counts)[:-1], axis=-1)
    chosen = np.stack([part.argmax(axis=-1) for part in parts], axis=-1)
    return np.asarray(chosen + start, np.int64)


def compare_envs(first: VectorEnv, other: VectorEnv, steps: int, seed: int, who: str) -> None:
    """Step both with the same random actions and require bit-identical arrays.

    Raises:
        KernelError: has the first array, step and position that differ.
    """
    draw = np.random.default_rng(seed)
    outs = [allocate_buffers(env) for env in (first, other)]
    for env, out in zip((first, other), outs, strict=True):
        env.reset(out.obs, out.mask)
    for t in range(steps):
        actions = random_actions(first.spec, first.num_envs, draw, outs[0].mask)
        for env, out in zip((first, other), outs, strict=True):
            env.step(actions, out, t)
        states = [env.get_state() for env in (first, other)]
        ends = [_ended(env) for env in (first, other)]
        for kind, (mine, theirs) in (
            ("", [out._asdict() for out in outs]),
            ("state of ", states),
            ("ended episode's ", ends),
        ):
            _same(mine, theirs, f"{who} differ at step {t}: {kind}", actions)


def _ended(env: VectorEnv) -> dict[str, NDArray[Any]]:
    episodes, finals = env.drain_episodes(), env.drain_final_obs()
    columns = {name: value for name, value in episodes._asdict().items() if name != "metrics"}
    return {**columns, **episodes.metrics, "final_obs": finals.obs, "final_index": finals.index}


def _same(mine: Mapping[str, Any], theirs: Mapping[str, Any], where: str, actions: Any) -> None:
    for name, array in mine.items():
        if array is None or np.array_equal(array, theirs[name], equal_nan=array.dtype.kind == "f"):
            continue
        if array.shape != theirs[name].shape:
            raise KernelError(f"{where}`{name}` has {len(array)} and {len(theirs[name])} rows.")
        place = tuple(int(i) for i in np.argwhere(array != theirs[name])[0])
        raise KernelError(
            f"{where}`{name}` at {place} is {array[place]!r} and {theirs[name][place]!r}, after "
            f"action {actions[place[0] % len(actions)].tolist()}. Read float32 data through "
            "`float()`, and keep each variable to one type."
        )


class EndlessLoopError(Exception):
    """A call exceeded the number of lines after which it counts as endless."""

    def __str__(self) -> str:
        return f"no end after {_LINES:,} lines"


def _count(left: int) -> Callable[..., Any]:
    """Return a trace function that aborts a call after `left` lines."""

    def trace(frame: Any, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal left
        left -= 1
        if left < 0:
            raise EndlessLoopError
        return trace

    return trace


class _EnvWatch:
    """One interpreted environment whose inputs are compared before and after every call."""

    def __init__(
        self, kernel: Kernel, loaded: KernelData, spec: EnvSpec, p: Record, where: str
    ) -> None:
        self.kernel, self.spec, self.p, self.where = kernel, spec, p, where
        self.data = loaded.data
        self.state = np.zeros(1, kernel.STATE)
        self.s = Records(self.state)[0]
        self.allowed: NDArray[np.bool_] | None = None
        if kernel.mask is not None:
            players = () if spec.players == 1 else (spec.players,)
            self.allowed = np.zeros((1, *players, spec.num_actions), np.bool_)
        self.params = {name: getattr(p, name) for name in kernel.Params._fields}

    def run(self, steps: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        limit, length, ended = self.spec.max_episode_steps or 0, 0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            self._begin(seed, 0)
            for t in range(_PATIENCE * steps):
                action = random_actions(self.spec, 1, draw, self.allowed)[0]
                length += 1
                if self._step(action, t) or length == limit:
                    if self.kernel.finalize_episode is not None:
                        self._call("finalize_episode", self.s, self.p, self.data)
                    ended, length = ended + 1, 0
                    self._begin(seed, t + 1)
                if ended and t + 1 >= steps:
                    return

    def _begin(self, seed: int, episode: int) -> None:
        self.state[:] = np.zeros(1, self.kernel.STATE)
        self.s.key = stream(np.uint64(seed), np.uint64(0), np.uint64(episode))
        self._call("reset", self.s, self.p, self.data)
        self._observe(f"after the reset of episode {episode}")

    def _step(self, action: NDArray[Any], t: int) -> bool:
        given = action.copy()
        when = f"at step {t}, action {given.tolist()}"
        answer = self._call("step", self.s, action, self.p, self.data)
        if not isinstance(answer, tuple) or len(answer) != 3:
            self._fail(
                f"`step` returned {answer!r} {when}; return reward, terminated, truncated, the "
                "last one False where only the batch loop cuts episodes"
            )
        reward, terminated, truncated = answer
        if not np.array_equal(action, given):
            self._fail(f"`step` wrote into the action {when}; copy it into STATE instead")
        rewards = (reward,) if self.spec.players == 1 else reward
        if not isinstance(rewards, tuple) or len(rewards) != self.spec.players:
            self._fail(f"`step` must return {self.spec.players} rewards, it returned {reward}")
        for value in rewards:
            if not isinstance(value, float | int | np.float64 | np.int64):
                self._fail(
                    f"the reward is a {type(value).__name__} {when}; calculate in float64: read "
                    "float32 data through `float()`"
                )
            if not np.isfinite(value):
                self._fail(f"the reward is {value} {when}; guard divisors, log and sqrt")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self._fail(f"`{name}` is a {type(flag).__name__} {when}; return a comparison")
        ended = bool(terminated or truncated)
        self._observe(when, ended)
        return ended

    def _observe(self, when: str, ended: bool = False) -> None:
        kernel, spec = self.kernel, self.spec
        before = self.state.copy()
        for player in range(spec.players):
            who = () if spec.players == 1 else (player,)
            rows = []
            for filler in (1, 2):
                out = np.full(spec.observation_shape, filler, spec.observation_dtype)
                self._call("observe", self.s, self.p, self.data, *who, out)
                rows.append(out)
            if not np.array_equal(rows[0], rows[1], equal_nan=spec.observation_dtype.kind == "f"):
                places = np.argwhere(rows[0] != rows[1])[:4].tolist()
                names = ", ".join(f"out[{', '.join(map(str, place))}]" for place in places)
                self._fail(
                    f"`observe` left {names} unwritten {when}; write every place of the row each "
                    "time, for it still holds an older observation"
                )
            if not (np.isfinite(rows[0]).all() and spec.observation_space.contains(rows[0])):
                self._fail(
                    f"the observation {rows[0]} is outside {spec.observation_space} {when}; "
                    "widen the bounds in `spec`, or clip in `observe`"
                )
            if kernel.mask is not None:
                assert self.allowed is not None
                allowed = self.allowed[0] if spec.players == 1 else self.allowed[0, player]
                self._call("mask", self.s, self.p, self.data, *who, allowed)
                none = first_empty_component(allowed, spec.nvec)
                if none is not None and not ended:
                    self._fail(f"{empty_mask_message(none, spec.nvec)}; it happened {when}")
        for name in kernel.STATE.names or ():
            if not np.array_equal(before[name], self.state[name], equal_nan=True):
                self._fail(f"`observe` (or `mask`) changed STATE.{name} {when}; it must be pure")
        for name, value in self.params.items():
            if getattr(self.p, name) != value:
                self._fail(f"Params.{name} was changed {when}; keep what changes in STATE")

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self.kernel, name)
        outer = sys.gettrace()  # a debugger or a coverage tool
        if outer is None and not self.kernel.built_in:
            sys.settrace(_count(_LINES))
        try:
            return function(*arguments)
        except EndlessLoopError as error:
            advice = "bound the loop, as by `for i in range(n)`: compiled, it could not be stopped"
            raise wrap_user_error(self.where, function, error, advice) from None
        except Exception as error:
            raise wrap_user_error(self.where, function, error) from error
        finally:
            sys.settrace(outer)

    def _fail(self, message: str) -> None:
        raise KernelError(f"{self.where}: {message}.")
