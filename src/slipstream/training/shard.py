"""Shard: a range of a run's members with their environments, experience and learner."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.storage.checkpoint import add_prefix, read_chunks, strip_prefix, write_chunks
from slipstream.core.storage.signals import StoppedError
from slipstream.jit.work_sharing import RunTasks, in_sequence
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import Episodes, member_indices
from slipstream.rl.agents.agent import Agent, AgentConfig
from slipstream.rl.agents.agent_registry import load_agent
from slipstream.rl.nets.policy_file import Tensors, pack
from slipstream.training.callbacks.events import PREFIX
from slipstream.training.collector import REPLAY, make_collector
from slipstream.training.environments.curriculum import Curriculum
from slipstream.training.environments.environment import MAX_EVAL_STEPS, Environment
from slipstream.training.environments.evaluator import Evaluator
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.environments.parts import MemberOpponents, Players
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.settings.sizing import select_learner

RECENT = 100  # training episodes in the mean that is the score
RATING_GAMES = 32  # rating games per member and validation, at most as many as validation episodes


class RecentEpisodes:
    """Returns, lengths and metrics of the last `RECENT` episodes of each member (ring buffer).

    Args:
        spec: spec of the environment; each of its metrics becomes a column ``episode/NAME``.
        members: number of members m.
        num_envs: sub-environments per member.

    Attributes:
        counts: int64 [m], training episodes completed so far.
    """

    def __init__(self, spec: EnvSpec, members: int, num_envs: int) -> None:
        self._names = [metric.name for metric in spec.metrics]
        self._num_envs = num_envs
        # [m, RECENT, 2 + metrics]: return, length, metrics of the environment.
        self._rows = np.full((members, RECENT, 2 + len(self._names)), np.nan)
        self.counts = np.zeros(members, np.int64)
        self._before = self.counts.copy()  # before the last `add`
        self._cut = np.full(
            members * num_envs, spec.stagger_episodes
        )  # first episodes with a random length

    def add(self, episodes: Episodes) -> None:
        """Add completed episodes, except those cut by a fault or started with a random length."""
        missing = np.full(len(episodes.e), np.nan)
        metrics = (episodes.metrics.get(name, missing) for name in self._names)
        columns = [episodes.returns, episodes.length, *metrics]
        rows = np.stack(columns, axis=1).astype(np.float64) if len(episodes.e) else np.zeros((0, 0))
        self._before[:] = self.counts
        lost = episodes.lost
        for k, e in enumerate(episodes.e.tolist()):
            if lost is not None and lost[k]:
                continue
            if self._cut[e]:  # its return is not comparable
                self._cut[e] = False
                continue
            m = e // self._num_envs
            self._rows[m, self.counts[m] % RECENT] = rows[k]
            self.counts[m] += 1

    def latest(self, m: int) -> list[dict[str, float]]:
        """Return the member's episodes of the last `add`, at most `RECENT`.

        Each has ``return``, ``length`` and the environment's metrics.
        """
        first = max(int(self._before[m]), int(self.counts[m]) - RECENT)
        rows = self._rows[m, np.arange(first, int(self.counts[m])) % RECENT]
        names = ("return", "length", *self._names)
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the recent episodes, [m, RECENT]; NaN in unused entries."""
        return self._rows[..., 0]

    def scores(self) -> NDArray[np.float64]:
        """Return the mean return of each member's recent episodes, [m]; NaN before the first."""
        return self._mean(0)

    def means(self) -> dict[str, NDArray[np.float64]]:
        """Return means [m] of recent episodes: ``length``, and ``episode/NAME`` of each metric."""
        metrics = {f"{PREFIX}{name}": self._mean(2 + k) for k, name in enumerate(self._names)}
        return {"length": self._mean(1), **metrics}

    def _mean(self, column: int) -> NDArray[np.float64]:
        values = self._rows[:, :, column]
        finite = ~np.isnan(values)
        sums, counts = np.where(finite, values, 0.0).sum(axis=1), finite.sum(axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return arrays whose first axis counts members or sub-environments."""
        metrics = {"metrics": self._rows[:, :, 2:].copy()} if self._names else {}
        return {
            **metrics,
            "recent": self._rows[:, :, 0].copy(),
            "lengths": self._rows[:, :, 1].copy(),
            "episodes": self.counts.copy(),
            "cut": self._cut.copy(),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore `get_state()`. A state without metrics starts with empty means of metrics."""
        self._rows[:, :, 0], self._rows[:, :, 1] = state["recent"], state["lengths"]
        metrics = state.get("metrics")
        if metrics is not None and metrics.shape == self._rows[:, :, 2:].shape:
            self._rows[:, :, 2:] = metrics
        self.counts[:] = state["episodes"]
        self._cut[:] = state["cut"]


class Shard:
    """Members lo..hi-1 of a run.

    Args:
        environment: environment of the members.
        config: agent settings of the whole run.
        seeds: [M], seeds of the whole run.
        members: range of members in this shard.
        num_envs: N, sub-environments per member.
        backend: backend that steps the environments.
        run_tasks: runs the parts of a single member in parallel; members of a population run in
            sequence.
        specs: spec of each member if fixed scales differ; the environment's spec by default.
        learner, device, precision: values of the config's section `training`.
        max_steps: steps after which an evaluation truncates an episode without a time limit.
        stochastic: evaluations sample actions instead of taking the most likely ones.
        check_stop: called regularly during evaluations; may raise `StoppedError`.
        curriculum: curriculum of these members; None without phases.

    Attributes:
        agent: policies and their learner.
        collector: environments and experience.
        recent: last training episodes of each member.
    """

    def __init__(
        self,
        environment: Environment,
        config: AgentConfig,
        seeds: Sequence[int],
        members: range,
        num_envs: int,
        backend: str = "auto",
        run_tasks: RunTasks | None = None,
        specs: Sequence[EnvSpec] | None = None,
        learner: str = "auto",
        device: str = "cpu",
        precision: str = "float32",
        max_steps: int = MAX_EVAL_STEPS,
        stochastic: bool = False,
        check_stop: Callable[[], None] = lambda: None,
        curriculum: Curriculum | None = None,
    ) -> None:
        total = len(seeds)
        member_seeds = [seeds[m] for m in members]
        self.members = members
        self._backend = backend
        self._num_envs = num_envs
        self._run_tasks = run_tasks or in_sequence
        self._max_steps, self._stochastic, self._check_stop = max_steps, stochastic, check_stop
        self._evaluators: dict[tuple[Any, ...], Evaluator] = {}
        member_config = config.select(members, total)
        spec = environment.spec
        learner_form = select_learner(learner, device, spec.is_image)
        make = load_agent(config, learner_form, device, precision)
        self.agent: Agent = make(member_config, specs or spec, member_seeds, num_envs)
        seed_rows, index_rows = member_indices(member_seeds, num_envs)
        # Environments of a single member may be split into ranges, unless processes step them.
        split_ranges = total == 1 and run_tasks is not None and backend != "process"
        players = environment.part(Players)
        self._opponents: MemberOpponents | None = None
        if players is not None:
            environment, self._opponents = players.for_training(self.agent.policy)
        self._environment = environment
        slices = self._slices(self.agent.parts if split_ranges else 1)
        self._curriculum, trained_on = curriculum, environment
        if curriculum is not None:  # one record per member, rewritten by phases
            kernel_env = environment.part(KernelEnvironment)
            assert kernel_env is not None
            trained_on = kernel_env.batched(
                [(curriculum.params(m, 0),) for m in range(len(member_seeds))]
            )
        steps = config.iteration_steps(num_envs)
        with ExitStack() as stack:
            rows = [(seed_rows[at], index_rows[at], backend) for at in slices]
            envs = [stack.enter_context(trained_on.make_envs(*row)) for row in rows]
            self.collector = make_collector(
                self.agent, envs, spec, steps, num_envs, member_config.replay(num_envs)
            )
            self.collector.prepare()
            stack.pop_all()
        self.recent = RecentEpisodes(spec, len(member_seeds), num_envs)
        self._steps = np.zeros(len(member_seeds), np.int64)
        self.seconds_update = 0.0
        self._measured: dict[str, NDArray[np.float64]] = {}
        self._unrated_games: list[
            list[EpisodeResult]
        ] = []  # rating games of the last validation that are not yet rated
        self._hashes: dict[str, str] = {}  # sha256 of the files in the last checkpoint

    def _slices(self, parts: int) -> list[slice]:
        """Split a single member's environments like its gradients; results do not depend on it."""
        e = len(self.members) * self._num_envs
        # Acting pads fewer than 8 rows, so smaller slices gain nothing.
        parts = max(1, min(parts, e // 8))
        edges = np.linspace(0, e, parts + 1).astype(int).tolist()
        return [slice(lo, hi) for lo, hi in itertools.pairwise(edges)]

    def reset(self) -> None:
        """Start an episode in every environment."""
        self.collector.reset()

    def iterate(self, fraction: float | NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Collect experience and update the members once.

        Args:
            fraction: share of the budget spent before this iteration, for schedules; scalar or [m].

        Returns:
            Metrics of each member, [m] by name. `score` is the mean recent return, `length` and
            ``episode/...`` are mean length and metrics of the same episodes.
        """
        ended = self.collector.collect(self._run_tasks)
        self.recent.add(ended)
        began = time.perf_counter()
        metrics = self.agent.update(self.collector.experience, fraction, self._run_tasks)
        self.seconds_update += time.perf_counter() - began
        if self._opponents is not None:
            self._opponents.record_games(ended, self._num_envs)
            self._opponents.advance()
            metrics = {**metrics, **self._opponents.metrics()}
        self._steps += len(self.collector.experience.reward) * self._num_envs
        return {
            **metrics,
            **self._advance_curriculum(),
            "score": self.scores(),
            **self.recent.means(),
            "episodes": self.recent.counts.astype(np.float64),
        }

    def _advance_curriculum(self) -> dict[str, NDArray[Any]]:
        """Advance the phases; environments of members that change phase start new episodes."""
        curriculum = self._curriculum
        if curriculum is None:
            return {}
        changed = curriculum.advance(self.recent.counts, self._steps)
        self._write_params()
        if len(changed):
            env_offsets = np.arange(self._num_envs)
            self.collector.restart((changed[:, None] * self._num_envs + env_offsets).ravel())
        for member in changed.tolist():
            if curriculum.clears_replay(member):
                self.collector.clear_experience(member)
        return {"phase": curriculum.phase.astype(np.float64)}

    def _write_params(self) -> None:
        """Write the phase's parameters into each member's environments."""
        assert self._curriculum is not None
        for row in range(len(self.members)):
            record = self._curriculum.params(row, int(self.recent.counts[row]))
            for env in self.collector.envs:
                game: Any = getattr(env, "game", env)  # the game inside a wrapper with an opponent
                for name in record._fields:
                    game.params[name][row] = getattr(record, name)

    def close(self) -> None:
        """Close the environments."""
        for env in self.collector.envs:
            env.close()
        for evaluator in self._evaluators.values():
            evaluator.close()

    def evaluate(
        self,
        split: str,
        games: int,
        seed: int,
        num_envs: int | None = None,
        steps: int | None = None,
    ) -> NDArray[np.float64] | None:
        """Return the values whose mean is each member's current score, [m, J].

        None if a stop was requested before all episodes ended. Arguments as for `Evaluator`.
        """
        key = (split, games, seed, num_envs, steps)
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(
                self._environment,
                split,
                members=len(self.members),
                games=games,
                num_envs=num_envs,
                steps=steps,
                seed=seed,
                backend=self._backend,
                max_steps=self._max_steps,
                stochastic=self._stochastic,
                check_stop=self._check_stop,
            )
        try:
            values = self._evaluators[key].values(self.agent.policy)
            self._unrated_games = (
                [] if split == "test" else self._rate_members(num_envs or games, seed)
            )
        except StoppedError:
            return None
        self._measured = self._evaluators[key].metrics
        return values

    def _rate_members(self, most: int, seed: int) -> list[list[EpisodeResult]]:
        """Play the games that rate each member; empty without ratings."""
        rating_env = None if self._opponents is None else self._opponents.rating_environment()
        if rating_env is None:
            return []
        evaluator = Evaluator(
            rating_env,
            "train",
            members=len(self.members),
            games=min(RATING_GAMES, most),
            seed=seed,
            backend=self._backend,
            max_steps=self._max_steps,
            check_stop=self._check_stop,
        )
        with closing(evaluator):
            return evaluator.run(self.agent.policy)

    def evaluation_metrics(self) -> dict[str, NDArray[np.float64]]:
        """Return a game's metrics of the last evaluation, means [m] by name.

        Call it once per evaluation. Ratings are updated here, after all shards have played: an
        interrupted validation is repeated and counts once.
        """
        if self._unrated_games:
            assert self._opponents is not None
            self._measured = {**self._measured, **self._opponents.rate(self._unrated_games)}
            self._unrated_games = []
        return self._measured

    def policy(
        self, member: int, environment: Environment | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Return tensors and manifest of one member's policy.

        Args:
            member: member number within the run.
            environment: environment of the member, if members have different ones.
        """
        training_context = (environment or self._environment).training_context
        return pack(self.agent.policy, member - self.members.start, training_context)

    def new_episodes(self, member: int) -> list[dict[str, float]]:
        """Return the training episodes of a member of the run in the last iteration."""
        return self.recent.latest(member - self.members.start)

    def faults(self) -> list[Any]:
        """Return the faults of environments and their processes since the last call."""
        evaluators = self._evaluators.values()
        lists = [env.drain_faults() for env in self.collector.envs]
        return [
            fault
            for faults in (*lists, *(e.drain_faults() for e in evaluators))
            for fault in faults
        ]

    def notices(self) -> list[str]:
        """Return the agent's notices about its computation since the last call."""
        return self.agent.drain_warnings()

    def stats(self) -> dict[str, Any]:
        """Return the seconds spent so far by phase, and the backend that steps the environments."""
        collector = self.collector
        return {
            "seconds_env": collector.seconds_env,
            "seconds_policy": collector.seconds_policy,
            "seconds_update": self.seconds_update + collector.seconds_learning,
            "backend": collector.envs[0].backend,
        }

    def scores(self) -> NDArray[np.float64]:
        """Return the mean return [m] of recent training episodes; NaN before the first one."""
        return self.recent.scores()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Return the state to resume from: first axes count members or sub-environments."""
        state = add_prefix("agent.", self.agent.state_dict())
        state |= add_prefix("env.", self.collector.get_state())
        if self._opponents is not None:
            state |= add_prefix("opponents.", self._opponents.state_dict())
        state |= self.recent.get_state()
        if self._curriculum is not None:
            state |= add_prefix("curriculum.", self._curriculum.get_state())
            state["curriculum_steps"] = self._steps.copy()
        return state

    def save_bulk(self, folder: Path) -> dict[str, str]:
        """Write state that is too large for `get_state`; return the sha256 of each file by path."""
        files: dict[str, str] = {}
        for row, member in enumerate(self.members):
            chunks = self.collector.bulk(row)
            files |= write_chunks(folder, member, chunks, self._hashes) if chunks else {}
        self._hashes = dict(files)
        return files

    def set_state(
        self,
        state: Mapping[str, NDArray[Any]],
        bulk: tuple[Path, Mapping[str, str]] | None = None,
        chunks: Sequence[Iterable[tuple[str, NDArray[Any]]]] = (),
    ) -> int:
        """Restore this shard's rows of `get_state()`, and the bulk state saved beside it.

        Args:
            state: the state to restore.
            bulk: folder and files of `save_bulk`.
            chunks: instead of files, the chunks of each member by name.

        If the number of sub-environments differs, those present in both continue and the others
        start new episodes. A replay buffer, which is stored by sub-environment, starts empty.

        Returns:
            Number of sub-environments of a foreign environment that start a new episode instead.
        """
        if len(state["cut"]) != len(self.members) * self._num_envs:
            self.reset()
            state, bulk = resized(state, self.get_state(), len(self.members)), None
        self.agent.load_state_dict(strip_prefix("agent.", state))
        if self._opponents is not None:
            self._opponents.load_state_dict(strip_prefix("opponents.", state))
        folder, files = bulk or (Path(), {})
        self._hashes = dict(files)
        if files:
            chunks = [read_chunks(folder, member, files) for member in self.members]
        fresh = self.collector.set_state(strip_prefix("env.", state), chunks)
        self.recent.set_state(state)
        if self._curriculum is not None:
            self._curriculum.set_state(strip_prefix("curriculum.", state))
            self._steps[:] = state["curriculum_steps"]
            self._write_params()
        return fresh


def split_members(members: int, shards: int) -> list[range]:
    """Split members 0..M-1 into `shards` consecutive ranges of nearly equal length."""
    edges = np.linspace(0, members, min(shards, members) + 1).round().astype(int).tolist()
    return [range(lo, hi) for lo, hi in itertools.pairwise(edges)]


def join_states(states: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Join the states of all shards into one state of all members."""
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


def select_members(
    state: Mapping[str, NDArray[Any]], members: range, total: int
) -> dict[str, NDArray[Any]]:
    """Return the rows of some members; first axes count members or their sub-environments."""
    rows = {}
    for name, values in state.items():
        rows_per_member = len(values) // total
        rows[name] = values[members.start * rows_per_member : members.stop * rows_per_member]
    return rows


def resized(
    state: Mapping[str, NDArray[Any]], fresh: Mapping[str, NDArray[Any]], members: int
) -> dict[str, NDArray[Any]]:
    """Return a state resized to another number of sub-environments per member.

    Args:
        state: state with n sub-environments; per-environment arrays have the shape [m n, ...] or
            [m, n, ...].
        fresh: state of N sub-environments that have just started; it fills the missing entries.
        members: m.
    """
    resized_state = dict(state)
    for name, rows in fresh.items():
        saved = state.get(name, rows)
        if saved.shape == rows.shape:
            continue
        resized_state[name] = rows
        if name.startswith(f"env.{REPLAY}"):
            continue
        per_env = len(saved) != len(rows)
        if per_env:
            saved, rows = (
                v.reshape(members, len(v) // members, *v.shape[1:]) for v in (saved, rows)
            )
        shape = np.maximum(
            saved.shape[2:], rows.shape[2:]
        )  # the recorded actions of an episode vary in length
        joined = np.zeros((*rows.shape[:2], *shape), rows.dtype)
        for part in (rows, saved[:, : rows.shape[1]]):
            joined[tuple(map(slice, part.shape))] = part
        resized_state[name] = (
            joined.reshape(-1 if joined.size else 0, *shape) if per_env else joined
        )
    return resized_state
