"""The page of a run, and the reports that `slipstream evaluate` and the end of training write.

Its figures describe the selected policy on episodes that were not used for the selection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

import numpy as np

from slipstream.core.plugins import PluginError, iter_offers
from slipstream.core.text import NOTHING
from slipstream.report.history import closing_sections, draw_episode_returns, draw_learning_curves
from slipstream.report.inputs import EvaluationWindow, GameEvaluation, PolicyChoice, RunEvaluation
from slipstream.report.number_format import (
    MeanWithError,
    format_interval,
    format_number,
    format_range_and_median,
)
from slipstream.report.page import KeyFigure, Page, Section, Table, make_picture, write_page
from slipstream.report.run_evaluation import evaluate_deployed, evaluate_run
from slipstream.report.statistics import Floats
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.policies import DeployedPolicy
from slipstream.training.runs.run import EPISODES, Run

COLLAPSED = (
    0.2  # lost share of the selected policy's lead over a random one, from which the page warns
)


def run_page(run: RunEvaluation) -> Page:
    """Build the page."""
    split = run.holdout if run.holdout in run.tracks else list(run.tracks)[-1]
    tracks, game = run.tracks[split], run.game
    returns = [
        np.array([track.episode_return for track in member_tracks]) for member_tracks in tracks
    ]
    agents = [MeanWithError.from_values(member_tracks) for member_tracks in returns]
    agent, count = agents[run.member], len(returns[run.member])
    random = MeanWithError.from_values(run.random_policy) if len(run.random_policy) else None
    headline = verdict(agents, run.member, random, count, _kind(run))
    warnings, sentences = [], _member_range_sentences(run, agents)
    marked = []
    if game is not None:
        warnings += _collapse_warnings(run, game, agents, random)
        warnings += _truncation_warnings(game, [track.length for track in tracks[run.member]])
        chosen = _policy_choice_sentences(game, game.chosen[run.member], agent, count)
        sentences = [*chosen, *sentences, _exploration_sentence(agent, game.sampled)]
        marked = [(selection.steps, selection.score) for selection in game.chosen]
    first = None
    if run.curves:
        drawn = draw_learning_curves(run.curves, marked, run.member)
        first = make_picture("learning_curve", "Score over training", drawn)
    drawn = draw_episode_returns(returns[run.member], run.random_policy)
    distribution = make_picture("episode_returns", "Distribution of episode returns", drawn)
    shown = [*_settings_table(run, tracks), _members_table(run, tracks)]
    return Page(
        title=run.title,
        headline=headline,
        figures=_figures(run, agents, random, count),
        picture=first,
        warnings=warnings,
        sentences=sentences,
        sections=[Section("Result", (), shown, [distribution]), *closing_sections(run)],
    )


def _kind(run: RunEvaluation) -> str:
    """Return the short noun for the members."""
    return "seeds" if run.same_settings else "members"


def _figures(
    run: RunEvaluation, agents: list[MeanWithError], random: MeanWithError | None, count: int
) -> list[KeyFigure]:
    """Return the key figures of the first screen."""
    game, agent = run.game, agents[run.member]
    figures = [_figure("Mean return", agent, f"{count} fresh episodes")]
    if len(agents) > 1:
        means = format_interval([agent.mean for agent in agents], max(agent.digits - 1, 0))
        figures.append(KeyFigure(f"All {len(agents)} {_kind(run)}", means, "mean returns"))
    if game is not None:
        shown = game.chosen[run.member]
        figures.append(
            KeyFigure("Selected at step", format_number(shown.steps, 0), f"of {game.steps:,}")
        )
        last = _last_policy(shown)
        if last is not None:
            figures.append(_figure("Last policy", last, f"step {game.steps:,}"))
    if random is not None:
        figures.append(_figure("Random policy", random))
    return figures


def _figure(label: str, measured: MeanWithError, note: str = "") -> KeyFigure:
    value, _, error = str(measured).partition(" ± ")
    return KeyFigure(label, value, ", ".join(filter(None, (error and f"± {error}", note))))


def _members_table(run: RunEvaluation, tracks: Sequence[Sequence[EpisodeResult]]) -> Table:
    """Return rows of the members, the displayed one with sampled actions, and a random policy."""
    game, rows, alone = run.game, [], len(tracks) == 1
    names = _settings(run)
    for index, member_tracks in enumerate(tracks):
        chosen = None if game is None else game.chosen[index]
        label = "agent" if alone else f"member {run.number(index)}"
        cells = [] if chosen is None else [f"{chosen.settings[name]:g}" for name in names]
        length = format_number(float(np.mean([track.length for track in member_tracks])), 0)
        returns = np.array([track.episode_return for track in member_tracks])
        rows.append([label, *cells, *_returns(returns), length, *_choice(chosen)])
    others = {"random policy": run.random_policy}
    if game is not None:
        label = "sampled actions" if alone else f"member {run.number(run.member)}, sampled actions"
        others = {label: game.sampled, **others}
    ends = [""] if game is None else ["", "", ""]
    rows += [
        [label, *[""] * len(names), *_returns(returns), *ends]
        for label, returns in others.items()
        if len(returns)
    ]
    count = len(tracks[0])
    columns = ("", *names, "mean", "lowest", "median", "highest", "length")
    if game is not None:
        columns = (*columns, "selected at step", "last policy")
    note = "Mean and last policy: ± standard error." if count > 1 else ""
    caption = f"Returns of {count} fresh episodes"
    return Table(caption, columns, rows, emphasis=run.member, note=note)


def _settings_table(run: RunEvaluation, tracks: Sequence[Sequence[EpisodeResult]]) -> list[Table]:
    """Return a row per setting, averaged over seeds; empty if members do not differ in settings."""
    names, game = _settings(run), run.game
    if not names or game is None:
        return []
    groups: dict[tuple[float, ...], list[int]] = {}
    for index, chosen in enumerate(game.chosen):
        groups.setdefault(tuple(chosen.settings[name] for name in names), []).append(index)
    means = np.array(
        [np.mean([track.episode_return for track in member_tracks]) for member_tracks in tracks]
    )
    best = max(groups, key=lambda group: float(means[groups[group]].mean()))
    rows = []
    for group, indices in groups.items():
        over, members = (
            MeanWithError.from_values(means[indices]),
            [game.chosen[index] for index in indices],
        )
        known = np.array([member.last for member in members if member.last is not None])
        rows.append(
            [
                *(f"{value:g}" for value in group),
                format_number(len(indices), 0),
                str(over),
                format_number(float(means[indices].min()), over.digits),
                format_number(float(means[indices].max()), over.digits),
                str(MeanWithError.from_values(known)) if len(known) == len(indices) else NOTHING,
                format_number(float(np.median([member.steps for member in members])), 0),
            ]
        )
    note = "One seed each: differences between rows may be chance."
    if len(rows) < len(tracks):
        note = "Mean over seeds ± standard error."
    ends = ("last policies", "selected at step (median)")
    columns = (*names, "seeds", "mean", "lowest", "highest", *ends)
    shown = list(groups).index(best)
    return [Table("Settings, averaged over seeds", columns, rows, emphasis=shown, note=note)]


def _settings(run: RunEvaluation) -> tuple[str, ...]:
    """Return the settings in which members differ."""
    return tuple(run.game.chosen[0].settings) if run.game is not None else ()


def _choice(chosen: PolicyChoice | None) -> list[str]:
    if chosen is None:
        return []
    return [format_number(chosen.steps, 0), str(_last_policy(chosen) or NOTHING)]


def _returns(returns: Floats) -> list[str]:
    """Return the cells of returns: mean with its error, lowest, median, highest."""
    mean = MeanWithError.from_values(returns)
    digits = max(mean.digits - 1, 0)  # returns of single episodes, less certain than their mean
    rest = (returns.min(), np.median(returns), returns.max())
    return [str(mean), *(format_number(float(value), digits) for value in rest)]


def verdict(
    agents: Sequence[MeanWithError],
    shown: int,
    random: MeanWithError | None,
    count: int,
    kind: str = "seeds",
) -> str:
    """Return the verdict: result of the displayed member, and the number of members that learned.

    Args:
        agents: returns of all members; shown: index of the displayed one.
        random: returns of a random policy.
        count: episodes of each member.
        kind: noun for the members.
    """
    agent = agents[shown]
    lead = f"Mean return {agent} on {count} fresh episodes"
    if len(agents) > 1:
        lead += f" by the best of {len(agents)} {kind}"
    learned = 0 if random is None else sum(agent.is_above(random) for agent in agents)
    if random is None:
        return f"{lead}."
    if 0 < learned < len(agents):
        beat = "beats" if learned == 1 else "beat"
        return f"{lead}; {learned} of {len(agents)} {beat} a random policy, which gets {random}."
    if agent.is_above(random):
        return f"{lead}; a random policy gets {random}."
    return f"{lead}: not shown to beat a random policy, which gets {random}."


def _last_policy(chosen: PolicyChoice) -> MeanWithError | None:
    """Return the score of the last policy on the fresh episodes."""
    return None if chosen.last is None else MeanWithError(chosen.last, chosen.last_error)


def has_collapsed(
    agent: MeanWithError, last: MeanWithError | None, random: MeanWithError | None
) -> bool:
    """Return True if training lost a large part of the gains after the chosen policy."""
    if last is None or not agent.is_above(last):
        return False
    lead = agent.mean - (random.mean if random is not None else 0.0)
    return agent.mean - last.mean > COLLAPSED * lead > 0.0


def _collapse_warnings(
    run: RunEvaluation,
    game: GameEvaluation,
    agents: Sequence[MeanWithError],
    random: MeanWithError | None,
) -> list[str]:
    """Return a warning for members whose last policy is far worse than the displayed one."""
    lasts = [_last_policy(selection) for selection in game.chosen]
    fallen = [
        index
        for index, (agent, last) in enumerate(zip(agents, lasts, strict=True))
        if has_collapsed(agent, last, random)
    ]
    if not fallen:
        return []
    if len(agents) == 1:
        return [
            f"Training collapsed: the last policy, of step {game.steps:,}, scores {lasts[0]}. The "
            f"figures are of step {game.chosen[0].steps:,}, which validation selected."
        ]
    ends = ", ".join(str(lasts[index]) for index in fallen)
    which = ", ".join(str(run.number(index)) for index in fallen)
    some = f"members {which}" if len(fallen) > 1 else f"member {which}"
    return [
        f"Training collapsed for {len(fallen)} of {len(agents)} members: the last policies of "
        f"{some} score {ends} on the fresh episodes. The figures are of earlier policies, which "
        "validation selected."
    ]


def _policy_choice_sentences(
    game: GameEvaluation, shown: PolicyChoice, agent: MeanWithError, episodes: int
) -> list[str]:
    """Describe the selection of the displayed policy, and why its figures are unbiased."""
    tried = f"the best of {game.validations} validations" if game.validations > 1 else "validated"
    score = format_number(shown.score, max(agent.digits, 1))
    lines = [
        f"The report shows the policy of step {shown.steps:,} of {game.steps:,}: {tried}, with a "
        f"mean return of {score}. The choice biases that figure upwards. All other figures are of "
        f"{episodes} fresh episodes, which had no part in the choice."
    ]
    last = _last_policy(shown)
    if game.steps < game.budget:
        lines.append(f"Training is at step {game.steps:,} of {game.budget:,}.")
    if shown.steps == game.steps:
        lines.append("It is also the last policy.")
    elif last is not None:
        lines.append(
            f"The last policy, of step {game.steps:,}, scores {last} on the same episodes."
        )
    return lines


def _exploration_sentence(agent: MeanWithError, sampled: Floats) -> str:
    """Explain the difference between the training curve and the evaluations."""
    if not len(sampled):
        return (
            "Training takes some random actions to explore; evaluation takes the best action. The "
            "two curves differ for that reason."
        )
    text = (
        "Training samples actions from the policy; evaluation is deterministic. The two curves "
        "differ for that reason"
    )
    drawn = MeanWithError.from_values(sampled)
    return (
        f"{text}: this policy scores {drawn} with sampled actions and {agent} with deterministic "
        "ones."
    )


def _member_range_sentences(run: RunEvaluation, agents: Sequence[MeanWithError]) -> list[str]:
    """Describe the spread of the members' mean returns."""
    if len(agents) < 2:
        return []
    means = format_range_and_median(
        [agent.mean for agent in agents], max(agent.digits for agent in agents)
    )
    return [f"Over {len(agents)} {run.member_noun} the mean return is {means}. {run.member_note}"]


