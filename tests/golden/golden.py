"""Golden hashes: what trainings and a study compute, to the bit, however the code is arranged.

::

    python tests/golden/golden.py                  print this tree's hashes
    python tests/golden/golden.py compare TREE     this tree beside another one, on this machine
    python tests/golden/golden.py record           write hashes.json

Everything is read from the files that runs and studies leave, so that one script serves trees that
are laid out differently. Weights count as a bag of bits: their names and order may change.
Hashes depend on the processor's vectors (fused products), so they are recorded by processor; on
another one, compare two trees.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import polars
import safetensors.numpy

HASHES = Path(__file__).with_name("hashes.json")
_PROGRAM = "from slipstream.cli import main; main()"
_AGENT = {"n_steps": 32, "n_epochs": 2}
_REPLAY = {"net_arch": [32, 32], "batch_size": 32, "learning_starts": 500}
_GATES = ("confirmed", "holdout", "pbo", "dsr", "costs", "cuts")
_NEWER = 60  # bars that a paper account sees and no training
_PAPER_FROM = "2022-01-14 16:20"  # where the newest 60 bars of five minutes begin
_EVALUATION = {"episodes": 100}  # whatever a budget has time for
_KILL_AFTER = 120.0  # seconds without a checkpoint: something is wrong


def machine() -> str:
    """What last bits depend on: the processor as compilers see it, and numeric libraries."""
    from llvmlite import binding

    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("numba", "numpy"))
    return f"{platform.machine()} {binding.get_host_cpu_name()}, {libraries}"


def cartpole(folder: Path) -> str:
    """One member, whose minibatches are summed from two parts."""
    agent = {**_AGENT, "batch_size": 1024, "reward_scaling": "off"}
    return _trained(
        folder, {"env": "cartpole", "agent": agent}, num_envs=64, total_timesteps=20_480
    )


def cartpole_members(folder: Path) -> str:
    """Five members with numbers of their own, on every schedule and switch."""
    agent = {
        **_AGENT,
        "batch_size": 48,
        "net_arch": [48, 33],
        "activation": "relu",
        "learning_rate": [1e-4, 3e-4, 1e-3, 2e-3, 3e-3],
        "gamma": [0.9, 0.95, 0.98, 0.99, 0.999],
        "target_kl": 0.02,
        "reward_scaling": "on",
    }
    training = {"num_envs": 6, "members": 5, "total_timesteps": 1_920}
    return _trained(folder, {"env": "cartpole", "agent": agent}, **training)


def pendulum(folder: Path) -> str:
    """Continuous actions."""
    config = {"env": "pendulum", "agent": _AGENT}
    return _trained(folder, config, num_envs=16, members=2, total_timesteps=5_120)


def multi_discrete(folder: Path) -> str:
    """PPO over six choices of two."""
    config = {"env": {"name": "probes", "probe": "switches"}, "agent": _AGENT}
    return _trained(folder, config, num_envs=16, total_timesteps=2_560)


def dqn(folder: Path) -> str:
    """Prioritised replay, three-step returns and two streams."""
    agent = {
        "name": "dqn",
        "prioritised": True,
        "n_step": 3,
        "dueling": True,
        **_REPLAY,
    }
    return _trained(folder, {"env": "cartpole", "agent": agent}, members=2, total_timesteps=2_048)


def dqn_masked(folder: Path) -> str:
    """Self-play of a game in which some actions are forbidden."""
    play = {"opponents": {"snapshots": 2, "random": 1}, "snapshot_iterations": 1}
    agent = {"name": "dqn", **_REPLAY}
    config = {"env": {"name": "tictactoe", "self_play": play}, "agent": agent}
    return _trained(folder, config, members=2, total_timesteps=2_048)


def sac(folder: Path) -> str:
    """Continuous actions from a replay."""
    return _trained(folder, _off_policy("sac"), members=2, total_timesteps=2_048)


def td3(folder: Path) -> str:
    """One action for each state, with two values."""
    return _trained(folder, _off_policy("td3"), members=2, total_timesteps=2_048)


def hockey(folder: Path) -> str:
    """Self-play against snapshots and both bots."""
    play = {"opponents": {"snapshots": 1}, "snapshot_iterations": 1, "slots": 2}
    env = {
        "name": "hockey",
        "opponents": {"agent": 2, "weak": 1, "strong": 1},
        "self_play": play,
    }
    config = {"env": env, "agent": {**_AGENT, "net_arch": [32]}}
    return _trained(folder, config, num_envs=8, members=2, total_timesteps=1_280)


def gymnasium_ppo(folder: Path) -> str:
    """Gymnasium's CartPole in worker processes."""
    training = {"num_envs": 4, "members": 2, "total_timesteps": 1_280, "backend": "process"}
    return _trained(folder, {"env": "gym:CartPole-v1", "agent": _AGENT}, **training)


