"""Modules that are asked for together: none is made before the block ends, each once, all found."""

import importlib
import multiprocessing
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.errors import KernelError
from slipstream.jit import cache as cache_module
from slipstream.jit import codegen, gemm
from slipstream.jit.cache import build_lock, cache_folder, staged_folder
from slipstream.jit.fast import parallel_compile as together_module
from slipstream.jit.fast.parallel_compile import LazyFunction, compile_in_parallel
from slipstream.jit.gemm import add_product
from slipstream.training import workers
from slipstream.training.workers import compilers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Of a process that has loaded nothing yet, on a machine that has compiled nothing."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(codegen, "_loaded", {})
    return tmp_path / "cache"


def twice(x):
    return 2.0 * x


def broken(x):
    return len(x)


def module(name, helper, linked=None, returns=0.0):
    text = f"def {name}(x):\n    return {'callee' if linked else helper.__name__}(x) + 1.0\n"
    bound = {} if linked else {helper.__name__: helper}
    entries = {name: (1.0,)}
    return codegen.compile_module(name, text, entries, bound, {}, linked=linked, returns=returns)[
        name
    ]


@contextmanager
def alone(work, most):
    yield


def test_functions_come_when_the_block_ends(cache):
    asked = []

    @contextmanager
    def helpers(work, most):
        asked.append(most)
        yield

    with compile_in_parallel(helpers):
        first = module("first", twice)
        second = module("second", None, {"callee": first})
        assert isinstance(first, LazyFunction) and not list(cache.glob("*/*.py")) and not asked
    assert asked == [1], "the owner makes one of them"
    assert second(3.0) == 8.0 and first(3.0) == 7.0
    assert not isinstance(module("first", twice), LazyFunction), "it is there"
    with compile_in_parallel(helpers):
        assert not isinstance(module("second", None, {"callee": first}), LazyFunction)
    assert asked == [1]


def test_a_call_within_the_block_makes_its_module():
    with compile_in_parallel(alone):
        assert module("first", twice)(1.0) == 3.0


def test_an_error_is_told_by_whoever_asked():
    with pytest.raises(KernelError, match="cannot be compiled"), compile_in_parallel(alone):
        module("wrong", broken)
        module("first", twice)


def test_a_wrong_return_type_is_an_error_and_its_callers_are_nobody_elses():
    with (
        pytest.raises(KernelError, match="is declared to return int64"),
        compile_in_parallel(alone),
    ):
        callers = [
            module("second", None, {"callee": module("first", twice, returns=returns)})
            for returns in (0, 0.0)
        ]
        wrong, right = (caller._module.folder for caller in callers)
        assert wrong != right


def test_modules_are_made_by_children(cache, monkeypatch):
    """The owner leaves all to its child here, and finds them when it comes to load them."""
    here, done, made = os.getpid(), cache.parent / "made", codegen._made

    def recorded(name, folder, text, load, waits):
        if os.getpid() != here:
            found = made(name, folder, text, load, waits)
            with done.open("a") as file:
                file.write(f"{name} {os.getppid() == here}\n")
            return found
        until = time.monotonic() + 120
        while waits and time.monotonic() < until and done.read_text().count("\n") < 2:
            time.sleep(0.02)
        return made(name, folder, text, load, waits) if waits else None

    done.touch()
    monkeypatch.setattr(codegen, "_made", recorded)
    with compile_in_parallel(partial(compilers, 2)):
        functions = [module(name, twice) for name in ("first", "second")]
    assert [function(1.0) for function in functions] == [3.0, 3.0]
    assert sorted(done.read_text().splitlines()) == ["first True", "second True"]
    assert not list(cache.glob(".*")), "neither locks nor what was begun"


