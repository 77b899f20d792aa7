"""REINFORCE with a baseline (Williams 1992): a linear policy of discrete actions, in NumPy."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from slipstream.core.config import tunable
from slipstream.core.errors import ConfigError
from slipstream.jit import rng
from slipstream.kernels.spec import EnvSpec
from slipstream.rl.agents import agent
from slipstream.rl.nets.policy import Policy


class Config(agent.AgentConfig):
    PER_MEMBER: ClassVar = ("learning_rate", "gamma")
    LENGTHS: ClassVar = ("steps",)
    SIZES: ClassVar = ("steps",)

    learning_rate: float | tuple[float, ...] = Field(
        0.5,
        description="learning rate of the policy; advantages have standard deviation 1",
        json_schema_extra=tunable(0.1, 2.0, log=True),
    )
    gamma: float | tuple[float, ...] = Field(0.99, description="discount factor per step")
    steps: int = Field(128, ge=1, description="steps of each environment between two updates")

    def iteration_steps(self, num_envs):
        return self.steps

    def updates(self, num_envs):
        return 1

    def rows(self, num_envs):
        return self.steps * num_envs

    def weight_bytes(self, spec):
        return 4 * (int(np.prod(spec.observation_shape)) + 1) * (spec.num_actions + 1)

    def bytes(self, spec, members, num_envs):
        row = 16 * int(np.prod(spec.observation_shape)) + 16 * spec.num_actions + 64
        return members * (num_envs * (self.steps + 1) * row + 4 * self.weight_bytes(spec))


class Agent(agent.Agent):
    experience_type = "rollout"

    def __init__(self, config, specs, seeds, num_envs):
        specs = [specs] * len(seeds) if isinstance(specs, EnvSpec) else list(specs)
        if len(specs[0].nvec) != 1 or specs[0].observation_dtype != np.float32:
            raise ConfigError(
                "reinforce learns one discrete action per step from vectors, got observations "
                f"{specs[0].observation_space} and actions {specs[0].action_space}. Use the agent "
                "ppo."
            )
        self.config, self.members, self.num_envs = config, len(seeds), num_envs
        self.seeds = np.array([seed % 2**64 for seed in seeds], np.uint64)
        self.rate = config.per_member("learning_rate", self.members)[:, None, None]
        self.discount = config.per_member("gamma", self.members)[:, None]
        self.policy = Policy(specs, seeds, net_arch=())  # no hidden layers: x W
        self.actor = self.policy.parameters.weights["actor.0.weight"]  # [M, D, A]
        self.critic = self.policy.parameters.weights["critic.0.weight"]  # [M, D, 1]
        self.failed = self.policy.parameters.failed
        self.iterations = np.zeros(self.members, np.int64)

    def act(self, rollout, t, lo=0, hi=None):
        keys = rng.keys_at_steps(self.seeds, rng.ACT, self.iterations * self.config.steps + t)
        mask = None if rollout.mask is None else rollout.mask[t]
        action = rollout.actions[t]
        actor = self.policy.actor(self.num_envs)
        chosen = np.empty_like(action)
        actor.sample(rollout.obs[t], mask, keys, 0, action, rollout.log_prob[t], chosen)
        return chosen

    def update(self, rollout, progress, run_tasks):
        after = rollout.obs[1:].copy()  # the observation after each step, before any reset
        t, e = rollout.final_index.T
        after[t, e] = rollout.final_obs
        x = self._inputs(rollout.obs[:-1])  # [M, R, D]
        baseline, bootstrap = self._baseline(x), self._baseline(self._inputs(after))
        returns = self._returns(rollout, bootstrap)
        valid = self._by_member(rollout.valid)  # [M, R]
        count = np.maximum(valid.sum(1, keepdims=True), 1)
        advantage = (returns - baseline) * valid
        advantage /= np.sqrt((advantage**2).sum(1, keepdims=True) / count) + 1e-8

        # d log pi(a | x) / d logits = onehot(a) - pi(. | x)
        chosen = self._by_member(rollout.actions[..., 0])
        share = self._shares(x, rollout.mask)
        ahead = np.eye(share.shape[-1], dtype=np.float32)[chosen] - share
        gradient = x.swapaxes(1, 2) @ (ahead * advantage[..., None]) / count[..., None]

        # The baseline of the next rollout: least squares of this one's returns.
        rows = x * valid[..., None]
        moments = rows.swapaxes(1, 2) @ x / count[..., None] + 1e-4 * np.eye(x.shape[2])
        line = np.linalg.solve(moments, rows.swapaxes(1, 2) @ returns[..., None] / count[..., None])

        self.failed |= ~np.isfinite(gradient).all((1, 2)) | ~np.isfinite(line).all((1, 2))
        learns = ~self.failed
        step = (self.rate * gradient).astype(np.float32)
        self.actor[learns, :, : share.shape[-1]] += step[learns]
        self.critic[learns, :, :1] = line[learns]
        self.policy.scale.learn(rollout)
        self.iterations += 1
        return {
            "entropy": -(share * np.log(np.maximum(share, 1e-9))).sum(2).mean(1),
            "gradient_norm": np.sqrt((gradient**2).sum((1, 2))),
            "updates": learns.astype(np.int64),
            "failed": self.failed.copy(),
        }

    def _inputs(self, obs):
        """Scale [T, E, ...]; return it by member with a column of ones, [M, R, D]."""
        x = self.policy.inputs(len(obs) * self.num_envs)
        self.policy.scale.apply(obs, x)
        return x

    def _baseline(self, x):
        return (x @ self.critic)[..., 0]

    def _shares(self, x, mask):
        """Return pi(. | x), [M, R, A]; 0 for actions that the mask forbids."""
        logits = x @ self.actor[..., : self.policy.actions.head_width]
        if mask is not None:
            logits = np.where(self._by_member(mask[:-1]), logits, -np.inf)
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        return odds / odds.sum(-1, keepdims=True)

    def _returns(self, rollout, bootstrap):
        """Return discounted returns [M, R]; a truncated episode continues with the baseline."""
        steps, size = self.config.steps, (self.members, -1, self.num_envs)
        reward = self._by_member(rollout.reward).reshape(size)
        terminated = self._by_member(rollout.terminated).reshape(size)
        truncated = self._by_member(rollout.truncated).reshape(size)
        cut = bootstrap.reshape(size)
        returns, following = np.empty(reward.shape), cut[:, -1]
        for t in reversed(range(steps)):
            following = np.where(truncated[:, t], cut[:, t], following)
            following = reward[:, t] + self.discount * np.where(terminated[:, t], 0.0, following)
            returns[:, t] = following
        return returns.reshape(self.members, -1)

    def _by_member(self, column):
        """Convert [T, E, ...] to [M, T N, ...]."""
        t, rest = len(column), column.shape[2:]
        by_member = column.reshape(t, self.members, self.num_envs, *rest).swapaxes(0, 1)
        return by_member.reshape(self.members, t * self.num_envs, *rest)

    def state_dict(self):
        scale = {f"scale.{name}": v for name, v in self.policy.scale.state_dict().items()}
        return {
            **self.policy.parameters.state_dict(),
            **scale,
            "iterations": self.iterations.copy(),
        }

    def load_state_dict(self, state):
        self.policy.parameters.load_state_dict(state)
        self.policy.scale.load_state_dict(
            {k.removeprefix("scale."): v for k, v in state.items() if k.startswith("scale.")}
        )
        self.iterations = state["iterations"].copy()
