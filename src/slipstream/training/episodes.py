"""Runs chosen episodes to their end, for evaluation and for replaying decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import ConfigError
from slipstream.training.kernel_environment import KernelEnvironment
from slipstream.training.track import Track
from slipstream.vector.vector_env import StepOut, VectorEnv

_LOOK = 16  # steps between two looks at whether to go on


class Seen(NamedTuple):
    """What a decision may depend on.

    Attributes:
        obs: [E, *shape].
        mask: bool [E, n] of allowed choices, None where all are.
        episode: int64 [E], the episode that each copy runs.
        step: int64 [E], steps taken within it.
    """

    obs: NDArray[Any]
    mask: NDArray[np.bool_] | None
    episode: NDArray[np.int64]
    step: NDArray[np.int64]


Act: TypeAlias = Callable[[Seen], NDArray[Any]]
"""Chooses actions [E, K]."""


def run_episodes(
    env: VectorEnv,
    act: Act,
    episodes: int,
    seed: int,
    *,
    members: int = 1,
    record: bool = True,
    names: Sequence[str] | None = None,
    go_on: Callable[[], None] = lambda: None,
) -> list[list[Track]]:
    """Runs episodes 0..J-1 once for every member and returns them in that order.

    Episode j has the random stream (seed, j, 0) and Params record j % P whichever copy steps it, so
    the number of copies changes nothing but speed.

    Args:
        env: E = members x C copies that hold where an episode ends (`at_end=HOLD`).
        act: what decides.
        episodes: J, for each member.
        seed: evaluation seed, the same for all members.
        members: M.
        record: keep actions and traces.
        names: [J] of the tracks; "episode j" unless given.
        go_on: called now and then; it may raise to leave.

    Returns:
        [M][J] tracks.
    """
    spec, e = env.spec, env.num_envs
    copies = e // members
    obs = np.zeros((e, *spec.observation_shape), spec.observation_dtype)
    mask = np.ones((e, env.mask_width), np.bool_) if env.mask_width else None
    out = _step_out(obs, mask)
    episode = np.tile(np.arange(copies, dtype=np.int64), members)
    running = episode < episodes
    pending = np.full(members, min(copies, episodes))  # the next episode of each member
    time, began = np.zeros(e, np.int64), np.zeros(e, np.int64)
    every = np.arange(e)
    env.begin(every[running], episode[running], seed, obs, mask)
    tracks: list[list[Track | None]] = [[None] * episodes for _ in range(members)]
    actions_kept: list[NDArray[Any]] = []
    traces_kept: list[dict[str, NDArray[Any]]] = []
    finished: list[
        tuple[int, int, int, int, int]
    ] = []  # copy, member, episode, first and past-last step
    t = 0
    while running.any():
        actions = act(Seen(obs, mask, episode, time))
        env.step(actions, out, t)
        if record:
            actions_kept.append(actions.copy())
            traces_kept.append(env.read(spec.trace))
        if t % _LOOK == 0:
            go_on()
        t += 1
        time += 1
        again = running & ~out.valid  # after a fault: at the beginning of the same episode
        time[again], began[again] = 0, t
        ended = (out.terminated | out.truncated) & running
        if not ended.any():
            continue
        done = env.drain_episodes()
        for row, copy in enumerate(done.e.tolist()):
            member, j = copy // copies, int(episode[copy])
            metrics = {name: float(values[row]) for name, values in done.metrics.items()}
            tracks[member][j] = Track(
                names[j] if names else f"episode {j}",
                float(done.ret[row]),
                int(done.length[row]),
                metrics,
            )
            finished.append((copy, member, j, int(began[copy]), t))
            running[copy] = pending[member] < episodes
            if running[copy]:
                episode[copy], time[copy], began[copy] = pending[member], 0, t
                pending[member] += 1
                env.begin(np.array([copy]), np.array([episode[copy]]), seed, obs, mask)
    if record:
        _attach(tracks, finished, actions_kept, traces_kept)
    return [[track for track in row if track is not None] for row in tracks]


def replay(
    environment: KernelEnvironment,
    split: str,
    actions: Sequence[NDArray[Any]],
    *,
    params: tuple[Any, ...] | None = None,
    seed: int = 0,
    backend: str = "compiled",
    record: bool = True,
) -> list[Track]:
    """Takes given actions through a kernel's evaluation episodes; the last one is repeated.

    Args:
        environment: the rules and their data.
        split: whose Params records are used: sequence i runs with record i % P.
        actions: one [n, K] array per episode.
        params: records to use instead of those of the split (other costs, say).
        seed: evaluation seed.
        backend: of the copies.
        record: keep actions and traces.
    """
    if not actions:
        return []
    if params is not None:
        environment = environment.with_records(split, params)
    env = environment.evaluation(split, len(actions), backend=backend, longest=None)
    dtype, width = env.spec.action_dtype, env.spec.action_width
    if any(len(sequence) == 0 or sequence.shape[1] != width for sequence in actions):
        raise ConfigError(f"Every sequence of actions must be a non-empty array [n, {width}].")
    longest = max(len(sequence) for sequence in actions)
    table = np.stack([_extend(sequence, longest) for sequence in actions], axis=1).astype(dtype)
    rows = np.arange(len(actions))

    def act(seen: Seen) -> NDArray[Any]:
        return np.ascontiguousarray(table[np.minimum(seen.step, longest - 1), rows])

    symbols = environment.episode_names(split)
    names = [symbols[i % len(symbols)] for i in range(len(actions))] if symbols else None
    return run_episodes(env, act, len(actions), seed, record=record, names=names)[0]


def _step_out(obs: NDArray[Any], mask: NDArray[np.bool_] | None) -> StepOut:
    e = len(obs)
    ended = np.zeros((2, e), np.bool_)
    return StepOut(obs, np.zeros(e, np.float32), ended[0], ended[1], np.ones(e, np.bool_), mask)


def _extend(sequence: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([sequence, np.repeat(sequence[-1:], length - len(sequence), axis=0)])


def _attach(
    tracks: list[list[Track | None]],
    finished: list[tuple[int, int, int, int, int]],
    actions: list[NDArray[Any]],
    traces: list[dict[str, NDArray[Any]]],
) -> None:
    """Cuts each episode's own stretch out of what was recorded for all copies."""
    all_actions = np.stack(actions)
    all_traces = {
        name: np.stack([trace[name] for trace in traces]) for name in (traces[0] if traces else {})
    }
    for copy, member, j, first, last in finished:
        track = tracks[member][j]
        assert track is not None
        cut = {name: values[first:last, copy].copy() for name, values in all_traces.items()}
        tracks[member][j] = replace(track, actions=all_actions[first:last, copy].copy(), trace=cut)
