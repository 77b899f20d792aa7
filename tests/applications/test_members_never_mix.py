"""On what `init` writes: a member's weights are the same bits alone, in company, in any shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.cli import main
from slipstream.core.storage import checkpoint
from slipstream.kernels.kernel_registry import list_kernels
from slipstream.markets.synthetic import SyntheticCrypto, SyntheticForex
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.settings.sizing import resolve_num_envs
from slipstream.training.trainer import train

SHOP = str(Path(__file__).parents[2] / "examples" / "kernels" / "shop.py")
PRICES = {"forex": SyntheticForex().write, "portfolio": SyntheticCrypto().write}
VARIANTS = [
    ("forex", {"env.action": "continuous"}),
    ("portfolio", {"env.orders": "units"}),
    ("probes", {"env.probe": "switches"}),
    ("probes", {"env.probe": "target"}),
    ("gym:CartPole-v1", {}),
    (SHOP, {}),
    ("tictactoe", {"env.self_play.slots": 2, "env.self_play.snapshot_iterations": 1}),
]
QUICK = [("gym:CartPole-v1", {}, (2,)), ("forex", {}, (2,))]
TOGETHER, CHOSEN = 3, 1
# Two shards: the chosen one beside a neighbour in one, the third member in the other.
CASES = [
    pytest.param(
        *(name, changes, shards),
        id="-".join([Path(name).stem, *map(str, changes.values()), "-".join(map(str, shards))]),
        marks=[] if (name, changes, shards) in QUICK else pytest.mark.slow,
    )
    for name, changes in [*((kernel, {}) for kernel in list_kernels()), *VARIANTS]
    for shards in ((2,), (1, TOGETHER))
]


@pytest.mark.parametrize(("name", "changes", "shards"), CASES)
def test_alone_and_in_company(tmp_path, capsys, name, changes, shards):
    folder = []
    if name in PRICES:
        PRICES[name](tmp_path / "prices", 8000, seed=4)
        folder = [str(tmp_path / "prices")]
    with pytest.raises(SystemExit):
        main(["init", name, *folder])
    written = tmp_path / "my.yaml"
    written.write_text(capsys.readouterr().out)

    asked = resolve(written, {**changes, "evaluation.episodes": 5})
    environment = resolve_environment(asked.env_name, asked.env_settings)
    together = _two_rollouts(asked, environment, TOGETHER, seed=5)
    alone = _two_rollouts(asked, environment, 1, seed=5 + CHOSEN)
    mine = _state(tmp_path / "alone", alone, environment, 0)
    for number in shards:
        config = together.with_training(shards=number)
        theirs = _state(tmp_path / f"shards-{number}", config, environment, CHOSEN)
        assert theirs.keys() == mine.keys()
        different = [key for key, value in theirs.items() if value != mine[key]]
        assert different == []


def _two_rollouts(asked, environment, members, seed):
    """As it was written, cut short after its sizes were settled."""
    config, _ = resolve_num_envs(asked.with_training(members=members, seed=seed), environment)
    steps = 2 * config.agent.n_steps * config.training.num_envs
    return config.with_training(total_timesteps=steps)


def _state(path, config, environment, member):
    """All that member's bytes: weights, optimiser, environments, scores, best policy."""
    run = Run.create(config, path)
    try:
        train(run.config, run, environment=environment)
    finally:
        run.close()
    tensors, _ = checkpoint.load(checkpoint.checkpoints(path / "checkpoints")[-1])
    best, _ = checkpoint.load(run.best.folder_of(member))
    rows = {f"best.{key}": value.tobytes() for key, value in best.items()}
    for key, value in tensors.items():
        rows[key] = np.split(value, config.training.members)[member].tobytes()
    return rows
