"""`slipstream tune` and `slipstream study` over a pool that trains nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import click.utils
import numpy as np
import optuna
import pytest
from fake_pool import MARKET, SPACE, FakePool

import slipstream as package
from slipstream.core.child_process import JOB_VARIABLE
from slipstream.core.storage.logbook import Logbook
from slipstream.core.storage.status_file import LOG, progress_parts, read_events, read_status
from slipstream.jobs.queue import STOPPED, JobQueue
from slipstream.report.study import study_page as page_module
from slipstream.rl.agents.ppo.ppo import PPO
from slipstream.rl.nets.policy_file import pack
from slipstream.studies import start
from slipstream.studies import study as study_module
from slipstream.studies.outcome import confirmation as confirmation_module
from slipstream.studies.outcome import final_model as winner_module
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.record.storage import open_storage
from slipstream.studies.search.forecast import MeasuredSpeed
from slipstream.studies.search.session import EnvInfo, Session
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.parts import HoldoutRegister
from slipstream.training.settings.config import RunConfig

CONFIG = f"""
env: cartpole
agent: {{n_steps: 8, batch_size: 32}}
training: {{num_envs: 8, total_timesteps: 640}}
study:
  max_concurrent_trials: 4
  pruning: {{startup: 3}}
  confirmation: {{top: 3, seeds: 2, bootstrap: 200}}
  final_seeds: 2
  space: {json.dumps(SPACE)}
