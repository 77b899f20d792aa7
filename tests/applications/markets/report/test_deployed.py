"""A policy that a study deployed, scored by itself: on other prices, refused where they differ."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
from datetime import UTC, datetime

import pytest

import slipstream
from slipstream.cli import main
from slipstream.core.errors import CheckpointError, ConfigError
from slipstream.core.storage import checkpoint
from slipstream.markets.synthetic import SyntheticForex
from slipstream.report import run_page
from slipstream.report.run_evaluation import evaluate_deployed
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack
from slipstream.studies.outcome.final_model import save_policy
from slipstream.training.environments.factory import make_environment
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.settings.config import RunConfig

HOUR, DAY = 3_600, 86_400
FEATURES = ["log_return_1", "rsi_14"]


def command(*arguments):
    """Exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main([str(one) for one in arguments])
    return left.value.code


class OnePolicy:
    """Hands out an untrained policy for an environment, as a study's pool does a trained one."""

    def __init__(self, environment):
        self._environment = environment

    def policy(self, name):
        policy = Policy([self._environment.spec], [0])
        return pack(policy, 0, self._environment.training_context)


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    """Hourly and half-hourly bars by name; `newer` begins where `own` ends."""
    root = tmp_path_factory.mktemp("prices")
    SyntheticForex().write(root / "own", 2_400, 0, bar_seconds=HOUR)
    SyntheticForex().write(root / "other", 2_400, 1, bar_seconds=HOUR)
    SyntheticForex().write(root / "shorter", 2_400, 1, bar_seconds=HOUR // 2)
    return root


@pytest.fixture(scope="module")
def deployed(prices, tmp_path_factory):
    """The folder of a study that has deployed a policy for `own`."""
    folder = tmp_path_factory.mktemp("studies") / "first"
    data = {"folder": str(prices / "own"), "spread_pips": 0.5}
    env = {"name": "forex", "data": data, "features": FEATURES, "reward": "differential_sharpe"}
    config = RunConfig.from_mapping({"env": env, "training": {"backend": "serial"}})
    environment = make_environment("forex", config.env_settings)
    windows = environment.provenance["windows_utc_seconds"]
    facts = {
        "study": "first",
        "trial": 3,
        "label": "first seed",
        "environment": {
            "carried": {"return_variance": {"EURUSD": 4e-8}},
            "windows_utc_seconds": {"development": windows["train"]},
        },
    }
    save_policy(folder / "policy", OnePolicy(environment), "final-0", config, facts)
    (folder / "ledger.db").touch()
    return folder


def test_other_prices_have_the_page_of_a_run(deployed, prices):
    policy = DeployedPolicy.open(deployed / "policy")
    (end,) = (
        windows[1] for windows in policy.metadata["environment"]["windows_utc_seconds"].values()
    )
    window = {"data": prices / "other", "draws": 2}
    found = evaluate_deployed(deployed / "policy", start=end - DAY, stop=end, **window)
    assert list(found.tracks) == ["chosen window"] and not found.unseen
    assert found.title == "first, trial 3: forex"
    assert any("the study's own prices end: not all new" in note for note in found.notes)
    assert evaluate_deployed(deployed / "policy", start=end, stop=end + DAY, **window).unseen
    environment = policy.environment(data=prices / "other")
    assert 4e-8 in environment.loaded.data.constants  # the policy's, not the new window's


@pytest.mark.slow
def test_the_command_takes_the_study_or_the_policys_folder(deployed, prices, monkeypatch, capsys):
    quick = functools.partial(evaluate_deployed, draws=2)
    monkeypatch.setattr(run_page, "evaluate_deployed", quick)
    other = ("--data", prices / "other", "--from", "2020-03-02", "--to", "2020-03-04")
    for place in (deployed, deployed / "policy"):
        assert command("evaluate", place, *other) == 0
        assert str(deployed / "policy-window/report.html") in capsys.readouterr().out
    result = slipstream.evaluate(deployed, data=prices / "other", start="2020-03-02")
    assert [track.name for track in result.splits["window"].episodes] == ["EURUSD"]


@pytest.mark.parametrize("early", [{"start": -1}, {"stop": 0}, {"symbols": ["EURUSD"]}])
def test_the_studys_own_bars_are_not_scored_again(deployed, early):
    policy = DeployedPolicy.open(deployed / "policy")
    end = policy.metadata["environment"]["windows_utc_seconds"]["development"][1]
    chosen = {name: end + value if name != "symbols" else value for name, value in early.items()}
    with pytest.raises(ConfigError, match=r"hold-out that is opened once.*are unseen") as told:
        policy.environment(**chosen)
    (date,) = re.findall("`--from ([^`]+)`", str(told.value))
    moment = datetime.fromisoformat(date).replace(tzinfo=UTC)
    assert int(moment.timestamp()) == end
    assert "window" in policy.environment(start=end).splits()  # the remedy works


def test_the_studys_own_prices_are_known_under_another_name(deployed, prices, tmp_path):
    policy = DeployedPolicy.open(deployed / "policy")
    end = policy.metadata["environment"]["windows_utc_seconds"]["development"][1]
    shutil.copytree(prices / "own", tmp_path / "copy")
    for folder in (prices / "own", prices / "other/../own", tmp_path / "copy"):
        with pytest.raises(ConfigError, match="hold-out that is opened once"):
            policy.environment(data=folder)
        assert "window" in policy.environment(data=folder, start=end).splits()


@pytest.mark.slow
def test_a_policy_that_was_not_recommended_is_told(deployed, prices, tmp_path):
    tensors, manifest = checkpoint.load(deployed / "policy")
    place = checkpoint.save(tmp_path / "policy", tensors, {**manifest, "forced": True})
    window = {"data": prices / "other", "draws": 2}
    (note,) = set(evaluate_deployed(place, **window).notes) - set(
        evaluate_deployed(deployed / "policy", **window).notes
    )
    assert note == "The study recommended nothing; deployed by --force-deploy."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "hold-out that is opened once.*--data FOLDER"),
        ({"data": "shorter"}, "bar_seconds was 3600 and is 1800 here"),
        ({"data": "nowhere"}, "nowhere"),
    ],
)
def test_what_differs_is_refused_by_name(deployed, prices, options, words):
    given = {key: prices / value for key, value in options.items()}
    with pytest.raises(slipstream.SlipstreamError, match=words):
        evaluate_deployed(deployed / "policy", draws=2, **given)


