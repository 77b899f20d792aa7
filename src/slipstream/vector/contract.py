"""Runs a kernel and checks what its source cannot show: run it on an environment of your own.

from slipstream.core.kernel import load_kernel
from slipstream.vector.contract import check_environment

check_environment(load_kernel("my_env.py"))
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slipstream.core.checker import check_kernel
from slipstream.core.config import Config
from slipstream.core.errors import KernelError
from slipstream.core.kernel import Kernel, Loaded, params_table
from slipstream.core.random import stream
from slipstream.core.spec import Spec
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.records import Record, Records
from slipstream.vector.vector_env import VectorEnv, blank, member_indices

_RECORDS = 8  # Params records that are run one by one


def check_environment(
    kernel: Kernel,
    config: Config | Mapping[str, Any] | None = None,
    *,
    steps: int = 200,
    copies: int = 4,
    seed: int = 0,
) -> None:
    """Checks a kernel by running it: interpreted under watch, then against its compiled form.

    Watched: observations lie in their space, are written whole and change nothing; a start depends
    on its random stream alone; actions, Params and Data are never written; rewards are finite
    float64 and flags are bool; the same seed gives the same bits; interpreted and compiled
    trajectories are equal, element by element.

    Args:
        kernel: from `load_kernel`.
        config: what a user would write under `env:`, or a Config; default: its defaults.
        steps: of every run, with random actions.
        copies: stepped together in the comparison.
        seed: of actions and environments.

    Raises:
        KernelError: the first rule found broken.
    """
    check_kernel(kernel)
    settings = config if isinstance(config, Config) else kernel.configure(config or {})
    loaded = kernel.load(settings)
    _check_loaded(kernel, loaded)
    kernel = kernel.fitted(loaded)
    for split, records in loaded.params.items():
        spec = kernel.spec(records[0], loaded.data)
        _check_spec(kernel, spec)
        table = Records(params_table(kernel, records))
        for row in range(min(len(records), _RECORDS)):
            where = f"Kernel `{kernel.name}`, Params record {row} of split `{split}`"
            _Watch(kernel, loaded, spec, table[row], where).run(steps, seed)
    rows, indices = member_indices([seed], copies)
    for who, backend in (
        ("two runs of one seed", "serial"),
        ("interpreted and compiled", "compiled"),
    ):
        envs = [
            KernelVectorEnv(kernel, loaded, rows, indices, backend=name)
            for name in ("serial", backend)
        ]
        compare(envs[0], envs[1], steps, seed, who)


def random_actions(
    spec: Spec, rows: int, draw: np.random.Generator, mask: NDArray[np.bool_] | None = None
) -> NDArray[Any]:
    """Uniform actions [E, (P,) K] among the allowed ones.

    A Box without bounds is drawn from a normal distribution.
    """
    shape = (rows,) if spec.players == 1 else (rows, spec.players)
    size, space = (*shape, spec.action_width), spec.action
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(x, space.shape).ravel() for x in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        inside = draw.uniform(np.where(bounded, low, -1.0), np.where(bounded, high, 1.0), size)
        return np.where(bounded, inside, draw.standard_normal(size)).astype(np.float32)
    counts = space.nvec.ravel() if isinstance(space, spaces.MultiDiscrete) else [spec.choices]
    start = np.asarray(getattr(space, "start", 0)).ravel()
    chance = draw.random((*shape, spec.choices))
    if mask is not None:
        chance = np.where(mask, chance, -1.0)
    parts = np.split(chance, np.cumsum(counts)[:-1], axis=-1)
    chosen = np.stack([part.argmax(axis=-1) for part in parts], axis=-1)
    return np.asarray(chosen + start, np.int64)


def compare(one: VectorEnv, other: VectorEnv, steps: int, seed: int, who: str) -> None:
    """Steps both with the same random actions; every array must be the same, bit for bit.

    Raises:
        KernelError: naming the first array, step and place that differ.
    """
    draw = np.random.default_rng(seed)
    outs = [blank(env) for env in (one, other)]
    for env, out in zip((one, other), outs, strict=True):
        env.reset(out.obs, out.mask)
    for t in range(steps):
        actions = random_actions(one.spec, one.num_envs, draw, outs[0].mask)
        for env, out in zip((one, other), outs, strict=True):
            env.step(actions, out, t)
        states = [env.get_state() for env in (one, other)]
        ends = [_ended(env) for env in (one, other)]
        for kind, (mine, theirs) in (
            ("", [out._asdict() for out in outs]),
            ("state of ", states),
            ("ended episode's ", ends),
        ):
            _same(mine, theirs, f"{who} differ at step {t}: {kind}", actions)


def _ended(env: VectorEnv) -> dict[str, NDArray[Any]]:
    episodes, finals = env.drain_episodes(), env.drain_finals()
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


def _check_loaded(kernel: Kernel, loaded: Any) -> None:
    where = f"Kernel `{kernel.name}`: `load`"
    if not isinstance(loaded, Loaded):
        raise KernelError(f"{where} must return core.kernel.Loaded, not {type(loaded).__name__}.")
    if not isinstance(loaded.data, kernel.Data):
        raise KernelError(f"{where} must return its Data, not {type(loaded.data).__name__}.")
    for name, array in zip(kernel.Data._fields, loaded.data, strict=True):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise KernelError(f"{where}: Data.{name} must be an array of numbers, not {array!r}.")
    if loaded.state is not None:
        if loaded.state.names != kernel.STATE.names:
            raise KernelError(
                f"{where} must return a `state` with the fields of STATE, in their order; it has "
                f"{loaded.state.names}."
            )
        check_kernel(kernel.fitted(loaded))
    if "train" not in loaded.params:
        raise KernelError(f"{where} must return Params records of the split `train`.")
    for split, records in loaded.params.items():
        if not records or not all(isinstance(record, kernel.Params) for record in records):
            raise KernelError(f"{where}: split `{split}` must be a tuple of at least one Params.")


def _check_spec(kernel: Kernel, spec: Spec) -> None:
    where = f"Kernel `{kernel.name}`: `spec`"
    if not isinstance(spec.observation, spaces.Box) or spec.observation.dtype not in (
        np.float32,
        np.uint8,
    ):
        raise KernelError(
            f"{where}: the observation must be a Box of float32 or uint8, not {spec.observation}."
        )
    if not isinstance(spec.action, spaces.Discrete | spaces.MultiDiscrete | spaces.Box):
        raise KernelError(
            f"{where}: the action must be Discrete, MultiDiscrete or Box, not {spec.action}."
        )
    fields = kernel.STATE.names or ()
    for name in (*(metric.name for metric in spec.metrics), *spec.trace):
        if name not in fields:
            raise KernelError(f"{where}: `{name}` is not a field of STATE ({', '.join(fields)}).")
    if kernel.mask is not None and spec.choices == 0:
        raise KernelError(f"{where}: a mask needs a Discrete or MultiDiscrete action.")


class _Watch:
    """One interpreted environment whose inputs are compared before and after every call."""

    def __init__(self, kernel: Kernel, loaded: Loaded, spec: Spec, p: Record, where: str) -> None:
        self.kernel, self.spec, self.p, self.where = kernel, spec, p, where
        self.data = kernel.Data(*(_locked(array) for array in loaded.data))
        self.state = np.zeros(1, kernel.STATE)
        self.s = Records(self.state)[0]
        self.allowed: NDArray[np.bool_] | None = None
        if kernel.mask is not None:
            players = () if spec.players == 1 else (spec.players,)
            self.allowed = np.zeros((1, *players, spec.choices), np.bool_)
        self.params = {name: getattr(p, name) for name in kernel.Params._fields}

    def run(self, steps: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        with np.errstate(over="ignore", invalid="ignore"):
            self._begin(seed, 0)
            for t in range(steps):
                action = random_actions(self.spec, 1, draw, self.allowed)[0]
                if self._step(action, t):
                    self._begin(seed, t + 1)

    def _begin(self, seed: int, episode: int) -> None:
        self.state[:] = np.zeros(1, self.kernel.STATE)
        self.s.key = stream(np.uint64(seed), np.uint64(0), np.uint64(episode))
        self._call("reset", self.s, self.p, self.data)
        self._observe(f"after the reset of episode {episode}")

    def _step(self, action: NDArray[Any], t: int) -> bool:
        given = action.copy()
        when = f"at step {t}, action {given.tolist()}"
        reward, terminated, truncated = self._call("step", self.s, action, self.p, self.data)
        if not np.array_equal(action, given):
            self._fail(f"`step` wrote into the action {when}; copy it into STATE instead")
        rewards = (reward,) if self.spec.players == 1 else tuple(reward)
        if len(rewards) != self.spec.players:
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
        self._observe(when)
        return bool(terminated or truncated)

    def _observe(self, when: str) -> None:
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
                self._fail(f"`observe` left places {places} of its row unwritten {when}")
            if not (np.isfinite(rows[0]).all() and spec.observation.contains(rows[0])):
                self._fail(f"the observation {rows[0]} lies outside {spec.observation} {when}")
            if kernel.mask is not None:
                assert self.allowed is not None
                allowed = self.allowed[0] if spec.players == 1 else self.allowed[0, player]
                self._call("mask", self.s, self.p, self.data, *who, allowed)
                if not allowed.any():
                    self._fail(f"`mask` allows nothing {when}")
        for name in kernel.STATE.names or ():
            if not np.array_equal(before[name], self.state[name], equal_nan=True):
                self._fail(f"`observe` (or `mask`) changed STATE.{name} {when}; it must be pure")
        for name, value in self.params.items():
            if getattr(self.p, name) != value:
                self._fail(f"Params.{name} was changed {when}; keep what changes in STATE")

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.kernel, name)(*arguments)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            advice = "Data is read-only" if "read-only" in str(error) else "guard it with `if`"
            raise KernelError(
                f"{line.filename}:{line.lineno}: {self.where}: `{line.line}` raised "
                f"{type(error).__name__}: {error}; {advice}."
            ) from error

    def _fail(self, message: str) -> None:
        raise KernelError(f"{self.where}: {message}.")


def _locked(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
