"""Compiled code in the user's cache: found again, never mixed up, safe from others."""

import json
import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from slipstream.core.errors import KernelError, ResourceError
from slipstream.jit import codegen
from slipstream.jit.cache import cache_folder, private_folder, prune
from slipstream.jit.dependencies import ClosureBinder
from slipstream.kernels.compiler import bound_functions
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.vector_env import StepBuffers, member_indices

KERNELS = Path(__file__).parents[1] / "samples"
SOURCE = Path(__file__).parents[3] / "src"

# Builds copies of a kernel, steps them once, and tells what was compiled and what was loaded.
CHILD = """
    import json, sys
    import numpy as np
    import numba.core.event as event
    compiling = event.RecordingListener()
    event.register("numba:compile", compiling)
    from slipstream.kernels.kernel_registry import load_kernel
    from slipstream.kernels.kernel_vector_env import KernelVectorEnv
    from slipstream.kernels.vector_env import member_indices
    kernel = load_kernel(sys.argv[1])
    env = KernelVectorEnv(kernel, kernel.load(kernel.Config()), *member_indices([1], 2))
    obs = np.zeros((2, *env.spec.observation_shape), env.spec.observation_dtype)
    env.reset(obs)
    stats = [f.stats for f in env.loop]
    print(json.dumps({
        "compiled": len(compiling.buffer),
        "hits": sum(sum(s.cache_hits.values()) for s in stats),
        "misses": sum(sum(s.cache_misses.values()) for s in stats),
        "obs": obs.tolist(),
    }))
"""


def child(cache, target="cartpole", start=False):
    environment = {**os.environ, "SLIPSTREAM_CACHE": str(cache), "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(target)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process if start else finish(process)


def finish(process):
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(folder))
    return folder


def copies(kernel, num_envs=2, **settings):
    loaded = kernel.load(kernel.Config())
    return KernelVectorEnv(kernel, loaded, *member_indices([1], num_envs), **settings)


def twice(x):
    return 2.0 * x


def small_module(monkeypatch):
    """Two functions, as a process does that has loaded nothing yet."""
    monkeypatch.setattr(codegen, "_loaded", {})
    text = (
        "def double(x):\n    return twice(x)\n\n\ndef quadruple(x):\n    return twice(twice(x))\n"
    )
    entries = {"double": (1.0,), "quadruple": (1.0,)}
    return codegen.compile_module("small", text, entries, {"twice": twice}, {})


def test_of_two_processes_one_compiles_and_later_ones_load(tmp_path):
    cache = tmp_path / "cache"
    racing = [child(cache, start=True) for _ in range(2)]
    first, other = [finish(process) for process in racing]
    assert sorted([first["misses"], other["misses"]]) == [0, 3] and first["obs"] == other["obs"]
    assert not [*cache.glob(".unfinished-*"), *cache.glob(".lock-*")]
    assert cache.stat().st_mode & 0o777 == 0o700
    second = child(cache)
    assert (second["hits"], second["misses"], second["compiled"]) == (3, 0, 0)
    assert second["obs"] == first["obs"]


def test_number_of_copies_and_parameters_share_the_code():
    kernel = load_kernel("cartpole")
    first = copies(kernel, 2)
    env = KernelVectorEnv(kernel, kernel.load(kernel.Config(gravity=3.0)), *member_indices([1], 64))
    assert all(mine is theirs for mine, theirs in zip(env.loop, first.loop, strict=True))


