"""Strict parser of YAML and JSON that users write: safe, unique keys, YAML 1.2 scalars.

``1e-4`` is a number, ``17:00`` and ``2024-01-31`` are text, and only ``true`` and ``false`` are
booleans (PyYAML's defaults read text, 1020, a date and ``no``). JSON has no NaN and no infinity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import yaml

from slipstream.core.errors import ConfigError

_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
)


_DEEPEST, _MOST = 50, 200_000  # maximum depth and number of values
_LONGEST = 10_000_000  # maximum length in characters


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as in PyYAML

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Node] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict)):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a plain word", key_node.start_mark
                )
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                first = seen[key].start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"`{key}` is repeated (first on line {first})",
                    key_node.start_mark,
                )
            seen[key] = key_node
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes text which our rules or PyYAML's would read as another type."""

    yaml_implicit_resolvers: dict[str, Any] = {  # noqa: RUF012 - as in PyYAML
        first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


for _tag, _pattern, _first in _SCALARS:
    _compiled = re.compile(rf"^(?:{_pattern})$")
    _Loader.add_implicit_resolver(_tag, _compiled, _first)
    _Dumper.add_implicit_resolver(_tag, _compiled, _first)


def _represent_sequence(dumper: yaml.SafeDumper, values: Any) -> yaml.Node:
    plain = all(isinstance(value, (bool, int, float, str)) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=plain)


_Dumper.add_representer(list, _represent_sequence)
_Dumper.add_representer(tuple, _represent_sequence)


def parse(text: str, source: str) -> Any:
    """Read one YAML document.

    Args:
        text: the document.
        source: its name in messages: a file's path, or ``--set ...``.

    Raises:
        ConfigError: bad syntax or a repeated key, with line and column.
    """
    try:
        _check_size(text)
        # _Loader is a SafeLoader: it builds plain values only.
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = str(error.problem or error.context or "it cannot be read").rstrip(".")
        raise ConfigError(f"{source}{place}: {problem}. Fix that line of the YAML.") from None
    except (KeyError, AttributeError, TypeError) as error:  # PyYAML's, of `!!bool "x"` and others
        raise ConfigError(
            f"{source} is not YAML: a value does not fit the tag in front of it, such as !!bool, "
            "!!timestamp or !!int; leave the tags out."
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"{source} is not YAML: {problem}.") from None


def _check_size(text: str) -> None:
    """Raise an error for huge or deeply nested documents before they cost time or memory.

    Aliases may expand to whole sections: their size is counted at every use.
    """
    depth, total = 0, 0
    inside: list[tuple[str | None, int]] = []  # open collections: anchor, values before
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        total += 1
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in inside):
                raise _problem(f"`*{event.anchor}` is nested in its own anchor", event)
            total += sizes.get(event.anchor or "", 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, total))
            depth = len(inside)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        if depth > _DEEPEST:
            raise _problem(f"it is nested more than {_DEEPEST} deep", event)
        if total > _MOST:
            raise _problem(f"it has more than {_MOST:,} values", event)


def _problem(sentence: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, sentence, event.start_mark)


def dump(values: Mapping[str, Any]) -> str:
    """Return block-style YAML that `parse` reads back to the same values, with keys in order."""
    text = _dump(values, allow_unicode=True)
    # PyYAML leaves these line breaks as they are inside quotes, and folds them when reading.
    if any(separator in text for separator in "\x85\u2028\u2029"):
        text = _dump(values, allow_unicode=False)
    return text


def _dump(values: Mapping[str, Any], allow_unicode: bool) -> str:
    return str(
        yaml.dump(
            dict(values),
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=allow_unicode,
            default_flow_style=False,
        )
    )


def parse_json(text: str, source: str) -> Any:
    """Read one JSON document.

    Args:
        text: the document.
        source: its name in messages.

    Raises:
        ConfigError: bad syntax or a repeated key.
    """
    if len(text) > _LONGEST:
        raise ConfigError(f"{source} has more than {_LONGEST:,} characters: no config is so long.")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{source}, {place}: {error.msg}. Fix that line of the JSON.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON that can be used: {error}.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key `{key}` is repeated")
        values[key] = value
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that a setting can have")
