"""Shared state of off-policy agents, and compiled learning.

`OffPolicyAgent` has counters and schedules. `CompiledLearning` updates members in compiled code:
sample, gather, update, set priorities. `learn_member` and `learn_members` are a template like
`kernels/loop.py`, compiled for each agent and each storage of observations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.random import stream
from slipstream.jit import codegen
from slipstream.jit.rng import REPLAY
from slipstream.jit.struct_pointer import StructPointer
from slipstream.jit.work_sharing import RunTasks, in_sequence, make_gate, run_with_helpers
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents.agent import CompiledLearner
from slipstream.rl.agents.off_policy.config import OffPolicyConfig
from slipstream.rl.agents.population import PopulationAgent
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.replay.ring import Batch, Reflection, draw, reflect, update_priorities
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.optimizer import StepSettings


class OffPolicyAgent(PopulationAgent):
    """M members with counters and schedules; subclasses add networks, acting and learning.

    Args:
        config, specs, seeds, num_envs, parts, network: as for `PopulationAgent`.

    Attributes:
        steps: int64 [M], environment steps of each member so far.
        progress: float64 [M], share of the budget spent before the last iteration; schedules use it
            during the next one.
        updates: int64 [M], updates in this iteration.
    """

    experience_type: ClassVar[Literal["rollout", "replay"]] = "replay"

    def __init__(
        self,
        config: OffPolicyConfig,
        specs: EnvSpec | Sequence[EnvSpec],
        seeds: Sequence[int],
        num_envs: int,
        parts: int = 1,
        **network: Any,
    ) -> None:
        super().__init__(config, specs, seeds, num_envs, parts, **network)
        self.steps = np.zeros(self.members, np.int64)
        self.progress = np.zeros(self.members)
        self.updates = np.zeros(self.members, np.int64)
        self.counts |= {"steps": self.steps, "progress": self.progress}
        self._importance = config.per_member("importance_exponent", self.members)

    @property
    def num_updates(self) -> NDArray[np.int64]:
        """Updates made by each member, int64 [M]; counters of its random streams."""
        return self.policy.parameters.arrays.steps

    @property
    def learning_rate(self) -> NDArray[np.float64]:
        """Learning rate of this iteration, [M]."""
        return self.learning_rate_at(self.progress)

    @property
    def step_settings(self) -> StepSettings:
        """Settings of Adam's steps in this iteration."""
        names = ("adam_eps", "max_grad_norm")
        epsilon, norm = (self.config.per_member(name, self.members) for name in names)
        return StepSettings(self.learning_rate, epsilon, norm)

    @property
    def tau(self) -> NDArray[np.float64]:
        """Polyak factor of target updates, [M]."""
        rate: NDArray[np.float64] = self.config.per_member("tau", self.members)
        return rate

    @property
    def importance(self) -> NDArray[np.float64]:
        """Exponent beta of importance weights, linear to 1 (Schaul et al. 2016, 3.4), [M]."""
        return self._importance + (1.0 - self._importance) * np.minimum(self.progress, 1.0)

    @property
    def reward_factor(self) -> NDArray[np.float64]:
        """Factor of rewards in learning, [M]."""
        if self.reward_scale is None:
            return np.ones(self.members)
        return 1.0 / self.reward_scale.divisor

    @abstractmethod
    def collect_metrics(self) -> dict[str, NDArray[Any]]:
        """Return metrics [M] by name of this iteration's updates, and reset their sums."""

    def update(
        self,
        rollout: Rollout,
        progress: float | NDArray[np.float64] = 0.0,
        run_tasks: RunTasks = in_sequence,
    ) -> dict[str, NDArray[Any]]:
        """End an iteration: update the scales by its observations and rewards.

        Returns:
            Metrics [M] by name: those of `collect_metrics`, learning_rate, updates and failed.
        """
        metrics = {
            **self.collect_metrics(),
            "learning_rate": self.learning_rate,
            "updates": self.updates.copy(),
            "failed": self.policy.parameters.failed.copy(),
        }
        self.updates[:] = 0
        if self.policy.scale is not None:
            self.policy.scale.learn(rollout)
        self.scaled_reward(rollout)  # updates the scale; the buffer stores unscaled rewards
        self.progress[:] = progress
        self.refresh()
        return metrics


