"""Evaluation: run selected episodes of policies to their end, for one or many members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import KernelError
from slipstream.jit import rng
from slipstream.kernels.vector_env import Episodes, StepBuffers, VectorEnv, allocate_buffers
from slipstream.rl.nets.policy import Policy
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import NUMBERS, opponent_names, outcome_shares
from slipstream.training.episode_result import EpisodeResult, finite_values, score_values

_STOP_CHECK_STEPS = 16  # steps between two stop checks
MAX_EVAL_ENVS = 128  # maximum sub-environments per member


class PolicyInput(NamedTuple):
    """Inputs of a policy.

    Attributes:
        obs: [E, *shape].
        mask: bool [E, n] of allowed discrete actions, None if all are allowed.
        episode: int64 [E], current episode of each environment.
        step: int64 [E], steps within it.
    """

    obs: NDArray[Any]
    mask: NDArray[np.bool_] | None
    episode: NDArray[np.int64]
    step: NDArray[np.int64]


Act: TypeAlias = Callable[[PolicyInput], NDArray[Any]]
"""Function from policy inputs to actions [E, K]."""


def run_episodes(
    env: VectorEnv,
    act: Act,
    episodes: int,
    seed: int,
    *,
    members: int = 1,
    num_envs: int | None = None,
    steps: int | None = None,
    record: bool = True,
    names: Sequence[str] | None = None,
    check_stop: Callable[[], None] = lambda: None,
) -> list[list[EpisodeResult]]:
    """Run episodes 0..J-1 once for every member and return them in that order.

    With `num_envs` L, lane l runs the episodes l, l + L, l + 2 L and so on in sequence, as long as
    each ends within `steps` of the lane's steps; others are not returned. Episode j has the random
    stream (seed, j, 0) and Params record j % P in any environment, so the number of environments
    changes only speed.

    Args:
        env: E = members x C environments that hold at the end of an episode
            (`autoreset_mode=HOLD`).
        act: the policy.
        episodes: J, for each member.
        seed: evaluation seed, the same for all members.
        members: M.
        num_envs: number of lanes L; None for J.
        steps: steps of each lane; None for no limit.
        record: store actions and traces.
        names: [J], names of the results; None for "episode j".
        check_stop: called regularly; may raise to stop.

    Returns:
        [M][J] results, without episodes lost because a fault ended each try; fewer if `steps` is
        given.

    Raises:
        KernelError: more than half of a member's episodes were lost.
    """
    out = allocate_buffers(env)
    scheduler = _EpisodeScheduler(
        env.num_envs, members, episodes, num_envs or episodes, steps, names
    )
    first = np.flatnonzero(scheduler.running)
    env.begin(first, scheduler.episode[first], seed, out.obs, out.mask)
    actions_kept: list[NDArray[Any]] = []
    traces_kept: list[dict[str, NDArray[Any]]] = []
    t = 0
    while scheduler.running.any():
        actions = act(PolicyInput(out.obs, out.mask, scheduler.episode, scheduler.time))
        env.step(actions, out, t)
        if record:
            actions_kept.append(actions.copy())
            traces_kept.append(env.read(env.spec.trace))
        if t % _STOP_CHECK_STEPS == 0:
            check_stop()
        t += 1
        scheduler.stepped(out, t)
        next_envs = []
        if ((out.terminated | out.truncated) & scheduler.running).any():
            next_envs = scheduler.ended(env.drain_episodes(), t)
            scheduler.check_lost(env)
        next_envs += scheduler.cut(t)
        if next_envs:
            started = np.array(next_envs, np.int64)
            env.begin(started, scheduler.episode[started], seed, out.obs, out.mask)
    if record:
        _attach(scheduler.tracks, scheduler.finished, actions_kept, traces_kept)
    return [[track for track in row if track is not None] for row in scheduler.tracks]


class _EpisodeScheduler:
    """Assigns episodes of every member to environments and collects the results.

    Attributes:
        episode, time: int64 [E], current episode of each environment and steps within it.
        running: bool [E], environments with an episode.
        tracks: [M][J], None until an episode has ended.
        finished: (environment, member, episode, first step, end step) of each completed episode.
    """

    def __init__(
        self,
        e: int,
        members: int,
        episodes: int,
        num_envs: int,
        steps: int | None,
        names: Sequence[str] | None,
    ) -> None:
        self._envs_per_member, self._episodes, self._names = e // members, episodes, names
        self._num_envs, self._steps = num_envs, steps
        self.episode = np.tile(np.arange(self._envs_per_member, dtype=np.int64), members)
        self.running = self.episode < num_envs
        self.time, self._began = np.zeros(e, np.int64), np.zeros(e, np.int64)
        self._spent = np.zeros(e, np.int64)  # steps of the lane's completed episodes
        self._pending = np.full(
            members, min(self._envs_per_member, num_envs)
        )  # each member's next lane
        self.tracks: list[list[EpisodeResult | None]] = [[None] * episodes for _ in range(members)]
        self.finished: list[tuple[int, int, int, int, int]] = []
        self.lost, self._ended = np.zeros((2, members), np.int64)  # episodes of each member

    def stepped(self, out: StepBuffers, t: int) -> None:
        """Count a step; `t` is the number of the next one."""
        self.time += 1
        again = self.running & ~out.valid  # after a fault the same episode restarts
        self.time[again], self._began[again] = 0, t

    def ended(self, done: Episodes, t: int) -> list[int]:
        """Store completed episodes.

        Returns:
            Environments that start another episode.
        """
        next_envs = []
        lost = np.zeros(len(done.e), np.bool_) if done.lost is None else done.lost
        for row, env in enumerate(done.e.tolist()):
            if not self.running[env]:
                continue
            member, j = env // self._envs_per_member, int(self.episode[env])
            self.lost[member] += lost[row]
            self._ended[member] += 1
            if not lost[row]:
                metrics = {name: float(values[row]) for name, values in done.metrics.items()}
                self.tracks[member][j] = EpisodeResult(
                    self._names[j] if self._names else f"episode {j}",
                    float(done.returns[row]),
                    int(done.length[row]),
                    metrics,
                    number=j,
                )
                self.finished.append((env, member, j, int(self._began[env]), t))
                self._spent[env] += int(done.length[row])
            if j + self._num_envs < self._episodes and not self._over(env):
                self._begin(env, j + self._num_envs, t)
            else:
                self._next_lane(env, t)
            if self.running[env]:
                next_envs.append(env)
        return next_envs

    def cut(self, t: int) -> list[int]:
        """Abort episodes that cannot end within their lane.

        Returns:
            Environments that start another lane.
        """
        if self._steps is None:
            return []
        late = np.flatnonzero(self.running & (self._spent + self.time >= self._steps)).tolist()
        for env in late:
            self._next_lane(env, t)
        return [env for env in late if self.running[env]]

    def _over(self, env: int) -> bool:
        return self._steps is not None and bool(self._spent[env] >= self._steps)

    def _next_lane(self, env: int, t: int) -> None:
        member = env // self._envs_per_member
        self.running[env] = self._pending[member] < self._num_envs
        if self.running[env]:
            self._begin(env, int(self._pending[member]), t)
            self._spent[env] = 0
            self._pending[member] += 1

    def _begin(self, env: int, episode: int, t: int) -> None:
        self.episode[env], self.time[env], self._began[env] = episode, 0, t

    def check_lost(self, env: VectorEnv) -> None:
        """Raise if too few episodes are left for a meaningful mean."""
        member = int(self.lost.argmax())
        most, ended = int(self.lost[member]), max(self._num_envs, int(self._ended[member]))
        if 2 * most > ended:
            fault = next(
                fault for fault in reversed(env.drain_faults()) if fault.kind == "given up"
            )
            raise KernelError(
                f"More than half of an evaluation's {ended} episodes were lost ({most} so "
                f"far), each after several tries. The last: {fault}\nFix the environment there: a "
                "score would be the mean of the episodes that happen to work. If it fails at "
                "random, shorter episodes lose fewer: "
                "`--set env.kwargs.max_episode_steps=100`."
            )


def lost_sentence(faults: Sequence[Any]) -> str | None:
    """Return a notice about an evaluation's lost episodes; None without any."""
    lost = [fault for fault in faults if fault.kind == "given up"]
    if not lost:
        return None
    return (
        f"Lost evaluation episodes: {len(lost)}. Scores are means of the others. The first: "
        f"{str(lost[0]).splitlines()[0]}"
    )


