"""The compiled form of PPO equals its torch form over whole iterations.

Both get the same rollout, weights, Adam's moments and statistics; whatever they leave is compared.
"""

import forms
import gymnasium
import numpy as np
import pytest

from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.ppo import torch_ppo
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.agents.ppo.torch_ppo import PPOGroup, TorchPPO
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_adam

TOLERANCE = 1e-4


class Shared(PPOConfig):
    """Of gradients that are summed from parts wherever rows are even."""

    ROWS_TO_SHARE = 2


def drawn(seed):
    """A configuration of everything that an update depends on, from a seed."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    members, num_envs, n_steps = (int(rng.integers(1, n)) for n in (5, 8, 20))
    n_steps = max(n_steps, 3)
    total = n_steps * num_envs
    divisors = [d for d in range(2, total + 1) if total % d == 0 and total / d <= 8]
    rows = int(one_of(*divisors))
    kind = one_of(PPOConfig, Shared)

    def setting(low, high):
        """One number, or one for each member."""
        numbers = tuple(float(x) for x in rng.uniform(low, high, members))
        return one_of(numbers, numbers[0])

    config = kind(
        n_steps=n_steps,
        batch_size=rows,
        n_epochs=int(rng.integers(1, 4)),
        net_arch=tuple(int(w) for w in rng.integers(3, 40, rng.integers(1, 4))),
        activation=one_of("tanh", "relu"),
        learning_rate=setting(1e-4, 2e-3),
        learning_rate_schedule=one_of("constant", "linear"),
        clip_range=setting(0.05, 0.4),
        ent_coef=setting(0.0, 0.1),
        vf_coef=setting(0.1, 1.0),
        gamma=setting(0.8, 1.0),
        gae_lambda=setting(0.5, 1.0),
        max_grad_norm=one_of(None, setting(0.05, 1.0)),
        adam_eps=setting(1e-5, 1e-4),
        target_kl=one_of(None, setting(1e-3, 2e-2)),
        observation_normalization=bool(rng.integers(2)),
        reward_scaling=one_of("on", "off"),
        normalize_advantage=bool(rng.integers(2)),
    )
    action = one_of(
        gymnasium.spaces.Discrete(int(rng.integers(2, 6))),
        gymnasium.spaces.MultiDiscrete(rng.integers(2, 5, rng.integers(1, 4))),
        gymnasium.spaces.Box(-2, 2, (int(rng.integers(1, 4)),), np.float32),
    )
    width = int(rng.integers(1, 20))
    fixed = np.where(rng.random(width) < 0.3, rng.standard_normal(width), np.nan)
    spec = EnvSpec(
        gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32),
        action,
        fixed_mean=fixed.astype(np.float32),
        fixed_std=np.where(np.isnan(fixed), np.nan, 2.0).astype(np.float32),
    )
    masked = not isinstance(action, gymnasium.spaces.Box) and bool(rng.integers(2))
    return config, spec, members, num_envs, masked, rng


def filled(agent, spec, masked, rng):
    """A rollout that the agent acted in, of random numbers, with every kind of row."""
    mask_size = agent.policy.actions.head_width if masked else 0
    rollout = Rollout(spec, agent.n_steps, agent.members, agent.num_envs, mask_size)
    to, shape = rollout, rollout.reward.shape
    if to.obs.dtype == np.uint8:
        to.obs[:] = rng.integers(0, 256, to.obs.shape)
    else:
        to.obs[:] = rng.standard_normal(to.obs.shape) * 2 + 1
    to.reward[:] = rng.standard_normal(shape)
    to.terminated[:] = rng.random(shape) < 0.1
    to.truncated[:] = (rng.random(shape) < 0.1) & ~to.terminated
    to.valid[:] = rng.random(shape) < 0.9
    if masked:
        to.mask[:] = rng.random(to.mask.shape) < 0.6
        first = 0
        for size in agent.policy.actions.sizes:  # one choice of each component is always allowed
            to.mask[..., first + rng.integers(size)] = True
            first += size
    index = np.ascontiguousarray(np.argwhere(to.truncated))
    if len(index):
        rollout.set_final_obs(FinalObs(to.obs[1:][tuple(index.T)], index))
    for t in range(agent.n_steps):
        agent.act(rollout, t)
    return rollout


def together(agent):
    """Has a torch form calculate all members at once, as on a GPU."""
    everyone = slice(0, agent.members)
    group = PPOGroup(agent.policy, agent.config, everyone, agent.num_envs, agent.device)
    agent._groups = [group]


def both(seed, at_once=False):
    """Both forms of one configuration after an iteration, and its metrics."""
    config, spec, members, num_envs, masked, rng = drawn(seed)
    seeds = [int(s) for s in rng.integers(0, 1000, members)]
    compiled, plain = (form(config, spec, seeds, num_envs) for form in (PPO, TorchPPO))
    if at_once:
        together(plain)
    compiled.update(filled(compiled, spec, masked, rng))  # moments and statistics are not 0
    plain.load_state_dict(compiled.state_dict())
    rollout = filled(compiled, spec, masked, rng)
    rollout.log_prob[:] += 0.1 * rng.standard_normal(rollout.log_prob.shape)
    progress = rng.random(members)
    return tuple((agent, agent.update(rollout, progress)) for agent in (compiled, plain))


def difference(results):
    """The largest one of everything that two agents left, relative where numbers are large."""
    left, right = ({**agent.state_dict(), **metrics} for agent, metrics in results)
    return forms.difference(left, right)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(48)]
)
def test_a_whole_iteration_agrees(seed):
    name, worst = difference(both(seed))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(100, 124)]
)
def test_members_calculated_at_once_agree(seed):
    name, worst = difference(both(seed, at_once=True))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


# What a mistake in one of the forms would look like: each must be found by some of these seeds.
MISTAKES = {
    **forms.OPTIMISER,
    "sign of the surrogate": ("policy = -torch", "policy = torch"),
    "no clipping": ("bounded = ratio.clamp(1.0 - clip, 1.0 + clip)", "bounded = ratio * 1.0"),
    "no entropy": ("- c.ent_coef[:, None] * entropy", ""),
    "sign of entropy": ("- c.ent_coef", "+ c.ent_coef"),
    "half the squared error": (
        "c.vf_coef[:, None] * critic",
        "c.vf_coef[:, None] * critic / 2",
    ),
    "unnormalised advantages": ("if normalise:", "if False:"),
    "rows that are not real": (
        "valid = self.valid.to(numbers.dtype)",
        "valid = self.valid * 0 + 1",
    ),
    "no lambda": ("gamma * c.gae_lambda[:, None, None]", "gamma"),
    "no discount": ("gamma * following", "following"),
    "across an episode's end": ("(valid & ~ended)", "valid"),
    "another KL": ("1.5 * c.target_kl", "1.0 * c.target_kl"),
    "no stop": ("frozen |= statistics", "statistics"),
    "another epsilon": (
        "~frozen, c.learning_rate, c.adam_eps",
        "~frozen, c.learning_rate, c.gamma * 0 + 1e-8",
    ),
    "one learning rate": (
        "~frozen, c.learning_rate",
        "~frozen, c.learning_rate[:1].expand(len(frozen))",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(monkeypatch, mistake):
    definition = torch_adam, torch_ppo
    forms.plant(monkeypatch, MISTAKES[mistake], definition, [torch_ppo])
    assert any(difference(both(seed, at_once=True))[1] > TOLERANCE for seed in range(100, 124))


def test_a_member_that_diverges_stops_alone():
    config, spec = PPOConfig(n_steps=4, batch_size=8, n_epochs=2), drawn(0)[1]
    agents = [TorchPPO(config, spec, range(3), 4) for _ in range(2)]
    together(agents[1])
    for agent in agents:
        rollout = filled(agent, spec, False, np.random.default_rng(0))
        before = agent.policy.parameters.state_dict()
        rollout.reward[2, 5], rollout.valid[2, 5] = np.nan, True  # of member 1
        metrics = agent.update(rollout)
        after = agent.policy.parameters.state_dict()
        assert metrics["failed"].tolist() == [False, True, False]
        assert metrics["updates"].tolist() == [4, 0, 4]
        for name in ("weights", "first_moment", "second_moment"):
            a, b = np.asarray(before[name]), np.asarray(after[name])
            assert (a[1] == b[1]).all() and np.isfinite(b).all()
            assert (a[0] != b[0]).any() and (a[2] != b[2]).any()
