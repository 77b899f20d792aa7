"""From plain scalar functions to compiled ones, cached on disk by the content of all they reach.

Numba's own cache does not survive closures over compiled functions: it compiles again in every
process. So the text of the loop is written into a module of its own, named by a hash of every
source and constant that the kernel reaches, in the user's cache folder; a second process then loads
machine code in well under a second. What is found there and differs from what was written is
compiled again.

A compiled module calls another one by symbol, as a linker does it. Numba would take the callee's
code into the caller to optimise both together. With loops as large as an environment's that is most
of the caller's time to compile, and gains nothing: they are called once for many rows.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from slipstream.core.errors import KernelError, ResourceError
from slipstream.jit import alignment, atomics, float32, gemm, simd
from slipstream.jit.alignment import gc_paused
from slipstream.jit.cache import (
    build_lock,
    cache_folder,
    cannot_write,
    discard,
    is_intact,
    prune,
    staged_folder,
    write_checksum,
)
from slipstream.jit.dependencies import ClosureBinder
from slipstream.jit.fast.feature_flag import is_enabled
from slipstream.jit.fast.numba_patches import compile_entries_only, skip_repeated_passes
from slipstream.jit.fast.parallel_compile import (
    CompileLock,
    LazyFunction,
    PendingModule,
    is_helper,
    pending_modules,
    register_stub,
    resolve,
)
from slipstream.jit.float32 import compiled_variant
from slipstream.jit.intrinsics import llvm_modules, make_intrinsic, source_digest, type_layout

log = logging.getLogger("slipstream")

# What this process has loaded: machine code is never unloaded, so a study that makes environments
# by the hundred would hold it as often, and load it in 0.05 s each time.
_loaded: dict[Path, dict[str, Any]] = {}


# Kernels allocate nothing, so their arrays need no counting of references, which costs two atomic
# additions at every read of `d.bars`; helpers are inlined wherever they are called. Measured on
# forex, steps per second of one core: 1.3 M with counting and calls, 5.3 M without.
_OPTIONS = {"error_model": "numpy", "_nrt": False}
# Numba's wrapper for callbacks from C unpacks all arguments once more, and nobody calls it.
_ENTRY_OPTIONS = {**_OPTIONS, "cache": True, "nogil": True, "no_cfunc_wrapper": True}
# Nobody calls a helper from Python: without the wrappers for that a large kernel compiles faster.
_HELPER_OPTIONS = {
    **_OPTIONS,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

# Parts of Numba's messages: colours, places, and lines that say nothing to a kernel's author.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLACES = re.compile(r" at (/.+?|\w:.+?) \((\d+)\)")
_FRAMES = ("Failed in nopython", "File ", "During:", "Traceback", "- Resolution failure", "[1]")


def get_source(functions: Sequence[Callable[..., Any]]) -> str:
    """The text of the functions, one after another."""
    return "\n\n".join(_source(function) for function in functions)


@functools.cache  # populations are assembled again and again
def _source(function: Callable[..., Any]) -> str:
    return inspect.getsource(function)


def build_interpreted(
    text: str, bindings: Mapping[str, FunctionType], constants: Mapping[str, Any]
) -> ModuleType:
    """A module made of `text` with the plain functions bound: the oracle of every other backend."""
    reached = ClosureBinder(lambda function: function)
    bound = {name: reached.bind(function) for name, function in bindings.items()}
    module = ModuleType("slipstream_interpreted")
    vars(module).update(constants, **bound)
    exec(compile(text, "<batch loop>", "exec"), vars(module))
    return module


@gc_paused()
def compile_module(
    name: str,
    text: str,
    entries: Mapping[str, tuple[Any, ...]],
    bindings: Mapping[str, FunctionType],
    constants: Mapping[str, Any],
    inline: bool = True,
    checked: Collection[str] = (),
    linked: Mapping[str, Any] | None = None,
    bound_globals: Mapping[str, FunctionType] | None = None,
    noinline: Mapping[FunctionType, Any] | None = None,
    returns: Any = None,
    struct_pointers: bool = False,
) -> dict[str, Any]:
    """Compiles functions of `text`, or loads them from the cache.

    Args:
        name: what is compiled, for file names and messages.
        text: Python source that defines the entry functions; it may call the names of `bindings`.
        entries: entry function -> example arguments, whose Numba types make its one signature.
        bindings: plain functions by the name under which `text` calls them.
        constants: further globals of `text` (numbers, NamedTuple classes, dtypes).
        inline: every helper at every call. Large helpers take twice as long to compile so.
        checked: names of `bindings` that compare their indices with the sizes of arrays, and so do
            the helpers they call: an index out of range is an IndexError there.
        linked: functions that this one has compiled, by the name under which `text` calls them:
            by symbol, see `by_symbol`.
        given: plain functions for helpers' globals that are None.
        apart: plain functions whose compiled forms helpers call by symbol, too.
        returns: example of what the entry functions return, where other modules call them.
        refers: helpers are given NamedTuples as one pointer, see `StructPointerType`. It takes less
            time to compile, and does not pay in small loops that read many fields.

    Returns:
        Compiled functions by name. They release the interpreter lock. Within `together`, those of
        a module that nobody compiled yet come later.
    """
    numba = _numba()
    linked, noinline = linked or {}, noinline or {}
    helpers = _HelperCompiler(numba, inline, noinline, struct_pointers)
    reached = ClosureBinder(helpers.compiled, bound_globals, noinline)
    bound = helpers.bound(reached, bindings, checked)
    typeof: Any = numba.typeof
    signatures = {entry: tuple(map(typeof, shown)) for entry, shown in entries.items()}
    facts = [text, reached.digest(), sys.version, numba.__version__, np.__version__]
    facts += [f"{key}={f.__module__}.{f.__qualname__}" for key, f in sorted(bindings.items())]
    facts += [
        f"{key}={value!r} {getattr(value, '_fields', '')}"
        for key, value in sorted(constants.items())
    ]
    for entry, kinds in sorted(signatures.items()):
        facts += [entry, *map(type_layout, kinds)]
    facts += [repr(helpers.options), *sorted(helpers.forms)]
    # Their modules are named by all that they reach.
    others = {f"{f.__module__}.{f.__qualname__}": compiled for f, compiled in noinline.items()}
    elsewhere = {**linked, **others}
    facts += [f"{key}={signature_key(f)}" for key, f in sorted(elsewhere.items())]
    facts += [_digest_of_calls()] if elsewhere else []
    # Machines that share a home folder: what Numba compares before it loads.
    facts += [repr(_processor()), repr(sorted(checked)), repr(numba.config.BOUNDSCHECK)]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    # Symbols are made of it (`by_symbol`), and LLVM reads those as ASCII.
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    folder = cache_folder() / f"{stem}_{digest}"
    if folder in _loaded:
        return _loaded[folder]
    called = {key: call_by_symbol(function) for key, function in linked.items()}
    names = {**constants, **bound, **called}
    load = functools.partial(_load, name, folder.name, text, names, signatures, helpers)
    calls = tuple(elsewhere.values())
    make = functools.partial(_make, name, folder, text, load, calls, helpers.multiplies)
    queue = pending_modules()
    if queue is None or folder.exists():
        return make(waits=True)
    if helpers.multiplies:
        products_too = gemm.library()
        queue.setdefault(products_too.folder, products_too)
    module = queue.setdefault(folder, PendingModule(folder, helpers.size + len(text), calls, make))
    home, kind_of = _home(folder.name), numba.core.typing.signature
    return {
        entry: LazyFunction(module, home, entry, kind_of(typeof(returns), *arguments))
        for entry, arguments in signatures.items()
    }


@gc_paused()
def _make(
    name: str, folder: Path, text: str, load: _Load, calls: Sequence[Any], multiplies: bool, *,
    waits: bool,
) -> dict[str, Any]:  # fmt: skip
    """The functions of a module, compiled or loaded once in this process; see `Module.make`."""
    for function in calls:
        register_symbol(function)
    if multiplies:
        gemm.load_library(waits=waits)
    with CompileLock.lock, _own_folder(_numba()):
        if folder not in _loaded:
            found = _found(name, folder, load) or _made(name, folder, text, load, waits)
            if found is None:
                return {}
            _loaded[folder] = found
    return _loaded[folder]


def _home(own: str) -> str:
    """The name of a module, of its folder's."""
    return f"slipstream_rendered_{own}"


