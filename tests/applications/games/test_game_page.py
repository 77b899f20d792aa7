"""The page of a game of two: who was beaten comes first."""

from __future__ import annotations

import numpy as np

from slipstream.games.report import Outcomes, with_games
from slipstream.report.page import KeyFigure, Page, Section

SECTIONS = (Section("Result"), Section("Provenance"))


def test_a_game_of_two_is_headed_by_who_was_beaten():
    none = np.empty(0), np.empty((0, 3))
    met = (Outcomes("weak", 17, 1, 2, *none), Outcomes("strong", 8, 4, 8, *none))
    run = Page("run", "Mean return 19.5.", [KeyFigure("Mean return", "19.5")], sections=SECTIONS)
    page = with_games(run, met)
    assert page.headline == (
        "Wins 85 % of 20 fresh games against weak, 40 % of 20 fresh games against strong."
    )
    first = page.figures[0]
    assert (first.label, first.value, first.note) == ("Won against weak", "85 %", "64 to 95 %")
    assert page.figures[-1] == run.figures[0]
    assert [one.title for one in page.sections] == ["Result", "Games", "Provenance"]
    assert page.limits == ["Opponents other than weak and strong were not tested."]
