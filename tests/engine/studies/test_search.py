"""The search over a fake pool: the same study in any order of outcomes, and after kills."""

from __future__ import annotations

import inspect
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from fake_pool import FakePool, HalvingPruner, plan

from slipstream.core.errors import ConfigError, ResourceError, VersionError
from slipstream.report.study.study_tables import failed
from slipstream.studies.record.ledger import Ledger, best_trials, count_states
from slipstream.studies.record.storage import (
    StorageMirror,
    open_storage,
    running_trial,
    storage_url,
)
from slipstream.studies.search import sampler as sampler_module
from slipstream.studies.search.pruner import Pruner
from slipstream.studies.search.sampler import TrialSampler, check_sampler
from slipstream.studies.search.search import Search
from slipstream.studies.space import SearchSpace
from slipstream.studies.statistics.returns import check_constraints

PRUNING = {"startup": 3}


def mirror(folder: Path, url: str | None = None, said: list | None = None) -> StorageMirror:
    say = (said if said is not None else []).append
    made = StorageMirror(url, folder, "one", {"space": "s"}, say)
    made.min_interval, made.max_cpu_share = 0.0, 1e9
    return made


def run(
    folder: Path, order: int = 0, trials: int = 12, fails=(), store=True, setup=None, tick=None
):
    folder.mkdir(exist_ok=True)
    setup = setup or plan(pruning=PRUNING)
    pool = FakePool(order, fails)
    with Ledger(folder / "ledger.db") as ledger:
        storage = mirror(folder) if store else None
        search = Search(setup, ledger, pool, HalvingPruner(setup.study), storage, trials)
        search.run((lambda: tick(search)) if tick else (lambda: None))
        if storage:
            storage.flush(last=True)
            storage.close()
        return contents(ledger), pool, search


def test_weights_of_the_search_are_kept_or_not(tmp_path):
    kept, pool, _ = run(tmp_path / "kept")
    lean = plan(pruning=PRUNING, keep_weights=False)
    same, other, _ = run(tmp_path / "lean", setup=lean)
    assert kept == same and pool.finished
    assert not other.finished and other.dropped == pool.dropped | pool.finished


def contents(ledger: Ledger):
    """Return the contents of a ledger without times."""
    asks = [(a.trial, a.time, dict(a.params)) for a in ledger.suggestions().values()]
    verdicts = [
        (v.trial, v.stage, v.milestone, v.time, v.kind, v.score) for v in ledger.decisions()
    ]
    outcomes = {
        key: (
            one.failed,
            one.steps,
            None if one.backtests is None else one.backtests.returns.tobytes(),
        )
        for key, one in ledger.outcomes("search").items()
    }
    return asks, verdicts, outcomes


def test_no_trial_takes_a_free_place_once_it_may_not(tmp_path):
    """Those in flight go on; a search that goes on keeps to the number."""
    setup = plan(pruning=PRUNING)
    with Ledger(tmp_path / "ledger.db") as ledger:
        search = Search(
            setup, ledger, FakePool(), HalvingPruner(setup.study), None, 12, max_concurrent_trials=2
        )
        search.can_start_trial = lambda: search.scheduler.num_asked < 5
        search.run()
        assert sorted(ledger.suggestions()) == list(range(5)) and ledger.get_metadata("cut") == 5
        assert [ask.time for ask in ledger.suggestions().values()].count(0) == 2
        before = contents(ledger)
        Search(
            setup, ledger, FakePool(), HalvingPruner(setup.study), None, 5, max_concurrent_trials=2
        ).run()
        assert contents(ledger) == before


def test_every_order_of_outcomes_gives_the_same_study(tmp_path):
    first, pool, _ = run(tmp_path / "a", order=1, store=False)
    asks, verdicts, _ = first
    kinds = [v[4] for v in verdicts]
    assert len(asks) == 12 and "pruned" in kinds and "complete" in kinds
    assert len(set(pool.trained)) == len(pool.trained)
    for order in range(2, 6):
        assert run(tmp_path / str(order), order=order, store=False)[0] == first