class _HelperCompiler:
    """Makes the compiled forms of helper functions.

    Args:
        inline, refers: see `compile_module`; apart: what is called by symbol.

    Attributes:
        options: of Numba, for the next one.
        size: bytes of Python's code of all of them.
        forms: digests of the machine forms that were reached.
        multiplies: whether products were reached, which are a library of their own.
    """

    def __init__(
        self, numba: Any, inline: bool, apart: Mapping[FunctionType, Any], refers: bool
    ) -> None:
        self.njit: Any = numba.njit
        self.size = 0
        self._apart = apart
        self.options = {**_HELPER_OPTIONS, "forceinline": inline}
        self.forms: set[str] = set()
        self.multiplies = False
        self._given = numba.types.unliteral
        if refers:
            from slipstream.jit import struct_pointer_type

            self.forms.add(source_digest(struct_pointer_type.__name__))
            self._given = lambda kind: struct_pointer_type.as_pointer_type(
                numba.types.unliteral(kind)
            )

    def bound(
        self, reached: ClosureBinder, bindings: Mapping[str, FunctionType], checked: Collection[str]
    ) -> dict[str, Any]:
        """The compiled forms of `bindings`; those `checked` compare indices with sizes."""
        found = {}
        # Those that are checked first: a helper of both kinds is checked.
        for key in sorted(bindings, key=lambda key: key not in checked):
            self.options["boundscheck"] = key in checked
            found[key] = reached.bind(bindings[key])
        self.options["boundscheck"] = False
        return found

    def compiled(self, function: FunctionType) -> Any:
        if function in self._apart:
            return call_by_symbol(self._apart[function])
        for module in (gemm, atomics, simd, alignment, float32):
            form = module.forms.get(function)
            if form is not None:
                self.forms.add(module.forms.digest)
                self.multiplies = self.multiplies or module is gemm
                return form
        self.size += len(function.__code__.co_code)
        return _one_form(self.njit(**self.options)(compiled_variant(function)), self._given)


