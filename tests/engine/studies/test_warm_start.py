"""A study whose sampler is told of another one's trials, and what that counts for."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from fake_pool import SPACE
from study_world import run_study

from slipstream.core.errors import ConfigError
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.warm_start import METADATA_KEY, warm_start
from slipstream.studies.search.sampler import TrialSampler, check_sampler
from slipstream.studies.space import SearchSpace
from slipstream.training.settings.config import resolve

FEW = {"confirmation": {"top": 1, "seeds": 1, "bootstrap": 50}, "final_seeds": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A study of 18 trials, of which one failed."""
    path = tmp_path_factory.mktemp("studies") / "first"
    return run_study(path, trials=18, study=FEW, fails=("search-00002-1",))


def trials_of(folder):
    with Ledger(folder.ledger, read_only=True) as ledger:
        return ledger.trials(), ledger.get_metadata(METADATA_KEY)


@pytest.mark.slow
def test_they_count_as_luck_and_as_no_trials(source, tmp_path):
    """The source is gone when the study goes on: what was taken is its own."""
    copy = shutil.copytree(source.path, tmp_path / "first")
    told = {**FEW, "from_study": str(copy)}
    warm = run_study(tmp_path / "warm", trials=5, study=told)
    trials, kept = trials_of(warm)
    assert len(trials) == 5 and len(kept["trials"]) == 17 and kept["begun"] == 18
    result = warm.result
    assert result["trials"]["started"] == 5
    assert result["warm_start"] == {
        "study": "first",
        "num_trials": 17,
        "num_skipped": 0,
        "num_started": 18,
    }
    assert result["evidence"]["deflated_sharpe"]["trials"] == 5 + 18
    assert {one["trial"] for one in result["confirmation"]["candidates"]} <= set(range(5))
    shutil.rmtree(copy)
    longer, _ = trials_of(run_study(tmp_path / "warm", trials=8, study=told))
    whole, _ = trials_of(
        run_study(tmp_path / "whole", trials=8, study={**FEW, "from_study": str(source.path)})
    )
    assert [one.suggestion.params for one in longer] == [one.suggestion.params for one in whole]
    cold, _ = trials_of(run_study(tmp_path / "cold", trials=5, study=FEW))
    assert trials[0].suggestion.params != cold[0].suggestion.params
    again = {**FEW, "from_study": str(tmp_path / "warm")}
    assert trials_of(run_study(tmp_path / "third", trials=2, study=again))[1]["begun"] == 18 + 8
    with pytest.raises(ConfigError, match="from_study"):
        run_study(tmp_path / "whole", trials=8, study=again)


def taken(source, space, tmp_path, settings=None, **study):
    base = resolve(source.base, settings or {})
    config = source.study.model_copy(update={"from_study": str(source.path), **study})
    folder = StudyFolder(tmp_path / "new")
    return warm_start(folder, base, config, SearchSpace.from_mapping(space, base))


def test_trials_outside_the_space_are_left_out(source, tmp_path):
    every = [one for one in trials_of(source)[0] if one.score is not None]
    narrow = {**SPACE, "agent.learning_rate": {"low": 1e-3, "high": 1e-2, "log": True}}
    found = taken(source, narrow, tmp_path)
    inside = [one for one in every if one.suggestion.params["agent.learning_rate"] >= 1e-3]
    assert [one["score"] for one in found.trials] == [one.score for one in inside]
    assert (
        found.num_skipped == len(every) - len(inside) > 0
        and str(found.num_skipped) in found.sentence
    )
    fixed = {name: one for name, one in SPACE.items() if name != "agent.activation"}
    found = taken(source, fixed, tmp_path, {"agent.activation": "relu"})
    relu = [one for one in every if one.suggestion.params["agent.activation"] == "relu"]
    assert [one["params"] for one in found.trials] == [
        {name: one.suggestion.params[name] for name in fixed} for one in relu
    ]
    more = {**SPACE, "agent.gamma": {"low": 0.9, "high": 0.999}}
    found = taken(source, more, tmp_path)
    assert {one["params"]["agent.gamma"] for one in found.trials} == {source.base.agent.gamma}
    with pytest.raises(ConfigError, match="17 finished trials, none with settings in this"):
        taken(source, {**SPACE, "agent.n_epochs": {"low": 20, "high": 30}}, tmp_path)


def test_constraints_are_of_the_new_study(source, tmp_path):
    found = taken(source, SPACE, tmp_path, constraints={"fills": 100.0})
    assert {tuple(one["violations"]) for one in found.trials} == {(300.0,)}
    config = source.study.model_copy(update={"constraints": {"fills": 100.0}})
    space = SearchSpace.from_mapping(SPACE, source.base)
    assert TrialSampler(space, config, found).ask(0) != TrialSampler(space, config, None).ask(0)
    with pytest.raises(
        ConfigError, match=r"first does not report\. It reports mean_exposure, fills"
    ):
        taken(source, SPACE, tmp_path, constraints={"drawdown": 0.2})


def test_few_trials_told_do_not_bring_back_what_the_other_study_drew(source, tmp_path):
    """The sampler draws at random until it knows ten trials: both studies have the same seed."""
    space, found = SearchSpace.from_mapping(SPACE, source.base), taken(source, SPACE, tmp_path)
    asker = TrialSampler(space, source.study, replace(found, trials=found.trials[:4]))
    asked = [asker.ask(trial) for trial in range(6)]
    drawn = [dict(one.suggestion.params) for one in trials_of(source)[0]]
    assert not any(params in drawn for params in asked)
    assert TrialSampler(space, source.study).ask(0) == drawn[0]


def test_studies_that_cannot_tell_are_refused(source, tmp_path):
    for settings, said in (
        ({"objective": "log_growth"}, "`study.objective` is sharpe, and here it is log_growth"),
        ({"fold_dispersion_penalty": 0.5}, "`study.fold_dispersion_penalty`"),
        ({"from_study": str(tmp_path / "run")}, "is not a study"),
    ):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "config.yaml").touch()
        with pytest.raises(ConfigError, match=said):
            taken(source, SPACE, tmp_path, **settings)
    config = source.study.model_copy(update={"from_study": str(source.path)})
    pendulum = resolve("pendulum", {"training.num_envs": 8})
    space = SearchSpace.from_mapping(None, pendulum)
    with pytest.raises(ConfigError, match=r"`env\.name` is cartpole, and here it is pendulum"):
        warm_start(StudyFolder(tmp_path / "new"), pendulum, config, space)
    own = SearchSpace.from_mapping(SPACE, source.base)
    with pytest.raises(ConfigError, match="cannot warm-start itself"):
        warm_start(source, source.base, config, own)
    empty = StudyFolder(shutil.copytree(source.path, tmp_path / "empty"))
    with Ledger(empty.ledger) as ledger:
        ledger._db.execute("DELETE FROM decisions")
    with pytest.raises(ConfigError, match="has no finished trial"):
        taken(empty, SPACE, tmp_path)
    random = config.model_copy(update={"sampler": "random"})
    with pytest.raises(ConfigError, match=r"cannot learn from `study\.from_study`"):
        check_sampler(random, own)