def test_what_ended_is_finished_or_dropped(tmp_path):
    _, pool, search = run(tmp_path, fails=["search-00001-2"], store=False)
    kinds = {n: v.kind for n, v in search.decisions.items()}
    assert kinds[1] == "failed" and "pruned" in kinds.values()
    for trial, kind in kinds.items():
        names = {f"search-{trial:05d}-{fold}" for fold in range(3)}
        assert names <= (pool.finished if kind == "complete" else pool.dropped)
    assert not pool.finished & pool.dropped


def test_a_pruned_trial_is_not_trained_on(tmp_path):
    _, pool, search = run(tmp_path, store=False)
    for trial, verdict in search.decisions.items():
        milestones = {m for name, m in pool.trained if name.startswith(f"search-{trial:05d}-")}
        end = 10 if verdict.kind == "complete" else verdict.milestone
        assert max(milestones) == end and verdict.milestone == end


def test_seeds_and_suggestions_follow_from_the_study_seed(tmp_path):
    same = run(tmp_path / "a", store=False, setup=plan(seed=5))[0]
    assert run(tmp_path / "b", store=False, setup=plan(seed=5))[0] == same
    other = run(tmp_path / "c", store=False, setup=plan(seed=6))[0]
    assert other[0] != same[0]


def test_more_trials_go_on_as_if_there_had_been_more_from_the_start(tmp_path):
    run(tmp_path / "a", trials=7, store=False)
    extended, pool, _ = run(tmp_path / "a", trials=12, store=False)
    assert extended == run(tmp_path / "b", trials=12, store=False)[0]
    assert not any(name.startswith("search-00000") for name, _ in pool.trained)


def test_a_cut_is_kept_by_a_resumed_study(tmp_path):
    def cut(search: Search) -> None:
        if search.scheduler.num_asked >= 6:
            search.stop_asking()

    first, _, search = run(tmp_path / "a", tick=cut, store=False)
    with Ledger(tmp_path / "a" / "ledger.db") as ledger:
        limit = ledger.get_metadata("cut")
    assert limit == len(first[0]) == search.scheduler.num_asked < 12
    assert run(tmp_path / "b", trials=limit, store=False)[0] == first


def test_optuna_storage_mirrors_the_ledger(tmp_path):
    (_, verdicts, _), _, search = run(tmp_path, fails=["search-00001-2"])
    storage = open_storage(storage_url(None, tmp_path))
    study = optuna.load_study(study_name="one", storage=storage)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == 1 and "RUNNING" not in states and len(states) == 12
    for trial in study.trials:
        verdict = search.decisions[trial.number]
        assert trial.value == verdict.score
        assert ("pruned" in trial.user_attrs) == (verdict.kind == "pruned")
        steps = [64 * v[2] for v in verdicts if v[0] == trial.number and v[5] is not None]
        assert list(trial.intermediate_values) == steps
    assert "diverged" in study.trials[1].user_attrs["failed"]


@pytest.mark.parametrize("url", ["sqlite", "journal"])
def test_a_storage_that_lags_is_brought_up_to_date(tmp_path, url):
    """The process died between the ledger's row and the storage's: no trial stays RUNNING."""
    setup = plan(pruning=PRUNING)
    (asks, _, _), _, search = run(tmp_path, store=False)
    late = mirror(tmp_path, url)
    late.check_trials({})
    early = {n: told for n, told in search._frozen_trials.items() if n < 5}
    for number, told in early.items():
        cut = (
            running_trial(told.params, told.distributions) if number >= 2 else told
        )  # 2, 3 and 4 were running
        late.update(number, cut)
    late.flush(last=True)
    late.close()
    said: list[str] = []
    with Ledger(tmp_path / "ledger.db") as ledger:
        again = mirror(tmp_path, url, said)
        Search(setup, ledger, FakePool(), HalvingPruner(setup.study), again, 12).run()
        again.flush(last=True)
    study = optuna.load_study(study_name="one", storage=open_storage(storage_url(url, tmp_path)))
    assert [t.state.is_finished() for t in study.trials] == [True] * len(asks)
    assert [t.params for t in study.trials] == [params for _, _, params in asks]
    assert not said