def _load(
    name: str,
    own: str,
    text: str,
    names: Mapping[str, Any],
    signatures: Mapping[str, tuple[Any, ...]],
    helpers: _HelperCompiler,
    folder: Path,
) -> dict[str, Any]:
    """The entry functions of the text, compiled, or as they lie in the folder.

    Args:
        name: for messages; own: the module's, with its digest.
        text, names: its source and further globals; signatures: of the entry functions.
        helpers: for functions that the text itself defines.
        folder: where its files are, or are made.
    """
    path = folder / f"{own.rpartition('_')[0]}.py"
    module = _module(_home(own), path, text, names)
    # Functions that the text itself defines are compiled where they are called.
    for key, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and value.__code__.co_filename == str(path):
            setattr(module, key, value if key in signatures else helpers.compiled(value))
    result = {}
    for entry, signature in signatures.items():
        compile_entry = helpers.njit([signature], **_ENTRY_OPTIONS)
        try:
            with compile_entries_only([entry]):
                function = compile_entry(getattr(module, entry))
        except OSError as error:
            raise cannot_write(folder.parent, error) from error
        except Exception as error:  # Numba's own errors, and those that escape it
            raise KernelError(explain(name, str(error), path)) from error
        function.disable_compile()
        setattr(module, entry, function)
        result[entry] = function
    return result


_Load = Callable[[Path], dict[str, Any]]


