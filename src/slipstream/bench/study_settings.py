"""The study that the benchmarks run: sizes, config file, and the market it searches on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from slipstream.features.sets import FEATURE_SETS
from slipstream.market.planted.crypto import PlantedCrypto

BARS = 125_000  # of five minutes; the hold-out leaves some 100,000 to develop on
FOLDS = 6
IN_FLIGHT = 16  # trials; with six folds each, groups have their full size
COPIES, HORIZON = 12, 256

# A planted bar opens at the last close: another column takes the place of the one that says so.
PLANTED_FEATURES = tuple(
    "log_return_5" if name == "log_open" else name for name in FEATURE_SETS["portfolio"]
)


# Nothing here changes how much work a step is, so that every trial is the same workload.
SPACE: dict[str, Mapping[str, Any]] = {
    "agent.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True},
    "agent.discount": {"low": 0.85, "high": 0.99},
    "agent.entropy_coef": {"low": 1e-5, "high": 1e-2, "log": True},
    "agent.clip_range": {"low": 0.1, "high": 0.4},
}


class Size(NamedTuple):
    """How large a study is.

    Attributes:
        trials: tried.
        steps: of training, for each member.
        confirmed: best trials that are trained again; seeds: how often.
    """

    trials: int
    steps: int
    confirmed: int
    seeds: int
    final_seeds: int

    @property
    def iterations(self) -> int:
        """Of one member: whole rollouts."""
        return -(-self.steps // (COPIES * HORIZON))

    @property
    def members(self) -> int:
        """Trained in the search."""
        return self.trials * FOLDS

    @property
    def confirming(self) -> int:
        """Members trained between the search and the hold-out's result."""
        return self.confirmed * self.seeds * FOLDS + self.final_seeds


FULL = Size(trials=500, steps=100_000, confirmed=10, seeds=5, final_seeds=5)
# As many members side by side as in the full study, a tenth of the steps: 2.9 million in all.
SLICE = Size(trials=IN_FLIGHT, steps=10 * COPIES * HORIZON, confirmed=1, seeds=1, final_seeds=1)


def study_config(env: Mapping[str, Any], size: Size, *, pruning: bool) -> dict[str, Any]:
    """A config file's content: separate actor and critic of 64 x 64, 106 numbers seen.

    Args:
        env: what `market` yields.
        size: trials and steps.
        pruning: whether trials stop early.
    """
    return {
        "env": {"name": "portfolio", **env},
        "agent": {"horizon": HORIZON, "minibatch": 256, "epochs": 4, "widths": [64, 64]},
        "training": {"num_envs": COPIES, "total_steps": size.steps},
        "study": {
            "n_trials": size.trials,
            "trials_in_flight": IN_FLIGHT,
            "pruning": {"enabled": pruning},
            "confirmation": {"top": size.confirmed, "seeds": size.seeds},
            "final_seeds": size.final_seeds,
            "space": SPACE,
        },
    }


@contextmanager
def market(data_dir: str | None) -> Iterator[dict[str, Any]]:
    """What the portfolio is told beside its defaults, for as long as the prices lie there.

    Args:
        data_dir: the user's folder of prices; None: a planted market of seven assets.
    """
    if data_dir is not None:
        yield {"data": {"folder": data_dir}}
        return
    folder = tempfile.mkdtemp(prefix="slipstream-bench-")
    try:
        PlantedCrypto().write(folder, BARS)
        yield {"data": {"folder": folder}, "features": list(PLANTED_FEATURES)}
    finally:
        shutil.rmtree(folder)