def test_what_the_ledger_lost_is_not_in_the_storage(tmp_path, monkeypatch):
    """The ledger's disk is full, the storage lies elsewhere: the study can be gone on with."""
    setup = plan(pruning=PRUNING)
    with Ledger(tmp_path / "ledger.db") as ledger:
        whole = ledger.transaction

        @contextmanager
        def full():
            before = len(ledger.suggestions())
            with whole():
                yield
                if 0 < before < len(ledger.suggestions()):
                    ledger._db.execute("ROLLBACK")
                    raise ResourceError("the disk is full")

        monkeypatch.setattr(ledger, "transaction", full)
        store = mirror(tmp_path)
        search = Search(setup, ledger, FakePool(1), HalvingPruner(setup.study), store, 40)
        with pytest.raises(ResourceError, match="full"):
            search.run()
        store.flush(last=True)
        params = {number: ask.params for number, ask in ledger.suggestions().items()}
        assert 0 < len(params) < len(search.suggestions())
    mirror(tmp_path).check_trials(params)


def test_another_study_of_that_name_is_refused_with_the_difference(tmp_path):
    StorageMirror(None, tmp_path, "one", {"space": {"a": 1}}, print).close()
    with pytest.raises(ConfigError, match=r"`space\.a` was 1 and is 2"):
        StorageMirror(None, tmp_path, "one", {"space": {"a": 2}}, print)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_kill_before_it_is_said_whose_a_study_is(tmp_path, kind):
    """Between the two writings the storage has a study that nobody made."""
    url = storage_url(kind, tmp_path)
    optuna.create_study(study_name="one", storage=open_storage(url), direction="maximize")
    mirror(tmp_path, url=url).close()
    mirror(tmp_path, url=url).close()
    again = optuna.load_study(study_name="one", storage=open_storage(url))
    assert "slipstream" in again.user_attrs


def test_a_study_of_somebody_elses_is_not_taken(tmp_path):
    setup, url = plan(), storage_url(None, tmp_path)
    theirs = optuna.create_study(study_name="one", storage=open_storage(url), direction="maximize")
    setup.space.ask(theirs)
    with pytest.raises(ConfigError, match="not made by slipstream"):
        mirror(tmp_path, url=url)


def test_trials_that_the_ledger_does_not_know_are_refused(tmp_path):
    setup = plan()
    store = mirror(tmp_path)
    study = optuna.load_study(study_name="one", storage=open_storage(store.url))
    setup.space.ask(study)
    with pytest.raises(ConfigError, match="not in this study's folder"):
        mirror(tmp_path).check_trials({})


SCRIPT = """
import signal, sys
sys.path[:0] = {folders!r}
from dataclasses import replace
from pathlib import Path
import test_search as t
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
setup = t.plan(pruning=t.PRUNING)
pool = t.FakePool(int(sys.argv[2]), (), float(sys.argv[3]))
with t.Ledger(folder / "ledger.db") as ledger:
    print("begun", flush=True)
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[4]))
    store = t.mirror(folder)
    t.Search(setup, ledger, pool, t.HalvingPruner(setup.study), store, 12).run()
    store.flush(last=True)
print("ended", flush=True)
"""


