"""Scores of defaults on Gymnasium environments beside SB3's: a case of the suite `train`.

Only scores are measured, never speeds: two cells may run concurrently on a busy machine. A cell
that is in the results file with the same versions and config is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats

from benchmarks.machine import threads, versions
from benchmarks.row import Goal, Row
from benchmarks.suite import SuiteOptions, specs_of
from benchmarks.worker import WorkerError, run_worker
from slipstream.core.storage.atomic_io import write_json
from slipstream.jit.cache import cache_folder
from slipstream.training.settings.config import resolve

SEEDS = (1, 2, 3, 4, 5)
MARGIN = Goal(">=", -5.0)  # % of the score range
_TIMEOUT = 6 * 3600.0


@dataclass(frozen=True)
class GymGame:
    """One environment.

    Attributes:
        env_id: Gymnasium id.
        low, high: range of its scores, from an untrained to a very good policy.
        budgets: training steps, measured in this order.
        zoo: the budget of the RL Zoo's hyperparams/ppo.yml, None if it has no entry.
        held_out: whether the environment was unused when the defaults were selected.
        episodes: fresh episodes of a score; more if returns vary widely.
    """

    env_id: str
    low: float
    high: float
    budgets: Sequence[int]
    zoo: int | None = None
    held_out: bool = False
    episodes: int = 100


GAMES = tuple(GymGame(**game) for game in specs_of("train")["gym_defaults"]["games"])


@dataclass(frozen=True)
class Cell:
    """One training of one side; its outcome does not depend on load and is stored in a file.

    Attributes:
        side: stored name of the side, independent of the worker's name.
        worker: function for `run_worker`.
        asked: its arguments.
        depends: other inputs of the outcome, such as versions.
    """

    side: str
    worker: str
    asked: Mapping[str, Any]
    depends: Mapping[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """Return the key of the stored outcome."""
        return {"module": self.side, "asked": dict(self.asked), "depends": dict(self.depends)}

    @property
    def digest(self) -> str:
        """Return the digest of the key."""
        return hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        """Return the file of the outcome in the user's cache."""
        return cache_folder() / "bench" / f"{self.side}.{self.digest}.json"

    def kept(self) -> dict[str, Any] | None:
        """Return the stored outcome, or None."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return dict(values["outcome"]) if values.get("key") == self.key else None

    def run(self) -> dict[str, Any]:
        """Return the outcome, measured unless stored; one thread, so that several may run."""
        outcome = self.kept()
        if outcome is None:
            outcome = run_worker(self.worker, self.asked, threads=1, timeout=_TIMEOUT)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"key": self.key, "outcome": outcome})
        return outcome

    def summary(self, earlier: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the results file's entry, or None if not measured; `earlier`: previous entries."""
        outcome = self.kept()
        if outcome is None:
            return dict(earlier[self.digest]) if self.digest in earlier else None
        returns = outcome.pop("returns")
        return {
            "side": "slipstream" if self.side.startswith("ours") else "SB3",
            "command": f"python -m benchmarks.worker {self.worker}",
            "key": self.digest,
            **self.asked,
            "mean": statistics.mean(returns),
            "standard_error": statistics.stdev(returns) / len(returns) ** 0.5,
            **outcome,
        }


def gym_defaults(settings: SuiteOptions) -> Iterable[Row]:
    """Measure every budget of every game; the row lists what `--hours` cut off."""
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
    failed: dict[str, str] = {}  # errors by environment, such as a missing package

    def run(cell: Cell) -> None:
        name = cell.asked["env_id"]
        if cell.digest in settings.earlier or name in failed or time.monotonic() >= until:
            return
        try:
            cell.run()
        except WorkerError as error:
            failed[name] = str(error)

    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(run, waiting))
    for game in GAMES:
        for steps in game.budgets:
            yield _row(game, steps, failed.get(game.env_id), settings.earlier)


def _pair(game: GymGame, steps: int, seed: int) -> tuple[Cell, Cell]:
    asked = {"env_id": game.env_id, "steps": steps, "seed": seed, "episodes": game.episodes}
    names = versions()
    config = resolve(f"gym:{game.env_id}", {"training.total_timesteps": steps}).as_mapping()
    ours = {name: names[name] for name in ("slipstream", "gymnasium", "numpy", "numba")}
    peer = {name: names[name] for name in ("stable-baselines3", "gymnasium", "numpy", "torch")}
    mine = {**ours, "config": config}
    return (
        Cell("ours.gym_defaults", "ours.training.gym_defaults", asked, mine),
        Cell("peers.sb3_ppo_gym", "peers.sb3.ppo_gym", asked, peer),
    )


def _row(
    game: GymGame, steps: int, failure: str | None, earlier: Mapping[str, Mapping[str, Any]]
) -> Row:
    pairs = [_pair(game, steps, seed) for seed in SEEDS]
    ran = [(ours.summary(earlier), peer.summary(earlier)) for ours, peer in pairs]
    whole = [(ours["mean"], peer["mean"]) for ours, peer in ran if ours and peer]
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
    holds = None
    if len(whole) > 1:
        differences = [ours - peer for ours, peer in whole]
        low, high = interval(differences)
        if not missing:
            holds = MARGIN.holds(100.0 * low / (game.high - game.low))
        unit += f"; difference {statistics.mean(differences):.3g}, 95 % interval over seeds "
        unit += f"{low:.3g} to {high:.3g} on a range of {game.low:g} to {game.high:g}"
    row = Row(
        case=f"gym_defaults {game.env_id}",
        unit=unit,
        peer_name="SB3 PPO's defaults",
        runs=len(whole),
        goal="interval above -5 % of the range",
        holds=holds,
        cells=tuple(cell for pair in ran for cell in pair if cell),
    )
    if not whole:
        return row
    ours, peer = (statistics.mean(side) for side in zip(*whole, strict=True))
    return replace(row, ours=ours, peer=peer)


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean by Student's t, with the seeds as the sample."""
    n = len(differences)
    half = float(stats.t.ppf(0.975, n - 1)) * statistics.stdev(differences) / n**0.5
    mean = statistics.mean(differences)
    return mean - half, mean + half
