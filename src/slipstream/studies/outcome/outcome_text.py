"""Sentences on the outcome of a study, for terminals and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.core.text import NOTHING, percent, plural, truncate_list
from slipstream.studies.statistics.bootstrap import MIN_BOUND_DAYS
from slipstream.studies.statistics.overfitting import describe_detectable
from slipstream.training.environments.parts import FEWEST_SHARED

NO_WINNER = "No configuration beat equal weight and cash; nothing is recommended."
NO_CASH_WINNER = "No configuration beat cash; nothing is recommended."
NO_GAME_WINNER = "No trial could be confirmed; nothing is recommended."
UNKNOWN_OPENINGS = (
    "It is unknown whether other studies opened these days before, so nothing is promoted. Set "
    "XDG_STATE_HOME to a writable folder before the next study."
)
RETURN_KINDS = {
    "excess": "in excess of equal weight",
    "own": "of own returns",
    "timing": "of timing",
}
NO_TIMING = (
    "Timing was not recorded: an older version ran this study, or its environment does not declare "
    "one position a symbol (`backtest_spec`). What its direction earned counts as skill here."
)


def summary_sentences(result: Mapping[str, Any]) -> list[str]:
    """Return the outcome as sentences, most important first."""
    sentences, holdout, winner = [], result["holdout"], result["winner"]
    if holdout is not None and holdout["opening"] > 1:
        sentences += describe_openings(holdout)
    if winner is None or winner["forced"]:
        sentences += [describe_no_winner(result), *explain_no_winner(result)]
    if winner is not None:
        sentences.append(describe_deployment(winner))
        if not winner["forced"]:
            sentences += describe_chance(result)
    if holdout is not None:
        sentences += describe_holdout(result)
        sentences += describe_openings(holdout) if holdout["opening"] == 1 else []
    parts = (
        _describe_folds(result),
        describe_market_exposure(result),
        describe_detectable(result["detectable"]),
    )
    sentences += [text for text in parts if text]
    deployed = result["deployed"]
    if deployed is not None and deployed["policy"]:
        sentences.append(f"Policy: {deployed['policy']} ({deployed['label']}).")
    if deployed is not None and deployed["refit"]:
        sentences.append(f"Policy: {deployed['refit']} ({deployed['refit_label']}).")
    return sentences


def describe_deployment(winner: Mapping[str, Any]) -> str:
    """Describe the deployed trial and whether it was confirmed."""
    how = "Deployed by force" if winner["forced"] else "Confirmed winner"
    return f"{how}: trial {winner['trial']}."


def describe_no_winner(result: Mapping[str, Any]) -> str:
    """Return the sentence for a study without recommendation."""
    if not result["market"]:
        return NO_GAME_WINNER
    return NO_WINNER if result.get("benchmark", True) else NO_CASH_WINNER


def explain_no_winner(result: Mapping[str, Any]) -> list[str]:
    """Explain why nothing is recommended, and suggest next steps."""
    values, study = result["confirmation"], result["handle"]
    near = values.get("closest")
    reason = f"{values['reason']}; {near}" if near else values["reason"]
    sentences = [f"Reason: {reason}."] if reason else []
    if not result["market"]:
        loosen = "loosen `study.constraints`, " * bool(near)
        other = "train longer (--total-timesteps), or search other settings."
        return [*sentences, f"Next: {loosen}{other}"]
    looser = " with looser `study.constraints`," * bool(near)
    advice = (
        f"Next: run a new study{looser} on more data, which can confirm smaller ratios, with other "
        "features, or with lower costs (fewer trades, longer bars)."
    )
    newer = f"`slipstream evaluate {study} --from {result['ends']}` scores it on later bars."
    if result["winner"] is not None:
        return [*sentences, f"{advice} What was deployed is not proven: {newer}"]
    if values["best"] is None:
        return [*sentences, advice]
    return [
        *sentences,
        f"{advice} The hold-out was not opened and is new to it. `slipstream resume "
        f"{study} --force-deploy` trains trial {values['best']} "
        f"anyway, opens the hold-out and does not promote it; {newer}",
    ]


def describe_chance(result: Mapping[str, Any]) -> list[str]:
    """Describe the p-value of the winner among all trials; empty for games."""
    values = result["confirmation"].get("chance")
    if values is None:
        return []
    p = format_p_values(values, result["confirmation"]["bootstrap"])
    return [
        f"Probability that trials without skill do as well as trial {values['trial']}: {p} "
        f"(Hansen's test over all {values['trials']} trials, {values['full']} of them complete). "
        f"Confirmation requires p <= {result['confirmation']['level']:g}."
    ]


def format_p_values(values: Mapping[str, Any], draws: int) -> str:
    """Format "p = 0.01 in excess of equal weight and p < 0.0005 of own returns".

    Args:
        values: p-values by kind of returns.
        draws: number of resamples; smaller p-values are reported as below one of them.
    """
    texts = []
    for name, words in RETURN_KINDS.items():
        if name in values:
            p = f"= {values[name]:.2g}" if values[name] > 0.0 else f"< {1.0 / draws:.2g}"
            texts.append(f"p {p} {words}")
    return " and ".join(texts)


def describe_market_exposure(result: Mapping[str, Any]) -> str:
    """Describe the market's return, mean net exposure and correlation on the same days.

    On the hold-out if it was opened, otherwise on the folds of the reported trial.
    """
    if not result["market"]:
        return ""
    seeds = [seed for seed in (result["holdout"] or {}).get("seeds", ()) if not seed["failed"]]
    shown = result["shown"] or {"trial": None, "folds": []}
    parts, where = seeds or shown["folds"], f"trial {shown['trial']}'s on each fold"
    benchmark = result.get("benchmark", True)
    growths = "benchmark_growth" if benchmark else "market_growth"
    nets, moved, follows = (
        [part[key] for part in parts if part.get(key) is not None]
        for key in ("net_exposure", growths, "market_correlation")
    )
    if not nets or not moved:
        return NO_TIMING if parts and not benchmark else ""
    if seeds:
        where, moved = "of each final seed on the hold-out", moved[:1]
    held = "Equal weight" if benchmark else "Buy and hold, free of costs,"
    returns_text = ", ".join(percent(value) for value in moved)
    text = f"{held} made {returns_text} on the same days. Mean net exposure, {where}: "
    text += ", ".join(f"{net:.2f}" for net in nets)
    if follows:
        text += "; correlation of its daily returns with the market's: "
        text += ", ".join(f"{follow:.2f}" for follow in follows)
    return f"{text}."


def describe_openings(holdout: Mapping[str, Any]) -> list[str]:
    """Describe the number of this hold-out opening, earlier studies, and earlier accesses."""
    number, parts = holdout["opening"], []
    if holdout.get("unknown"):
        parts.append(f"{holdout['unknown']}. {UNKNOWN_OPENINGS}")
    elif number == 1 and holdout.get("compared_days"):
        parts.append(
            "It is unknown whether these hold-out days were opened before: prices are identified "
            f"by {FEWEST_SHARED} days, and there are {holdout['compared_days']}."
        )
    elif number == 1:
        parts.append("This is the first opening of these hold-out days by a study of this user.")
    if number > 1:
        before = truncate_list(holdout.get("before") or ())
        fresh = holdout.get("fresh_days")
        judged = "" if fresh is None else f" Bounds are of the {plural(fresh, 'day')} left."
        parts.append(
            f"This is opening {number} of these hold-out days{f', after {before}' * bool(before)}: "
            "the choice may depend on earlier results, so that this result is not out of "
            f"sample.{judged}"
        )
    if holdout.get("searched"):
        parts.append(
            f"Some of these days were development days of "
            f"{truncate_list(holdout['searched'])}: they are "
            f"not fresh and leave the bounds, which are of {plural(holdout['fresh_days'], 'day')}."
        )
    if holdout.get("accesses"):
        parts.append(
            f"Outcomes on some of these days were shown before: "
            f"{truncate_list(holdout['accesses'])}."
        )
    return parts


def describe_earlier_runs(names: Sequence[str]) -> str:
    """Return a clause on runs and studies that showed the same days before; empty without any."""
    if not names:
        return ""
    looks = plural(len(names), "earlier outcome")
    return f"; plus those behind {looks} on some of the same days: {truncate_list(names)}"


def describe_earlier_studies(values: Mapping[str, Any] | None) -> str:
    """Return a sentence on the trials of earlier studies on the same days; empty without any."""
    if not values:
        return ""
    count = len(values["studies"])
    unknown = f" (unknown for {values['unknown']} of them)" if values["unknown"] else ""
    return (
        f" Earlier studies on some of the same days: {count}, which tried {values['trials']} "
        f"trials{unknown}: {truncate_list(values['studies'])}. The deflated Sharpe ratio and "
        "Hansen's test count the trials of this study. An earlier study that runs now or was "
        "killed counts with the trials that it planned."
    )


def describe_holdout(result: Mapping[str, Any]) -> list[str]:
    """Describe the hold-out results; for markets, the bounds and the promotion."""
    holdout, benchmark = result["holdout"], result["benchmark"]
    if holdout.get("mean") is not None:
        values = f"Mean return of the final seeds on fresh episodes: {holdout['mean']:.4g}."
        broken = holdout.get("violates")
        return [values, *[f"A final seed violates a constraint there: {broken}."] * bool(broken)]
    if holdout.get("mean_return") is None:
        return [_holdout_sentence(holdout, benchmark)]
    bound = describe_holdout_bounds(holdout, benchmark)
    return [
        _holdout_sentence(holdout, benchmark),
        *[bound] * bool(bound),
        describe_promotion(result),
    ]


def describe_promotion(result: Mapping[str, Any]) -> str:
    """Return the sentence on promotion that console and report share."""
    holdout = result["holdout"]
    if holdout["promoted"]:
        return "Promoted: the lower bounds on the hold-out are above 0."
    if (result["winner"] or {}).get("forced"):
        why = "it was deployed by force"
    elif holdout.get("violates"):
        why = f"it violates a constraint there: {holdout['violates']}"
    elif holdout.get("unknown"):
        why = "it is unknown whether these days were opened before"
    elif holdout["lcb"] is None:
        fresh = plural(holdout["fresh_days"], "fresh day")
        why = f"{fresh} are too few for a bound, which needs {MIN_BOUND_DAYS}"
    elif (holdout.get("timing_lcb") or 0.0) <= 0.0 < min(
        holdout["lcb"], holdout.get("sharpe_lcb", holdout["lcb"])
    ) and "timing_lcb" in holdout:
        why = "its gain comes from its direction, and its timing is not proven"
    elif holdout["beats_cash"] and holdout.get("beats_equal_weight", True):
        why = "the hold-out does not contradict it, and is too short to confirm it"
    else:
        why = "it does not beat its benchmark"
    return f"Not promoted: {why}."


def _describe_folds(result: Mapping[str, Any]) -> str:
    """Describe each fold of the reported trial beside its benchmark."""
    shown = result["shown"]
    if shown is None or not result["market"]:
        return ""
    parts, benchmark = [], result["benchmark"]
    for fold in shown["folds"]:
        other = f" ({_format_ratio(fold['benchmark_sharpe'])})" if benchmark else ""
        parts.append(f"{_format_ratio(fold['sharpe'])}{other}")
    name = "annual Sharpe ratio (equal weight's)" if benchmark else "annual Sharpe ratio"
    return f"Folds of trial {shown['trial']}, {name}: {', '.join(parts)}."


def _format_ratio(value: float) -> str:
    """Format a ratio; exactly 0 means returns without deviation."""
    return f"{value:.2f}" if value else NOTHING


def describe_holdout_bounds(holdout: Mapping[str, Any], benchmark: bool) -> str:
    """Describe the lower bounds on the hold-out; empty without bounds."""
    lcb = holdout.get("lcb")
    if lcb is None:
        return ""
    bounds = {"its Sharpe ratio": lcb}
    if benchmark:
        bounds = {"its information ratio against equal weight": lcb}
        if holdout.get("sharpe_lcb") is not None:
            bounds["its own Sharpe ratio"] = holdout["sharpe_lcb"]
    if holdout.get("timing_lcb") is not None:
        bounds["its timing's Sharpe ratio"] = holdout["timing_lcb"]
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
        return (
            "No seed of the final training could be trained and scored, so the hold-out result is "
            "unknown."
        )
    text = f"Hold-out, mean of the final seeds: {percent(holdout['mean_return'])}"
    if not benchmark:
        values = "above cash" if holdout["beats_cash"] else "not above cash"
        return f"{text}: {values}."
    rivals = {"equal weight": holdout["beats_equal_weight"], "cash": holdout["beats_cash"]}
    beaten = " and ".join(name for name, yes in rivals.items() if yes)
    values = f"above {beaten}" if beaten else "above neither equal weight nor cash"
    other = percent(holdout["benchmark_return"])
    return f"{text} against {other} of equal weight: {values}."