REPLAY_STREAM = np.uint64(REPLAY)

# Bound by the code generator.
update: Any = None  # (learner, m, batch, weight, error): update of an agent
help_out: Any = None  # (learner, batch, weight, error): helps in another thread's updates
gather: Any = None  # reads transitions from the replay's storage

_HELPER_UPDATES = np.zeros(0, np.int64)
HELPER = -1  # member index of a helper thread's call


class BatchSource(NamedTuple):
    """Arguments that supply M members with batches.

    Attributes:
        seeds: uint64 [M].
        num_updates: int64 [M], updates of each member; they select its random numbers.
        failed: bool [M], members that no longer learn.
        gamma, importance: float64 [M].
        n_step: number of summed rewards.
        signs: reflection of batches.
        batch: Batch of B rows; overwritten.
        drawn: int64 [B], sampled indices; overwritten.
        weight, error: float32 [B], importance weights and TD errors; overwritten.
    """

    seeds: NDArray[np.uint64]
    num_updates: NDArray[np.int64]
    failed: NDArray[np.bool_]
    gamma: NDArray[np.float64]
    importance: NDArray[np.float64]
    n_step: int
    signs: Reflection
    batch: Batch
    drawn: NDArray[np.int64]
    weight: NDArray[np.float32]
    error: NDArray[np.float32]


def learn_member(source: Any, learner: Any, ring: Any, store: Any, m: int, updates: int) -> None:
    """Run the next updates of member m.

    Args:
        source: BatchSource.
        learner: argument of the agent's `update`.
        ring: Ring of the replay buffer.
        store: array of its `ReplayLoops`.
        m: index of the member.
        updates: number of updates.
    """
    for _ in range(updates):
        if source.failed[m]:
            return
        key = stream(source.seeds[m], REPLAY_STREAM, np.uint64(source.num_updates[m]))
        draw(ring, m, key, source.importance[m], source.drawn, source.weight)
        gather(ring, store, m, source.drawn, source.n_step, source.gamma[m], source.batch)
        reflect(source.signs, key, source.batch)
        update(learner, m, source.batch, source.weight, source.error)
        update_priorities(ring, m, source.drawn, source.error)


def learn_members(source: Any, learner: Any, ring: Any, store: Any, updates: Any) -> None:
    """Call `learn_member` for all members; without `updates`, help the learning thread."""
    if len(updates) == 0:
        update(learner, HELPER, source.batch, source.weight, source.error)
    for m in range(len(updates)):
        learn_member(source, learner, ring, store, m, updates[m])


def run_update(learner: Any, m: int, batch: Any, weight: Any, error: Any) -> None:
    """Run an agent's `update` or `help_out`, in one function because they share their parts."""
    if m == HELPER:
        help_out(learner, batch, weight, error)
    else:
        update(learner, m, batch, weight, error)


def no_help(learner: Any, batch: Any, weight: Any, error: Any) -> None:
    """Do nothing: `help_out` of agents with single-threaded updates."""


