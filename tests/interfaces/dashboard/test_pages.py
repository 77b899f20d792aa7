"""The pages in Debian's Chromium: drawn, alive, within bounds, and alone with this machine.

Without Playwright or Chromium these tests skip, and say so.
"""

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from PIL import Image

from benchmarks.ours.watched import add_rows, add_trial, rows_of, write_run, write_study_folder
from slipstream.dashboard.overview import folder_id
from slipstream.markets.live.account_comparison import RERUN
from slipstream.markets.live.deployment import KILL, read_kill_switch
from slipstream.markets.live.paper_account import JOURNAL

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright (extra dev) is missing")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine"),
]
SCRIPT = "<img src=x onerror=alert(1)>"
WIDTHS, SCHEMES = (400, 1_600), ("light", "dark")


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests of the file."""
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """A callable: a page of a dashboard; what it complains of or asks elsewhere fails the test."""
    contexts, faults = [], []

    def complain(text, known):
        if not any(words in text for words in known):
            faults.append(text)

    def open_page(dash, path, width=1_200, scheme="light", known=()):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        name, _, value = dash.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": dash.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
        page.on("console", lambda one: one.type == "error" and complain(one.text, known))
        own = (dash.url, "data:", "about:")
        page.on("request", lambda one: one.url.startswith(own) or faults.append(one.url))
        page.goto(dash.url + path)
        page.wait_for_selector("main h1")
        page.wait_for_selector("#link:text-is('live')")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def until(true, seconds=10.0):
    """Waits; the pages' own rules let no test wait within them."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def drawn(page):
    """Titles of the pictures that have been drawn; each says what its axes are."""
    page.wait_for_selector(".chart canvas")
    labels = page.locator(".chart [role=img]:visible").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert all(" over " in label for label in labels)
    inside = "(one) => !one.plot || one.plot.scales.x.max >= one.last[0].at(-1)"
    assert page.evaluate(f"import('/static/chart.js').then((it) => [...it.CHARTS].every({inside}))")
    return page.locator(".chart:has(canvas) h3").all_text_contents()


