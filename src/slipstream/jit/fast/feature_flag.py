"""Feature flag of the shortcuts of this package, which use private parts of Numba.

`SLIPSTREAM_PLAIN_NUMBA=1` disables them, as does a Numba version that lacks one of those parts.
Results are bit-identical either way.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Mapping

log = logging.getLogger("slipstream")

PLAIN = "SLIPSTREAM_PLAIN_NUMBA"

PARTS: Mapping[str, str] = {
    "numba.core.compiler_lock": "global_compiler_lock",
    "numba.core.codegen:JITCPUCodegen": "_library_class set_env _module_pass_manager",
    "numba.core.codegen:JITCodeLibrary": (
        "_optimize_functions _optimize_final_module _finalize_dynamic_globals finalize "
        "_get_module_for_linking add_linking_library"
    ),
    "numba.core.codegen:JitEngine": "is_symbol_defined",
    "numba.core.postproc": "VariableLifetime transforms.canonicalize_cfg",
    "numba.core.postproc:PostProcessor": "run _insert_var_dels",
    "numba.core.registry": (
        "cpu_target.target_context.load_additional_registries "
        "cpu_target.target_context._registries cpu_target.target_context.install_registry "
        "cpu_target.typing_context.load_additional_registries "
        "cpu_target.typing_context._registries cpu_target.typing_context.install_registry"
    ),
    "numba.core.types.functions:BaseFunction": "get_call_type",
    "numba.np.linalg": "ensure_blas",
    "llvmlite.binding.ffi": "lib._lock._cblist lib._lock._lock",
}
"""Private names by ``module`` or ``module:class``."""


@functools.cache
def is_enabled() -> bool:
    """Return true if the shortcuts are enabled; log the reason once if they are not."""
    if os.environ.get(PLAIN, "0") not in ("", "0"):
        reason = f"{PLAIN} is set"
    elif lacking := missing():
        version = importlib.import_module("numba").__version__
        reason = f"Numba {version} lacks {', '.join(lacking)}"
    else:
        return True
    log.warning("the first start takes longer, results are the same: %s", reason)
    return False


def missing() -> list[str]:
    """Return the names of `PARTS` that this Numba does not have."""
    return [
        f"{place.replace(':', '.')}.{name}"
        for place, names in PARTS.items()
        for name in names.split()
        if not _has(place, name)
    ]


def _has(place: str, name: str) -> bool:
    module, _, owner = place.partition(":")
    try:
        target = importlib.import_module(module)
        for part in [*filter(None, [owner]), *name.split(".")]:
            target = getattr(target, part)
    except (ImportError, AttributeError):
        return False
    return True
