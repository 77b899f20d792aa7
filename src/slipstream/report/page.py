"""A page: sentences, tables and pictures in sections, rendered into one self-contained file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from slipstream.report.canvas import png

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
    words: str
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
class Page:
    """The whole page: the headline first, what qualifies it next, then the sections."""

    title: str
    headline: str
    sentences: Sequence[str] = ()
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def picture(name: str, words: str, figure: Figure) -> Picture:
    """Draws a figure."""
    return Picture(name, words, png(figure))


def render(page: Page) -> str:
    """The page as HTML."""
    return _TEMPLATES.get_template("report.html.j2").render(page=page)


def write(page: Page, folder: Path, name: str = "report.html") -> Path:
    """Writes the page and `figures/*.png`; returns the page's path."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for section in page.sections:
        for shown in section.pictures:
            (folder / "figures" / f"{shown.name}.png").write_bytes(shown.png)
    path = folder / name
    path.write_text(render(page), encoding="utf-8")
    return path