def test_features_that_differ_are_refused(deployed, prices, tmp_path):
    tensors, manifest = checkpoint.load(deployed / "policy")
    env = {**manifest["run"]["env"], "features": FEATURES[:1]}
    changed = {**manifest, "run": {**manifest["run"], "env": env}}
    place = checkpoint.save(tmp_path / "policy", tensors, changed)
    with pytest.raises(ConfigError, match="features were log_return_1, rsi_14 and are log_return"):
        evaluate_deployed(place, data=prices / "other", draws=2)


def test_games_and_members_of_runs(deployed, tmp_path, capsys):
    assert command("evaluate", deployed, "--games", 3) == 2
    assert "`forex` is not a game for two players" in " ".join(capsys.readouterr().err.split())
    tensors, manifest = checkpoint.load(deployed / "policy")
    del manifest["run"]
    place = checkpoint.save(tmp_path / "member-000", tensors, manifest)
    with pytest.raises(CheckpointError, match="Evaluate the run's directory"):
        DeployedPolicy.open(place)
    (tmp_path / "ledger.db").touch()
    assert command("evaluate", tmp_path) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "has deployed no policy: it is not complete. Continue with `slipstream resume" in told
    (tmp_path / "result.json").write_text("{}")
    assert command("evaluate", tmp_path) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "has deployed no policy: it is complete and recommends nothing" in told
    assert f"`slipstream resume {shlex.quote(str(tmp_path))} --force-deploy`" in told
