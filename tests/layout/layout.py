"""The import graph of src/, and the imports that the tiers of ARCHITECTURE.md do not allow.

::

    python tests/layout/layout.py            print today's crossing imports and closures
    python tests/layout/layout.py record     write crossing.txt and closures.json, which only shrink

An import crosses if it
points from the engine to an application or an interface, from one application to another one, from
an interface to an application (plugins do that), up within the engine, or to `compat`, which may
itself import everything. Imports in functions and for types count too.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
CROSSING, CLOSURES = HERE / "crossing.txt", HERE / "closures.json"

# Each imports from those before it.
ENGINE = ("core", "jit", "kernels", "rl", "training", "gym", "studies", "report")
APPLICATIONS = ("markets", "games")
INTERFACES = ("adapters", "compat", "jobs", "dashboard", "api", "cli")

FOLDERS: Mapping[str, str] = {"": "api", "__main__": "cli", "portable": "rl"}
"""Modules that are in no folder, and the folder whose rules they follow."""

ROOM = 250  # lines to which a recorded closure is rounded up, so that a repair fits
STARTS = ("training.settings.config", "training.trainer", "cli.commands.train")


@cache
def modules() -> Mapping[str, Path]:
    """Files by module, without `slipstream.` before it."""
    found = {}
    for path in sorted((SOURCE / "slipstream").rglob("*.py")):
        parts = path.relative_to(SOURCE / "slipstream").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that one imports, anywhere in it."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(known[module].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {_inside(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            above = _inside(node.module)
            names = {f"{above}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {name if name in known else above for name in names} if above != "?" else set()
    return frozenset(found & known.keys())


def folder_of(module: str) -> str:
    """The folder of a module."""
    return FOLDERS.get(module) or module.partition(".")[0]


def crossing() -> Iterator[str]:
    """Imports that cross the tiers, as ``module -> module``."""
    for module in modules():
        for other in sorted(imports(module)):
            if _crosses(folder_of(module), folder_of(other)):
                yield f"{module} -> {other}"


def closure(start: str) -> tuple[int, int]:
    """How many other files a module reaches, and their lines of code with its own."""
    seen, waiting = set[str](), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += imports(module)
    return len(seen) - 1, sum(map(lines, seen - {start}))


@cache
def lines(module: str) -> int:
    """Lines of code: no blanks, comments or docstrings."""
    text = modules()[module].read_text("utf-8")
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and ast.get_docstring(_owner(node)) is not None:
            found -= set(range(body[0].lineno, body[0].end_lineno + 1))
    return len(found)


def _owner(node: ast.AST) -> ast.Module:
    documented = isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    )
    return ast.Module(node.body if documented else [], [])  # type: ignore[attr-defined]


def _inside(name: str) -> str:
    """A module's name without the package; "?" for those of other packages."""
    top, _, rest = name.partition(".")
    return rest if top == "slipstream" else "?"


def _crosses(importer: str, imported: str) -> bool:
    if importer in (imported, "compat"):
        return False
    if importer in ENGINE:
        return imported not in ENGINE or ENGINE.index(imported) > ENGINE.index(importer)
    if importer in APPLICATIONS:
        return imported not in ENGINE
    return imported in (*APPLICATIONS, "compat")


def _main(words: list[str]) -> None:
    found = sorted(crossing())
    reached = {start: closure(start) for start in STARTS}
    if words == ["record"]:
        CROSSING.write_text("".join(f"{one}\n" for one in found), "utf-8")
        most = {start: [files, -(-size // ROOM) * ROOM] for start, (files, size) in reached.items()}
        CLOSURES.write_text(json.dumps(most, indent=1) + "\n", "utf-8")
    elif words:
        raise SystemExit(__doc__)
    else:
        print("\n".join((*found, f"{len(found)} imports cross", json.dumps(reached))))


if __name__ == "__main__":
    _main(sys.argv[1:])
