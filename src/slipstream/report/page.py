"""Page: sentences, tables and pictures in sections, rendered into one self-contained file."""

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
    autoescape=True,  # any string on a page may come from a user
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Table:
    """Table of text cells; the first column labels the rows, the others are right-aligned numbers.

    Attributes:
        emphasis: index of the agent's row, if there is one.
        note: sentence below the table.
    """

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    emphasis: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """PNG image with its file name (without suffix) and caption."""

    name: str
    caption: str
    png: bytes

    @property
    def source(self) -> str:
        """Data URI of the image."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Section:
    """Section of a page."""

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class KeyFigure:
    """Key figure of the first screen: label, value and note."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Page:
    """A page, in reading order.

    Attributes:
        title: title of the page.
        headline: verdict in one short sentence.
        figures: four or five key figures in a row.
        picture: main picture.
        warnings: warnings that qualify the result.
        sentences: full description of the result.
        sections: further sections.
        scores, limits: figures by label and limitations, for a model card.
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
        """All pictures, in order."""
        first = [self.picture] if self.picture else []
        return first + [shown for section in self.sections for shown in section.pictures]

    @property
    def lines(self) -> list[str]:
        """Lines for the terminal: verdict and warnings."""
        return [self.headline, *self.warnings]


def make_picture(name: str, words: str, figure: Figure) -> Picture:
    """Render a figure as PNG."""
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
    """Write `figures/*.png`, tables and the page; return the page's path.

    Args:
        page: page to write.
        folder: target folder.
        name: file name of the page.
        log: called with the lines above the sections, before files are written.
        tables: rows by file name. The page is written last and marks the report as complete.

    Raises:
        ResourceError: a file cannot be written; an existing page is unchanged.
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
