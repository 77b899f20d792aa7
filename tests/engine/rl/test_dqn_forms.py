"""The compiled form of DQN equals its torch form over many updates, over random configurations.

Both get the same replay, weights, Adam's moments and statistics; whatever they leave is compared.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import forms
import gymnasium
import numpy as np
import pytest

from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.dqn import torch_dqn
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.dqn.dqn import DQN
from slipstream.rl.agents.dqn.torch_dqn import DQNGroup, TorchDQN
from slipstream.rl.agents.off_policy import torch_off_policy as off_policy_form
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets import torch_adam

TOLERANCE = 1e-4
ROWS = 40  # steps of a rollout


class SharedDQN(DQNConfig):
    """Gradients are summed from parts, wherever there are two hidden layers."""

    WORK_TO_SHARE = 1


def drawn(seed):
    """A configuration of everything that an update depends on, from a seed."""
    rng = np.random.default_rng(seed)

    def one_of(*choices):
        return choices[rng.integers(len(choices))]

    members, num_envs = (int(rng.integers(1, n)) for n in (5, 5))

    def setting(low, high):
        """One number, or one for each member."""
        numbers = tuple(float(x) for x in rng.uniform(low, high, members))
        return one_of(numbers, numbers[0])

    config = (SharedDQN if seed % 8 == 0 else DQNConfig)(
        buffer_size=100,
        batch_size=int(one_of(1, 7, 64, 96)),
        iteration=ROWS,
        n_step=int(rng.integers(1, 5)),
        net_arch=tuple(int(w) for w in rng.integers(3, 40, rng.integers(1, 4))),
        activation=one_of("tanh", "relu"),
        double=bool(rng.integers(2)),
        dueling=bool(rng.integers(2)),
        learning_rate=setting(1e-4, 2e-3),
        learning_rate_schedule=one_of("constant", "linear"),
        gamma=setting(0.8, 1.0),
        max_grad_norm=one_of(None, setting(0.05, 1.0)),
        adam_eps=setting(1e-5, 1e-4),
        tau=one_of(1.0, setting(0.01, 1.0)),
        target_update_interval=int(rng.integers(1, 4)),
        prioritised=bool(rng.integers(2)),
        importance_exponent=setting(0.2, 0.8),
        observation_normalization=bool(rng.integers(2)),
        reward_scaling=one_of("on", "off"),
        learning_starts=0,
    )
    width = int(rng.integers(1, 20))
    fixed = np.where(rng.random(width) < 0.3, rng.standard_normal(width), np.nan)
    spec = EnvSpec(
        gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32),
        gymnasium.spaces.Discrete(int(rng.integers(2, 6)), start=int(rng.integers(0, 3))),
        fixed_mean=fixed.astype(np.float32),
        fixed_std=np.where(np.isnan(fixed), np.nan, 2.0).astype(np.float32),
        has_action_mask=bool(rng.integers(2)),
    )
    return config, spec, members, num_envs, rng


def masks(rng, shape):
    """One choice at least is allowed everywhere."""
    mask = rng.random(shape) < 0.6
    mask[..., rng.integers(shape[-1])] = True
    return mask


def filled(agent, spec, rng):
    """A rollout that the agent acted in, of random numbers with every kind of row; its replay."""
    choices = spec.num_actions if spec.has_action_mask else 0
    rollout = Rollout(spec, ROWS, agent.members, agent.num_envs, choices)
    shape = rollout.reward.shape
    rollout.obs[:] = rng.standard_normal(rollout.obs.shape) * 2 + 1
    rollout.reward[:] = 2 * rng.standard_normal(shape)
    rollout.terminated[:] = rng.random(shape) < 0.1
    rollout.truncated[:] = rng.random(shape) < 0.1
    rollout.valid[:] = rng.random(shape) < 0.9
    if choices:
        rollout.mask[:] = masks(rng, rollout.mask.shape)
    replay = Replay(
        agent.config.replay(agent.num_envs), spec, agent.members, agent.num_envs, choices
    )
    replay.begin(rollout.obs[0], None if rollout.mask is None else rollout.mask[0])
    for t in range(ROWS):
        agent.act(rollout, t)
        cut = np.flatnonzero(rollout.truncated[t] & ~rollout.terminated[t])
        of = np.full(shape[1], -1)
        of[cut] = np.arange(len(cut))
        finals = rng.standard_normal((len(cut), *spec.observation_shape)).astype(np.float32)
        replay.write(rollout, t, FinalObs(finals, np.zeros((0, 2), np.int64)), of)
    return rollout, replay


def together(agent):
    """Has a torch form calculate all members at once, as on a GPU."""
    agent._groups = [DQNGroup(agent, slice(0, agent.members), agent.device)]
    agent.refresh()


def both(seed, at_once=False):
    """Both forms of one configuration after an iteration, their metrics and replays."""
    config, spec, members, num_envs, rng = drawn(seed)
    seeds = [int(s) for s in rng.integers(0, 1000, members)]
    compiled, plain = (form(config, spec, seeds, num_envs) for form in (DQN, TorchDQN))
    if at_once:
        together(plain)
    rollout, replay = filled(compiled, spec, rng)
    compiled.learn(replay, np.full(members, 3))  # moments and statistics are not 0
    compiled.update(rollout, rng.random(members))
    plain.load_state_dict(compiled.state_dict())
    rollout, replay = filled(compiled, spec, rng)
    plain.steps[:] = compiled.steps
    updates = [rng.integers(0, 4, members) for _ in range(4)]
    progress, results = rng.random(members), []
    for agent in (compiled, plain):
        own = forms.copied(replay)
        for some in updates:
            agent.learn(own, some)
        results.append((agent, agent.update(rollout, progress), own.ring.tree))
    return results


def difference(results):
    """The largest one of everything that two agents left, relative where numbers are large."""
    left, right = (
        {**agent.state_dict(), **metrics, "tree": tree} for agent, metrics, tree in results
    )
    return forms.difference(left, right)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(24)]
)
def test_a_whole_iteration_agrees(seed):
    name, worst = difference(both(seed))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=[pytest.mark.slow] * (s % 4 > 0)) for s in range(100, 116)]
)
def test_members_calculated_at_once_agree(seed):
    name, worst = difference(both(seed, at_once=True))
    assert worst <= TOLERANCE, f"{name} differs by {worst}"


# What a mistake in one of the forms would look like: each must be found by some of these seeds.
MISTAKES = {
    **forms.OPTIMISER,
    "no importance": ("rows.weight * torch.where", "torch.where"),
    "squared error": ("torch.where(size <= 1.0, 0.5 * error**2, size - 0.5)", "0.5 * error**2"),
    "never double": ("if double else value", "if False else value"),
    "always double": ("if double else value", "if True else value"),
    "values by the judge": ("following = value.gather", "following = judge.gather"),
    "no mask": ("if rows.mask_next is not None:", "if False:"),
    "no discount": ("rows.discount * following", "following"),
    "beyond the end": ("rows.discount > 0, rows.discount", "rows.discount > -1, 0.9"),
    "another epsilon": ("c.learning_rate, c.adam_eps", "c.learning_rate, c.adam_eps * 0 + 1e-2"),
    "one learning rate": (
        "active, c.learning_rate",
        "active, c.learning_rate[:1].expand(len(norm))",
    ),
    "target at once": ("state.steps % target_update_interval == 0", "state.steps > 0"),
    "target copied": ("c.tau[:, None] * (", "("),
    "no mean of advantages": (" - advantage.mean(-1, keepdim=True)", ""),
    "updates of everybody": ("active = active & ~state.failed", "active = ~state.failed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(monkeypatch, mistake):
    definition = torch_adam, off_policy_form, torch_dqn
    forms.plant(monkeypatch, MISTAKES[mistake], definition, [torch_dqn])
    assert any(difference(both(seed, at_once=True))[1] > TOLERANCE for seed in range(100, 116))


def test_a_batch_may_be_shared_out(same_members):
    config = SharedDQN(
        buffer_size=400, batch_size=300, iteration=ROWS, net_arch=(8, 16), dueling=True
    )
    assert config.parts(2) == 2 and DQNConfig().parts(2) == 1

    def crew(tasks):
        wait([pool.submit(task) for task in tasks])

    agents = []
    with ThreadPoolExecutor(3) as pool:
        for run in ({}, {"run_tasks": crew}):
            agents.append(DQN(config, drawn(0)[1], [4], 2))
            _, replay = filled(agents[-1], drawn(0)[1], np.random.default_rng(0))
            agents[-1].learn(replay, np.full(1, 20), **run)
    same_members(agents[0], [0], agents[1])


@pytest.mark.parametrize("form", [DQN, TorchDQN])
def test_a_member_that_diverges_stops_alone(form):
    config = DQNConfig(
        buffer_size=200, batch_size=16, iteration=ROWS, net_arch=(8,), learning_starts=0
    )
    spec = drawn(0)[1]
    agent = form(config, spec, range(3), 2)
    if form is TorchDQN:
        together(agent)
    rollout, replay = filled(agent, spec, np.random.default_rng(0))
    before = agent.policy.parameters.state_dict()
    replay.ring.rows[2:4, :, -2] = np.nan  # member 1's rewards
    agent.learn(replay, np.full(3, 4))
    metrics, after = agent.update(rollout), agent.policy.parameters.state_dict()
    assert metrics["failed"].tolist() == [False, True, False]
    assert metrics["updates"].tolist() == [4, 0, 4]
    for name in ("weights", "first_moment", "second_moment"):
        a, b = before[name], after[name]
        assert (a[1] == b[1]).all() and np.isfinite(b).all()
        assert (a[0] != b[0]).any() and (a[2] != b[2]).any()
