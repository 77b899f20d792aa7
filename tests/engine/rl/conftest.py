"""Synthetic experience in which every member's numbers follow from its own seed."""

import os

import gymnasium
import numpy as np
import pytest

from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.experience.rollout import Rollout

DEVICE = os.environ.get("SLIPSTREAM_TEST_DEVICE", "cpu")
CARD_TOLERANCE = 1e-4  # of two ways to calculate a member on a card; on a processor bits are equal

ACTIONS = {
    "discrete": gymnasium.spaces.Discrete(3),
    "multi": gymnasium.spaces.MultiDiscrete([3, 2]),
    "box": gymnasium.spaces.Box(-2, 2, (2,), np.float32),
    "scalar": gymnasium.spaces.Box(-2, 2, (1,), np.float32),
}


class Experience:
    """Fills rollouts with random numbers keyed by (member's seed, iteration)."""

    spaces = ACTIONS

    def spec(self, shape=(5,), action="discrete", dtype=np.float32, **fields):
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        return EnvSpec(gymnasium.spaces.Box(low, high, shape, dtype), self.spaces[action], **fields)

    def fill(self, agent, rollout, iteration=0, ends=0.05, act=True):
        t, n = rollout.n_steps, rollout.num_envs
        finals, index = [], []
        rollout.start_next()  # forgets the last block's final observations
        for m, seed in enumerate(agent.seeds):
            rng = np.random.default_rng((int(seed), iteration))
            e = slice(m * n, (m + 1) * n)
            shape = rollout.obs[:, e].shape
            image = rollout.obs.dtype == np.uint8
            rollout.obs[:, e] = (
                rng.integers(0, 256, shape) if image else rng.standard_normal(shape) * 3 + 1
            )
            rollout.reward[:, e] = rng.standard_normal((t, n))
            rollout.terminated[:, e] = rng.random((t, n)) < ends
            rollout.truncated[:, e] = (rng.random((t, n)) < ends) & ~rollout.terminated[:, e]
            for row, env in np.argwhere(rollout.truncated[:, e]):
                index.append((row, m * n + env))
                final = rng.integers(0, 256, shape[2:]) if image else rng.standard_normal(shape[2:])
                finals.append(final.astype(rollout.obs.dtype))
        if index:
            rollout.set_final_obs(FinalObs(np.stack(finals), np.array(index, np.int64)))
        for row in range(t if act else 0):
            agent.act(rollout, row)

    @staticmethod
    def _torch_form():
        from slipstream.rl.agents.ppo.torch_ppo import (
            TorchPPO,  # half of the folder needs no torch
        )

        return TorchPPO

    def train(
        self,
        seeds,
        spec,
        num_envs=6,
        iterations=3,
        after=None,
        run=None,
        torch_form=False,
        **settings,
    ):
        settings = {
            "n_steps": 16,
            "batch_size": 24,
            "learning_rate": 1e-2,
            "ent_coef": 0.01,
        } | settings
        one = spec if isinstance(spec, EnvSpec) else spec[0]
        form = self._torch_form() if one.is_image or torch_form else PPO
        agent = form(PPOConfig(**settings), spec, seeds, num_envs)
        rollout = Rollout(one, agent.n_steps, len(seeds), num_envs)
        for i in range(iterations):
            self.fill(agent, rollout, int(agent.iterations[0]))
            if after is not None:
                after(i, agent, rollout)
            extra = {} if run is None else {"run_tasks": run}
            metrics = agent.update(rollout, i / iterations, **extra)
        return agent, metrics


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """Where torch forms calculate: the processor, unless SLIPSTREAM_TEST_DEVICE says cuda:0."""
    if DEVICE != "cpu":
        import forms

        forms.move(monkeypatch, DEVICE)
    return DEVICE


@pytest.fixture
def experience():
    return Experience()


@pytest.fixture
def same_members():
    def check(one, chosen, other):
        """Whether the state of `one` is, bit for bit, that of members `chosen` of `other`.

        On a card, whose products' bits depend on the number of members, within a tolerance.
        """
        mine, theirs = one.state_dict(), other.state_dict()
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            a, b = tensor, theirs[name][chosen]
            if getattr(one, "device", None) is None or one.device.type == "cpu":
                assert a.tobytes() == np.ascontiguousarray(b).tobytes(), f"{name} differs"
            else:
                np.testing.assert_allclose(a, b, CARD_TOLERANCE, CARD_TOLERANCE, err_msg=name)

    return check
