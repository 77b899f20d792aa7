import numpy as np
import pytest
import torch

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError
from slipstream.rl.agents.ppo.config import PPOConfig, update_bytes
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.agents.ppo.torch_ppo import TorchPPO
from slipstream.rl.experience.rollout import Rollout


def play(agent, rollout, iterations, reward):
    """One-step episodes: the observation is noise, the reward a function of it and the action."""
    rng = np.random.default_rng(0)
    rollout.terminated[:] = True
    for i in range(iterations):
        rollout.obs[:] = rng.standard_normal(rollout.obs.shape)
        for t in range(rollout.n_steps):
            rollout.reward[t] = reward(rollout.obs[t], agent.act(rollout, t))
        metrics = agent.update(rollout, i / iterations)
    return metrics


def test_choices_that_follow_the_observation_are_learned(experience):
    spec = experience.spec((4,))
    agent = PPO(PPOConfig(n_steps=16, batch_size=64, learning_rate=3e-3), spec, [0, 1, 2], 16)
    rollout = Rollout(spec, 16, 3, 16)

    def reward(obs, action):
        best = np.where(obs[:, 0] > 0.4, 2, np.where(obs[:, 0] < -0.4, 0, 1))
        return (action[:, 0] == best).astype(np.float32)

    play(agent, rollout, 40, reward)
    obs = np.random.default_rng(1).standard_normal((3 * 200, 4)).astype(np.float32)
    score = reward(obs, agent.policy.act_rows(obs)).reshape(3, 200).mean(1)
    assert (score > 0.9).all()


def test_a_continuous_target_is_learned(experience):
    spec = experience.spec((3,), "scalar")
    agent = PPO(PPOConfig(n_steps=16, batch_size=64, learning_rate=3e-3), spec, [0, 1], 16)
    rollout = Rollout(spec, 16, 2, 16)

    def reward(obs, action):
        return -np.abs(action[:, 0] - np.clip(obs[:, 1], -1.5, 1.5))

    play(agent, rollout, 60, reward)
    obs = np.random.default_rng(1).standard_normal((2 * 200, 3)).astype(np.float32)
    assert reward(obs, agent.policy.act_rows(obs)).mean() > -0.25  # acting 0 scores about -0.77


def test_a_time_limit_is_not_an_end(experience):
    # Reward 1 a step, cut short every step: the value must be 1 / (1 - gamma), not 1.
    spec = experience.spec((1,))
    config = PPOConfig(
        n_steps=8, batch_size=32, learning_rate=1e-2, gamma=0.5, observation_normalization=False
    )
    agent = PPO(config, spec, [0], 8)
    rollout = Rollout(spec, 8, 1, 8)
    rollout.reward[:] = 1
    rollout.truncated[:] = True
    rollout.final_obs = np.zeros((64, 1), np.float32)
    rollout.final_index = np.ascontiguousarray(np.argwhere(rollout.truncated))
    for _ in range(150):
        for t in range(8):
            agent.act(rollout, t)
        agent.update(rollout)
    assert abs(float(agent.policy.actor(8).value(rollout.obs[0])[0, 0, 0]) - 2.0) < 0.05


