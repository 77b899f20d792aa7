"""A population made of members of different trials and folds, for one stretch of training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from slipstream.agents.agent import AgentConfig
from slipstream.core.spec import Spec
from slipstream.environments.environment import Environment
from slipstream.nets import initial
from slipstream.nets.actions import ActionMap
from slipstream.nets.policy import Policy
from slipstream.settings.sizing import kept_bytes
from slipstream.studies.engine.member import Member
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.engine.state import BULK, State, Tensors
from slipstream.training.shard import Shard, join_states, state_of


@dataclass(frozen=True)
class Place:
    """A member and its environment.

    Attributes:
        member: who.
        environment: of its config.
        records: what it trains on.
    """

    member: Member
    environment: Environment

    @property
    def records(self) -> tuple[Any, ...]:
        """Params records that it trains on, where there are any."""
        return self.environment.records(f"{self.member.fold}/train")

    @property
    def spec(self) -> Spec:
        """Of its records: folds differ in their scales, settings in their time limits."""
        return self.environment.spec_of(self.records)

    @property
    def rows(self) -> int:
        """Steps of an iteration."""
        return self.member.config.iteration_steps

    @property
    def memory(self) -> int:
        """Bytes that a member more in a batch takes."""
        agent, n = self.member.config.agent, self.member.config.num_envs
        learning = agent.bytes(self.environment.spec, 1, n)
        return learning + kept_bytes(agent, self.environment, 1, n)


def shape_of(member: Member, source: EnvironmentSource) -> str:
    """Members of equal shape can be trained side by side: their numbers may differ, sizes not."""
    place = Place(member, source.environment(member.config))
    spec, config = place.spec, member.config
    facts = [
        config.env_name,
        source.data_number(place.environment),
        config.agent.shape,
        config.agent_name,
        config.num_envs,
        config.training.backend,
        config.training.learner,
        config.training.device,
        spec.observation_shape,
        spec.observation_dtype.name,
        ActionMap(spec.action).description(),
        spec.metrics,
        spec.trace,
        spec.stagger,
        spec.scale_reward,
        spec.players,
        spec.max_episode_steps is None,
    ]
    if not place.environment.varied:
        facts.append(config.env_settings)
    return json.dumps(facts)


def joined(places: Sequence[Place]) -> Environment:
    """The environment of all copies, member after member."""
    return places[0].environment.joined([place.records for place in places])


class Population:
    """Members of one shape that are trained side by side.

    Args:
        places: who, [M].
        states: where each one stands, [M]; None at its beginning.

    Attributes:
        iterations: int64 [M], rollouts that each member learned from.
        failed: bool [M], members that diverged; they stand still.
        scores: float64 [M], mean returns of the last training episodes.
        resumable: between milestones; foreign environments may not come back to where they stood.
    """

    def __init__(self, places: Sequence[Place], states: Sequence[State | None]) -> None:
        self.places = list(places)
        first = places[0]
        training = first.member.config.training
        begins = any(state is None for state in states)
        with nullcontext() if begins else initial.left_out():
            self._shard = Shard(
                joined(places),
                AgentConfig.join([place.member.config.agent for place in places]),
                [place.member.seed for place in places],
                range(len(places)),
                first.member.config.num_envs,
                training.chosen_backend,
                specs=[place.spec for place in places],
                learner=training.learner,
                device=training.device,
            )
        self.failed = np.zeros(len(places), np.bool_)
        self.scores = np.full(len(places), np.nan)
        self.iterations = np.array([state.iteration if state else 0 for state in states], np.int64)
        self._budgets = np.array([place.member.budget for place in places], np.float64)
        self.resumable = first.environment.resumable
        if self.resumable or all(state is None for state in states):
            self._shard.reset()
        if any(state is not None for state in states):
            self._restore(states)

    def _restore(self, states: Sequence[State | None]) -> None:
        """Copies that begin keep what `reset` gave them.

        Foreign environments take the actions of their episodes again, those that are not
        deterministic begin fresh ones: at milestones only, so that kills change nothing.
        """
        fresh = self._shard.get_state()
        own = []
        for m, state in enumerate(states):
            known = {} if state is None else state.small
            if state is None or state.policy is not None:  # of who is done, what acts was kept
                known = {**state_of(fresh, range(m, m + 1), len(states)), **known}
            own.append(known)
        chunks = [() if state is None else state.bulk.items() for state in states]
        self._shard.set_state(join_states(own), chunks=chunks)

    def iterate(self) -> None:
        """One rollout and update of every member."""
        spent = self.iterations * self.places[0].rows / self._budgets
        metrics = self._shard.iterate(np.minimum(spent, 1.0))
        self.iterations += 1
        self.failed |= metrics["failed"].astype(bool)
        self.scores = metrics["score"]

    @property
    def policy(self) -> Policy:
        """All members' policies."""
        policy: Policy = self._shard.agent.policy
        return policy

    def states(self) -> Iterator[State]:
        """Where each member stands, with its policy where it has reached its budget.

        One replay is copied at a time. A member at its budget is not trained any more: what is
        kept of it is what acts, for it may have to be scored again.
        """
        everything = self._shard.get_state()
        for m, place in enumerate(self.places):
            tensors = state_of(everything, range(m, m + 1), len(self.places))
            iteration = int(self.iterations[m])
            done = iteration * place.rows >= place.member.budget
            if not done:
                chunks = self._shard.collector.bulk(m)
                tensors |= {f"{BULK}{name}": make() for name, make in chunks.items()}
            elif self.resumable:
                tensors = {name: value for name, value in tensors.items() if _acts(name)}
            policy: tuple[Tensors, Mapping[str, Any]] | None = (
                self._shard.policy(m, place.environment) if done else None
            )
            yield State(iteration, tensors, policy)

    @property
    def seconds(self) -> dict[str, float]:
        """Of stepping, acting and learning so far, all members together."""
        facts = self._shard.facts()
        return {name: facts[f"seconds_{name}"] for name in ("env", "policy", "update")}

    def close(self) -> None:
        """Releases the environments."""
        self._shard.close()


def _acts(name: str) -> bool:
    """Whether a tensor of a state is the agent's own, and not one of Adam's moments."""
    return name.startswith("agent.") and not name.endswith(("first_moment", "second_moment"))


def policy_of(places: Sequence[Place], states: Sequence[State | None]) -> Policy:
    """Policies of members that are not being trained."""
    population = Population(places, states)
    population.close()
    return population.policy
