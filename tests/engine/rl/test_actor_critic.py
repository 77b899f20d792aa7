"""SAC and TD3: members beside each other, what they refuse, and values that are known."""

from concurrent.futures import ThreadPoolExecutor, wait

import gymnasium
import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.agents.actor_critic.config import ActorCriticConfig
from slipstream.rl.agents.agent_registry import load_agent, load_config
from slipstream.rl.experience.replay.replay import Replay
from slipstream.rl.experience.rollout import Rollout
from slipstream.rl.nets.layers import loops
from slipstream.rl.nets.policy_file import pack, unpack

AGENTS = pytest.mark.parametrize("name", ["sac", "td3"])
SMALL = {
    "net_arch": (24, 16),
    "batch_size": 33,
    "buffer_size": 200,
    "learning_starts": 20,
    "iteration": 5,
}


def config_of(name, **settings):
    return load_config(name)[1](**{**SMALL, **settings})


def spec_of(action=1, width=3, **fields):
    box = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
    return EnvSpec(box, gymnasium.spaces.Box(-2, 3, (action,), np.float32), **fields)


def stepped(agent, spec, steps, replay=None, begin=0, run=None, learn=True):
    """Steps of every copy, whose numbers follow from the member's seed; learns after each."""
    n = agent.num_envs
    rollout = Rollout(spec, steps, agent.members, n, 0)
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
    nobody, extra = np.full(agent.members * n, -1), {} if run is None else {"run_tasks": run}
    for t in range(steps):
        agent.act(rollout, t)
        replay.write(rollout, t, FinalObs(rollout.obs[0, :0], np.zeros((0, 2), np.int64)), nobody)
        if learn and begin + t >= 5:
            agent.learn(replay, np.full(agent.members, n), **extra)
    return replay, rollout


def trained(seeds, config, spec, num_envs=2, steps=14, run=None):
    agent = load_agent(config)(config, spec, seeds, num_envs)
    _, rollout = stepped(agent, spec, steps, run=run)
    agent.update(rollout, 0.5)
    return agent


SETTINGS = [
    {},
    {"n_step": 3, "prioritised": True, "max_grad_norm": 0.1},
    {"observation_normalization": True, "activation": "tanh", "net_arch": (9,), "batch_size": 70},
    {"reward_scaling": "on", "gamma": 0.8},
]


@AGENTS
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: str(list(s)))
def test_alone_or_in_company(same_members, name, settings, monkeypatch):
    if "n_step" in settings:
        monkeypatch.setattr(ActorCriticConfig, "WORK_TO_SHARE", 1)
    config, spec = config_of(name, **settings), spec_of(3, 5)
    everyone = trained(range(24), config, spec)
    for chosen in ([0], [5, 6], [3, 4, 5, 6, 7, 8, 9]):
        same_members(trained(chosen, config, spec), chosen, everyone)


NOISY = {"sac": {}, "td3": {"exploration_noise": 0.5}}
OWN = {
    "sac": {"ent_coef": (0.2, 0.1, 0.3)},
    "td3": {
        "exploration_noise": (0.3, 0.0, 0.1),
        "target_policy_noise": (0.1, 0.2, 0.3),
        "target_noise_clip": (0.4, 0.1, 0.5),
    },
}


@AGENTS
def test_members_have_their_own_settings(same_members, name):
    lists = {"learning_rate": (1e-3, 1e-4, 3e-4), "tau": (0.01, 0.5, 0.1), **OWN[name]}
    spec = spec_of()
    everyone = trained(range(3), config_of(name, **lists), spec)
    for m in range(3):
        own = config_of(name, **{key: values[m] for key, values in lists.items()})
        same_members(trained([m], own, spec), [m], everyone)
    if name == "sac":
        log_alpha = everyone.temperature.weights["log_alpha"][:, 0]
        assert np.exp(log_alpha) == pytest.approx(lists["ent_coef"])  # fixed ones stay


