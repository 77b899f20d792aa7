"""The whole report: self-contained, escaped, every picture drawn, no loud words without proof."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from slipstream.kernels.spec import MarketSpec
from slipstream.markets.evaluation import performance as accounts
from slipstream.markets.evaluation.performance import Account
from slipstream.markets.report.market_page import market_page, split_views, verdict
from slipstream.markets.report.market_sections import rolling_sharpe_figure
from slipstream.report.inputs import ORACLE, Curve, RunEvaluation
from slipstream.report.page import write_page
from slipstream.report.plot_style import png
from slipstream.report.run_evaluation import add_baselines
from slipstream.report.run_page import build_page
from slipstream.report.statistics import Interval, sharpe_interval
from slipstream.report.summary_text import interval_note
from slipstream.training.environments.factory import resolve_environment

EVIL = "<script>alert('x')</script> & co"
CURVES = (
    Curve("training", np.array([1e3, 2e3, 3e3]), np.array([[0.1, 0.2], [0.2, np.nan], [0.3, 0.1]])),
    Curve("validation", np.array([1e3, 3e3]), np.array([[np.nan, np.nan], [0.2, 0.1]])),
)


@pytest.fixture(scope="module")
def run(forex, passes_of, some_agent):
    tracks = {
        split: [some_agent(passes_of(forex, split), seed) for seed in range(2)]
        for split in ("validation", "test")
    }
    return add_baselines(
        forex,
        RunEvaluation(EVIL, tracks, curves=CURVES, notes=(EVIL,), provenance={"command": EVIL}),
        backend="serial",
        draws=4,
    )


@pytest.fixture(scope="module")
def page(run):
    return build_page(run)


@pytest.fixture(scope="module")
def html(page, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_page(page, folder).read_text(encoding="utf-8")


def test_nothing_is_fetched(html):
    sources = re.findall(r'src="([^"]*)"', html)
    without = re.sub(r'src="[^"]*"', "", html)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", without, re.IGNORECASE)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "<link" not in html
    assert "<script" not in html


def test_user_strings_are_escaped(html):
    assert html.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; co") >= 4


def test_every_tag_is_closed(html):
    class Checker(HTMLParser):
        def __init__(self):
            super().__init__()
            self.stack = []

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img"):
                self.stack.append(tag)

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag

    checker = Checker()
    checker.feed(html)
    assert not checker.stack


@pytest.mark.slow
def test_every_picture_shows_something(run, tmp_path):
    from matplotlib.image import imread

    write_page(build_page(run), tmp_path)
    names = {path.stem for path in tmp_path.glob("figures/*.png")}
    assert names >= {
        "equity_test",
        "equity_validation",
        "positions_EURUSD",
        "positions_USDJPY",
        "costs",
        "daily_returns",
        "random_timing",
        "learning_curve",
    }
    for path in tmp_path.glob("figures/*.png"):
        pixels = imread(path)[..., :3]
        assert (pixels < 0.9).any(axis=2).mean() > 0.005, path.name


def test_the_first_screen_is_a_verdict_a_row_of_figures_and_the_equity(page, html):
    assert len(page.headline) < 110
    assert [one.label for one in page.figures] == [
        "Return after costs",
        "Annual Sharpe ratio",
        "Smallest detectable Sharpe",
        "Random traders that did worse",
        "Costs",
    ]
    assert page.figures[0].note == "test, 38 trading days"
    assert page.figures[1].value != "n/a"
    assert page.figures[1].note == "too few days for an interval"  # 60 are needed
    assert page.picture.name == "equity_test"
    assert page.sentences[0].startswith("Test Sharpe ")
    order = ['class="headline"', 'class="figures"', "<img", 'class="warning"', "<ul>", "<table"]
    places = [html.index(part) for part in order]
    assert places == sorted(places)


def test_a_short_split_warns_of_annual_ratios(page, html):
    assert page.warnings[-1].startswith("38 trading days are few")
    assert not re.search(r"0\.\d+ years", html)
    table = next(t for s in page.sections for t in s.tables if t.columns[:2] == ("", "test"))
    cells = {row[0]: row[1] for row in table.rows}
    assert cells["Calmar"] == "n/a" and "Years" not in cells
    text = " ".join(sentence for section in page.sections for sentence in section.sentences)
    assert "A rolling Sharpe ratio is not shown: it requires 120 trading days" in text
    assert "a year." not in text


def test_months_are_shown_once(page, html):
    captions = [table.caption for section in page.sections for table in section.tables]
    assert captions.count("Monthly returns, %") == 1
    assert not any("month" in shown.caption.lower() for shown in page.pictures)
    assert not re.search(r">-0(\.0+)?( %)?<", html)


def test_members_are_shown_beside_the_market(page):
    (table,) = [t for s in page.sections for t in s.tables if t.caption == "Members, test"]
    assert table.columns[-3:] == ("exposure", "net exposure", "correlation")
    assert [row[0] for row in table.rows] == ["member 0", "member 1", "buy and hold"]
    assert table.rows[-1][5:7] == ["1.01", "1.01"]
    assert any(line.startswith("The market itself on these bars: buy") for line in page.sentences)


@pytest.mark.slow
def test_members_that_hold_the_market_are_said_to(forex, passes_of):
    """Sharpe ratios of 6 beside the winner's 0.25: exposure, and the market's own move."""
    passes = passes_of(forex)
    sides = [
        [passes.encode_positions(np.full(b - a, side)) for a, b in windows(passes)]
        for side in (1, -1)
    ]
    tracks = {"test": [passes.replay(actions) for actions in sides]}
    page = build_page(add_baselines(forex, RunEvaluation("two", tracks), backend="serial", draws=2))
    (line,) = [text for text in page.sentences if text.startswith("The market itself")]
    assert (
        "Member 0 moves with it (correlation of daily returns 1.00, mean net exposure 1.0" in line
    )
    assert "Member 1 moves against it (correlation of daily returns -1.00" in line
    assert line.endswith("much of such a return is market exposure, not timing.")


def windows(passes):
    return [passes.window(record) for record in range(len(passes.params))]


def test_no_loud_words_without_proof(run, html):
    for text in re.findall(r">([^<]+)<", html):
        assert "profitable" not in text
        assert "outperform" not in text


def test_what_must_be_said_is_said(html):
    for part in (
        "financing is not modelled",
        "Round trip: EURUSD",
        "Over 2 seeds the test Sharpe is",
        "Number of trials: 1.",
        "Exits in bars that touched stop and target",
        "break-even cost multiple",
        "one extra bar of delay",
        "matched random (median)",
        "Five worst drawdowns",
    ):
        assert part in html, part
    assert "The agent does not beat" in html or "The agent is ahead of" in html


def test_no_loud_words_on_bars_that_were_used(run):
    page = build_page(replace(run, holdout="validation", unseen=False))
    assert page.headline.startswith("No proof: ")
    assert "no proof" in page.sentences[1]
    assert not any("outperforms" in sentence for sentence in page.sentences)


def test_a_second_look_at_the_hold_out_is_said_first(run, html):
    page = build_page(replace(run, holdout_reads=2))
    assert "evaluated 2 times" in page.warnings[0]
    assert page.figures[0].note.endswith(", read 2 times")
    assert "has been evaluated" not in html


def test_accepted_findings_of_the_data_come_first(run):
    words = "EURUSD: prices near 110000; loaded, because `allow_issues` names units."
    page = build_page(replace(run, accepted=(words,), holdout_reads=2))
    assert page.warnings[0] == words and "evaluated 2 times" in page.warnings[1]


def test_accepted_findings_are_recorded(tmp_path):
    from forex_folder import write_symbol

    write_symbol(tmp_path, "EURUSD", price=1e5, bars=8000)
    data = {"folder": str(tmp_path), "allow_issues": ["units"], "spread_pips": 1.0}
    for name in ("forex", "portfolio"):
        environment = resolve_environment(name, {"data": data})
        (sentence,) = environment.loaded.provenance["accepted"]
        assert "prices near" in sentence and sentence in environment.notes


@pytest.mark.slow
def test_same_run_same_page(run, html, tmp_path):
    assert write_page(build_page(run), tmp_path).read_text(encoding="utf-8") == html


@pytest.mark.slow
def test_an_agent_that_never_trades_has_a_page(forex, passes_of):
    passes = passes_of(forex)
    still = [
        passes.encode_positions(np.zeros(last - first))
        for first, last in (passes.window(k) for k in range(2))
    ]
    run = RunEvaluation("still", {"test": [passes.replay(still)]})
    page = build_page(add_baselines(forex, run, backend="serial", draws=3))
    assert page.headline == "It never traded on the test bars: there is nothing to judge."
    assert page.sentences[0].startswith("Test Sharpe n/a")
    assert page.sentences[1].startswith("The agent never traded: its account is unchanged")
    text = " ".join([*page.lines, *page.sentences])
    assert "percentile" not in text and "ahead of" not in text and "luck" not in text


def test_a_ruined_account_is_said_to_be_ruined(run):
    held = split_views(run)[0]
    ruin = replace(held.performance, total_return=-0.97)
    held.__dict__["performances"] = [ruin] * len(held.members)
    assert verdict(held).startswith("The account is ruined: -97.0 % on the test bars")


@pytest.mark.parametrize("interval", [(0.5, 9.0), (-0.5, 9.0), (-9.0, -0.5), (0.0, 1.0), None])
@pytest.mark.parametrize("total", [0.5, 0.0, -0.05])
@pytest.mark.parametrize("sharpe", [2.0, 9.0, -2.0])
@pytest.mark.parametrize("place", [50.0, 99.0])
def test_a_runs_page_never_says_profitable(run, interval, total, sharpe, place, monkeypatch):
    """Whatever its figures: the test bars may be read again (docs/explanation/statistics.md,
    section 15)."""
    held = split_views(run)[0]
    size = {"total_return": total, "sharpe": sharpe, "interval": interval, "days": 80}
    found = replace(held.performance, **size)
    held.__dict__["performances"] = [found] * len(held.members)
    monkeypatch.setattr(accounts, "percentile", lambda value, draws: place)
    text = verdict(held)
    assert "profitable" not in text and "outperforms" not in text
    sure = interval == (0.5, 9.0) and total > 0.0 and sharpe == 9.0 and place == 99.0
    assert ("unlikely to be luck" in text) == sure
    if interval == (0.5, 9.0) and total > 0.0 and not sure:
        doubt = (
            "random timing does equally well"
            if sharpe == 9.0
            else "too small to confirm with 80 trading days"
        )
        assert doubt in text


def test_the_rolling_sharpe_is_filled_up_to_where_it_crosses_zero():
    """It was white from the last day above zero to the first one below."""
    days = 160
    returns = np.where(np.arange(days) < 90, 0.01, -0.011) + np.tile([0.004, -0.004], days // 2)
    time = 1_704_758_400 + 86_400 * np.arange(days + 1)
    market = MarketSpec(("A",), "USD", 1.0, 86_400, 260.0, 260.0, "00:00 UTC")
    equity = np.cumprod(np.append(1.0, 1.0 + returns))
    zeros = np.zeros(days)
    account = Account(time, equity, zeros, zeros, {}, np.arange(days), market)
    figure = rolling_sharpe_figure("test", account, 60)
    png(figure)
    inside = []
    for area in figure.axes[0].collections:
        for path in area.get_paths():
            x, y = path.vertices.T
            inside += list(x[(np.abs(y) < 1e-9) & (np.abs(x - np.round(x)) > 1e-6)])
    assert inside  # both areas meet on the axis, between two days


def test_a_single_agent_is_shown_beside_the_market(run):
    alone = replace(run, tracks={name: each[:1] for name, each in run.tracks.items()}, member=0)
    text = " ".join(market_page(alone).sentences)
    assert "The market itself on these bars: buy and hold " in text
    assert (
        "The agent's mean net exposure is " in text and "correlation of its daily returns" in text
    )


def test_an_agent_that_earns_much_of_what_hindsight_allows_is_said_to(run):
    oracle = run.baselines["test"].tracks[ORACLE]
    seeing = replace(run, tracks={**run.tracks, "test": [oracle, oracle]}, member=0)
    (text,) = [line for line in market_page(seeing).warnings if "log growth of the oracle" in line]
    assert text.startswith("The agent earns 100 % of") and "look-ahead" in text
    assert not [line for line in market_page(run).warnings if "look-ahead" in line]


def test_earlier_trials_on_the_same_days_are_counted(run):
    text = " ".join(market_page(replace(run, earlier_uses=("run a (2026-01-01)",))).sentences)
    assert (
        "Number of trials: 1; plus those behind 1 earlier outcome on some of the same days" in text
    )
    assert "The best of 2 trials without skill" in text


def test_tables_name_the_method_of_their_intervals():
    daily = np.random.default_rng(1).normal(0.0, 0.01, 80)
    found = sharpe_interval(daily, 260)
    text = interval_note({"agent": found, "flat": None})
    assert "Politis and Romano 1994" in text and text.endswith(f"Widest here: {found.method}.")
    assert interval_note({"flat": None}) == ""
    other = Interval(found)
    other.methods = ("Newey-West error", "stationary bootstrap")
    both = "Newey-West error below, stationary bootstrap above"
    assert interval_note({"a": found, "b": other}).endswith(
        f"Widest here: {found.method} (a); {both} (b)."
    )
