"""What to say to a name that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing comes close."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The second half of a sentence that refuses `name`, with its full stop or question mark.

    Args:
        name: as it was written.
        known: what would have been understood, in the order in which it is listed.
        otherwise: said where nothing comes close, in place of the list of `known`.
    """
    names = list(known)
    guess = nearest(name, names)
    if guess:
        return f"did you mean `{guess}`?"
    return f"known: {', '.join(names) or 'none'}." if otherwise is None else otherwise
