"""The floor of how this project writes: first words of docstrings, banned words, line lengths."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from slipstream.cli.main import app

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.name not in ("config.md", "cli.md")  # written from src
    ),
]
# A docstring begins with a verb in the imperative or with the noun that it defines.
CLAUSES = {"what", "whether", "where", "who", "whose", "how", "of", "which", "that"}
BANNED = re.compile(
    r"\b(nobody|somebody|anew|mends?|mended|mending|goes on|stands|lies|unless given)\b"
    r"|\bbut for\b|\bat once or not at all\b|, (too|as well)\s*[.;:)]",
    re.IGNORECASE,
)
# First words of commands' help: verbs in the imperative.
VERBS = {
    *("Add", "Check", "Compare", "Convert", "Deploy", "Describe", "End", "Evaluate", "Export"),
    *("Generate", "Inspect", "List", "Measure", "Print", "Rate", "Report", "Requeue", "Restore"),
    *("Resume", "Run", "Search", "Serve", "Set", "Show", "Start", "Stop", "Test", "Train", "Write"),
}
MOST_TWINS = 12  # file names that occur twice, besides these deliberate ones
TWINS = {"__init__.py", "config.py", "spec.py", "kernel.py", "reference.py"}


def docstrings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node)
            if text:
                yield text


def prose(file: Path) -> Iterator[str]:
    """Yield the lines of strings and comments of a Python file."""
    text = io.StringIO(file.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(text.readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from token.string.splitlines()


def page_lines(page: Path) -> Iterator[str]:
    """Yield the lines of a page, without the records of results."""
    generated = ("<!-- benchmarks/results/", "<!-- the most important rows", "<!-- what a study")
    inside = False
    for line in page.read_text("utf-8").splitlines():
        inside = (inside or line.startswith(generated)) and line != "<!-- end -->"
        if not inside:
            yield line


def report(found: list[str]) -> str:
    """Return the message of a failed check: the first places."""
    return f"{len(found)} places:\n" + "\n".join(found[:40])


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in SOURCES
        for text in docstrings(file)
        if (word := re.match(r"\W*(\w+)", text)) and word[1].lower() in CLAUSES
    ]
    assert not found, report(found)


def parameters(function: ast.AST) -> set[str]:
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def described(text: str) -> list[str]:
    """Return the names at the start of lines of the section `Args`."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", f"{text}\n", re.MULTILINE)
    lines = re.findall(r"^    (\**\w+(?:, \**\w+)*): ", section[1] if section else "", re.MULTILINE)
    return [name.strip(" *") for line in lines for name in line.split(",")]


def test_documented_arguments_exist():
    found = []
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                owner = node
                if isinstance(node, ast.ClassDef):
                    owner = next(
                        (n for n in node.body if getattr(n, "name", "") == "__init__"), None
                    )
                text = ast.get_docstring(node)
                if text and owner is not None:
                    odd = [name for name in described(text) if name not in parameters(owner)]
                    found += [f"{file.relative_to(ROOT)}: {node.name}: {name}" for name in odd]
    assert not found, "\n".join(found)


def test_sources_have_no_banned_words():
    lines = ((file, line) for file in SOURCES for line in prose(file))
    found = [f"{file.relative_to(ROOT)}: {line}" for file, line in lines if BANNED.search(line)]
    assert not found, report(found)


def test_pages_have_no_banned_words():
    lines = ((page, line) for page in PAGES for line in page_lines(page))
    found = [f"{page.relative_to(ROOT)}: {line}" for page, line in lines if BANNED.search(line)]
    assert not found, report(found)


def test_lines_of_pages_are_wrapped():
    found = [
        f"{page.relative_to(ROOT)}:{number}: {line[:60]}"
        for page in PAGES
        for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not found, report(found)


def test_few_file_names_occur_twice():
    names = Counter(file.name for file in SOURCES if file.name not in TWINS)
    assert len([name for name, count in names.items() if count > 1]) <= MOST_TWINS


def cli_commands(command: Any, words: str = "slipstream") -> Iterator[tuple[str, Any]]:
    """Yield all commands and groups of the command line with their words."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from cli_commands(child, f"{words} {name}")


def test_help_of_commands_begins_with_a_verb():
    for words, command in cli_commands(typer.main.get_command(app)):
        verb = (command.help or "").split(" ")[0].rstrip(",")
        assert verb in VERBS, f"{words}: {command.help}"


def test_help_of_options_is_a_sentence():
    """It can be understood without the option's name."""
    for words, command in cli_commands(typer.main.get_command(app)):
        for parameter in command.params:
            if parameter.name == "help" or parameter.name.endswith("_completion"):
                continue
            text = parameter.help or ""
            assert re.match(r"[A-Z]", text) and text.endswith("."), f"{words}: {text!r}"
            assert len(text.split()) >= 3, f"{words}: {text!r}"
            first = text.split()[0].lower()
            assert first not in CLAUSES, f"{words}: {text!r}"


def test_subjects_of_new_commits_follow_the_convention():
    """Only the commits that a branch adds to main are read."""
    command = ["git", "log", "--format=%s", "--no-merges", "main..HEAD"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if log.returncode:
        pytest.skip("there is no branch `main` here")
    kinds = "feat|fix|perf|refactor|docs|test|chore|build|ci|revert"
    shape = re.compile(rf"({kinds})(\([\w-]+\))?!?: \S")
    for subject in log.stdout.splitlines():
        assert len(subject) <= 72 and shape.match(subject), subject
