"""Some members with their environments, experience and learner: the loop over a slice of a run."""

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
from slipstream.rl.agents.discover import load_agent
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

RECENT = 100  # training episodes that the score is the mean of
RATING_GAMES = (
    32  # games of a member in a validation that rate it, at most as many as its own episodes
)


class RecentEpisodes:
    """Returns, lengths and metrics of the last `RECENT` episodes, oldest overwritten.

    Args:
        spec: of the environment; each of its metrics becomes a column ``episode/NAME``.
        members: m.
        num_envs: copies of each.

    Attributes:
        counts: int64 [m], training episodes ended so far.
    """

    def __init__(self, spec: EnvSpec, members: int, num_envs: int) -> None:
        self._names = [metric.name for metric in spec.metrics]
        self._num_envs = num_envs
        # [m, RECENT, 2 + metrics]: return, length, the environment's own.
        self._rows = np.full((members, RECENT, 2 + len(self._names)), np.nan)
        self.counts = np.zeros(members, np.int64)
        self._before = self.counts.copy()  # the last `add`
        self._cut = np.full(
            members * num_envs, spec.stagger_episodes
        )  # first episodes, of a drawn length

    def add(self, ended: Episodes) -> None:
        """Takes what ended, but for what a fault cut or a length that was drawn."""
        unknown = np.full(len(ended.e), np.nan)
        own = (ended.metrics.get(name, unknown) for name in self._names)
        columns = [ended.returns, ended.length, *own]
        rows = np.stack(columns, axis=1).astype(np.float64) if len(ended.e) else np.zeros((0, 0))
        self._before[:] = self.counts
        lost = ended.lost
        for k, e in enumerate(ended.e.tolist()):
            if lost is not None and lost[k]:
                continue
            if self._cut[e]:  # its return says little
                self._cut[e] = False
                continue
            m = e // self._num_envs
            self._rows[m, self.counts[m] % RECENT] = rows[k]
            self.counts[m] += 1

    def latest(self, m: int) -> list[dict[str, float]]:
        """What the last `add` took of a member: ``return``, ``length`` and metrics of each episode.

        Of more than `RECENT` the last ones.
        """
        first = max(int(self._before[m]), int(self.counts[m]) - RECENT)
        rows = self._rows[m, np.arange(first, int(self.counts[m])) % RECENT]
        names = ("return", "length", *self._names)
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the recent episodes, [m, RECENT]; NaN where there are none yet."""
        return self._rows[..., 0]

    def scores(self) -> NDArray[np.float64]:
        """Mean return of each member's recent episodes, [m]; NaN before the first."""
        return self._mean(0)

    def means(self) -> dict[str, NDArray[np.float64]]:
        """Means of recent episodes, [m] each: ``length``, and ``episode/NAME`` of each metric."""
        own = {f"{PREFIX}{name}": self._mean(2 + k) for k, name in enumerate(self._names)}
        return {"length": self._mean(1), **own}

    def _mean(self, column: int) -> NDArray[np.float64]:
        values = self._rows[:, :, column]
        known = ~np.isnan(values)
        sums, counts = np.where(known, values, 0.0).sum(axis=1), known.sum(axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """The first axis of every array counts members or copies."""
        own = {"metrics": self._rows[:, :, 2:].copy()} if self._names else {}
        return {
            **own,
            "recent": self._rows[:, :, 0].copy(),
            "lengths": self._rows[:, :, 1].copy(),
            "episodes": self.counts.copy(),
            "cut": self._cut.copy(),
        }

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from it; older states have no metrics, whose means begin anew."""
        self._rows[:, :, 0], self._rows[:, :, 1] = state["recent"], state["lengths"]
        kept = state.get("metrics")
        if kept is not None and kept.shape == self._rows[:, :, 2:].shape:
            self._rows[:, :, 2:] = kept
        self.counts[:] = state["episodes"]
        self._cut[:] = state["cut"]


class Shard:
    """Members lo..hi-1 of a run.

    Args:
        environment: what they train on.
        config: the agent's settings, of the whole run.
        seeds: [M], of the whole run.
        members: which of them, a range.
        num_envs: N, copies per member.
        backend: how kernels are stepped.
        run_tasks: runs the parts of a lone member side by side; members of a population take turns.
        specs: of each member, where they differ in fixed scales; the environment's by default.
        learner, device, precision: of the config's section `training`.
        longest: steps after which an evaluation cuts an episode without a time limit.
        drawn: evaluations draw actions.
        check_stop: called now and then in an evaluation; it may raise `StoppedError` to leave it.
        curriculum: for these members, where they have one.

    Attributes:
        agent: policies and their learner.
        collector: environments and experience.
        recent: the last training episodes of each member.
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
        drawn: bool = False,
        check_stop: Callable[[], None] = lambda: None,
        curriculum: Curriculum | None = None,
    ) -> None:
        total = len(seeds)
        own = [seeds[m] for m in members]
        self.members = members
        self._backend = backend
        self._num_envs = num_envs
        self._run_tasks = run_tasks or in_sequence
        self._max_steps, self._drawn, self._check_stop = max_steps, drawn, check_stop
        self._evaluators: dict[tuple[Any, ...], Evaluator] = {}
        own_config = config.select(members, total)
        spec = environment.spec
        form = select_learner(learner, device, spec.is_image)
        make = load_agent(config, form, device, precision)
        self.agent: Agent = make(own_config, specs or spec, own, num_envs)
        seed_rows, index_rows = member_indices(own, num_envs)
        # A lone member's copies may be cut into ranges, but where worker processes step them.
        alone = total == 1 and run_tasks is not None and backend != "process"
        players = environment.part(Players)
        self._opponents: MemberOpponents | None = None
        if players is not None:
            environment, self._opponents = players.for_training(self.agent.policy)
        self._environment = environment
        slices = self._slices(self.agent.parts if alone else 1)
        self._curriculum, trained_on = curriculum, environment
        if curriculum is not None:  # a record of its own for each member, which phases rewrite
            rules = environment.part(KernelEnvironment)
            assert rules is not None
            trained_on = rules.batched([(curriculum.params(m, 0),) for m in range(len(own))])
        steps = config.iteration_steps(num_envs)
        with ExitStack() as made:
            rows = [(seed_rows[at], index_rows[at], backend) for at in slices]
            envs = [made.enter_context(trained_on.make_envs(*row)) for row in rows]
            self.collector = make_collector(
                self.agent, envs, spec, steps, num_envs, own_config.replay(num_envs)
            )
            self.collector.prepare()
            made.pop_all()
        self.recent = RecentEpisodes(spec, len(own), num_envs)
        self._steps = np.zeros(len(own), np.int64)
        self.seconds_update = 0.0
        self._measured: dict[str, NDArray[np.float64]] = {}
        self._rehearsed: list[
            list[EpisodeResult]
        ] = []  # of the last validation, until they are rated
        self._hashes: dict[str, str] = {}  # of the files that the last checkpoint named

    def _slices(self, parts: int) -> list[slice]:
        """A lone member's environments are cut like its gradients; the cut changes no bit."""
        e = len(self.members) * self._num_envs
        # Fewer than 8 rows are padded when acting: nothing is gained.
        parts = max(1, min(parts, e // 8))
        edges = np.linspace(0, e, parts + 1).astype(int).tolist()
        return [slice(lo, hi) for lo, hi in itertools.pairwise(edges)]

    def reset(self) -> None:
        """Begins an episode everywhere."""
        self.collector.reset()

    def iterate(self, fraction: float | NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """One iteration: experience and its update.

        Args:
            fraction: share of the budget spent before it, for schedules; one, or [m].

        Returns:
            Metrics of each member, [m] by name; `score` is the mean recent return, `length` and
            ``episode/...`` the mean length and metrics of the same episodes.
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
        """Settings of the next iteration; copies of members whose phase changes begin anew."""
        curriculum = self._curriculum
        if curriculum is None:
            return {}
        changed = curriculum.advance(self.recent.counts, self._steps)
        self._write_params()
        if len(changed):
            each = np.arange(self._num_envs)
            self.collector.restart((changed[:, None] * self._num_envs + each).ravel())
        for member in changed.tolist():
            if curriculum.clears(member):
                self.collector.forget(member)
        return {"phase": curriculum.phase.astype(np.float64)}

    def _write_params(self) -> None:
        """Let the copies of each member go on with the record of its phase."""
        assert self._curriculum is not None
        for row in range(len(self.members)):
            record = self._curriculum.params(row, int(self.recent.counts[row]))
            for env in self.collector.envs:
                game: Any = getattr(env, "game", env)  # of copies whose other seat somebody has
                for name in record._fields:
                    game.params[name][row] = getattr(record, name)

    def close(self) -> None:
        """Releases the environments."""
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
        """What each member's score is the mean of, [m, J], with its policy as it is now.

        None where a signal came before all episodes had ended. Arguments as for `Evaluator`.
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
                drawn=self._drawn,
                check_stop=self._check_stop,
            )
        try:
            values = self._evaluators[key].values(self.agent.policy)
            self._rehearsed = [] if split == "test" else self._rate_members(num_envs or games, seed)
        except StoppedError:
            return None
        self._measured = self._evaluators[key].metrics
        return values

    def _rate_members(self, most: int, seed: int) -> list[list[EpisodeResult]]:
        """Play the games that rate each member; none without ratings."""
        met = None if self._opponents is None else self._opponents.rating_environment()
        if met is None:
            return []
        evaluator = Evaluator(
            met,
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
        """A game's metrics in the last evaluation, means [m] by name; asked once for each.

        Ratings follow here, when all shards have played: a validation that a signal cut short is
        done again, and counts once.
        """
        if self._rehearsed:
            assert self._opponents is not None
            self._measured = {**self._measured, **self._opponents.rate(self._rehearsed)}
            self._rehearsed = []
        return self._measured

    def policy(
        self, member: int, environment: Environment | None = None
    ) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and manifest of one member's policy.

        Args:
            member: counts over the whole run.
            environment: its own, where members have different ones.
        """
        training_context = (environment or self._environment).training_context
        return pack(self.agent.policy, member - self.members.start, training_context)

    def new_episodes(self, member: int) -> list[dict[str, float]]:
        """A member's training episodes of the last iteration; `member` counts over the run."""
        return self.recent.latest(member - self.members.start)

    def faults(self) -> list[Any]:
        """What failed in copies or their processes since the last call."""
        evaluators = self._evaluators.values()
        lists = [env.drain_faults() for env in self.collector.envs]
        return [fault for one in (*lists, *(e.drain_faults() for e in evaluators)) for fault in one]

    def notices(self) -> list[str]:
        """What is to be said of how the agent calculates since the last call."""
        return self.agent.drain_notes()

    def stats(self) -> dict[str, Any]:
        """Seconds spent so far by phase, and how the copies are stepped."""
        collector = self.collector
        return {
            "seconds_env": collector.seconds_env,
            "seconds_policy": collector.seconds_policy,
            "seconds_update": self.seconds_update + collector.seconds_learning,
            "backend": collector.envs[0].backend,
        }

    def scores(self) -> NDArray[np.float64]:
        """Mean return of each member's recent training episodes, [m]; NaN before the first."""
        return self.recent.scores()

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Everything needed to go on: the first axis of every array counts members or copies."""
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
        """Writes what is too large for `get_state`; sha256 of the files by their paths there."""
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
        """Goes on from this shard's rows of `get_state()`, and from what is too large for it.

        Args:
            state: as it was.
            bulk: folder and files of `save_bulk`.
            chunks: instead of files, each member's own, by name.

        Of a state with another number of copies, those that are here, too, go on; others begin, and
        a replay, which is kept by copy, begins empty.

        Returns:
            Copies of a foreign environment that begin a fresh episode instead.
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
    """Members 0..M-1 in `shards` consecutive ranges of nearly equal length."""
    edges = np.linspace(0, members, min(shards, members) + 1).round().astype(int).tolist()
    return [range(lo, hi) for lo, hi in itertools.pairwise(edges)]


def join_states(states: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """One state for all members, whatever shards they were in."""
    return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


def select_members(
    state: Mapping[str, NDArray[Any]], members: range, total: int
) -> dict[str, NDArray[Any]]:
    """The rows of some members: the first axis of an array counts members, or their copies."""
    rows = {}
    for name, values in state.items():
        each = len(values) // total
        rows[name] = values[members.start * each : members.stop * each]
    return rows


def resized(
    state: Mapping[str, NDArray[Any]], fresh: Mapping[str, NDArray[Any]], members: int
) -> dict[str, NDArray[Any]]:
    """A state as it is with another number of copies per member.

    Args:
        state: of n copies; what has a place for each has the shape [m n, ...] or [m, n, ...].
        fresh: of N copies that have just begun; theirs are the places that `state` lacks.
        members: m.
    """
    made = dict(state)
    for name, rows in fresh.items():
        own = state.get(name, rows)
        if own.shape == rows.shape:
            continue
        made[name] = rows
        if name.startswith(f"env.{REPLAY}"):
            continue
        flat = len(own) != len(rows)
        if flat:
            own, rows = (v.reshape(members, len(v) // members, *v.shape[1:]) for v in (own, rows))
        wide = np.maximum(own.shape[2:], rows.shape[2:])  # actions of an episode: more, or fewer
        joined = np.zeros((*rows.shape[:2], *wide), rows.dtype)
        for part in (rows, own[:, : rows.shape[1]]):
            joined[tuple(map(slice, part.shape))] = part
        made[name] = joined.reshape(-1 if joined.size else 0, *wide) if flat else joined
    return made
