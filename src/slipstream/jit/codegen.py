"""Compile plain scalar functions, cached on disk by the content of all their dependencies.

Numba's own cache does not support closures over compiled functions: every process would compile
them again. Therefore the source of a loop is written to a module of its own, named by a hash of all
its sources and constants, in the user's cache folder. A second process loads the machine code in
well under a second. A cached module that has been altered is compiled again.

A compiled module calls another one by symbol, like a linker. Numba would inline the callee and
optimise both together. For loops as large as an environment's that is most of the caller's compile
time, without benefit: they are called once for many rows.
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

# Modules loaded by this process. Machine code is never unloaded, so a study with hundreds of
# environments would hold as many copies, and spend 0.05 s on each.
_loaded: dict[Path, dict[str, Any]] = {}


# Kernels allocate nothing, so reference counting, two atomic additions per read of `d.bars`, is
# disabled, and helpers are inlined. Measured on forex, steps per second of one core: 1.3 M with
# reference counting and calls, 5.3 M without.
_OPTIONS = {"error_model": "numpy", "_nrt": False}
# Numba's wrapper for C callbacks unpacks all arguments again and is never used.
_ENTRY_OPTIONS = {**_OPTIONS, "cache": True, "nogil": True, "no_cfunc_wrapper": True}
# Helpers are never called from Python: a large kernel compiles faster without those wrappers.
_HELPER_OPTIONS = {
    **_OPTIONS,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

# Parts of Numba's messages: colours, locations, and lines without use for a kernel's author.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PLACES = re.compile(r" at (/.+?|\w:.+?) \((\d+)\)")
_FRAMES = ("Failed in nopython", "File ", "During:", "Traceback", "- Resolution failure", "[1]")


def get_source(functions: Sequence[Callable[..., Any]]) -> str:
    """Return the source of the functions, one after another."""
    return "\n\n".join(_source(function) for function in functions)


@functools.cache  # populations are assembled repeatedly
def _source(function: Callable[..., Any]) -> str:
    return inspect.getsource(function)


def build_interpreted(
    text: str, bindings: Mapping[str, FunctionType], constants: Mapping[str, Any]
) -> ModuleType:
    """Return a module made of `text` with plain functions bound: the reference of all backends."""
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
    """Compile functions of `text`, or load them from the cache.

    Args:
        name: for file names and messages.
        text: Python source of the entry functions; it may call the names of `bindings`.
        entries: entry function -> example arguments, whose Numba types define its only signature.
        bindings: plain functions by the name under which `text` calls them.
        constants: further globals of `text` (numbers, NamedTuple classes, dtypes).
        inline: inline every helper at every call. Large helpers then take twice as long to compile.
        checked: names of `bindings` that are compiled with bounds checks, including their helpers:
            an index out of range is an IndexError there.
        linked: compiled functions called by symbol, by their name in `text`; see `call_by_symbol`.
        bound_globals: plain functions that replace globals of helpers that are None.
        noinline: plain functions whose compiled versions helpers also call by symbol.
        returns: example of the entry functions' return value, if other modules call them.
        struct_pointers: pass NamedTuples to helpers as one pointer, see `StructPointerType`.
            Compiles faster, but is slower in small loops that read many fields.

    Returns:
        Compiled functions by name, which release the GIL. Within `compile_in_parallel`, functions
            of
        uncached modules are lazy.
    """
    numba = _numba()
    linked, noinline = linked or {}, noinline or {}
    helpers = _HelperCompiler(numba, inline, noinline, struct_pointers)
    reached = ClosureBinder(helpers.compiled, bound_globals, noinline)
    bound = helpers.bound(reached, bindings, checked)
    typeof: Any = numba.typeof
    signatures = {entry: tuple(map(typeof, examples)) for entry, examples in entries.items()}
    facts = [text, reached.digest(), sys.version, numba.__version__, np.__version__]
    facts += [f"{key}={f.__module__}.{f.__qualname__}" for key, f in sorted(bindings.items())]
    facts += [
        f"{key}={value!r} {getattr(value, '_fields', '')}"
        for key, value in sorted(constants.items())
    ]
    for entry, kinds in sorted(signatures.items()):
        facts += [entry, *map(type_layout, kinds)]
    facts += [repr(helpers.options), *sorted(helpers.forms)]
    # Names of their modules include the digests of their dependencies.
    others = {f"{f.__module__}.{f.__qualname__}": compiled for f, compiled in noinline.items()}
    elsewhere = {**linked, **others}
    facts += [f"{key}={signature_key(f)}" for key, f in sorted(elsewhere.items())]
    facts += [_digest_of_calls()] if elsewhere else []
    # For machines that share a home folder: what Numba compares before loading.
    facts += [repr(_processor()), repr(sorted(checked)), repr(numba.config.BOUNDSCHECK)]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:20]
    # Part of symbols (`call_by_symbol`), which LLVM reads as ASCII.
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
    """Return the functions of a module, built or loaded once per process."""
    for function in calls:
        register_symbol(function)
    if multiplies:
        gemm.load_library(waits=waits)
    with CompileLock.lock, _own_folder(_numba()):
        if folder not in _loaded:
            loaded = _found(name, folder, load) or _made(name, folder, text, load, waits)
            if loaded is None:
                return {}
            _loaded[folder] = loaded
    return _loaded[folder]


def _home(name: str) -> str:
    """Return the name of a module from its folder's name."""
    return f"slipstream_rendered_{name}"