def _found(name: str, folder: Path, load: _Load) -> dict[str, Any] | None:
    """What was compiled before; None where there is nothing, or nothing that may be loaded."""
    if not folder.exists():
        return None
    if not is_intact(folder):
        log.warning("the compiled code of %s in %s is damaged: compiling it again", name, folder)
        discard(folder)
        return None
    try:
        result = load(folder)
    except KernelError as error:  # its types are of modules that have another name by now
        log.warning("%s cannot be loaded from %s: compiling it again (%s)", name, folder, error)
        discard(folder)
        return None
    if any(function.stats.cache_misses for function in result.values()):
        write_checksum(folder)  # Numba thought otherwise, and wrote it again
    return result


def _made(name: str, folder: Path, text: str, load: _Load, waits: bool) -> dict[str, Any] | None:
    """Compiles it, unless another process does that already: then what that one made.

    None where it is not to be waited for, either.
    """
    with build_lock(folder, waits) as own:
        if not own and not waits:
            return None
        result = _found(name, folder, load)
        if result is not None:
            return result
        log.info("compiling %s (once; the result is kept in %s)", name, folder.parent)
        with staged_folder(folder) as unfinished, skip_repeated_passes():
            path = unfinished / f"{folder.name.rpartition('_')[0]}.py"
            path.write_text(text, encoding="utf-8")
            result = load(unfinished)
    prune(folder.parent)
    return result


def _numba() -> Any:
    """Numba, imported here and not above: commands that step nothing need not wait for it.

    Raises:
        ResourceError: it is told to compile nothing.
    """
    _ignore_numba_config()
    import numba

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise ResourceError(
            "NUMBA_DISABLE_JIT is set, and compiled loops are what slipstream trains with; unset "
            "it (`unset NUMBA_DISABLE_JIT`). A kernel is stepped uncompiled, in a debugger too, by "
            'slipstream.make_vec(..., backend="serial").'
        )
    if is_enabled():
        _leave_scipy()
    # Numba has the types of fixed arrays of bool, but for the width of their elements in memory.
    numba.types.Boolean.bitwidth = 8  # type: ignore[attr-defined]
    return numba


@functools.cache
def _leave_scipy() -> None:
    """Lets Numba look for SciPy's linear algebra without importing it, which takes 0.15 s.

    It does so once, to know whether there is any, and again where somebody's function needs it.
    """
    linear: Any = importlib.import_module("numba.np.linalg")
    ask = linear.ensure_blas

    def look() -> None:
        if importlib.util.find_spec("scipy") is None:
            raise ImportError("no SciPy")

    linear.ensure_blas = look
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        linear.ensure_blas = ask


@functools.cache
def _ignore_numba_config() -> None:
    """Imports Numba so that it obeys no `.numba_config.yaml` of the working folder, now or later.

    It reads that when it is imported and before it compiles: a folder that somebody else made could
    switch compiling off, or change bits. Variables of the environment are the user's own.
    """
    here = os.open(".", os.O_RDONLY) if os.path.isfile(".numba_config.yaml") else None
    try:
        if here is not None:
            os.chdir(Path(__file__).parent)  # our own, which has no such file
        config: Any = importlib.import_module("numba.core.config")
        config._config_fname = os.devnull  # no regular file; there is no public switch
        config.reload_config()
    finally:
        if here is not None:
            os.fchdir(here)
            os.close(here)


def _one_form(helper: Any, plain: Callable[[Any], Any]) -> Any:
    """A helper compiled once for all integers: Numba would do it for each constant it is given.

    Args:
        plain: the type that it is given for one that it is called with.
    """
    numba: Any = importlib.import_module("numba")
    ask = helper.get_call_template

    def asked(args: Any, kws: Any) -> Any:
        with compile_entries_only(()):  # a helper may have an entry's name
            try:
                return ask([plain(a) for a in args], {name: plain(a) for name, a in kws.items()})
            except numba.core.errors.TypingError:
                return ask(args, kws)  # the constant matters, as in an index of a tuple

    helper.get_call_template = asked
    return helper


@functools.cache
def _processor() -> Any:
    """What machine code is made for."""
    registry: Any = importlib.import_module("numba.core.registry")
    return registry.cpu_target.target_context.codegen().magic_tuple()


