"""Plugins are found in folders and by entry points; a broken one is reported and left out."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.cli import main
from slipstream.core import plugins
from slipstream.kernels.kernel_registry import kernel_modules, load_kernel
from slipstream.report import run_page


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


def test_one_of_another_package(install):
    install("lever", "kernels = {'lever': 'lever_kernel'}\nsaid = []\ncallbacks = [said.append]\n")
    assert kernel_modules()["lever"] == "lever_kernel"
    plugins.notify("an event")
    assert plugins.plugins()[-1].offers.said == ["an event"]


def test_equal_names_are_reported_with_both_packages(install, capsys):
    install("one", "kernels = {'lever': 'lever_kernel'}\n")
    install("two", "kernels = {'lever': 'another', 'other': 'another'}\n")
    install("four", "kernels = {'cartpole': 'another', 'four': 'another'}\n")
    capsys.readouterr()
    modules = kernel_modules()
    said = capsys.readouterr().err
    assert modules["lever"] == "lever_kernel" and "other" not in modules and "four" in modules
    assert modules["cartpole"].startswith("slipstream.")
    assert "package my-two" in said and "has the name lever, which the package my-one" in said
    assert "The kernel cartpole of the package my-four" in said


@pytest.mark.parametrize(
    ("attribute", "use"),
    [
        ("callbacks = [fails]", lambda: plugins.notify(7)),
        ("pages = fails", lambda: list(plugins.iter_offers("pages"))[-1](7)),
        ("environments = {'x:': fails}", lambda: plugins.merge_offers("environments")["x:"](7)),
    ],
)
@pytest.mark.parametrize("error", ["ValueError('no')", "SystemExit('no')"])
def test_what_its_functions_raise_names_the_package(install, attribute, use, error):
    sys.modules.pop("fails", None)
    install("fails", f"def fails(given):\n    raise {error}\n{attribute}\n")
    own = plugins.plugins()
    try:
        with pytest.raises(plugins.PluginError) as told:
            use()
    finally:
        sys.modules.pop("fails", None)
    assert len(own) and "fails.py:2" in str(told.value)
    for words in (attribute.split()[0], "my-fails", error[:5], "pip uninstall my-fails"):
        assert words in str(told.value)


def test_a_kernel_whose_module_lacks_something_names_the_package(install):
    install("lacks", "kernels = {'lacks': 'lacks_kernel'}\n")
    (Path(plugins.plugins()[-1].offers.__file__).parent / "lacks_kernel.py").write_text(
        "import that_is_not_there"
    )
    with pytest.raises(plugins.PluginError, match=r"my-lacks.*No module named 'that_is_not_there'"):
        load_kernel("lacks")


def test_one_that_needs_the_plugins_while_it_is_imported_is_reported(install, capsys):
    install(
        "circle",
        "from slipstream.kernels.kernel_registry import list_kernels\n"
        "known = list_kernels()\nkernels = {'circle': 'circle_kernel'}\n",
    )
    plugins.plugins()
    assert "circle is still being imported" in capsys.readouterr().err


def test_a_broken_one_is_reported_and_left_out(install, capsys):
    install("broken", "import that_is_not_there")
    assert plugins.plugins()
    said = capsys.readouterr().err
    assert "plugin broken of the package my-broken" in said
    assert "No module named 'that_is_not_there'" in said
    assert "pip uninstall my-broken" in said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("kernels = ['walk']", "`kernels` must map names"),
        ("commands = {'x': None}", "`commands` must map names to modules"),
        ("callbacks = [7]", "`callbacks` must be a list"),
        ("pages = 7", "`pages` must be a function, got 7"),
    ],
)
def test_one_that_does_not_fit_is_reported_and_left_out(install, capsys, text, reason):
    ours = len(plugins.plugins())
    sys.modules.pop("unfit", None)
    install("unfit", text)
    assert len(plugins.plugins()) == ours
    said = capsys.readouterr().err
    assert "plugin unfit of the package my-unfit" in said and reason in said


def test_a_misspelt_attribute_is_reported_and_versions_are_known(install, capsys):
    install("typo", "kernel = {'lever': 'lever_kernel'}\nfolder = None\nfolders = {}\n")
    capsys.readouterr()
    assert plugins.plugins()[-1].owner == "my-typo"
    error = capsys.readouterr().err
    assert "package my-typo has `kernel`, which" in error and "mean `kernels`?" in error
    assert "`folder`" not in error  # next to `folders` it is a name of the plugin's own
    assert plugins.plugin_versions()["my-typo"] == "1"


def test_what_one_prints_is_no_output(install, capsys):
    install("loud", "print('hello')")
    plugins.plugins()
    told = capsys.readouterr()
    assert told.out == "" and told.err == "hello\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no attribute 'app'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("import typer\napp = typer.Typer()\n@app.command()\ndef train(): ...", "command train"),
    ],
)
def test_commands_that_do_not_fit_are_left_out(install, tmp_path, text, reason):
    install("more", "commands = {'more': 'more_commands'}")
    (tmp_path / "more_commands.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", "from slipstream.cli import main; main(['train', '--help'])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "--total-timesteps" in done.stdout
    assert (
        "The command module more_commands of the package my-more" in done.stderr
        and reason in done.stderr
    )


def test_a_page_of_another_type_is_an_error_of_the_plugin(monkeypatch):
    monkeypatch.setattr(run_page, "iter_offers", lambda attribute: [lambda environment, run: 5])
    with pytest.raises(plugins.PluginError, match=r"`pages` of a plugin must return .*, got 5"):
        run_page.build_page(SimpleNamespace(environment=None))


def test_a_missing_module_of_a_kernel_does_not_end_the_list(install, capsys):
    install("crank", "kernels = {'crank': 'no_such_module'}\n")
    with pytest.raises(SystemExit, match="0"):
        main(["list"])
    listed = " ".join(capsys.readouterr().out.split())
    assert "not available: there is no module no_such_module" in listed and "pendulum" in listed
