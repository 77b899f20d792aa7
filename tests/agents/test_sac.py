"""Soft actor-critic: members beside each other, what it refuses, and values that are known."""

from concurrent.futures import ThreadPoolExecutor, wait

import gymnasium
import numpy as np
import pytest

from slipstream.agents.sac.config import SACConfig
from slipstream.agents.sac.sac import SAC
from slipstream.core.errors import ConfigError
from slipstream.core.spec import Spec
from slipstream.experience.replay.replay import Replay
from slipstream.experience.rollout import Rollout
from slipstream.nets.compiled import loops
from slipstream.nets.policy_file import pack, unpack
from slipstream.vector.steps import Finals

SMALL = {"widths": (24, 16), "batch": 33, "replay_size": 200, "learning_starts": 20, "iteration": 5}


def spec_of(action=1, width=3, **fields):
    box = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
    return Spec(box, gymnasium.spaces.Box(-2, 3, (action,), np.float32), **fields)


def stepped(agent, spec, steps, replay=None, begin=0, run=None, learn=True):
    """Steps of every copy, whose numbers follow from the member's seed; learns after each."""
    n = agent.num_envs
    rollout = Rollout.of(spec, steps, agent.members, n, 0)
    rollout.valid[:] = True
    for m, seed in enumerate(agent.seeds.tolist()):
        e = slice(m * n, (m + 1) * n)
        for t in range(steps + 1):
            rng = np.random.default_rng((seed, begin + t))
            rollout.obs[t, e] = rng.standard_normal(rollout.obs[t, e].shape)
            if t < steps:
                rollout.reward[t, e] = rng.standard_normal(n)
                rollout.terminated[t, e] = rng.random(n) < 0.1
    if replay is None:
        replay = Replay(agent.config.replay(n), spec, agent.members, n)
        replay.begin(rollout.obs[0], None)
    nobody, extra = np.full(agent.members * n, -1), {} if run is None else {"run": run}
    for t in range(steps):
        agent.act(rollout, t)
        replay.write(rollout, t, Finals(rollout.obs[0, :0], np.zeros((0, 2), np.int64)), nobody)
        if learn and begin + t >= 5:
            agent.learn(replay, np.full(agent.members, n), **extra)
    return replay, rollout


def trained(seeds, config, spec, num_envs=2, steps=14, run=None):
    agent = SAC(config, spec, seeds, num_envs)
    _, rollout = stepped(agent, spec, steps, run=run)
    agent.update(rollout, 0.5)
    return agent


