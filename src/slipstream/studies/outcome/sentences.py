"""The outcome of a study in words, as a terminal says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipstream.core.percent import percent

NO_WINNER = "No configuration beat equal weight and cash; nothing is recommended."
NO_CASH_WINNER = "No configuration beat cash; nothing is recommended."
NO_GAME_WINNER = "No trial could be confirmed; nothing is recommended."
NOT_UNDONE = (
    "The confirmation ranks candidates on the very days that chose them among all trials, and does "
    "not undo that choice."
)


def sentences(result: Mapping[str, Any]) -> list[str]:
    """The outcome in words."""
    found, holdout, winner = [], result["holdout"], result["winner"]
    if holdout is not None and holdout["opening"] > 1:
        found.append(
            f"The hold-out was opened {holdout['opening']} times: what it shows now was chosen by "
            "somebody who had seen it before, and is no longer out of sample."
        )
    if winner is None or winner["forced"]:
        found.append(no_winner(result))
        if result["confirmation"]["reason"]:
            found.append(f"Reason: {result['confirmation']['reason']}.")
    if winner is not None:
        how = "Deployed by force" if winner["forced"] else "Confirmed winner"
        found.append(f"{how}: trial {winner['trial']}.")
        if result["market"] and not winner["forced"]:
            found.append(NOT_UNDONE)
    if holdout is not None and result["market"]:
        found.append(_holdout_sentence(holdout, result["benchmark"]))
        found += [text for text in (holdout_bound(holdout, result["benchmark"]),) if text]
    elif holdout is not None and holdout.get("mean") is not None:
        found.append(f"Mean return of the final seeds on fresh episodes: {holdout['mean']:.4g}.")
    found += [text for text in (_folds(result), findable_sentence(result["findable"])) if text]
    deployed = result["deployed"]
    if deployed is not None and deployed["policy"]:
        found.append(f"Policy: {deployed['policy']} ({deployed['label']}).")
    if deployed is not None and deployed["refit"]:
        found.append(f"Policy: {deployed['refit']} ({deployed['refit_label']}).")
    return found


def no_winner(result: Mapping[str, Any]) -> str:
    """That nothing is recommended, and what nothing beat."""
    if not result["market"]:
        return NO_GAME_WINNER
    return NO_WINNER if result.get("benchmark", True) else NO_CASH_WINNER


def _folds(result: Mapping[str, Any]) -> str:
    """Each fold of a trial beside its benchmark."""
    shown = result["shown"]
    if shown is None or not result["market"]:
        return ""
    parts, benchmark = [], result["benchmark"]
    for fold in shown["folds"]:
        other = f" ({fold['benchmark_sharpe']:.2f})" if benchmark else ""
        parts.append(f"{fold['sharpe']:.2f}{other}")
    name = "annual Sharpe ratio (equal weight's)" if benchmark else "annual Sharpe ratio"
    return f"Folds of trial {shown['trial']}, {name}: {', '.join(parts)}."


def findable_sentence(told: Mapping[str, Any] | None) -> str:
    """The effect that this much test data can show.

    Args:
        told: `span`, `candidates` and `sharpe` of ``folds`` and ``holdout``; None: nothing to say.
    """
    if told is None:
        return ""
    folds, holdout = told["folds"], told["holdout"]
    return (
        "The smallest annual Sharpe ratio that the test data can confirm: "
        f"{smallest(folds)} on the folds for {one_of(folds['candidates'])} "
        f"({folds['span']}), {smallest(holdout)} on the hold-out ({holdout['span']})."
    )


def smallest(told: Mapping[str, Any]) -> str:
    """The Sharpe ratio of a part of `findable`."""
    return "none" if told["sharpe"] is None else f"{told['sharpe']:.1f}"


def one_of(candidates: int) -> str:
    """Who shares the level of a bound, in words."""
    return "the only candidate" if candidates == 1 else f"one of {candidates} candidates"


def holdout_bound(holdout: Mapping[str, Any], benchmark: bool) -> str:
    """Whether the lower bound on the hold-out is above 0, in words; empty where there is none."""
    lcb = holdout.get("lcb")
    if lcb is None:
        return ""
    bounds = {"its Sharpe ratio": lcb}
    if benchmark:
        bounds = {"its information ratio against equal weight": lcb}
        if holdout.get("own_lcb") is not None:
            bounds["its own Sharpe ratio"] = holdout["own_lcb"]
    above: dict[bool, list[str]] = {True: [], False: []}
    for name, bound in bounds.items():
        above[bound > 0.0].append(f"{name} ({bound:.2f})")
    parts = []
    if above[True]:
        parts.append(f"the lower bound of {' and of '.join(above[True])} is above 0")
    if above[False]:
        names = " and of ".join(above[False])
        parts.append(f"the lower bound of {names} is not above 0: luck may explain it")
    return f"On the hold-out {', but '.join(parts)}."


def _holdout_sentence(holdout: Mapping[str, Any], benchmark: bool) -> str:
    if holdout.get("mean_return") is None:
        return "Every seed of the final training diverged; the hold-out says nothing."
    promoted = "promoted" if holdout["promoted"] else "not promoted"
    text = f"Hold-out, mean of the final seeds: {percent(holdout['mean_return'])}"
    if not benchmark:
        told = "above cash" if holdout["beats_cash"] else "not above cash"
        return f"{text}: {told}; {promoted}."
    rivals = {"equal weight": holdout["beats_equal_weight"], "cash": holdout["beats_cash"]}
    beaten = " and ".join(name for name, yes in rivals.items() if yes)
    told = f"above {beaten}" if beaten else "above neither equal weight nor cash"
    other = percent(holdout["benchmark_return"])
    return f"{text} against {other} of equal weight: {told}; {promoted}."
