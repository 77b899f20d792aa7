"""Study report of hold-out days that were opened before."""

import re

import numpy as np
import pytest
import study_world

from slipstream.core.storage import folder_registry
from slipstream.markets.evaluation import holdout_register
from slipstream.markets.evaluation.holdout_register import PriceRegister, PriceSeries
from slipstream.report.page import render
from slipstream.report.study.study_page import study_page
from slipstream.report.study.study_view import read_view


class GivenPrices(PriceRegister):
    """Register of prices that a test makes."""

    def __init__(self, prices):
        super().__init__(None)
        self._given = prices

    def prices(self, split, window=None):
        return self._given


def text_of(page):
    return re.sub(r"<[^>]*>|\s+", " ", render(page))


@pytest.mark.slow
def test_of_two_studies_over_the_same_prices_one_is_the_first(tmp_path, monkeypatch):
    """The issue's case: both were "first opening, promoted"; and a test split had shown days."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first = study_world.FIRST + 4 * study_world.DAYS
    days = np.arange(first, first + study_world.HOLDOUT)
    prices = [PriceSeries.from_returns(days, np.random.default_rng(9).normal(0.0, 0.01, len(days)))]
    entry = ("run runs/early:test", "look", "run runs/early", 1.8e9)
    with holdout_register._register(
        folder_registry.state_folder("holdouts") / holdout_register.FILE
    ) as db:
        holdout_register._record(db, entry, prices)
    for number in (1, 2):
        name = f"{tmp_path}/folder{number}/study{number}"
        folder = study_world.run_study(name, trials=20, skill=0.01, register=GivenPrices(prices))
        view, told = read_view(folder), folder.result["sentences"]
        text, holdout = text_of(study_page(view)), folder.result["holdout"]
        assert holdout["opening"] == number and holdout["promoted"] == (number == 1)
        assert ("profitable" in text) is False  # its random traders are not known
        looked = "Outcomes on some of these days were shown before: run runs/early (2027-01-15)."
        assert looked in text and looked in told
    sentence = f"This is opening 2 of these hold-out days, after study {tmp_path}/folder1/study1 ("
    assert told[0].startswith(sentence) and told[0] in text
    assert "Bounds are of the 0 days left." in told[0]
    findable = folder.result["detectable"]["holdout"]  # by the same days
    assert findable["span"] == "0 days" and findable["sharpe"] is None
    unpromoted = "Not promoted: 0 fresh days are too few for a bound, which needs 60."
    assert unpromoted in told and unpromoted in text


def test_without_a_register_nothing_is_promoted(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    prices = [
        PriceSeries.from_returns(np.arange(100), np.random.default_rng(9).normal(0.0, 0.01, 100))
    ]
    folder = study_world.run_study(
        tmp_path / "one", trials=20, skill=0.01, register=GivenPrices(prices)
    )
    assert not folder.result["holdout"]["promoted"]
    told = folder.result["sentences"]
    assert "Not promoted: it is unknown whether these days were opened before." in told
    assert any("Set XDG_STATE_HOME to a writable folder" in text for text in told)
    assert not any("first opening" in text for text in told)
