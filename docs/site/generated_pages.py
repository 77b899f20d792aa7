"""Write docs/reference/config.md and cli.md from the config models and the command line.

Usage: `python docs/site/generated_pages.py docs/reference`; `make docs` does it.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from slipstream.cli.commands.config_template import field_descriptions
from slipstream.cli.main import TOPICS, app
from slipstream.core.config import find_model
from slipstream.kernels.kernel_registry import list_kernels
from slipstream.rl.agents.agent_registry import list_agents, load_config
from slipstream.studies.config import StudyConfig
from slipstream.training.environments.curriculum import CurriculumConfig
from slipstream.training.environments.factory import get_kind
from slipstream.training.settings.config import EvaluationConfig, TrainingConfig

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_NO_BOUND = 1e9  # limits above only protect against overflow
_TYPES = {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "null"}


def config_page() -> str:
    """Return the page of all config keys, one list per section of a config file."""
    lines = [
        "# Config keys",
        "",
        *_wrapped(
            "This page is generated from the config models by `make docs`. `slipstream init` "
            "prints the keys of one environment with its default agent. `--set KEY=VALUE` sets any "
            "key. Unknown keys are errors. Environments may have defaults of their own for "
            "training and agents, which `init` prints. The defaults here are those of the models."
        ),
        "",
    ]
    sections: dict[str, type[BaseModel]] = {
        "training": TrainingConfig,
        "evaluation": EvaluationConfig,
        "study": StudyConfig,
        "curriculum": CurriculumConfig,
    }
    for name, model in sections.items():
        lines += [f"## {name}", "", *_model(model, name), ""]
    for agent in list_agents():
        lines += [f"## agent: {agent}", "", *_model(load_config(agent)[1], "agent"), ""]
    for environment in [*sorted(list_kernels()), "gym:ID"]:
        lines += [f"## env: {environment}", "", *_model(get_kind(environment).model, "env"), ""]
    return "\n".join(lines).rstrip() + "\n"


def _model(model: type[BaseModel], where: str) -> Iterator[str]:
    """Yield a list item per field: key, type, range, default, description."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    descriptions = field_descriptions(model)
    if not model.model_fields:
        yield "No keys."
    for name, field in model.model_fields.items():
        path = f"{where}.{name}"
        nested = find_model(field.annotation)
        kind = "section" if nested else f"`{_kind(schema['properties'][name], definitions)}`"
        default = "required" if field.is_required() else f"default {_default(field)}"
        about = f"{kind}, {default}" if nested is None else kind
        description = descriptions.get(name, "").strip().replace("<", "&lt;")  # it is no HTML
        text = f"- **`{path}`** ({about}): {description}"
        yield from _wrapped(text.rstrip(": "), "  ")
        if nested is not None:
            yield from _model(nested, path)


def _kind(entry: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the type and the range of a JSON schema, such as ``int >= 1 or 'auto'``."""
    if "$ref" in entry:
        entry = definitions[entry["$ref"].rpartition("/")[2]]
    if "anyOf" in entry or "oneOf" in entry:
        kinds = (_kind(part, definitions) for part in entry.get("anyOf") or entry["oneOf"])
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in entry:
        return " or ".join(map(json.dumps, entry["enum"]))
    if "const" in entry:
        return json.dumps(entry["const"])
    if entry.get("type") == "array":
        items = entry.get("items") or {}
        return f"list of {_kind(items, definitions)}" if items else "list"
    if entry.get("type") == "object":
        return "mapping"
    bounds = [
        f"{sign} {entry[key]:g}"
        for key, sign in _BOUNDS.items()
        if key in entry and abs(entry[key]) < _NO_BOUND
    ]
    return " ".join([_TYPES.get(str(entry.get("type")), "any"), ", ".join(bounds)]).strip()


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return f"`{json.dumps(value, default=str)}`"


def cli_page() -> str:
    """Return the page of all commands with their arguments and options."""
    root: Any = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        *_wrapped(
            "This page is generated from the command line by `make docs`. The option "
            "`--help` of a command prints the same."
        ),
        "",
    ]
    groups: dict[str, list[tuple[str, Any]]] = {topic: [] for topic in TOPICS}
    for name in root.list_commands(None):
        command = root.commands[name]
        groups.setdefault(command.rich_help_panel or "Other", []).append((name, command))
    for title, commands in groups.items():
        lines += [f"## {title}", ""]
        for name, command in commands:
            lines += _command(f"slipstream {name}", command)
    return "\n".join(lines).rstrip() + "\n"


def _command(words: str, command: Any) -> Iterator[str]:
    yield from (f"### {words.removeprefix('slipstream ')}", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (*_wrapped(" ".join(paragraph.split())), "")
    if (inner := getattr(command, "commands", None)) is not None:
        for name, below in inner.items():
            yield from _command(f"{words} {name}", below)
        return
    arguments = [
        one.name.upper() if one.required else f"[{one.name.upper()}]"
        for one in command.params
        if one.param_type_name == "argument"
    ]
    yield from ("```text", " ".join([words, *arguments, "[OPTIONS]"]), "```", "")
    parameters = [one for one in command.params if not getattr(one, "hidden", False)]
    for parameter in parameters:
        yield from _wrapped(_parameter(parameter), "  ")
    yield from ([""] if parameters else [])
    if command.epilog:
        yield from (*_wrapped(_example(command.epilog)), "")


def _example(epilog: str) -> str:
    before, _, command = epilog.partition(": ")
    return f"{before}: `{command}`" if command else epilog


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name).upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    kind = "flag" if getattr(parameter, "is_flag", False) else _annotation(parameter)
    details = [kind]
    if parameter.required:
        details.append("required")
    elif isinstance(parameter.show_default, str):
        details.append(f"default: {parameter.show_default.replace('<', '&lt;')}")
    elif parameter.default not in (None, False, [], ()) and not callable(parameter.default):
        default = parameter.default
        details.append(f"default `{default.value if isinstance(default, Enum) else default}`")
    return f"- {names} ({', '.join(details)}): {' '.join((parameter.help or '').split())}"


def _annotation(parameter: Any) -> str:
    """Return the type of a parameter's values, or the choices of an enumeration."""
    annotation = parameter.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{choice.value}`" for choice in annotation)
    return getattr(annotation, "__name__", str(annotation)).lower()


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 100, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "config.md").write_text(config_page(), encoding="utf-8")
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")
