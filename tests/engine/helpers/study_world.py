"""A whole study over a pool that trains nothing: four groups of days, six folds, a hold-out."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from fake_pool import MARKET, SPACE, FakePool

from slipstream.core.random import derive_seed
from slipstream.kernels.spec import Metric
from slipstream.studies.config import StudyConfig
from slipstream.studies.record.folder import StudyFolder
from slipstream.studies.record.warm_start import warm_start
from slipstream.studies.search.session import EnvInfo
from slipstream.studies.search.study_plan import num_iterations
from slipstream.studies.space import SearchSpace
from slipstream.studies.study import Resources, Study
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.environments.parts import HoldoutRegister
from slipstream.training.population.member import DailyReturns
from slipstream.training.settings.config import resolve

GROUPS = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
PATHS = ((0, 0, 1, 2), (1, 3, 3, 4), (2, 4, 5, 5))
DAYS, FIRST, HOLDOUT = 85, 19_700, 120  # days of a group, of the hold-out


def fold_facts():
    day = 86_400
    edges = [(FIRST + g * DAYS) * day for g in range(5)]
    return {
        "groups": [[low, high] for low, high in pairwise(edges)],
        "holdout": [edges[4], edges[4] + HOLDOUT * day],
        "folds": [{"groups": list(groups), "train_bars": 10_000} for groups in GROUPS],
        "paths": [list(path) for path in PATHS],
    }


class SkilledPool(FakePool):
    """Mean daily return of a member = `skill` at the best learning rate, less away from it."""

    skill = 0.0
    idle = ()  # trials that do not trade
    policies = ()
    benchmark = True  # whether equal weight is traded on the same bars

    def policy(self, name):
        return {"w": np.zeros(2, np.float32)}, {"member": name}

    def _outcome(self, member, milestone):
        return replace(
            super()._outcome(replace(member, test=None), milestone),
            backtests=None
            if member.name in self._fails or not member.test
            else self._passes(member, milestone),
        )

    def _passes(self, member, milestone):
        if member.test == "holdout":
            days, group = np.arange(FIRST + 4 * DAYS, FIRST + 4 * DAYS + HOLDOUT), np.zeros(HOLDOUT)
        else:
            groups = GROUPS[int(member.fold[4:])]
            days = np.concatenate([np.arange(DAYS) + FIRST + g * DAYS for g in groups])
            group = np.repeat([0, 1], DAYS)
        agent = member.config.agent
        merit = 1.0 - abs(np.log10(agent.learning_rate) + 3.0) - 0.02 * agent.n_epochs
        merit = max(merit, 0.05) * milestone / num_iterations(member.config)
        own = np.random.default_rng(derive_seed("own", member.seed, milestone))
        market = np.random.default_rng(7).normal(4e-3, 0.02, 4 * DAYS + HOLDOUT)[days - FIRST]
        if not self.benchmark:
            market = np.zeros(len(days))
        returns = market + self.skill * merit + own.normal(0.0, 0.008, len(days))
        idle = member.name.startswith(tuple(f"search-{t:05d}" for t in self.idle))
        metrics = {"mean_exposure": 0.0 if idle else 0.6, "fills": 0.0 if idle else 400.0}
        count = int(group.max()) + 1
        return DailyReturns(days, returns, market, group.astype(np.int64), [metrics] * count)


class Machinery:
    """Hands out the pool."""

    def __init__(self, pool, market=MARKET, register=None):
        self._pool, self._market = pool, market
        self._register = register or HoldoutRegister()
        pool.benchmark = market is None or market.benchmark

    def load_env(self, base, study):
        metrics = (Metric("mean_exposure", "share"), Metric("fills", "orders"))
        spec = resolve_environment("cartpole", {}).spec
        spec = replace(spec, market=self._market, metrics=metrics if self._market else ())
        facts = {"market_sha256": "ab" * 32, "folds": fold_facts()} if self._market else {}
        notes = ("A note on the data.",)
        return EnvInfo(spec, 6, facts, notes, holdout_register=self._register)

    @contextmanager
    def pool(self, folder):
        yield self._pool


def run_study(
    path,
    *,
    trials=60,
    steps=640,
    skill=0.004,
    idle=(),
    fails=(),
    market=MARKET,
    register=None,
    **options,
):
    """Runs a study to its end; returns its folder."""
    base = resolve(
        "cartpole",
        {
            "training.num_envs": 8,
            "training.total_timesteps": steps,
            "agent.n_steps": 8,
            "agent.batch_size": 32,
        },
    )
    study = {
        "n_trials": trials,
        "confirmation": {"top": 4, "seeds": 3, "bootstrap": 300},
        "final_seeds": 3,
    }
    pool = SkilledPool(0, fails)
    pool.skill, pool.idle = skill, idle
    folder, space = StudyFolder(Path(path)), SearchSpace.from_mapping(SPACE, base)
    config = StudyConfig.model_validate({**study, **options.pop("study", {})})
    Study(
        folder,
        base,
        config,
        space,
        Machinery(pool, market, register),
        Resources(**options),
        lambda text: None,
        warm_start=warm_start(folder, base, config, space),
    ).run()
    return folder
