"""Who may join a study: the same slipstream, the same files, and nothing that a database chose."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, ConfigError, DataError
from slipstream.market.folds import FoldPlan
from slipstream.market.planted_crypto import write_planted_crypto
from slipstream.studies.engine.source import EnvironmentSource
from slipstream.studies.machines.entry import Entry, Premises, entry_of
from slipstream.studies.machines.wire import pack
from slipstream.training.config import resolve


def entry(target, overrides=()):
    config = resolve(target, {"training.num_envs": 6, **dict(overrides)})
    loaded = EnvironmentSource(FoldPlan(), 6).environment(config).loaded
    return entry_of(config, FoldPlan(), 6, loaded.provenance)


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prices")
    write_planted_crypto(folder / "one", bars=16_000, seed=1)
    write_planted_crypto(folder / "other", bars=16_000, seed=2)
    return folder


def test_an_announcement_arrives_whole():
    sent = entry("cartpole")
    assert Entry.read(sent.parcel()) == sent
    with pytest.raises(CheckpointError, match="no study"):
        Entry.read(pack({"format": 1, "config": {}}))
    with pytest.raises(ConfigError, match="format 99"):
        Entry.read(pack({"format": 99}))


def test_the_same_prices_in_another_folder(prices, tmp_path):
    sent = entry("portfolio", {"env.data.folder": str(prices / "one")})
    assert sent.market is not None
    shutil.copytree(prices / "one", tmp_path / "copy")
    premises = Premises(sent, str(tmp_path / "copy"), None)
    assert premises.base.as_mapping() == sent.config
    own = premises.source.environment(premises.base).loaded
    theirs = EnvironmentSource(FoldPlan(), 6).environment(premises.base).loaded
    for a, b in zip(own.data, theirs.data, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    with pytest.raises(DataError) as error:
        Premises(sent, str(prices / "other"), None)
    other = entry("portfolio", {"env.data.folder": str(prices / "other")})
    assert sent.market in str(error.value) and str(other.market) in str(error.value)
    gone = replace(sent, config={**sent.config})
    gone.config["env"] = {**sent.config["env"], "data": {**sent.config["env"]["data"]}}
    gone.config["env"]["data"]["folder"] = str(tmp_path / "nowhere")
    with pytest.raises(DataError, match="--data-dir"):
        Premises(gone, None, None)


def test_no_prices_no_folder():
    with pytest.raises(ConfigError, match="leave --data-dir out"):
        Premises(entry("cartpole"), "/data", None)


def test_files_of_users_are_named_by_users(engine, tmp_path):
    sent = entry(engine.member(0).config)
    with pytest.raises(ConfigError, match="--env"):
        Premises(sent, None, None)
    copy = tmp_path / "mine.py"
    shutil.copy(sent.env, copy)
    premises = Premises(sent, None, str(copy))
    assert premises.base == engine.member(0).config
    copy.write_text(copy.read_text() + "\n# edited\n")
    with pytest.raises(ConfigError, match=r"mine\.py is not the study's environment") as error:
        Premises(sent, None, str(copy))
    assert sent.kernel in str(error.value)
    with pytest.raises(ConfigError, match="not gym:Other-v0"):
        Premises(
            replace(sent, kernel=None, config={**sent.config, "env": {"name": "gym:A-v0"}}),
            None,
            "gym:Other-v0",
        )


def test_other_versions_are_refused():
    sent = entry("cartpole")
    with pytest.raises(ConfigError, match=r"has torch \S+ where the owner has 0\.0\.1"):
        Premises(replace(sent, versions={**sent.versions, "torch": "0.0.1"}), None, None)
    with pytest.raises(ConfigError, match="files of slipstream"):
        Premises(replace(sent, code="0" * 64), None, None)