def fits(page):
    """Return whether no element is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def paths(made):
    run, other, study = (folder_id(str(made / name)) for name in ("night", "other", "search"))
    return {
        "overview": "/",
        "run": f"/run/{run}",
        "compare": f"/compare/{run},{other}",
        "study": f"/study/{study}",
        "deployment": f"/deployment/{folder_id(str(made / 'live'))}",
        "jobs": "/jobs",
    }


def test_the_first_page_lists_what_there_is(dash, made, opened):
    page = opened(dash, "/")
    page.wait_for_selector("table.rows tbody tr")
    text = page.locator("table.rows").inner_text()
    assert all(name in text for name in ("night", "search", "other")) and "running" in text
    assert page.locator("svg.spark polyline").count() == 3
    assert "no GPU" in page.inner_text("main") or "GPU use" in page.inner_text("main")
    assert fits(page)
    page.get_by_role("link", name="night").click()
    page.wait_for_selector("h1:has-text('Run night')")


@pytest.mark.slow
def test_cards_have_pictures_of_their_own(serving, made, opened, monkeypatch):
    cards = [
        {"name": "H100", "percent": 37.0, "vram": 2**34, "vram_total": 2**36, "watts": 310.0},
        {"name": "part", "percent": None, "vram": 2**30, "vram_total": 2**36, "watts": None},
    ]
    monkeypatch.setattr("slipstream.core.storage.resource_monitor.Gpus.query", lambda self: cards)
    page = opened(serving(made), "/")
    titles = drawn(page)
    assert "GPU use, 37 and \u2013 %" in titles and "GPU memory in use, 16 and 1 GiB" in titles
    assert any(one.startswith("CPU, ") and one.endswith(" %") for one in titles)
    assert "H100, part" in page.inner_text("main")


def test_a_runs_page_draws_its_curves_and_what_is_appended(serving, tmp_path, opened):
    run = write_run(tmp_path / "shown" / "own", members=3, iterations=60)
    page = opened(serving(run.parent), f"/run/{folder_id(str(run))}")
    titles = drawn(page)
    assert "Score of recent training episodes, by member" in titles and "policy loss" in titles
    chart = page.locator(".chart:has-text('Score of recent') [role=img]")
    before = chart.get_attribute("aria-label")
    assert page.get_by_text("agent.n_epochs").count() >= 1  # what differs from the default
    assert "ETA" in page.inner_text("main") and fits(page)
    add_rows(run, rows_of(3, 61, 70))
    until(lambda: chart.get_attribute("aria-label") != before)


def test_runs_are_compared(dash, made, opened):
    page = opened(dash, "/")
    for name in ("night", "other"):
        page.get_by_label(f"compare {name}").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector("h1:text-is('Compare')")
    assert "Score in validation, mean of members" in drawn(page)
    legend = page.locator(".chart:has-text('Score of recent') .u-legend").inner_text()
    assert "night" in legend and "other" in legend and fits(page)


def test_a_studys_page_shows_trials_on_their_way(serving, tmp_path, opened):
    study = write_study_folder(tmp_path / "shown" / SCRIPT, trials=60, under_way=2)
    page = opened(serving(study.parent), f"/study/{folder_id(str(study))}")
    titles = drawn(page)
    assert page.locator("h1").text_content() == f"Study {SCRIPT}"
    assert any(one.startswith("Trial 60:") and "left" in one for one in titles)
    ends = "[...it.CHARTS].filter((one) => one.how.until).map((one) => one.plot.scales.x.max)"
    assert page.evaluate(f"import('/static/chart.js').then((it) => {ends})") == [100_000] * 2
    assert "● fold 0 ● fold 1" in page.inner_text("main")
    assert {"agent.learning_rate", "agent.gamma"} <= set(titles)
    assert "60 of 120" in page.inner_text("dl.tiles") and "is NaN after" in page.inner_text("main")
    assert "The hold-out is closed" in page.inner_text("main")
    told = {"study": "search", "market": True, "objective": "sharpe", "folds": 6, "rungs": []}
    told["trials"] = dict.fromkeys(("started", "complete", "pruned", "failed"), 1)
    told |= {"confirmation": {"candidates": [], "seeds": 5}, "seconds": {"workers": {}}}
    told |= {"steps": {}, "sentences": ["Nothing beat cash."]}
    (study / "result.json").write_text(json.dumps(told))
    page.wait_for_selector("p:text-is('Nothing beat cash.')")
    page.wait_for_selector("text=PED-ANOVA", timeout=20_000)
    add_trial(study, 62, "failed", SCRIPT)
    page.wait_for_selector("td:has-text('onerror=alert')", timeout=10_000)
    page.locator(".chart:has-text('Score of each trial') [role=img]").focus()
    for key in ("End", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("h3:has-text('Trial 59')")
    page.get_by_label("any trial by its number").fill("22")  # which failed: no point shows it
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:text-is('Trial 22')")
    assert fits(page)


def test_the_page_of_jobs_stops_one(serving, tmp_path, opened):
    run = write_run(tmp_path / "shown" / SCRIPT, 1, 20)
    page = opened(serving(run.parent), "/jobs")
    page.get_by_role("button", name="stop").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#message:has-text('It ends at a checkpoint')")
    assert (run / "stop.json").exists() and fits(page)


def test_a_deployments_page_shows_its_gates_and_stops_it(serving, deployed, tmp_path, opened):
    live = deployed(tmp_path / "shown" / "live")
    page = opened(serving(live.parent), f"/deployment/{folder_id(str(live))}")
    assert drawn(page) == ["EURUSD"]
    legend = page.locator(".chart .u-legend").inner_text()
    assert "account" in legend and "rerun" in legend
    text = page.inner_text("main")
    assert "pbo failed (0.31, at most 0.2) and was forced: try <img" in text and "FORCED" in text
    assert "299 of 299 decisions bit-identical" in text and "7 fills, costs 12.5" in text
    assert "current: first seed, of the study night-2" in text and "the first one" in text
    page.get_by_role("button", name="Stop this deployment").focus()
    page.keyboard.press("Enter")
    assert not (live / KILL).exists()
    page.get_by_role("button", name="Press again").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector("text=The kill switch is set")
    assert read_kill_switch(live) == "stop" and fits(page)


def test_names_and_moments_of_strangers_spoil_no_page(serving, deployed, tmp_path, opened):
    live = deployed(tmp_path / "shown" / "live")
    account = live / "accounts" / "2"
    told = json.loads((account / RERUN).read_text().replace("EURUSD", SCRIPT))
    (account / RERUN).write_text(json.dumps({**told, "at": 1e300}))  # no calendar has it
    with closing(sqlite3.connect(account / JOURNAL)) as journal, journal:
        journal.execute("UPDATE decisions SET pass = ?", (SCRIPT,))
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=9)
    table = run / "metrics.csv"
    text = table.read_text().replace("value_loss", SCRIPT)
    table.write_text(text.replace("policy_loss", "constructor"))
    dash = serving(live.parent)
    page = opened(dash, f"/deployment/{folder_id(str(live))}")
    assert drawn(page) == [SCRIPT] and f"{SCRIPT}, 299 of 299" in page.inner_text("main")
    page = opened(dash, f"/run/{folder_id(str(run))}")
    assert {SCRIPT, "constructor"} <= set(drawn(page)) and page.locator("main img").count() == 0


def test_a_kill_switch_is_a_deployments_alone(serving, made):
    dash = serving(made)
    for name, path in (("night", "kill"), ("live", "flat")):
        code, _, text = dash.ask(
            f"/act/{folder_id(str(made / name))}/{path}", "POST", {"Origin": dash.url}
        )
        assert code == 409 and "neither" in text
        assert not (made / name / KILL).exists()
    code, _, _ = dash.ask(f"/act/{folder_id(str(made / 'live'))}/kill", "POST")
    assert code == 403 and not (made / "live" / KILL).exists()  # another page's form


def test_nothing_there_is_said(serving, tmp_path, opened):
    empty = write_run(tmp_path / "shown" / "new", members=1, iterations=0)
    (empty / "evaluations.csv").unlink(missing_ok=True)
    page = opened(serving(empty.parent), f"/run/{folder_id(str(empty))}")
    assert page.get_by_text("no data yet").count() >= 4


@pytest.mark.slow
def test_a_report_is_shown_in_place(serving, tmp_path, opened):
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=20, state="complete")
    (run / "report.html").write_text("<!doctype html><p>A report<script>alert(1)</script>")
    blocked = ("Blocked script execution", "Content Security Policy")  # as it is to be
    dash = serving(run.parent)
    page = opened(dash, f"/run/{folder_id(str(run))}", known=blocked)
    page.frame_locator("iframe").get_by_text("A report").wait_for()
    assert "CPU" in drawn(page)  # its one point is within the picture
    Image.new("L", (9, 9)).save(run / "own.gif")
    until(lambda: page.evaluate("document.querySelector('img.film')?.naturalWidth") == 9)
    study = write_study_folder(tmp_path / "shown" / "search", trials=6, state="complete")
    (study / "study.html").write_text("<!doctype html><p>A study<script>alert(1)</script>")
    page = opened(dash, f"/study/{folder_id(str(study))}", known=blocked)
    page.frame_locator("iframe").get_by_text("A study").wait_for()


@pytest.mark.slow
def test_a_reconnected_page_shows_everything_once(serving, tmp_path, opened):
    run = write_run(tmp_path / "shown" / "own", members=1, iterations=20)
    lost = ("net::ERR_INTERNET_DISCONNECTED",)
    page = opened(serving(run.parent), f"/run/{folder_id(str(run))}", known=lost)
    drawn(page)
    page.context.set_offline(True)
    add_rows(run, rows_of(1, 21, 31))
    page.wait_for_timeout(1_500)
    page.context.set_offline(False)
    page.wait_for_selector("#link:text-is('live')")
    points = "import('/static/chart.js').then((it) => [...it.CHARTS][0].last[0].length)"
    until(lambda: page.evaluate(points) >= 30)
    assert page.evaluate(points) == 30


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["overview", "run", "compare", "study", "deployment", "jobs"])
def test_each_page_fits_each_window(dash, made, opened, tmp_path, name, width, scheme):
    page = opened(dash, paths(made)[name], width, scheme)
    if name != "jobs":
        drawn(page)
    assert fits(page), "it must be scrolled sideways"
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(23, 23, 23)")
    page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overview", "run", "compare", "study", "deployment", "jobs"])
def test_a_keyboard_reaches_everything(dash, made, opened, name):
    page = opened(dash, paths(made)[name])
    page.wait_for_timeout(1_500)
    wanted = page.locator(
        "main :is(a, button, input, summary, iframe, [tabindex='0']):visible"
    ).count()
    reached = set()
    for _ in range(2 * wanted + 20):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "[...document.querySelectorAll('main *')].indexOf(document.activeElement)"
            )
        )
    assert len(reached - {-1}) >= wanted