def _truncation_warnings(game: GameEvaluation, lengths: Sequence[int]) -> list[str]:
    """Warn of episodes that were truncated by the evaluation's step limit."""
    cut = 0 if game.longest is None else sum(length >= game.longest for length in lengths)
    if not cut:
        return []
    return [
        f"{cut} of {len(lengths)} episodes did not end by themselves and were cut after "
        f"{game.longest:,} steps (evaluation.max_steps): their returns are incomplete."
    ]


def build_page(run: RunEvaluation) -> Page:
    """Return the page of a run: a plugin's page for its environments, else the plain page.

    Its `lines` can also be printed on a terminal.
    """
    for page in iter_offers("pages"):
        result = page(run.environment, run)
        if isinstance(result, Page):
            return result
        if result is not None:
            raise PluginError(
                f"`pages` of a plugin must return a `slipstream.report.page.Page` or None, got "
                f"{result!r:.200}. Report it to the plugin's authors, or uninstall it."
            )
    return run_page(run)


def report_run(
    path: str | Path | Run,
    *,
    out: str | Path | None = None,
    count: bool = True,
    log: Callable[[str], None] | None = None,
    **window: Unpack[EvaluationWindow],
) -> Path:
    """Evaluate a run directory's best policies and write the report and `episodes.csv`.

    Args:
        path: the run directory, or the run.
        out: target folder; default: the run directory, or its `window` folder if bars
            were chosen.
        count: count this access to the test split in the run directory.
        log: called with progress, then with the lines above the sections.
        window: bars to score instead of the run's own splits.

    Returns:
        Path of `report.html`.
    """
    run = path if isinstance(path, Run) else Run.open(path)
    if log is not None:
        log("Evaluating the best policies for the report ...")
    evaluation = evaluate_run(run, count=count, **window)
    chosen = any(option is not None for option in window.values())
    folder = Path(out or (run.path / "window" if chosen else run.path))
    return _write_report(evaluation, folder, log)


def report_deployed(
    deployed: DeployedPolicy,
    *,
    out: str | Path | None = None,
    log: Callable[[str], None] | None = None,
    **window: Unpack[EvaluationWindow],
) -> Path:
    """Evaluate a policy deployed by a study and write the report and `episodes.csv`.

    Args:
        deployed: the policy.
        out: target folder; default: a folder beside the policy's.
        log: called with the lines above the sections.
        window: bars to score; required in a market.

    Returns:
        Path of `report.html`.
    """
    folder = deployed.path
    evaluation = evaluate_deployed(deployed, **window)
    out = Path(out or folder.with_name(f"{folder.name}-window"))
    return _write_report(evaluation, out, log)


def _write_report(found: RunEvaluation, folder: Path, log: Callable[[str], None] | None) -> Path:
    """Write the page, and a row for each of its evaluation episodes."""
    rows = [
        {
            "member": found.number(k),
            "data": data,
            "episode": track.name,
            "return": track.episode_return,
        }
        | {"length": track.length, **track.metrics}
        for data, members in found.tracks.items()
        for k, tracks in enumerate(members)
        for track in tracks
    ]
    return write_page(build_page(found), folder, log=log, tables={EPISODES: rows})
