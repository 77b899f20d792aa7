"""A page: sentences, tables and pictures in sections, rendered into one self-contained file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from slipstream.core.storage.atomic_io import disk_errors, write_bytes, write_text
from slipstream.core.storage.csv_table import Row, csv_text
from slipstream.report.plot_style import png

_TEMPLATES = Environment(
    loader=PackageLoader("slipstream.report", "."),
    autoescape=True,  # every string on a page may come from a user
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, all others are right-aligned numbers.

    Attributes:
        emphasis: index of the row that is the agent's own, if any.
        note: a sentence below.
    """

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    emphasis: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG, its file name without ending and what it shows, in words."""

    name: str
    caption: str
    png: bytes

    @property
    def source(self) -> str:
        """The picture itself as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class KeyFigure:
    """One of the few figures of the first screen: what it is, its value, and what belongs to it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """The whole page, in the order in which it is read.

    Attributes:
        title: what was run.
        headline: the verdict, one short sentence.
        figures: four or five of them, in a row.
        picture: the one that shows the result.
        warnings: what must be known before the result is believed.
        sentences: the result in full.
        sections: all else.
        scores, limits: of a model card: figures by label, and sentences on what none is about.
    """

    title: str
    headline: str
    figures: Sequence[KeyFigure] = ()
    picture: Picture | None = None
    warnings: Sequence[str] = ()
    sentences: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)
    scores: Mapping[str, str] = field(default_factory=dict)
    limits: Sequence[str] = ()

    @property
    def pictures(self) -> list[Picture]:
        """All of them, in order."""
        first = [self.picture] if self.picture else []
        return first + [shown for section in self.sections for shown in section.pictures]

    @property
    def lines(self) -> list[str]:
        """Final lines of the terminal: the verdict and the warnings."""
        return [self.headline, *self.warnings]


def make_picture(name: str, words: str, figure: Figure) -> Picture:
    """Draw a figure."""
    return Picture(name, words, png(figure))


def render(page: Page) -> str:
    """Return the page as HTML."""
    return _TEMPLATES.get_template("report.html.j2").render(page=page)


def write_page(
    page: Page,
    folder: Path,
    name: str = "report.html",
    log: Callable[[str], None] | None = None,
    tables: Mapping[str, Sequence[Row]] | None = None,
) -> Path:
    """Write `figures/*.png`, tables and the page; returns the page's path.

    Args:
        page: what is written.
        folder: where.
        name: of the file.
        log: called with the lines above the sections, before files are written.
        tables: rows by the name of their file. The page is the last: what has it is reported.

    Raises:
        ResourceError: they cannot be written; a page that was there before is as it was.
    """
    if log is not None:
        for line in page.lines:
            log(line)
    figures, path = folder / "figures", folder / name
    with disk_errors(figures):
        figures.mkdir(parents=True, exist_ok=True)
    for shown in page.pictures:
        write_bytes(figures / f"{shown.name}.png", shown.png)
    for table, rows in (tables or {}).items():
        write_text(folder / table, csv_text(rows))
    write_text(path, render(page))
    return path
