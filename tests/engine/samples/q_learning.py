"""Q-learning (Watkins 1989) from a replay: values linear in the observation, in NumPy alone."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from slipstream.core.config import tunable
from slipstream.core.random import word
from slipstream.jit import rng
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents import agent
from slipstream.rl.experience.replay.replay_config import ReplayConfig
from slipstream.rl.nets.policy import Policy


class Config(agent.AgentConfig):
    PER_MEMBER: ClassVar = ("learning_rate", "gamma", "exploration")
    LENGTHS: ClassVar = ("steps",)
    SIZES: ClassVar = ("buffer_size",)

    learning_rate: float | tuple[float, ...] = Field(
        0.1, description="of the values", json_schema_extra=tunable(0.01, 0.5, log=True)
    )
    gamma: float | tuple[float, ...] = Field(0.9, description="gamma, per step")
    exploration: float | tuple[float, ...] = Field(0.3, description="share of random actions")
    steps: int = Field(64, ge=1, description="steps of each copy in an iteration")
    buffer_size: int = Field(2_000, description="transitions of a member")
    batch_size: int = Field(32, ge=1, description="transitions of an update")
    starts: int = Field(100, ge=0, description="steps before the first update")
    every: int = Field(1, ge=1, description="steps between updates")
    utd_ratio: float = Field(0.5, description="updates for each step")
    n_step: int = Field(1, ge=1, description="rewards that are summed")
    alpha: float = Field(0.0, description="exponent of priorities")
    storage: str = Field("auto", description="of observations")

    def iteration_steps(self, num_envs):
        return self.steps

    def updates(self, num_envs):
        return int(self.steps * num_envs * self.utd_ratio)

    def rows(self, num_envs):
        return self.batch_size

    def replay(self, num_envs):
        return ReplayConfig(
            *(self.buffer_size, self.batch_size, self.starts, self.every, self.utd_ratio),
            *(self.n_step, self.alpha, self.storage),
        )

    def check(self, num_envs):
        self.replay(num_envs).check(num_envs)

    def weight_bytes(self, spec):
        return 4 * (int(np.prod(spec.observation_shape)) + 1) * spec.num_actions

    def bytes(self, spec, members, num_envs):
        return members * 4 * self.weight_bytes(spec)


class Agent(agent.Agent):
    experience_type = "replay"

    def __init__(self, config, specs, seeds, num_envs):
        specs = [specs] * len(seeds) if isinstance(specs, EnvSpec) else list(specs)
        self.config, self.members, self.num_envs = config, len(seeds), num_envs
        self.seeds = np.array([seed % 2**64 for seed in seeds], np.uint64)
        self.rate = config.per_member("learning_rate", self.members)
        self.discount = config.per_member("gamma", self.members)
        self.exploration = config.per_member("exploration", self.members)
        self.policy = Policy(
            specs, seeds, net_arch=(), head="q", observation_normalization=False
        )  # x W
        self.q = self.policy.parameters.weights["actor.0.weight"]  # [M, D + 1, A]
        self.q[:] = 0.0
        self.choices = specs[0].num_actions
        self.counts = np.zeros((self.members, 3), np.int64)  # steps, updates, those reported

    def act(self, rollout, t, lo=0, hi=None):
        copies = len(rollout.obs[t]) // self.members
        keys = rng.keys_at_steps(self.seeds, rng.ACT, self.counts[:, 0])
        with np.errstate(over="ignore"):
            bits = word(keys[:, None, None], np.arange(2 * copies, dtype=np.uint64).reshape(-1, 2))
        u = (bits >> np.uint64(11)) / 2.0**53  # [M, N, 2]
        obs = rollout.obs[t].reshape(self.members, copies, -1)
        best = self._values(np.arange(self.members), obs).argmax(-1)
        other = (u[..., 1] * self.choices).astype(np.int64)
        explore = u[..., 0] < self.exploration[:, None]
        rollout.actions[t] = np.where(explore, other, best).reshape(-1, 1)
        self.counts[:, 0] += 1
        chosen = np.empty_like(rollout.actions[t])
        self.policy.actions.to_environment(rollout.actions[t], chosen)
        return chosen

    def learn(self, replay, updates, run_tasks):
        for k in range(updates.max()):
            members = np.flatnonzero(updates > k)
            keys = rng.keys_at_steps(self.seeds[members], rng.REPLAY, self.counts[members, 1])
            sample = replay.sample(
                members, keys, self.config.batch_size, self.config.n_step, self.discount[members]
            )
            batch, rate = sample.batch, self.rate[members]
            following = self._values(members, batch.obs_next).max(-1)
            target = batch.reward + batch.discount * following
            x = _with_ones(batch.obs)
            chosen = np.eye(self.choices, dtype=np.float32)[batch.action[..., 0].astype(int)]
            error = target - (self._values(members, batch.obs) * chosen).sum(-1)
            step = x.swapaxes(1, 2) @ (chosen * (sample.weight * error)[..., None])
            step *= (rate / self.config.batch_size).astype(np.float32)[:, None, None]
            self.q[members, : x.shape[2], : self.choices] += step
            for i, m in enumerate(members.tolist()):
                replay.update_priorities(m, sample.index[i], error[i].astype(np.float32))
            self.counts[members, 1] += 1

    def update(self, rollout, progress, run_tasks):
        made = self.counts[:, 1] - self.counts[:, 2]
        self.counts[:, 2] = self.counts[:, 1]
        return {
            "mean_value": self.q[:, -1, 0].astype(np.float64),
            "updates": made,
            "failed": np.zeros(self.members, np.bool_),
        }

    def _values(self, members, obs):
        x = _with_ones(obs)
        return x @ self.q[members, : x.shape[2], : self.choices]

    def state_dict(self):
        return {**self.policy.parameters.state_dict(), "counts": self.counts.copy()}

    def load_state_dict(self, state):
        self.policy.parameters.load_state_dict(state)
        self.counts[:] = state["counts"]


def _with_ones(obs):
    return np.concatenate([obs, np.ones((*obs.shape[:-1], 1), np.float32)], -1)
