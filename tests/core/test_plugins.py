"""Plugins: those in slipstream's folders, and an entry point of another package."""

from __future__ import annotations

import pytest

from slipstream.core import plugins


@pytest.fixture
def found_again():
    plugins.plugins.cache_clear()
    yield
    plugins.plugins.cache_clear()


def test_games_are_a_plugin():
    assert plugins.offered("environments")["player"].endswith(":GameEnvironment")
    for attribute in ("environments", "pages"):
        assert all(callable(plugins.load(one)) for one in plugins.offered(attribute).values())


def test_a_plugin_of_another_package_is_found(tmp_path, monkeypatch, found_again):
    page = "def page(environment, evaluation):\n    return 7\n"
    (tmp_path / "visitors.py").write_text(f'pages = {{"visitors": "visitors:page"}}\n{page}')
    installed = tmp_path / "visitors-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: visitors\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{plugins.GROUP}]\nvisitors = visitors\n")
    monkeypatch.syspath_prepend(tmp_path)
    pages = plugins.offered("pages")
    assert list(pages) == ["game", "visitors"]
    assert plugins.load(pages["visitors"])(None, None) == 7
    assert plugins.offered("callbacks") == {}
