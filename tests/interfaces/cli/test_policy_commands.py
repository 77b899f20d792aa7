"""`slipstream policy show` and `slipstream export`, on runs and on what a study deployed."""

from __future__ import annotations

import importlib.util
import json

import pytest

import slipstream as package
from slipstream.core.storage import checkpoint
from slipstream.markets.synthetic import SyntheticForex
from slipstream.training.runs.policies import policy_metadata

FAST = {"agent.n_steps": 8, "agent.batch_size": 32, "agent.net_arch": [8]}


@pytest.fixture
def run(tmp_path):
    return package.train(
        "cartpole",
        members=2,
        num_envs=8,
        total_timesteps=256,
        out=tmp_path / "run",
        overrides=FAST,
        report=False,
        log=lambda _: None,
    )


def test_show_says_what_a_runs_policy_is(slipstream, run):
    done = slipstream("policy", "show", run.path)
    assert done.code == 0, done.err
    for words in ("ppo, seed ", "mlp of 8, tanh; head logits", "float32 of shape (4,)", "cartpole"):
        assert words in done.out, done.out
    for words in (
        "Discrete(2)",
        "4 clipped to +-10",
        "mean episode return",
        "fresh episodes",
        "slipstream",
    ):
        assert words in done.out, done.out
    own = json.loads((run.path / "best/member-001/manifest.json").read_text())["policy"]
    done = slipstream("policy", "show", run.path, "--member", "1")
    assert own["hash"] in done.out and "seed 1" in done.out
    assert slipstream("policy", "show", run.path / "best/member-001").out == done.out


def test_a_confirmation_of_few_days_has_no_bound(run):
    """It is a study's policy with its result beside it."""
    tensors, manifest = checkpoint.load(run.path / "best/member-000")
    known = {"policy": manifest["policy"], "run": run.config.as_mapping(), "trial": 3}
    checkpoint.save(run.path / "policy", tensors, known)
    (run.path / "ledger.db").touch()
    rows = [{"trial": 2}, {"trial": 3, "value": 1.5}]
    told = {"objective": "sharpe", "confirmation": {"candidates": rows}}
    (run.path / "result.json").write_text(json.dumps(told))
    assert policy_metadata(run.path)["confirmation"] == "sharpe 1.5"
    rows[1]["lcb"] = 0.5
    (run.path / "result.json").write_text(json.dumps(told))
    assert policy_metadata(run.path)["confirmation"] == "sharpe 1.5, lower bound 0.5"


def test_show_refuses_what_is_no_policy(slipstream, run, tmp_path):
    done = slipstream("policy", "show", tmp_path / "nothing")
    assert done.code == 2 and "neither a run nor a study" in done.err
    done = slipstream("policy", "show", run.path, "--member", "7")
    assert done.code == 2 and "no best policy of member 7; members that have one: 0, 1." in done.err
    for member in (0, 1):
        for folder in (run.path / "best").glob(f"member-{member:03d}*"):
            (folder / "state.safetensors").write_bytes(b"damaged")
    done = slipstream("policy", "show", run.path)
    assert done.code == 2 and "corrupt" in done.err


def test_export_writes_and_compares(slipstream, run, tmp_path):
    pytest.importorskip("onnx")
    done = slipstream("export", run.path, "--onnx", "cartpole.onnx")
    assert done.code == 0, done.err
    assert "opset 17; inputs observation" in done.out
    assert "largest difference" in done.out and "tolerance 1e-05" in done.out
    assert (tmp_path / "cartpole.onnx").stat().st_size > 500
    result = package.export(run, tmp_path / "other.onnx", member=0, opset=15)
    assert result.path.is_file() and result.opset == 15 and 500 < result.observations < 1_500
    assert result.max_difference <= result.tolerance


def test_export_refuses_in_words(slipstream, run, tmp_path):
    pytest.importorskip("onnx")
    done = slipstream("export", run.path, "--onnx", "a.onnx", "--opset", "7")
    assert done.code == 2 and "opset 7 is not supported" in done.err
    done = slipstream("export", run.path, "--onnx", "no/such/place/a.onnx")
    assert done.code == 2 and "no/such/place" in done.err
    done = slipstream("export", run.path / "best/member-000", "--onnx", "a.onnx")
    assert done.code == 2 and "without its training config" in done.err
    done = slipstream("export", tmp_path / "nothing", "--onnx", "a.onnx")
    assert done.code == 2 and "neither a run nor a study" in done.err
    assert not list(tmp_path.glob("*.onnx"))


def test_what_a_study_deploys_is_shown_and_exported(slipstream, run, tmp_path):
    tensors, own = checkpoint.load(run.path / "best/member-000")
    facts = {
        "run": run.config.as_mapping(),
        "study": "first",
        "trial": 7,
        "id": "a",
        "forced": True,
        "overrides": {"agent.learning_rate": 0.003, "agent.net_arch": [8, 8], "env.a": {"b": None}},
    }
    folder = checkpoint.save(tmp_path / "policy", tensors, {**facts, "policy": own["policy"]})
    done = slipstream("policy", "show", folder)
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "agent.learning_rate 0.003, agent.net_arch 8 8, env.a.b none" in told
    for words in ("ppo, seed 0", "first", "deployed by force", own["policy"]["hash"]):
        assert words in done.out, done.out
    if importlib.util.find_spec("onnx"):
        done = slipstream("export", folder, "--onnx", tmp_path / "deployed.onnx")
        assert done.code == 0, done.err


def test_a_market_policy_shows_its_prices_and_costs(slipstream, tmp_path):
    SyntheticForex().write(tmp_path / "hours", 3_000, 0, bar_seconds=3_600)
    data = {"folder": str(tmp_path / "hours"), "spread_pips": 0.5}
    env = {"name": "forex", "features": ["log_return_1", "rsi_14"], "max_steps": 50, "data": data}
    run = package.train(
        {"env": {**env, "slippage_pips": 0.25}, "agent": {"net_arch": [8], "n_steps": 16}},
        num_envs=4,
        total_timesteps=128,
        out=tmp_path / "run",
        report=False,
        log=lambda _: None,
    )
    done = slipstream("policy", "show", run.path)
    assert done.code == 0, done.err
    for words in ("feature rsi_14", "n 14", "slippage_pips 0.25", "3600", "EURUSD", "next_open"):
        assert words in done.out, done.out
    assert not any(word in done.out for word in ("None", "True", "False", "': "))
    for words in ("train bars", "test bars", "training data", "mean log return", "validation"):
        assert words in done.out, done.out
    if importlib.util.find_spec("onnx"):
        done = slipstream("export", run.path, "--onnx", tmp_path / "forex.onnx")
        assert done.code == 0, done.err
