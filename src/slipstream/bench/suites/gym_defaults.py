"""Scores of defaults on Gymnasium environments, beside SB3's: a case of `slipstream bench train`.

What is measured are scores, never speeds: two cells may run side by side on a busy machine, and one
that stands in the results file with the same versions and config is not measured again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from scipy import stats

from slipstream.bench.cell import Measurement
from slipstream.bench.gym_games import GAMES, SEEDS, GymGame
from slipstream.bench.machine import threads, versions
from slipstream.bench.row import Goal, Row, judged
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import WorkerError
from slipstream.training.settings.config import resolve

Cells: TypeAlias = Mapping[str, Mapping[str, Any]]

_OURS, _PEER = "ours.gym_defaults", "peers.sb3_ppo_gym"
_MARGIN = -5.0  # % of the score's range


def gym_defaults(settings: SuiteOptions) -> Iterable[Row]:
    """Every budget of every game; what is cut off by `--hours` is said in its row."""
    until = time.monotonic() + 3600 * (settings.hours if settings.hours is not None else 1e6)
    first = [(game, game.budgets[0]) for game in GAMES]
    later = [(game, steps) for game in GAMES for steps in game.budgets[1:]]
    waiting = [
        cell
        for work in (first, later)
        for seed in SEEDS
        for game, steps in work
        for cell in _pair(game, steps, seed)
    ]

    failed: dict[str, str] = {}  # by environment, such as one whose package is missing

    def run(cell: Measurement) -> None:
        name = cell.asked["env_id"]
        if cell.digest in settings.earlier:
            return
        if time.monotonic() < until and name not in failed:
            try:
                cell.run()
            except WorkerError as error:
                failed[name] = str(error)

    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(run, waiting))
    for game in GAMES:
        for steps in game.budgets:
            yield _row(game, steps, failed.get(game.env_id), settings.earlier)


def _pair(game: GymGame, steps: int, seed: int) -> tuple[Measurement, Measurement]:
    asked = {"env_id": game.env_id, "steps": steps, "seed": seed, "episodes": game.episodes}
    names = versions()
    config = resolve(f"gym:{game.env_id}", {"training.total_steps": steps}).as_mapping()
    ours = {name: names[name] for name in ("slipstream", "gymnasium", "numpy", "numba")}
    peer = {name: names[name] for name in ("stable-baselines3", "gymnasium", "numpy", "torch")}
    return Measurement(_OURS, asked, {**ours, "config": config}), Measurement(_PEER, asked, peer)


def _row(game: GymGame, steps: int, failure: str | None, earlier: Cells) -> Row:
    pairs = [_pair(game, steps, seed) for seed in SEEDS]
    ran = [(_summary(ours, earlier), _summary(peer, earlier)) for ours, peer in pairs]
    whole = [(ours, peer) for ours, peer in ran if ours and peer]
    budget = "the RL Zoo's budget" if steps == game.zoo else "a budget of our choice"
    if game.zoo and steps != game.zoo:
        budget = f"the RL Zoo's budget is {game.zoo:,}"
    unit = (
        f"mean return of {game.episodes:,} fresh episodes after {steps:,} steps ({budget}"
        f"{'; held out while defaults were chosen' if game.held_out else ''})"
    )
    missing = len(SEEDS) - len(whole)
    if missing:
        why = f"the others failed: {failure.splitlines()[-1]}" if failure else "the rest was cut"
        unit += f"; {len(whole)} of {len(SEEDS)} seeds were run, {why}"
    differences = [ours["mean"] - peer["mean"] for ours, peer in whole]
    lower = None
    if len(whole) > 1:
        low, high = interval(differences)
        lower = 100.0 * low / (game.high - game.low)
        unit += f"; difference {statistics.mean(differences):.3g}, 95 % interval over seeds "
        unit += f"{low:.3g} to {high:.3g} on a range of {game.low:g} to {game.high:g}"
    return Row(
        case=f"gym_defaults {game.env_id}",
        unit=unit,
        ours=statistics.mean(ours["mean"] for ours, _ in whole) if whole else None,
        peer=statistics.mean(peer["mean"] for _, peer in whole) if whole else None,
        peer_name="SB3 PPO's defaults",
        runs=len(whole),
        cells=tuple(one for pair in ran for one in pair if one),
        **judged(Goal(">=", _MARGIN), lower if not missing else None)
        | {"goal": "interval above -5 % of the range"},
    )


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a mean by Student's t, the seeds being the sample."""
    n = len(differences)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    mean = statistics.mean(differences)
    return mean - half, mean + half


def _summary(cell: Measurement, earlier: Cells) -> dict[str, Any] | None:
    """What the results file says about a cell that ran."""
    outcome = cell.kept()
    if outcome is None:
        known = earlier.get(cell.digest)
        return dict(known) if known else None
    returns = outcome.pop("returns")
    return {
        "side": "slipstream" if cell.module == _OURS else "SB3",
        "command": f"python -m slipstream.bench.{cell.module}",
        "key": cell.digest,
        **cell.asked,
        "mean": statistics.mean(returns),
        "standard_error": statistics.stdev(returns) / len(returns) ** 0.5,
        **outcome,
    }
