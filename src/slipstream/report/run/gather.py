"""From evaluated tracks to everything that a report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipstream.core.spec import MarketSpec
from slipstream.report.inputs import Comparison, Curve, Prices, RunEvaluation
from slipstream.report.market.baselines import compare, rivals
from slipstream.report.market.passes import Passes, comparable, round_trip
from slipstream.report.market.stress import RANDOM_DRAWS, stress
from slipstream.report.portfolio.gather import LABELS, with_portfolio
from slipstream.report.portfolio.passes import PortfolioPasses, passes_of
from slipstream.report.statistics import Floats
from slipstream.training.environments.environment import LONGEST, Environment
from slipstream.training.environments.episodes import Seen, run_episodes
from slipstream.training.environments.kernel_environment import KernelEnvironment
from slipstream.training.record.track import Track
from slipstream.training.settings.sizing import EvaluationPlan
from slipstream.vector.contract import random_actions

# A game has one split, episodes that chose no policy.
GAME_LABELS = {"test": "fresh episodes", "train": "evaluation"}
RANDOM_EPISODES = 100
_RANDOM_SEED = 20_260_103
_COPIES = 32

Tracks = Mapping[str, Sequence[Sequence[Track]]]


# Long: a line for each thing that a page shows.
def gather(
    environment: Environment,
    tracks: Tracks,
    *,
    title: str,
    holdout: str | None = None,
    unseen: bool | None = None,
    numbers: tuple[int, ...] = (),
    member: int = 0,
    member_reason: str = "",
    same_settings: bool = True,
    curves: tuple[Curve, ...] = (),
    episodes: tuple[Curve, ...] = (),
    trials: int = 1,
    holdout_reads: int = 1,
    notes: tuple[str, ...] = (),
    provenance: Mapping[str, str] | None = None,
    backend: str = "compiled",
    draws: int = RANDOM_DRAWS,
    plan: EvaluationPlan | None = None,
) -> RunEvaluation:
    """Replays the baselines and stress tests and collects what is known about a run.

    Args:
        environment: what was trained on, with its data.
        tracks: recorded evaluation episodes by split of the data, member and episode.
        title: headline of the page.
        holdout: the split of the headline; "test" where there is one, else the last.
        unseen: nothing was learned from that split or chosen on it; by default of "test" alone.
        numbers: the members' numbers in the run, where some are left out.
        member, member_reason: index of the member whose decisions are shown, and why.
        same_settings: the members differ by their seed alone.
        curves: learning curves.
        episodes: length and metrics of training episodes over steps.
        trials: configurations tried before this one was shown, this one included.
        holdout_reads: how often the hold-out has been evaluated, this time included.
        notes: sentences to show besides the environment's own.
        provenance: command, versions, machine, data hash: label and text.
        backend: how kernels are stepped.
        draws: matched random traders.
        plan: how much of a random policy is evaluated in a game.
    """
    if holdout is None:
        holdout = "test" if "test" in tracks else list(tracks)[-1]
    run = RunEvaluation(
        title=title,
        tracks={GAME_LABELS.get(name, name): members for name, members in tracks.items()},
        holdout=GAME_LABELS.get(holdout, holdout),
        unseen=holdout == "test" if unseen is None else unseen,
        numbers=numbers,
        member=member,
        member_reason=member_reason,
        same_settings=same_settings,
        curves=curves,
        episodes=episodes,
        trials=trials,
        holdout_reads=holdout_reads,
        notes=(*environment.notes, *notes),
        provenance=provenance or {},
        accepted=tuple(environment.provenance.get("accepted", ())),
    )
    # No other kind has prices; one that declares nothing about its passes is shown like a game.
    declares = isinstance(environment, KernelEnvironment) and environment.kernel.market_pass
    if environment.spec.market is None or not declares:
        games, longest = RANDOM_EPISODES, LONGEST
        if plan is not None:
            games, longest = min(games, plan.final), plan.longest
        chance = random_policy(environment, holdout, backend, games, longest)
        return replace(run, random_policy=chance)
    assert isinstance(environment, KernelEnvironment)
    kernel, loaded = environment.kernel, environment.loaded
    passes = {name: passes_of(kernel, loaded, name, backend) for name in tracks}
    agent = tracks[holdout][run.member]
    run = replace(
        run,
        holdout=LABELS.get(holdout, holdout),
        tracks={LABELS.get(n, n): _named(members, passes[n]) for n, members in tracks.items()},
    )
    portfolios = {name: one for name, one in passes.items() if isinstance(one, PortfolioPasses)}
    if portfolios:
        return with_portfolio(run, portfolios, agent, holdout, draws)
    return _with_market(run, passes, agent, holdout, draws)


def _with_market(
    run: RunEvaluation,
    passes: Mapping[str, Passes],
    agent: Sequence[Track],
    holdout: str,
    draws: int,
) -> RunEvaluation:
    held = passes[holdout]
    comparisons: dict[str, Comparison] = {}
    if comparable(held):
        for name, split in passes.items():
            found = compare(split, agent, draws) if name == holdout else rivals(split)
            comparisons[LABELS.get(name, name)] = found
    return replace(
        run,
        market=market_of(held),
        prices=Prices(held.declared[0].time, held.declared[0].close),
        comparisons=comparisons,
        stress=stress(held, agent) if comparisons else None,
        round_trips=tuple(round_trip(held, k, s) for k, s in enumerate(held.symbols))
        if comparisons
        else (),
        financing=any(one.financing for one in held.declared),
    )


def market_of(passes: Passes) -> MarketSpec:
    """The market of all passes together: one record knows its own symbol only."""
    market = passes.kernel.spec(passes.params[0], passes.data).market
    assert market is not None
    return replace(market, symbols=passes.symbols)


def _named(members: Sequence[Sequence[Track]], passes: Passes) -> list[list[Track]]:
    return [
        [replace(t, name=n) for t, n in zip(tracks, passes.symbols, strict=True)]
        for tracks in members
    ]


def random_policy(
    environment: Environment,
    split: str,
    backend: str = "auto",
    games: int = RANDOM_EPISODES,
    longest: int = LONGEST,
) -> Floats:
    """Returns [games] of episodes under uniformly random actions, among those that are allowed."""
    random = np.random.Generator(np.random.PCG64(_RANDOM_SEED))

    def act(seen: Seen) -> NDArray[Any]:
        return random_actions(environment.spec, len(seen.obs), random, seen.mask)

    with environment.evaluation(split, min(_COPIES, games), 1, backend, longest) as env:
        tracks = run_episodes(env, act, games, _RANDOM_SEED, record=False)[0]
    return np.array([track.ret for track in tracks])
