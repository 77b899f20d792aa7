"""A portfolio's baselines, account and page: by hand, by brute force, and through the kernel."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import portfolio_world as pw
import pytest

from slipstream.markets.evaluation.market_backtest import MarketBacktest, PortfolioSplitBacktest
from slipstream.markets.evaluation.oracle import optimal_weights
from slipstream.markets.evaluation.performance import build_chained_account
from slipstream.markets.report.portfolio_page import asset_gains, asset_shares
from slipstream.report.inputs import CASH, EQUAL_WEIGHT, ORACLE, REBALANCED, Prices, RunEvaluation
from slipstream.report.page import render
from slipstream.report.run_evaluation import add_baselines
from slipstream.report.run_page import build_page
from slipstream.training.environments.kernel_environment import KernelEnvironment, KernelKind

COSTS = {"fee": 0.002, "slippage_bp": 3.0}
ANY_SIZE = {"quantity_step": 0.0, "min_notional": 0.0}
K = 0.0023


def passes_of(panel, **settings):
    sizes = {} if settings.get("orders") == "units" else ANY_SIZE
    loaded = pw.build(panel, **{**COSTS, **sizes, **settings})
    loaded = replace(loaded, params={**loaded.params, "test": loaded.params["window"]})
    return PortfolioSplitBacktest(pw.KERNEL.specialize(loaded), loaded, "test", "serial")


@pytest.fixture(scope="module")
def passes():
    return passes_of(pw.random_panel(150, 3, 0))


@pytest.fixture(scope="module")
def split():
    """Two stretches with a hole between them."""
    return passes_of(pw.random_panel(200, 2, 1, segments=[[0, 80], [90, 200]]))


def some_agent(passes, seed=0):
    random = np.random.default_rng(seed)
    width = passes.kernel.spec(passes.params[0], passes.data).action_dim
    actions = []
    for record in range(len(passes.params)):
        first, last = passes.window(record)
        steps = random.uniform(-1, 1, ((last - first) // 20 + 1, width))
        actions.append(np.repeat(steps, 20, axis=0)[: last - first].astype(np.float32))
    return passes.replay(actions)


def equity(tracks):
    return tracks[0].trace["equity"].ravel()


def test_a_portfolio_is_told_from_symbols_one_by_one(passes):
    found = MarketBacktest.from_environment(passes.environment).for_split("test")
    assert type(found) is PortfolioSplitBacktest


def test_equal_weight_is_the_environments_benchmark(passes):
    mine = equity(passes.rule_baselines().tracks[EQUAL_WEIGHT])
    trace = some_agent(passes)[0].trace["benchmark"].ravel()
    np.testing.assert_allclose(mine, trace, rtol=1e-9)


@pytest.mark.parametrize("cash_reserve", [0.0, 0.25])
def test_equal_weight_is_the_benchmark_when_the_first_bars_are_missing(cash_reserve):
    """A 7-bar hole in one asset, another one that is listed later, one that is delisted."""
    panel = pw.random_panel(120, 4, 2)
    tradable, listed = np.ones((120, 4), bool), np.ones((120, 4), bool)
    tradable[1:8, 0] = False
    listed[:30, 1] = tradable[:30, 1] = False
    listed[80:, 2] = tradable[80:, 2] = False
    panel = panel._replace(tradable=tradable, listed=listed)
    passes = passes_of(panel, universe="union", cash_reserve=cash_reserve)
    tracks = passes.rule_baselines().tracks
    trace = some_agent(passes)[0].trace["benchmark"].ravel()
    np.testing.assert_allclose(equity(tracks[EQUAL_WEIGHT]), trace, rtol=1e-6)
    units = tracks[EQUAL_WEIGHT][0].trace["units"]
    assert [int((units[:, a] > 0).argmax()) for a in (0, 2, 3)] == [7, 0, 0]
    assert not units[:, 1].any()
    assert tracks[REBALANCED][0].metrics["mean_exposure"] > 0.6 * (1 - cash_reserve)


def test_buy_and_hold_by_hand(passes):
    first, last = passes.window(0)
    prices = passes.data.prices
    held = passes.compare(some_agent(passes), draws=0).assets
    for asset, name in enumerate(passes.assets):
        (track,) = held[name]
        units = (1 - 0.0) / (prices[first + 1, 3 + asset] * (1 + K))
        expected = units * prices[last, asset] * (1 - K)
        assert track.metrics["total_return"] == pytest.approx(expected - 1, rel=1e-6)
        assert track.metrics["fills"] == 2


@pytest.mark.slow
def test_only_assets_that_can_be_bought_are_counted():
    """Some assets of a union have ended, others have not started: the page counted 10 of 14."""
    panel = pw.random_panel(120, 4, 2)
    tradable = np.ones((120, 4), bool)
    tradable[:, 1] = tradable[:70, 2] = False
    listed, close = np.ones((120, 4), bool), panel.close.copy()
    listed[:, 1] = listed[:70, 2] = False
    close[~listed] = 0.0
    panel = panel._replace(tradable=tradable, listed=listed, close=close)
    passes = passes_of(panel, universe="union")
    held = passes.compare(some_agent(passes), draws=0).assets
    assert list(held) == [panel.symbols[0], panel.symbols[3]]
    page = render(build_page(gathered(passes, [some_agent(passes)])))
    assert "Of 2 assets bought and held" in page


def test_cash_never_moves_and_rebalancing_does():
    panel = pw.make_panel(np.column_stack([np.geomspace(100, 400, 60), np.full(60, 50.0)]))
    tracks = passes_of(panel, rebalance_threshold=0.05).rule_baselines().tracks
    assert (equity(tracks[CASH]) == equity(tracks[CASH])[0]).all()
    once, again = (tracks[name][0] for name in (EQUAL_WEIGHT, REBALANCED))
    assert once.metrics["fills"] == 4  # two bought, two sold at the end
    assert again.metrics["fills"] > 8
    share = again.trace["units"][-2, 0] * panel.close[-2, 0] / again.trace["equity"][-2]
    assert abs(share - 0.5) < 0.051


def test_oracle_is_the_best_of_all_plans():
    random = np.random.default_rng(3)
    for seed in range(4):
        panel = pw.random_panel(8, 2, seed)
        panel = panel._replace(close=panel.open * np.exp(random.normal(0, 0.004, (8, 2))))
        passes = passes_of(panel)
        plan = optimal_weights(passes.specs[0])
        first, last = passes.window(0)
        rows = passes.data.prices[first + 1 : last + 1]
        ends = np.concatenate([rows[1:, 2:4], rows[-1:, :2]])
        best = 0.0
        for states in product(range(3), repeat=last - first):  # 2 is cash
            value, now = 1.0, 2
            for fill, state in enumerate(states):
                if state != now:
                    value *= (1 - K if now < 2 else 1) / (1 + K if state < 2 else 1)
                now = state
                value *= ends[fill, now] / rows[fill, 2 + now] if now < 2 else 1.0
            best = max(best, value * (1 - K if now < 2 else 1))
        assert plan.growth == pytest.approx(best, rel=1e-12)
        replayed = passes.compare(some_agent(passes), draws=0).tracks[ORACLE]
        assert 1 + replayed[0].metrics["total_return"] == pytest.approx(best, rel=1e-6)


def test_oracle_does_not_trade_where_nobody_can():
    panel = pw.random_panel(40, 2, 4)
    tradable = np.ones((40, 2), bool)
    tradable[10:20, 0] = False
    passes = passes_of(panel._replace(tradable=tradable))
    states = optimal_weights(passes.specs[0]).positions.argmax(axis=1)
    first, _ = passes.window(0)
    closed = ~(passes.data.prices[first + 1 :, 2] > 0)[: len(states)]
    into = (np.diff(states, prepend=2) != 0) & closed
    assert not ((states == 0) & into).any()
    comparison = passes.compare(some_agent(passes), draws=0)
    grown = 1 + comparison.tracks[ORACLE][0].metrics["total_return"]
    assert grown == pytest.approx(comparison.oracle_growth, rel=1e-6)


def test_oracle_only_where_it_is_exact():
    panel = pw.random_panel(40, 2, 4)
    assert passes_of(panel).has_oracle
    assert not passes_of(panel, cash_reserve=0.1).has_oracle
    tiers = [(0.0, 0.002), (1e6, 0.001)]
    few = passes_of(panel, fee_tiers=tiers)
    assert not few.has_oracle
    assert ORACLE not in few.compare(some_agent(few), draws=0).tracks


def test_passes_follow_each_other(split):
    agent = some_agent(split)
    market = split.kernel.spec(split.params[0], split.data).market
    account = build_chained_account(agent, market, split.data.time)
    both = math.prod(1 + track.metrics["total_return"] for track in agent)
    assert account.total_return == pytest.approx(both - 1)
    assert split.replay_growth([track.actions for track in agent])[0] == pytest.approx(both)
    assert (np.diff(account.time) > 0).all()
    assert len(account.day) == sum(track.length for track in agent)
    scale = 1 + agent[0].metrics["total_return"]
    paid = agent[0].metrics["costs"] + scale * agent[1].metrics["costs"]
    assert account.total_costs[-1] == pytest.approx(paid)


@pytest.mark.parametrize("orders", ["weights", "units"])
def test_assets_add_up_to_the_result(orders):
    passes = passes_of(pw.random_panel(120, 3, 5), orders=orders)
    agent = some_agent(passes)
    metrics, initial = agent[0].metrics, passes.params[0].initial_equity
    shares = asset_shares(agent, passes.prices, initial)
    gross = metrics["total_return"] + metrics["costs"] / initial
    moved = abs(agent[0].trace["units"][-2]).max()
    assert moved > 0
    assert sum(one.profit for one in shares) == pytest.approx(gross, abs=2e-3 * metrics["turnover"])
    weight = sum(one.weight for one in shares)
    assert weight == pytest.approx(metrics["mean_exposure"], abs=1e-9)


def test_gains_by_hand():
    prices = gathered_prices([[10.0], [11.0], [13.0]], [[10.0], [10.5], [12.0]])
    found = asset_gains(np.array([[2.0], [0.0]]), np.array([1, 2]), prices)
    np.testing.assert_allclose(found[:, 0], [2 * 0.5, 2 * 2.0])  # bought at 10.5, sold at 13


def test_random_draws_keep_what_was_held_and_for_how_long(passes):
    actions = some_agent(passes)[0].actions
    drawn = passes.shuffle_actions(actions, np.random.default_rng(0))
    assert (np.sort(drawn[:, :3].ravel()) == np.sort(actions[:, :3].ravel())).all()
    assert sorted(drawn[:, 3]) == sorted(actions[:, 3])  # cash stays cash
    assert not (drawn == actions).all()


def gathered_prices(close, fill):
    return Prices(np.arange(len(close)), np.array(close), ("A",), np.array(fill))


def gathered(passes, members, draws=3):
    environment = KernelEnvironment.from_loaded(
        KernelKind("portfolio"), passes.kernel, passes.loaded
    )
    return add_baselines(
        environment, RunEvaluation("run", {"test": members}), backend="serial", draws=draws
    )


@pytest.mark.parametrize("orders", ["weights", pytest.param("units", marks=pytest.mark.slow)])
def test_the_page_compares_with_what_anybody_could_hold(orders):
    passes = passes_of(pw.random_panel(160, 3, 6, segments=[[0, 90], [100, 160]]), orders=orders)
    page = build_page(gathered(passes, [some_agent(passes, seed) for seed in range(2)]))
    text = render(page)
    for words in (CASH, EQUAL_WEIGHT, REBALANCED, "AVAX held", "oracle", "matched random"):
        assert words in text
    assert "profitable" not in text
    assert "pips" not in text
    assert "buy and hold" not in text
    tables = {table.caption: table for section in page.sections for table in section.tables}
    assert [row[0] for row in tables["By asset"].rows] == list(passes.assets)
    assert page.sentences[0].startswith("Test Sharpe")
    assert "equal weight made" in page.headline or "Too few days" in page.headline
    assert [one.label for one in page.figures][-1] == "Costs"


@pytest.mark.slow
def test_an_agent_that_bought_and_holds_is_not_said_to_be_cash():
    """ "99.7 % exposure, 8 fills. Its figures are about those of cash", under a loss of 19 %."""
    passes = passes_of(pw.random_panel(160, 3, 6, segments=[[0, 160]]))
    (holding,) = gathered(passes, [some_agent(passes, 0)]).baselines["test"].tracks[EQUAL_WEIGHT]
    page = build_page(gathered(passes, [[holding]]))
    (said,) = (line for line in page.sentences if "hardly trades" in line)
    assert said.endswith("Its figures are about those of what it bought, held.")


def test_an_agent_that_holds_cash_is_said_to(passes):
    first, last = passes.window(0)
    page = build_page(
        gathered(passes, [passes.replay([passes.flat_actions(last - first)])], draws=2)
    )
    assert page.headline.startswith("It never traded")
    assert "equal weight " in page.sentences[1]
