"""Commands that documents and messages write exist, with the options and arguments they have.

Nothing is run here: words are compared with what the command line declares.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.__main__ import app as benchmarks
from benchmarks.suite import cases_of
from benchmarks.suites import SUITES
from slipstream.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES.remove(ROOT / "CHANGELOG.md")  # which tells of what is no more
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.yaml")])
EXAMPLES = sorted((ROOT / "examples").rglob("*.*"))
# Neither a policy's numbers nor what Python keeps of an example that has run.
EXAMPLES = [path for path in EXAMPLES if path.suffix not in (".safetensors", ".pyc")]
FILLED_IN = "X"
VERBS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def indented(text: str) -> list[str]:
    """Lines of blocks with their continuations: a backslash, or a quote that is still open."""
    found, lines = [], iter(text.splitlines())
    for line in lines:
        if not re.match(r"(?: {4}|\t)(?:slipstream|python -m|make [\w-]+)\b", line):
            continue
        command = line.strip()
        while command.endswith("\\") or words_of(command) is None:
            command = f"{command.removesuffix(chr(92))} {next(lines).strip()}"
        found.append(command)
    return found


def within_lines(text: str) -> list[str]:
    """Code between backticks."""
    return re.findall(r"`((?:slipstream|python -m) [^`]+)`", re.sub(r"\n\s*", " ", text))


def words_of(command: str) -> list[str] | None:
    """Without comments, redirections and what a page leaves open; None in an open quotation."""
    try:
        words = shlex.split(re.sub(r"\s>\s.*|\s#\s.*|\s\|\s.*", "", command))
    except ValueError:
        return None
    return [word for word in words if word != "..."]


@cache
def declared(program: typer.Typer) -> Any:
    """Cached click command; building it takes longer than comparing words with it."""
    return typer.main.get_command(program)


def complaint(words: list[str], program: typer.Typer = app) -> str:
    """Return the error of `slipstream WORDS`, or an empty string."""
    found, words = declared(program), list(words)
    while hasattr(found, "commands"):
        if not words or words[0].startswith("-") or words[0] == FILLED_IN:
            return ""
        names = words.pop(0).split("|")
        for name in names:
            if name not in found.commands:
                return f"there is no command {name!r}"
        found = found.commands[names[0]]
    options = {name: one for one in found.params for name in (*one.opts, *one.secondary_opts)}
    places = [one for one in found.params if one.param_type_name == "argument"]
    given = 0
    while words:
        word = words.pop(0)
        if word == "--":  # what a job is to run
            return complaint(words, program)
        if not word.startswith("--"):
            given += 1
            continue
        name, _, value = word.partition("=")
        if name not in options:
            return f"there is no option {name}"
        if not value and not getattr(options[name], "is_flag", False) and words:
            words.pop(0)
    most = float("inf") if any(one.nargs < 0 for one in places) else len(places)
    return "" if given <= most else f"{given} arguments, {most} are taken"


def missing_case(words: list[str]) -> str:
    """Return the names that `python -m benchmarks WORDS` does not have, or an empty string."""
    if not words or words[0] in (FILLED_IN, "SUITE"):
        return ""
    if words[0] not in SUITES:
        return f"there is no suite {words[0]}"
    wanted = {words[k + 1] for k, word in enumerate(words) if word == "--case"}
    return ", ".join(wanted - set(cases_of(words[0])))


def check(command: str) -> str:
    words = words_of(command)
    assert words, command
    if words[0] == "slipstream":
        return complaint(words[1:])
    if words[0] == "make":
        unknown = {word for word in words[1:] if "=" not in word} - VERBS
        return f"make has no {unknown}" if unknown else ""
    module = words[2]
    if module == "benchmarks":
        return complaint(words[3:], benchmarks) or missing_case(words[3:])
    if not module.startswith(("slipstream", "benchmarks")) or FILLED_IN in module:
        return ""
    return "" if importlib.util.find_spec(module) else f"there is no module {module}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_of_documents_exist(path):
    text = path.read_text(encoding="utf-8")
    for command in indented(text) + within_lines(text):
        assert not (told := check(command)), f"{command}: {told}"


@pytest.mark.parametrize("paths", [SOURCES, EXAMPLES], ids=["src", "examples"])
def test_commands_of_messages_and_examples_exist(paths):
    """The remedy of an error has to work when it is typed as it stands."""
    seen = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"\"\s*\n\s*f?\"", "", text)  # neighbouring strings are one text
        for command in within_lines(re.sub(r"\{[^{}]*\}", FILLED_IN, text)):
            seen += 1
            assert not (told := check(command)), f"{path}: {command}: {told}"
    assert seen or paths is EXAMPLES


def test_what_does_not_exist_is_found():
    assert check("slipstream trian cartpole") and check("slipstream train cartpole --step 5")
    assert check("slipstream resume one two") and check("slipstream bench env")
    assert check("python -m benchmarks env --case nothing") and check("python -m benchmarks cars")
    assert check("python -m benchmarks env --nothing") and check("python -m benchmarks.nothing")
    assert check("make nothing") and check("python -m slipstream.nothing")
    assert not check("slipstream study best first > best.yaml")
