"""A small study that a test starts, kills and compares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from slipstream.studies.record.ledger import Ledger
from slipstream.training.population.member_state import PolicyStore

CONFIG = """
env: cartpole
agent: {n_steps: 16, batch_size: 64, n_epochs: 2}
training: {num_envs: 8, total_timesteps: 2560}
evaluation: {episodes: 8}
study:
  n_trials: 5
  max_concurrent_trials: 2
  fold_seeds: 2
  pruning: {startup: 2}
  confirmation: {top: 2, seeds: 2, bootstrap: 50}
  final_seeds: 2
  space:
    agent.learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
    agent.n_epochs: {low: 1, high: 3}
"""


PROGRAM = "from slipstream.cli import main; main()"


def command(folder: Path, *more: str) -> list[str]:
    words = ("tune", str(folder / "c.yaml"), "--study-name", str(folder / "one"), "--no-report")
    return [sys.executable, "-c", PROGRAM, *words, *more]


def whole(folder: Path, *more: str):
    folder.mkdir(parents=True)
    (folder / "c.yaml").write_text(CONFIG)
    done = subprocess.run(command(folder, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return contents(folder)


def contents(folder: Path):
    """All that is decided or learned: suggestions, scores, daily returns, final weights."""
    with Ledger(folder / "one" / "ledger.db") as ledger:
        asks = [(a.trial, a.time, dict(a.params)) for a in ledger.suggestions().values()]
        verdicts = [(v.trial, v.stage, v.kind, v.score) for v in ledger.decisions()]
        outcomes = {
            (phase, *key): one.backtests.returns.tobytes()
            for phase in ("search", "confirm", "final")
            for key, one in ledger.outcomes(phase).items()
            if one.backtests is not None
        }
    kept = PolicyStore(folder / "one" / "weights")
    weights = {}
    for trial in range(5):
        for fold in range(2):
            found = kept.get(f"search-{trial:05d}-{fold}")
            if found is not None:
                weights[trial, fold] = {k: v.tobytes() for k, v in found[0].items()}
    result = json.loads((folder / "one" / "result.json").read_text())
    policy = (folder / "one" / "policy" / "state.safetensors").read_bytes()
    return asks, verdicts, outcomes, weights, result["confirmation"], result["winner"], policy
