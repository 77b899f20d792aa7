"""Runs commands in this process, as the entry point does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from slipstream.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def slipstream(capsys, tmp_path, monkeypatch):
    """A callable: slipstream("train", "cartpole") -> Outcome, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Outcome:
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return Outcome(int(code or 0), captured.out, captured.err)

    return run
