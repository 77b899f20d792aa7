"""Numba's front end without repeats types as it does with them, and is its own again afterwards."""

import operator

import numba
import numpy as np
import pytest
from llvmlite.binding import ffi
from numba.core import errors
from numba.core.postproc import PostProcessor
from numba.core.registry import cpu_target
from numba.core.types.functions import BaseFunction
from numba.extending import intrinsic

from slipstream.jit.fast.numba_patches import skip_repeated_passes


def parts():
    target = cpu_target.target_context, cpu_target.typing_context
    contexts = [type(context).load_additional_registries for context in target]
    return BaseFunction.get_call_type, PostProcessor.run, *contexts, ffi.lib._lock._cblist


def sums(x, pair):
    total = x[0] + x[1] + x[2] + x[-1]
    for i in range(len(x)):
        if x[i] > pair[0]:
            total += np.sqrt(x[i]) * pair[0] + x[i]
    return total, pair[1][0], pair[1][1], -total


def mixed(x):
    return x[0] + "a"


def nothing(x):
    return x.nothing


@pytest.fixture
def asked(monkeypatch):
    """The keys and arguments that Numba itself is asked to resolve."""
    found, resolve = [], BaseFunction.get_call_type

    def get_call_type(self, context, args, kws):
        found.append((self.typing_key, args))
        return resolve(self, context, args, kws)

    monkeypatch.setattr(BaseFunction, "get_call_type", get_call_type)
    return found


def test_what_is_compiled_is_the_same():
    arguments = np.array([1.0, 4.0, 9.0]), (2, (5.0, 7))
    plain = numba.njit(sums)
    with skip_repeated_passes():
        brief = numba.njit(sums)
        assert brief(*arguments) == plain(*arguments) == sums(*arguments)
    assert brief.nopython_signatures == plain.nopython_signatures
    one, other = (next(iter(f.inspect_asm().values())).count("\n") for f in (brief, plain))
    assert one == other


def test_types_that_meet_again_are_resolved_once(asked):
    pair = numba.types.Tuple((numba.int64, numba.types.Tuple((numba.float64, numba.int64))))

    def resolved():
        asked.clear()
        numba.njit([(numba.float64[::1], pair)])(sums)
        return [args for key, args in asked if key is operator.add]

    often = resolved()
    with skip_repeated_passes():
        once = resolved()
    assert set(once) == set(often) and len(once) == len(set(once)) < len(often)


def test_an_error_is_told_as_without():
    for function, kind in ((mixed, numba.float64[::1]), (nothing, numba.int64)):
        with pytest.raises(errors.TypingError) as plain:
            numba.njit([(kind,)])(function)
        with skip_repeated_passes(), pytest.raises(errors.TypingError) as brief:
            numba.njit([(kind,)])(function)
        # Numba indents each failure further than the one before.
        assert str(brief.value).split() == str(plain.value).split()


def test_options_of_a_caller_reach_what_is_compiled_for_it():
    def last(x):
        return x[len(x) - 1] + x[3]

    x = np.arange(3.0)
    with skip_repeated_passes():
        unchecked, checked = (numba.njit(boundscheck=on)(last) for on in (False, True))
        unchecked(np.arange(4.0))
        with pytest.raises(IndexError):
            checked(x)


def test_a_generator_is_compiled_as_without():
    def squares(n):
        for i in range(n):
            kept = i * i
            yield kept
            yield kept + 1

    def total(n):
        found = 0
        for one in numbers(n):
            found += one
        return found

    numbers = numba.njit(squares)
    with skip_repeated_passes():
        assert numba.njit(total)(4) == sum(squares(4))


def test_what_is_declared_while_something_is_compiled_is_found():
    with skip_repeated_passes():

        @intrinsic
        def seven(context):
            return (
                numba.int64(),
                lambda context, builder, signature, args: numba.core.cgutils.intp_t(7),
            )

        assert numba.njit(lambda: seven())() == 7


def test_numbas_own_parts_serve_outside():
    before = parts()
    with skip_repeated_passes():
        inner = parts()
        assert all(one is not other for one, other in zip(inner, before, strict=True))
        with skip_repeated_passes():
            pass
        assert all(one is other for one, other in zip(inner, parts(), strict=True))
    assert all(one is other for one, other in zip(before, parts(), strict=True))
    with pytest.raises(KeyError), skip_repeated_passes():
        raise KeyError
    assert all(one is other for one, other in zip(before, parts(), strict=True))
