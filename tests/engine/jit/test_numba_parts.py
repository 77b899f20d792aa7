"""Parts of Numba that it promises nobody, and that `jit/` uses: each by its name.

A new version that lacks one fails here, in words, before anything is compiled by it. Then the file
that is named follows it. Names that only `fast/` uses may be missing: see `fast/feature_flag.py`.
"""

import ast
import functools
import importlib
import inspect
import operator
import tomllib
from pathlib import Path

import numba
import pytest
from packaging.requirements import Requirement

from slipstream.jit.fast import feature_flag

ROOT = Path(__file__).parents[3]
MACHINE = ROOT / "src/slipstream/jit"

# Where it is found -> what is used of it, and by which files.
PARTS = {
    "numba.core.config": (
        "codegen",
        "_config_fname reload_config CACHE_DIR DISABLE_JIT BOUNDSCHECK",
    ),
    "numba.core.compiler_lock": ("gemm parallel_compile", "global_compiler_lock"),
    "numba.core.typing": ("codegen", "signature"),
    "numba.core.typing.templates": (
        "struct_pointer_type",
        "AbstractTemplate AttributeTemplate infer_global",
    ),
    "numba.core.registry": ("gemm numba_patches codegen", "cpu_target"),
    "numba.core.cgutils": (
        "gemm intrinsics struct_pointer_type",
        "alloca_once for_range get_item_pointer get_or_insert_function if_unlikely intp_t "
        "is_not_null unpack_tuple",
    ),
    "numba.np.arrayobj": ("alignment", "populate_array"),
    "numba.np.linalg": ("codegen", "ensure_blas"),
    "numba.np.arraymath": ("codegen", "ensure_blas"),
    "the code generator": (
        "gemm numba_patches codegen",
        "_library_class set_env _engine magic_tuple create_library unserialize_library "
        "_data_layout _module_pass_manager",
    ),
    "its engine": ("numba_patches", "is_symbol_defined"),
    "a library": (
        "gemm numba_patches codegen",
        "_optimize_functions _optimize_final_module _finalize_dynamic_globals _finalized "
        "_final_module _shared_module _linking_libraries _get_module_for_linking "
        "add_linking_library add_ir_module enable_object_caching finalize "
        "get_pointer_to_function serialize_using_object_code",
    ),
    "the target's context": (
        "alignment atomics gemm codegen numba_patches simd struct_pointer_type",
        "_registries install_registry load_additional_registries refresh typing_context "
        "call_conv codegen data_model_manager get_data_type get_dummy_value "
        "get_value_type make_array make_tuple",
    ),
    "its calling convention": (
        "codegen",
        "call_function get_function_type return_status_propagate",
    ),
    "a compiled function": (
        "codegen",
        "disable_compile get_call_template nopython_signatures overloads stats",
    ),
    "one of its forms": ("codegen", "fndesc library"),
    "llvmlite.binding.ffi.lib": ("numba_patches parallel_compile", "_lock"),
    "its lock": ("numba_patches", "_lock _cblist"),
    "the typing context": (
        "numba_patches",
        "_registries install_registry load_additional_registries",
    ),
    "numba.core.postproc": ("numba_patches", "PostProcessor VariableLifetime transforms"),
    "a post-processor": ("numba_patches", "run func_ir _insert_var_dels"),
    "a function's intermediate form": (
        "numba_patches",
        "blocks generator_info is_generator variable_lifetime",
    ),
    "numba.core.transforms": ("numba_patches", "canonicalize_cfg"),
    "numba.core.types.functions": ("numba_patches", "BaseFunction"),
    "a function's type": ("numba_patches", "get_call_type typing_key _impl_keys"),
    "numba.types": ("codegen", "Boolean unliteral"),
}
OPTIONS = {"_nrt", "forceinline", "no_cpython_wrapper", "no_cfunc_wrapper", "error_model"}


@numba.njit([(numba.float64,)])
def doubled(x):
    return 2.0 * x


