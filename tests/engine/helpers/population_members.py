"""Members of small studies, and digests of their weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from slipstream.core.timeline import FoldPlan
from slipstream.training.population.environment_source import EnvironmentSource
from slipstream.training.population.member import Member
from slipstream.training.population.member_state import LiveStates
from slipstream.training.population.training_segment import Task, run_training_segment
from slipstream.training.settings.config import resolve

TOY = str(Path(__file__).parents[1] / "samples/toy_market.py")
SIZES = {
    "training.num_envs": 6,
    "agent.n_steps": 16,
    "agent.batch_size": 24,
    "agent.net_arch": [16],
}


class Engine:
    """Members by number, trained in a folder of their own."""

    rows = 6 * 16

    def member(self, k, env=TOY, fold=None, budget=6, test="test", **overrides):
        """Member k of a study; each has other numbers, and shapes are equal."""
        fold = k % 6 if fold is None else fold
        own = {"agent.learning_rate": 1e-3 * (k + 1), "agent.gamma": 0.9 + 0.01 * (k % 7)}
        config = resolve(
            env, {**SIZES, "training.total_timesteps": budget * self.rows, **own, **overrides}
        )
        split = f"fold{fold}/{test}" if test == "test" else test
        return Member(
            f"search-{k // 6:05d}-{k % 6}",
            config,
            f"fold{fold}",
            split,
            1000 + k,
            budget * self.rows,
        )

    def source(self):
        return EnvironmentSource(FoldPlan(), 6)

    def train(self, members, until, folder, source=None, check_stop=lambda: None):
        """Outcomes in their order, and a digest of each member's state."""
        live = LiveStates(folder)
        until = [until] * len(members) if isinstance(until, int) else until
        tasks = [Task(member, milestone) for member, milestone in zip(members, until, strict=True)]
        outcomes = run_training_segment(tasks, source or self.source(), live, check_stop)
        return outcomes, {member.name: self.digest(live, member) for member in members}

    def digest(self, live, member):
        """Of everything that a member goes on from; None where there is nothing."""
        state = live.load(member)
        return None if state is None else digest(state.tensors)


def digest(tensors):
    """Of all bits of named arrays."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()
