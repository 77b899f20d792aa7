"""Test passes: daily returns by hand, a replay in plain Python beside them, a user's market."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, KernelError
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.spec import MarketSpec
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack, unpack
from slipstream.training.population.backtests import (
    BacktestGrowth,
    BacktestLoop,
    backtest_growth,
    batch_key,
    join_backtests,
    score,
    step_backtests,
)
from slipstream.training.population.environment_source import MemberEnv
from slipstream.training.population.training_segment import Population, policy_of


def by_hand(place, policy):
    """The same passes, one bar and one account after another."""
    loaded, kernel = place.environment.loaded, place.environment.kernel
    config = place.member.config.env_settings
    prices, found, times = loaded.data.prices, [], []
    for p in loaded.params[place.member.test]:
        bar, held, equity, marks = p.first, 0.0, 1000.0, []
        while bar < p.last and not (p.ruin > 0 and equity < p.ruin * 1000):
            obs = [prices[bar, p.symbol] / prices[bar - 1, p.symbol] - 1, held, p.symbol]
            wish = float(policy.act_rows(np.array([obs], np.float32))[0, 0]) - 1.0
            growth = prices[bar + 1, p.symbol] / prices[bar, p.symbol] - 1
            equity *= 1.0 + wish * growth - config["fee"] * abs(wish - held)
            held, bar = wish, bar + 1
            marks.append(equity)
        found.append(np.array(marks))
        times.append(kernel.timeline(p, loaded.data))
    return found, times


def daily(marks, time):
    """Value at the end of each day, by looking each one up."""
    days = sorted({int(t - 1) // 86_400 for t in time})
    values = []
    for day in days:
        last = max(k for k, t in enumerate(time) if (t - 1) // 86_400 == day)
        values.append(marks[min(last, len(marks) - 1)])
    return days, values


def alone(policy, m):
    return unpack(*pack(policy, m))


def test_daily_returns_of_two_symbols_in_two_groups(engine):
    source = engine.source()
    members = [
        engine.member(0, fold=2, **{"env.fee": 0.001}),
        engine.member(1, fold=2, **{"env.ruin": 0.995}),
    ]
    places = [MemberEnv(member, source.environment(member.config)) for member in members]
    population = Population(places, [None, None])
    for _ in range(3):
        population.iterate()
    found = score(places, population.policy)
    for m, (place, backtests) in enumerate(zip(places, found, strict=True)):
        marks, times = by_hand(place, alone(population.policy, m))
        days, returns = [], []
        for group in (0, 1):  # records are group by group, symbols inside
            pair = [daily(marks[k], times[k]) for k in (2 * group, 2 * group + 1)]
            worth = [1000.0, *((a + b) / 2 for a, b in zip(pair[0][1], pair[1][1], strict=True))]
            days += pair[0][0]
            returns += [b / a - 1 for a, b in itertools.pairwise(worth)]
        assert backtests.days.tolist() == days
        assert np.allclose(backtests.returns, returns, rtol=1e-9, atol=1e-12)
        assert backtests.group.tolist() == sorted(backtests.group.tolist())
        assert len(backtests.metrics) == 2
    marks, times = by_hand(places[1], alone(population.policy, 1))
    assert any(len(own) < len(time) for own, time in zip(marks, times, strict=True))  # ruined


def test_benchmark_is_the_market(engine):
    source = engine.source()
    member = engine.member(0, fold=0)
    place = MemberEnv(member, source.environment(member.config))
    backtests = score([place], policy_of([place], [None]))[0]
    data = place.environment.loaded.data
    records = place.environment.loaded.params["fold0/test"]
    ends = [data.prices[[p.first, p.last], p.symbol] for p in records[:2]]
    worth = np.mean([last / first for first, last in ends])
    own = backtests.benchmark[backtests.group == 0]
    assert np.isclose(np.prod(1 + own), worth)


def test_holdout_is_one_group(engine):
    source = engine.source()
    member = engine.member(0, test="holdout")
    place = MemberEnv(member, source.environment(member.config))
    backtests = score([place], policy_of([place], [None]))[0]
    assert set(backtests.group.tolist()) == {0} and len(backtests.metrics) == 1


def test_games_meet_the_same_episodes_in_every_fold_and_others_in_the_holdout(engine):
    source = engine.source()
    places = []
    for k, test in ((0, "test"), (1, "test"), (2, "holdout")):
        member = engine.member(k, env="cartpole", test=test, **{"evaluation.episodes": 40})
        places.append(MemberEnv(member, source.environment(member.config)))
    assert batch_key(places[0]) == batch_key(places[1]) != batch_key(places[2])
    policy = policy_of(places[:1], [None])
    first, second = (score([place], policy)[0] for place in (places[0], places[2]))
    assert len(first.returns) == 40 and not first.benchmark.any()
    assert first.returns.tolist() != second.returns.tolist()
    assert isinstance(policy, Policy)


def test_compiled_passes_are_those_step_by_step(engine):
    """The loop without Python gives the same bits, whoever is beside whom."""
    source = engine.source()
    members = [engine.member(k, **{"env.fee": 0.002 * k}) for k in range(3)]
    places = [MemberEnv(member, source.environment(member.config)) for member in members]
    population = Population(places, [None] * 3)
    for _ in range(2):
        population.iterate()
    policy = population.policy
    environment = places[0].environment.batched(
        [place.environment.records("holdout") for place in places]
    )
    records, env = environment.records("train"), environment.make_eval_envs("train", 2, 3)
    noted = ("equity", "benchmark", "held")
    longest = max(len(environment.kernel.timeline(p, environment.loaded.data)) for p in records)
    slow, fast = np.zeros((2, longest, 6, 3))
    step_backtests(env, policy, noted, slow)
    first = env.drain_episodes()
    assert BacktestLoop.is_supported(env, policy)
    loop = BacktestLoop(env, policy, noted)
    loop.reset()
    for begin in range(0, longest, 17):
        loop.run(begin, min(begin + 17, longest), fast)
    second = env.drain_episodes()
    assert np.array_equal(slow, fast)
    assert len(np.unique(slow[..., 2])) > 1
    order = np.argsort(second.e)
    assert sorted(second.e.tolist()) == list(range(6))
    assert np.array_equal(second.returns[order], first.returns[np.argsort(first.e)])


@pytest.mark.parametrize("env", ["toy", "cartpole"])
@pytest.mark.parametrize(
    ("wanted", "used"), [("auto", "compiled"), ("compiled", "compiled"), ("serial", "serial")]
)
def test_passes_are_stepped_by_the_backend_of_the_config(engine, monkeypatch, env, wanted, used):
    own = {"training.backend": wanted, "evaluation.episodes": 2, "evaluation.max_steps": 20}
    names = {} if env == "toy" else {"env": env}
    member = engine.member(0, **names, **own)
    place = MemberEnv(member, engine.source().environment(member.config))
    policy = policy_of([place], [None])
    seen = []
    begin = KernelVectorEnv.__init__

    def noted(self, *arguments, **named):
        begin(self, *arguments, **named)
        seen.append(self.backend)

    monkeypatch.setattr(KernelVectorEnv, "__init__", noted)
    score([place], policy)
    assert seen == [used]


def test_a_reward_that_is_not_finite_is_named(engine):
    source = engine.source()
    member = engine.member(0)
    environment = source.environment(member.config)
    split = member.test
    records = tuple(p._replace(fee=np.nan) for p in environment.loaded.params[split])
    loaded = replace(environment.loaded, params={**environment.loaded.params, split: records})
    place = MemberEnv(member, replace(environment, loaded=loaded))
    with pytest.raises(KernelError, match=r"NaN or infinite.*step 0,"):
        score([place], policy_of([place], [None]))


DAY, HOUR = 86_400, 3_600
MIDNIGHT = 20_000 * DAY
UNITS = {"fills": "count", "cost_fee": "account currency", "mean_exposure": "equity"}
METRICS = {"fills": 3.0, "mean_exposure": 0.5, "total_return": 0.1, "cost_fee": 2.0}


def joined(accounts, groups):
    return join_backtests(accounts, groups, UNITS)


def market(roll="00:00 UTC", symbols=("A",)):
    return MarketSpec(symbols, "USD", 100.0, 12 * HOUR, 730.0, 365.0, roll)


def half_days(first, count):
    """Ends of `count` bars of twelve hours, the first of which begins `first` bars after 0:00."""
    return MIDNIGHT + 12 * HOUR * (first + 1 + np.arange(count))


def test_days_are_compounded_and_a_bar_that_ends_at_midnight_belongs_to_its_day():
    values = {
        "equity": np.array([110.0, 121.0, 121.0, 60.5, 66.55]),
        "benchmark": np.array([100.0, 101.0, 102.0, 100.0, 90.0]),
    }
    found = backtest_growth(half_days(0, 5), values, market(), METRICS, 5)
    assert found.days.tolist() == [20_000, 20_001, 20_002]
    assert np.allclose(found.growth, [1.21, 0.5, 1.1])
    assert np.allclose(found.benchmark, [1.01, 100 / 101, 0.9])


def test_new_york_days():
    """17:00 in New York is 22:00 UTC in winter: a bar that ends there ends the day."""
    winter = 19_737 * DAY  # Monday, 2024-01-15
    time = np.array([winter + 21 * HOUR, winter + 22 * HOUR, winter + 23 * HOUR])
    values = {"equity": np.array([101.0, 102.0, 103.0])}
    found = backtest_growth(time, values, market("17:00 America/New_York"), METRICS, 3)
    assert found.days.tolist() == [19_737, 19_738]
    assert np.allclose(found.growth, [1.02, 103 / 102])
    assert found.benchmark.tolist() == [1.0, 1.0]


def test_a_closed_account_keeps_its_days():
    values = {"equity": np.array([50.0, 0.0])}
    found = backtest_growth(half_days(1, 8), values, market(), METRICS, 2)
    assert found.days.tolist() == [20_000, 20_001, 20_002, 20_003, 20_004]
    assert found.growth.tolist() == [0.5, 0.0, 1.0, 1.0, 1.0]


def one(symbol, days, growth, steps=10, **metrics):
    factors = np.array(growth, np.float64)
    return BacktestGrowth(
        (symbol,), np.array(days), factors, factors**0.5, {**METRICS, **metrics}, steps
    )


def test_groups_follow_each_other_and_share_no_return():
    backtests = joined([one("A", [5, 6], [1.1, 1.2]), one("A", [6, 7], [0.5, 2.0])], [0, 1])
    assert backtests.days.tolist() == [5, 6, 6, 7]
    assert np.allclose(backtests.returns, [0.1, 0.2, -0.5, 1.0])
    assert backtests.group.tolist() == [0, 0, 1, 1]
    assert backtests.metrics == [METRICS, METRICS]


def test_symbols_of_a_group_are_accounts_of_equal_capital():
    """Day 1: 1.5 and 0.5 are worth 1.0 each on average; day 2: 3.0 and 0.5, 1.75 of 1.0."""
    backtests = joined([one("A", [1, 2], [1.5, 2.0]), one("B", [1, 2], [0.5, 1.0])], [0, 0])
    assert np.allclose(backtests.returns, [0.0, 0.75])
    assert backtests.metrics[0]["fills"] == 6.0 and backtests.metrics[0]["cost_fee"] == 4.0
    assert backtests.metrics[0]["mean_exposure"] == 0.5
    assert backtests.metrics[0]["total_return"] == pytest.approx(0.75)


def test_a_symbol_without_a_day_stands_still():
    backtests = joined([one("A", [1, 3], [2.0, 2.0]), one("B", [2], [3.0])], [0, 0])
    assert backtests.days.tolist() == [1, 2, 3]
    assert np.allclose(1 + backtests.returns, [1.5, 2.5 / 1.5, 3.5 / 2.5])


def test_stretches_of_one_account_in_a_group():
    """A hole in the data: two passes, the day between them compounded, averages by steps."""
    first = one("A", [1, 2], [1.1, 1.1], steps=30, mean_exposure=1.0)
    second = one("A", [2, 3], [1.5, 0.5], steps=10, mean_exposure=0.2)
    backtests = joined([first, second], [0, 0])
    assert np.allclose(1 + backtests.returns, [1.1, 1.65, 0.5])
    assert backtests.metrics[0]["mean_exposure"] == pytest.approx(0.8)


TOY = str(Path(__file__).parents[2] / "samples/toy_market.py")
BROKEN = {
    "step": ("    s.held = wish\n", "    s.held = wish + d.prices[s.bar, 2 * s.bar]\n"),
    "observe": ("    out[1] = s.held\n", "    out[1] = s.held\n    out[s.bar] = 0.0\n"),
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("function", [pytest.param("step", marks=pytest.mark.slow), "observe"])
def test_passes(engine, tmp_path, monkeypatch, function, fused):
    """Fused with the networks in one loop, and stepped one after another."""
    if not fused:
        monkeypatch.setattr(BacktestLoop, "is_supported", staticmethod(lambda env, policy: False))
    old, new = BROKEN[function]
    late = new.replace("\n    out[", "\n    if s.bar > p.first + 20:\n        out[")
    if function == "step":
        late = (
            "    s.held = wish\n    if s.bar > p.first + 20:\n"
            "        s.held = wish + d.prices[s.bar, 2 * s.bar]\n"
        )
    text = Path(TOY).read_text()
    assert old in text
    path = tmp_path / "own_market.py"
    path.write_text(text.replace(old, late))
    member = engine.member(0, env=str(path), fold=1)
    place = MemberEnv(member, engine.source().environment(member.config))
    with pytest.raises(KernelError) as error:
        score([place], policy_of([place], [None]))
    message = str(error.value)
    assert message.startswith(f"{path}:") and f"in `{function}`" in message, message
    assert "raised IndexError: index" in message and "\n" not in message
    text = path.read_text().splitlines()[int(message[len(str(path)) + 1 :].partition(":")[0]) - 1]
    assert "d.prices[s.bar, 2 * s.bar]" in text or "out[s.bar]" in text


def test_a_split_that_a_market_lacks_is_named(engine):
    """No other records take its place: a study would train its final members on a fold."""
    environment = engine.source().environment(engine.member(0).config)
    assert environment.records("development/train") != environment.records("fold0/train")
    kept = {k: v for k, v in environment.loaded.params.items() if k != "development/train"}
    lacking = replace(environment, loaded=replace(environment.loaded, params=kept))
    with pytest.raises(
        ConfigError, match=r"has no split `development/train`, only train, fold0/train"
    ):
        lacking.records("development/train")