def places():
    registry = importlib.import_module("numba.core.registry")
    context = registry.cpu_target.target_context
    codegen = context.codegen()
    (form,) = doubled.overloads.values()
    postproc = importlib.import_module("numba.core.postproc")
    written = importlib.import_module("numba.core.compiler").run_frontend(doubled.py_func)
    found = {
        "the code generator": codegen,
        "its engine": codegen._engine,
        "a library": form.library,
        "the target's context": context,
        "its calling convention": context.call_conv,
        "a compiled function": doubled,
        "one of its forms": form,
        "llvmlite.binding.ffi.lib": (lib := importlib.import_module("llvmlite.binding.ffi").lib),
        "its lock": lib._lock,
        "the typing context": context.typing_context,
        "a post-processor": postproc.PostProcessor(written),
        "a function's intermediate form": written,
        "a function's type": context.typing_context.resolve_value_type(operator.add),
    }
    modules = [name for name in PARTS if "." in name and name not in found]
    return {**{name: importlib.import_module(name) for name in modules}, **found}


@pytest.mark.parametrize("where", PARTS)
def test_numba_has_what_is_used_of_it(where):
    files, names = PARTS[where]
    place = places()[where]
    lacking = [name for name in names.split() if not hasattr(place, name)]
    assert not lacking, (
        f"Numba {numba.__version__} lacks {', '.join(lacking)} of {where}: it never promised them. "
        f"They are used in {', '.join(f'jit/{file}.py' for file in files.split())}: "
        "change these files."
    )


def test_what_is_replaced_is_called_as_before():
    """`only_entries` replaces methods of a library and a function of the generator.

    `without_repeats` replaces methods of a function's type, of contexts and of what ends a pass.
    """
    found = places()
    library, codegen = found["a library"], found["the code generator"]
    kind, context = found["a function's type"], found["the target's context"]
    typing = found["the typing context"]
    takes = {
        "_optimize_functions": (library._optimize_functions, ["ll_module"]),
        "_optimize_final_module": (library._optimize_final_module, []),
        "_get_module_for_linking": (library._get_module_for_linking, []),
        "add_linking_library": (library.add_linking_library, ["library"]),
        "finalize": (library.finalize, []),
        "_finalize_dynamic_globals": (library._finalize_dynamic_globals, []),
        "a library": (type(library), ["codegen", "name"]),
        "set_env": (codegen.set_env, ["env_name", "env"]),
        "get_call_type": (kind.get_call_type, ["context", "args", "kws"]),
        "run": (found["a post-processor"].run, ["emit_dels", "extend_lifetimes"]),
        "load_additional_registries": (context.load_additional_registries, []),
        "load_additional_registries of types": (typing.load_additional_registries, []),
        "is_symbol_defined": (codegen._engine.is_symbol_defined, ["name"]),
    }
    for name, (function, parameters) in takes.items():
        found = list(inspect.signature(function).parameters)
        assert found == parameters, f"Numba {numba.__version__}: {name} takes {found} now"


def test_options_are_known():
    known = set(places_of_options())
    assert known >= OPTIONS, f"Numba {numba.__version__} lacks the options {OPTIONS - known}"


def places_of_options():
    options = importlib.import_module("numba.core.cpu").CPUTargetOptions
    return [name for name in dir(options) if not name.startswith("__")]


def test_newer_versions_than_the_tested_one_are_not_refused():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = [
        requirement
        for requirement in map(Requirement, project["dependencies"])
        if requirement.name == "numba"
    ]
    assert bounds.specifier.contains(numba.__version__) and bounds.specifier.contains("99.0")


def test_short_cuts_find_all_that_they_replace():
    assert feature_flag.missing() == [] and feature_flag.is_enabled()


def test_a_missing_part_switches_the_short_cuts_off(monkeypatch, caplog):
    monkeypatch.setattr(feature_flag, "PARTS", {"numba.core.postproc:PostProcessor": "run walk"})
    monkeypatch.setattr(
        feature_flag, "is_enabled", functools.cache(feature_flag.is_enabled.__wrapped__)
    )
    assert not feature_flag.is_enabled() and not feature_flag.is_enabled()
    (record,) = caplog.records
    assert "lacks numba.core.postproc.PostProcessor.walk" in record.message


def test_every_module_of_numba_that_is_imported_is_named():
    public = {"numba", "numba.types", "numba.extending", "numba.cuda"}
    for file in set(MACHINE.rglob("*.py")) - {Path(feature_flag.__file__)}:
        strings = {
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        used = {s for s in strings if s.startswith("numba.") and " " not in s} - public
        for name in used:
            assert file.stem in PARTS[name][0].split(), f"{file.name} uses {name}"
