"""`slipstream demo`: its runs, its video, and the commands that it prints last."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image

from slipstream import api
from slipstream.cli.commands import demo
from slipstream.core.safe_io import resolve_folder
from slipstream.markets.data.market import load_market
from slipstream.markets.forex.config import Config as ForexConfig
from slipstream.markets.forex.forex_loader import build_tables, load
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve

LEAST_DAYS = 60  # trading days that an interval of the report requires


@pytest.fixture
def short(monkeypatch):
    """Train the demos on a small budget."""
    train = api.train
    fast = {"training.num_envs": 8, "agent.n_steps": 64, "agent.batch_size": 128}
    fast |= {"training.total_timesteps": 2_048, "evaluation.every": 1.0, "evaluation.episodes": 4}
    monkeypatch.setattr(api, "train", lambda *a, **k: train(*a, overrides=fast, **k))
    monkeypatch.setattr(demo, "_program", lambda: "slipstream")


def next_steps(out: str) -> dict[str, str]:
    """Commands and addresses by title, from the last lines of a demo."""
    lines = out.partition("Next steps:\n")[2].splitlines()
    return dict(re.fullmatch(r"  (\S.*?)  +(\S.*)", line).groups() for line in lines)


def opened(address: str) -> Path:
    """The file of an address."""
    return Path(unquote(urlsplit(address).path))


def test_the_trading_demo_ends_with_commands_that_work(slipstream, short):
    outcome = slipstream("demo", "--out", "a run")
    assert outcome.code == 0, outcome.err
    assert re.search(r"Prices: .*MIT licence", outcome.out)
    steps = next_steps(outcome.out)
    report = opened(steps["Open the report"]).read_text("utf-8")
    days = int(re.search(r"(\d+) trading days", report)[1])
    assert days >= LEAST_DAYS and "too few days" not in report.lower()
    assert re.search(r"95 % interval -?[\d.]+ to -?[\d.]+", report)

    program, *init, sign, file = shlex.split(steps["Write your config"])
    assert (program, sign) == ("slipstream", ">")
    Path(file).write_text(slipstream(*init).out, "utf-8")
    program, *train = shlex.split(steps["Train with it"])
    outcome = slipstream(*train, "--no-report", "--out", "own")
    assert outcome.code == 0, outcome.err
    own = Run.open("own").config
    assert own.env_name == "forex"
    assert own.env_settings["split"] == Run.open("a run").config.env_settings["split"]
    assert steps["Train a game"] == "slipstream demo hockey"
    assert slipstream(*shlex.split(steps["Watch runs live"])[1:], "--help").code == 0


def test_the_hockey_demo_records_matches(slipstream, short):
    outcome = slipstream("demo", "hockey", "--out", "a run")
    assert outcome.code == 0, outcome.err
    steps = next_steps(outcome.out)
    video = opened(steps["Watch the matches"])
    assert video == Path("a run/game.gif").absolute() and f"Video: {video}" in outcome.out
    with Image.open(video) as picture:
        assert picture.size == (600, 480)
        frames = [(picture.seek(k), picture.info["duration"])[1] for k in range(picture.n_frames)]
    assert frames.count(max(frames)) == 5 and len(frames) > 50
    assert opened(steps["Open the report"]) == Path("a run/report.html").absolute()

    program, *games = shlex.split(steps["Play 1,000 matches"])
    games[games.index("1000")] = "10"
    outcome = slipstream(*games)
    assert program == "slipstream" and outcome.code == 0, outcome.err
    program, *init, _, file = shlex.split(steps["Write your config"])
    Path(file).write_text(slipstream(*init).out, "utf-8")
    assert resolve(file).env_name == "hockey"


def test_an_embargo_lies_between_the_splits_of_the_demo():
    config = resolve(str(resolve_folder("package:slipstream/cli/demo/demo.yaml")))
    settings = ForexConfig(**{k: v for k, v in config.env_settings.items() if k != "name"})
    windows = load(settings).provenance["windows_utc_seconds"]
    assert list(windows) == ["train", "validation", "test"]
    _, warm_up = build_tables(load_market(settings.data), settings)
    embargo = (settings.lookback + warm_up) * 3600
    for name, after in (("train", "validation"), ("validation", "test")):
        assert windows[after][0] - windows[name][1] >= embargo > 0
    days = (windows["test"][1] - windows["test"][0]) / 86_400
    assert days * 5 / 7 >= LEAST_DAYS


@pytest.mark.parametrize(
    ("first", "on_path", "words"),
    [
        ("/usr/bin/slipstream", True, "slipstream"),
        (".venv/bin/slipstream", False, ".venv/bin/slipstream"),
        ("my folder/bin/slipstream", False, "'my folder/bin/slipstream'"),
        ("/lib/slipstream/__main__.py", False, "/usr/bin/python3 -m slipstream"),
    ],
)
def test_commands_begin_as_the_demo_was_started(monkeypatch, first, on_path, words):
    monkeypatch.setattr("sys.argv", [first, "demo"])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    monkeypatch.setattr("shutil.which", lambda name: first if on_path else None)
    assert demo._program() == words


def test_an_unknown_demo_is_refused(slipstream):
    outcome = slipstream("demo", "hokey")
    assert outcome.code == 2 and "trading" in outcome.err and "hockey" in outcome.err
