"""Kernel files that raise whatever can be raised, or change the program that imports them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import slipstream
from slipstream.core.errors import KernelError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.training.environments.factory import make_environment

CARTPOLE = (Path(slipstream.__file__).parent / "kernels/classic/cartpole.py").read_text()


def _file(folder: Path, more: str, name: str = "own") -> str:
    path = folder / f"{name}.py"
    path.write_text(f"{CARTPOLE}\n{more}\n")
    return str(path)


@pytest.mark.parametrize(
    ("raises", "words"),
    [
        ("BaseException('boom')", "BaseException: boom"),
        ("GeneratorExit", "GeneratorExit"),
        ("ValueError", "ValueError"),
        ("ValueError('   ')", "ValueError"),
        ("SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_it_raises_is_a_paragraph(tmp_path: Path, raises: str, words: str) -> None:
    with pytest.raises(KernelError, match=rf"own\.py:\d+ cannot be imported: {words}\.$"):
        load_kernel(_file(tmp_path, f"raise {raises}"))
    load = f"def load(config):\n    raise {raises}"
    with pytest.raises(KernelError, match=rf"in `load`: `raise .*` raised {words};"):
        make_environment(_file(tmp_path, load, "other"), {})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("from slipstream.core import kernel", "core.kernel` is `slipstream.kernels.kernel` now."),
        (
            "from slipstream.core.spec import EnvSpec",
            "core.spec` is `slipstream.kernels.spec` now.",
        ),
        ("import slipstream.machine.codegen", "machine` is `slipstream.jit` now."),
        ("from slipstream.agents import agent", "agents` is `slipstream.rl.agents` now."),
    ],
)
def test_a_module_that_moved_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(KernelError) as error:
        load_kernel(_file(tmp_path, line))
    assert str(error.value).endswith(sentence)


def test_ctrl_c_is_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_kernel(_file(tmp_path, "raise KeyboardInterrupt"))


def test_it_changes_nothing_for_others(tmp_path: Path) -> None:
    before = (sys.stdout, sys.stderr, sys.getrecursionlimit())
    lines = "import sys\nsys.stdout = sys.stderr = None\nsys.setrecursionlimit(400)"
    load_kernel(_file(tmp_path, lines))
    assert (sys.stdout, sys.stderr, sys.getrecursionlimit()) == before


@pytest.mark.parametrize("answer", ["raise RuntimeError(name)", "return 7"])
def test_a_kernel_has_what_its_file_defines(tmp_path: Path, answer: str) -> None:
    name = _file(tmp_path, f"def __getattr__(name):\n    {answer}")
    assert load_kernel(name).mask is None
    assert make_environment(name, {}).spec.players == 1
