"""Trust: code named by a stored config runs only if this user's own command ran it before.

A config may name a ``.py`` file or a module, which run when the folder is opened. A folder created
by a command of this user, with unchanged files, opens without a question. For any other folder an
error lists the code that would run and requires `--trust`. Folders are identified by the `id` in
their provenance (`core/storage/folder_registry.py`), never by path. Code is identified by the
hashes in the registry, never by those in the folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.core.errors import TrustError
from slipstream.core.extras import add_cwd_to_path
from slipstream.core.safe_io import UnreadableError
from slipstream.core.storage import folder_registry
from slipstream.core.storage.atomic_io import sha256
from slipstream.kernels.kernel_registry import import_file
from slipstream.kernels.source_files import is_user_file, source_files
from slipstream.training.environments.factory import get_kind

_WRAPPERS = ("wrappers", "training_wrappers")  # keys of the section `env`
_HOW = (
    "Read them, and give `--trust` (in Python `trust=True`) to run them. "
    "`slipstream.load_policy` runs no code."
)


def enter(
    folder: Path, kind: str, name: str, values: Mapping[str, Any], log: Callable[[str], None]
) -> None:
    """Register a folder created by a command of this user, and the code that it ran.

    Args:
        folder, kind, name, log: see the registry's function.
        values: sections of its config, whose environment and agent were loaded.
    """
    named, files = dict(_named(values)), dict[str, str]()
    for what, module in named.items():
        module_ = import_file(Path(what), "") if module is None else sys.modules.get(module)
        if (
            module_ is not None
            and module_.__file__ is not None
            and is_user_file(Path(module_.__file__))
        ):
            paths = {
                str(path.resolve()) for path in source_files(module_).values() if is_user_file(path)
            }
            files |= {path: sha256(Path(path)) for path in paths}
    folder_registry.register_folder(folder, kind, name, log, tuple(named), files)


def check_trust(
    folder: Path, values: Mapping[str, Any], trust: bool, number: str | None = None
) -> None:
    """Raise if a folder's config would run code that no command of this user ran for it.

    Args:
        folder: folder of a run, study or policy.
        values: sections of its config, before anything is imported.
        trust: allow all of it to run.
        number: `id` of the folder; None to read it from its provenance.

    Raises:
        TrustError: lists the code that would run.
    """
    named = dict(_named(values))
    if trust or not named:
        return
    number = number or folder_registry.read_id(folder)
    entry = None if number is None else folder_registry.find_entry(number, folder)
    places = {what: what if module is None else _place(module) for what, module in named.items()}
    if entry is None:
        why = "Your registry has no command that created it"
    else:
        strange = [what for what in named if not _ran(what, places[what], entry)]
        changed = [path for path, digest in entry.files.items() if not _is(path, digest)]
        if not strange and not changed:
            return
        why = f"Changed since your command ran it: {', '.join(dict.fromkeys(strange + changed))}"
    reasons = "; ".join(
        what if where in (what, None) else f"{what} ({where})" for what, where in places.items()
    )
    raise TrustError(f"Opening {folder} runs code named by its config: {reasons}. {why}. {_HOW}")


def is_code_setting(setting: str) -> bool:
    """Return whether a setting could name code, or contain one that could."""
    section, _, key = setting.partition(".")
    return section in ("env", "agent") and key.partition(".")[0] in ("", "name", *_WRAPPERS)


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Iterate over the code named by a config: file paths with None, or names with their module."""
    env, agent = values.get("env"), values.get("agent")
    name = env.get("name") if isinstance(env, Mapping) else env
    if isinstance(name, str):
        yield from get_kind(name).code.items()
    name = agent.get("name") if isinstance(agent, Mapping) else agent
    if isinstance(name, str) and name.endswith(".py"):
        yield str(Path(name).expanduser().resolve()), None
    lists = [env.get(key) for key in _WRAPPERS] if isinstance(env, Mapping) else []
    for one in (one for modules in lists if isinstance(modules, (list, tuple)) for one in modules):
        name = one.get("name") if isinstance(one, Mapping) else one
        if isinstance(name, str):
            yield f"wrapper {name}", name.partition(":")[0]


def _ran(what: str, place: str | None, entry: folder_registry.RegistryEntry) -> bool:
    """Return whether the user's command ran this code in its current version."""
    installed = place is not None and not is_user_file(Path(place))
    return what in entry.references and (installed or place in entry.files)


def _is(path: str, digest: str) -> bool:
    try:
        return sha256(Path(path)) == digest
    except (OSError, UnreadableError):
        return False


def _place(module: str) -> str | None:
    """Return the file that importing a module would run, without importing it."""
    add_cwd_to_path()
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return str(Path(loaded).resolve())
    name, inside, spec = "", None, None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        specs = (finder.find_spec(name, inside) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        inside = spec.submodule_search_locations
    return None if spec is None or spec.origin is None else str(Path(spec.origin).resolve())
