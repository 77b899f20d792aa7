"""`train_single_run` and `train_run` of the hockey project, with its output files.

`config.py` reads its config files. docs/reference/hockey-project.md lists the differences.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from slipstream import api
from slipstream.core.errors import ConfigError
from slipstream.core.safe_io import path_exists
from slipstream.core.storage.atomic_io import to_jsonable, write_json, write_text
from slipstream.core.text import print_to_stderr
from slipstream.training.callbacks.console import ConsoleCallback
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig, resolve

CURRICULUM = Path(__file__).with_name("curriculum_simple.json")
_NEVER = 10**12  # episodes
_FOLDERS = ("configs", "plots", "csvs", "models")
_COLUMNS = (
    *("step", "episode", "win_rate", "mean_reward", "std_reward"),
    *("wins", "losses", "draws"),
)


# The signature is the hockey project's.
def train_single_run(
    config_path: str | Path | Mapping[str, Any],
    base_output_dir: str | Path = "results/runs",
    run_name: str | None = None,
    verbose: bool = True,
    eval_freq_steps: int | None = 800_000,
    eval_num_games: int = 200,
    eval_weak_opponent: bool = True,
    device: str | int | None = None,
    checkpoint_path: str | Path | None = None,
    num_envs: int = 1,
) -> dict[str, Any]:
    """Train one run and write its files to `configs`, `plots`, `csvs` and `models` in a folder.

    Args:
        config_path: JSON file of the hockey project, YAML file of slipstream, or such a mapping.
        base_output_dir: folder of the four folders.
        run_name: name of the run; None: `run_lr5e04_bs512_h256_512_256_<hash>_<time>`, with `_vecN`
            for N sub-environments.
        verbose: print progress to standard error.
        eval_freq_steps: timesteps between evaluations; None: the file's, else ten evaluations.
        eval_num_games: games per evaluation.
        eval_weak_opponent: evaluate against the weak bot; else against the strong one.
        device: "cpu", "cuda", "cuda:N", or N for "cuda:N"; None: "cpu".
        checkpoint_path: directory of a slipstream run to resume.
        num_envs: number of sub-environments. It does not change the updates per timestep.

    Returns:
        run_name, final_reward and mean_reward (both of the last 100 training episodes),
        total_episodes, total_steps, total_gradient_steps, and evaluation_results: step, episode,
        win_rate, mean_reward, std_reward, wins, losses and draws of each evaluation.

    Raises:
        SlipstreamError: the config or the checkpoint is not valid.
    """
    callbacks = [ConsoleCallback()] if verbose else []
    base = Path(base_output_dir)
    target = _resolve_path(config_path)
    if isinstance(device, int):
        device = str(device) if isinstance(device, bool) else f"cuda:{device}"
    try:
        if checkpoint_path is not None:
            if str(checkpoint_path).endswith((".pt", "_metadata.json")):
                raise ConfigError(
                    f"checkpoint_path is {checkpoint_path}, the file of a single policy, which "
                    "cannot be resumed. Give the directory of the run, such as "
                    f"checkpoint_path={str(base / 'models' / 'RUN')!r}."
                )
            run = api.resume(checkpoint_path, device=device, callbacks=callbacks, report=False)
            return _write_files(run, base, run.path.name)
        bot = "weak" if eval_weak_opponent else "strong"
        changes: dict[str, Any] = {
            "training.num_envs": num_envs,
            "training.device": "cpu" if device is None else device,
            "evaluation.episodes": eval_num_games,
        }
        if eval_freq_steps is not None:
            changes["evaluation.every_steps"] = eval_freq_steps
        config = resolve(target, changes)
        if config.env_settings.get("self_play") is None:  # else evaluations use both bots
            changes["env.opponents"] = {bot: 1.0}
            config = resolve(target, changes)
        if config.short_name != "hockey":
            raise ConfigError(
                "train_single_run requires a config of `hockey`, got one of "
                f"`{config.short_name}`. Use slipstream.train."
            )
        if config.training.policy_every_episodes is None:
            changes["training.policy_every_episodes"] = _NEVER  # only the last policy
        name = run_name or _run_name(config, num_envs)
        path = base / "models" / name
        run = api.train(target, out=path, overrides=changes, callbacks=callbacks, report=False)
        return _write_files(run, base, name)
    finally:
        for callback in callbacks:
            callback.close()


def train_run(
    config_path: str | Path | Mapping[str, Any],
    base_output_dir: str | Path = "results/runs",
    run_name: str | None = None,
    verbose: bool = True,
    eval_freq_steps: int | None = None,
    eval_num_games: int = 100,
    *arguments: Any,
    **named: Any,
) -> dict[str, Any]:
    """Call `train_single_run` with the other defaults that the hockey project has here."""
    first = (config_path, base_output_dir, run_name, verbose, eval_freq_steps, eval_num_games)
    return train_single_run(*first, *arguments, **named)


def _run_name(config: RunConfig, num_envs: int) -> str:
    """Return a name of learning rate, batch size, hidden layers, config hash and time."""
    agent = config.agent
    rate, batch = getattr(agent, "learning_rate", 0.0), config.agent.rows(num_envs)
    rate = rate[0] if isinstance(rate, tuple) else rate
    rate_text = f"{rate:.0e}".replace("e-", "e").replace("+", "")
    widths = "_".join(str(width) for width in getattr(agent, "net_arch", ()))
    settings = json.dumps(config.as_mapping(), sort_keys=True).encode()
    digest = hashlib.md5(settings, usedforsecurity=False).hexdigest()[:8]
    now = datetime.now().strftime("%Y%m%d_%H%M%S")
    suffix = f"_vec{num_envs}" if num_envs > 1 else ""
    return f"run_lr{rate_text}_bs{batch}_h{widths}_{digest}_{now}{suffix}"


def _write_files(run: Run, base: Path, name: str) -> dict[str, Any]:
    """Write the files beside the run and return the result of `train_single_run`."""
    for folder in _FOLDERS:
        (base / folder).mkdir(parents=True, exist_ok=True)
    trained, games = _rows(run.metrics()), run.config.evaluation.max_episodes
    episodes = {row["steps"]: row["episodes"] for row in trained}
    evaluations = [
        _evaluation(row, games, episodes.get(row["steps"])) for row in _rows(run.evaluations())
    ]
    last = trained[-1]
    score = math.nan if last["score"] is None else last["score"]  # no finished episode
    result: dict[str, Any] = {
        "run_name": name,
        "final_reward": score,
        "mean_reward": score,
        "total_episodes": int(last["episodes"] or 0),
        "total_steps": int(last["steps"]),
        "total_gradient_steps": int(last["updates"]),
        "evaluation_results": evaluations,
    }
    write_json(base / "configs" / f"{name}.json", to_jsonable(run.config.as_mapping()))
    lines = [",".join(_COLUMNS)]
    lines += [",".join(str(row[column]) for column in _COLUMNS) for row in evaluations]
    write_text(base / "csvs" / f"{name}_evaluation.csv", "\n".join(lines) + "\n")
    shutil.copyfile(run.path / "metrics.csv", base / "csvs" / f"{name}_training.csv")
    _plot(evaluations, base / "plots" / f"{name}.png")
    if run.best.has(0):
        best = base / "models" / f"{name}_best"
        shutil.copytree(run.best.folder_of(0), best, dirs_exist_ok=True)
    return result


def _rows(table: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return the rows of member 0 in a run's table."""
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [row for row in rows if row["member"] == 0]


