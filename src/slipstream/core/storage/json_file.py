"""JSON as slipstream reads it: every key once, no NaN or infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from slipstream.core.errors import ConfigError

_LONGEST = 10_000_000  # characters: nobody writes more by hand


def parse(text: str, source: str) -> Any:
    """Read one JSON document.

    Args:
        text: the document.
        source: what messages call it.

    Raises:
        ConfigError: bad syntax or a repeated key.
    """
    if len(text) > _LONGEST:
        raise ConfigError(f"{source} has more than {_LONGEST:,} characters: no config is so long.")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(f"{source}, {place}: {error.msg}. Mend that line of the JSON.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON that can be used: {error}.") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key `{key}` stands in it twice")
        values[key] = value
    return values


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number that a setting can have")
