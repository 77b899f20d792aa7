"""The compiled form of SAC equals its torch form over whole iterations.

Both get the same replay, weights, Adam's moments and targets; whatever they leave is compared.
"""

import inspect
from types import ModuleType

import gymnasium
import numpy as np
import pytest
import torch

from slipstream.agents.sac import torch_form, torch_members
from slipstream.agents.sac.config import SACConfig
from slipstream.agents.sac.sac import SAC
from slipstream.agents.sac.torch_members import TorchMembers
from slipstream.agents.sac.torch_sac import TorchSAC
from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.vector.steps import Finals

TOLERANCE = 1e-4


def drawn(seed):
    """A configuration of everything that an update depends on, from a seed."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    members = int(rng.integers(1, 4))

    def setting(low, high):
        """One number, or one for each member."""
        numbers = tuple(float(x) for x in rng.uniform(low, high, members))
        return one_of(numbers, numbers[0])

    prioritised = bool(rng.integers(2))
    config = SACConfig(
        batch=int(rng.integers(2, 90)),
        gradient_parts=int(rng.integers(1, 4)),
        replay_size=int(rng.integers(100, 200)),
        learning_starts=0,
        iteration=int(rng.integers(1, 4)),
        n_step=int(rng.integers(1, 4)),
        widths=tuple(int(w) for w in rng.integers(3, 40, rng.integers(1, 4))),
        activation=one_of("tanh", "relu"),
        learning_rate=setting(1e-4, 2e-3),
        learning_rate_schedule=one_of("constant", "linear"),
        discount=setting(0.8, 1.0),
        max_grad_norm=one_of(None, setting(0.05, 1.0)),
        adam_eps=setting(1e-5, 1e-4),
        target_rate=setting(0.01, 0.2),
        target_every=int(rng.integers(1, 3)),
        temperature=one_of(None, None, setting(0.01, 0.5)),
        initial_temperature=setting(0.1, 1.0),
        target_entropy=one_of(None, setting(-2.0, 0.5)),
        observation_normalization=bool(rng.integers(2)),
        reward_scaling=one_of("on", "off"),
        prioritised=prioritised,
    )
    space = gymnasium.spaces.Box(-2, 3, (int(rng.integers(1, 12)),), np.float32)
    width = int(rng.integers(1, 20))
    fixed = np.where(rng.random(width) < 0.3, rng.standard_normal(width), np.nan)
    spec = Spec(
        gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32),
        space,
        fixed_mean=fixed.astype(np.float32),
        fixed_std=np.where(np.isnan(fixed), np.nan, 2.0).astype(np.float32),
    )
    return config, spec, members, int(rng.integers(1, 4)), rng


def filled(agent, config, spec, num_envs, rng):
    """A replay of what the agent did, with every kind of ending, and the rollout behind it."""
    steps = 40
    rollout = Rollout.of(spec, steps, agent.members, num_envs, 0)
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
        replay.write(rollout, t, Finals(final, np.zeros((0, 2), np.int64)), place)
    return replay, rollout


def copied(replay, config, spec, num_envs):
    """The same replay in other memory: learning changes priorities."""
    other = Replay(config.replay(num_envs), spec, replay.members, num_envs)
    for ours, theirs in zip(other.ring, replay.ring, strict=True):
        if isinstance(ours, np.ndarray):
            ours[...] = theirs
    return other


def together(agent):
    """Has a torch form calculate all members at once, as on a GPU."""
    agent._groups = [TorchMembers(agent, slice(0, agent.members), torch.device("cpu"))]


def both(seed, at_once=False):
    """Both forms of one configuration after an iteration, and its metrics."""
    config, spec, members, num_envs, rng = drawn(seed)
    seeds = [int(s) for s in rng.integers(0, 1000, members)]
    compiled, plain = (form(config, spec, seeds, num_envs) for form in (SAC, TorchSAC))
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
        own = copied(replay, config, spec, num_envs)
        agent.learn(own, wanted)
        results.append((agent, agent.update(rollout, 0.3), own.ring.tree.copy()))
    return results


def difference(results):
    """The largest one of everything that two agents left, relative where numbers are large."""
    (one, metrics, tree), (other, others, its_tree) = results
    assert metrics.keys() == others.keys()
    state, states = one.state_dict(), other.state_dict()
    assert state.keys() == states.keys()
    pairs = {name: (state[name], states[name]) for name in state}
    pairs |= {name: (metrics[name], others[name]) for name in metrics}
    pairs["priorities"] = tree, its_tree
    worst = {}
    for name, (a, b) in pairs.items():
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, name
        gap = abs(a - b) / np.maximum(1, abs(a))
        worst[name] = float(np.max(np.where(np.isnan(a) & np.isnan(b), 0, gap), initial=0))
    return max(worst.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))


@pytest.mark.parametrize("seed", range(32))
def test_a_whole_iteration_agrees(seed):
    name, worst = difference(both(seed))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


@pytest.mark.parametrize("seed", range(100, 116))
def test_members_calculated_at_once_agree(seed):
    name, worst = difference(both(seed, at_once=True))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


# What a mistake in one of the forms would look like: each must be found by some of these seeds.
MISTAKES = {
    "no entropy in the target": ("- alpha * log_prob\n        future", "\n        future"),
    "one critic in the target": ("torch.minimum(*values) - alpha", "list(values)[0] - alpha"),
    "the larger value": ("least = torch.minimum(", "least = torch.maximum("),
    "across a termination": ("rows.discount * soft, 0.0)", "soft, 0.0)"),
    "no importance weights": ("0.5 * rows.weight * error**2", "0.5 * error**2"),
    "twice the squared error": ("0.5 * rows.weight", "rows.weight"),
    "sign of entropy": ("(alpha * log_prob - least)", "(-alpha * log_prob - least)"),
    "no slope of the tanh": (
        "- 0.5 * math.log(2.0 * math.pi) - slope",
        "- 0.5 * math.log(2.0 * math.pi)",
    ),
    "unbounded deviations": (
        "log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)",
        "log_std.clamp(-0.01, 0.01)",
    ),
    "sign of the temperature": ("(entropy - c.target_entropy)", "(c.target_entropy - entropy)"),
    "temperature where it is fixed": ("chosen & c.automatic", "chosen"),
    "targets that stand still": ("follower.copy_(", "(lambda x: x)("),
    "targets at every update": ("% target_every == 0", "% target_every >= 0"),
    "no norm": ("shorten[:, None]", "1.0"),
    "one learning rate": (
        "chosen, c.learning_rate,",
        "chosen, c.learning_rate[:1].expand_as(norm),",
    ),
    "the noise of the next action": ("rows.x), noise[1])", "rows.x), noise[0])"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(monkeypatch, mistake):
    right, wrong = MISTAKES[mistake]
    source = inspect.getsource(torch_form)
    assert source.count(right) == 1, f"{right} is no longer in the torch form"
    mutant = ModuleType("mutant")
    exec(source.replace(right, wrong), mutant.__dict__)
    for name in ("Rows", "Members", "Group", "Networks", "Coefficients", "draw", "learn"):
        monkeypatch.setattr(torch_members, name, getattr(mutant, name))
    assert any(difference(both(seed, at_once=True))[1] > TOLERANCE for seed in range(100, 116))