def _evaluation(row: Mapping[str, Any], games: int, episode: float | None) -> dict[str, Any]:
    """Return an evaluation in the hockey project's columns; `episode` counts finished ones."""
    wins, losses = (round(games * (row[name] or 0.0)) for name in ("won", "lost"))
    return {
        "step": int(row["steps"]),
        "episode": int(episode or 0),
        "win_rate": wins / games,
        "mean_reward": row["score"],
        "std_reward": row["score_deviation"],
        "wins": wins,
        "losses": losses,
        "draws": games - wins - losses,
    }


def _resolve_path(config: str | Path | Mapping[str, Any]) -> str | Path | Mapping[str, Any]:
    """Return the config; a missing `curriculum_simple.json` is replaced by slipstream's."""
    if isinstance(config, Mapping) or path_exists(Path(config)):
        return config
    if Path(config).name != CURRICULUM.name:
        return config
    print_to_stderr(f"{config} does not exist. Using slipstream's {CURRICULUM}.")
    return CURRICULUM


def _plot(evaluations: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    steps = np.array([row["step"] for row in evaluations]) / 1e6
    for name, label in (("wins", "won"), ("draws", "drawn"), ("losses", "lost")):
        shares = [row[name] / (row["wins"] + row["losses"] + row["draws"]) for row in evaluations]
        axes.plot(steps, shares, label=label)
    axes.set(xlabel="environment steps, million", ylabel="share of games", ylim=(0.0, 1.0))
    axes.legend()
    figure.savefig(path, dpi=120)