@pytest.mark.parametrize("changed", ["kernel", "helper", "constant of a helper"])
def test_a_change_anywhere_changes_the_name(tmp_path, monkeypatch, changed):
    """The helper lives in a module of its own, and a third one sets its constant."""
    texts = {
        "slip_constant.py": "LIMIT = 1.0\n",
        "slip_helper.py": "from slip_constant import LIMIT\n\ndef half(x):\n    return LIMIT * x\n",
    }
    text = (KERNELS / "clock.py").read_text().replace("= uniform(s)", "= half(uniform(s))")
    head = "from slipstream.core import"
    texts["mine.py"] = text.replace(head, f"from slip_helper import half\n{head}")
    changes = {
        "kernel": ("mine.py", "s.time + 1", "s.time + 2"),
        "helper": ("slip_helper.py", "LIMIT * x", "LIMIT * x + 1.0"),
        "constant of a helper": ("slip_constant.py", "1.0", "2.0"),
    }
    digests = []
    for edited in (False, False, True):
        folder = tmp_path / f"{len(digests)}"
        folder.mkdir()
        for name, content in texts.items():
            if edited and changes[changed][0] == name:
                assert changes[changed][1] in content
                content = content.replace(*changes[changed][1:])
            (folder / name).write_text(content)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            for module in [m for m in sys.modules if m.startswith("slipstream_user_mine")]:
                patch.delitem(sys.modules, module)
            reached = ClosureBinder(lambda function: function)
            for function in bound_functions(load_kernel(str(folder / "mine.py"))).values():
                reached.bind(function)
            digests.append(reached.digest())
            for module in [m for m in sys.modules if m.startswith("slip_")]:
                del sys.modules[module]
    assert digests[0] == digests[1], "the place of the files does not matter"
    assert digests[2] != digests[1]


def test_functions_within_a_function_count_by_what_they_do():
    """Comprehensions are such before Python 3.12; where they lie in memory or on disk is not."""

    def digest(file, text="y * STEP", step=2.0):
        names = {"__name__": "somewhere", "STEP": step}
        source = (
            f"def outer(x):\n    def inner(y):\n        return {text}\n    return inner(x + 1.0)\n"
        )
        exec(compile(source, file, "exec"), names)
        reached = ClosureBinder(lambda function: function)
        assert reached.bind(names["outer"])(1.0) == eval(text, {"y": 2.0, "STEP": step})
        return reached.digest()

    assert digest("here.py") == digest("there.py")
    assert len({digest("here.py"), digest("here.py", "y + STEP"), digest("here.py", step=3.0)}) == 3


left_open = then = None


def add_one(x):
    return x + 1.0


def double(x):
    return 2.0 * x


def open_function(x):
    return then(left_open(x))


def test_what_a_function_leaves_open_is_given():
    digests = []
    for first, second in ((add_one, double), (double, add_one)):
        reached = ClosureBinder(lambda function: function, {"left_open": first, "then": second})
        assert reached.bind(open_function)(3.0) == second(first(3.0))
        digests.append(reached.digest())
    assert digests[0] != digests[1], "who takes whose place counts"
    with pytest.raises(KernelError, match=r"reads the global `left_open`, a NoneType"):
        ClosureBinder(lambda function: function).bind(open_function)


def test_an_edited_kernel_is_compiled_again(tmp_path):
    path = tmp_path / "mine.py"
    text = (KERNELS / "clock.py").read_text()
    seen, loops = [], set()
    # Of another length: within a second, Python takes a file of the same size for the old one.
    for step in ("s.time + 1", "s.time + 1 + 1"):
        path.write_text(text.replace("s.time + 1", step))
        env = copies(load_kernel(str(path)))
        obs, flags = np.zeros((2, 4), np.float32), np.zeros(2, np.bool_)
        env.reset(obs)
        out = StepBuffers(obs, np.zeros(2, np.float32), flags, flags.copy(), flags.copy())
        env.step(np.zeros((2, 1), np.int64), out)
        seen.append(obs[0, 0])
        loops.add(env.loop.advance)
    assert seen == [1.0, 2.0] and len(loops) == 2


