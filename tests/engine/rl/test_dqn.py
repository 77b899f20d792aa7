"""DQN in its loop: the same bits in any company and any pass, masks, resuming, what is refused."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, KernelError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.signals import Interrupted
from slipstream.rl.agents.dqn.config import DQNConfig
from slipstream.rl.agents.dqn.dqn import Explorer, get_epsilon
from slipstream.rl.agents.dqn.torch_dqn import TorchDQN
from slipstream.rl.experience.rollout import Rollout
from slipstream.training.callbacks.events import Updated
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import choose_num_envs
from slipstream.training.shard import Shard
from slipstream.training.trainer import resume, train

SMALL = {
    "net_arch": (16, 8),
    "batch_size": 16,
    "buffer_size": 150,
    "learning_starts": 20,
    "utd_ratio": 0.5,
    "exploration_steps": 200,
    "iteration": 30,
    "target_update_interval": 7,
}

# Takes coins in turn; what is not there must not be taken, and whoever takes it pays.
COINS = """
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from slipstream.core import config
from slipstream.kernels import kernel
from slipstream.core.random import integer
from slipstream.kernels.spec import Metric, EnvSpec


class Config(config.Config):
    coins: int = 11


class Params(NamedTuple):
    coins: int


class Data(NamedTuple):
    none: np.ndarray


STATE = np.dtype([("key", "u8"), ("counter", "u8"), ("left", "i8"), ("broken", "f8")], align=True)


def load(config):
    return kernel.KernelData(Data(np.zeros(1)), {"train": (Params(config.coins),)})


def reset(s, p, d):
    s.left = p.coins - integer(s, 3)


def step(s, action, p, d):
    taken = int(action[0]) - 4
    if taken > s.left:
        s.broken = s.broken + 1.0
    s.left = max(s.left - taken, 0)
    if s.left > 0:
        s.left = s.left - (1 + integer(s, min(3, s.left)))
    return (1.0 if s.left == 0 else -0.1), s.left == 0, False


def observe(s, p, d, out):
    out[0] = float(s.left)


def mask(s, p, d, out):
    for i in range(3):
        out[i] = i + 1 <= s.left


def spec(p, d):
    return EnvSpec(
        observation_space=spaces.Box(0.0, 20.0, (1,), np.float32),
        action_space=spaces.Discrete(3, start=5),
        metrics=(Metric("broken", "forbidden choices"),),
        max_episode_steps=4,
    )