def test_products_are_made_by_the_owner_and_children_do_not_wait_for_them(cache, monkeypatch):
    """The owner makes the library last here: a child that waited would never end."""
    here, done, make = os.getpid(), cache.parent / "made", gemm._make

    def after_the_child(folder):
        assert os.getpid() == here
        until = time.monotonic() + 120
        while time.monotonic() < until and len(list(cache.glob("product_of_*"))) < 2:
            time.sleep(0.02)
        done.touch()
        return make(folder)

    def product(name):
        text = f"def {name}(a, c):\n    add_product(a, a, c)\n"
        numbers = np.eye(8, dtype=np.float32)
        entries, bindings = {name: (numbers, numbers)}, {"add_product": add_product}
        return codegen.compile_module(f"product_of_{name}", text, entries, bindings, {})[name]

    monkeypatch.setattr(gemm, "_make", after_the_child)
    gemm._load_library.cache_clear()
    with compile_in_parallel(partial(compilers, 2)):
        functions = [product(name) for name in ("first", "second")]
        assert not done.exists()
    for function in functions:
        c = np.ones((8, 8), np.float32)
        function(2.0 * np.eye(8, dtype=np.float32), c)
        assert c.tolist() == (1.0 + 4.0 * np.eye(8)).tolist()
    assert done.exists()


def test_no_child_outlives_an_error(tmp_path):
    def forever():
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    def fails():
        with compilers(3, forever, 5):
            until = time.monotonic() + 60
            while len(list(tmp_path.glob("[0-9]*"))) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    children = [int(path.name) for path in tmp_path.glob("[0-9]*")]
    assert len(children) == 2, "of three cores one is this process's own"
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_what_an_ended_child_began_is_taken_away(cache):
    def forever():
        with staged_folder(cache_folder() / "module_1"):
            time.sleep(600)

    def fails():
        with compilers(2, forever, 1):
            while not list(cache.glob(".*")):
                time.sleep(0.01)
            raise ZeroDivisionError

    with staged_folder(cache_folder() / "module_2") as own:
        with pytest.raises(ZeroDivisionError):
            fails()
        assert list(cache.glob(".*")) == [own], "this process is at work"


def test_on_one_core_nobody_is_forked(tmp_path):
    with compilers(1, (tmp_path / "forked").touch, 5):
        pass
    assert not (tmp_path / "forked").exists()


def test_a_daemonic_process_forks_nobody(tmp_path):
    """multiprocessing allows those no children: a user's pool is made of them."""

    def enters():
        with compilers(2, (tmp_path / "forked").touch, 5):
            pass

    process = multiprocessing.get_context("fork").Process(target=enters, daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0 and not (tmp_path / "forked").exists()


def test_no_thread_is_within_llvm_while_processes_are_forked():
    held = []

    @contextmanager
    def helpers(work, most):
        held.append(importlib.import_module("llvmlite.binding.ffi").lib._lock._lock._is_owned())
        yield

    with compile_in_parallel(helpers):
        for name in ("first", "second"):
            module(name, twice)
    assert held == [True]


def test_helpers_that_hang_are_waited_for_once(cache, monkeypatch):
    for place, name in (
        (cache_module, "BUILD_TIMEOUT"),
        (together_module, "BUILD_TIMEOUT"),
        (workers, "TERMINATE_SECONDS"),
    ):
        monkeypatch.setattr(place, name, 1.0)
    waited, take = [], cache_module._take

    def taken(handle, name, patience):
        own = take(handle, name, patience)
        waited.append(patience > 0.0 and not own)
        return own

    def hangs(work, number):
        folders = sorted(module.folder for module in work.args[0])
        with build_lock(folders[number]):
            (cache / f"holds{number}").touch()
            time.sleep(600)

    @contextmanager
    def helpers(work, most):
        with compilers(2, partial(hangs, work, 0), 1), compilers(2, partial(hangs, work, 1), 1):
            while len(list(cache.glob("holds*"))) < 2:
                time.sleep(0.01)
            yield

    monkeypatch.setattr(cache_module, "_take", taken)
    with compile_in_parallel(helpers):
        functions = [module(name, twice) for name in ("first", "second")]
    assert [function(1.0) for function in functions] == [3.0, 3.0] and sum(waited) == 1


def test_a_helper_whose_owner_is_gone_makes_no_more(monkeypatch):
    made = []

    def make(waits):
        made.append(waits)
        monkeypatch.setattr(os, "getppid", lambda: 1)

    one = together_module.PendingModule(Path("nowhere"), 1, (), make)
    monkeypatch.setattr(together_module._thread, "helps", False)
    together_module._help([one, one])
    assert made == [False]