@AGENTS
def test_parts_may_be_shared_out(same_members, name, monkeypatch):
    monkeypatch.setattr(ActorCriticConfig, "WORK_TO_SHARE", 1)
    config, spec = config_of(name), spec_of(2)
    assert config.parts(1) == 2

    def crew(tasks):
        wait([pool.submit(task) for task in tasks])

    with ThreadPoolExecutor(3) as pool:
        shared = trained([4], config, spec, run=crew)
    same_members(shared, [0], trained([4], config, spec))


@AGENTS
def test_goes_on_from_its_state(same_members, name):
    own = {"learning_rate_schedule": "linear", "reward_scaling": "on"}
    config, spec = config_of(name, **own), spec_of()
    whole = load_agent(config)(config, spec, [1, 2], 2)
    replay, rollout = stepped(whole, spec, 12)
    whole.update(rollout, 0.3)
    again = load_agent(config)(config, spec, [1, 2], 2)
    again.load_state_dict(whole.state_dict())
    copy = Replay(config.replay(2), spec, 2, 2)
    for ours, theirs in zip(copy.ring, replay.ring, strict=True):
        if isinstance(ours, np.ndarray):
            ours[...] = theirs
    for agent, memory in ((whole, replay), (again, copy)):
        agent.update(stepped(agent, spec, 8, memory, begin=12)[1], 0.6)
    same_members(again, [0, 1], whole)


@AGENTS
def test_a_member_that_diverges_stops_alone(name):
    config, spec = config_of(name), spec_of()
    agents = [load_agent(config)(config, spec, [0, 1, 2], 2) for _ in range(2)]
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


@AGENTS
def test_actions_of_the_warm_up_are_uniform(name):
    config, spec = config_of(name, learning_starts=3000, **NOISY[name]), spec_of(2)
    agent = load_agent(config)(config, spec, [0], 1000)
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
    config, spec = config_of("sac", learning_starts=0), spec_of(1)
    agent = load_agent(config)(config, spec, [3], 4000)
    rollout = Rollout(spec, 1, 1, 4000, 0)
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


def test_noise_is_added_to_what_the_policy_does():
    """Normal, of the deviation that was asked for, and cut at the bounds."""
    config, spec = config_of("td3", learning_starts=0, exploration_noise=(0.2, 0.0)), spec_of(1)
    agent = load_agent(config)(config, spec, [3, 4], 4000)
    rollout = Rollout(spec, 1, 2, 4000, 0)
    rollout.obs[0] = 0.7
    received = agent.act(rollout, 0)
    head = agent.policy.actor(4000).head(rollout.obs[0])[:, 0, 0]
    noise = rollout.actions[0].reshape(2, 4000) - np.tanh(head.astype(np.float64))[:, None]
    assert noise[0].std() == pytest.approx(0.2, rel=0.05) and abs(noise[0].mean()) < 0.015
    assert abs(noise[1]).max() < 1e-6
    wide = config_of("td3", learning_starts=0, exploration_noise=5.0)
    drawn = load_agent(wide)(wide, spec, [3, 4], 4000)
    drawn.act(rollout, 0)
    ends = abs(rollout.actions[0])
    assert ends.max() == 1.0 and (ends == 1.0).mean() > 0.5
    assert received.min() >= -2 and received.max() <= 3


@AGENTS
def test_a_policy_travels(name):
    agent = trained([0], config_of(name), spec_of(2))
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
    assert (drawn != likely).all() == agent.policy.actions.is_stochastic == (name == "sac")
    assert (abs(drawn - 0.5) <= 2.5).all()


def kept(agent, spec, reward, kinds):
    """A replay of uniform actions; kind 1 terminates, 0 is cut short, -1 goes on. [T, E]"""
    (steps, copies), n = kinds.shape, agent.num_envs
    rng, rollout = np.random.default_rng(1), Rollout(spec, steps, agent.members, n, 0)
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
        replay.write(rollout, t, FinalObs(rollout.obs[t, cut], np.zeros((0, 2), np.int64)), place)
    return replay


PROBE = {
    "net_arch": (32, 32),
    "batch_size": 64,
    "buffer_size": 4000,
    "learning_rate": 3e-3,
    "gamma": 0.5,
    "tau": 0.1,
}