class _HelperCompiler:
    """Compiler of helper functions.

    Args:
        inline: see `compile_module`; apart: functions called by symbol; refers: pass NamedTuples as
            pointers.

    Attributes:
        options: Numba options of the next function.
        size: bytes of Python bytecode of all helpers.
        forms: digests of the intrinsics in use.
        multiplies: true if matrix products, which are a separate library, are in use.
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
        """Return the compiled versions of `bindings`; those in `checked` have bounds checks."""
        resolved = {}
        # Checked functions first, so that helpers of both kinds are checked.
        for key in sorted(bindings, key=lambda key: key not in checked):
            self.options["boundscheck"] = key in checked
            resolved[key] = reached.bind(bindings[key])
        self.options["boundscheck"] = False
        return resolved

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
    module_name: str,
    text: str,
    names: Mapping[str, Any],
    signatures: Mapping[str, tuple[Any, ...]],
    helpers: _HelperCompiler,
    folder: Path,
) -> dict[str, Any]:
    """Return the compiled entry functions of the text, or load them from the folder.

    Args:
        name: Name for messages.
        module_name: Name of the module with its digest.
        text, names: Source and further globals of the module.
        signatures: Signatures of the entry functions.
        helpers: Compiler of functions defined by the text.
        folder: Folder of its files.
    """
    path = folder / f"{module_name.rpartition('_')[0]}.py"
    module = _module(_home(module_name), path, text, names)
    # Functions defined by the text are compiled as helpers.
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
    """Return functions of an intact cached module, else None."""
    if not folder.exists():
        return None
    if not is_intact(folder):
        log.warning("the compiled code of %s in %s is damaged: compiling it again", name, folder)
        discard(folder)
        return None
    try:
        result = load(folder)
    except KernelError as error:  # its types are of modules that were renamed
        log.warning("%s cannot be loaded from %s: compiling it again (%s)", name, folder, error)
        discard(folder)
        return None
    if any(function.stats.cache_misses for function in result.values()):
        write_checksum(folder)  # Numba considered it stale and wrote it again
    return result


def _made(name: str, folder: Path, text: str, load: _Load, waits: bool) -> dict[str, Any] | None:
    """Compile a module, or wait for the process that is compiling it and load its result.

    Returns None if another process is compiling it and `waits` is false.
    """
    with build_lock(folder, waits) as is_locked:
        if not is_locked and not waits:
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
    """Return Numba, imported on first use because many commands do not need it.

    Raises:
        ResourceError: compilation is disabled.
    """
    _ignore_numba_config()
    import numba

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise ResourceError(
            "NUMBA_DISABLE_JIT is set, but training needs compiled loops. Unset it (`unset "
            "NUMBA_DISABLE_JIT`). To step a kernel uncompiled, for example in a debugger, use "
            'slipstream.make_vec(..., backend="serial").'
        )
    if is_enabled():
        _leave_scipy()
    # Numba's type of bool lacks the width in memory that fixed arrays need.
    numba.types.Boolean.bitwidth = 8  # type: ignore[attr-defined]
    return numba


@functools.cache
def _leave_scipy() -> None:
    """Let Numba find SciPy's linear algebra without importing it, which takes 0.15 s.

    Numba checks once whether it exists, and again when a function needs it.
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
    """Import Numba such that it ignores a `.numba_config.yaml` in the working directory.

    Numba reads that file at import and before compiling: a folder of another user could disable
    compilation or change results. Environment variables still apply.
    """
    here = os.open(".", os.O_RDONLY) if os.path.isfile(".numba_config.yaml") else None
    try:
        if here is not None:
            os.chdir(Path(__file__).parent)  # has no such file
        config: Any = importlib.import_module("numba.core.config")
        config._config_fname = os.devnull  # no regular file; there is no public switch
        config.reload_config()
    finally:
        if here is not None:
            os.fchdir(here)
            os.close(here)