def kill_and_resume(folder: Path, kills: int, seconds: float) -> int:
    """Kills the study `kills` times at random moments; returns how many of them hit it.

    It sets its own alarm, which nothing catches: who waits in another process may come too late.
    """
    draws, hits = random.Random(kills), 0
    here = Path(__file__).parent
    code = SCRIPT.format(folders=[str(here), str(here.parent / "helpers")])
    for attempt in range(1, 1000):
        moment = draws.uniform(0.001, 0.6) if hits < kills else 0.0
        with subprocess.Popen(
            [sys.executable, "-c", code, *map(str, (folder, attempt, seconds, moment))],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        ) as child:
            assert child.stdout is not None
            told = child.stdout.read()
        if told == "begun\nended\n":
            return hits
        assert told == "begun\n" and child.returncode == -signal.SIGALRM, "it died by itself"
        hits += 1
    return hits


def check_killed(folder: Path, kills: int, seconds: float) -> None:
    expected = run(folder / "whole", store=False)[0]
    assert kill_and_resume(folder / "killed", kills, seconds) == kills
    with Ledger(folder / "killed" / "ledger.db") as ledger:
        assert contents(ledger) == expected
    storage = open_storage(storage_url(None, folder / "killed"))
    study = optuna.load_study(study_name="one", storage=storage)
    assert [t.params for t in study.trials] == [params for _, _, params in expected[0]]
    assert all(t.state.is_finished() for t in study.trials)


@pytest.mark.slow
def test_killed_studies_end_with_every_trial_counted_once(tmp_path):
    check_killed(tmp_path, 3, 0.02)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    check_killed(tmp_path, 20, 0.3)


class NeverPruner(HalvingPruner):
    """The best trial hardly trades."""

    def decide(self, event, outcomes, last):
        found = super().decide(event, outcomes, last)
        if last and event.trial == 1:
            return replace(found, score=99.0, folds=[{"score": 99.0, "inactive": True}])
        return found


def test_a_trial_that_hardly_trades_is_marked_and_never_the_best(tmp_path):
    setup = plan(pruning={"enabled": False})
    with Ledger(tmp_path / "ledger.db") as ledger:
        storage = mirror(tmp_path)
        search = Search(setup, ledger, FakePool(), NeverPruner(setup.study), storage, 6)
        search.run()
        storage.close()
    assert search.decisions[1].score == 99.0
    best = search.best
    assert best is not None and best.trial != 1
    assert best.score == max(v.score for v in search.decisions.values() if v.trial != 1)
    url = storage_url(None, tmp_path)
    trials = optuna.load_study(study_name="one", storage=url).trials
    assert [t.number for t in trials if "inactive" in t.user_attrs] == [1]


STARTS = [{"agent.learning_rate": 3e-4, "agent.activation": "relu"}, {"agent.n_epochs": 5}]


def test_the_first_trials_have_the_settings_that_they_start_with(tmp_path):
    """The sampler adds the others, also where the study is gone on with."""
    setup, plain = plan(pruning=PRUNING, start_with=STARTS), plan(pruning=PRUNING)
    whole = run(tmp_path / "a", setup=setup, store=False)[0]
    other = [params for _, _, params in run(tmp_path / "b", setup=plain, store=False)[0][0]]
    asked = [params for _, _, params in whole[0]]
    for k, start in enumerate(STARTS):
        assert start.items() <= asked[k].items() and asked[k].keys() == other[k].keys()
    assert asked[2:4] == other[2:4]  # in flight before any of them ended
    run(tmp_path / "c", trials=1, setup=setup, store=False)
    assert run(tmp_path / "c", setup=setup, store=False)[0] == whole


def test_samplers_are_named_as_optuna_writes_them_too():
    for name in ("TPE", "random", "GP", "CMA-ES", "QMC"):
        assert plan(sampler=name).study.sampler == name.lower().replace("-", "")