def test_whole_gradient_agrees_with_autograd(experience):
    spec = experience.spec((5,), "box")
    clip, ent_coef, vf_coef = 0.2, 0.03, 0.7
    config = PPOConfig(
        n_steps=16, batch_size=96, n_epochs=1, ent_coef=ent_coef, vf_coef=vf_coef,
        clip_range=clip, max_grad_norm=None, learning_rate=1e-12, observation_normalization=False,
    )  # fmt: skip
    agent = PPO(config, spec, [0, 1], 6)
    rollout = Rollout(spec, 16, 2, 6)
    experience.fill(agent, rollout)
    rollout.valid[3, 2:8] = False
    draw = np.random.default_rng(0)
    rollout.log_prob += 0.3 * draw.standard_normal(
        (16, 12), np.float32
    )  # as if the policy had moved since
    metrics = agent.update(rollout)
    ours = agent.policy.parameters.gradients[:, 0].copy()

    weights = agent.policy.parameters.weights
    leaves = {k: torch.from_numpy(w).requires_grad_() for k, w in weights.items()}

    def by_member(column):
        rows = column.reshape(16, 2, 6, -1).swapaxes(0, 1).reshape(2, 96, -1)
        return torch.from_numpy(rows.astype(np.float32))

    rows = agent._learner._rows
    columns = (rollout.log_prob, rows.advantage, rows.target, rollout.valid)
    old, advantage, target, valid = (by_member(column)[..., 0] for column in columns)
    inputs = agent.policy.inputs(96)
    agent.policy.scale.apply(rollout.obs[:16], inputs)
    x, action = torch.from_numpy(inputs), by_member(rollout.actions)

    def mlp(name):
        y = torch.tanh(x @ leaves[f"{name}.0.weight"])  # its bias belongs to a column of ones
        y = torch.tanh(y @ leaves[f"{name}.1.weight"] + leaves[f"{name}.1.bias"])
        return y @ leaves[f"{name}.2.weight"] + leaves[f"{name}.2.bias"]

    normal = torch.distributions.Normal(mlp("actor")[..., :2], leaves["log_std"][:, None].exp())
    log_prob, entropy = normal.log_prob(action).sum(-1), normal.entropy().sum(-1)
    loss = 0.0
    for m in range(2):
        real = valid[m] > 0
        a = advantage[m][real]
        a = (a - a.mean()) / (a.std(unbiased=False) + 1e-8)
        ratio = (log_prob[m][real] - old[m][real]).exp()
        policy = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a).mean()
        value = ((mlp("critic")[m, :, 0][real] - target[m][real]) ** 2).mean()
        loss = loss + policy + vf_coef * value - ent_coef * entropy[m][real].mean()
        np.testing.assert_allclose(metrics["policy_loss"][m], policy.item(), rtol=1e-4)
        np.testing.assert_allclose(metrics["value_loss"][m], value.item(), rtol=1e-4)
    loss.backward()
    theirs = agent.policy.parameters.split(ours)
    for name, leaf in leaves.items():
        scale = float(leaf.grad.abs().max())
        gradient = leaf.grad.numpy()
        np.testing.assert_allclose(theirs[name] / scale, gradient / scale, rtol=1e-5, atol=2e-5)


def test_rows_that_are_not_valid_do_not_count(experience):
    spec = experience.spec((3,))
    poisoned = {}

    def spoil(i, agent, rollout):
        rollout.valid[:, 3] = False
        rollout.reward[:, 3] = poisoned["reward"]

    weights = []
    for poisoned["reward"] in (0.0, 1e6):
        agent, _ = experience.train([0], spec, after=spoil, reward_scaling="on")
        weights.append(agent.policy.parameters.flat.copy())
    assert np.array_equal(*weights)


@pytest.mark.parametrize("form", [PPO, TorchPPO])
def test_a_policy_waits_for_its_first_reward_through_a_resume(experience, form):
    spec = experience.spec()
    config = PPOConfig(n_steps=8, batch_size=16, n_epochs=2, reward_scaling="on", target_kl=0.5)
    rollout = Rollout(spec, 8, 2, 4)

    def moved(agent, *paid):
        """Which members' actors and critics an update changes where those `paid` get rewards."""
        experience.fill(agent, rollout, int(agent.iterations[0]))
        rollout.reward[:] *= np.repeat(paid, 4)
        weights = agent.policy.parameters.weights
        before = {name: array.copy() for name, array in weights.items()}
        metrics = agent.update(rollout)
        assert all(np.isfinite(numbers).all() for numbers in metrics.values())
        assert metrics["updates"].tolist() == [4, 4]
        assert [loss != 0 for loss in metrics["policy_loss"]] == moves("actor", weights, before)
        return moves("actor", weights, before), moves("critic", weights, before)

    def moves(net, weights, before):
        own = [name for name in weights if name.startswith(net)]
        return [any((weights[name][m] != before[name][m]).any() for name in own) for m in (0, 1)]

    agent = form(config, spec, [0, 1], 4)
    assert moved(agent, True, False) == ([True, False], [True, True])
    resumed = form(config, spec, [0, 1], 4)
    resumed.load_state_dict(agent.state_dict())
    assert moved(resumed, False, False) == ([True, False], [True, True])
    assert moved(resumed, False, True) == ([True, True], [True, True])


