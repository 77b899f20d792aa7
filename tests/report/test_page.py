"""The whole report: self-contained, escaped, every picture drawn, no loud words without proof."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from slipstream.report.gather import gather
from slipstream.report.inputs import Curve
from slipstream.report.report import build_page, write_report

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
    return gather(
        forex,
        tracks,
        title=EVIL,
        curves=CURVES,
        notes=(EVIL,),
        provenance={"command": EVIL},
        backend="serial",
        draws=4,
    )


@pytest.fixture(scope="module")
def html(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_report(run, folder).read_text(encoding="utf-8")


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


def test_every_picture_shows_something(run, tmp_path):
    from matplotlib.image import imread

    write_report(run, tmp_path)
    names = {path.stem for path in tmp_path.glob("figures/*.png")}
    assert names >= {
        "equity_test",
        "equity_validation",
        "positions_EURUSD",
        "positions_USDJPY",
        "costs",
        "daily_returns",
        "random_timing",
        "rolling_sharpe",
        "monthly_returns",
        "learning_curve",
    }
    for path in tmp_path.glob("figures/*.png"):
        pixels = imread(path)[..., :3]
        assert (pixels < 0.9).any(axis=2).mean() > 0.005, path.name


def test_the_headline_comes_first(run, html):
    page = build_page(run)
    assert page.headline.startswith("Test Sharpe ")
    assert html.index("Test Sharpe ") < html.index("<ul>") < html.index("<table")


def test_no_loud_words_without_proof(run, html):
    for text in re.findall(r">([^<]+)<", html):
        assert "profitable" not in text
        assert "outperform" not in text


def test_what_must_be_said_is_said(html):
    for part in (
        "financing not modelled",
        "Round trip: EURUSD",
        "Over 2 seeds the test Sharpe is",
        "Trials tried: 1.",
        "Exits whose bar touched both levels",
        "break-even cost multiple",
        "one extra bar of delay",
        "matched random (median)",
        "Five worst drawdowns",
        "Politis and Romano 1994",
    ):
        assert part in html, part
    assert "The agent does not beat" in html or "The agent is ahead of" in html


def test_no_loud_words_on_bars_that_were_used(run):
    page = build_page(replace(run, holdout="validation", unseen=False))
    assert "no proof" in page.sentences[0]
    assert not any("outperforms" in sentence for sentence in page.sentences)


def test_a_second_look_at_the_hold_out_is_said_first(run, html):
    page = build_page(replace(run, holdout_reads=2))
    assert "evaluated 2 times" in page.warnings[0]
    assert 'class="warning"' not in html


def test_same_run_same_page(run, html, tmp_path):
    assert write_report(run, tmp_path).read_text(encoding="utf-8") == html


def test_an_agent_that_never_trades_has_a_page(forex, passes_of):
    passes = passes_of(forex)
    still = [
        passes.encode(np.zeros(last - first))
        for first, last in (passes.window(k) for k in range(2))
    ]
    run = gather(forex, {"test": [passes.replay(still)]}, title="still", backend="serial", draws=3)
    page = build_page(run)
    assert page.headline.startswith("Test Sharpe n/a")
    assert "The agent does not beat flat: +0.0 % against +0.0 %." in page.sentences
