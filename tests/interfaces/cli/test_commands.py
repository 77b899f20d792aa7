"""Commands that train nothing: help, lists, configs, data, and how errors are told."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest

from slipstream.cli import main
from slipstream.cli.main import TOPICS
from slipstream.core.errors import ResourceError
from slipstream.core.storage import yaml_file
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.studies.config import StudyConfig
from slipstream.studies.space import SearchSpace
from slipstream.studies.start import prepare_study
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import TrainingConfig, resolve

MINIBATCH = ["--set", "agent.n_steps=128", "--set", "agent.batch_size=100"]


def one_paragraph(text: str) -> bool:
    return text.count("\n") == 1 and "Traceback" not in text


def test_help_names_every_command(slipstream):
    outcome = slipstream("--help")
    assert outcome.code == 0
    for name in ("train", "resume", "evaluate", "init", "data", "list", "doctor"):
        assert name in outcome.out


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom slipstream.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numba', 'polars', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_version(slipstream):
    assert slipstream("--version").out.startswith("slipstream 0.")


def test_help_says_the_defaults_and_offers_nothing_that_is_refused(slipstream):
    training = TrainingConfig()
    text = " ".join(slipstream("train", "--help").out.split())
    assert f"member m has seed + m. [default: ({training.members})]" in text
    assert f"else {training.total_timesteps:_})]" in text
    assert f"Seed member 0 with this number. [default: ({training.seed})]" in text
    assert "[default: (cpu)]" in text and "--gpu" in text
    text = " ".join(slipstream("tune", "--help").out.split())
    assert f"[default: ({StudyConfig().n_trials}); x>=1]" in text
    assert "cuda:N" in text


def offered(monkeypatch, capsys, *words: str) -> list[str]:
    """Return bash's completions of these words, the last of which is incomplete."""
    monkeypatch.setattr(sys, "argv", ["slipstream"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # not `python -m pytest`
    monkeypatch.setenv("_SLIPSTREAM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["slipstream", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


def test_a_tab_offers_environments_files_runs_and_studies(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", "shop.py", "notes.txt", "runs/first/config.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "studies/pole").mkdir(parents=True)
    (tmp_path / "studies/pole/study.yaml").touch()

    def tab(*words: str) -> list[str]:
        return offered(monkeypatch, capsys, *words)

    assert {"train", "tune"} <= set(tab("t"))
    assert tab("train", "cartp") == ["cartpole"]
    assert tab("train", "mi") == ["mine.yaml"] and tab("tune", "s") == ["shop.py", "studies/"]
    assert tab("init", "mi") == [] and tab("train", "no") == []
    assert tab("resume", "runs/f") == ["runs/first"] == tab("evaluate", "runs/")
    assert tab("study", "status", "p") == ["pole"]
    assert tab("train", "cartpole", "--set", "agent.n_e") == ["agent.n_epochs="]
    assert tab("tune", "hockey", "--set", "env.time_o") == ["env.time_out="]
    dqn = ("train", "shop.py", "--set", "agent.name=dqn", "--set")
    assert tab(*dqn, "agent.learning_st") == ["agent.learning_starts="]
    assert tab(*dqn, "env.") == [], "a tab runs no file of the user's"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "cartpol"], "did you mean `cartpole`?"),
        (["train", "cartpole", "--set", "agent.learning_rat=1"], "did you mean `learning_rate`?"),
        (
            ["train", "cartpole", "--num-envs", "7", *MINIBATCH],
            "64 and 112",
        ),
        (["train", "cartpole", "--n-envs", "many"], "training.num_envs"),
        (["train", "cartpole", "--gpu", "0", "--device", "cpu"], "Give one of them"),
        (["train", "cartpole", "--gpu", "99"], "cuda:99 is not available"),
        (["train", "absent.yaml"], "cannot be read"),
        (["train", "absent.py"], "There is no kernel file"),
        (["train", "gym:NoSuchThing-v0"], "NoSuchThing"),
        (["resume", "absent"], "is neither a run nor a study"),
        (["evaluate", "absent"], "is neither a run nor a study"),
        (["init", "forex"], "needs a folder of prices"),
        (["init", "forex", "absent"], "does not exist"),
        (["init", "portfolio"], "slipstream init portfolio DIR > my.yaml"),
        (["init", "cartpole", "absent"], "reads no prices"),
        (["data", "check", "absent"], "absent"),
        (["data", "check", ".", "--column", "Last"], "THEIRS=OURS"),
        (["data", "synthetic-crypto", __file__], "may not be written (File exists)"),
        (["data", "synthetic-forex", f"{__file__}/x"], "may not be written (Not a directory)"),
        (["data", "synthetic-crypto", "x", "--strength", "1e9"], "at most 48 basis points"),
        (["train", "cartpole", "--set", "training.num_envs={a: 1}"], "`training.num_envs`"),
        (["tune", "cartpole", "--set", "study.space=[1, 2]"], "`study.space` must be"),
        (["train", "cartpole", "--members", "0"], "`training.members` must be at least 1, got 0."),
        (["train", "cartpole", "--num-envs", "x"], "must be an integer, or 'auto', got 'x'."),
        (["train", "cartpole", "--device", "gpu"], "must be cpu, cuda or cuda:N, got 'gpu'."),
        (["data", "check", ".", "--timeframe", "x"], "`data.timeframe` must be a bar length such"),
        (["dash", "absent"], "absent is not a folder. Give a run, a study or a folder of them."),
        (["tune", "cartpole", "--set", "study.start_with=3"], "must be a list, got 3"),
        (["tune", "cartpole", "--set", "study=5"], "`study` must be a section"),
        (["tune", "cartpole", "--timeframe", "5m"], "cartpole reads no prices"),
    ],
)
def test_a_mistake_is_one_paragraph_and_exit_code_2(slipstream, arguments, words):
    outcome = slipstream(*arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert one_paragraph(outcome.err)
    assert "dict[" not in outcome.err
    assert not list(Path().glob("runs/*")) and not list(Path().glob("studies/*"))


def test_usage_errors_are_exit_code_2_too(slipstream):
    assert slipstream("train").code == 2
    assert slipstream("train", "cartpole", "--nonsense").code == 2


def test_a_missing_package_is_named_with_its_pip_line(slipstream, monkeypatch):
    from slipstream.cli import main as module

    def fail(*arguments):
        raise ModuleNotFoundError("No module named 'gym_anytrading'", name="gym_anytrading.envs")

    monkeypatch.setattr(sys.modules["slipstream.cli.main"], "_command", lambda: fail)
    assert module is not None
    outcome = slipstream("list")
    assert outcome.code == 2
    assert "pip install --no-deps gym-anytrading" in outcome.err


def test_errors_of_ours_are_told_without_traceback(slipstream, monkeypatch):
    def fail(*arguments):
        raise ResourceError("The disk is full:\n   nothing was lost.")

    monkeypatch.setattr(sys.modules["slipstream.cli.main"], "_command", lambda: fail)
    assert slipstream("list").err == "The disk is full: nothing was lost.\n"


def test_list(slipstream):
    outcome = slipstream("list")
    assert outcome.code == 0
    for name in ("cartpole", "pendulum", "forex", "gym:ID", "ppo", "compiled", "serial"):
        assert name in outcome.out
    assert "compiled form" not in outcome.out  # but what an agent is for


def test_doctor_says_what_auto_is(slipstream):
    outcome = slipstream("doctor", "pendulum")
    assert outcome.code == 0
    assert "32 environments per member (limit: 50 iterations of 256 steps" in " ".join(
        outcome.out.split()
    )
    assert "slipstream autotune pendulum" in outcome.out


@pytest.mark.slow
def test_doctor_says_why_a_run_was_slow(slipstream):
    assert slipstream("train", "cartpole", "--total-timesteps", "2048", "--out", "slow").code == 0
    outcome = slipstream("doctor", "slow")
    assert outcome.code == 0
    text = " ".join(outcome.out.split())
    assert "more environments" in text and "what to change" in text and "the update" in text


def test_doctor(slipstream):
    outcome = slipstream("doctor")
    assert outcome.code == 0
    for word in ("cores", "memory", "GPU", "torch", "numba", "compiled kernels", "shards: auto"):
        assert word in outcome.out


def test_doctor_skips_modules_that_another_process_removes(slipstream, tmp_path, monkeypatch):
    (tmp_path / "cache" / ".unfinished-x").mkdir(parents=True)
    scandir = os.scandir

    def remove_before(path):
        if str(path).endswith(".unfinished-x"):
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr("slipstream.cli.doctor.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(os, "scandir", remove_before)
    outcome = slipstream("doctor")
    assert outcome.code == 0 and "0 modules" in outcome.out
    assert not (tmp_path / "cache" / ".unfinished-x").exists()


@pytest.mark.parametrize("target", ["cartpole", "pendulum", "gym:Acrobot-v1"])
def test_init_round_trips(slipstream, target):
    outcome = slipstream("init", target)
    assert outcome.code == 0
    Path("my.yaml").write_text(outcome.out)
    assert resolve(Path("my.yaml")) == resolve(target)
    assert outcome.out.count("  # ") > 10


@pytest.mark.parametrize("target", [("cartpole",), ("forex", "prices"), ("portfolio", "coins")])
def test_init_shows_what_a_study_does_unless_told_otherwise(slipstream, prices, coins, target):
    """The commented section, put in force, changes nothing; a run passes over it."""
    outcome = slipstream("init", *target)
    assert outcome.code == 0
    text, _, below = outcome.out.partition("#study:\n")
    Path("my.yaml").write_text(outcome.out)
    before = resolve("my.yaml")
    Path("my.yaml").write_text(text + re.sub("^#", "", f"#study:\n{below}", flags=re.MULTILINE))
    assert resolve("my.yaml") == before
    base, study, space = prepare_study("my.yaml", {}, {})
    if before.training.num_envs != "auto":  # a study settles the number of copies itself
        assert base == before
    assert study == StudyConfig()
    assert space == SearchSpace.from_mapping(None, base)
    for key in ("max_concurrent_trials", "holdout", "min_correlation", "block_days", "final_seeds"):
        assert f"  {key}: " in below


@pytest.fixture
def prices(slipstream):
    outcome = slipstream("data", "synthetic-forex", "prices", "--bars", "3000", "--seed", "4")
    assert outcome.code == 0
    assert "0.4654 basis points" in outcome.out
    return Path("prices")


@pytest.mark.parametrize(
    ("content", "advises_names"),
    [
        (bytes(range(14, 256)) * 8, False),
        (b"time,open,high,low,close\n", False),
        (b"time,last,max,min,average\n1577999700,1,1,1,1\n", True),
    ],
)
def test_init_advises_to_name_columns_only_where_there_are_some(slipstream, content, advises_names):
    Path("odd").mkdir()
    Path("odd/EURUSD.csv").write_bytes(content)
    outcome = slipstream("init", "forex", "odd")
    assert outcome.code == 2
    assert ("--column" in outcome.err) == advises_names
    assert "time zone" not in outcome.err


def test_init_forex_describes_the_folder(slipstream, prices):
    outcome = slipstream("init", "forex", "prices")
    assert outcome.code == 0
    assert "EURUSD.parquet: EURUSD, 3,000 bars of 15m" in outcome.out
    assert "signal" in outcome.out
    Path("my.yaml").write_text(outcome.out)
    config = resolve(Path("my.yaml"))
    assert config.env_settings["data"]["symbols"] == ["EURUSD"]
    assert config.env_settings["data"]["timeframe"] == "15m"


def test_init_leaves_out_what_cannot_be_converted(slipstream, prices):
    (prices / "EURGBP.parquet").write_bytes((prices / "EURUSD.parquet").read_bytes())
    outcome = slipstream("init", "forex", "prices")
    assert "Left out: EURGBP: its profits need GBPUSD to become USD." in outcome.out
    Path("my.yaml").write_text(outcome.out)
    assert resolve(Path("my.yaml")).env_settings["data"]["symbols"] == ["EURUSD"]


def test_init_chooses_a_currency_where_dollars_serve_no_pair(slipstream, prices):
    (prices / "EURUSD.parquet").rename(prices / "EURGBP.parquet")
    outcome = slipstream("init", "forex", "prices")
    assert outcome.code == 0
    assert "account_currency is EUR: these symbols cannot convert all profits into USD." in (
        outcome.out
    )
    Path("my.yaml").write_text(outcome.out)
    config = resolve(Path("my.yaml"))
    assert config.env_settings["account_currency"] == "EUR"
    assert resolve_environment("forex", config.env_settings).splits()


def rewritten(path: Path, **columns: pl.Expr) -> None:
    pl.read_parquet(path).with_columns(**columns).write_parquet(path)


def test_init_writes_what_the_files_prove_and_train_takes_it(slipstream, prices):
    """Naive New York stamps, prices in points: all of it follows from the files."""
    local = pl.col("timestamp").dt.convert_time_zone("America/New_York").dt.replace_time_zone(None)
    points = {name: (pl.col(name) * 1e5).round() for name in ("open", "high", "low", "close")}
    rewritten(prices / "EURUSD.parquet", timestamp=local, **points)
    (prices / "notes.csv").write_text("buy milk\n")
    outcome = slipstream("init", "forex", "prices")
    text = " ".join(outcome.out.split())
    assert "`time_zone: America/New_York`: EURUSD: time stamps must state their zone" in text
    assert "`price_scale: {EURUSD: 0.00001}`: EURUSD: prices near 1" in text
    assert "notes.csv: cannot be read: notes.csv must hold a time and four prices" in text
    Path("my.yaml").write_text(outcome.out)
    resolve_environment("forex", resolve(Path("my.yaml")).env_settings)


def test_init_leaves_a_zone_empty_that_nothing_proves(slipstream, prices):
    rewritten(prices / "EURUSD.parquet", timestamp=pl.col("timestamp").dt.replace_time_zone(None))
    short = pl.read_parquet(prices / "EURUSD.parquet")[:300]
    short.write_parquet(prices / "EURUSD.parquet")
    outcome = slipstream("init", "forex", "prices")
    assert "STILL OPEN; `slipstream train` refuses the config until this is resolved" in outcome.out
    Path("my.yaml").write_text(outcome.out)
    assert resolve(Path("my.yaml")).env_settings["data"]["time_zone"] is None
    refusal = slipstream("train", "my.yaml")
    assert refusal.code == 2 and one_paragraph(refusal.err)
    assert "time stamps must state their zone" in refusal.err


def test_train_without_prices_names_init(slipstream):
    for name in ("forex", "portfolio"):
        outcome = slipstream("train", name)
        assert outcome.code == 2
        assert f"`slipstream init {name} DIR > my.yaml`" in outcome.err


def test_data_check_takes_units_by_symbol_and_accepts(slipstream, prices):
    points = {name: (pl.col(name) * 1e5).round() for name in ("open", "high", "low", "close")}
    rewritten(prices / "EURUSD.parquet", **points)
    outcome = slipstream("data", "check", "prices")
    assert outcome.code == 2
    assert (
        "Set `price_scale: {EURUSD: 0.00001}`, or `allow_issues: [integer_prices]`" in outcome.out
    )
    assert slipstream("data", "check", "prices", "--price-scale", "EURUSD=0.00001").code == 0
    assert slipstream("data", "check", "prices", "--price-scale", "0.00001").code == 0
    assert slipstream("data", "check", "prices", "--allow-issues", "integer_prices").code == 0
    assert "Write a number" in slipstream("data", "check", "prices", "--price-scale", "x").err


def test_a_line_break_in_a_files_name_stays_in_its_comment(slipstream, prices):
    (prices / "a\ntraining: {seed: 7}\x1b[2J.csv").write_text("x,y\n")
    outcome = slipstream("init", "forex", "prices")
    assert r"a\ntraining: {seed: 7}\x1b[2J.csv" in outcome.out and "\x1b" not in outcome.out
    Path("my.yaml").write_text(outcome.out)
    assert resolve(Path("my.yaml")).training.seed == 0


@pytest.fixture
def coins(slipstream):
    outcome = slipstream("data", "synthetic-crypto", "coins", "--bars", "3000", "--seed", "4")
    assert outcome.code == 0
    assert "7 assets, 3,000 bars" in outcome.out
    assert "19.93 basis points a bar" in outcome.out
    return Path("coins")


def test_init_portfolio_describes_the_folder(slipstream, coins):
    outcome = slipstream("init", "portfolio", "coins")
    assert outcome.code == 0
    assert "AAVE.parquet: AAVE, 3,000 bars of 5m" in outcome.out
    Path("my.yaml").write_text(outcome.out)
    config = resolve(Path("my.yaml"))
    assert config.env_name == "portfolio"
    data = config.env_settings["data"]
    assert data["symbols"] == ["AAVE", "AVAX", "BTC", "ETH", "LINK", "LTC", "UNI"]
    assert data["timeframe"] == "5m"
    assert data["spread_pips"] is None  # a pip means nothing to a coin
    assert config.env_settings["account_currency"] == "USD"


def test_init_forex_of_coins(slipstream, coins):
    """The account is in what they are paid in, and costs are no pips: a coin has millions."""
    for one in sorted(coins.glob("*.parquet")):
        one.rename(coins / f"{one.stem}USDT.parquet")
    outcome = slipstream("init", "forex", "coins")
    assert "account_currency is USDT" in outcome.out
    assert "commission_per_million 1000 (0.1 % a side) is a guess" in outcome.out
    Path("my.yaml").write_text(outcome.out)
    settings = resolve(Path("my.yaml")).env_settings
    assert settings["data"]["spread_pips"] is None
    trips = resolve_environment("forex", settings).loaded.provenance["round_trip"]
    assert {round(one["basis_points"], 6) for one in trips.values()} == {20.0}


def test_a_portfolio_of_few_bars_is_told_which_features_fit(slipstream):
    """The remedy works when it is pasted."""
    slipstream("data", "synthetic-crypto", "few", "--bars", "420")
    Path("my.yaml").write_text(slipstream("init", "portfolio", "few").out)
    refusal = slipstream("train", "my.yaml", "--set", "env.features=[portfolio]")
    assert refusal.code == 2 and one_paragraph(refusal.err)
    (features,) = re.findall(r"`(features: \[.*?\])`", refusal.err)
    settings = {**resolve(Path("my.yaml")).env_settings, **yaml_file.parse(f"{{{features}}}", "it")}
    assert len(settings["features"]) > 1
    assert "test" in resolve_environment("portfolio", settings).splits()


def test_init_portfolio_leaves_out_other_currencies(slipstream, coins):
    for old, new in (("AAVE", "AAVEUSDT"), ("BTC", "BTC-USDT"), ("ETH", "ETHBTC")):
        (coins / f"{old}.parquet").rename(coins / f"{new}.parquet")
    outcome = slipstream("init", "portfolio", "coins")
    assert "Left out: ETHBTC: its prices are in BTC, those of the portfolio in USDT." in outcome.out
    Path("my.yaml").write_text(outcome.out)
    settings = resolve(Path("my.yaml")).env_settings
    assert settings["account_currency"] == "USDT"
    assert settings["data"]["symbols"] == ["AAVEUSDT", "AVAX", "BTC-USDT", "LINK", "LTC", "UNI"]


@pytest.mark.parametrize("market", ["synthetic-forex", "synthetic-crypto", "synthetic-reversion"])
def test_a_full_disk_is_told_by_the_generators_and_leaves_no_half_file(
    slipstream, market, monkeypatch
):
    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    outcome = slipstream("data", market, "made", "--bars", "300")
    assert outcome.code == 2 and one_paragraph(outcome.err)
    assert "The disk is full: " in outcome.err
    assert not list(Path("made").iterdir())


def test_planted_crypto_without_an_edge(slipstream):
    outcome = slipstream("data", "synthetic-crypto", "none", "--bars", "300", "--strength", "0")
    assert "earns 0.00 basis points" in outcome.out


def test_data_check_says_what_is_odd(slipstream, prices):
    outcome = slipstream("data", "check", "prices", "--spread-pips", "1")
    assert outcome.code == 0
    assert "Data check of" in outcome.out
    assert "Loadable" in outcome.out


def test_the_data_check_that_a_note_names_has_the_configs_settings(slipstream):
    """The demo's own prices are refused without their time zone."""
    text = (files("slipstream") / "cli/demo/demo.yaml").read_text("utf-8")
    data = yaml_file.parse(text, "demo.yaml")["env"]["data"]
    (note,) = (
        one for one in load_market(DataConfig(**data)).notes if "data check found warnings" in one
    )
    outcome = slipstream(*shlex.split(note.split("`")[1])[1:])
    assert outcome.code == 0 and "1 hole of 1 missing bar" in outcome.out


def test_data_check_reads_a_config(slipstream, prices):
    config = "env: {name: forex, data: {folder: prices, spread_pips: 1}}\n"
    Path("my.yaml").write_text(config)
    outcome = slipstream("data", "check", "my.yaml")
    assert outcome.code == 0
    assert outcome.out == slipstream("data", "check", "prices", "--spread-pips", "1").out
    wider = slipstream("data", "check", "my.yaml", "--spread-pips", "9")  # options win
    assert wider.code == 0 and wider.out != outcome.out
    Path("cartpole.yaml").write_text("env: cartpole\n")
    outcome = slipstream("data", "check", "cartpole.yaml")
    assert outcome.code == 2 and "no mapping `env.data`" in outcome.err


def test_data_check_of_refused_data_is_exit_code_2_as_in_training(slipstream):
    Path("bad").mkdir()
    Path("bad/EURUSD.csv").write_text("time,open,high,low,close\n2024-01-01 00:00,1,2,3,x\n")
    outcome = slipstream("data", "check", "bad")
    assert outcome.code == 2
    assert "Not loadable" in outcome.out
    assert slipstream("train", "forex", "--set", "env.data.folder=bad").code == 2
    assert slipstream("data", "check", "nowhere").code == 2


def test_planted_reversion_says_what_the_best_policy_earns(slipstream):
    outcome = slipstream("data", "synthetic-reversion", "coins", "--bars", "300")
    assert outcome.code == 0
    assert len(list(Path("coins").glob("*.parquet"))) == 7
    told = "38.91 basis points a bar at a fee of 1 basis point a side, 25.31 at 10."
    assert told in " ".join(outcome.out.split())


OWN_KERNEL = Path(__file__).parents[2] / "engine/samples/clock.py"


def test_check(slipstream, tmp_path):
    done = slipstream("check", str(OWN_KERNEL), "--steps", "50", "--set", "env.max_steps=9")
    assert (done.code, done.err) == (0, "") and "complies with the kernel rules" in done.out
    broken = tmp_path / "broken.py"
    text = OWN_KERNEL.read_text()
    broken.write_text(text.replace("s.seen[1, 0] = s.sum", "s.seen[s.time, 0] = s.sum"))
    done = slipstream("check", str(broken))
    assert done.code == 2 and done.err.count("\n") == 1
    assert f"{broken}:" in done.err and "`s.seen[s.time, 0]` raised IndexError" in done.err
    done = slipstream("doctor", str(broken))
    assert done.code == 2 and "`s.seen[s.time, 0]` raised IndexError" in done.err
    for arguments, words in (
        (("gym:CartPole-v1",), "is not a kernel"),
        ((str(OWN_KERNEL), "--set", "agent.n_epochs=2"), "below `env`"),
        ((str(OWN_KERNEL), "--set", "env.max_step=2"), "did you mean `max_steps`"),
    ):
        done = slipstream("check", *arguments)
        assert done.code == 2 and words in done.err, done.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("tune-machine", "cartpole"), "`tune-machine` is called `autotune`."),
        (("exploit", "runs/x"), "`exploit` is called `best-response`."),
        (("card", "runs/x"), "`card` is called `model-card`."),
        (("data", "planted-forex", "x"), "`planted-forex` is called `synthetic-forex`."),
        (("train", "cartpole", "--total-steps", "9"), "`--total-steps` is called `--total-time"),
        (("deploy", "x", "--as", "y"), "`--as` is called `--name`."),
        (("paper", "start", "x", "--limit", "order=1"), "`--limit` is called `--max-order`."),
        (("paper", "start", "x", "--longest-gap", "9"), "`--longest-gap` is called `--max-gap`."),
        (("best-response", "runs/x", "--drawn"), "`--drawn` is called `--stochastic`."),
        (("paper", "night"), "No such command 'night'. Use `slipstream paper start night`."),
        (("paper", "a b", "--feed", "replay:x"), "Use `slipstream paper start 'a b'`."),
        (("tune", "cartpole", "--fit", "1h"), "`--fit` is called `--time-budget`."),
    ],
)
def test_renamed_commands_and_options_are_named(slipstream, words, answer):
    outcome = slipstream(*words)
    assert outcome.code == 2 and answer in outcome.err


def test_invalid_argument_values_are_explained_without_pydantic_words(slipstream):
    demo = slipstream("demo", "hokey")
    assert demo.code == 2
    assert "Invalid value for 'name': 'hokey' is not one of 'trading', 'hockey'." in demo.err
    assert "'--cores': must be at least 1." in slipstream("list", "--cores", "0").err
    assert "must be an integer." in slipstream("list", "--cores", "x").err


def test_help_lists_commands_in_the_order_of_their_use_and_uncut(slipstream):
    help_text = slipstream("--help").out
    commands = [name for names in TOPICS.values() for name in names]
    listed = re.findall(r"^  ([a-z-]+)  +\w", help_text.partition("Train:")[2], re.MULTILINE)
    assert listed == commands
    for group in ([], ["study"], ["data"], ["paper"], ["jobs"], ["policy"]):
        text = slipstream(*group, "--help").out.partition("\n\n")[2]
        assert not re.search(r"\.\.\.$", text, re.MULTILINE), group
