"""Source files that a kernel imports, hashed for provenance and reproducibility."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from slipstream.jit.alignment import gc_paused

_PACKAGE = Path(__file__).parents[1]
_FOREIGN = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGES = {"site-packages", "dist-packages"}


def source_hashes(module: ModuleType) -> dict[str, str]:
    """Return shortened sha256 of a module's file and of those it imports, by module name.

    Imports are followed wherever they occur in a file, within slipstream and among the user's
    files. Libraries are not followed; their versions are recorded instead.
    """
    named = {_display_name(name, path, module): path for name, path in source_files(module).items()}
    return {
        name: hashlib.sha256(named[name].read_bytes()).hexdigest()[:16] for name in sorted(named)
    }


@gc_paused()  # garbage collection would take as long as parsing
def source_files(module: ModuleType) -> dict[str, Path]:
    """Return the source files of a module and of its imports, by module name."""
    files: dict[str, Path] = {}
    left = [(module.__name__, Path(str(module.__file__)))]
    while left:
        name, path = left.pop()
        if name in files:
            continue
        files[name] = path
        for imported in _imports(path, name):
            file = None if imported in files else _find_file(imported)
            if file is not None:
                left.append((imported, file))
    return files


def is_user_file(path: Path) -> bool:
    """Return true if a source file is the user's: neither slipstream's nor a library's."""
    return not (path.is_relative_to(_PACKAGE) or _is_library(path))


def _is_library(path: Path) -> bool:
    """Return true if a file is installed, in this environment or in its base environment."""
    installed = any(path.is_relative_to(folder) for folder in _FOREIGN)
    return installed or not _PACKAGES.isdisjoint(path.parts)


def _imports(path: Path, name: str) -> tuple[str, ...]:
    """Return names of modules that a file may import; some are functions or classes of a module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        return _imported(path.read_bytes(), package)
    except (OSError, SyntaxError):
        return ()


@functools.lru_cache(maxsize=1024)  # runs and reports of a process read the same files
def _imported(source: bytes, package: str) -> tuple[str, ...]:
    names: list[str] = []
    for node in _runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(names)


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements except those under TYPE_CHECKING; expressions contain none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or _is_for_types(node):
            continue
        yield node
        yield from _runtime_nodes(node)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _find_file(name: str) -> Path | None:
    """Return a module's file, or None for libraries, built-in modules and names of other things."""
    loaded = sys.modules.get(name)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # imports the parent package, which may raise anything
            return None
        origin = spec.origin if spec is not None else None
    if origin is None or not origin.endswith(".py"):
        return None
    path = Path(origin)
    if path.is_relative_to(_PACKAGE):
        return path
    return None if _is_library(path) else path


def _display_name(name: str, path: Path, kernel: ModuleType) -> str:
    """Return the file name for the kernel itself, whose module name contains a hash."""
    return path.name if name == kernel.__name__ and not name.startswith("slipstream.") else name
