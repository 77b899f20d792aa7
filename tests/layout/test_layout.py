"""Imports that cross the coming tiers become fewer, never more."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("layout", Path(__file__).with_name("layout.py"))
assert _spec is not None and _spec.loader is not None
layout = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(layout)

RECORD = "python tests/layout/layout.py record"


def test_no_further_import_crosses_the_tiers():
    recorded = set(layout.CROSSING.read_text("utf-8").splitlines())
    found = set(layout.crossing())
    assert not found - recorded, "the engine imports no application: use a part or a plugin"
    assert not recorded - found, f"these are gone: write that down by `{RECORD}`"


@pytest.mark.parametrize("start", layout.STARTS)
def test_what_a_module_reaches_does_not_grow(start):
    files, lines = layout.closure(start)
    most_files, most_lines = json.loads(layout.CLOSURES.read_text("utf-8"))[start]
    assert files <= most_files
    assert lines <= most_lines


def test_every_module_has_a_folder_of_the_layout():
    folders = {layout.folder_of(module) for module in layout.modules()}
    assert folders <= {*layout.ENGINE, *layout.APPLICATIONS, *layout.INTERFACES}
