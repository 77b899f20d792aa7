"""Text formatting: escaping, suggestions, counts, numbers, times."""

from __future__ import annotations

import difflib
import html
import math
import re
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from slipstream.core.errors import ConfigError
from slipstream.core.field_names import field_name

NOTHING = "n/a"
# Pydantic's wording of a problem, and ours.
_VALIDATION_WORDS = (
    (r"^Value error, |\.$", ""),
    (r"^(Input|Value) should ", "must "),
    (r"^String should match pattern '\^\(cpu.*", "must be cpu, cuda or cuda:N"),
    (r"^String should match pattern", "must match the pattern"),
    (r", unable to (parse|interpret) .*", ""),
    (r", got a number with a fractional part", ""),
    (r"\ba valid (dictionary|mapping).*", "a mapping"),
    (r"\ba valid (tuple|list)", "a list"),  # the YAML term
    (r"\ba valid integer", "an integer"),
    (r"\ba valid (number|boolean|string|date)", r"a \1"),
    (r"must be greater than or equal to", "must be at least"),
    (r"must be less than or equal to", "must be at most"),
)
_LARGE = 1e6  # percent; larger values use scientific notation


def printable(text: str) -> str:
    """Return `text` with control characters and invisible ones as escapes: ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def validation_message(text: str) -> str:
    """Return a message of Pydantic as the predicate of an error: `must be at least 1`."""
    for pattern, replacement in _VALIDATION_WORDS:
        text = re.sub(pattern, replacement, text)
    return text


def printable_lines(text: str) -> str:
    """Escape control characters but keep line breaks."""
    return "\n".join(printable(line) for line in text.split("\n"))


def as_utf8(text: str) -> str:
    """Return a path or text with bytes that the locale could not decode read as UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def invalid_path_message(path: str) -> str:
    """Return the error message for a path that is not valid in the file system's encoding."""
    encoding = sys.getfilesystemencoding()
    remedy = "Rename it." if encoding == "utf-8" else "Set PYTHONUTF8=1 and run the command again."
    return f"The path {path[:500]} is not {encoding} text and cannot be used here. {remedy}"


def print_to_stderr(text: str) -> None:
    """Print a message to standard error."""
    print(printable_lines(text), file=sys.stderr)


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Return a count with its noun: ``1 bar``, ``1,204 bars``, ``2 losses``."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def truncate_list(names: Sequence[str], most: int = 5) -> str:
    """Return the first names and how many more there are: ``a, b and 3 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def date_text(second: float) -> str:
    """Return the UTC date of a moment: ``2023-03-24``."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d")


def stamp(second: int) -> str:
    """Return the UTC minute of a moment: ``2023-03-24 12:35``."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M")


def parse_utc(text: str | None) -> int | None:
    """Return UTC seconds of an ISO date or time; without a time zone it is UTC."""
    if text is None:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a date: write 2024-01-31 or 2024-01-31T12:00."
        ) from None
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp())


def span(days: int, per_year: float) -> str:
    """Return a time span: "1.16 years", or below a year "42 trading days" (24/7: "42 days")."""
    if days >= per_year:
        return f"{days / per_year:.2f} years"
    kind = "day" if per_year >= 365.0 else "trading day"
    return f"{days} {kind}{'' if days == 1 else 's'}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a fraction as "+2.0 %": always signed, never "-0.0", scientific from a million on."""
    if value is None or not math.isfinite(value):
        return NOTHING
    hundred = 100.0 * value
    if abs(hundred) >= _LARGE:
        return f"{hundred:+.{digits}e} %"
    text = f"{hundred:+,.{digits}f}"
    if not any(c in text for c in "123456789"):
        text = text.replace("-", "+")
    return f"{text} %"


def closest_match(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`, or None below the similarity `cutoff`."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the suggestion that ends an error message about `name`.

    Args:
        name: as the user wrote it.
        known: valid names, in the order in which they are listed.
        otherwise: text if nothing is similar, in place of the list of `known`.
    """
    names = list(known)
    guess = field_name(name, names) or closest_match(name, names)
    if guess:
        return f"did you mean `{guess}`?"
    return f"known: {', '.join(names) or 'none'}." if otherwise is None else otherwise


class SummaryRepr:
    """Mixin with a one-line `repr` and a small table in notebooks."""

    @abstractmethod
    def summary(self) -> Mapping[str, object]:
        """Return properties by name, the most important first; None values are omitted."""

    def _told(self) -> dict[str, str]:
        return {name: str(fact) for name, fact in self.summary().items() if fact is not None}

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self._told().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(fact)}</td></tr>"
            for name, fact in self._told().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"


def log_time(at: float) -> str:
    """Format UTC seconds as at the start of log lines."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
    except (OverflowError, ValueError, OSError):  # from a damaged file
        return "at some time"


def mean_low_high(values: Iterable[float]) -> tuple[float, float, float] | None:
    """Return mean, minimum and maximum of the finite values; None if there are none."""
    finite = [float(value) for value in values if math.isfinite(value)]
    return (sum(finite) / len(finite), min(finite), max(finite)) if finite else None


def mean_and_range(values: Iterable[float]) -> str:
    """Format one value, or mean and range; ``-`` without values."""
    return range_text(mean_low_high(values) or ())


def format_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], left: int | None = None
) -> list[str]:
    """Return lines of a table without a frame; empty columns are omitted.

    Args:
        names: headings.
        rows: cells of each row.
        left: number of left-aligned columns, before right-aligned ones; None: all.
    """
    lines = [tuple(names), *(tuple(map(printable, row)) for row in rows)]
    used = [k for k in range(len(names)) if any(row[k] for row in lines[1:])]
    widths = {k: max(len(row[k]) for row in lines) for k in used}
    count = len(names) if left is None else left

    def cell(row: Sequence[str], k: int) -> str:
        return row[k].ljust(widths[k]) if k < count else row[k].rjust(widths[k])

    return ["  ".join(cell(row, k) for k in used).rstrip() for row in lines]


def format_significant(value: float) -> str:
    """Format four significant digits, all digits of large numbers."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def format_count(value: float) -> str:
    """Format a count: ``950``, ``118 k``, ``1.24 M``."""
    if value < 1_000:
        return f"{value:.0f}"
    return f"{value / 1e3:.0f} k" if value < 1e6 else f"{value / 1e6:.2f} M"


def duration(seconds: float) -> str:
    """Format a duration: ``0:12`` or ``1:02:03``."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, rest_minutes = divmod(minutes, 60)
    return f"{hours}:{rest_minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def range_text(values: Sequence[float]) -> str:
    """Format mean and range of [mean, lowest, highest]; ``-`` for an empty sequence."""
    if not values:
        return "-"
    mean, lowest, highest = (
        format_significant(value) for value in (values[0], min(values), max(values))
    )
    return mean if lowest == highest else f"{mean} ({lowest} to {highest})"
