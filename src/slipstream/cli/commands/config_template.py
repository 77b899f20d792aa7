"""`slipstream init`: a commented config file with every key and its value."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.options import complete_environments
from slipstream.core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from slipstream.training.settings.config import RunConfig

app = typer.Typer()
_WIDTH = 96


@app.command(rich_help_panel="Train", epilog="Example: slipstream init forex data/eurusd > my.yaml")
def init(
    environment: Annotated[
        str,
        typer.Argument(
            help="Environment name, kernel file (.py) or gym:ID.",
            autocompletion=complete_environments,
        ),
    ],
    folder: Annotated[
        str | None, typer.Argument(help="Folder of price files (markets only).")
    ] = None,
) -> None:
    """Print a commented config for an environment."""
    from slipstream.core.plugins import iter_offers
    from slipstream.training.settings.config import resolve

    started = (start(environment, folder) for start in iter_offers("init"))
    if (sections := next(filter(None, started), None)) is not None:
        values, head = sections
        config = resolve(values)
    elif folder is not None:
        raise ConfigError(f"{environment} reads no prices. Remove the folder {folder}.")
    else:
        config, opponent_note = resolve(environment).with_opponent()
        head = [f"Equivalent to `slipstream train {environment}`. Every key is optional."]
        head += [opponent_note] if opponent_note else []
    typer.echo(config_template(config, head), nl=False)


def config_template(config: RunConfig, head: Sequence[str]) -> str:
    """Return YAML that `resolve` reads back to the same config, except for `training.out`.

    The defaults of a study follow as comments.

    Args:
        config: config to write.
        head: comment lines at the top.
    """
    from slipstream.core.text import printable
    from slipstream.training.environments.factory import get_kind

    models: dict[str, type[BaseModel]] = {
        "env": get_kind(config.env_name).model,
        "agent": type(config.agent),
        "training": type(config.training),
        "evaluation": type(config.evaluation),
    }
    # A line break in a file name would end the comment.
    lines = [f"# {printable(line)}".rstrip() for line in head]
    for section, values in config.as_mapping().items():
        lines.append(f"{section}:")
        lines += _lines(values, models[section], 1, section)
    lines += ["", *_study()]
    return "\n".join(lines) + "\n"


def _study() -> list[str]:
    """Return the defaults of the section that only `slipstream tune` reads, commented out."""
    from slipstream.studies.config import StudyConfig
    from slipstream.training.settings.config import STUDY

    values = StudyConfig.model_validate({}).model_dump(mode="json")
    return [
        "# Defaults of `slipstream tune FILE`; training ignores this section.",
        "# Uncomment every line to change them. Every key is optional.",
        f"#{STUDY}:",
        *(f"#{line}" for line in _lines(values, StudyConfig, 1, STUDY)),
    ]


def _lines(values: Mapping[str, Any], model: type[BaseModel], depth: int, where: str) -> list[str]:
    from slipstream.core.config import find_model
    from slipstream.core.storage import yaml_file

    descriptions = field_descriptions(model)
    lines = []
    for key, value in values.items():
        path, indent = f"{where}.{key}", "  " * depth
        if path == "training.out":
            continue
        below = model.model_fields.get(key)
        nested = find_model(below.annotation) if below is not None else None
        if isinstance(value, Mapping) and value and nested is not None:
            lines.append(f"{indent}{key}:{_comment(descriptions.get(key))}")
            lines += _lines(value, nested, depth + 1, path)
            continue
        text = yaml_file.dump({key: value}).rstrip("\n").splitlines()
        comment = _comment(descriptions.get(key))
        if len(text) == 1 and len(indent + text[0] + comment) <= _WIDTH:
            lines.append(f"{indent}{text[0]}{comment}")
            continue
        lines += textwrap.wrap(
            comment.strip(), _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}# "
        )
        lines += [indent + line for line in text]
    return lines


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return a description per field: its own, else its entry under `Attributes:`."""
    descriptions = _attributes(model.__doc__ or "")
    for name, field in model.model_fields.items():
        if field.description:
            descriptions[name] = field.description
    return descriptions


def _attributes(docstring: str) -> dict[str, str]:
    _, _, body = docstring.partition("Attributes:")
    attributes: dict[str, str] = {}
    names: list[str] = []
    for line in body.splitlines():
        entry = re.match(r"^\s+((?:\w+)(?:, \w+)*): (.*)$", line)
        starts = entry is not None and len(line) - len(line.lstrip()) <= 8
        if entry is not None and starts:
            names = entry[1].split(", ")
            attributes |= dict.fromkeys(names, entry[2])
        elif names and line.strip():
            attributes |= {name: f"{attributes[name]} {line.strip()}" for name in names}
    return {
        name: " ".join(text.replace("``", "").split()).rstrip(".")
        for name, text in attributes.items()
    }


def _comment(text: str | None) -> str:
    return f"  # {text}" if text else ""