class CompiledLearning(OffPolicyAgent):
    """An agent whose members learn in compiled loops.

    Attributes:
        name: name of the agent, for the compiled module.
        update_loop: plain function (learner, m, batch, weight, error) that runs one update.
        help_loop: plain function (learner, batch, weight, error) with which another thread helps in
            a single member's updates, through `gate`.
        hooks: plain functions for globals of both that are None, by name.
        tasks: maximum number of tasks of a phase; 1 disables helper threads.
        learner: argument `learner` of both in this iteration.
    """

    name: ClassVar[str]
    update_loop: ClassVar[Callable[..., None]]
    help_loop: ClassVar[Callable[..., None]] = staticmethod(no_help)
    hooks: ClassVar[Mapping[str, Callable[..., None]]] = {}
    tasks: int = 1
    learner: Any
    _loop: Any = None
    _packed: tuple[StructPointer, StructPointer] | None = None  # source and learner

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gate = make_gate()

    def compiled_learner(self, replay: Replay) -> CompiledLearner | None:
        return self._make_compiled_learner(replay)

    def learn(
        self, replay: Replay, updates: NDArray[np.int64], run_tasks: RunTasks = in_sequence
    ) -> None:
        learning = self._make_compiled_learner(replay)
        assert replay.loops is not None  # None only for images, which need the torch implementation
        learner, store = (learning.source, learning.learner), replay.loops.store
        learning.share(partial(learning.loop, *learner, replay.ring, store, updates), run_tasks)

    def _make_compiled_learner(self, replay: Replay) -> CompiledLearner:
        if self._packed is None:
            self._packed = StructPointer(self._make_feed(replay)), StructPointer(self.learner)
            loops = self.update_loop, self.help_loop, self.hooks
            self._loop = compile_learning_loop(self.name, *loops, *self._packed, replay)
        source, learner = self._packed
        source.update(source.value._replace(importance=self.importance))
        return CompiledLearner(
            self._loop, source, learner.update(self.learner), partial(self._share, replay)
        )

    def _share(self, replay: Replay, task: Callable[[], None], run_tasks: RunTasks) -> None:
        if self.tasks == 1 or self.members > 1 or run_tasks is in_sequence:
            task()
            return

        assert replay.loops is not None
        assert self._packed is not None
        helping = partial(
            self._loop, *self._packed, replay.ring, replay.loops.store, _HELPER_UPDATES
        )
        run_with_helpers(self.gate, task, helping, 1, run_tasks)

    def _make_feed(self, replay: Replay) -> BatchSource:
        rows, parameters = self.config.batch_size, self.policy.parameters
        return BatchSource(
            seeds=self.seeds,
            num_updates=self.num_updates,
            failed=parameters.failed,
            gamma=self.config.per_member("gamma", self.members),
            importance=self.importance,
            n_step=self.config.n_step,
            signs=replay.signs,
            batch=replay.make_batch(rows),
            drawn=np.zeros(rows, np.int64),
            weight=np.ones(rows, np.float32),
            error=np.zeros(rows, np.float32),
        )


def compile_learning_loop(
    name: str,
    update: Callable[..., None],
    help_out: Callable[..., None],
    hooks: Mapping[str, Callable[..., None]],
    source: StructPointer,
    learner: StructPointer,
    replay: Replay,
) -> Any:
    """Compile `learn_members` for an agent and the storage of its replay buffer.

    The update, by far the largest part, is a separate module, because it is the same for all
    kernels.

    Args:
        name: name of the agent.
        update, help_out, hooks: plain functions.
        source, learner, replay: examples of the types.
    """
    example: BatchSource = source.value
    update_module = codegen.compile_module(
        f"{name}_update",
        codegen.get_source([run_update]),
        {"run_update": (learner, 0, StructPointer(example.batch), example.weight, example.error)},
        {"update": cast(FunctionType, update), "help_out": cast(FunctionType, help_out)},
        {"Any": Any, "HELPER": HELPER},
        inline=False,
        bound_globals={key: cast(FunctionType, function) for key, function in hooks.items()},
        struct_pointers=True,
    )
    functions = {
        "draw": draw,
        "update_priorities": update_priorities,
        "reflect": reflect,
        "stream": stream,
    }
    loops = replay.loops
    assert loops is not None
    module = codegen.compile_module(
        f"{name}_learning",
        "from typing import Any\n\nimport numpy as np\n\n\n"
        + codegen.get_source([learn_member, learn_members]),
        {"learn_members": (source, learner, replay.ring, loops.store, np.zeros(1, np.int64))},
        {key: cast(FunctionType, function) for key, function in functions.items()},
        {"REPLAY_STREAM": REPLAY_STREAM, "HELPER": HELPER},
        inline=False,
        struct_pointers=True,
        linked={"gather": loops.gather, "update": update_module["run_update"]},
    )
    return module["learn_members"]
