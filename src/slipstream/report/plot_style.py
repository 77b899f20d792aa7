"""Style of all figures: palette, canvas, and axes for times, percentages and counts."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, num2date
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import Formatter, FuncFormatter
from numpy.typing import NDArray

from slipstream.report.statistics import Floats, Ints

# Okabe and Ito's palette: safe for all common kinds of colour blindness, and in grey.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
PURPLE, SKY, VERMILION = "#CC79A7", "#56B4E9", "#D55E00"
INK, GREY, PALE = "#222222", "#8A8F98", "#D9DCE1"
LINES = (ORANGE, GREEN, PURPLE, SKY)
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))
WIDTH = 6.8  # inches; large letters stay readable at half the size, as on a phone
MOST_POINTS = 3_000
STEEP = 20.0  # growth above which a curve is logarithmic
DPI = 160
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_STYLE: Any = {
    "font.size": 10.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "axes.unicode_minus": False,  # the minus sign of the page's text
    "text.parse_math": False,  # a symbol may contain dollar signs
}


def new_figure(
    title: str, height: float, ratios: Sequence[float] = (1.0,), *, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with one column of panels.

    Args:
        title: title of the figure.
        height: height in inches.
        ratios: relative panel heights.
        share: share the x axis.
    """
    panels = {"height_ratios": list(ratios)}
    return _figure(title, height, len(ratios), 1, sharex=share, gridspec_kw=panels)


def new_grid(
    title: str, height: float, rows: int, columns: int, share: str = "y"
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with a grid of panels that share their y axis or x axis."""
    return _figure(title, height, rows, columns, sharex=share == "x", sharey=share == "y")


def _figure(
    title: str, height: float, rows: int, columns: int, **options: Any
) -> tuple[Figure, list[Axes]]:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False, **options)
    figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    return figure, list(panels.ravel())


def png(figure: Figure) -> bytes:
    """Return the bytes of the picture without a timestamp: equal reports are equal files."""
    buffer = io.BytesIO()
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph"
        )  # a name in a script that no font supports
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": "slipstream"})
    return buffer.getvalue()


def downsample(values: Floats) -> NDArray[np.int64]:
    """Return about 3,000 indices that keep the lowest and highest value of each interval."""
    n = len(values)
    if n <= MOST_POINTS:
        return np.arange(n)
    width = -(-2 * n // MOST_POINTS)
    rows = -(-n // width)
    table = np.concatenate([values, np.full(rows * width - n, values[-1])]).reshape(rows, width)
    first = np.arange(rows) * width
    indices = np.concatenate(
        [[0, n - 1], first + table.argmin(axis=1), first + table.argmax(axis=1)]
    )
    return np.unique(np.minimum(indices, n - 1))


def dates(time: Ints) -> NDArray[np.datetime64]:
    """Convert UTC seconds to Matplotlib dates."""
    return time.astype("datetime64[s]")


class DateLabels(Formatter):
    """Formatter of ticks by hour, day, month or year; a larger unit is below if it changes.

    Matplotlib's concise labels put the year of the last tick, even an invisible one, at the corner:
    November 2017 was labelled 2018.
    """

    def __call__(self, value: float, pos: int | None = None) -> str:
        """Return the label of a single tick."""
        return self.format_ticks([value])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks; invisible ticks have none."""
        low, high = sorted(self.axis.get_view_interval()) if self.axis else (-np.inf, np.inf)
        seen = [k for k, value in enumerate(values) if low <= value <= high]
        moments = [_minute(values[k]) for k in seen]
        fine, coarse = _patterns(moments)
        labels, before = [""] * len(values), ""
        for k, moment in zip(seen, moments, strict=True):
            below = _text(moment, coarse)
            labels[k] = _text(moment, fine) + (f"\n{below}" if below != before else "")
            before = below
        return labels


def two_line_date(seconds: int) -> str:
    """Format a time on two lines."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return _text(moment, "{day} {month} {year}\n{hour}")


def _minute(value: float) -> datetime:
    """Return the time of a tick, rounded because tick positions are off by microseconds."""
    seconds = round(num2date(value, UTC).timestamp() / 60.0) * 60
    return datetime.fromtimestamp(seconds, UTC)


def _patterns(moments: Sequence[datetime]) -> tuple[str, str]:
    """Return the formats of the tick labels and of the label below them."""
    if any(moment.hour or moment.minute for moment in moments):
        return "{hour}", "{day} {month} {year}"
    if any(moment.day > 1 for moment in moments):
        return "{day} {month}", "{year}"
    if any(moment.month > 1 for moment in moments):
        return "{month}", "{year}"
    return "{year}", ""


def _text(moment: datetime, pattern: str) -> str:
    return pattern.format(
        hour=f"{moment.hour:02d}:{moment.minute:02d}",
        day=moment.day,
        month=MONTHS[moment.month - 1],
        year=moment.year,
    )


def time_axis(axes: Axes) -> None:
    """Label an axis with a few short UTC dates; axis and labels end with the data."""
    for panel in axes.get_shared_x_axes().get_siblings(axes):
        panel.margins(x=0.0)
    axes.xaxis.set_major_locator(AutoDateLocator(tz=UTC, minticks=3, maxticks=7))
    axes.xaxis.set_major_formatter(DateLabels())


def growth_axis(axes: Axes) -> None:
    """Plot the return since the start; steep curves use a logarithmic axis."""
    top = float(axes.dataLim.y1)
    if STEEP < top < np.inf:
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylim(-1.0, 3.0 * top)
        decades = math.ceil(math.log10(top))
        stride = -(-decades // 6)
        lowest = 0 if stride == 1 else stride
        axes.set_yticks([0.0, *(10.0**k for k in range(lowest, decades + 1, stride))])
    axes.set_ylabel("return")
    percent_axis(axes)


def percent_axis(axes: Axes, axis: str = "y") -> None:
    """Label an axis of fractions in percent."""
    target = axes.yaxis if axis == "y" else axes.xaxis
    target.set_major_formatter(FuncFormatter(lambda v, _: format_percent_label(float(v))))


def format_percent_label(value: float) -> str:
    """Format a fraction as "2.5 %" or "10,000 %", with powers of ten from a billion on."""
    shown = 100.0 * value + 0.0
    return f"{shown:,.0f} %" if 1e3 <= abs(shown) < 1e9 else f"{shown:.4g} %"


def count_axis(axes: Axes, axis: str = "x") -> None:
    """Label an axis of counts, such as steps, with short numbers."""
    target = axes.yaxis if axis == "y" else axes.xaxis
    target.set_major_formatter(FuncFormatter(format_count))


def format_count(value: float, _: object) -> str:
    """Return a count as short text: "1.5 M"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {letter}"
    return f"{value:g}"


def legend(axes: Axes, columns: int = 4) -> None:
    """Add a legend above the panel."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.98),
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.3,
        handlelength=1.7,
        frameon=False,
        fontsize=9.5,
    )
