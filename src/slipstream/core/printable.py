"""Text from outside (file names, cells) made safe to show in a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters and invisible ones written as escapes: ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(printable(line) for line in text.split("\n"))