def probing(name, spec, **settings):
    config = load_config(name)[1](**PROBE, **OF_PROBES[name], **settings)
    return load_agent(config)(config, spec, [0, 1], 50)


OF_PROBES = {"sac": {"ent_coef": 1e-4}, "td3": {"target_policy_noise": 0.05}}


@AGENTS
@pytest.mark.parametrize("n_step", [1, 3])
def test_known_values(name, n_step):
    """Every step earns 1. With a discount of 1/2 it is worth 1 where it terminates, 2 where it is
    cut short in a state like its own, and 1 + (1 + 2 + x) / 6 = x = 1.8 where any may follow."""
    spec = spec_of(1, 2)
    agent = probing(name, spec, n_step=n_step)
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


@AGENTS
def test_the_best_action_is_found(name):
    spec = spec_of(1, 2)
    agent = probing(name, spec)
    replay = kept(agent, spec, lambda a: -((a - 0.4) ** 2), np.ones((40, 100)))
    for _ in range(1500):
        agent.learn(replay, np.ones(2, np.int64))
    likely = agent.policy.act(np.ones((2, 1, 2), np.float32))
    assert (likely - 0.5) / 2.5 == pytest.approx(0.4, abs=0.1)


@AGENTS
@pytest.mark.parametrize(
    ("action", "words"),
    [
        (gymnasium.spaces.Discrete(3), "dqn or ppo"),
        (gymnasium.spaces.MultiDiscrete([3, 2]), "{name: ppo}"),
        (gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), "needs bounded actions"),
    ],
)
def test_what_does_not_fit_is_refused(name, action, words):
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (3,), np.float32), action)
    config = config_of(name)
    with pytest.raises(ConfigError, match=name) as caught:
        load_agent(config)(config, spec, [0], 1)
    assert words in str(caught.value)


def test_images_are_refused_with_what_fits():
    image = gymnasium.spaces.Box(0, 255, (1, 8, 8), np.uint8)
    with pytest.raises(ConfigError, match=r"td3 does not support image.*ppo"):
        config_of("td3").check_spaces(EnvSpec(image, gymnasium.spaces.Box(-1, 1, (1,), np.float32)))


@AGENTS
def test_a_replay_smaller_than_a_batch_is_refused(name):
    with pytest.raises(ConfigError, match="batch_size"):
        config_of(name, batch_size=300, buffer_size=200).check(1)


@AGENTS
def test_parts_follow_from_a_members_own_sizes(name):
    config = load_config(name)[1]
    assert config().parts(1) == config().parts(64) == 2
    assert config(net_arch=(32, 32)).parts(1) == 1


def test_the_actor_waits_for_its_turn():
    """It and all targets are moved at every third update; the critics at each."""
    config, spec = config_of("td3", target_update_interval=3), spec_of()
    agent = load_agent(config)(config, spec, [0], 2)
    replay, rollout = stepped(agent, spec, 12, learn=False)
    changed = []
    for _ in range(6):
        before = agent.state_dict()
        agent.learn(replay, np.ones(1, np.int64))
        after = agent.state_dict()
        names = "parameters.weights", "target.actor", "target.critic_1", "critic_1.weights"
        changed.append([bool((before[key] != after[key]).any()) for key in names])
    turns = 2 * [[False, False, False, True]] + [4 * [True]]
    assert changed == 2 * turns
    metrics = agent.update(rollout)
    assert metrics["updates"] == 6 and metrics["gradient_norm"] > 0


def test_the_bounds_that_are_advised_for_unbounded_actions_work(tmp_path):
    class Unbounded(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            assert np.abs(action).max() <= 5.0
            return np.zeros(2, np.float32), 0.0, True, False, {}

    settings = {"agent.name": "sac", "agent.learning_starts": 8}
    with pytest.raises(ConfigError) as caught:
        slipstream.train(Unbounded, total_timesteps=64, overrides=settings)
    advice = str(caught.value).split("`")[-2]
    made = eval(advice, {"gymnasium": gymnasium, "make": Unbounded, "SIZE": 5.0})
    run = slipstream.train(
        made, total_timesteps=64, num_envs=1, overrides=settings, report=False, out=tmp_path / "run"
    )
    assert run.result is not None
