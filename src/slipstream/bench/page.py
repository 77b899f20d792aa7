"""Writes the tables and pictures of a page: ``python -m slipstream.bench.page PAGE RESULTS``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.bench.table import markdown

# <!-- results/env.json --> ... <!-- end -->: what stands between is replaced.
_MARK = re.compile(r"(<!-- results/(?P<file>[\w-]+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)

# <!-- figure results/vector.json throughput --> ... <!-- end -->: a picture of that file's rows.
_FIGURE = re.compile(
    r"(<!-- figure results/(?P<file>[\w-]+)\.json (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL
)


def render(page: str, results: Path) -> str:
    """The page with each marked place filled from its file; places whose file is absent say so."""

    def filled(match: re.Match[str]) -> str:
        path = results / match["file"]
        body = _section(json.loads(path.read_text())) if path.is_file() else "Not measured yet."
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return _MARK.sub(filled, page)


def _section(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    facts = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Python {machine['python']}; {machine['date']}{_commit(result)}; "
        f"`{result['command']}`. {versions}."
    )
    return f"{markdown(result['rows'])}\n\n{facts}"


def _commit(result: Mapping[str, Any]) -> str:
    head, dash, dirty = (result.get("commit") or "").partition("-")
    return f" at {head[:7]}{dash}{dirty}" if head else ""


def illustrate(page: str, results: Path, folder: Path) -> str:
    """The page with its pictures, drawn into `folder`; places without measurements say so."""

    def drawn(match: re.Match[str]) -> str:
        from slipstream.bench.vector_figures import FIGURES

        words, draw = FIGURES[match["name"]]
        path = results / f"{match['file']}.json"
        figure = draw(json.loads(path.read_text())["rows"]) if path.is_file() else None
        body = "Not measured yet."
        if figure is not None:
            from slipstream.report.canvas import png

            name = f"{match['file']}-{match['name']}.png"
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(png(figure))
            body = f"![{words}]({folder.name}/{name})"
        return f"{match[1]}\n{body}\n\n{match[4]}"

    return _FIGURE.sub(drawn, page)


def main(page: str, results: str) -> None:
    """Rewrites the page in place; pictures go into the folder `figures` beside it."""
    path, files = Path(page), Path(results)
    text = render(path.read_text(encoding="utf-8"), files)
    text = illustrate(text, files, path.parent / "figures")
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
