"""A member's weights are the same bits alone, in any population and with any cut into shards."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.experience.rollout import Rollout

POPULATIONS = ([0], [23], [5, 6], [3, 4, 5, 6, 7, 8, 9])
QUICK = ((1, "discrete"), (300, "box"))


# Layers know nothing of actions, and heads nothing of observations: quick tests meet each once.
@pytest.mark.parametrize(
    ("width", "action"),
    [
        pytest.param(w, a, marks=[] if w == 20 or (w, a) in QUICK else pytest.mark.slow)
        for a in ("discrete", "multi", "box", "scalar")
        for w in (1, 20, 300)
    ],
)
def test_alone_or_in_company(experience, same_members, width, action):
    spec = experience.spec((width,), action, scale_reward=True)
    everyone, _ = experience.train(range(24), spec)
    for chosen in POPULATIONS:
        few, _ = experience.train(chosen, spec)
        same_members(few, chosen, everyone)


@pytest.mark.parametrize("action", ["multi", "box"])
def test_large_minibatches(experience, same_members, action):
    """From 1,024 rows on a gradient has two parts, which a lone member may share out."""
    spec = experience.spec((20,), action)
    sizes = {"num_envs": 64, "n_steps": 32, "batch_size": 1024, "iterations": 2, "target_kl": 0.02}
    everyone, _ = experience.train(range(7), spec, **sizes)
    for chosen in ([4], [1, 2]):
        few, _ = experience.train(chosen, spec, **sizes)
        same_members(few, chosen, everyone)
    with ThreadPoolExecutor(2) as pool:
        alone, _ = experience.train([4], spec, run=_crew(pool), **sizes)
    same_members(alone, [4], everyone)


def test_large_minibatches_of_images(experience, same_members):
    spec = experience.spec((1, 8, 8), "discrete", np.uint8)
    sizes = {"num_envs": 32, "n_steps": 32, "batch_size": 1024, "iterations": 1, "net_arch": (16,)}
    everyone, _ = experience.train(range(2), spec, **sizes)
    alone, _ = experience.train([1], spec, **sizes)
    same_members(alone, [1], everyone)


ODD_SIZES = (
    {"net_arch": (48, 33)},
    {"net_arch": (17, 1, 72), "activation": "relu"},
    {"n_steps": 7, "num_envs": 13, "batch_size": 91},
    {"n_steps": 7, "num_envs": 13, "batch_size": 7, "net_arch": (9,)},
    {"n_steps": 27, "num_envs": 5, "batch_size": 45},
    {"n_steps": 24, "num_envs": 1, "batch_size": 3},
    {"n_steps": 1, "num_envs": 6, "batch_size": 3},
)


@pytest.mark.parametrize(
    ("sizes", "width", "action"),
    [
        pytest.param(sizes, *own, marks=[pytest.mark.slow] * ((k + j) % 2), id=f"{own} {sizes}")
        for k, sizes in enumerate(ODD_SIZES)
        for j, own in enumerate([(7, "multi"), (33, "box")])
    ],
)
def test_odd_sizes_among_ninety_six(experience, same_members, sizes, width, action, monkeypatch):
    """Rows and columns that fill no tile of a product, and members that fill no vector."""
    monkeypatch.setattr(PPOConfig, "ROWS_TO_SHARE", 12)
    spec = experience.spec((width,), action, scale_reward=True)
    everyone, _ = experience.train(range(96), spec, iterations=2, **sizes)
    for chosen in ([0], [95], [40, 41, 42, 43, 44, 45], list(range(48))):
        few, _ = experience.train(chosen, spec, iterations=2, **sizes)
        same_members(few, chosen, everyone)


def test_images(experience, same_members):
    spec = experience.spec((1, 12, 12), "discrete", np.uint8)
    sizes = {"num_envs": 4, "n_steps": 8, "batch_size": 16, "iterations": 2, "net_arch": (32,)}
    everyone, _ = experience.train(range(3), spec, **sizes)
    for chosen in ([1], [0, 1]):
        few, _ = experience.train(chosen, spec, **sizes)
        same_members(few, chosen, everyone)


@pytest.mark.parametrize("action", ["discrete", "multi", "box"])
def test_the_torch_form_on_a_processor(experience, same_members, action):
    spec = experience.spec((5,), action, scale_reward=True)
    sizes = {"iterations": 2, "torch_form": True, "target_kl": 0.02}
    everyone, _ = experience.train(range(6), spec, **sizes)
    for chosen in ([4], [1, 2, 3]):
        few, _ = experience.train(chosen, spec, **sizes)
        same_members(few, chosen, everyone)


def test_settings_follow_their_member(experience, same_members):
    spec = experience.spec((4,))
    settings = {
        "learning_rate": tuple(1e-3 * (m + 1) for m in range(6)),
        "clip_range": tuple(0.1 + 0.02 * m for m in range(6)),
        "gamma": tuple(0.9 + 0.01 * m for m in range(6)),
        "adam_eps": tuple(10.0 ** -(m + 3) for m in range(6)),
        "target_kl": tuple(0.001 * (m + 1) for m in range(6)),
        "learning_rate_schedule": "linear",
    }
    everyone, metrics = experience.train(range(6), spec, **settings)
    assert len(set(metrics["updates"].tolist())) > 1  # some members stopped early
    for chosen in (slice(0, 1), slice(2, 5)):
        config = PPOConfig(n_steps=16, batch_size=24, **settings).select(chosen, 6)
        few, _ = experience.train(
            range(6)[chosen], spec, **{k: getattr(config, k) for k in settings}
        )
        same_members(few, list(range(6))[chosen], everyone)


def test_ranges_of_a_lone_members_environments(experience, same_members):
    spec = experience.spec((7,))
    config = PPOConfig(n_steps=16, batch_size=40)
    whole, cut = (PPO(config, spec, [3], 20) for _ in range(2))
    rollouts = [Rollout(spec, 16, 1, 20) for _ in range(2)]
    for agent, rollout in zip((whole, cut), rollouts, strict=True):
        experience.fill(agent, rollout, act=False)
    for t in range(16):
        actions = whole.act(rollouts[0], t)
        pieces = [cut.act(rollouts[1], t, lo, hi).copy() for lo, hi in ((0, 3), (3, 12), (12, 20))]
        assert (np.concatenate(pieces) == actions).all()
    assert np.array_equal(rollouts[0].log_prob, rollouts[1].log_prob)
    whole.update(rollouts[0])
    cut.update(rollouts[1])
    same_members(whole, [0], cut)


def test_a_crew_of_threads_changes_nothing(experience, same_members, monkeypatch):
    monkeypatch.setattr(PPOConfig, "ROWS_TO_SHARE", 64)
    spec = experience.spec((9,), "box")
    sizes = {"num_envs": 16, "batch_size": 64}
    calm, _ = experience.train([8], spec, **sizes)
    with ThreadPoolExecutor(4) as pool:
        busy, _ = experience.train([8], spec, run=_crew(pool), **sizes)
    same_members(busy, [0], calm)


def _crew(pool):
    def run(tasks):
        for future in [pool.submit(task) for task in reversed(tasks)]:
            future.result()

    return run


def test_a_poisoned_member_leaves_the_others_untouched(experience, same_members):
    spec = experience.spec((6,))

    def poison(i, agent, rollout):
        if i == 1:
            rollout.reward[5, 2 * 6 + 1] = np.nan  # member 2

    healthy, _ = experience.train(range(5), spec)
    sick, metrics = experience.train(range(5), spec, after=poison)
    assert metrics["failed"].tolist() == [False, False, True, False, False]
    assert np.isfinite(sick.policy.parameters.flat).all()
    for m in (0, 1, 3, 4):
        mine, theirs = sick.state_dict(), healthy.state_dict()
        for name in mine:
            assert mine[name][m].tobytes() == theirs[name][m].tobytes()


@pytest.mark.parametrize("action", ["discrete", "box"])
def test_training_goes_on_from_its_state(experience, same_members, action):
    spec = experience.spec((5,), action, scale_reward=True)
    whole, _ = experience.train([0, 1, 2], spec, iterations=4)
    first, _ = experience.train([0, 1, 2], spec, iterations=2)
    config = PPOConfig(n_steps=16, batch_size=24, learning_rate=1e-2, ent_coef=0.01)
    second = PPO(config, spec, [0, 1, 2], 6)
    second.load_state_dict(first.state_dict())
    rollout = Rollout(spec, 16, 3, 6)
    for i in (2, 3):
        experience.fill(second, rollout, i)
        second.update(rollout)
    same_members(second, [0, 1, 2], whole)
