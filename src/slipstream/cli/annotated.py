"""A config file in which every key has its value and a comment."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from slipstream.core.config import model_in
from slipstream.core.storage import yaml_file
from slipstream.core.text import printable
from slipstream.studies.config import StudyConfig
from slipstream.training.environments.factory import kind_of
from slipstream.training.settings.config import STUDY, RunConfig

_WIDTH = 96


def annotated(config: RunConfig, head: Sequence[str] = (), leave_out: Sequence[str] = ()) -> str:
    """YAML that `resolve` reads back to the same config, and a study's defaults as comments.

    Args:
        config: what to write.
        head: comment lines at the top.
        leave_out: dotted keys that are not written, such as ``training.out``.
    """
    models: dict[str, type[BaseModel]] = {
        "env": kind_of(config.env_name).model,
        "agent": type(config.agent),
        "training": type(config.training),
        "evaluation": type(config.evaluation),
    }
    # A file's name may hold a line break, and would end the comment.
    lines = [f"# {printable(line)}".rstrip() for line in head]
    for section, values in config.as_mapping().items():
        lines.append(f"{section}:")
        lines += _lines(values, models[section], 1, section, set(leave_out))
    lines += ["", *_study()]
    return "\n".join(lines) + "\n"


def _study() -> list[str]:
    """The section that only `slipstream tune` reads, with its defaults, as comments."""
    values = StudyConfig.model_validate({}).model_dump(mode="json")
    return [
        "# What `slipstream tune FILE` does unless told otherwise; a run passes over it.",
        "# It is in force once the # before each of its lines is taken away, and every key may go.",
        f"#{STUDY}:",
        *(f"#{line}" for line in _lines(values, StudyConfig, 1, STUDY, set())),
    ]


def _lines(
    values: Mapping[str, Any],
    model: type[BaseModel] | None,
    depth: int,
    where: str,
    leave_out: set[str],
) -> list[str]:
    words = described(model) if model is not None else {}
    lines = []
    for key, value in values.items():
        path, indent = f"{where}.{key}", "  " * depth
        if path in leave_out:
            continue
        below = model.model_fields.get(key) if model is not None else None
        nested = model_in(below.annotation) if below is not None else None
        if isinstance(value, Mapping) and value and nested is not None:
            lines.append(f"{indent}{key}:{_comment(words.get(key))}")
            lines += _lines(value, nested, depth + 1, path, leave_out)
            continue
        text = yaml_file.dump({key: value}).rstrip("\n").splitlines()
        comment = _comment(words.get(key))
        if len(text) == 1 and len(indent + text[0] + comment) <= _WIDTH:
            lines.append(f"{indent}{text[0]}{comment}")
            continue
        lines += textwrap.wrap(
            comment.strip(), _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}# "
        )
        lines += [indent + line for line in text]
    return lines


def described(model: type[BaseModel]) -> dict[str, str]:
    """A sentence for each field: its description, else its entry under `Attributes:`."""
    found = _attributes(model.__doc__ or "")
    for name, field in model.model_fields.items():
        if field.description:
            found[name] = field.description
    return found


def _attributes(docstring: str) -> dict[str, str]:
    _, _, body = docstring.partition("Attributes:")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in body.splitlines():
        entry = re.match(r"^\s+((?:\w+)(?:, \w+)*): (.*)$", line)
        starts = entry is not None and len(line) - len(line.lstrip()) <= 8
        if entry is not None and starts:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif names and line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return {
        name: " ".join(text.replace("``", "").split()).rstrip(".") for name, text in found.items()
    }


def _comment(words: str | None) -> str:
    return f"  # {words}" if words else ""