SETTINGS = [
    {},
    {"n_step": 3, "prioritised": True, "gradient_parts": 2, "max_grad_norm": 0.1},
    {"observation_normalization": True, "activation": "tanh", "widths": (9,), "batch": 70},
    {"reward_scaling": "on", "discount": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: str(list(s)))
def test_alone_or_in_company(same_members, settings):
    config, spec = SACConfig(**{**SMALL, **settings}), spec_of(3, 5)
    everyone = trained(range(24), config, spec)
    for chosen in ([0], [5, 6], [3, 4, 5, 6, 7, 8, 9]):
        same_members(trained(chosen, config, spec), chosen, everyone)


def test_members_have_their_own_settings(same_members):
    rates, tau, alpha = (1e-3, 1e-4, 3e-4), (0.01, 0.5, 0.1), (0.2, 0.1, 0.3)
    spec = spec_of()
    together = SACConfig(**SMALL, learning_rate=rates, target_rate=tau, temperature=alpha)
    everyone = trained(range(3), together, spec)
    for m in range(3):
        own = SACConfig(**SMALL, learning_rate=rates[m], target_rate=tau[m], temperature=alpha[m])
        same_members(trained([m], own, spec), [m], everyone)
    log_alpha = everyone.temperature.weights["log_alpha"][:, 0]
    assert np.exp(log_alpha) == pytest.approx(alpha)  # fixed ones stay


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_may_be_shared_out(same_members, parts):
    config, spec = SACConfig(**SMALL, gradient_parts=parts), spec_of(2)

    def crew(tasks):
        wait([pool.submit(task) for task in tasks])

    with ThreadPoolExecutor(3) as pool:
        shared = trained([4], config, spec, run=crew)
    same_members(shared, [0], trained([4], config, spec))


def test_goes_on_from_its_state(same_members):
    own = {"learning_rate_schedule": "linear", "reward_scaling": "on"}
    config, spec = SACConfig(**SMALL, **own), spec_of()
    whole = SAC(config, spec, [1, 2], 2)
    replay, rollout = stepped(whole, spec, 12)
    whole.update(rollout, 0.3)
    again = SAC(config, spec, [1, 2], 2)
    again.load_state_dict(whole.state_dict())
    copy = Replay(config.replay(2), spec, 2, 2)
    for ours, theirs in zip(copy.ring, replay.ring, strict=True):
        if isinstance(ours, np.ndarray):
            ours[...] = theirs
    for agent, memory in ((whole, replay), (again, copy)):
        agent.update(stepped(agent, spec, 8, memory, begin=12)[1], 0.6)
    same_members(again, [0, 1], whole)


def test_a_member_that_diverges_stops_alone():
    config, spec = SACConfig(**SMALL), spec_of()
    agents = [SAC(config, spec, [0, 1, 2], 2) for _ in range(2)]
    for sick, agent in enumerate(agents):
        replay, rollout = stepped(agent, spec, 12, learn=False)
        before = agent.state_dict()
        if sick:
            replay.ring.rows[2:4, :, -2] = np.nan  # rewards of member 1
        for _ in range(3):
            agent.learn(replay, np.ones(3, np.int64))
        metrics = agent.update(rollout)
        after = agent.state_dict()
        assert metrics["failed"].tolist() == [False, bool(sick), False]
        assert metrics["updates"].tolist() == [3, 0 if sick else 3, 3]
        same = (before["parameters.weights"] == after["parameters.weights"]).all(1)
        assert same.tolist() == [False, bool(sick), False]
    healthy, ill = (agent.state_dict() for agent in agents)
    for name, value in ill.items():
        assert value[[0, 2]].tobytes() == healthy[name][[0, 2]].tobytes(), name


def test_actions_of_the_warm_up_are_uniform():
    config, spec = SACConfig(**{**SMALL, "learning_starts": 3000}), spec_of(2)
    agent = SAC(config, spec, [0], 1000)
    _, rollout = stepped(agent, spec, 4, learn=False)
    uniform, drawn = rollout.actions[:3].reshape(-1), rollout.actions[3]
    edges = np.histogram(uniform, 10, (-1, 1))[0]
    assert edges.sum() == 6000 and abs(edges - 600).max() < 120
    assert np.ptp(drawn) > 0.5 and abs(drawn).max() <= 1
    agent.act(rollout, 3)
    received = agent._env_actions
    assert received == pytest.approx(2.5 * rollout.actions[3] + 0.5, abs=1e-5)


def test_a_drawn_action_has_its_density():
    """What is drawn follows tanh of a normal, and log_prob is its density."""
    config, spec = SACConfig(**{**SMALL, "learning_starts": 0}), spec_of(1)
    agent = SAC(config, spec, [3], 4000)
    rollout = Rollout.of(spec, 1, 1, 4000, 0)
    rollout.obs[0] = 0.7
    agent.act(rollout, 0)
    head = agent.policy.actor(4000).head(rollout.obs[0])[0, 0]
    action = rollout.actions[0, :, 0].astype(np.float64)
    u = np.arctanh(action)
    mean, std = float(head[0]), np.exp(float(head[1]))
    assert u.mean() == pytest.approx(mean, abs=4 * std / 60)
    assert u.std() == pytest.approx(std, rel=0.05)
    density = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    density -= np.log1p(-(action**2))
    small = abs(action) < 0.99  # beyond, float32 actions know too little of u
    assert rollout.log_prob[0][small] == pytest.approx(density[small], abs=1e-3)


def test_a_policy_travels():
    agent = trained([0], SACConfig(**SMALL), spec_of(2))
    other = unpack(*pack(agent.policy))
    obs = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    likely = agent.policy.act(obs)
    assert (other.act(obs) == likely).all()
    head = agent.policy.actor(7).head(obs)[0, :, :2]
    assert likely == pytest.approx(2.5 * np.tanh(head) + 0.5, abs=1e-5)
    for policy in (agent.policy, other):
        policy.reseed(5)
    drawn = agent.policy.act(obs, deterministic=False)
    assert (drawn == other.act(obs.astype(np.float64), deterministic=False)).all()
    assert (drawn != likely).all() and (abs(drawn - 0.5) <= 2.5).all()


def kept(agent, spec, reward, kinds):
    """A replay of uniform actions; kind 1 terminates, 0 is cut short, -1 goes on. [T, E]"""
    (steps, copies), n = kinds.shape, agent.num_envs
    rng, rollout = np.random.default_rng(1), Rollout.of(spec, steps, agent.members, n, 0)
    replay = Replay(agent.config.replay(n), spec, agent.members, n)
    rollout.valid[:] = True
    rollout.obs[:steps, :, 0], rollout.obs[..., 1] = kinds, 1.0
    rollout.actions[:] = rng.uniform(-1, 1, rollout.actions.shape)
    rollout.reward[:] = reward(rollout.actions[..., 0])
    rollout.terminated[:], rollout.truncated[:] = kinds == 1, kinds == 0
    replay.begin(rollout.obs[0], None)
    for t in range(steps):
        cut = np.flatnonzero(kinds[t] == 0)
        place = np.full(copies, -1)
        place[cut] = np.arange(len(cut))
        replay.write(rollout, t, Finals(rollout.obs[t, cut], np.zeros((0, 2), np.int64)), place)
    return replay


PROBE = {
    "widths": (32, 32),
    "batch": 64,
    "replay_size": 4000,
    "learning_rate": 3e-3,
    "temperature": 1e-4,
    "discount": 0.5,
    "target_rate": 0.1,
}


@pytest.mark.parametrize("n_step", [1, 3])
def test_known_values(n_step):
    """Every step earns 1. With a discount of 1/2 it is worth 1 where it terminates, 2 where it is
    cut short in a state like its own, and 1 + (1 + 2 + x) / 6 = x = 1.8 where any may follow."""
    spec = spec_of(1, 2)
    agent = SAC(SACConfig(**PROBE, n_step=n_step), spec, [0, 1], 50)
    kinds = np.random.default_rng(0).integers(-1, 2, (40, 100))
    replay = kept(agent, spec, np.ones_like, kinds)
    for _ in range(1500):
        agent.learn(replay, np.ones(2, np.int64))
    x = np.zeros((2, 3, agent.critics.table[0, 0]), np.float32)
    x[..., 1], x[..., 2:4] = (1.0, 0.0, -1.0), 1.0
    out, space = np.zeros((2, 3, 8), np.float32), np.zeros(3 * 72, np.float32)
    for group in agent.critics.groups:
        loops()["forward_members"](group.flat, agent.critics.table, True, x, space, out)
        assert out[..., 0] == pytest.approx(np.array([[1.0, 2.0, 1.8]] * 2), abs=0.12)


def test_the_best_action_is_found():
    spec = spec_of(1, 2)
    agent = SAC(SACConfig(**PROBE), spec, [0, 1], 50)
    replay = kept(agent, spec, lambda a: -((a - 0.4) ** 2), np.ones((40, 100)))
    for _ in range(1500):
        agent.learn(replay, np.ones(2, np.int64))
    likely = agent.policy.act(np.ones((2, 1, 2), np.float32))
    assert (likely - 0.5) / 2.5 == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (gymnasium.spaces.Discrete(3), "dqn or ppo"),
        (gymnasium.spaces.MultiDiscrete([3, 2]), "{name: ppo}"),
        (gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), "finite bounds"),
    ],
)
def test_what_does_not_fit_is_refused(action, words):
    spec = Spec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), action)
    with pytest.raises(ConfigError, match="sac") as caught:
        SAC(SACConfig(**SMALL), spec, [0], 1)
    assert words in str(caught.value)


def test_a_replay_smaller_than_a_batch_is_refused():
    with pytest.raises(ConfigError, match="batch"):
        SACConfig(batch=300, replay_size=200).check(1)


def test_parts_follow_from_a_members_own_sizes():
    assert SACConfig().parts(1) == SACConfig().parts(64) == 2
    assert SACConfig(widths=(32, 32)).parts(1) == 1
    assert SACConfig(widths=(32, 32), gradient_parts=3).parts(1) == 3