def episode_names(environment: Environment, split: str) -> list[str] | None:
    """Return names of a market split's backtests, by the symbols of each record; None for games."""
    kernel_env = environment.part(KernelEnvironment)
    if kernel_env is None:
        return None
    markets = [kernel_env.spec_for((record,)).market for record in kernel_env.records(split)]
    return ["+".join(market.symbols) for market in markets if market is not None] or None


def count_episodes(environment: Environment, split: str, games: int) -> int:
    """Return the evaluation episodes of a split: one per record in a market, else `games`."""
    return games if environment.spec.market is None else len(environment.records(split))


def _attach(
    tracks: list[list[EpisodeResult | None]],
    finished: list[tuple[int, int, int, int, int]],
    actions: list[NDArray[Any]],
    traces: list[dict[str, NDArray[Any]]],
) -> None:
    """Extract each episode's actions and traces from the recordings of all environments."""
    all_actions = np.stack(actions)
    all_traces = {
        name: np.stack([trace[name] for trace in traces]) for name in (traces[0] if traces else {})
    }
    for env, member, j, first, last in finished:
        track = tracks[member][j]
        assert track is not None
        cut = {name: values[first:last, env].copy() for name, values in all_traces.items()}
        tracks[member][j] = replace(track, actions=all_actions[first:last, env].copy(), trace=cut)