def gymnasium_sac(folder: Path) -> str:
    """Gymnasium's Pendulum in this process, with running statistics of observations."""
    config = _off_policy("sac", observation_normalization=True)
    config["env"] = "gym:Pendulum-v1"
    return _trained(folder, config, members=2, total_timesteps=1_280, backend="serial")


def forex_folds(folder: Path) -> str:
    """A small study of forex by DQN over combinatorial folds: its ledger."""
    _synthetic("forex").write(folder / "market", 4_000, 0, symbols=("EURUSD",))
    data = {"folder": str(folder / "market"), "spread_pips": 0.5}
    env = {"name": "forex", "data": data, "features": ["log_return_1", "rsi_14"], "max_steps": 100}
    settings = {
        "n_trials": 4,
        "confirmation": {"top": 1, "seeds": 2, "bootstrap": 50},
        "final_seeds": 2,
        "space": {"agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True}},
    }
    agent = {"name": "dqn", **_REPLAY, "learning_starts": 100}
    training = {"total_timesteps": 1_024}
    return _studied(folder, {"env": env, "agent": agent, "training": training, "study": settings})


def forex(folder: Path) -> str:
    """Two symbols that pay a spread."""
    for seed, symbol in enumerate(("EURUSD", "GBPUSD")):
        _synthetic("forex").write(folder / "market", 3_000, seed, symbols=(symbol,))
    data = {"folder": str(folder / "market"), "spread_pips": 0.5}
    env = {"name": "forex", "data": data, "lookback": 3, "max_steps": 100}
    return _trained(
        folder, {"env": env, "agent": _AGENT}, num_envs=8, members=2, total_timesteps=2_560
    )


def portfolio(folder: Path) -> str:
    """A population of six that orders target weights."""
    return _trained(folder, _portfolio(folder), num_envs=5, members=6, total_timesteps=1_600)


def portfolio_units(folder: Path) -> str:
    """A population of six that orders units. Its copies are interpreted, which gives the same bits:
    no other quick test compiles a portfolio of seven."""
    training = {"num_envs": 5, "members": 6, "total_timesteps": 1_600, "backend": "serial"}
    return _trained(folder, _portfolio(folder, orders="units"), **training)


def resumed(folder: Path) -> str:
    """A run that was killed after its first checkpoint, and resumed."""
    config = folder / "config.yaml"
    agent = {**_AGENT, "batch_size": 128, "reward_scaling": "off"}
    training = {"num_envs": 16, "members": 2, "total_timesteps": 399_360, "checkpoint_every": 0.1}
    sections = {"agent": agent, "training": training, "evaluation": _EVALUATION}
    config.write_text(json.dumps({"env": "cartpole", **sections}))
    run = folder / "run"
    child = _command("train", str(config), "--out", str(run), "--no-report")
    deadline = time.monotonic() + _KILL_AFTER
    while child.poll() is None and not list(run.glob("checkpoints/step-*/manifest.json")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    if (run / "result.json").exists() or not list(run.glob("checkpoints/step-*")):
        raise RuntimeError(f"the run in {run} ended, or wrote nothing, before it was killed")
    if _command("resume", str(run), "--no-report").wait():
        raise RuntimeError(f"{run} was not resumed")
    return _run_hash(run)


def study(folder: Path) -> str:
    """A small study of folds with pruning: its ledger."""
    searched = {
        "agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True},
        "agent.gamma": {"low": 0.8, "high": 0.99},
    }
    settings = {
        "n_trials": 6,
        "max_concurrent_trials": 3,
        "pruning": {"rungs": [0.5], "startup": 3, "min_correlation": -1.0},
        "confirmation": {"top": 1, "seeds": 2, "bootstrap": 50},
        "final_seeds": 2,
        "space": searched,
    }
    config = {**_portfolio(folder), "study": settings}
    config["agent"] = {"n_steps": 18, "batch_size": 30, "n_epochs": 2, "net_arch": [48, 33]}
    config["training"] = {"num_envs": 5, "total_timesteps": 360}
    return _studied(folder, config)


def paper_account(folder: Path) -> str:
    """A trained portfolio that is deployed and led over newer bars: its decisions and equity."""
    _synthetic("crypto").write(folder / "newer", 4_000, 3)
    config = _portfolio(folder)
    for file in (folder / "newer").glob("*.parquet"):
        polars.read_parquet(file)[:-_NEWER].write_parquet(folder / "market" / file.name)
    _trained(folder, config, num_envs=5, total_timesteps=1_600)
    forced = [word for gate in _GATES for word in ("--force", gate)]
    feed = ("--feed", f"replay:{folder / 'newer'}", "--from", _PAPER_FROM)
    for words in (
        ("deploy", str(folder / "run"), "--name", "golden", "--reason", "golden", *forced),
        ("paper", "start", "golden", *feed),
    ):
        if _command(*words, cwd=folder).wait():
            raise RuntimeError(f"`slipstream {' '.join(words)}` failed")
    return _journal_hash(folder)


CASES: Mapping[str, Callable[[Path], str]] = {
    case.__name__: case
    for case in (
        cartpole,
        cartpole_members,
        pendulum,
        forex,
        portfolio,
        portfolio_units,
        multi_discrete,
        dqn,
        dqn_masked,
        sac,
        td3,
        hockey,
        gymnasium_ppo,
        gymnasium_sac,
        resumed,
        study,
        forex_folds,
        paper_account,
    )
}


def hash_of(case: str) -> str:
    """What one case computes here."""
    with tempfile.TemporaryDirectory() as folder:
        return CASES[case](Path(folder))


def _synthetic(market: str) -> Any:
    """Return the synthetic market of that name."""
    from slipstream.markets import synthetic

    return getattr(synthetic, f"Synthetic{market.capitalize()}")()


def _trained(folder: Path, config: Mapping[str, Any], **training: Any) -> str:
    import slipstream

    config = {**config, "evaluation": _EVALUATION}
    run = slipstream.train(config, out=folder / "run", report=False, log=lambda _: None, **training)
    return _run_hash(run.path)


def _run_hash(run: Path) -> str:
    """Final weights, the chosen ones and evaluation scores."""
    digest = hashlib.sha256()
    last = max(run.glob("checkpoints/step-*"))
    for folder in (last, *sorted(run.glob("best/member-???"))):
        words = []
        for file in sorted(folder.glob("*.safetensors")):
            for name, values in safetensors.numpy.load_file(file).items():
                if "weights" in name.split("."):
                    words.append(np.ascontiguousarray(values, np.float32).view(np.uint32).ravel())
        bits = np.sort(np.concatenate(words))
        digest.update(bits[bits != 0].tobytes())  # zeros: columns that fill vectors
    digest.update((run / "evaluations.csv").read_bytes())
    return digest.hexdigest()


def _ledger_hash(path: Path) -> str:
    """Suggestions, virtual times, scores, daily returns and verdicts; never seconds."""
    digest = hashlib.sha256()
    queries = (
        "SELECT trial, time, params FROM suggestions ORDER BY trial",
        "SELECT name, milestone, failed, steps, metrics, days, returns, benchmark, groups "
        "FROM outcomes ORDER BY name, milestone",
        "SELECT trial, stage, milestone, time, kind, score, folds FROM decisions "
        "ORDER BY trial, stage",
    )
    connection = sqlite3.connect(path)
    try:
        for query in queries:
            for row in connection.execute(query):
                digest.update(repr(row).encode())
    finally:
        connection.close()
    return digest.hexdigest()


def _portfolio(folder: Path, **env: Any) -> dict[str, Any]:
    _synthetic("crypto").write(folder / "market", 4_000, 3)
    features = ["log_return_1", "log_return_5", "range_rel", "rsi_3", "volume_z_20"]
    own = {
        "data": {"folder": str(folder / "market")},
        "features": features,
        "max_steps": 100,
        **env,
    }
    return {"env": {"name": "portfolio", **own}, "agent": dict(_AGENT)}


def _off_policy(agent: str, **settings: Any) -> dict[str, Any]:
    return {"env": "pendulum", "agent": {"name": agent, **_REPLAY, **settings}}


def _studied(folder: Path, config: Mapping[str, Any]) -> str:
    import slipstream

    slipstream.tune(
        config,
        study_name=str(folder / "study"),
        workers=1,
        force_deploy=True,
        report=False,
        log=lambda _: None,
    )
    return _ledger_hash(folder / "study" / "ledger.db")


def _journal_hash(folder: Path) -> str:
    """Decisions of a paper account; never the seconds at which they were made."""
    (path,) = folder.glob("deployments/*/accounts/*/*.db")
    digest = hashlib.sha256()
    connection = sqlite3.connect(path)
    try:
        for row in connection.execute("SELECT * FROM decisions ORDER BY pass, time"):
            digest.update(repr(row[:-1]).encode())
    finally:
        connection.close()
    return digest.hexdigest()


def _command(*words: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, *words], cwd=cwd, **quiet)


def _hashes(tree: Path | None = None) -> dict[str, str]:
    """All hashes, of this tree or of another one."""
    if tree is None:
        return {case: hash_of(case) for case in CASES}
    source = (tree / "src").resolve()
    if not (source / "slipstream").is_dir():
        raise SystemExit(f"{tree} is no tree of slipstream: it has no src/slipstream.")
    path = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=path, check=True, stdout=subprocess.PIPE)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _main(words: list[str]) -> None:
    if not words:
        print(json.dumps(_hashes(), indent=1))
    elif words == ["record"]:
        recorded = json.loads(HASHES.read_text()) if HASHES.exists() else {}
        HASHES.write_text(json.dumps({**recorded, machine(): _hashes()}, indent=1) + "\n")
    elif len(words) == 2 and words[0] == "compare":
        here, there = _hashes(), _hashes(Path(words[1]))
        for case in CASES:
            print(f"{case:20} {'same bits' if here[case] == there[case] else 'OTHER BITS'}")
        sys.exit(here != there)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    _main(sys.argv[1:])
