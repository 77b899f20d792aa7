"""ElegantRL's two vector protocols, and its PPO on them."""

import gymnasium
import numpy as np
import pytest
import torch

from slipstream.adapters.batch import ActionError
from slipstream.adapters.elegantrl import ElegantEnv, env_args
from slipstream.api import make_adapter
from slipstream.core.errors import ConfigError


def test_the_new_protocol(handed):
    env = ElegantEnv("cartpole", 3, backend="serial", settings={"max_steps": 5})
    assert (env.state_dim, env.action_dim, env.if_discrete, env.max_step) == (4, 2, True, 5)
    state, info = env.reset()
    assert state.shape == (3, 4) and state.dtype == torch.float32 and info == {}
    kept = [(state, state.clone())]
    for action in (torch.zeros(3, dtype=torch.int64), np.zeros((3, 1), np.int64)) * 2:
        state, reward, terminal, truncate, info = env.step(action)
        kept.append((state, state.clone()))
    assert reward.dtype == torch.float32 and terminal.dtype == torch.bool and info == {}
    state, _, terminal, truncate, info = env.step(torch.zeros(3, dtype=torch.int64))
    assert truncate.all() and not terminal.any()
    assert info["ended"].tolist() == [0, 1, 2]
    assert info["final_state"].shape == (3, 4)
    assert not torch.equal(info["final_state"], state)
    assert all(torch.equal(now, then) for now, then in kept)


def test_actions_are_stretched_to_the_bounds():
    env = ElegantEnv("pendulum", 2, protocol="old", backend="serial")
    other = ElegantEnv("pendulum", 2, protocol="old", backend="serial")
    assert torch.equal(env.reset(), other.reset())
    state, _, done, info = env.step(torch.tensor([[0.5], [-1.0]]))
    came = other.batch.step(np.array([[1.0], [-2.0]], np.float32))  # torque within 2
    assert torch.equal(state, torch.from_numpy(came.obs))
    assert done.tolist() == [False, False] and info == {}
    with pytest.raises(ActionError, match="floats from -1 to 1"):
        env.step(torch.tensor([[1.5], [0.0]]))


def test_a_single_copy_is_reset_by_its_caller():
    env = ElegantEnv("cartpole", 1, protocol="old", backend="serial", settings={"max_steps": 2})
    state = env.reset()
    assert isinstance(state, np.ndarray) and state.shape == (4,)
    assert env.step(0)[2] is False
    _, reward, done, _ = env.step(np.int64(0))
    assert done is True and reward == 1.0
    env.reset()
    assert env.step(1)[2] is False


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_gymnasium_environments_through_workers(backend, handed):
    kwargs = {"max_episode_steps": 6}
    env = make_adapter("elegantrl", "gym:CartPole-v1", 3, backend=backend, workers=2, kwargs=kwargs)
    alone = [gymnasium.make("CartPole-v1", **kwargs) for _ in range(3)]
    try:
        assert (env.state_dim, env.action_dim, env.if_discrete, env.max_step) == (4, 2, True, 6)
        state, info = env.reset()
        expected = np.stack([one.reset(seed=e)[0] for e, one in enumerate(alone)])
        assert np.array_equal(state.numpy(), expected) and info == {}
        for t in range(6):
            actions = torch.tensor([t % 2, 1, (t + 1) % 2])
            state, reward, terminal, truncate, info = env.step(actions)
            came = [one.step(int(a)) for one, a in zip(alone, actions, strict=True)]
            if t < 5:
                assert np.array_equal(state.numpy(), np.stack([row[0] for row in came]))
        assert truncate.all() and not terminal.any() and reward.dtype == torch.float32
        assert np.array_equal(info["final_state"].numpy(), np.stack([row[0] for row in came]))
        assert not torch.equal(state, info["final_state"])
    finally:
        env.close()


def test_choices_and_dicts_of_gymnasium_environments_become_rows():
    env = make_adapter("elegantrl", "gym:Blackjack-v1", 2, backend="serial")
    assert env.state_dim == 32 + 11 + 2 and env.action_dim == 2
    state, _ = env.reset()
    assert state.sum(1).tolist() == [3.0, 3.0]


def test_environments_that_do_not_fit_are_refused(kernel_file):
    with pytest.raises(ConfigError, match="one player with flat observations"):
        ElegantEnv(kernel_file("duel"), 2, backend="serial")
    with pytest.raises(ConfigError, match="`protocol` must be"):
        ElegantEnv("cartpole", 2, protocol="newest")


@pytest.mark.peers
def test_its_ppo_trains_on_it(tmp_path, capsys):
    pytest.importorskip(
        "elegantrl", reason="pip install --no-deps -r requirements/peers.lock has ElegantRL"
    )
    from elegantrl.agents import AgentPPO
    from elegantrl.train.config import Config
    from elegantrl.train.run import train_agent

    threads = torch.get_num_threads()
    args = Config(AgentPPO, ElegantEnv, env_args("pendulum", 4, protocol="old"))
    args.cwd, args.gpu_id, args.num_threads = str(tmp_path / "run"), -1, 1
    args.horizon_len, args.batch_size, args.break_step = 64, 32, 300
    args.eval_per_step, args.eval_times, args.net_dims = 200, 2, (16, 16)
    try:
        train_agent(args)
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
    rows = np.load(tmp_path / "run" / "recorder.npy")
    assert rows[-1, 0] >= 200 and np.isfinite(rows).all()
    assert (rows[:, 1] < 0).all() and "SavedDir" in capsys.readouterr().out
