"""Plugins: how applications are added to slipstream, which does not import them by name.

A package declares an entry point in its pyproject.toml, as slipstream does for its own plugins::

    [project.entry-points."slipstream.plugins"]
    bandits = "bandits.plugin"

It names a module, or an object in one (``bandits.plugin:plugin``), with any of these attributes:

    kernels        Name -> module of a kernel. The name can be used wherever a built-in one can.
    environments   Prefix of names, with its colon -> function from a name to its `EnvironmentKind`.
    register       Object that a caller gives in place of a name, such as an environment of another
                   library -> name of its environment; None for objects of others.
    kernel_class   Kernel -> class of its environments; None for kernels of other applications.
    part           (abstract kind of `Part`, environment) -> the part; None if it is not ours.
    pages          (environment, evaluation) -> the report's `Page` of an evaluated run; None for
                   runs of other applications.
    commands       Name -> module of commands: its Typer `app`, and names in `WORKS` of those that
                   make files. It imports when it runs what its commands need.
                   ``context.obj(context, folder, **changes)`` does what their --background asks.
    init           (environment, folder) -> sections of a config for `slipstream init` and the lines
                   above them; None for environments of other applications.
    folders        File that only such a folder has -> module that is a `FolderKind`.
    formats        Modules with `recognises` and `sections_of` for configs of other projects.
    callbacks      Functions that are called with every event of a run, as its listeners are, and
                   with the other events that `notify` is called with.

docs/extending-plugins.md shows one. Its module should import little: it is loaded by every command.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from slipstream.core.reader import is_there
from slipstream.core.text import to_stderr

GROUP = "slipstream.plugins"
_PACKAGE = Path(__file__).parents[1]


class FolderKind(Protocol):
    """Functions of a module for a kind of folder that is neither a run nor a study."""

    NAME: str
    """Kind as in `KINDS` of `core/storage/status.py`; its dashboard page is below ``/NAME``."""

    JOBS: tuple[str, ...]
    """Commands that the queue of jobs accepts."""

    def scored(
        self, folder: Path, data: str | Path | None, start: str | None
    ) -> tuple[Path, str | Path | None, str | None]:
        """Return the folder of its policy, and the data and first moment to evaluate it on."""

    def policy(self, folder: Path, acts: bool) -> Path:
        """Return the folder of its policy; `acts`: it is to act on the folder's own data."""

    def resume(self, folder: Path, say: Callable[[str], None], trust: bool) -> None:
        """Continue the work on the folder."""

    def job(self, command: str, given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Return the folder that a command of `JOBS` works on, and the options that fix it."""

    def news(self, folder: Path, place: str) -> Any:
        """Return the `News` of its dashboard page since a place."""

    def act(self, folder: Path, action: str) -> str | None:
        """Do what a button of that page asks; return what was done, None for other actions."""


@functools.cache
def plugins() -> tuple[Any, ...]:
    """Return the plugins of slipstream, then those of other packages.

    One that cannot be imported is reported on standard error and left out. Slipstream's own count
    by their folder: they work in a checkout that is not installed, and may be deleted.
    """
    folders = sorted(file.parent.name for file in _PACKAGE.glob("*/plugin.py"))
    own = [EntryPoint(name, f"slipstream.{name}.plugin", GROUP) for name in folders]
    declared = {entry.value: entry for entry in sorted(entry_points(group=GROUP))}  # may be twice
    others = [e for value, e in declared.items() if not value.startswith("slipstream.")]
    found = []
    for entry in (*own, *others):
        try:
            with redirect_stdout(sys.stderr):  # what it prints is no output of a command
                plugin = entry.load()
            _check(plugin)
            found.append(plugin)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # an import may end in SystemExit
            owner = getattr(entry.dist, "name", None) or entry.name
            to_stderr(
                f"The plugin {entry.name} of the package {owner} cannot be imported and is left "
                f"out: {type(error).__name__}: {error}. Update {owner}, or remove it: "
                f"pip uninstall {owner}."
            )
    return tuple(found)


def _check(plugin: Any) -> None:
    """Raise a TypeError if an attribute does not have the type that the contract says."""
    for name in ("kernels", "environments", "commands", "folders"):
        value = getattr(plugin, name, {})
        words = [*value, *value.values()] if isinstance(value, Mapping) else [value]
        if not all(isinstance(word, str) for word in (value if name == "environments" else words)):
            raise TypeError(f"`{name}` must map names to modules, got {value!r:.200}")
    for name in ("register", "kernel_class", "part", "pages", "init"):
        if not callable(getattr(plugin, name, _check)):
            raise TypeError(f"`{name}` must be a function, got {getattr(plugin, name)!r:.200}")
    for name, fits in (("callbacks", callable), ("formats", str.isprintable)):
        value = getattr(plugin, name, ())
        if not (isinstance(value, list | tuple) and all(map(fits, value))):
            raise TypeError(f"`{name}` must be a list, got {value!r:.200}")


def offered(attribute: str) -> Iterator[Any]:
    """Yield an attribute of each plugin that has it."""
    for plugin in plugins():
        if (value := getattr(plugin, attribute, None)) is not None:
            yield value


def merged(attribute: str) -> dict[str, Any]:
    """Return a mapping of all plugins in one; of equal names the first plugin's counts."""
    result: dict[str, Any] = {}
    for offer in offered(attribute):
        result = {**offer, **result}
    return result


def notify(event: object) -> None:
    """Call the callbacks of all plugins with an event."""
    for callbacks in offered("callbacks"):
        for callback in callbacks:
            callback(event)


def folder_kinds(folder: Path | None = None) -> list[FolderKind]:
    """Return the kinds of folders that plugins know; of one folder its kind, or none."""
    kinds = merged("folders").items()
    found = [kind for mark, kind in kinds if folder is None or is_there(folder / mark)]
    return [cast(FolderKind, importlib.import_module(module)) for module in found]
