"""Test passes beside a replay in plain Python."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import KernelError
from slipstream.nets.policy import Policy
from slipstream.nets.policy_file import pack, unpack
from slipstream.studies.engine.passes import PassLoop, alike, score, step_passes
from slipstream.studies.engine.source import Place
from slipstream.studies.engine.stretch import Population, policy_of
from slipstream.vector.kernel_env import KernelVectorEnv


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
    places = [Place(member, source.environment(member.config)) for member in members]
    population = Population(places, [None, None])
    for _ in range(3):
        population.iterate()
    found = score(places, population.policy)
    for m, (place, passes) in enumerate(zip(places, found, strict=True)):
        marks, times = by_hand(place, alone(population.policy, m))
        days, returns = [], []
        for group in (0, 1):  # records are group by group, symbols inside
            pair = [daily(marks[k], times[k]) for k in (2 * group, 2 * group + 1)]
            worth = [1000.0, *((a + b) / 2 for a, b in zip(pair[0][1], pair[1][1], strict=True))]
            days += pair[0][0]
            returns += [b / a - 1 for a, b in itertools.pairwise(worth)]
        assert passes.days.tolist() == days
        assert np.allclose(passes.returns, returns, rtol=1e-9, atol=1e-12)
        assert passes.group.tolist() == sorted(passes.group.tolist())
        assert len(passes.metrics) == 2
    marks, times = by_hand(places[1], alone(population.policy, 1))
    assert any(len(own) < len(time) for own, time in zip(marks, times, strict=True))  # ruined


def test_benchmark_is_the_market(engine):
    source = engine.source()
    member = engine.member(0, fold=0)
    place = Place(member, source.environment(member.config))
    passes = score([place], policy_of([place], [None]))[0]
    data = place.environment.loaded.data
    records = place.environment.loaded.params["fold0/test"]
    ends = [data.prices[[p.first, p.last], p.symbol] for p in records[:2]]
    worth = np.mean([last / first for first, last in ends])
    own = passes.benchmark[passes.group == 0]
    assert np.isclose(np.prod(1 + own), worth)


def test_holdout_is_one_group(engine):
    source = engine.source()
    member = engine.member(0, test="holdout")
    place = Place(member, source.environment(member.config))
    passes = score([place], policy_of([place], [None]))[0]
    assert set(passes.group.tolist()) == {0} and len(passes.metrics) == 1


def test_games_meet_the_same_episodes_in_every_fold_and_others_in_the_holdout(engine):
    source = engine.source()
    places = []
    for k, test in ((0, "test"), (1, "test"), (2, "holdout")):
        member = engine.member(k, env="cartpole", test=test, **{"evaluation.episodes": 40})
        places.append(Place(member, source.environment(member.config)))
    assert alike(places[0]) == alike(places[1]) != alike(places[2])
    policy = policy_of(places[:1], [None])
    first, second = (score([place], policy)[0] for place in (places[0], places[2]))
    assert len(first.returns) == 40 and not first.benchmark.any()
    assert first.returns.tolist() != second.returns.tolist()
    assert isinstance(policy, Policy)


def test_compiled_passes_are_those_step_by_step(engine):
    """The loop without Python gives the same bits, whoever is beside whom."""
    source = engine.source()
    members = [engine.member(k, **{"env.fee": 0.002 * k}) for k in range(3)]
    places = [Place(member, source.environment(member.config)) for member in members]
    population = Population(places, [None] * 3)
    for _ in range(2):
        population.iterate()
    policy = population.policy
    environment = places[0].environment.joined(
        [place.environment.records("holdout") for place in places]
    )
    records, env = environment.records("train"), environment.evaluation("train", 2, 3)
    noted = ("equity", "benchmark", "held")
    longest = max(len(environment.kernel.timeline(p, environment.loaded.data)) for p in records)
    slow, fast = np.zeros((2, longest, 6, 3))
    step_passes(env, policy, noted, slow)
    first = env.drain_episodes()
    assert PassLoop.fits(env, policy)
    loop = PassLoop(env, policy, noted)
    loop.reset()
    for begin in range(0, longest, 17):
        loop.run(begin, min(begin + 17, longest), fast)
    second = env.drain_episodes()
    assert np.array_equal(slow, fast)
    assert len(np.unique(slow[..., 2])) > 1
    order = np.argsort(second.e)
    assert sorted(second.e.tolist()) == list(range(6))
    assert np.array_equal(second.ret[order], first.ret[np.argsort(first.e)])


@pytest.mark.parametrize("env", ["toy", "cartpole"])
@pytest.mark.parametrize(
    ("wanted", "used"), [("auto", "compiled"), ("compiled", "compiled"), ("serial", "serial")]
)
def test_passes_are_stepped_by_the_backend_of_the_config(engine, monkeypatch, env, wanted, used):
    own = {"training.backend": wanted, "evaluation.episodes": 2, "evaluation.max_steps": 20}
    names = {} if env == "toy" else {"env": env}
    member = engine.member(0, **names, **own)
    place = Place(member, engine.source().environment(member.config))
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
    place = Place(member, replace(environment, loaded=loaded))
    with pytest.raises(KernelError, match=r"NaN or infinite.*step 0,"):
        score([place], policy_of([place], [None]))
