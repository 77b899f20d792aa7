"""Summary: what people see of an object where they write its name and nothing else."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Mapping


class Summarised:
    """An object with a line in Python and a small table in a notebook."""

    @abstractmethod
    def summary(self) -> Mapping[str, object]:
        """Facts by their name, the most telling first; None is left out."""

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
