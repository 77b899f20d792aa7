"""`make lock`: pins come from pip, comments are kept, libraries of torch's build are left out."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def lock() -> Any:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "requirements/lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lock"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {path.stem: path.read_text() for path in (ROOT / "requirements").glob("*.lock")}


def test_a_lock_keeps_its_comments_and_its_order(lock: Any) -> None:
    text = "# pip install torch==1\n-r base.lock\nb==1\n# Why d is here.\nd_e==1\ngone==3\n"
    pins = {"b": "2", "d-e": "1.5", "a": "7", "c": "9", "z": "4"}
    expected = "# pip install torch==1\n-r base.lock\na==7\nb==2\n# Why d is here.\nc==9\n"
    assert lock.renew(text, pins) == expected + "d_e==1.5\nz==4\n"
    assert lock.read_pins(lock.renew(text, pins)) == pins


def test_the_same_versions_leave_every_lock_as_it_is(lock: Any, texts: dict[str, str]) -> None:
    """The resolver returns what is pinned, with what an index of torch would add."""
    locks = lock.plan(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert locks.keys() == texts.keys(), "every lock is renewed"
    asked = {}

    def resolver(requirements: Any, constraints: Any, dependencies: bool) -> Any:
        name = list(locks)[len(asked)]
        asked[name] = constraints
        included = {} if locks[name].base is None else constraints
        more = {"nvidia-cublas": "13.0", "triton": "3.7"} if name == "dev" else {}
        return included | lock.read_pins(texts[name]) | more

    assert lock.renew_all(texts, locks, resolver) == texts
    own = {name: lock.read_pins(text) for name, text in texts.items()}
    assert asked["base"] == {}
    assert asked["dev"] == own["base"] | own["live"] | {"torch": own["dev"]["torch"]}
    assert own["dev"].items() <= asked["ray"].items()
    assert own["dev"].items() <= asked["package"].items()
    assert asked["live"]["ccxt"] == own["live"]["ccxt"]


def test_versions_are_renewed_for_all_that_build_on_them(lock: Any) -> None:
    locks = {"base": lock.Lock(("a",)), "dev": lock.Lock(("b",), base="base")}
    texts = {"base": "a==1\n", "dev": "-r base.lock\nb==1\n"}

    def resolver(requirements: Any, constraints: Any, dependencies: bool) -> Any:
        assert constraints == ({} if requirements == ("a",) else {"a": "2"})
        return {"a": "2"} if requirements == ("a",) else {"a": "2", "b": "5", "c": "6"}

    expected = {"base": "a==2\n", "dev": "-r base.lock\nb==5\nc==6\n"}
    assert lock.renew_all(texts, locks, resolver) == expected


def test_pip_resolves_without_installing(
    lock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local package: the requirement of a requirement is found, its local version is cut."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name, version, needs in (("one", "1.0", '["two-x"]'), ("two-x", "2.0+cpu", "[]")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "made"\nbackend-path = ["."]\n'
        )
        made = f"{name.replace('-', '_')}-{version}"
        backend = BACKEND.format(name=name, version=version, needs=needs, folder=made)
        (folder / "made.py").write_text(backend)
    found = lock.resolve([str(tmp_path / "two-x"), str(tmp_path / "one")], {}, True)
    assert found == {"one": "1.0", "two-x": "2.0"}
    alone = lock.resolve([str(tmp_path / "one")], {}, False)
    assert alone == {"one": "1.0"}


BACKEND = """
import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "{folder}.dist-info")
    place.mkdir()
    lines = ["Metadata-Version: 2.1", "Name: {name}", "Version: {version}"]
    lines += [f"Requires-Dist: {{one}}" for one in {needs}]
    place.joinpath("METADATA").write_text("\\n".join(lines) + "\\n")
    return "{folder}.dist-info"
"""


def test_locks_name_no_index(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        for line in text.splitlines():
            assert line.startswith(("#", "-r ")) or re.fullmatch(r"[\w.-]+==[\w.]+", line), name
        assert "://" not in text and "index-url" not in text, name