class Evaluator:
    """Evaluates the policies of M members on the same episodes, repeatedly.

    Args:
        environment: environment of the evaluation.
        split: split of the data, or purpose without data: see `Environment.splits`.
        members: M.
        games: maximum episodes of an environment without prices.
        num_envs, steps: limits of the lanes; see `run_episodes`.
        seed: evaluation seed; every evaluation uses the same episodes.
        max_envs: maximum environments per member; changes only speed.
        backend: backend that steps the environments.
        max_steps: steps after which an episode without a time limit is truncated.
        stochastic: sample actions, by episode and step, instead of taking the most likely ones.
        check_stop: called regularly; may raise to stop.
    """

    def __init__(
        self,
        environment: Environment,
        split: str,
        *,
        members: int = 1,
        games: int = 100,
        num_envs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        max_envs: int = MAX_EVAL_ENVS,
        backend: str = "auto",
        max_steps: int = MAX_EVAL_STEPS,
        stochastic: bool = False,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_stop, self._stochastic = check_stop, stochastic
        self.spec, self.members, self.seed = environment.spec, members, seed
        self.episodes = count_episodes(environment, split, games)
        self._num_envs, self._steps = min(num_envs or self.episodes, self.episodes), steps
        self._names = episode_names(environment, split)
        self._opponents = opponent_names(environment)
        self.metrics: dict[str, NDArray[np.float64]] = {}  # [M] by name, set by `values`
        self._env: VectorEnv = environment.make_eval_envs(
            split, min(max_envs, self._num_envs), members, backend, max_steps
        )

    def run(
        self, policy: Policy, *, record: bool = False, stochastic: bool | None = None
    ) -> list[list[EpisodeResult]]:
        """Return [M][J] results with the most likely or with sampled actions; None for `self`'s
        mode.
        """
        stochastic = self._stochastic if stochastic is None else stochastic

        def act(inputs: PolicyInput) -> NDArray[Any]:
            return predict(policy, inputs, self.seed if stochastic else None)

        return run_episodes(
            self._env,
            act,
            self.episodes,
            self.seed,
            members=self.members,
            num_envs=self._num_envs,
            steps=self._steps,
            record=record,
            names=self._names,
            check_stop=self._check_stop,
        )

    def values(self, policy: Policy) -> NDArray[np.float64]:
        """Return [M, lanes] means of log returns in a market, else of returns; NaN if lost.

        In a game with metrics, `metrics` then holds their means over the same episodes and the
        scores' standard deviation. In a two-player game it also holds the shares won and lost per
        opponent.
        """
        rows = self.run(policy)
        self._numbers = [
            [t.number % self._num_envs for t in member_tracks] for member_tracks in rows
        ]
        if self.spec.market is None:
            self.metrics = {
                name: np.array(
                    [
                        finite_values(means).mean()
                        for means in self._means(
                            [[t.metrics[name] for t in member_tracks] for member_tracks in rows]
                        )
                    ]
                )
                for name in rows[0][0].metrics
                if name not in NUMBERS or not self._opponents
            }
            self.metrics |= outcome_shares(rows, self._opponents)
        values = [score_values(tracks, self.spec) for tracks in rows]
        if self.metrics:
            self.metrics["score_deviation"] = np.array(
                [member_tracks.std() for member_tracks in values]
            )
        return self._means(values)

    def _means(self, rows: Sequence[Sequence[float] | NDArray[Any]]) -> NDArray[np.float64]:
        """Return the mean of each lane, [M, lanes]; lanes with more episodes have equal weight."""
        lane_means = np.full((len(rows), self._num_envs), np.nan)
        for member_values, means, num_envs in zip(rows, lane_means, self._numbers, strict=True):
            counts = np.bincount(num_envs, minlength=self._num_envs)
            sums, ran = np.bincount(num_envs, member_values, self._num_envs), counts > 0
            means[ran] = sums[ran] / counts[ran]
        return lane_means

    def drain_faults(self) -> list[Any]:
        """Return the faults of its environments; see `VectorEnv.drain_faults`."""
        return self._env.drain_faults()

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


def predict(policy: Policy, inputs: PolicyInput, seed: int | None) -> NDArray[Any]:
    """Return the most likely actions [E, K], or with a seed sampled ones.

    A sample has the stream of (seed, episode, step), in any environment.
    """
    if seed is None or not policy.actions.is_stochastic:
        return policy.act_rows(inputs.obs, mask=inputs.mask)
    counters = (inputs.episode << 32) | inputs.step
    keys = rng.keys_at_steps(np.array([seed % 2**64], np.uint64), rng.SAMPLE, counters)
    actions = np.zeros((len(inputs.obs), policy.actions.width), policy.actions.dtype)
    num_envs = len(actions) // policy.members
    for env in range(num_envs):  # an Actor has one stream per member, so one row of each at a time
        at = slice(env, None, num_envs)
        mask = None if inputs.mask is None else np.ascontiguousarray(inputs.mask[at])
        rows = np.ascontiguousarray(inputs.obs[at])
        actions[at] = policy.act_rows(rows, keys=keys[at].copy(), mask=mask)
    return actions