def test_folder_of_somebody_else_is_refused(cache, monkeypatch):
    cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ResourceError, match=r"must belong to you.*SLIPSTREAM_CACHE"):
        cache_folder()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_folder_that_others_may_write_is_refused(cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(ResourceError, match=f"chmod 700 {cache}"):
        copies(load_kernel("cartpole"))
    cache.chmod(0o700)
    assert cache_folder() == cache


def test_full_disk_is_told(cache, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(ResourceError, match=r"No space left on device.*SLIPSTREAM_CACHE"):
        small_module(monkeypatch)
    assert not list(cache.glob(".unfinished-*"))


def test_home_that_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(blocked / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder.parent == tmp_path and folder.name.startswith("slipstream-")


def test_no_home_at_all(tmp_path, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SLIPSTREAM_CACHE")
    assert cache_folder().parent == tmp_path and cache_folder() != tmp_path / "cache"


def test_what_is_remembered_cannot_be_written(cache, monkeypatch):
    cache.mkdir(mode=0o700)
    (cache / "machine").write_text("")
    with pytest.raises(ResourceError, match="Cached data cannot be written"):
        private_folder("machine")


def test_sweep_leaves_what_is_remembered(cache, monkeypatch):
    kept = [private_folder(name) for name in ("bench", "checked", "leases", "machine")]
    later = time.time() + 1e9
    monkeypatch.setattr("slipstream.jit.cache.time.time", lambda: later)
    (cache / "unused_module").mkdir()
    prune(cache)
    assert sorted(cache.iterdir()) == kept


def test_sweep_forgets_what_nobody_loads(cache, monkeypatch):
    cache.mkdir(mode=0o700)
    for name in (".lock-old", "old"):
        (cache / name).mkdir() if name == "old" else (cache / name).write_text("")
        os.utime(cache / name, (1e9, 1e9))
    prune(cache)
    assert len(list(cache.iterdir())) == 2, "what was just made is new whatever its stamp says"
    (cache / "old").rmdir()
    small_module(monkeypatch)
    unfinished = cache / ".unfinished-1"
    unfinished.mkdir()
    now, day = time.time(), 24 * 3600
    for age, left in ((0.5, 2), (1.5, 1), (89, 1), (91, 0)):
        later = now + age * day
        monkeypatch.setattr("slipstream.jit.cache.time.time", lambda later=later: later)
        prune(cache)
        assert sum(path.is_dir() for path in cache.iterdir()) == left, age
        assert (cache / ".lock-old").exists() == (age < 1)


def test_compiling_is_announced_once(cache, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "slipstream")
    for _ in range(2):
        small_module(monkeypatch)
    assert [r.message for r in caplog.records if "compiling small" in r.message] == [
        f"compiling small (once; the result is kept in {cache})"
    ]


def damage(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "garbage":
        path.write_bytes(bytes((byte + 1) % 256 for byte in content))
    elif how == "one bit":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("truncated", marks=pytest.mark.slow),
        "garbage",
        pytest.param("one bit", marks=pytest.mark.slow),
        "missing",
    ],
)
def test_every_damaged_file_heals(cache, monkeypatch, caplog, how):
    """Each file of a module in turn: said once, compiled again, and nothing of it was run."""
    small_module(monkeypatch)
    (module,) = [path.parent for path in cache.glob("*/*.py")]
    files = sorted(path.relative_to(module) for path in module.rglob("*") if path.is_file())
    suffixes = [".json", ".nbc", ".nbc", ".nbi", ".nbi", ".py"]
    assert sorted(path.suffix for path in files) == suffixes, "no bytecode that nobody looks at"
    for file in files:
        damage(module / file, how)
        caplog.clear()
        assert small_module(monkeypatch)["quadruple"](2.0) == 8.0
        said = [r.message for r in caplog.records if "damaged" in r.message]
        assert said == [f"the compiled code of small in {module} is damaged: compiling it again"]
        caplog.clear()
        again = small_module(monkeypatch)
        assert [sum(f.stats.cache_hits.values()) for f in again.values()] == [1, 1], file
        assert not caplog.records and again["double"](2.0) == 4.0
    assert not list(cache.glob(".unfinished-*"))


def test_types_that_have_moved_to_another_module_are_compiled_again(cache, monkeypatch, caplog):
    """As after an update of slipstream: machine code names the module of a record."""
    text = "def total(pair):\n    return pair.a + pair.b\n"
    for home in ("first_home", "second_home"):
        module = ModuleType(home)
        exec("from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: float\n    b: float",
             module.__dict__)  # fmt: skip
        monkeypatch.delitem(sys.modules, "first_home", raising=False)
        monkeypatch.setitem(sys.modules, home, module)
        monkeypatch.setattr(codegen, "_loaded", {})
        entries = {"total": (module.Pair(1.0, 2.0),)}
        found = codegen.compile_module("moved", text, entries, {}, {})["total"]
    assert found(module.Pair(2.0, 3.0)) == 5.0
    (said,) = [r.message for r in caplog.records if "again" in r.message]
    assert "first_home" in said
    assert len(list(cache.glob("*/*.py"))) == 1


def test_what_is_planted_in_the_cache_is_not_run(cache, tmp_path, monkeypatch):
    small_module(monkeypatch)
    (source,) = cache.glob("*/*.py")
    source.write_text(f"open({str(tmp_path / 'planted')!r}, 'w')\n" + source.read_text())
    small_module(monkeypatch)
    assert not (tmp_path / "planted").exists()
    assert "planted" not in next(cache.glob("*/*.py")).read_text()


@pytest.mark.slow
def test_numbas_own_folder_is_not_used(cache, tmp_path, monkeypatch):
    import numba

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "elsewhere"))
    copies(load_kernel("cartpole"))
    assert not (tmp_path / "elsewhere").exists() and list(cache.glob("*/__pycache__/*.nbc"))
    assert str(tmp_path / "elsewhere") == numba.config.CACHE_DIR


def test_numba_that_compiles_nothing_is_named(cache, monkeypatch):
    import numba

    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(ResourceError, match=r"unset NUMBA_DISABLE_JIT.*backend=\"serial\""):
        copies(load_kernel("cartpole"))


def broken_kernel(tmp_path, statement):
    text = (KERNELS / "clock.py").read_text()
    path = tmp_path / "broken.py"
    path.write_text(text.replace("    s.time = s.time + 1\n", f"    {statement}\n"))
    return path, path.read_text().splitlines().index(f"    {statement}") + 1


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("s.time = len(s.sum)", "len(float64)"),
        ("s.time = s.seen", "numpy_take"),
        ("x = float(action)", "float"),
    ],
)
def test_what_cannot_be_compiled_is_named(cache, tmp_path, statement, reason):
    (tmp_path / "a folder é").mkdir()
    path, line = broken_kernel(tmp_path / "a folder é", statement)
    with pytest.raises(KernelError) as error:
        copies(load_kernel(str(path)))
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: `{statement}` cannot be compiled: ")
    assert reason in message and "\n" not in message and len(message) - len(str(path)) < 450