"""


class PolicyPool(FakePool):
    """A fake pool whose policies are untrained."""

    def policy(self, name: str):
        config = RunConfig.from_mapping({"env": "cartpole"})
        spec = resolve_environment("cartpole", config.env_settings).spec
        agent = PPO(config.agent, spec, [1], 8)
        return pack(agent.policy)


class FakeMachinery:
    """Settings of a test: market, hash, speed, failures, time of the interrupt."""

    market, sha, seconds = MARKET, "abc", 0.0
    fails: tuple[str, ...] = ()
    interrupt_after: int | None = None
    edge = 0.0
    pools: list[PolicyPool]

    def __init__(self, workers, group_size, *_) -> None:
        pass

    def load_env(self, base, study):
        spec = resolve_environment("cartpole", base.env_settings).spec
        folds = {
            "paths": [[0, 0, 1, 1, 2, 2]],
            "groups": [[86_400 * 30 * k, 86_400 * 30 * (k + 1)] for k in range(6)],
            "holdout": [0, 86_400 * 200],
            "folds": [{"groups": [2 * k, 2 * k + 1], "train_bars": 300} for k in range(3)],
        }
        facts = {"market_sha256": self.sha, "folds": folds} if self.market else {}
        return EnvInfo(replace(spec, market=self.market), 3, facts, ("a note",))

    def pool(self, folder):
        pool = PolicyPool(0, self.fails, self.seconds)
        if self.interrupt_after is not None:
            collect, left = pool.collect, [self.interrupt_after]

            def interrupted(timeout):
                left[0] -= 1
                if left[0] == 0:
                    folder.request_stop(now=True)
                return collect(timeout)

            pool.collect = interrupted
        FakeMachinery.pools.append(pool)
        return pool


@pytest.fixture
def machinery(monkeypatch, tmp_path):
    """The fake machinery, a class whose attributes a test may set; CONFIG is in c.yaml."""
    made = type("Machinery", (FakeMachinery,), {})
    FakeMachinery.pools = []
    monkeypatch.setattr(start, "PoolFactory", made)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return made


def tune(slipstream, *more):
    return slipstream(
        "tune", "c.yaml", "--n-trials", "8", "--study-name", "one", "--no-report", *more
    )


def result(tmp_path):
    return json.loads((tmp_path / "studies" / "one" / "result.json").read_text())


def test_a_study_from_search_to_holdout(slipstream, machinery, tmp_path, monkeypatch):
    import fake_pool

    monkeypatch.setattr(fake_pool, "SKILL", 0.002)  # which so few trials hardly show by luck
    done = tune(slipstream)
    assert done.code == 0, done.err
    assert "Using Vectorized Environments: 8 parallel envs" in done.out
    assert "Forecast: search" in done.out and "Note: a note" in done.out
    first, second = "The study one: loading cartpole.", "Training a slice of the study"
    assert done.out.index(first) < done.out.index("a note") < done.out.index(second)
    folder = tmp_path / "studies" / "one"
    names = {path.name for path in folder.iterdir()}
    assert {"study.yaml", "provenance.json", "study.db", "ledger.db", "result.json"} <= names
    found = result(tmp_path)
    assert found["trials"]["started"] == 8
    assert read_status(folder).liveness() == "complete"
    events = read_events(folder)
    assert [one.get("phase", one["event"]) for one in events] == [
        "started",
        "search",
        "confirmation",
        "final training",
        "ended",
    ]
    assert slipstream("status", "one").out == slipstream("study", "status", "one").out
    assert len(found["confirmation"]["candidates"]) == 3
    study = optuna.load_study(
        study_name="one", storage=open_storage(f"sqlite:///{folder / 'study.db'}")
    )
    assert len(study.trials) == 8


def test_a_study_is_known_by_its_name_from_every_folder(
    slipstream, machinery, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert tune(slipstream).code == 0
    commands = [("study", one, "one") for one in ("status", "best", "export", "report", "stop")]
    commands += [("status", "one"), ("doctor", "one"), ("resume", "one", "--no-report")]
    here = [slipstream(*words) for words in commands]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for words, before in zip(commands, here, strict=True):
        there = slipstream(*words)
        assert (there.code, before.code) == (0, 0), (words, there.err, before.err)
        if words[1] not in ("report", "one"):
            assert there.out == before.out, words
    assert not list(Path().iterdir())
    unknown = slipstream("study", "status", "two")
    assert unknown.code == 2 and "There is no study two" in unknown.err


def test_a_name_that_several_studies_have_is_asked_about(
    slipstream, machinery, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text(CONFIG)
        monkeypatch.chdir(tmp_path / name)
        assert tune(slipstream).code == 0
    monkeypatch.chdir(tmp_path)
    for words in (("study", "status", "one"), ("doctor", "one"), ("status", "one")):
        found = slipstream(*words)
        assert found.code == 2 and "2 are called one: give its path" in found.err


@pytest.mark.slow
def test_a_study_is_listed_by_its_name(slipstream, machinery, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tune(slipstream)
    told = slipstream("jobs", "--all").out
    (row,) = [line.split() for line in told.splitlines()[1:]]
    assert row[:3] == ["one", "study", "complete"]
    assert row[-1] == str(tmp_path / "studies" / "one")


@pytest.mark.slow
def test_a_study_never_goes_blank(machinery, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    machinery.seconds = 0.002
    monkeypatch.setattr("fake_pool.SKILL", 0.002)  # what is confirmed is trained once more
    package.tune(
        "c.yaml", study={"n_trials": 8}, study_name="one", report=False, on_progress=seen.append,
        log=lambda sentence: None,
    )  # fmt: skip
    after = [one for one in seen if one.phase in ("confirmation", "final training")]
    assert {one.phase for one in after} == {"confirmation", "final training"}
    for one in after:
        assert sum(one.counts[kind] for kind in ("complete", "pruned", "failed")) == 8
        assert one.best["trial"] >= 0 and one.rate > 0 and one.eta > 0
        assert len(one.running) == one.total - one.completed
        told = " ".join(progress_parts(one))
        assert "ETA" in told and "best" in told
    assert [one.phase for one in seen[:2]] == ["loading", "measuring"]
    log = (tmp_path / "studies" / "one" / LOG).read_text()
    for told in ("Using Vectorized Environments: 8 parallel envs", "Forecast: search", "a note",
                 "confirmation: ", "final training: 2 members"):  # fmt: skip
        assert told in log


@pytest.mark.slow
def test_the_same_study_again_is_left_as_it_is(slipstream, machinery, tmp_path):
    tune(slipstream)
    before = result(tmp_path)
    machinery.pools.clear()
    assert tune(slipstream).code == 0
    assert all(name.startswith("measure") for pool in machinery.pools for name, _ in pool.trained)
    after = result(tmp_path)
    for changing in ("finished", "seconds", "sha256"):
        del before[changing], after[changing]
    assert after == before
    done = slipstream("resume", "one")
    assert done.code == 0 and "is complete" in done.out


def test_another_space_under_the_same_name_is_refused(slipstream, machinery, tmp_path):
    tune(slipstream)
    done = tune(slipstream, "--set", "study.space={agent.n_epochs: {low: 1, high: 3}}")
    assert done.code == 2
    assert "started with other settings" in done.err and "`space.agent." in done.err


def test_another_minor_version_of_optuna_is_refused(slipstream, machinery, tmp_path, monkeypatch):
    machinery.interrupt_after = 12
    tune(slipstream)
    machinery.interrupt_after = None
    asked = tmp_path / "studies" / "one" / "ledger.db"
    before = asked.read_bytes()
    version = metadata.version
    here = version("optuna")
    major, minor = map(int, here.split(".")[:2])

    def pretend(other):
        told = {"optuna": other}
        monkeypatch.setattr(metadata, "version", lambda name: told.get(name) or version(name))

    pretend(f"{major}.{minor + 1}.3")
    done = slipstream("resume", "one")
    assert done.code == 2 and asked.read_bytes() == before
    assert f"begun with Optuna {major}.{minor}, and this is Optuna {major}.{minor + 1}" in done.err
    assert f"pip install 'optuna=={major}.{minor}.*'" in done.err
    pretend(f"{major}.{minor}.99")
    done = slipstream("resume", "one", "--no-report")
    assert done.code == 0, done.err
    assert f"optuna was {here} and is {major}.{minor}.99" in done.out  # said, and gone on with


def test_changed_prices_are_refused_with_their_hash(slipstream, machinery, tmp_path):
    tune(slipstream)
    machinery.sha = "fed"
    done = tune(slipstream)
    assert done.code == 2 and "abc" in done.err and "fed" in done.err
    assert result(tmp_path)["trials"]["started"] == 8


def test_an_interrupted_study_says_how_to_go_on_and_ends_the_same(slipstream, machinery, tmp_path):
    tune(slipstream)
    whole = result(tmp_path)
    (tmp_path / "studies").rename(tmp_path / "before")
    machinery.interrupt_after = 12
    done = tune(slipstream)
    assert done.code == 130 and "slipstream resume one" in done.err
    status = slipstream("study", "status", "one")
    assert status.code == 0 and "No process works on it" in status.out
    machinery.interrupt_after = None
    assert slipstream("resume", "one", "--no-report").code == 0
    again = result(tmp_path)
    for changing in ("finished", "seconds", "forecast", "deployed", "sentences", "sha256"):
        whole.pop(changing), again.pop(changing)
    assert again == whole


def test_later_studies_count_the_trials_that_were_asked_before_a_stop(
    slipstream, machinery, tmp_path
):
    told = []

    class Register(HoldoutRegister):
        def end_search(self, study, trials, beside):
            told.append(trials)

    load_env = machinery.load_env
    machinery.load_env = lambda *given: replace(load_env(*given), holdout_register=Register())
    machinery.interrupt_after = 12
    assert tune(slipstream).code == 130
    with Ledger(tmp_path / "studies" / "one" / "ledger.db", read_only=True) as ledger:
        assert told == [len(ledger.suggestions())] and 0 < told[0] < 8
    machinery.interrupt_after = None
    assert slipstream("resume", "one", "--no-report").code == 0
    assert told[1:] == [8]


def test_a_study_that_is_stopped_before_its_forecast_is_listed_with_its_trials(
    slipstream, machinery, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    machinery.interrupt_after = 1
    assert tune(slipstream).code == 130
    assert "one   study  stopped  0 of 8 trials  " in slipstream("jobs").out
    assert "0 of 8 trials" in slipstream("status", "one").out


def test_stop_cuts_the_search_and_goes_on_to_the_end(slipstream, machinery, tmp_path, monkeypatch):
    collect = FakePool.collect

    def stopping(self, timeout):
        if any(name.startswith("search-00004") for name, _ in self.trained):
            slipstream("study", "stop", "one")
        return collect(self, timeout)

    monkeypatch.setattr(FakePool, "collect", stopping)
    done = slipstream("tune", "c.yaml", "--n-trials", "40", "--study-name", "one", "--no-report")
    assert done.code == 0, done.err
    found = result(tmp_path)
    assert 5 <= found["trials"]["started"] == found["trials"]["cut"] < 40
    assert len(found["confirmation"]["candidates"]) > 0


def test_hours_that_hold_no_trial_with_its_confirmation_are_refused(
    slipstream, machinery, tmp_path
):
    done = tune(slipstream, "--hours", "1e-7")
    assert done.code == 2 and not (tmp_path / "studies" / "one").exists()
    enough = re.search(r"--hours 1e-07 leaves .* Give --hours ([\d.e+-]+), or lower", done.err)
    assert enough and float(enough[1]) > 1e-7
    assert tune(slipstream, "--hours", "1").code == 0


def test_hours_that_end_in_a_later_phase_stop_the_study_there(
    slipstream, machinery, tmp_path, monkeypatch
):
    train = Session.train

    def late(self, jobs, phase, later=0.0):
        self.deadline = time.monotonic()  # what was before took longer than forecast
        return train(self, jobs, phase, later)

    monkeypatch.setattr(Session, "train", late)
    place = {"python": sys.executable, "cwd": str(tmp_path), "variables": {}}
    with JobQueue(tmp_path / "queue") as queue:
        job = queue.add("study", tmp_path / "studies" / "one", ["tune"], ["resume"], place)
        monkeypatch.setenv(JOB_VARIABLE, f"{queue.folder}:{job.id}")
        done = tune(slipstream, "--hours", "1")
        assert queue.job(job.id).target_state == STOPPED  # its supervisor begins it no more
    assert done.code == 130
    assert "The time budget ended during: confirmation." in done.err
    assert "slipstream resume one" in done.err
    monkeypatch.setattr(Session, "train", train)
    assert slipstream("resume", "one", "--no-report").code == 0
    assert result(tmp_path)["confirmation"]["candidates"]


def test_hours_begin_with_few_trials_if_few_are_forecast_to_fit(
    slipstream, machinery, tmp_path, monkeypatch
):
    measured = MeasuredSpeed(100.0, 0.0, None, 12)
    monkeypatch.setattr(study_module, "measure_speed", lambda *_: measured)
    done = tune(slipstream, "--hours", "0.069", "--workers", "1")
    assert done.code == 0, done.err
    with Ledger(tmp_path / "studies" / "one" / "ledger.db", read_only=True) as ledger:
        begun = [ask.trial for ask in ledger.suggestions().values() if ask.time == 0]
        assert len(begun) == ledger.get_metadata("in_flight") == 2  # the config allows four
        kinds = [verdict.kind for verdict in ledger.decisions()]
    assert "complete" in kinds and "timed_out" not in kinds


def test_hours_cut_trials_in_flight_and_a_resume_keeps_to_that(
    slipstream, machinery, tmp_path, monkeypatch
):
    left = iter([1e6] * 6)
    monkeypatch.setattr(Session, "time_left", property(lambda self: next(left, 1e-3)))
    done = tune(slipstream, "--hours", "1")
    assert done.code == 0, done.err
    trials = result(tmp_path)["trials"]
    assert (
        trials["timed_out"] >= 1
        and f"running trials are stopped: {trials['timed_out']}" in done.out
    )
    assert trials["complete"] >= 1  # before that there is nothing to confirm: it is waited for
    assert trials["started"] == sum(
        trials[one] for one in ("complete", "pruned", "failed", "timed_out")
    )
    with Ledger(tmp_path / "studies" / "one" / "ledger.db", read_only=True) as ledger:
        kinds = {verdict.trial: verdict.kind for verdict in ledger.decisions()}
        before = [vars(one) for one in ledger.decisions()]
    assert list(kinds.values()).count("timed_out") == trials["timed_out"]
    candidates = result(tmp_path)["confirmation"]["candidates"]
    assert all(kinds[one["trial"]] == "complete" for one in candidates)
    assert len(candidates) <= 1
    (tmp_path / "studies" / "one" / "result.json").unlink()
    machinery.pools.clear()
    assert slipstream("resume", "one", "--no-report").code == 0
    assert result(tmp_path)["trials"] == trials
    assert result(tmp_path)["confirmation"]["candidates"] == candidates
    assert [name for name, _ in machinery.pools[0].trained if "search" in name] == []
    with Ledger(tmp_path / "studies" / "one" / "ledger.db", read_only=True) as ledger:
        assert [vars(one) for one in ledger.decisions()] == before


@pytest.mark.slow
def test_failed_trials_are_reported_as_failed(slipstream, machinery, tmp_path):
    machinery.fails = ("search-00002-1",)
    assert tune(slipstream).code == 0
    assert result(tmp_path)["trials"]["failed"] == 1
    status = slipstream("study", "status", "one").out
    assert "failed: trial 2: search-00002-1: its loss is NaN" in status


def test_export_and_best(slipstream, machinery, tmp_path):
    tune(slipstream)
    rows = list(csv.DictReader(io.StringIO(slipstream("study", "export", "one").out)))
    assert [row["number"] for row in rows] == [str(n) for n in range(8)]
    assert {"params.agent.n_epochs", "folds.2", "score", "state"} <= set(rows[0])
    done = slipstream("study", "export", "one", "--out", "trials.json")
    assert done.code == 0
    trials = json.loads((tmp_path / "trials.json").read_text())["trials"]
    assert trials[3]["params"]["agent.n_epochs"] == int(rows[3]["params.agent.n_epochs"])
    text = slipstream("study", "best", "one", "--trial", "3").out
    (tmp_path / "best.yaml").write_text(text)
    from slipstream.training.settings.config import resolve

    config = resolve(str(tmp_path / "best.yaml"))
    assert config.agent.n_epochs == trials[3]["params"]["agent.n_epochs"]
    assert slipstream("study", "best", "one", "--trial", "99").code == 2
    assert slipstream("study", "export", "one", "--format", "xml").code == 2


def test_games_are_scored_by_their_return_and_have_no_holdout(slipstream, machinery, tmp_path):
    machinery.market = None
    done = tune(slipstream)
    assert done.code == 0, done.err
    found = result(tmp_path)
    assert not found["market"] and found["winner"] is not None
    assert found["holdout"]["opening"] == 0
    import slipstream as package

    study = StudyFolder(tmp_path / "studies" / "one")
    outcome = study.outcome
    assert outcome.winner == found["winner"]["trial"] and not outcome.forced
    assert (
        outcome.params == found["winner"]["params"] and outcome.best_score == found["best"]["score"]
    )
    assert outcome.num_trials["started"] == 8 and outcome.holdout_return is None
    assert str(outcome).splitlines() == found["sentences"]
    assert repr(outcome).startswith(f"<StudyOutcome: winner trial {outcome.winner}, trials 8, best")
    assert package.status(study).completed == 8 and package.stop(study) is False
    policy = package.load_policy(study)
    assert policy.act(np.zeros((3, 4), np.float32)).shape == (3,)
    manifest = json.loads((tmp_path / "studies" / "one" / "policy" / "manifest.json").read_text())
    assert manifest["study"] == "one" and manifest["trial"] == found["winner"]["trial"]


def test_no_winner_deploys_nothing_unless_forced(slipstream, machinery, tmp_path, monkeypatch):
    import fake_pool

    monkeypatch.setattr(fake_pool, "SKILL", -0.02)
    done = tune(slipstream)
    assert "nothing is recommended" in done.out
    found = result(tmp_path)
    assert found["winner"] is None and found["holdout"] is None and found["deployed"] is None
    assert not (tmp_path / "studies" / "one" / "policy").exists()
    done = slipstream("resume", "one", "--force-deploy", "--no-report")
    assert done.code == 0 and "Deployed by force" in done.out
    assert (tmp_path / "studies" / "one" / "policy" / "manifest.json").is_file()
    assert result(tmp_path)["holdout"]["opening"] == 1


@pytest.mark.slow
def test_the_refit_is_labelled(slipstream, machinery, tmp_path, monkeypatch):
    import fake_pool

    monkeypatch.setattr(fake_pool, "SKILL", 0.02)
    assert tune(slipstream, "--final-refit").code == 0
    manifest = json.loads(
        (tmp_path / "studies" / "one" / "policy-refit" / "manifest.json").read_text()
    )
    assert "no out-of-sample result" in manifest["label"]


def test_train_passes_over_the_section_and_says_so(slipstream, machinery, tmp_path):
    done = slipstream("train", "c.yaml", "--no-report")
    assert done.code == 0, done.err
    assert "The section `study` is read by `slipstream tune`" in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "study.n_trial=3"], "n_trials"),
        (["--storage", "redis://x"], "journal:FILE"),
        (["--set", "training.members=4"], "one for each fold"),
        (["--device", "cuda:99"], "cuda:99 is not available"),
        (["--hours", "0"], "must be positive"),
        (["--data-dir", "prices"], "cartpole reads no prices: leave --data-dir"),
        (["--study-name", "a*b"], "cannot be a folder's name"),
        (["--study-name", "a\x1b[31m"], "cannot be a folder's name"),
    ],
)
def test_bad_words_are_one_paragraph(slipstream, machinery, tmp_path, arguments, words):
    done = slipstream("tune", "c.yaml", "--no-report", *arguments)
    assert done.code == 2 and words in done.err and "Traceback" not in done.err
    assert not (tmp_path / "studies").exists()


def test_gpu_is_a_device_as_for_train(slipstream, machinery, tmp_path):
    told = slipstream("tune", "cartpole", "--gpu", "99")
    assert told.code == 2 and "cuda:99 is not available" in told.err
    both = slipstream("tune", "cartpole", "--gpu", "0", "--device", "cpu")
    assert both.code == 2 and "--gpu and --device both select the device" in both.err


def test_a_study_that_is_not_there(slipstream, tmp_path):
    for command in ("status", "best", "export", "stop", "report"):
        done = slipstream("study", command, "nobody")
        assert done.code == 2 and "There is no study nobody" in done.err
    done = slipstream("resume", "nobody")
    assert done.code == 2 and "nobody is neither a run nor a study" in done.err


@pytest.mark.slow
def test_a_study_that_never_asked_leaves_its_name_free(slipstream, machinery, tmp_path):
    refused = tune(slipstream, "--storage", "postgresql://u:secret@127.0.0.1:1/x")
    assert refused.code == 2 and "secret" not in refused.err
    assert not (tmp_path / "studies" / "one").exists()
    assert tune(slipstream, "--set", "study.fold_dispersion_penalty=0.2").code == 0


def test_a_place_that_is_taken_is_refused(slipstream, machinery, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "c2.yaml").write_text(CONFIG)
    for name in (str(tmp_path / "file"), f"{tmp_path}/a b/.."):
        done = slipstream("tune", str(tmp_path / "c2.yaml"), "--study-name", name, "--no-report")
        assert done.code == 2 and "Traceback" not in done.err, name
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.slow
def test_a_study_without_its_config_says_what_is_missing(slipstream, machinery, tmp_path):
    tune(slipstream)
    (tmp_path / "studies" / "one" / "study.yaml").unlink()
    done = slipstream("study", "status", "one")
    assert done.code == 2 and "study.yaml is missing" in done.err
    done = tune(slipstream, "--set", "study.fold_dispersion_penalty=0.2")
    assert done.code == 2 and "`study.fold_dispersion_penalty` was 0.1 and is 0.2" in done.err
    assert tune(slipstream).code == 0  # as the message advises
    assert slipstream("study", "status", "one").code == 0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty", marks=pytest.mark.slow),
        pytest.param(b"- a\n", id="list", marks=pytest.mark.slow),
        pytest.param(b"env: [cartpole\n", id="bad", marks=pytest.mark.slow),
        pytest.param(
            b"env: cartpole\nstudy: {n_trials: many}\n", id="type", marks=pytest.mark.slow
        ),
        pytest.param(b"\xff\xfe", id="binary", marks=pytest.mark.slow),
        pytest.param(None, id="cut"),
    ],
)
def test_a_damaged_config_says_what_is_intact_and_what_to_do(
    slipstream, machinery, tmp_path, content
):
    tune(slipstream)
    folder = tmp_path / "studies" / "one"
    (folder / "result.json").unlink()
    file, before = folder / "study.yaml", (folder / "study.yaml").read_bytes()
    file.write_bytes(before[:300] if content is None else content)
    assert slipstream("study", "export", "one").code == 0  # needs the ledger alone
    for command in (["study", "status"], ["resume"], ["study", "best"]):
        done = slipstream(*command, "one")
        assert done.code == 2 and f"{file} cannot be used" in done.err, command
        assert "intact in ledger.db" in done.err and "slipstream tune" in done.err
        assert done.err.count("\n") == 1
    assert tune(slipstream).code == 0
    assert file.read_bytes() == before and result(tmp_path)["trials"]["started"] == 8


def test_other_damaged_files_say_what_to_do(slipstream, machinery, tmp_path):
    tune(slipstream)
    folder = tmp_path / "studies" / "one"
    (folder / "result.json").write_text("{")
    done = slipstream("study", "status", "one")
    assert done.code == 2 and "delete the file, and `slipstream resume`" in done.err
    (folder / "result.json").unlink()
    provenance = (folder / "provenance.json").read_text()
    (folder / "provenance.json").write_text("")
    done = slipstream("resume", "one")
    assert done.code == 2 and "restore the file from a backup" in done.err
    (folder / "provenance.json").unlink()
    done = slipstream("resume", "one")
    assert done.code == 2 and "has no `identity`" in done.err
    (folder / "provenance.json").write_text(provenance)
    assert slipstream("resume", "one", "--no-report").code == 0
    (folder / "ledger.db").write_bytes(b"")
    for wal in folder.glob("ledger.db-*"):
        wal.unlink()
    done = slipstream("study", "status", "one")
    assert done.code == 2 and "ledger.db holds nothing yet" in done.err


def test_escapes_and_markup_of_a_stranger_reach_no_terminal(
    slipstream, machinery, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    evil = str(tmp_path / "[" / "bold]\x1b[31m")
    done = slipstream("tune", "c.yaml", "--n-trials", "4", "--study-name", evil, "--no-report")
    assert done.code == 0, done.err
    monkeypatch.setattr(click.utils, "should_strip_ansi", lambda *_: False)  # as on a terminal
    told = slipstream("jobs", "--all").out
    assert "[/bold]\\x1b[31m" in told and "4 of 4 trials" in told
    for words in (("study", "best", evil), ("study", "status", evil), ("study", "stop", evil),
                  ("stop", evil), ("study", "report", evil), ("watch", evil)):  # fmt: skip
        done = slipstream(*words)
        assert done.code == 0 and "\x1b" not in done.out, words
        assert "bold]\\x1b[31m" in done.out, words


DEATHS = {
    "the search's end": (study_module, "confirm_best"),
    "the choice": (confirmation_module, "confirm"),
    "the opening": (winner_module, "_open_holdout"),
    "the final training": (winner_module, "evaluate_holdout"),
    "the policy": (winner_module, "save_policy"),
    "the result": (StudyFolder, "save_result"),
    "the last word": (Logbook, "__exit__"),
    "the page": (page_module, "write_study_page"),
}


class Death(BaseException):
    """Exception that no code catches."""


@pytest.mark.parametrize(
    ("step", "when"),
    [
        pytest.param(
            step, when, marks=[] if (step, when) == ("the opening", "after") else pytest.mark.slow
        )
        for step in DEATHS
        for when in ("before", "after")
    ],
)
def test_a_study_that_dies_at_any_step_has_its_page_after_resume(
    slipstream, machinery, tmp_path, monkeypatch, step, when
):
    monkeypatch.setattr("fake_pool.SKILL", 0.02)
    owner, name = DEATHS[step]
    whole, begin, books = getattr(owner, name), Logbook.__enter__, []

    def dies(*args, **more):
        if when == "after":
            whole(*args, **more)
        raise Death

    def begins(book):
        books.append(book)
        return begin(book)

    with monkeypatch.context() as dying:
        dying.setattr(owner, name, dies)
        dying.setattr(Logbook, "__enter__", begins)
        if step != "the last word":
            dying.setattr(Logbook, "__exit__", lambda *_: None)
        with pytest.raises(Death):
            slipstream("tune", "c.yaml", "--n-trials", "4", "--study-name", "one")
    for book in books:  # as the end of a process does
        for file in book._files.values():
            file.close()
    folder = StudyFolder(tmp_path / "studies" / "one")
    folder.unlock()
    done = slipstream("resume", "one")
    assert done.code == 0, done.err
    assert folder.report_path.is_file() and folder.policy.is_dir() and not folder.is_locked
    assert result(tmp_path)["holdout"]["opening"] == 1
    status = read_status(folder.path)
    assert (status.liveness(), status.completed, status.total) == ("complete", 4, 4)
