"""study.html: what is said first, what is not said, and where the numbers come from."""

import json
import re
import shlex
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import study_world
from fake_pool import MARKET

from slipstream.core.errors import CheckpointError
from slipstream.report import plot_style
from slipstream.report.page import render
from slipstream.report.study import study_figures as study_figures
from slipstream.report.study import study_summary as study_wording
from slipstream.report.study import study_tables as study_tables
from slipstream.report.study.study_page import study_page, write_study_page
from slipstream.report.study.study_view import RandomTraderRank, SearchAxis, read_view
from slipstream.studies.outcome.outcome_text import (
    NO_CASH_WINNER,
    NO_GAME_WINNER,
    NO_WINNER,
    describe_holdout,
    describe_holdout_bounds,
)
from slipstream.studies.record.inspection import best_config, export_text, status_lines
from slipstream.studies.record.ledger import Ledger
from slipstream.studies.statistics.overfitting import expected_best_sharpe, expected_maximum
from slipstream.studies.statistics.returns import mean_daily_returns


@pytest.fixture(scope="module", autouse=True)
def coarse():
    """Pictures at a quarter of their size: their looks are not tested here."""
    before, plot_style.DPI = plot_style.DPI, 40
    yield
    plot_style.DPI = before


@pytest.fixture(scope="module")
def skilled(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "skilled"
    return study_world.run_study(path, trials=45, idle=(3,), fails=("search-00005-2",))


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "noise"
    return study_world.run_study(path, trials=20, skill=0.0)


@pytest.fixture(scope="module")
def view(skilled):
    return read_view(skilled)


@pytest.fixture(scope="module")
def page(view):
    return study_page(view)


def said(view):
    """All sentences before the sections."""
    return " ".join([*study_wording.warnings(view), *study_wording.summary_sentences(view)])


def text_of(page):
    return re.sub(r"<[^>]*>|\s+", " ", render(page))


def cells(page, caption):
    tables = [table for section in page.sections for table in section.tables]
    return next(table for table in tables if table.caption == caption)


def test_the_winners_holdout_is_the_headline(view, page):
    first = view.holdout.curves[0]
    sharpe = first.mean() / first.std(ddof=1) * 365**0.5
    winner = view.result["winner"]["trial"]
    assert page.headline == (
        f"Confirmed winner: trial {winner}. It gains on the hold-out, which is no proof."
    )
    assert page.sentences[0].startswith(f"Hold-out Sharpe {sharpe:.1f}, 95 % interval ")
    assert page.figures[1].value == f"{sharpe:.1f}"
    assert page.lines == [page.headline, *page.warnings]
    assert page.sections[0].title == "Hold-out"
    for line in (
        "Promoted: the lower bounds on the hold-out are above 0.",
        *describe_holdout(view.result),
    ):
        assert line in [*page.warnings, *page.sentences] and line in view.result["sentences"]
    told = [page.headline, *page.warnings, *page.sentences]
    assert len(set(told)) == len(told)
    table = cells(page, "Hold-out")
    growth = 100 * (np.prod(1 + first) - 1)
    assert table.rows[0][:2] == ["seed 0, deployable", f"{growth:+.1f} %"]
    assert [row[0] for row in table.rows[-2:]] == ["equal weight, bought once", "cash"]


def test_the_first_screen_shows_the_result_before_the_warnings(view, page):
    assert len(page.headline) < 130
    assert page.headline.startswith("Confirmed winner: trial ")
    labels = [one.label for one in page.figures]
    assert labels[:3] == [
        "Return on the hold-out",
        "Annual Sharpe ratio",
        "Smallest detectable Sharpe",
    ]
    growth = 100 * (np.prod(1 + view.holdout.curves[0]) - 1)
    assert page.figures[0].value == f"{growth:+.1f} %"
    assert page.figures[0].note.startswith(f"{study_world.HOLDOUT} days; equal weight ")
    assert page.picture.name == "holdout"
    html = render(page)
    order = ['class="headline"', 'class="figures"', "<img", 'class="warning"', "<ul>", "<table"]
    places = [html.index(part) for part in order]
    assert places == sorted(places)
    assert sum(shown.name == "holdout" for shown in page.pictures) == 1


def test_a_study_without_a_winner_shows_what_was_tried(noise):
    view = read_view(noise)
    page = study_page(view)
    assert page.picture.name == "confirmation"
    told = {one.label: one for one in page.figures}
    assert told["Trials"].value == "20"
    bounds = [one["lcb"] for one in view.result["confirmation"]["candidates"] if "lcb" in one]
    assert told["Best lower bound, fresh seeds"].value == f"{max(bounds):.2f}"
    assert told["Overfitting probability"].value == f"{view.result['evidence']['pbo']['value']:.2f}"


def test_a_study_without_a_winner_shows_what_would_have_to_be_true(noise, view):
    told = noise.result
    table = cells(study_page(read_view(noise)), "Conditions")
    rows = {row[0]: row[1:] for row in table.rows}
    best = next(
        one
        for one in told["confirmation"]["candidates"]
        if one["trial"] == told["confirmation"]["best"]
    )
    found, needed, why = rows[f"Lower bound of the search's measure, trial {best['trial']}"]
    assert (found, needed) == (f"{best['lcb']:.2f}", "above 0")
    assert f"a ratio of {best['value'] - best['lcb']:.2f} instead of {best['value']:.2f}" in why
    deflated = told["evidence"]["deflated_sharpe"]
    found, needed, why = rows[f"Deflated Sharpe ratio, trial {deflated['trial']}"]
    assert found == f"{deflated['value']:.2f}" and needed == "at least 0.95"
    assert f"on the same {deflated['days']:,} days" in why
    assert rows["Hold-out"][0] == "not opened"
    sections = [section.title for section in study_page(view).sections]
    assert "What would have to be true" not in sections  # it has a winner


def test_ratios_without_a_deviation_are_not_zero(view):
    trial = deepcopy(view.trial(view.shown))
    for fold in trial.last_decision.folds[:1]:
        fold.update(sharpe=0.0, growth=0.0, benchmark_sharpe=0.0)
    table = study_tables.folds(trial, True, True)
    assert table.rows[0][2:4] == ["n/a", "n/a"] and "no deviation" in table.note
    few = [
        {name: one[name] for name in ("trial", "search_score", "value", "seeds", "excluded")}
        for one in view.result["confirmation"]["candidates"]
        if "value" in one
    ]
    few[0] |= {"value": 0.0, "seeds": [0.0, 1.5]}
    confirmation = {**view.result["confirmation"], "candidates": few, "cash": None}
    shown = study_tables.candidates(
        replace(view, result={**view.result, "confirmation": confirmation})
    )
    assert shown.rows[0][2:5] == ["n/a", "1.50 to 1.50", "n/a"]
    assert {row[4] for row in shown.rows} == {"n/a"} and "requires 60 days" in shown.note
    assert {len(row) for row in shown.rows} == {len(shown.columns)}


def test_the_table_of_trials_fits_the_page(view):
    """Eight settings, those that mattered first; the others are named below."""
    axes = [*view.axes, *(SearchAxis(f"agent.other_{k}") for k in range(12))]
    ranked = list(view.ranked_trials)
    for trial in ranked:
        params = trial.suggestion.params
        params.update({axis.name: 0.123456 for axis in axes if axis.name not in params})
    table = cells(study_page(replace(view, axes=axes)), "Best finished trials")
    assert len(table.columns) == 2 + 8
    assert table.columns[2] == "learning_rate"
    assert "other_11" in table.note and "slipstream study export" in table.note
    assert max(len(cell) for row in table.rows for cell in row) <= 8


def test_settings_on_a_logarithmic_axis_are_numbers(view):
    axes = [axis for axis in view.axes if axis.log]
    figure = study_figures.slices(view.ranked_trials, axes)
    plot_style.png(figure)
    texts = [text.get_text() for panel in figure.axes for text in panel.get_xticklabels()]
    assert texts and not any("$" in text or "mathdefault" in text for text in texts)


@pytest.mark.slow
def test_rebalanced_equal_weight_is_the_second_line(view):
    second = np.full(study_world.HOLDOUT, 1e-3)
    lines = replace(view.holdout, rebalanced=second)
    table = cells(study_page(replace(view, holdout=lines)), "Hold-out")
    assert [row[0] for row in table.rows[-3:]] == [
        "equal weight, bought once",
        "equal weight, rebalanced",
        "cash",
    ]
    assert table.rows[-2][1] == f"{100 * (1.001**study_world.HOLDOUT - 1):+.1f} %"
    lines = replace(view.holdout, missing="the prices have changed since the study read them")
    note = cells(study_page(replace(view, holdout=lines)), "Hold-out").note
    assert "Equal weight, rebalanced, is not shown: the prices have changed" in note


def test_what_qualifies_it_comes_first(page):
    warnings = page.warnings
    assert "Hansen's test over all 45 trials, " in warnings[0]
    assert warnings[1].startswith("On the hold-out the lower bound of ")
    assert warnings[2].startswith("Promoted: ")
    assert warnings[3].startswith(f"{study_world.HOLDOUT} days are few: the standard error")
    assert "optimistic by construction" in warnings[4]
    assert "Pruning stopped" in warnings[5] and "armed" in warnings[5]
    assert "standard deviation of about 0.16" in warnings[6]
    assert any(line.startswith("This is the first opening of these") for line in page.sentences)


def test_the_bound_on_the_holdout_is_said_in_words():
    told = {"lcb": 0.31, "sharpe_lcb": -0.2}
    assert describe_holdout_bounds(told, True) == (
        "On the hold-out the lower bound of its information ratio against equal weight (0.31) is "
        "above 0, but the lower bound of its own Sharpe ratio (-0.20) is not above 0: luck may "
        "explain it."
    )
    assert describe_holdout_bounds({"lcb": 0.4}, False) == (
        "On the hold-out the lower bound of its Sharpe ratio (0.40) is above 0."
    )
    assert describe_holdout_bounds({"mean": 3.0}, False) == ""


def proven(view, percentile=99.0):
    """A view whose hold-out is as good as one can be."""
    sure = np.random.default_rng(0).normal(6e-3, 0.01, view.holdout.curves.shape)
    return replace(
        view,
        holdout=replace(view.holdout, curves=sure),
        random_traders=RandomTraderRank(percentile, 200),
        random_missing="",
    )


def with_result(view, **changes):
    return replace(view, result={**json.loads(json.dumps(view.result)), **changes})


def loud(view):
    text = said(view)
    assert ("profitable" in text) == ("outperforms" in text)
    return "profitable" in text


def test_loud_words_need_all_conditions(view):
    """docs/explanation/statistics.md, section 15: first opening, interval, size, 95 % of matched
    random traders."""
    sure = proven(view)
    assert loud(sure) and "outperforms equal weight" in said(sure)
    assert study_page(sure).headline.endswith("It was profitable on the hold-out.")
    assert loud(proven(view, 95.0))

    assert not loud(proven(view, 94.4))
    assert "94 % of matched random traders did worse, and 95 % must" in said(proven(view, 94.4))

    unknown = replace(sure, random_traders=None, random_missing="the prices have changed")
    assert not loud(unknown) and "are unknown: the prices have changed" in said(unknown)

    holdout = {**view.result["holdout"], "opening": 2}
    assert not loud(with_result(sure, holdout=holdout))
    winner = {**view.result["winner"], "forced": True}
    assert not loud(with_result(sure, winner=winner))


def test_the_review_case_of_a_small_size_is_not_called_profitable(view):
    """Sharpe 3.3 on 42 days: the percentiles exclude zero, and so few days have no interval."""
    days = 42
    returns = np.tile([0.012, -0.008], days // 2) + np.linspace(-1e-4, 1e-4, days)
    returns += 3.3 / 365**0.5 * returns.std(ddof=1) - returns.mean()
    short = replace(
        view.holdout,
        time=view.holdout.time[:days],
        curves=returns[None],
        benchmark=view.holdout.benchmark[:days],
    )
    text = said(replace(view, holdout=short, random_traders=RandomTraderRank(99.0, 200)))
    assert "profitable" not in text and "outperforms" not in text
    assert "Hold-out Sharpe 3.3, no interval: too few days (42 days). Below 60 days no" in text


def test_one_phrase_has_one_value(view):
    """The best of N skill-less ones: the deflated ratio's own bar, wherever it is named."""
    told = view.result["evidence"]["deflated_sharpe"]
    bar = told["expected"] * 365**0.5
    text = " ".join([said(view), *study_wording.expected_by_chance(view)])
    values = re.findall(
        r"best of 45 trials without skill is expected to reach an annual \D*(\d+\.\d)", text
    )
    assert len(values) == 2 and set(values) == {f"{bar:.1f}"}
    rows = dict(row[:2] for row in study_tables.evidence(view).rows)
    assert rows["Expected of the best of 45 skill-less trials"] == f"{bar:.2f}"
    assert bar >= expected_best_sharpe(45, told["days"] / 365) - 1e-9


def sharpe_of(returns):
    return returns.mean() / returns.std(ddof=1)


def test_the_deflated_ratio_is_that_of_the_deployed_trial(view, skilled):
    """The market of this world rises by 4e-3 a day: in excess of it, trials show less."""
    told = view.result["evidence"]["deflated_sharpe"]
    with Ledger(skilled.ledger, read_only=True) as ledger:
        backtests = ledger.backtests("search")
    folds = [backtests[told["trial"], 0, fold] for fold in range(6)]
    own = mean_daily_returns(folds)[1]
    excess = own - mean_daily_returns([replace(one, returns=one.benchmark) for one in folds])[1]
    found = {"own": own, "excess": excess}
    if folds[0].timing is not None:
        found["timing"] = mean_daily_returns([replace(one, returns=one.timing) for one in folds])[1]
    assert told["trial"] == skilled.result["winner"]["trial"]
    assert told["sharpe"] == pytest.approx(sharpe_of(found[told["of"]]))
    assert told["of"] in study_tables.evidence(view).note


def test_survivors_that_are_too_alike_are_said(view):
    told = {**view.result["evidence"]["deflated_sharpe"]}
    told |= {"measured_deviation": told["deviation"] / 2}
    alike = with_result(view, evidence={**view.result["evidence"], "deflated_sharpe": told})
    assert "survivors of pruning are similar" in said(alike)
    rows = dict(row[:2] for row in study_tables.evidence(alike).rows)
    assert "survivors are too alike" in rows["Deviation of annual ratios over finished trials"]
    told["measured_deviation"] = told["deviation"]
    different = with_result(view, evidence={**view.result["evidence"], "deflated_sharpe": told})
    assert "too alike" not in said(different)


def test_trials_that_differ_by_more_than_luck_explain_a_high_bar(view):
    """Some that lose steadily to costs widen the deviation that the bar is made of."""
    told = {**view.result["evidence"]["deflated_sharpe"]}
    luck = told["days"] ** -0.5
    told |= {"measured_deviation": 5 * luck, "deviation": 5 * luck, "trials": 45}
    told["expected"] = 5 * luck * expected_maximum(45)
    unlike = with_result(view, evidence={**view.result["evidence"], "deflated_sharpe": told})
    best = luck * expected_maximum(45) * 365**0.5
    assert f"that differ by luck alone would show {best:.1f}." in said(unlike)
    told["measured_deviation"] = told["deviation"] = 1.5 * luck
    near = with_result(view, evidence={**view.result["evidence"], "deflated_sharpe": told})
    assert "by luck alone" not in said(near)


def test_a_seen_holdout_proves_no_comparison_either(view):
    seen = with_result(view, holdout={**view.result["holdout"], "opening": 2})
    assert "these bars prove nothing" in said(seen) and "may be chance" not in said(seen)


def test_later_looks_at_the_holdout_are_the_first_thing_said(view):
    view = proven(view)
    result = json.loads(json.dumps(view.result))
    result["holdout"]["opening"] = 3
    seen = replace(view, result=result)
    assert "opening 3 of these hold-out days" in study_wording.warnings(seen)[0]
    assert "profitable" not in said(seen)
    assert "outperforms" not in said(seen)
    assert study_page(seen).figures[0].note.startswith("opening 3 of these days; ")


def test_disarmed_rungs_are_said(view):
    rungs = [
        {
            "share": 1 / 3,
            "rollouts": [33, 99],
            "judged": 40,
            "pruned": 0,
            "rho": -0.21,
            "armed": False,
        }
    ]
    told = said(replace(view, result={**view.result, "rungs": rungs}))
    assert "33 % of the budget was disarmed (rank correlation with final scores -0.21: " in told
    rungs[0]["rho"] = None
    told = said(replace(view, result={**view.result, "rungs": rungs}))
    assert "of the budget never stopped a trial: too few had finished to measure" in told


@pytest.mark.slow
def test_rungs_that_fall_together_are_no_failed_rungs(tmp_path):
    """Two rollouts: a third of the budget is the first, two thirds are the end."""
    folder = study_world.run_study(tmp_path / "short", trials=4, steps=128)
    view = read_view(folder)
    first, second = view.result["rungs"]
    assert first["judged"] == 4 and first["same_as"] is None
    assert second["judged"] == 0 and second["same_as"] == "the end"
    assert "the rung at 67 % of the budget is the same as the end: the budget has" in said(view)
    rungs = [dict(second, share=share) for share in (1 / 3, 2 / 3)]
    both = said(replace(view, result={**view.result, "rungs": rungs}))
    assert "the rungs at 33 % and 67 % of the budget are the same as the end" in both
    rows = cells(study_page(view), "Rungs").rows
    assert rows[1] == ["at 67 % of the budget", "", "", "", "same as the end"]


@pytest.mark.slow
def test_two_rungs_on_one_rollout_are_one(tmp_path):
    """Four rollouts: 0.3 and 0.4 of them are the second, 0.7 the third."""
    study = {"pruning": {"rungs": [0.3, 0.4, 0.7], "startup": 0}}
    folder = study_world.run_study(tmp_path / "twins", trials=4, steps=256, study=study)
    told = folder.result["rungs"]
    assert [rung["same_as"] for rung in told] == [None, "the rung before", None]
    assert [rung["judged"] for rung in told] == [4, 0, 4]


def test_nobody_wins_on_noise_and_nothing_is_recommended(noise):
    page = study_page(read_view(noise))
    assert page.headline == NO_WINNER
    text = text_of(page)
    assert "profitable" not in text
    assert "outperforms" not in text
    assert "It was not opened" in text
    assert not any(p.name == "holdout" for s in page.sections for p in s.pictures)


def test_a_winner_without_proof_is_not_called_profitable(view):
    random = np.random.default_rng(0)
    lines = replace(view.holdout, curves=random.normal(1e-4, 0.02, view.holdout.curves.shape))
    told = said(replace(proven(view), holdout=lines))
    assert "profitable" not in told
    assert "outperforms" not in told


@pytest.mark.slow
def test_deployed_by_force_still_recommends_nothing(tmp_path):
    folder = study_world.run_study(tmp_path / "forced", trials=20, skill=0.0, force_deploy=True)
    view = read_view(folder)
    assert study_wording.summary_sentences(view)[0] == NO_WINNER
    assert study_wording.warnings(view)[0].endswith("was deployed by force nevertheless.")
    assert sum(NO_WINNER in text for text in study_page(view).lines) == 1
    assert "deployed by force, not confirmed" in best_config(folder).splitlines()[0]
    assert view.result["holdout"] is not None


@pytest.mark.slow
def test_console_and_page_say_one_thing_of_a_forced_policy(tmp_path):
    """The console said "not promoted", the page "Promotion: met"."""
    folder = study_world.run_study(tmp_path / "forced", trials=20, skill=-0.001, force_deploy=True)
    told, text = folder.result["sentences"], text_of(study_page(read_view(folder)))
    assert "Not promoted: it was deployed by force." in told
    assert "Not promoted: it was deployed by force." in text and "Promotion" not in text
    for sentence in told:
        if not sentence.startswith(("Folds of", "Policy:")):
            assert " ".join(sentence.split()) in text.replace("&#39;", "'"), sentence


def test_after_nothing_is_recommended_it_is_said_what_to_do(noise):
    told = noise.result["sentences"]
    (advice,) = [text for text in told if text.startswith("Next: ")]
    page = study_page(read_view(noise))
    assert advice in text_of(page).replace("&#39;", "'")
    assert advice in page.lines  # what the terminal shows
    last = np.datetime64(study_world.FIRST + 4 * study_world.DAYS + study_world.HOLDOUT, "D")
    for words in (
        "more data",
        "features",
        "costs",
        f"{shlex.quote(str(noise.path))} --force-deploy`",
    ):
        assert words in advice
    assert f"`slipstream evaluate {shlex.quote(str(noise.path))} --from {last}`" in advice


@pytest.mark.slow
def test_pbo_says_why_it_is_not_computed(tmp_path):
    folder = study_world.run_study(tmp_path / "few", trials=8)
    view = read_view(folder)
    assert view.importance == {}
    assert "not computed, 8 trials finished, at least 20 are needed" in said(view)


@pytest.mark.slow
def test_a_stable_order_of_losers_is_not_taken_for_skill(noise):
    """Where the best trial of a half loses in the other one, a low PBO is no good news."""
    view = read_view(noise)
    told = {**view.result["evidence"]["pbo"], "value": 0.01, "probability_of_loss": 0.99}
    losing = with_result(view, evidence={**view.result["evidence"], "pbo": told})
    sentence = "the best trial of a half of the days loses money in the other half in 99 %"
    assert sentence in said(losing) and "not that any earns" in said(losing)
    figure = next(f for f in study_page(losing).figures if f.label == "Overfitting probability")
    assert figure.note == "(PBO); the best loses in 99 % of halves"
    for honest in (
        {"value": 0.01, "probability_of_loss": 0.2},
        {"value": 0.6, "probability_of_loss": 0.99},
    ):
        pbo = {**told, **honest}
        other = with_result(view, evidence={**view.result["evidence"], "pbo": pbo})
        assert "not that any earns" not in said(other)


def test_counts_and_failures(view, page):
    told = view.result["trials"]
    assert (told["inactive"], told["failed"]) == (1, 1)
    assert [int(n) for n in cells(page, "Trials").rows[0]] == [
        told[name] for name in ("started", "complete", "inactive", "pruned", "failed")
    ]
    assert "its loss is NaN" in cells(page, "Failed trials").rows[0][1]


def test_folds_show_their_benchmark(view, page):
    table = cells(page, f"Trial {view.shown} by fold, search seed")
    fold = view.trial(view.shown).last_decision.folds[2]
    assert table.rows[2][1:4] == [
        f"{fold[name]:.2f}" for name in ("score", "sharpe", "benchmark_sharpe")
    ]


def test_a_terminal_shows_each_folds_benchmark_and_what_the_data_can_show(view):
    told = view.result["sentences"]
    (line,) = [text for text in told if text.startswith(f"Folds of trial {view.shown}, ")]
    folds = view.trial(view.shown).last_decision.folds
    parts = [f"{fold['sharpe']:.2f} ({fold['benchmark_sharpe']:.2f})" for fold in folds]
    assert line.endswith(f"annual Sharpe ratio (equal weight's): {', '.join(parts)}.")
    years = [4 * study_world.DAYS / 365.25, study_world.HOLDOUT / 365]
    assert (
        f"{2.24140 / years[0] ** 0.5:.1f} on the folds for one of 4 candidates "  # 0.05 / 4
        f"({4 * study_world.DAYS} days), {1.64485 / years[1] ** 0.5:.1f} on the hold-out "
        f"({study_world.HOLDOUT} days)." in told[-2]
    )
    assert study_wording.expected_by_chance(view)[0] == told[-2]
    assert told[-1].startswith("Policy: ")


def test_confirmation_lists_equal_weight_and_cash(view, page):
    table = cells(page, "Confirmation")
    assert [row[0] for row in table.rows[-2:]] == ["equal weight", "cash"]
    best = max(view.result["confirmation"]["candidates"], key=lambda one: one["lcb"])
    assert table.rows[0][0] == f"trial {best['trial']}, winner"
    assert table.rows[0][4] == f"{best['lcb']:.2f}"
    assert "0.013 quantile: the level of the bound, 0.05, is shared by 4 cand" in table.note
    assert table.columns[5] == "own Sharpe, lower bound"
    assert table.rows[0][5] == f"{best['sharpe_lcb']:.2f}"


def test_learning_rate_is_what_mattered(view):
    shares = view.importance
    assert next(iter(shares)) == "agent.learning_rate"
    assert sum(shares.values()) == pytest.approx(1.0)


def test_curves_are_the_trials_own(view):
    assert view.development.curves.shape == (3, 4 * study_world.DAYS)
    assert view.fresh.curves.shape == (3, 4 * study_world.DAYS)
    assert view.holdout.curves.shape == (3, study_world.HOLDOUT)
    assert (np.diff(view.development.time) == 86_400).all()


@pytest.mark.slow
def test_games_have_no_benchmark(tmp_path):
    folder = study_world.run_study(tmp_path / "game", trials=12, market=None)
    page = study_page(read_view(folder))
    text = text_of(page)
    assert "Mean return of the final seeds" in page.headline or page.headline == NO_GAME_WINNER
    assert "equal weight" not in text.replace("beat equal weight", "")
    assert "Hold-out" not in [section.title for section in page.sections]


@pytest.mark.slow
def test_a_market_without_equal_weight_speaks_of_cash_only(tmp_path):
    """Forex: nothing is traded beside the agent, and a benchmark of exactly 0 % is invented."""
    market = replace(MARKET, benchmark=False)
    won = study_world.run_study(tmp_path / "won", trials=20, skill=0.01, market=market)
    lost = study_world.run_study(tmp_path / "lost", trials=20, skill=-0.02, market=market)
    for folder in (won, lost):
        view = read_view(folder)
        told = [text_of(study_page(view)), json.dumps(folder.result), *status_lines(folder)]
        told += [export_text(folder, kind) for kind in ("csv", "json")]
        text = " ".join(told).lower().replace('"benchmark": false', "")
        for word in ("equal weight", "equal_weight", "benchmark", "information ratio"):
            assert word not in text, text[text.index(word) - 60 :][:120]
    page = study_page(read_view(won))
    assert [row[0] for row in cells(page, "Hold-out").rows][-1] == "cash"
    assert any(re.match(r"The agent (outperforms|is ahead of) cash", s) for s in page.sentences)
    assert "Promoted: the lower bounds on the hold-out are above 0." in page.warnings
    assert any("of the final seeds: +" in s and "above cash" in s for s in won.result["sentences"])
    assert study_page(read_view(lost)).headline == NO_CASH_WINNER == lost.result["sentences"][0]
    assert "against cash is" in lost.result["sentences"][1]


def test_the_page_stands_alone(skilled):
    path = write_study_page(skilled)
    assert path.name == "study.html"
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"(?!data:)", html)
    assert html.count("<img") == len(list((skilled.path / "figures").glob("*.png")))


def test_an_unfinished_study_has_no_page(skilled, tmp_path):
    import shutil

    from slipstream.studies.record.folder import StudyFolder

    shutil.copytree(skilled.path, tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    with pytest.raises(CheckpointError, match="slipstream resume"):
        write_study_page(StudyFolder(tmp_path / "half"))


@pytest.mark.slow
def test_steps_that_were_trained_are_told_where_whole_rollouts_are_more(skilled, tmp_path):
    assert "640 steps a member" in read_view(skilled).provenance["Study"]
    folder = study_world.run_study(tmp_path / "more", trials=4, steps=600)
    told = read_view(folder).provenance["Study"]
    assert "640 (whole iterations; 600 requested) steps a member" in told


def test_a_constraint_that_no_trial_keeps_within_is_to_be_loosened(tmp_path):
    """With the figure of the trial that was the least beyond it."""
    limits = {"constraints": {"fills": 100.0, "mean_exposure": 0.5}}
    folder = study_world.run_study(tmp_path / "strict", trials=4, study=limits)
    near = "whose fills is 400 (at most 100), mean_exposure is 0.6 (at most 0.5)"
    reason, advice = folder.result["sentences"][1:3]
    assert reason.endswith(f"within the constraints; trial 0 comes closest, {near}.")
    assert advice.startswith("Next: run a new study with looser `study.constraints`, on ")
    own = r"^No trial of strict ended within its constraints, .*trial 0 comes closest.* looser `st"
    with pytest.raises(CheckpointError, match=own):
        best_config(folder)


def test_a_study_whose_trials_hardly_trade_has_a_page_and_no_best_trial(tmp_path):
    folder = study_world.run_study(tmp_path / "idle", trials=4, idle=range(4))
    assert folder.result["winner"] is None and folder.result["best"] is None
    assert NO_WINNER[:40] in text_of(study_page(read_view(folder)))
    with pytest.raises(CheckpointError, match=r"policies that trade in every fold.*--trial N"):
        best_config(folder)
    assert best_config(folder, 2).startswith("# Study idle, trial 2: requested")
    (folder.path / "result.json").unlink()
    with pytest.raises(CheckpointError, match=r"no result yet; continue it with `slipstream res"):
        write_study_page(folder)
