"""Plugins: those in slipstream's folders, and an entry point of another package."""

from __future__ import annotations

import pytest

from slipstream.core import plugins


@pytest.fixture
def found_again():
    plugins.plugins.cache_clear()
    yield
    plugins.plugins.cache_clear()


def test_a_plugin_of_another_package_is_found(tmp_path, monkeypatch, found_again):
    plugins.plugins.cache_clear()
    (tmp_path / "visitors.py").write_text("def pages(environment, evaluation):\n    return 7\n")
    installed = tmp_path / "visitors-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: visitors\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{plugins.GROUP}]\nvisitors = visitors\n")
    monkeypatch.syspath_prepend(tmp_path)
    *own, page = plugins.offered("pages")
    assert own and page(None, None) == 7
    assert not list(plugins.offered("nothing"))