def test_recursion_is_refused(cache, tmp_path):
    path, _ = broken_kernel(tmp_path, "s.time = down(3)")
    path.write_text(
        path.read_text() + "\n\ndef down(n):\n    return 0 if n == 0 else down(n - 1)\n"
    )
    with pytest.raises(KernelError, match=r"calls itself.*`for` loop"):
        copies(load_kernel(str(path)))


def test_arrays_that_do_not_fit_are_named(make, steps):
    run = steps(make(num_envs=3))
    out = run.reset()
    good = np.zeros((3, 1), np.int64)
    for name, actions, bad in (
        ("actions", np.zeros((2, 1), np.int64), out),
        ("actions", np.zeros((3, 1), np.int32), out),
        ("actions", np.zeros((3, 2), np.int64)[:, ::2], out),
        ("obs", good, out._replace(obs=out.obs[:2])),
        ("obs", good, out._replace(obs=out.obs.astype(np.float64))),
        ("reward", good, out._replace(reward=out.reward[:2])),
        ("truncated", good, out._replace(truncated=out.truncated.astype(np.int8))),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be a C-contiguous"):
            run.env.step(actions, bad)
    with pytest.raises(ValueError, match="`obs` must be"):
        run.env.reset(out.obs[:2])


def test_interpreted_text_is_the_compiled_text():
    text = "def double(x):\n    return twice(x)\n"

    def twice(x):
        return 2 * x

    module = codegen.build_interpreted(text, {"twice": twice}, {})
    assert module.double(4) == 8
    assert (
        codegen.compile_module("double", text, {"double": (1.0,)}, {"twice": twice}, {})["double"](
            4.0
        )
        == 8
    )


def test_a_numba_config_of_the_working_folder_is_not_obeyed(tmp_path):
    """A folder that somebody else made: compiling goes on, as the environment's variables say."""
    lines = ("DISABLE_JIT: 1", "BOUNDSCHECK: 1", "OPT: 0", "ENABLE_CUDASIM: 1")
    (tmp_path / ".numba_config.yaml").write_text("\n".join(lines))
    code = """
import os, slipstream
env = slipstream.make_vec("cartpole", 4)
env.step(env.reset(seed=1)[:, 0] > 0)
from numba import config
config.reload_config()  # as the compiler does
assert (config.DISABLE_JIT, config.BOUNDSCHECK, config.ENABLE_CUDASIM) == (0, None, 0)
assert config.OPT == 3 and os.path.isfile(".numba_config.yaml")
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
