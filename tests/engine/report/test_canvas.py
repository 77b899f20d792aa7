"""What all pictures share: exact dates on axes, user's names as they are, small files."""

import numpy as np
import pytest

from slipstream.report import plot_style
from slipstream.report.plot_style import DateLabels, dates, legend, png, time_axis


def labels(first, last):
    """What a reader sees below the axis, and in its corner."""
    figure, (axes,) = plot_style.new_figure("", 2.0)
    when = np.array([np.datetime64(first, "s"), np.datetime64(last, "s")]).astype(np.int64)
    axes.plot(dates(when), [0.0, 1.0])
    time_axis(axes)
    png(figure)
    low, high = axes.get_xlim()
    shown = zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)
    return [text.get_text() for text, at in shown if low <= at <= high], axes


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("2017-11-01", "2017-12-29", ["1 Nov\n2017", "15 Nov", "1 Dec", "15 Dec"]),
        ("2017-11-03", "2017-11-30T22:00", ["8 Nov\n2017", "15 Nov", "22 Nov"]),
        ("2017-09-01", "2018-01-05", ["Sep\n2017", "Oct", "Nov", "Dec", "Jan\n2018"]),
        ("2015-01-01", "2024-12-31", ["2016", "2018", "2020", "2022", "2024"]),
        ("2017-12-31T12:00", "2018-01-01T06:00", None),
        ("2017-11-01T01:00", "2017-11-01T03:00", None),
    ],
)
def test_a_date_axis_names_the_year_that_it_shows(first, last, expected):
    found, axes = labels(first, last)
    assert axes.xaxis.get_offset_text().get_text() == ""
    if expected is not None:
        assert found == expected
    years = {text.rsplit("\n")[-1].split(" ")[-1] for text in found if text[-4:].isdigit()}
    assert years <= {str(year) for year in range(int(first[:4]), int(last[:4]) + 1)} and years


def test_hours_name_their_day_where_it_changes():
    found, _ = labels("2017-12-31T12:00", "2018-01-01T12:00")
    below = [text.split("\n")[1] for text in found if "\n" in text]
    assert below == ["31 Dec 2017", "1 Jan 2018"]
    assert all(text.split("\n")[0].endswith(":00") for text in found)


def test_nothing_beyond_the_data_is_labelled():
    """The year of a tick out of sight stood in the corner: 2018-Jan below November 2017."""
    for first, last in (("2017-10-20", "2017-12-31T21:00"), ("2017-02-01", "2017-12-31T21:00")):
        found, _ = labels(first, last)
        assert not any("2018" in text for text in found)
        assert "2017" in found[0]


def test_a_tick_alone_has_a_label():
    assert DateLabels()(0.0) == "1970"


def test_names_of_users_are_no_mathematics():
    figure, (axes,) = plot_style.new_figure("$EUR_{USD}$ and $\\frac", 2.0)
    axes.plot([0.0, 1.0], [0.0, 1.0], label="A$B_{$ \u6771")
    axes.set_ylabel("$x^$")
    legend(axes)
    assert len(png(figure)) > 1_000  # as mathematics it raises


@pytest.mark.parametrize(
    ("value", "label"),
    [(0.0, "0 %"), (0.025, "2.5 %"), (-0.5, "-50 %"), (10.0, "1,000 %"), (100.0, "10,000 %")],
)
def test_percent_labels_are_written_out(value, label):
    assert plot_style.format_percent_label(value) == label