def test_linear_schedule_and_target_kl(experience):
    spec = experience.spec()
    _, metrics = experience.train([0, 1], spec, learning_rate_schedule="linear", iterations=4)
    np.testing.assert_allclose(metrics["learning_rate"], 1e-2 * 0.25)
    _, metrics = experience.train([0, 1], spec, target_kl=(1e-9, 1e6))
    assert metrics["updates"].tolist() == [1, 16]


def test_masked_choices_have_no_gradient(experience):
    spec = experience.spec((4,))
    agent = PPO(PPOConfig(n_steps=8, batch_size=32, ent_coef=0.1), spec, [0], 8)
    rollout = Rollout(spec, 8, 1, 8, mask_size=3)
    rollout.mask[..., 1] = False
    before = agent.policy.parameters.weights["actor.2.weight"].copy()
    experience.fill(agent, rollout)
    assert (rollout.actions != 1).all()
    agent.update(rollout)
    change = np.abs(agent.policy.parameters.weights["actor.2.weight"] - before)[0].sum(0)
    assert change[1] == 0 and change[0] > 0 and change[2] > 0


def test_impossible_sizes_name_the_nearest():
    with pytest.raises(ConfigError, match="96 and 128"):
        PPOConfig(n_steps=64, batch_size=100).rows(6)
    with pytest.raises(ConfigError, match="3 numbers for 2 members"):
        PPOConfig(clip_range=(0.1, 0.2, 0.3)).per_member("clip_range", 2)
    with pytest.raises(ConfigError, match="learning_rate"):
        validate(PPOConfig, {"learning_rte": 1.0})
    with pytest.raises(ConfigError):
        validate(PPOConfig, {"learning_rate": [1e-3, -1.0]})


def test_gradient_parts_follow_from_the_members_own_minibatch():
    large, small = PPOConfig(n_steps=64, batch_size=1024), PPOConfig(n_steps=64, batch_size=512)
    assert large.parts(32) == 2
    assert small.parts(32) == 1
    assert PPOConfig(n_steps=64).parts(64) == 2  # a quarter of the rollout
    assert PPOConfig(n_steps=45, batch_size=1125).parts(25) == 1  # odd


def test_config_of_some_members():
    config = PPOConfig(learning_rate=(0.1, 0.2, 0.3), batch_size=1024)
    assert config.select(slice(1, 3), 3) == config.model_copy(update={"learning_rate": (0.2, 0.3)})
    assert PPOConfig(n_steps=10).rows(6) == 15


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_bytes_of_an_update_cover_what_it_keeps(experience, dtype):
    shape = (40,) if dtype == np.float32 else (1, 12, 12)
    spec = experience.spec(shape, dtype=dtype)
    kept = 0
    if dtype == np.float32:
        learner = PPO(PPOConfig(n_steps=32, batch_size=64), spec, [0, 1], 8)._learner
        kept = sum(array.nbytes for array in (*learner._rows, learner._order))
    rows = 2 * 32 * 8
    assert update_bytes(spec, 32, 2, 8) >= kept + rows * 4 * 2
    assert update_bytes(spec, 32, 2, 8) <= kept + rows * 4 * 20


def test_the_compiled_form_takes_no_images(experience):
    with pytest.raises(ConfigError, match=r"Set training\.learner to auto"):
        PPO(PPOConfig(n_steps=8, batch_size=32), experience.spec((1, 8, 8), dtype=np.uint8), [0], 8)
