"""Passes: a policy over a market in memory, of which some decisions may be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slipstream.core.errors import DataError
from slipstream.environments.environment import Environment, PriceWindow
from slipstream.environments.episodes import Seen
from slipstream.environments.evaluation import decide
from slipstream.environments.factory import carried_settings, chosen_environment
from slipstream.environments.kernel_environment import KernelEnvironment
from slipstream.live.ranges import Outside, Ranges
from slipstream.market.market import Market
from slipstream.runs.policies import DeployedPolicy, check_fit
from slipstream.vector.kernel.copies import KernelVectorEnv
from slipstream.vector.kernel.retake import Retaking

LONGEST_GAP = 12  # bars; a longer hole ends a portfolio's pass

Kept = Mapping[str, NDArray[Any]]
"""Actions [n, K] that were decided before, by pass."""


class Pass(NamedTuple):
    """One pass over the bars so far.

    Attributes:
        name: a symbol, or all that a portfolio holds.
        time: int64 [n], opens of the bars decided on.
        action: [n, K].
        equity: float64 [n], account currency, at those bars' closes.
        wanted: units after the next fill, of the last decision.
        outside: of the features at the last bar the one that lies furthest outside its range in
            training.
    """

    name: str
    time: NDArray[np.int64]
    action: NDArray[Any]
    equity: NDArray[np.float64]
    wanted: tuple[float, ...]
    outside: Outside


def passes_over(
    policy: DeployedPolicy, market: Market, start: int | None, kept: Kept | None = None
) -> list[Pass]:
    """Replays a market in memory, whose last bar nobody decides on, and decides on the rest.

    Args:
        policy: who decides.
        market: the bars, and a flat one ahead of them.
        start: first moment decided on, UTC seconds; the first usable bar unless given.
        kept: what was decided before; everything is decided anew unless given.

    Raises:
        DataError: too few bars to decide on any.
    """
    config, carried = policy.config, carried_settings(policy.facts)
    window = PriceWindow(start=start, carried=carried, market=market)
    environment = chosen_environment(config.env_name, config.env_settings, window)
    assert isinstance(environment, KernelEnvironment)
    check_fit(policy.policy, environment)
    going_on = {"sells_at_end": False, "early_end": 0}  # the last bar is no end
    records = tuple(
        record._replace(**{key: going_on[key] for key in going_on if key in record._fields})
        for record in environment.records("window")
    )
    environment = environment.with_records("window", records)
    names, known = _names(environment), kept or {}
    env = environment.evaluation("window", len(names), backend=config.training.chosen_backend)
    assert isinstance(env, KernelVectorEnv)
    with closing(env):
        taken = [known.get(name, _nothing(env)) for name in names]
        followed = _followed(env, policy, taken)
    capital = environment.spec.market.initial_equity if environment.spec.market else 0.0
    times, ranges = environment.loaded.data.time, Ranges.of(policy.facts)
    found = []
    for name, (action, trace) in zip(names, followed, strict=True):
        equity = np.append(capital, trace["equity"][:-1])
        units = np.atleast_1d(trace["units"][-1]) if "units" in trace else ()
        wanted = tuple(float(one) for one in units)
        rows = trace["bar"] - 1  # that were decided on
        outside = Outside() if ranges is None else ranges.outside(environment, int(rows[-1]))
        found.append(Pass(name, times[rows], action, equity, wanted, outside))
    return found


def _nothing(env: KernelVectorEnv) -> NDArray[Any]:
    return np.zeros((0, env.spec.action_width), env.spec.action_dtype)


def _followed(
    env: KernelVectorEnv, policy: DeployedPolicy, taken: Sequence[NDArray[Any]]
) -> list[tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
    """Takes each copy through what was decided before, then decides until its pass ends.

    Args:
        env: P copies, one a pass, that hold where it ends.
        policy: who decides.
        taken: [P] of actions [n, K].

    Returns:
        Of each pass all actions, and the trace.
    """
    settings, names, every = policy.config.evaluation, env.spec.trace, np.arange(env.num_envs)
    again = Retaking(env)
    out, seed = again.out, settings.seed if settings.drawn else None
    env.begin(every, every, settings.seed, out.obs, out.mask)
    past = [again.run(e, actions, names) for e, actions in enumerate(taken)]
    steps = np.array([len(one["bar"]) for one in past])
    begun, made = steps.copy(), list[NDArray[Any]]()
    traces = {name: list[NDArray[Any]]() for name in names}
    while (running := env.book["held"] == 0).any():
        made.append(decide(policy.policy, Seen(out.obs, out.mask, every, steps), seed).copy())
        env.step(made[-1], out)
        steps += running
        for name, values in env.read(names).items():
            traces[name].append(values)

    def whole(e: int, before: NDArray[Any], after: list[NDArray[Any]]) -> NDArray[Any]:
        own = [rows[e : e + 1] for rows in after[: steps[e] - begun[e]]]
        return np.concatenate([before[: begun[e]], *own])

    def trace(e: int) -> dict[str, NDArray[Any]]:
        return {name: whole(e, past[e][name], traces[name]) for name in names}

    return [(whole(e, taken[e], made), trace(e)) for e in range(env.num_envs)]


def _names(environment: Environment) -> list[str]:
    names = environment.episode_names("window") or []
    if len(set(names)) < len(names):
        raise DataError(
            f"The bars make {len(names)} passes of {names[0]}: a hole in all assets of more than "
            f"{LONGEST_GAP} bars ends a pass, and an account is one pass. Fill the hole in the "
            "feed, or deploy again, which begins a new account behind it."
        )
    return names
