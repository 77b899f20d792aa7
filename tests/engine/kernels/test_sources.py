"""The files that a kernel reaches: by functions, by modules, wherever it imports them."""

import sys

from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.source_files import is_user_file, source_hashes


def test_files_of_a_user(write_kernel, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_limits.py").write_text("LIMIT = 2.0\n")
    (tmp_path / "own_helper.py").write_text(
        "import json\nfrom own_limits import LIMIT\n\n\ndef half(x):\n    return LIMIT * x\n"
    )
    (tmp_path / "own_reader.py").write_text("def read():\n    return 1.0\n")
    load = """
        def load(config):
            import own_reader

            data = Data(np.full(3, own_reader.read(), np.float32))
            return kernel.KernelData(data, {"train": (Params(config.width),)})
        """
    path = write_kernel(top="from own_helper import half", load=load)
    module = load_kernel(str(path)).module
    before = source_hashes(module)
    assert {"mine.py", "own_helper", "own_limits", "own_reader"} <= set(before)
    assert "json" not in before and "numpy" not in before and "slipstream.kernels.kernel" in before
    for changed in ("own_limits", "own_reader", "own_helper"):
        file = tmp_path / f"{changed}.py"
        file.write_text(file.read_text() + "# another\n")
        after = source_hashes(module)
        assert [name for name in after if after[name] != before[name]] == [changed]
        before = after
    for name in ("own_limits", "own_helper", "own_reader"):
        sys.modules.pop(name, None)


def test_libraries_that_an_environment_borrows_are_none_of_the_user(
    write_kernel, tmp_path, monkeypatch
):
    """As under ``--system-site-packages``: other people's packages are not followed."""
    lent = tmp_path / "lib" / "site-packages"
    lent.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(lent))
    (lent / "borrowed_library.py").write_text("raise RuntimeError('imported to be looked at')\n")
    path = write_kernel(top="try:\n    import borrowed_library\nexcept RuntimeError:\n    pass")
    assert "borrowed_library" not in source_hashes(load_kernel(str(path)).module)
    assert not is_user_file(lent / "borrowed_library.py") and is_user_file(path)


def test_a_package_that_cannot_be_looked_into_is_passed_over(write_kernel, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "half_there").mkdir()
    (tmp_path / "half_there" / "__init__.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "half_there" / "part.py").write_text("")
    path = write_kernel(top="try:\n    import half_there.part\nexcept RuntimeError:\n    pass")
    assert "half_there.part" not in source_hashes(load_kernel(str(path)).module)
