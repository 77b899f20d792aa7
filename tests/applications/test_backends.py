"""Every kernel: the same bits interpreted and compiled, in one slice or many."""

import numpy as np
import pytest

from slipstream.kernels.classic.probes import NAMES
from slipstream.kernels.env_checker import allocate_buffers, compare_envs, random_actions
from slipstream.kernels.kernel_registry import list_kernels, load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL
from slipstream.kernels.vector_env import concat_episodes, member_indices
from slipstream.markets.synthetic import SyntheticForex

# Configs of a kernel: together they take every branch that random actions reach.
CONFIGS = {
    "probes": [{"probe": name} for name in NAMES],
    "forex": [
        {"symbol_assignment": "random", "lookback": 3, "max_steps": 50},
        {
            "action": "continuous",
            "max_exposure": 20.0,
            "exposure": 20.0,
            "stop_loss": 8.0,
            "take_profit": 9.0,
            "slippage_pips": 0.2,
            "commission_per_million": 20.0,
            "max_daily_drawdown": 0.02,
            "on_breach": "terminate",
            "flat_on_friday": "16:00",
            "swap_long": -3.0,
            "swap_short": 1.0,
            "reward": "differential_sharpe",
            "turnover_penalty": 0.001,
            "holding_penalty": 0.001,
            "drawdown_penalty": 0.001,
            "max_steps": 70,
        },
    ],
    # Further options and more assets: tests/applications/markets/portfolio/test_portfolio_batch.py.
    "hockey": [
        {"mode": "train_shooting", "one": {"strong": 1.0}, "two": {"weak": 1.0, "agent": 1.0}}
    ],
    "portfolio": [
        {"features": ["log_return_1"], "lookback": 2, "max_steps": 50},
        {
            "features": ["log_return_1"],
            "orders": "units",
            "units": {"norm_action": 3e5, "forced_sale_bars": 5},
            "trailing_stop": 0.001,
            "max_steps": 70,
        },
    ],
}
# Quick ones of these: test_hockey_steps.py, test_portfolio_batch.py.
LONG = ("hockey-0", "portfolio-0", "portfolio-1", "probes-7")
CASES = [
    pytest.param(
        *(name, config), id=f"{name}-{i}", marks=[pytest.mark.slow] * (f"{name}-{i}" in LONG)
    )
    for name in list_kernels()
    for i, config in enumerate(CONFIGS.get(name, [{}]))
]


@pytest.fixture(scope="session")
def prices(tmp_path_factory):
    """Two pairs of planted prices."""
    folder = tmp_path_factory.mktemp("prices")
    for seed, symbol in enumerate(("EURUSD", "GBPUSD")):
        SyntheticForex().write(folder, bars=2500, seed=seed, symbols=(symbol,))
    return {"data": {"folder": str(folder), "spread_pips": 1.0}}


@pytest.fixture
def build(prices):
    def make(name, config, copies, backend="compiled", lo=0, hi=None, **more):
        kernel = load_kernel(name)
        settings = {**config, **prices} if name in ("forex", "portfolio") else config
        data = kernel.load(kernel.configure(settings))
        seeds, indices = member_indices([3, 2**63 + 9], copies)
        rows = slice(lo, hi)
        return KernelVectorEnv(kernel, data, seeds[rows], indices[rows], backend=backend, **more)

    return make


@pytest.mark.parametrize(("name", "config"), CASES)
def test_interpreted_equals_compiled(build, name, config):
    """Observations, rewards, flags, finals, episodes, and STATE field by field, 400 steps."""
    envs = [build(name, config, 3, backend) for backend in ("serial", "compiled")]
    compare_envs(*envs, 400, 5, "interpreted and compiled")
    assert int(envs[0].get_state()["episode_state.episode"].min()) > 1, "every copy was reset"


@pytest.mark.parametrize("mode", [RESET_KEEP_ALL, HOLD])
@pytest.mark.parametrize("name", ["cartpole", "probes"])
def test_other_ends_too(build, name, mode):
    envs = [build(name, {}, 4, backend, autoreset_mode=mode) for backend in ("serial", "compiled")]
    compare_envs(*envs, 80, 6, "interpreted and compiled")


@pytest.mark.parametrize(("name", "config"), CASES)
def test_slices_equal_the_whole(build, name, config):
    """Ten copies stepped together and in two slices."""
    whole = build(name, config, 5)
    parts = [build(name, config, 5, lo=0, hi=3), build(name, config, 5, lo=3)]
    draw = np.random.default_rng(8)
    outs = [allocate_buffers(env) for env in (whole, *parts)]
    for env, out in zip((whole, *parts), outs, strict=True):
        env.reset(out.obs)
    for t in range(150):
        actions = random_actions(whole.spec, 10, draw)
        whole.step(actions, outs[0], t)
        parts[0].step(actions[:3], outs[1], t)
        parts[1].step(actions[3:], outs[2], t)
        for mine, low, high in zip(*(out[:4] for out in outs), strict=True):
            assert np.array_equal(mine, np.concatenate([low, high]))
    state = whole.get_state()
    halves = [part.get_state() for part in parts]
    for key, values in state.items():
        assert np.array_equal(values, np.concatenate([half[key] for half in halves])), key
    low, high = (part.drain_episodes() for part in parts)
    episodes, joined = whole.drain_episodes(), concat_episodes([low, high._replace(e=high.e + 3)])
    for name_of, values in episodes.metrics.items():
        assert np.array_equal(values, joined.metrics[name_of])
    for mine, theirs in zip(episodes[:4], joined[:4], strict=True):
        assert np.array_equal(mine, theirs)


def test_a_copy_alone_equals_the_copy_in_a_crowd(build):
    crowd = build("cartpole", {}, 40, autoreset_mode=RESET)
    alone = build("cartpole", {}, 40, lo=17, hi=18)
    outs = [allocate_buffers(env) for env in (crowd, alone)]
    for env, out in zip((crowd, alone), outs, strict=True):
        env.reset(out.obs)
    draw = np.random.default_rng(0)
    for t in range(200):
        actions = random_actions(crowd.spec, 80, draw)
        crowd.step(actions, outs[0], t)
        alone.step(actions[17:18], outs[1], t)
        assert all(
            np.array_equal(a[17:18], b) for a, b in zip(outs[0][:4], outs[1][:4], strict=True)
        )