"""


@pytest.fixture(scope="module")
def coins(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernels") / "coins.py"
    path.write_text(COINS)
    return str(path)


def shard_of(name, seeds, num_envs=1, iterations=3, fused=True, learner="auto", **settings):
    """Some members after some iterations."""
    config = DQNConfig(**{**SMALL, **settings})
    environment = resolve_environment(name, {})
    members = range(len(seeds))
    shard = Shard(environment, config, seeds, members, num_envs, learner=learner)
    if not fused:
        shard.collector._fused, shard.collector._fused_loop = (lambda run: None), None
    shard.reset()
    for i in range(iterations):
        shard.iterate(i / iterations)
    return shard


def ring_of(shard, m=None):
    """The transitions of all members or of one."""
    rows = shard.collector.replay.ring.rows
    each = len(rows) // len(shard.members)
    return rows if m is None else rows[m * each : (m + 1) * each]


def assert_same(one, chosen, other):
    """Whether the members of `one` are, bit for bit, members `chosen` of `other`."""
    mine, theirs = one.get_state(), other.get_state()
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        by_member = theirs[name].reshape(len(other.members), -1, *theirs[name].shape[1:])
        same = by_member[chosen].reshape(values.shape)
        assert values.tobytes() == np.ascontiguousarray(same).tobytes(), name
    for k, m in enumerate(chosen):
        assert ring_of(one, k).tobytes() == ring_of(other, m).tobytes()


SETTINGS = {
    "plain": {"num_envs": 1},
    "everything": {
        "num_envs": 3,
        "prioritised": True,
        "n_step": 3,
        "dueling": True,
        "tau": 0.1,
        "learning_rate_schedule": "linear",
        "train_freq": 4,
    },
    "no moments": {"num_envs": 2, "double": False, "observation_normalization": False},
}


@pytest.mark.parametrize("environment", ["cartpole", pytest.param("coins", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", SETTINGS)
def test_alone_in_company_and_unfused(case, environment, coins):
    name, settings = coins if environment == "coins" else environment, SETTINGS[case]
    everyone = shard_of(name, range(24), **settings)
    assert everyone.collector._fused_loop is not None
    assert everyone.agent.policy.parameters.steps.min() > 10
    for chosen in ([5], [3, 17], list(range(7))):
        assert_same(shard_of(name, chosen, **settings), chosen, everyone)
    unfused = shard_of(name, [17, 3, 4], fused=False, **settings)
    assert unfused.collector._fused_loop is None
    assert_same(unfused, [17, 3, 4], everyone)


def test_the_interpreted_kernel_gives_the_same():
    config, members = DQNConfig(**SMALL), range(2)
    environment, shards = resolve_environment("cartpole", {}), []
    for backend in ("compiled", "serial"):
        shard = Shard(environment, config, [3, 4], members, 2, backend=backend)
        shard.reset()
        shard.iterate(0.0)
        shards.append(shard)
    assert_same(shards[1], [0, 1], shards[0])


def test_members_have_their_own_settings():
    own = {
        "learning_rate": (1e-3, 1e-4, 1e-2),
        "gamma": (0.9, 0.99, 0.5),
        "tau": (1.0, 0.2, 0.5),
        "max_grad_norm": (0.1, 1.0, 10.0),
        "adam_eps": (1e-8, 1e-4, 1e-5),
        "importance_exponent": (0.2, 0.4, 1.0),
        "exploration_initial_eps": (1.0, 0.5, 0.2),
        "exploration_final_eps": (0.3, 0.01, 0.0),
        "exploration_steps": (0, 30, 1000),
    }
    together = shard_of("cartpole", range(3), prioritised=True, **own)
    for m in range(3):
        alone = {name: values[m] for name, values in own.items()}
        assert_same(shard_of("cartpole", [m], prioritised=True, **alone), [m], together)


def test_epsilon_falls_over_a_members_own_steps():
    settings = np.array([[1.0, 0.1, 100.0], [0.5, 0.5, 0.0]])
    by = Explorer(None, None, np.zeros(2, np.int64), settings, 20, 1, 0)
    found = {}
    for steps in (0, 19, 20, 50, 100, 5000):
        by.steps[:] = steps
        found[steps] = [get_epsilon(by, m) for m in range(2)]
    assert found[0] == found[19] == [1.0, 1.0]  # the warm-up
    assert found[20] == pytest.approx([0.82, 0.5]) and found[50] == pytest.approx([0.55, 0.5])
    assert found[100] == found[5000] == pytest.approx([0.1, 0.5])
    agent = shard_of("cartpole", [0], iterations=1, learning_starts=20, exploration_steps=100).agent
    agent.steps[:] = 50
    assert agent.epsilon == pytest.approx([1 - 0.95 * 0.5])


@pytest.mark.parametrize("form", ["compiled", "torch"])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_forbidden_choices_are_never_taken(coins, form, epsilon):
    rates = {"exploration_initial_eps": epsilon, "exploration_final_eps": epsilon}
    shard = shard_of(coins, [1, 2], 4, learner=form, learning_starts=0, **rates)
    assert isinstance(shard.agent, TorchDQN) == (form == "torch")
    rollout = shard.collector.experience
    allowed = np.take_along_axis(rollout.mask[:-1], rollout.actions, 2)
    assert allowed.all() and not rollout.mask[:-1].all()
    assert shard.agent.policy.parameters.steps.min() > 20
    drawn = np.array([(rollout.actions == a).mean() for a in range(3)])
    assert drawn.min() > 0.15 if epsilon else True  # those allowed are alike


def test_random_choices_are_alike_among_those_allowed(coins):
    shard = shard_of(coins, [7], 4, 1, iteration=3000, learning_starts=10**9)
    rollout = shard.collector.experience
    three = rollout.mask[:-1].all(2)
    shares = [(rollout.actions[three] == a).mean() for a in range(3)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.02)
    two = rollout.mask[:-1].sum(2) == 2
    shares = [(rollout.actions[two] == a).mean() for a in range(3)]
    assert shares == pytest.approx([0.5, 0.5, 0.0], abs=0.03)


def test_both_forms_explore_alike(coins):
    shard = shard_of(coins, [1, 2], 3, 2, learning_starts=0)
    spec = resolve_environment(coins, {}).spec
    torch_form = TorchDQN(shard.agent.config, spec, [1, 2], 3)
    torch_form.load_state_dict(shard.agent.state_dict())
    torch_form.exploration[:] = shard.agent.exploration[:] = [0.5, 0.5, 0.0]
    ours, theirs = (Rollout(spec, 200, 2, 3, 3) for _ in range(2))
    draw = np.random.default_rng(0)
    ours.obs[:] = draw.uniform(0, 12, ours.obs.shape)
    ours.mask[:] = draw.random(ours.mask.shape) < 0.6
    ours.mask[..., 1] = True
    theirs.obs[:], theirs.mask[:] = ours.obs, ours.mask
    for t in range(200):
        sent = shard.agent.act(ours, t).copy()
        assert np.array_equal(torch_form.act(theirs, t), sent)
        assert np.array_equal(sent, ours.actions[t] + 5)
    assert np.array_equal(ours.actions, theirs.actions)


def config_of(env, members=1, steps=600, num_envs=2, **overrides):
    agent = {"name": "dqn", **SMALL, "net_arch": [16, 8]}
    training = {"members": members, "num_envs": num_envs, "total_timesteps": steps}
    sections = {"env": env, "agent": agent, "training": training, "evaluation": {"episodes": 5}}
    return resolve(sections, {"training.checkpoint_every": 0.2, **overrides})


def trained(config, path):
    run = Run.create(config, path)
    try:
        train(run.config, run)
    finally:
        run.close()
    return run


def state_of(run):
    return checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]


def assert_same_state(one, other):
    left, right = state_of(one), state_of(other)
    assert left.keys() == right.keys()
    for name, values in left.items():
        assert values.tobytes() == right[name].tobytes(), name


class StopAt:
    """Asks the run to stop at iteration n, as a signal would."""

    def __init__(self, n):
        self.n = n

    def __call__(self, event):
        if isinstance(event, Updated) and event.progress.iterations == self.n:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "own",
    [
        {"agent.buffer_size": 5000},
        pytest.param(
            {"agent.prioritised": True, "agent.dueling": True, "training.learner": "torch"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                **{"agent.prioritised": True, "agent.n_step": 3, "agent.reward_scaling": "on"},
                "agent.learning_rate_schedule": "linear",
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["not wrapped", "the torch form", "wrapped"],
)
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, own):
    config = config_of({"name": "cartpole", "max_steps": 40}, 2, **own)
    whole = trained(config, tmp_path / "whole")
    run = Run.create(config, tmp_path / "stopped")
    with pytest.raises(Interrupted):
        train(run.config, run, [StopAt(4)])
    run.close()
    again = Run.open(run.path)
    resume(again)
    again.close()
    assert_same_state(whole, again)


@pytest.mark.slow
def test_shards_change_nothing(tmp_path):
    one, two = (
        trained(config_of("cartpole", 3, **{"training.shards": n}), tmp_path / f"{n}")
        for n in (1, 2)
    )
    assert_same_state(one, two)


@pytest.mark.slow
def test_a_gymnasium_environment_is_learned_from(tmp_path):
    run = trained(config_of("gym:CartPole-v1", 2), tmp_path / "run")
    assert run.metrics()["updates"][-1] > 200
    assert np.isfinite(run.result["members"][0]["best_score"])


def test_one_copy_is_what_auto_chooses():
    config = resolve("probes", {"agent.name": "dqn", "training.total_timesteps": 200_000})
    choice = choose_num_envs(config, resolve_environment("probes", {}))
    assert choice.num_envs == 1 and "1 environment per member" in choice.reason
    assert resolve("cartpole", {"agent.name": "dqn"}).training.num_envs == 1


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="smaller than a batch of 16"):
        config_of("cartpole", **{"agent.buffer_size": 15})
    with pytest.raises(ConfigError, match="longer than the replay"):
        config_of("cartpole", **{"agent.buffer_size": 40, "agent.n_step": 30})
    for name, action, fit in [
        ("pendulum", "Box", "sac, td3 or ppo"),
        ({"name": "probes", "probe": "switches"}, "MultiDiscrete", "Agents that fit: ppo"),
    ]:
        config = config_of(name)
        environment = resolve_environment(config.env_name, config.env_settings)
        with pytest.raises(ConfigError, match=rf"got {action}.*{fit}"):
            Shard(environment, config.agent, [0], range(1), 2)
    with pytest.raises(ConfigError, match="did you mean `dueling`"):
        config_of("cartpole", **{"agent.duelling": True})
    with pytest.raises(ConfigError, match="lists 2 numbers for 3 members"):
        config_of("cartpole", 3, **{"agent.exploration_final_eps": [0.1, 0.2]})


@pytest.mark.slow
def test_a_mask_that_allows_nothing_is_named(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text(COINS.replace("i + 1 <= s.left", "i + 1 <= s.left - 2"))
    with pytest.raises(KernelError, match=r"nothing\.py"):
        shard_of(str(path), [0], 2)
