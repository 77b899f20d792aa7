"""Helpers of compiled functions have no machine code of their own; everything else is as ever."""

import threading

import numba
import numpy as np
import pytest
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from slipstream.jit.fast.numba_patches import compile_entries_only


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
    with compile_entries_only([entry.__qualname__]):
        light = compiled(entry)
    assert light(x) == compiled(make(3.0)[0])(x) == 35.0


def test_what_is_compiled_outside_can_be_called():
    entry, inner = make(2.0)
    with compile_entries_only([entry.__qualname__]):
        assert compiled(entry)(np.ones(2)) == 6.0
    entry, inner = make(5.0)
    assert inner(2.0) == 10.0 and compiled(entry)(np.ones(1)) == 6.0


def test_a_helper_that_is_called_outside_brings_what_it_calls():
    """Numba keeps what it compiles for its own functions, for whoever needs them next."""
    _, inner = make(2.0)
    bare = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
    middle = bare(lambda x: inner(x) - 1.0)
    helper = bare(lambda x: middle(x) * 2.0)
    with compile_entries_only(["nobody"]):
        helper.compile((numba.float64,))
    outer = numba.njit(lambda x: helper(x) + middle(x))
    assert outer(3.0) == 15.0


def test_a_function_that_many_call_is_linked_once():
    once = numba.njit(lambda x: x + 1.0)
    callers = [numba.njit(lambda x, by=by: once(x) * by) for by in (2.0, 3.0)]
    first, second = callers

    def entry(x):
        return first(x) + second(x) + once(x)

    with compile_entries_only([entry.__qualname__]):
        function = numba.njit([(numba.float64,)])(entry)
    (form,) = function.overloads.values()
    libraries = form.library._linking_libraries
    assert function(1.0) == 12.0 and len(libraries) == len(set(libraries)) > 2


def test_another_threads_functions_are_whole():
    found = []
    with compile_entries_only(["nobody"]):
        thread = threading.Thread(target=lambda: found.append(make(7.0)[1](3.0)))
        thread.start()
        thread.join()
    assert found == [21.0]


def test_numbas_own_class_serves_outside():
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class
    assert before is JITCodeLibrary
    with compile_entries_only(["nobody"]):
        assert codegen._library_class.__base__ is before
        with compile_entries_only(["somebody"]):
            assert codegen._library_class.__base__ is before
        assert codegen._library_class.__base__ is before
    with pytest.raises(KeyError), compile_entries_only(["nobody"]):
        raise KeyError
    assert codegen._library_class is before
    inner = make(3.0)[1]
    assert inner(2.0) == 6.0
    (alone,) = inner.overloads.values()
    assert type(alone.library) is before