@pytest.mark.parametrize(
    "name",
    ["random", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gp", "cmaes", "qmc"))],
)
def test_a_sampler_suggests_the_same_wherever_it_was_stopped(tmp_path, name):
    needed = {"gp": "torch", "cmaes": "cmaes"}
    if name in needed:
        pytest.importorskip(needed[name])
    setup = plan(pruning=PRUNING, sampler=name, start_with=STARTS[:1])
    whole, _, _ = run(tmp_path / "a", trials=14, setup=setup, store=False)
    for order, trials in enumerate((5, 12, 14)):
        again, _, _ = run(tmp_path / "b", order, trials, setup=setup, store=False)
    assert again == whole
    asked = [params for _, _, params in whole[0]]
    assert len({repr(params) for params in asked}) == 14  # no point of a sequence comes twice
    drawn = TrialSampler(setup.space, setup.study.model_copy(update={"sampler": "random"}))
    random = [drawn.ask(trial) for trial in range(14)]
    assert (asked == random) == (name == "random")


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("tpe", {"consider_prior"}),  # one value is left
        ("gp", set()),
        ("cmaes", {"x0", "source_trials", "restart_strategy", "inc_popsize"}),
        ("qmc", set()),
        ("random", set()),
    ],
)
def test_other_defaults_of_a_sampler_would_change_nothing(monkeypatch, name, left):
    """Whatever Optuna lets one say is said."""
    given = {}
    setup = plan(sampler=name)
    sampler = type(TrialSampler(setup.space, setup.study)._optuna_sampler(0))
    known = set(inspect.signature(sampler.__init__).parameters) - {"self"}

    class Recording(sampler):
        def __init__(self, **settings):
            given.update(settings)
            super().__init__(**settings)

    monkeypatch.setattr(sampler_module, sampler.__name__, Recording)
    TrialSampler(setup.space, setup.study)
    assert known - given.keys() == left


def test_what_tpe_takes_for_good_is_ours(monkeypatch, tmp_path):
    setup = plan(sampler="tpe")
    before = run(tmp_path / "a", trials=30, setup=setup, store=False)[0]
    monkeypatch.setattr(optuna.samplers._tpe.sampler, "default_gamma", lambda trials: trials // 2)
    assert run(tmp_path / "b", trials=30, setup=setup, store=False)[0] == before


def test_a_sampler_that_suggests_otherwise_by_now_is_refused(tmp_path):
    """As with another version of SciPy, whose points were scrambled otherwise."""
    setup = plan(pruning=PRUNING, sampler="qmc")
    run(tmp_path, trials=5, setup=setup, store=False)
    setup = plan(pruning=PRUNING, sampler="qmc", seed=1)
    with pytest.raises(VersionError, match="Optuna, cmaes or SciPy is another version"):
        run(tmp_path, trials=5, setup=setup, store=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"agent.activation": {"choices": ["tanh", "relu"]}}, "at least 2 of them.* has 0"),
        ({"agent.n_epochs": {"low": 1, "high": 8}, "agent.gamma": {"low": 0.9, "high": 0.9}}, "1"),
    ],
)
def test_cmaes_needs_numbers(settings, said):
    setup = plan(sampler="cmaes")
    space = SearchSpace.from_mapping(settings, setup.base)
    with pytest.raises(ConfigError, match=said):
        check_sampler(setup.study, space)


