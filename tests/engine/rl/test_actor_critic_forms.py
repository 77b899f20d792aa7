"""The compiled forms of SAC and TD3 equal their torch forms over whole iterations.

Both get the same replay, weights, Adam's moments and targets; whatever they leave is compared.
"""

import forms
import gymnasium
import numpy as np
import pytest

from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.actor_critic import torch_actor_critic as actor_critic_form
from slipstream.rl.agents.off_policy import torch_off_policy as off_policy_form
from slipstream.rl.agents.sac import sac
from slipstream.rl.agents.sac import torch_sac as sac_form
from slipstream.rl.agents.sac.config import SACConfig
from slipstream.rl.agents.td3 import td3
from slipstream.rl.agents.td3 import torch_td3 as td3_form
from slipstream.rl.agents.td3.config import TD3Config
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_adam

TOLERANCE = 1e-4
AGENTS = {"sac": (sac, sac_form), "td3": (td3, td3_form)}


class SharedSAC(SACConfig):
    """The actor's gradient is summed from parts."""

    WORK_TO_SHARE = 1


class SharedTD3(TD3Config):
    """The same."""

    WORK_TO_SHARE = 1


def drawn(name, seed):
    """A configuration of everything that an update depends on, from a seed."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    members = int(rng.integers(1, 4))

    def setting(low, high):
        """One number, or one for each member."""
        numbers = tuple(float(x) for x in rng.uniform(low, high, members))
        return one_of(numbers, numbers[0])

    prioritised, from_parts = bool(rng.integers(2)), bool(rng.integers(2))
    shared = {
        "batch_size": int(rng.integers(2, 90)),
        "buffer_size": int(rng.integers(100, 200)),
        "learning_starts": 0,
        "iteration": int(rng.integers(1, 4)),
        "n_step": int(rng.integers(1, 4)),
        "net_arch": tuple(int(w) for w in rng.integers(3, 40, rng.integers(1, 4))),
        "activation": one_of("tanh", "relu"),
        "learning_rate": setting(1e-4, 2e-3),
        "learning_rate_schedule": one_of("constant", "linear"),
        "gamma": setting(0.8, 1.0),
        "max_grad_norm": one_of(None, setting(0.05, 1.0)),
        "adam_eps": setting(1e-5, 1e-4),
        "tau": setting(0.01, 0.2),
        "target_update_interval": int(rng.integers(1, 3)),
        "observation_normalization": bool(rng.integers(2)),
        "reward_scaling": one_of("on", "off"),
        "prioritised": prioritised,
    }
    if name == "sac":
        config = (SharedSAC if from_parts else SACConfig)(
            **shared,
            ent_coef=one_of("auto", "auto", setting(0.01, 0.5)),
            init_ent_coef=setting(0.1, 1.0),
            target_entropy=one_of(None, setting(-2.0, 0.5)),
        )
    else:
        config = (SharedTD3 if from_parts else TD3Config)(
            **shared,
            exploration_noise=setting(0.0, 0.5),
            target_policy_noise=setting(0.1, 1.0),
            target_noise_clip=setting(0.1, 1.0),
        )
    space = gymnasium.spaces.Box(-2, 3, (int(rng.integers(1, 12)),), np.float32)
    width = int(rng.integers(1, 20))
    fixed = np.where(rng.random(width) < 0.3, rng.standard_normal(width), np.nan)
    spec = EnvSpec(
        gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32),
        space,
        fixed_mean=fixed.astype(np.float32),
        fixed_std=np.where(np.isnan(fixed), np.nan, 2.0).astype(np.float32),
    )
    return config, spec, members, int(rng.integers(1, 4)), rng


def filled(agent, config, spec, num_envs, rng):
    """A replay of what the agent did, with every kind of ending, and the rollout behind it."""
    steps = 40
    rollout = Rollout(spec, steps, agent.members, num_envs, 0)
    to, shape = rollout, rollout.reward.shape
    to.obs[:] = rng.standard_normal(to.obs.shape) * 2 + 1
    to.reward[:] = rng.standard_normal(shape)
    to.terminated[:] = rng.random(shape) < 0.1
    to.truncated[:] = (rng.random(shape) < 0.1) & ~to.terminated
    to.valid[:] = rng.random(shape) < 0.9
    replay = Replay(config.replay(num_envs), spec, agent.members, num_envs)
    replay.begin(to.obs[0], None)
    for t in range(steps):
        agent.act(rollout, t)
        cut = np.flatnonzero(to.truncated[t])
        place = np.full(shape[1], -1)
        place[cut] = np.arange(len(cut))
        final = rng.standard_normal((len(cut), *to.obs.shape[2:])).astype(np.float32)
        replay.write(rollout, t, FinalObs(final, np.zeros((0, 2), np.int64)), place)
    return replay, rollout


def together(agent):
    """Has a torch form calculate all members at once, as on a GPU."""
    agent._groups = [agent.group(agent, slice(0, agent.members), agent.device)]
    agent.refresh()


def both(name, seed, at_once=False):
    """Both forms of one configuration after an iteration, and its metrics."""
    config, spec, members, num_envs, rng = drawn(name, seed)
    seeds = [int(s) for s in rng.integers(0, 1000, members)]
    compiled, plain = (form.Agent(config, spec, seeds, num_envs) for form in AGENTS[name][:2])
    if at_once:
        together(plain)
    replay, rollout = filled(compiled, config, spec, num_envs, rng)
    once = np.ones(members, np.int64)
    compiled.learn(replay, once)  # moments are not 0, targets not equal
    compiled.update(rollout)
    plain.load_state_dict(compiled.state_dict())
    wanted = rng.integers(0, 4, members)
    results = []
    for agent in (compiled, plain):
        own = forms.copied(replay)
        agent.learn(own, wanted)
        results.append((agent, agent.update(rollout, 0.3), own.ring.tree.copy()))
    return results


def difference(results):
    """The largest one of everything that two agents left, relative where numbers are large."""
    left, right = (
        {**agent.state_dict(), **metrics, "tree": tree} for agent, metrics, tree in results
    )
    return forms.difference(left, right)


CASES = [
    pytest.param(agent, seed, marks=[pytest.mark.slow] * (seed % 4 > 0))
    for agent, seeds in (("sac", 32), ("td3", 16))
    for seed in range(seeds)
]


@pytest.mark.parametrize(("agent", "seed"), CASES)
def test_a_whole_iteration_agrees(agent, seed):
    name, worst = difference(both(agent, seed))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(100, 116)]
)
@pytest.mark.parametrize("agent", AGENTS)
def test_members_calculated_at_once_agree(agent, seed):
    name, worst = difference(both(agent, seed, at_once=True))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


@pytest.mark.parametrize("agent", AGENTS)
def test_both_forms_act_alike(agent):
    for seed in range(4):
        config, spec, members, num_envs, rng = drawn(agent, seed)
        config = config.model_copy(update={"learning_starts": 2 * num_envs})
        forms = [form.Agent(config, spec, range(members), num_envs) for form in AGENTS[agent][:2]]
        one, other = (Rollout(spec, 4, members, num_envs, 0) for _ in forms)
        one.obs[:] = other.obs[:] = rng.standard_normal(one.obs.shape)
        for t in range(4):
            received = [
                form.act(rollout, t).copy()
                for form, rollout in zip(forms, (one, other), strict=True)
            ]
            np.testing.assert_allclose(*received, atol=1e-5)
        np.testing.assert_allclose(one.actions, other.actions, atol=1e-5)


# What a mistake in one of the forms would look like: each must be found by some of these seeds.
SHARED = {
    **forms.OPTIMISER,
    "one critic in the target": ("torch.minimum(*values) - cost", "list(values)[0] - cost"),
    "across a termination": ("rows.discount * worth, 0.0)", "worth, 0.0)"),
    "no importance weights": ("0.5 * rows.weight * error**2", "0.5 * error**2"),
    "twice the squared error": ("0.5 * rows.weight", "rows.weight"),
    "targets that stand still": ("target.copy_(", "(lambda x: x)("),
    "targets at every update": ("% target_update_interval == 0", "% target_update_interval >= 0"),
    "one learning rate": (
        "active, c.learning_rate,",
        "active, c.learning_rate[:1].expand_as(norm),",
    ),
}
MISTAKES = {
    "sac": {
        **SHARED,
        "no entropy in the target": ("action, alpha * log_prob)", "action, 0.0)"),
        "the larger value": ("least = torch.minimum(", "least = torch.maximum("),
        "sign of entropy": ("(alpha * log_prob - least)", "(-alpha * log_prob - least)"),
        "no slope of the tanh": (
            "- 0.5 * math.log(2.0 * math.pi) - slope",
            "- 0.5 * math.log(2.0 * math.pi)",
        ),
        "unbounded deviations": (
            "log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)",
            "log_std.clamp(-0.01, 0.01)",
        ),
        "sign of the temperature": ("(entropy - wanted.target)", "(wanted.target - entropy)"),
        "temperature where it is fixed": ("active & wanted.automatic", "active"),
        "the noise of the next action": ("rows.x), noise[1])", "rows.x), noise[0])"),
    },
    "td3": {
        **SHARED,
        "no smoothing": ("slow, rows.x_next), shift)", "slow, rows.x_next), 0.0 * shift)"),
        "noise that is not cut": (".clamp(-limit, limit)", ""),
        "actions beyond their bounds": (".clamp(-1.0, 1.0)", ""),
        "the actor itself after transitions": (
            "networks.head(slow, rows.x_next)",
            "networks.head(actor.leaves, rows.x_next)",
        ),
        "an actor that is not delayed": ("% every == 0)", "% every >= 0)"),
        "the second critic": ("first = members.critics[0]", "first = members.critics[1]"),
        "the actor's sign": ("-networks.value(", "networks.value("),
        "an actor's target that stands still": (
            "polyak_update(target, actor.",
            "(lambda *x: x)(target, actor.",
        ),
    },
}


@pytest.mark.parametrize(
    ("agent", "mistake"), [(agent, mistake) for agent, own in MISTAKES.items() for mistake in own]
)
def test_a_mistake_is_found(monkeypatch, agent, mistake):
    definition = torch_adam, off_policy_form, actor_critic_form, AGENTS[agent][1]
    users = AGENTS[agent][1], actor_critic_form
    forms.plant(monkeypatch, MISTAKES[agent][mistake], definition, users)
    assert any(
        difference(both(agent, seed, at_once=True))[1] > TOLERANCE for seed in range(100, 116)
    )
