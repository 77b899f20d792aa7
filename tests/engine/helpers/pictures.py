"""Fixtures that make the pictures of reports cheap."""

import pytest

from slipstream.report import page, plot_style


@pytest.fixture(autouse=True, scope="session")
def small_pictures():
    """Pictures are drawn at a third of their size: drawing is most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot_style, "DPI", 50)
        yield


@pytest.fixture(autouse=True)
def blank_pictures(request, monkeypatch):
    """Quick tests draw the pages that their fixtures make; those that they make themselves have no
    pictures, but in `make test-all`. A test that looks at its own undoes this."""
    if request.config.option.markexpr == "not slow":
        monkeypatch.setattr(page, "png", lambda figure: b"not drawn")
