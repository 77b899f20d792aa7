"""The loop as GPU code: its meaning by Numba's simulator, its compiling by NVIDIA's compiler.

Neither needs a GPU, and neither says anything about speed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.core.discover import list_kernels, load_kernel
from slipstream.core.errors import KernelError
from slipstream.vector.kernel import cuda

HERE = Path(__file__).parent
KERNELS = [HERE / "kernels" / f"{name}.py" for name in ("clock", "duel", "masked")]


def test_simulated_threads_equal_the_interpreter():
    """Eight copies of every kernel, twenty steps, six threads in two blocks."""
    environment = {
        **os.environ,
        "NUMBA_ENABLE_CUDASIM": "1",
        "PYTHONPATH": str(HERE.parents[1] / "src"),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "cuda_simulator.py"), *map(str, KERNELS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    agreed = set(done.stdout.split("\n"))
    assert set(list_kernels()) | {"clock", "duel", "masked"} <= agreed


def test_absent_packages_are_told(monkeypatch, capsys):
    monkeypatch.setattr(cuda, "_PACKAGES", ("numba-cuda-of-nowhere",))
    assert cuda.main() == 0
    said = capsys.readouterr().out
    assert (
        "not run, because numba-cuda-of-nowhere is missing" in said and "'nvidia-nvvm>=13'" in said
    )


def test_every_kernel_compiles_to_ptx(capsys):
    if cuda.missing_packages():
        pytest.skip(f"the extra cuda-check is absent: {', '.join(cuda.missing_packages())}")
    assert cuda.main() == 0
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for name in list_kernels())


def test_what_a_gpu_cannot_do_is_named(tmp_path):
    if cuda.missing_packages():
        pytest.skip(f"the extra cuda-check is absent: {', '.join(cuda.missing_packages())}")
    text = KERNELS[0].read_text()
    path = tmp_path / "bad.py"
    path.write_text(text.replace("s.time = s.time + 1", "s.time = len(s.sum)"))
    kernel = load_kernel(str(path))
    with pytest.raises(KernelError, match="`bad` does not compile to PTX"):
        cuda.compile_ptx(kernel, kernel.load(kernel.Config()))
