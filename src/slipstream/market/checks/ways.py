"""Ways out: what a user may write in the `data` section so that everything that stops is mended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.market.catalogue import CATALOGUE
from slipstream.market.config import DataConfig
from slipstream.market.finding import Finding, Remedy

_BY_SYMBOL = ("price_scale", "point")


def ways_out(
    findings: Sequence[Finding], config: DataConfig, files: Mapping[str, Path]
) -> tuple[Remedy, ...]:
    """Alternatives for all findings that stop loading, complete: they replace keys of `config`.

    Args:
        findings: of all symbols.
        config: what the remedies are written into.
        files: of the symbols that are loaded.
    """
    stops = [finding for finding in findings if finding.severity == "error"]
    ways: list[Remedy] = []

    def add(found: Remedy | None) -> None:
        way = complete(found or {}, config, files)
        if way and way not in ways:
            ways.append(way)

    for k in range(max((len(one.remedies) for one in stops), default=0)):
        add(merged(one.remedies[min(k, len(one.remedies) - 1)] for one in stops if one.remedies))
    accepted = tuple(dict.fromkeys(one.kind for one in stops if CATALOGUE[one.kind].acceptable))
    if accepted:
        others = [one.remedies[0] for one in stops if one.remedies and one.kind not in accepted]
        if complete(merged(others) or {}, config, files) not in ways:  # which mends them, too
            add(merged([*others, {"accept": [*config.accept, *accepted]}]))
    return tuple(ways)


def complete(found: Remedy, config: DataConfig, files: Mapping[str, Path]) -> dict[str, Any]:
    """A remedy together with what the keys that it replaces say already."""
    way: dict[str, Any] = {}
    for key, value in found.items():
        before = getattr(config, key)
        if key == "files":
            way |= _renamed(value, config, files)
        elif not isinstance(value, Mapping):
            way[key] = value
        elif isinstance(before, dict):  # None takes an entry out
            both = {**before, **value}
            way[key] = {name: one for name, one in both.items() if one is not None}
        elif key in _BY_SYMBOL and before is not None and before != 1.0:
            way[key] = {**dict.fromkeys(files, before), **value}
        else:
            way[key] = value
    return way


def _renamed(
    value: Mapping[str, str], config: DataConfig, files: Mapping[str, Path]
) -> dict[str, Any]:
    """`files` that give some files new names, and keep the others of the folder."""
    kept = {s: path.name for s, path in files.items() if path.name not in value.values()}
    way: dict[str, Any] = {"files": {**kept, **value}}
    if config.symbols is not None:
        way["symbols"] = [s for s in config.symbols if s in way["files"]]
        way["symbols"] += [s for s in value if s not in way["symbols"]]
    return way


def merged(remedies: Iterable[Remedy]) -> dict[str, Any] | None:
    """All of them at once, `symbols` those that all name; None where two contradict each other."""
    result: dict[str, Any] = {}
    for remedy in remedies:
        for key, value in remedy.items():
            before: Any = result.get(key, value)
            if key == "symbols":
                result[key] = [name for name in before if name in value]
            elif _differ(before, value):
                return None
            else:
                result[key] = {**before, **value} if isinstance(value, Mapping) else value
    return None if result.get("symbols") == [] else result


def revokes(remedy: Remedy, way: Remedy) -> bool:
    """Whether a remedy gives a key that `way` sets another value; fewer symbols are none."""
    for key in remedy.keys() & way.keys() - {"symbols", "files"}:
        mappings = isinstance(remedy[key], Mapping) and isinstance(way[key], Mapping)
        if not mappings or _differ(way[key], remedy[key]):
            return True
    return False


def _differ(old: Any, new: Any) -> bool:
    """Whether two values contradict each other; mappings where they share a name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return any(old.get(name, one) != one for name, one in new.items())
    return bool(old != new)
