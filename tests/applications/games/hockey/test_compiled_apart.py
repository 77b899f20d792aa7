"""Hockey's step is compiled in parts."""

from types import ModuleType

from slipstream.kernels.compiler import compile_noinline as compile_apart
from slipstream.kernels.kernel_registry import load_kernel


def test_only_built_in_kernels_say_what_is_compiled_apart():
    """A user's constant may have that name."""
    hockey, mine = load_kernel("hockey"), ModuleType("mine")
    assert hockey.NOINLINE
    assert compile_apart(hockey._replace(module=mine, NOINLINE=0.5), ()) == {}