@contextmanager
def _own_folder(numba: Any) -> Iterator[None]:
    """Numba keeps its files beside the module, wherever `NUMBA_CACHE_DIR` points."""
    kept = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = ""
    try:
        yield
    finally:
        numba.config.CACHE_DIR = kept


def explain(name: str, message: str, rendered: Path) -> str:
    """One paragraph out of Numba's many: where, and what could not be compiled."""
    message = _COLOURS.sub("", message)
    foreign = (str(rendered.parent), str(Path(inspect.getfile(np)).parents[1]))
    places = [m for m in _PLACES.findall(message) if not m[0].startswith(foreign)]
    where, what = name, f"kernel `{name}`"
    if places:
        file, line = places[0]
        where, what = f"{file}:{line}", f"`{linecache.getline(file, int(line)).strip()}`"
    lines = [line.strip() for line in message.splitlines()]
    told = [line for line in lines if line and not line.startswith(_FRAMES)]
    calls = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    reason = " ".join([*told[:1], *calls[:1]]) or message
    return (
        f"{where}: {what} cannot be compiled: {reason}. A kernel calculates with numbers, fields "
        "of its records and elements of arrays, and a variable keeps one type."
    )


def _module(name: str, path: Path, text: str, names: Mapping[str, Any]) -> ModuleType:
    """A module of `text`, which also lies at `path`: no second file of bytecode beside it."""
    module = ModuleType(name)
    module.__file__ = str(path)
    vars(module).update(names)
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module


@functools.cache
def _digest_of_calls() -> str:
    """Return that of this file, which no caller's own code covers."""
    return source_digest(__name__)


def register_symbol(function: Any) -> None:
    """Tells the linker where a compiled function is, for modules that call it by its symbol.

    A helper of `together` compiles and calls nothing: it need not have what is called.
    """
    if isinstance(function, LazyFunction) and is_helper():
        register_stub(_symbol(function))
        return
    compiled = resolve(function)
    if not hasattr(compiled, "overloads"):  # an intrinsic is nowhere
        return
    kind = _signature(compiled)
    if kind.return_type != _signature(function).return_type:
        raise KernelError(
            f"{function.__module__}.{function.__name__} was said to return "
            f"{function.kind.return_type}, for which its callers are compiled, and it returns "
            f"{kind.return_type}: mend what its annotation says."
        )
    llvm: Any = importlib.import_module("llvmlite.binding")
    made = compiled.overloads[kind.args]
    place = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    llvm.add_symbol(_symbol(compiled), place)


def _symbol(function: Any) -> str:
    return f"{function.__module__}_{function.__name__}"


def _signature(function: Any) -> Any:
    """Numba's signature of a compiled function, there or to come; None of anything else."""
    if isinstance(function, LazyFunction):
        return function.kind
    return function.nopython_signatures[0] if hasattr(function, "overloads") else None


def signature_key(function: Any) -> str:
    """What a caller's code depends on: the symbol, and what it takes the function to return."""
    kind = _signature(function)
    return f"{_symbol(function)}: {None if kind is None else kind.return_type}"


def call_by_symbol(function: Any) -> Any:
    """What compiled code calls in order to call a compiled function of another module.

    A caller that lies in the cache finds its callee by the symbol, too: the name of its module says
    all that it reaches. `announce` comes before the caller is compiled or loaded.

    Args:
        function: compiled for one signature, and never unloaded, or to come later; anything else,
            an intrinsic, is returned as it is.
    """
    kind = _signature(function)
    if kind is None:
        return function
    cgutils = llvm_modules().cgutils

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        convention, returned = context.call_conv, signature.return_type
        shape = convention.get_function_type(returned, signature.args)
        callee = cgutils.get_or_insert_function(builder.module, shape, _symbol(function))
        status, result = convention.call_function(builder, callee, returned, signature.args, args)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    def call(typing_context: Any, *args: Any) -> Any:
        return kind, emit

    # Numba hands a function with `*args` one tuple; this one has as many arguments as the callee.
    names = ("typing_context", *(f"a{i}" for i in range(len(kind.args))))
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return make_intrinsic(call)
