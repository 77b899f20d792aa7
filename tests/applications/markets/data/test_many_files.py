"""Each of many small files costs little: formats that cannot win are not tried."""

from __future__ import annotations

import polars as pl

from slipstream.markets.data import timestamps


def test_a_format_that_fits_every_row_ends_the_search(monkeypatch):
    tried = []
    fits = timestamps._fits
    monkeypatch.setattr(timestamps, "_fits", lambda *given: tried.append(given[1]) or fits(*given))
    found = timestamps._parse_text(
        pl.Series(["2022-01-03", "2022-01-04"]), None, False, None, "file"
    )
    assert [str(day.date()) for day in found] == ["2022-01-03", "2022-01-04"]
    assert 0 < len(tried) < 60  # of more than 200
