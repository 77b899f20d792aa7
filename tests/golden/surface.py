"""What users of this tree can call, read and paste: helps, Python names, files and their keys.

::

    python tests/golden/surface.py                  print this tree's surface as JSON
    python tests/golden/surface.py compare TREE     print what differs from another tree

Everything is found from outside: by `--help`, by `import slipstream`, and in the files of a run, a
study and a deployment. One script therefore serves trees that are laid out differently.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import inspect
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors
import yaml

sys.path.insert(0, str(Path(__file__).parent))
import golden


def helps() -> Iterator[tuple[str, str]]:
    """(command, its help) of every command, those of groups included."""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        words = waiting.pop(0)
        text = _printed(*words, "--help")
        yield " ".join(("slipstream", *words)), text
        for section in text.split("\n\n"):
            title, _, rows = section.partition(":\n")
            if rows and title not in ("Options", "Arguments"):
                found = re.findall(r"^  (\w\S*)", rows, re.MULTILINE)
                waiting += [(*words, name) for name in found]


def names() -> Iterator[tuple[str, str]]:
    """(name, signature) of the public names, and of their public methods."""
    import slipstream

    for name in sorted(set(dir(slipstream))):
        if name.startswith("_"):
            continue
        found = getattr(slipstream, name)
        yield name, _signature(found)
        if inspect.isclass(found):
            for key, _ in inspect.getmembers(found):
                if not key.startswith("_"):
                    yield f"{name}.{key}", _signature(inspect.getattr_static(found, key))


def folders() -> Iterator[tuple[str, str]]:
    """(file, its keys) of a run, a study and a deployment."""
    with tempfile.TemporaryDirectory() as made:
        for case in (golden.dqn, golden.study, golden.paper_account):
            folder = Path(made) / case.__name__
            folder.mkdir()
            case(folder)
            for path in sorted(folder.rglob("*")):
                name = _without_numbers(str(path.relative_to(folder)))
                if path.is_file() and not name.startswith(("market/", "newer/")):
                    yield f"{case.__name__}/{name}", _keys(path)


def surface() -> dict[str, dict[str, str]]:
    """The whole of it."""
    return {"helps": dict(helps()), "names": dict(names()), "folders": dict(folders())}


def _printed(*words: str) -> str:
    from slipstream.cli import main

    out = io.StringIO()
    before, sys.argv = sys.argv, ["slipstream", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    return out.getvalue()


def _signature(found: Any) -> str:
    if isinstance(found, property):
        return "property"
    found = getattr(found, "__func__", found)
    if not callable(found):
        return type(found).__name__
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(found)))
    except ValueError:
        return "(...)"


def _keys(path: Path) -> str:
    """Keys of a file whose format has any."""
    if path.suffix in (".json", ".yaml"):
        return " ".join(sorted(set(_paths(yaml.safe_load(path.read_text())))))
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        return " ".join(sorted({key for line in lines for key in _paths(line)}))
    if path.suffix == ".csv":
        return " ".join(next(csv.reader(path.open()), []))
    if path.suffix == ".safetensors":
        with safetensors.safe_open(path, "numpy") as file:
            return " ".join(sorted({_without_numbers(key) for key in file.keys()}))  # noqa: SIM118 - no iterator
    if path.suffix == ".db":
        connection = sqlite3.connect(path)
        try:
            tables = connection.execute("SELECT sql FROM sqlite_master ORDER BY name")
            return " ".join(str(row[0]) for row in tables)
        finally:
            connection.close()
    return ""


def _without_numbers(name: str) -> str:
    return re.sub(r"[0-9a-f]{8,}|[0-9]+", "N", name)


def _paths(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            if key != "sources":  # module names: a layout is no part of the surface
                yield from _paths(one, f"{above}.{_without_numbers(str(key))}")
    elif isinstance(value, list):
        for one in value:
            yield from _paths(one, above)
    yield above


def _of(tree: Path) -> dict[str, dict[str, str]]:
    source = (tree / "src").resolve()
    if not (source / "slipstream").is_dir():
        raise SystemExit(f"{tree} is no tree of slipstream: it has no src/slipstream.")
    path = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, __file__]
    done = subprocess.run(command, env=path, check=True, stdout=subprocess.PIPE)
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


def _main(words: list[str]) -> None:
    if not words:
        print(json.dumps(surface(), indent=1, sort_keys=True))
    elif len(words) == 2 and words[0] == "compare":
        here, there = (
            json.dumps(one, indent=1, sort_keys=True) for one in (surface(), _of(Path(words[1])))
        )
        lines = list(
            difflib.unified_diff(there.splitlines(), here.splitlines(), "there", "here", "", "", 0)
        )
        print("\n".join(lines) or "nothing differs")
        sys.exit(bool(lines))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    _main(sys.argv[1:])
