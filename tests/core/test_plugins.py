"""Plugins are found in folders and by entry points; a broken one is reported and left out."""

import pytest

from slipstream.core import plugins
from slipstream.kernels.discover import kernel_modules


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Writes a package with an entry point, as pip leaves it in a folder of sys.path."""

    def installed(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        facts = tmp_path / f"{name}-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-{name}\nVersion: 1\n")
        (facts / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}\n")
        forget()

    def forget():
        plugins.plugins.cache_clear()
        kernel_modules.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield installed
    forget()


def test_our_applications_are_plugins():
    assert {"forex", "portfolio", "hockey", "tictactoe"} <= plugins.merged("kernels").keys()


def test_one_of_another_package(install):
    install(
        "lever",
        "kernels = {'lever': 'lever_kernel', 'forex': 'another'}\n"
        "said = []\ncallbacks = [said.append]\n",
    )
    assert kernel_modules()["lever"] == "lever_kernel"
    assert kernel_modules()["forex"] == "slipstream.markets.forex.kernel"  # ours first
    plugins.notify("an event")
    assert plugins.plugins()[-1].said == ["an event"]


def test_a_broken_one_is_reported_and_left_out(install, capsys):
    install("broken", "import that_is_not_there")
    assert plugins.plugins()
    said = capsys.readouterr().err
    assert "plugin broken of the package my-broken" in said
    assert "No module named 'that_is_not_there'" in said
    assert "pip uninstall my-broken" in said