@pytest.mark.parametrize(("name", "module"), [("cmaes", "cmaes"), ("gp", "torch")])
def test_a_sampler_whose_library_is_missing_names_the_command(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    setup = plan(sampler=name)
    with pytest.raises(ResourceError, match=f"pip install '{module}>="):
        check_sampler(setup.study, setup.space)


class TurningPool(FakePool):
    """In the second block of the last fold an account turns over as often as it has epochs."""

    def _outcome(self, member, milestone):
        found = super()._outcome(member, milestone)
        assert found.backtests is not None
        often = member.config.agent.n_epochs if member.fold == "fold2" else 0
        metrics = [{**one, "turnover": k * often} for k, one in enumerate(found.backtests.metrics)]
        return replace(found, backtests=replace(found.backtests, metrics=metrics))


class TemptingPool(TurningPool):
    """More epochs earn more, so that a sampler without the constraint proposes many."""

    def _outcome(self, member, milestone):
        outcome = super()._outcome(member, milestone)
        returns = outcome.backtests.returns + 0.001 * member.config.agent.n_epochs
        return replace(outcome, backtests=replace(outcome.backtests, returns=returns))


def constrained(folder: Path, trials: int, order=0, pool=TurningPool, **study):
    folder.mkdir(exist_ok=True)
    setup = plan(pruning={"startup": 3}, **study)
    with Ledger(folder / "ledger.db") as ledger:
        judge = Pruner(setup.study, setup.market)
        search = Search(setup, ledger, pool(order), judge, None, trials)
        search.run()
        return ledger.trials(), contents(ledger), search


def test_a_trial_beyond_a_constraint_cannot_win_and_the_sampler_learns_it(tmp_path):
    limits = {"constraints": {"turnover": 3}}
    found, whole, search = constrained(tmp_path / "a", 40, **limits)
    beyond = {one.number for one in found if one.suggestion.params["agent.n_epochs"] > 3}
    bad = [one for one in found if one.final_state == "violating"]
    assert bad and {one.number for one in bad} == {
        number for number in beyond if found[number].state == "complete"
    }
    often = bad[0].suggestion.params["agent.n_epochs"]
    assert bad[0].reason == f"turnover is {often} (at most 3)"
    best = best_trials(found)
    assert best and not beyond & {one.number for one in best}
    assert count_states(one.last_decision for one in found)["violating"] == len(bad)
    assert {n for n, told in search._frozen_trials.items() if "violates" in told.user_attrs} == {
        one.number for one in bad
    }
    assert [str(bad[0].number), bad[0].reason] in failed(found)[0].rows
    early, late = set(range(20)), set(range(20, 40))
    assert 2 * len(beyond & late) < len(beyond & early)
    constrained(tmp_path / "c", 20, 3, **limits)
    assert constrained(tmp_path / "c", 40, 4, **limits)[1] == whole


def test_a_constrained_study_proposes_fewer_violations_than_an_unconstrained_one(tmp_path):
    """In the second half of a search, summed over seeds, so that it depends on no single draw."""
    late = {3: 0, None: 0}
    for seed in range(4):
        for limit in late:
            constraints = {} if limit is None else {"turnover": limit}
            trials, _, _ = constrained(
                tmp_path / f"{seed}-{limit}",
                40,
                pool=TemptingPool,
                seed=seed,
                constraints=constraints,
            )
            late[limit] += sum(
                trial.suggestion.params["agent.n_epochs"] > 3 for trial in trials[20:]
            )
    assert 2 * late[3] < late[None], late


@pytest.mark.slow
def test_gaussian_processes_learn_constraints_too(tmp_path):
    pytest.importorskip("torch")
    limits = {"sampler": "gp", "constraints": {"turnover": 3}, "max_concurrent_trials": 2}
    whole = constrained(tmp_path / "a", 13, **limits)[1]
    constrained(tmp_path / "b", 12, 3, **limits)
    assert constrained(tmp_path / "b", 13, 4, **limits)[1] == whole
    assert whole[0] != constrained(tmp_path / "c", 13, **{**limits, "constraints": {}})[1][0]


def test_constraints_that_nobody_could_keep_to_are_refused():
    known = ["turnover", "fills"]
    check_constraints({"turnover": 3.0}, known, "portfolio")
    with pytest.raises(ConfigError, match=r"`drawdown`, which portfolio .* turnover, fills"):
        check_constraints({"drawdown": 0.2}, known, "portfolio")
    setup = plan(sampler="random", constraints={"turnover": 3})
    with pytest.raises(ConfigError, match="take tpe or gp"):
        check_sampler(setup.study, setup.space)
