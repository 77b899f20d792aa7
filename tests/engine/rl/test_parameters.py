import numpy as np
import pytest
import torch

from slipstream.rl.agents.ppo.losses import APPROX_KL, STATISTICS
from slipstream.rl.agents.ppo.update import PPOUpdateStats, begin_update
from slipstream.rl.compiled_loops import compile_loops
from slipstream.rl.nets.optimizer import LANES, Parameters, StepSettings, move_weights

SHAPES = {"a.weight": (3, 5), "a.bias": (1, 5), "b": (7,)}


def filled(members, parts=1, seed=0):
    parameters = Parameters(SHAPES, members, parts)
    draw = np.random.default_rng(seed)
    for weight in parameters.weights.values():
        weight[:] = draw.standard_normal(weight.shape)
    return parameters


def gradients(parameters):
    """Named views into each part of the gradients."""
    return [parameters.split(part) for part in parameters.gradients.swapaxes(0, 1)]


def set_gradients(parameters, seed, size=1.0):
    draw = np.random.default_rng(seed)
    for views in gradients(parameters):
        for gradient in views.values():
            gradient[:] = size * draw.standard_normal(gradient.shape)


def update(weights, statistics, stats, m):
    if begin_update(weights, statistics, stats, m):
        move_weights(weights, m, 0, weights.params.shape[1], stats.settings)


def step(parameters, rate=0.1, norm=np.inf, frozen=None, epsilon=1e-5, kl=0.0):
    """One update; returns what it was, with the gradients' norms as the last of the sums."""
    m = parameters.members
    epsilons = np.broadcast_to(np.asarray(epsilon, float), (m,)).copy()
    frozen = np.zeros(m, bool) if frozen is None else np.array(frozen)
    settings = StepSettings(np.full(m, rate), epsilons, np.full(m, norm))
    sums, updates = np.zeros((m, len(STATISTICS) + 1)), np.zeros(m, np.int64)
    stats = PPOUpdateStats(settings, np.full(m, 0.5), frozen, sums, updates, np.zeros((1, LANES)))
    given = (parameters.arrays, np.zeros((2, len(STATISTICS))), stats, 0)
    loop = compile_loops("tally_test", {update: given})["update"]
    for member, divergence in enumerate(np.broadcast_to(kl, m)):
        statistics = np.zeros((2, len(STATISTICS)))
        statistics[1, APPROX_KL] = divergence
        loop(parameters.arrays, statistics, stats, member)
    return stats


@pytest.mark.parametrize(("norm", "epsilon"), [(np.inf, 1e-5), (0.5, 1e-5), (np.inf, 1e-2)])
def test_adam_agrees_with_torch(norm, epsilon):
    parameters = filled(1)
    theirs = [torch.from_numpy(w.copy()).requires_grad_() for w in parameters.weights.values()]
    optimiser = torch.optim.Adam(theirs, lr=0.01, eps=epsilon)
    for i in range(20):
        set_gradients(parameters, i)
        for weight, gradient in zip(theirs, gradients(parameters)[0].values(), strict=True):
            weight.grad = torch.from_numpy(gradient.copy())
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs, norm)
        optimiser.step()
        ours = step(parameters, 0.01, norm, epsilon=epsilon)
        np.testing.assert_allclose(ours.sums[0, -1], expected_norm, rtol=1e-5)
    for ours, weight in zip(parameters.weights.values(), theirs, strict=True):
        np.testing.assert_allclose(ours, weight.detach(), rtol=1e-5, atol=1e-6)


def test_parts_are_summed():
    one, two = filled(2), filled(2, parts=2)
    set_gradients(two, 1)
    one.gradients[:, 0] = two.gradients[:, 0] + two.gradients[:, 1]
    step(one)
    step(two)
    assert np.array_equal(one.flat, two.flat)


def test_frozen_members_keep_every_bit():
    parameters = filled(5)
    set_gradients(parameters, 1)
    step(parameters)
    before = {k: v.copy() for k, v in parameters.state_dict().items()}
    set_gradients(parameters, 2)
    step(parameters, frozen=[False, True, True, False, True])
    for name, after in parameters.state_dict().items():
        for m in (1, 2, 4):
            assert np.array_equal(after[m], before[name][m])
    assert parameters.steps.tolist() == [2, 1, 1, 2, 1]
    assert not np.array_equal(parameters.flat[0], before["weights"][0])


def test_members_beyond_the_target_kl_are_frozen():
    parameters = filled(3)
    set_gradients(parameters, 1)
    before = parameters.flat.copy()
    stats = step(parameters, kl=[0.4, 0.6, np.nan])
    assert stats.frozen.tolist() == [False, True, False]
    assert stats.updates.tolist() == parameters.steps.tolist() == [1, 0, 1]
    assert np.array_equal(parameters.flat[1], before[1])
    assert (parameters.flat[[0, 2]] != before[[0, 2]]).any(1).all()
    np.testing.assert_allclose(stats.sums[:2, APPROX_KL], [0.4, 0.0])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_member_fails_alone(poison):
    healthy, sick = filled(3), filled(3)
    for i in range(3):
        for parameters in (healthy, sick):
            set_gradients(parameters, i)
        if i == 1:
            gradients(sick)[0]["b"][1, 3] = poison
        before = sick.flat[1].copy()
        step(healthy)
        step(sick)
        if i >= 1:
            assert np.array_equal(sick.flat[1], before)
    assert sick.failed.tolist() == [False, True, False]
    assert np.array_equal(sick.flat[[0, 2]], healthy.flat[[0, 2]])
    assert np.isfinite(sick.flat).all()


def test_names_are_views_into_one_block():
    parameters = filled(3, parts=2)
    for views, block in (
        (parameters.weights, parameters.flat),
        *zip(gradients(parameters), parameters.gradients.swapaxes(0, 1), strict=True),
    ):
        block[:] = 0.0
        for number, (name, view) in enumerate(views.items(), 1):
            assert view.shape == (3, *SHAPES[name])
            view[1] = number
        sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
        assert block[1].sum() == np.dot(sizes, [1, 2, 3]) and not block[[0, 2]].any()


def test_state_survives():
    one, other = filled(2), filled(2, seed=5)
    set_gradients(one, 0)
    step(one)
    other.load_state_dict(one.state_dict())
    for parameters in (one, other):
        set_gradients(parameters, 1)
        step(parameters)
    assert np.array_equal(one.flat, other.flat)
