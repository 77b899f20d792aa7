"""The floor of how this project writes: first words of docstrings, banned words, line lengths.

Counts that are not zero yet may only fall: lower the number when you lower the count.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

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
MOST = {
    "docstrings": 77,
    "words in src": 94,
    "words in pages": 150,
    "long lines": 400,
    "file names": 12,
}
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


def limit(what: str, found: list[str]) -> None:
    assert len(found) <= MOST[what], f"{len(found)} {what}, at most {MOST[what]}:\n" + "\n".join(
        found[:40]
    )


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{file.relative_to(ROOT)}: {text.splitlines()[0]}"
        for file in SOURCES
        for text in docstrings(file)
        if (word := re.match(r"\W*(\w+)", text)) and word[1].lower() in CLAUSES
    ]
    limit("docstrings", found)


def test_sources_have_no_banned_words():
    lines = ((file, line) for file in SOURCES for line in prose(file))
    limit(
        "words in src",
        [
            f"{file.relative_to(ROOT)}: {line.strip()}"
            for file, line in lines
            if BANNED.search(line)
        ],
    )


def test_pages_have_no_banned_words():
    lines = ((page, line) for page in PAGES for line in page.read_text("utf-8").splitlines())
    limit(
        "words in pages",
        [f"{page.relative_to(ROOT)}: {line}" for page, line in lines if BANNED.search(line)],
    )


def test_lines_of_pages_are_wrapped():
    limit(
        "long lines",
        [
            f"{page.relative_to(ROOT)}:{number}: {line[:60]}"
            for page in PAGES
            for number, line in enumerate(page.read_text("utf-8").splitlines(), 1)
            if len(line) > 120
        ],
    )


def test_few_file_names_occur_twice():
    names = Counter(file.name for file in SOURCES if file.name not in TWINS)
    limit("file names", [name for name, count in names.items() if count > 1])


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