def _one_form(helper: Any, plain: Callable[[Any], Any]) -> Any:
    """Compile a helper once for all integers; Numba would compile it for each literal constant.

    Args:
        plain: returns the argument type to compile for.
    """
    numba: Any = importlib.import_module("numba")
    ask = helper.get_call_template

    def asked(args: Any, kws: Any) -> Any:
        with compile_entries_only(()):  # a helper may share its name with an entry
            try:
                return ask([plain(a) for a in args], {name: plain(a) for name, a in kws.items()})
            except numba.core.errors.TypingError:
                return ask(args, kws)  # the constant matters, as in an index of a tuple

    helper.get_call_template = asked
    return helper


@functools.cache
def _processor() -> Any:
    """Return the target of machine code."""
    registry: Any = importlib.import_module("numba.core.registry")
    return registry.cpu_target.target_context.codegen().magic_tuple()


@contextmanager
def _own_folder(numba: Any) -> Iterator[None]:
    """Keep Numba's cache files beside the module, independent of `NUMBA_CACHE_DIR`."""
    kept = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = ""
    try:
        yield
    finally:
        numba.config.CACHE_DIR = kept


def explain(name: str, message: str, rendered: Path) -> str:
    """Summarise Numba's error message in one paragraph: location and reason."""
    message = _COLOURS.sub("", message)
    foreign = (str(rendered.parent), str(Path(inspect.getfile(np)).parents[1]))
    places = [m for m in _PLACES.findall(message) if not m[0].startswith(foreign)]
    where, what = name, f"kernel `{name}`"
    if places:
        file, line = places[0]
        where, what = f"{file}:{line}", f"`{linecache.getline(file, int(line)).strip()}`"
    lines = [line.strip() for line in message.splitlines()]
    messages = [line for line in lines if line and not line.startswith(_FRAMES)]
    calls = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    reason = " ".join([*messages[:1], *calls[:1]]) or message
    return (
        f"{where}: {what} cannot be compiled: {reason}. A kernel calculates with numbers, fields "
        "of its records and elements of arrays, and a variable keeps one type."
    )


def _module(name: str, path: Path, text: str, names: Mapping[str, Any]) -> ModuleType:
    """Return a module of `text`, also stored at `path`, without a bytecode file."""
    module = ModuleType(name)
    module.__file__ = str(path)
    vars(module).update(names)
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module


@functools.cache
def _digest_of_calls() -> str:
    """Return the digest of this file, which the digests of callers do not cover."""
    return source_digest(__name__)


def register_symbol(function: Any) -> None:
    """Register the address of a compiled function with LLVM, for modules that call it by symbol.

    A helper process of `compile_in_parallel` calls nothing, so a stub is sufficient.
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
            f"{function.__module__}.{function.__name__} is declared to return "
            f"{function.kind.return_type}, for which its callers are compiled, but it returns "
            f"{kind.return_type}: fix its annotation."
        )
    llvm: Any = importlib.import_module("llvmlite.binding")
    made = compiled.overloads[kind.args]
    place = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
    llvm.add_symbol(_symbol(compiled), place)


def _symbol(function: Any) -> str:
    return f"{function.__module__}_{function.__name__}"


def _signature(function: Any) -> Any:
    """Return Numba's signature of a compiled or lazy function; None for other objects."""
    if isinstance(function, LazyFunction):
        return function.kind
    return function.nopython_signatures[0] if hasattr(function, "overloads") else None


def signature_key(function: Any) -> str:
    """Return what a caller's code depends on: the symbol and its return type."""
    kind = _signature(function)
    return f"{_symbol(function)}: {None if kind is None else kind.return_type}"


def call_by_symbol(function: Any) -> Any:
    """Return an intrinsic that calls a compiled function of another module by its symbol.

    A cached caller also finds its callee by symbol: the module name identifies all dependencies.
    `register_symbol` must run before the caller is compiled or loaded.

    Args:
        function: compiled for one signature and never unloaded, or lazy; other objects, such as
            intrinsics, are returned unchanged.
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

    # Numba passes `*args` as one tuple; this signature has the callee's number of arguments.
    names = ("typing_context", *(f"a{i}" for i in range(len(kind.args))))
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return make_intrinsic(call)
