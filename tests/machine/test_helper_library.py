"""Helpers of compiled functions have no machine code of their own; everything else is as ever."""

import threading
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from slipstream.machine import helper_library
from slipstream.machine.helper_library import adopt, only_entries


def make(factor):
    """A function that calls a helper, which calls another."""

    @numba.njit
    def inner(x):
        return factor * x

    @numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    def helper(x):
        return inner(x) + 1.0

    def entry(x):
        total = 0.0
        for i in range(len(x)):
            total += helper(x[i])
        return total

    return entry, inner


def compiled(function):
    return numba.njit([(numba.float64[::1],)])(function)


def test_an_entry_is_what_it_is_without():
    x = np.arange(5.0)
    entry, _ = make(3.0)
    with only_entries([entry.__qualname__]):
        light = compiled(entry)
    assert light(x) == compiled(make(3.0)[0])(x) == 35.0


def test_what_is_compiled_outside_can_be_called():
    entry, inner = make(2.0)
    with only_entries([entry.__qualname__]):
        assert compiled(entry)(np.ones(2)) == 6.0
    entry, inner = make(5.0)
    assert inner(2.0) == 10.0 and compiled(entry)(np.ones(1)) == 6.0


def test_another_threads_functions_are_whole():
    found = []
    with only_entries(["nobody"]):
        thread = threading.Thread(target=lambda: found.append(make(7.0)[1](3.0)))
        thread.start()
        thread.join()
    assert found == [21.0]


def lacking(part):
    """A code generator of a Numba that has everything but one part, or has another in its place."""

    class Library(JITCodeLibrary):
        pass

    given = cpu_target.target_context.codegen()
    parts = {
        "_library_class": Library,
        "set_env": given.set_env,
        "_engine": given._engine,
        "_create_empty_module": given._create_empty_module,
    }
    if part in parts:
        del parts[part]
    elif part == "is_symbol_defined":
        parts["_engine"] = object()
    elif part == "is_symbol_defined of two":
        parts["_engine"] = SimpleNamespace(is_symbol_defined=lambda module, name: True)
    elif part == "_finalize_final_module of two":
        Library._finalize_final_module = lambda self, again: None
    elif part:
        setattr(Library, part, property(lambda self: None))
    return SimpleNamespace(**parts)


@pytest.mark.parametrize(
    "part",
    [
        *("_library_class", "set_env", "_engine", "is_symbol_defined", "is_symbol_defined of two"),
        *("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals"),
        *("_finalize_final_module of two", "_finalized"),
    ],
)
def test_numba_without_a_part_is_left_as_it_is(part):
    codegen = lacking(part)
    before = dict(vars(codegen))
    assert not adopt(codegen) and vars(codegen) == before


def test_numba_with_all_parts_is_taken():
    codegen = lacking("")
    before = codegen._library_class
    assert adopt(codegen) and codegen._library_class.__base__ is before


def test_numba_without_the_parts_compiles_the_same(monkeypatch):
    class Other(JITCodeLibrary):
        def _finalize_final_module(self, again=False):
            super()._finalize_final_module()

    codegen, asked = cpu_target.target_context.codegen(), []
    monkeypatch.setattr(codegen, "_library_class", Other)
    monkeypatch.setattr(helper_library, "_install", lambda: asked.append(adopt(codegen)))
    entry, inner = make(3.0)
    with only_entries([entry.__qualname__]):
        assert compiled(entry)(np.arange(5.0)) == 35.0
    assert asked == [False]
    (helper,) = inner.overloads.values()
    assert type(helper.library) is Other and helper.entry_point(2.0) == 6.0
