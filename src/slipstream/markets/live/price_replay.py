"""Price replay: a policy on a market in memory, with some actions known in advance.

A `PriceReplay` steps through all bars once; known actions are replayed without Python code per
step. Later bars are processed incrementally: new array rows are computed from the last bars, and
must reproduce the previous row bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.jit import codegen
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import FAULT, HOLD
from slipstream.kernels.vector_env import StepBuffers
from slipstream.markets.data.market import Market
from slipstream.markets.features.indicators import IndicatorStreams
from slipstream.markets.live.drift import FeatureDrift, FeatureRanges
from slipstream.training.environments.environment import Environment
from slipstream.training.environments.evaluator import PolicyInput, episode_names, predict
from slipstream.training.environments.factory import (
    DataWindow,
    frozen_settings,
    load_environment,
)
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.runs.policies import DeployedPolicy, check_fit

# Bound by code generation.
advance: Any = None  # the kernel's batch loop

_CHUNK = 4_096  # steps whose states are in memory at the same time
MAX_GAP = 12  # bars; a longer gap ends a portfolio's pass

KnownActions = Mapping[str, NDArray[Any]]
"""Actions [n, K] decided before, by pass."""

Trace = Mapping[str, NDArray[Any]]
"""State fields of an environment after each step, [n], by name."""


class ReplayPass(NamedTuple):
    """Decisions of one pass over the bars so far.

    Attributes:
        name: a symbol, or all symbols of a portfolio.
        time: int64 [n], opens of the bars decided on.
        action: [n, K].
        equity: float64 [n], account currency, at those bars' closes.
        target_units: units after the next fill, of the last decision.
        drift: largest drift of the features at the last bar.
        num_before: number of earlier decisions of the pass.
    """

    name: str
    time: NDArray[np.int64]
    action: NDArray[Any]
    equity: NDArray[np.float64]
    target_units: tuple[float, ...]
    drift: FeatureDrift
    num_before: int = 0


def replay_passes(
    policy: DeployedPolicy,
    market: Market,
    start: int | None,
    known_actions: KnownActions | None = None,
) -> list[ReplayPass]:
    """Return the passes of a `PriceReplay`."""
    with closing(PriceReplay(policy, market, start, known_actions)) as replay:
        return replay.passes


class PriceReplay:
    """Replay of a market in memory, without a decision on its last bar.

    Args:
        policy: the policy that decides.
        market: the bars, followed by a flat one.
        start: first time decided on, UTC seconds; the first usable bar by default.
        known_actions: earlier decisions; all bars are decided on by default.
        spare_rows: number of bars that `advance` can append.

    Attributes:
        passes: all decisions.
        memory: bars before a new one that its features and its observation need.

    Raises:
        DataError: there are too few bars for a decision.
    """

    def __init__(
        self,
        policy: DeployedPolicy,
        market: Market,
        start: int | None,
        known_actions: KnownActions | None = None,
        spare_rows: int = 0,
    ) -> None:
        self._policy, self._streams, known = policy, IndicatorStreams(), known_actions or {}
        with self._streams.activate(continues=False):
            environment = self._load_environment(market, start)
        check_fit(policy.policy, environment)
        self.memory = sum(environment.training_context[key] for key in ("warm_up_bars", "lookback"))
        self._environment, self._row_arrays = _with_spare_rows(environment, spare_rows)
        self._names = names = _pass_names(environment)
        backend = policy.config.training.resolved_backend
        env = self._environment.make_eval_envs("window", len(names), backend=backend)
        assert isinstance(env, KernelVectorEnv)
        action_replay, every = ActionReplay(env), np.arange(env.num_envs)
        self._env, self._out = env, action_replay.out
        env.begin(
            every,
            every,
            policy.config.evaluation.seed,
            action_replay.out.obs,
            action_replay.out.mask,
        )
        self._ends, self._last = env.state["last"] + 1 + spare_rows, env.state["bar"].copy()
        past_actions = [known.get(name, _no_actions(env)) for name in names]
        # The step into the last bar follows below, since the state before it is stored.
        past = [
            action_replay.run(e, env_actions[:-1], env.spec.trace)
            for e, env_actions in enumerate(past_actions)
        ]
        self._steps = np.array([len(past_trace["bar"]) for past_trace in past])
        self._previous_state, first_steps = (
            (env.state.copy(), env.episode_state.copy()),
            self._steps.copy(),
        )
        self._action = np.zeros((env.num_envs, env.spec.action_dim), env.spec.action_dtype)
        capital = environment.spec.market.initial_equity if environment.spec.market else 0.0
        self.passes = []
        for e, (actions, trace) in enumerate(
            self._step_to_end([env_actions[-1:] for env_actions in past_actions])
        ):
            full_trace = {name: np.concatenate([past[e][name], trace[name]]) for name in trace}
            action = np.concatenate([past_actions[e][: first_steps[e]], actions])
            equity = np.append(capital, full_trace["equity"][:-1])
            self.passes.append(
                self._make_pass(e, full_trace, full_trace["bar"] - 1, action, equity)
            )

    def _load_environment(self, market: Market, start: int | None) -> KernelEnvironment:
        """Load a market as one window whose last bar does not end the episode."""
        config, frozen = self._policy.config, frozen_settings(self._policy.metadata)
        window = DataWindow(start=start, frozen=frozen, market=market)
        loaded = load_environment(config.env_name, config.env_settings, window)
        environment = loaded.part(KernelEnvironment)
        assert environment is not None
        overrides = {"sells_at_end": False, "early_end": 0}
        records = tuple(
            record._replace(**{key: overrides[key] for key in overrides if key in record._fields})
            for record in environment.records("window")
        )
        return environment.with_records("window", records)

    def _step_to_end(
        self, known_actions: Sequence[NDArray[Any]]
    ) -> list[tuple[NDArray[Any], Trace]]:
        """Step all environments to their last bars, with known actions before new decisions.

        Returns:
            Per environment, the actions of these steps [n, K] and the trace.
        """
        env, out, settings = self._env, self._out, self._policy.config.evaluation
        every, first_steps = np.arange(env.num_envs), self._steps.copy()
        seed = None if settings.deterministic else settings.seed
        step_actions, traces = list[NDArray[Any]](), list[Trace]()
        while (running := env.episode_state["held"] == 0).any():
            inputs = PolicyInput(out.obs, out.mask, every, self._steps)
            actions = predict(self._policy.policy, inputs, seed).copy()
            for e, env_actions in enumerate(known_actions):
                if len(step_actions) < len(env_actions):
                    actions[e] = env_actions[len(step_actions)]
            before = env.state.copy(), env.episode_state.copy()
            env.step(actions, out)
            has_ended = running & (env.episode_state["held"] != 0)
            for previous, records in zip(self._previous_state, before, strict=True):
                previous[has_ended] = records[has_ended]
            self._steps += running
            step_actions.append(actions)
            traces.append(env.read(env.spec.trace))
        env.drain_final_obs()
        env.drain_episodes()

        def env_rows(e: int, rows: Sequence[NDArray[Any]], nothing: NDArray[Any]) -> NDArray[Any]:
            env_actions = [
                step_trace[e : e + 1] for step_trace in rows[: self._steps[e] - first_steps[e]]
            ]
            return np.concatenate([nothing[:0], *env_actions])

        return [
            (
                env_rows(e, step_actions, self._action),
                {
                    name: env_rows(e, [step_trace[name] for step_trace in traces], blank)
                    for name, blank in env.read(env.spec.trace).items()
                },
            )
            for e in range(env.num_envs)
        ]

    def _make_pass(
        self,
        e: int,
        trace: Trace,
        rows: NDArray[np.int64],
        action: NDArray[Any],
        equity: NDArray[np.float64],
    ) -> ReplayPass:
        """Return the decisions of environment e on rows that end with its newest one."""
        self._last[e], self._action[e] = rows[-1], action[-1]
        units = np.atleast_1d(trace["units"][-1]) if "units" in trace else ()
        target_units, ranges = (
            tuple(float(unit) for unit in units),
            FeatureRanges.from_metadata(self._policy.metadata),
        )
        environment, last = self._environment, int(rows[-1])
        outside = FeatureDrift() if ranges is None else ranges.drift(environment, last)
        time, before = environment.loaded.data.time[rows], int(self._steps[e]) - len(rows)
        return ReplayPass(self._names[e], time, action, equity, target_units, outside, before)

    def advance(self, market: Market) -> list[ReplayPass] | None:
        """Decide on bars that are newer than the previous ones.

        After None or an exception, all bars must be replayed by a new `PriceReplay`.

        Args:
            market: the newest bars of all continuing symbols, including at least `memory` bars
                before the first new one, followed by a flat bar.

        Returns:
            The new decisions; None if they require all bars.

        Raises:
            StreamHistoryError: bars before the new ones differ from those of the replay.
            DataError: the bars cannot be loaded.
        """
        env, data = self._env, self._environment.loaded.data
        if not self._environment.kernel.built_in:  # features of user kernels may have any memory
            return None
        symbol_rows = [
            self._names.index(symbol) for symbol in market.symbols if symbol in self._names
        ] or [0]
        with self._streams.activate(continues=True):
            loaded = self._load_environment(market, int(data.time[self._last[symbol_rows]].min()))
        if _pass_names(loaded) != [self._names[e] for e in symbol_rows]:
            return None
        new_data, known_actions = loaded.loaded.data, [self._action[:0]] * env.num_envs
        for e, record in zip(symbol_rows, loaded.records("window"), strict=True):
            row = int(self._last[e])
            low, high = new_data.segments[record.first_segment].tolist()
            if env.state["last"][e] != row + 1:  # the episode ended before its last bar
                continue
            new_row = low + int(np.searchsorted(new_data.time[low:high], data.time[row]))
            ahead = row + high - 1 - new_row
            if ahead >= self._ends[e]:
                return None
            for name, own_rows in self._row_arrays.items():
                new = getattr(new_data, name)
                if new[new_row].tobytes() != own_rows[row].tobytes():
                    return None
                own_rows[row + 1 : ahead + 1] = new[new_row + 1 : high]
            if ahead > row + 1:
                env.state[e], env.episode_state[e] = (
                    previous[e] for previous in self._previous_state
                )
                env.state["last"][e] = ahead
                self._steps[e] -= 1
                known_actions[e] = self._action[e : e + 1].copy()
        steps = self._step_to_end(known_actions)
        return [
            self._make_pass(e, trace, trace["bar"][:-1], actions[1:], trace["equity"][:-1])
            for e, (actions, trace) in enumerate(steps)
            if len(actions) > 1
        ]

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def _with_spare_rows(
    environment: KernelEnvironment, room: int
) -> tuple[KernelEnvironment, dict[str, NDArray[Any]]]:
    """Return the environment with spare rows after each pass, and its writable row arrays."""
    data, records = environment.loaded.data, environment.records("window")
    ends = np.unique([data.segments[record.first_segment, 1] for record in records])
    rows = {
        name: np.insert(array, np.repeat(ends, room), 0, axis=0)
        for name, array in data._asdict().items()
        if len(array) == len(data.time)
    }
    low, high = data.segments.T
    low, high = (
        low + room * np.searchsorted(ends, low, "right"),
        high + room * np.searchsorted(ends, high),
    )
    arrays = {"segments": np.stack([low, high], axis=1), **{k: a.view() for k, a in rows.items()}}
    for array in arrays.values():
        array.flags.writeable = False
    return environment.with_data(data._replace(**arrays)), rows


def _no_actions(env: KernelVectorEnv) -> NDArray[Any]:
    return np.zeros((0, env.spec.action_dim), env.spec.action_dtype)


def _pass_names(environment: Environment) -> list[str]:
    names = episode_names(environment, "window") or []
    if len(set(names)) < len(names):
        raise DataError(
            f"The bars make {len(names)} passes of {names[0]}: a gap in all assets of more than "
            f"{MAX_GAP} bars ends a pass, and an account is one pass. Fill the gap in the "
            "feed, or deploy again, which starts a new account after it."
        )
    return names


def replay_actions(e: int, actions: Any, kept: Any, batch: Any, out: Any) -> int:
    """Step environment e through actions [n, K] until its episode ends; return the step count.

    Args:
        e: index of the environment.
        actions: [n, K].
        kept: uint64 [n, words], state of the environment after each step.
        batch, out: see `loop.py`.
    """
    book, counts, words, sent = batch[3], batch[7], batch[8], out[0]
    for t in range(len(actions)):
        if book[e].held != 0:
            return t
        for k in range(actions.shape[1]):
            sent[e, k] = actions[t, k]
        advance(e, e + 1, t, HOLD, batch, out)
        if counts[FAULT] != 0:
            return t + 1
        for k in range(words.shape[1]):
            kept[t, k] = words[e, k]
    return len(actions)


class ActionReplay:
    """Replay of known actions in environments that hold at the end of an episode (`at_end=HOLD`).

    Args:
        env: the environments.

    Attributes:
        out: observations and results of each environment after its last replayed action.
    """

    def __init__(self, env: KernelVectorEnv) -> None:
        self._env = env
        _, out = env.loop_arguments()
        self._out = out
        _, obs, reward, terminated, truncated = out[:5]
        valid, mask = np.ones(env.num_envs, np.bool_), out[5] if len(out) > 5 else None
        self.out = StepBuffers(obs, reward, terminated, truncated, valid, mask)
        constants = {"Any": Any, "HOLD": HOLD, "FAULT": FAULT}
        text, advance = codegen.get_source([replay_actions]), env.loop.advance
        if env.backend == "serial":
            module = codegen.build_interpreted(text, {}, {**constants, "advance": advance})
            self._replay = module.replay_actions
            return
        arrays = (0, out[0], np.zeros((0, len(env.state_before_step)), np.uint64), env.batch, out)
        compiled = codegen.compile_module(
            f"{env.kernel.name}_replay_actions",
            text,
            {"replay_actions": arrays},
            {},
            constants,
            linked={"advance": advance},
        )
        self._replay = compiled["replay_actions"]

    def run(self, e: int, actions: NDArray[Any], names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        """Replay actions [n, K] in environment e and return its state fields by name, [n].

        Returns fewer steps if the episode ends earlier.

        Raises:
            KernelError: a value is not finite.
        """
        env, parts = self._env, list[NDArray[Any]]()
        for begin in range(0, max(len(actions), 1), _CHUNK):
            part = np.ascontiguousarray(actions[begin : begin + _CHUNK])
            kept = np.zeros((len(part), len(env.state_before_step)), np.uint64)
            with np.errstate(over="ignore", invalid="ignore"):  # 64-bit words wrap around
                taken = self._replay(e, part, kept, env.batch, self._out)
            env.raise_fault(self._out[0], begin + taken - 1)
            parts.append(kept.view(env.kernel.STATE).reshape(-1)[:taken][list(names)].copy())
        return {name: np.concatenate([trace_part[name] for trace_part in parts]) for name in names}
