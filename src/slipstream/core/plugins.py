"""Plugins: applications add themselves to slipstream, which does not import them by name.

A package declares an entry point in its pyproject.toml, as slipstream does for its own plugins::

    [project.entry-points."slipstream.plugins"]
    bandits = "bandits.plugin"

The entry point is a module, or an object in one (``bandits.plugin:plugin``), with any of these
attributes:

    kernels        Name -> module of a kernel. The name works like that of a built-in kernel.
    environments   Prefix of names, with its colon -> function from a name to its `EnvironmentKind`.
    register       Object passed in place of a name, such as an environment of another library ->
                   name of its environment; None for other objects.
    kernel_class   Kernel -> class of its environments; None for kernels of other applications.
    part           (abstract kind of `Part`, environment) -> the part; None for other environments.
    pages          (environment, evaluation) -> the report's `Page` of an evaluated run; None for
                   runs of other applications.
    commands       Name -> module of commands. The name fixes the position in `--help`; a command is
                   called like its function in the module's Typer `app`. `FILE_COMMANDS` of the
                   module lists commands that write files. A command imports its dependencies
                   inside its function and calls ``context.obj(context, folder, **changes)`` for
                   --background.
    init           (environment, folder) -> sections of a config for `slipstream init` and the lines
                   above them; None for environments of other applications.
    folders        File that only such a folder has -> module that is a `FolderKind`.
    formats        Modules with `recognizes` and `to_sections` for configs of other projects.
    callbacks      Functions that receive every event of a run: `training.callbacks.events`.

docs/guides/plugins.md has an example. The module should import little: every command loads it. A
faulty plugin of another package is reported on standard error and skipped. Errors that its
functions raise later become a `PluginError` with the package name.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from slipstream.core.errors import SlipstreamError, wrap_user_error
from slipstream.core.safe_io import path_exists
from slipstream.core.text import closest_match, print_to_stderr

GROUP = "slipstream.plugins"
_PACKAGE = Path(__file__).parents[1]
_MAPPINGS = ("kernels", "environments", "commands", "folders")
_FUNCTIONS = ("register", "kernel_class", "part", "pages", "init")
_LISTS = ("callbacks", "formats")
_ATTRIBUTES = (*_MAPPINGS, *_FUNCTIONS, *_LISTS)


class FolderKind(Protocol):
    """Functions of a module for a kind of folder that is neither a run nor a study."""

    NAME: str
    """Kind as in `core.storage.status_file.KINDS`; its dashboard page is below ``/NAME``."""

    JOBS: tuple[str, ...]
    """Commands that the job queue accepts, such as ``paper start`` or ``deploy --watch``."""

    def scored(
        self, folder: Path, data: str | Path | None, start: str | None
    ) -> tuple[Path, str | Path | None, str | None]:
        """Return the folder of its policy, and the data and start time to evaluate it on."""

    def policy(self, folder: Path, acts: bool) -> Path:
        """Return the folder of its policy; `acts`: it will act on the folder's own data."""

    def resume(self, folder: Path, log: Callable[[str], None], trust: bool) -> None:
        """Continue the work on the folder."""

    def job(self, command: str, options: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Return the folder that a command of `JOBS` works on, and the options that fix it."""

    def updates(self, folder: Path, cursor: str) -> Any:
        """Return the `Updates` of its dashboard page since a position."""

    def act(self, folder: Path, action: str) -> str | None:
        """Perform the action of a button of that page; return its description, None for others."""


class PluginError(SlipstreamError):
    """A plugin of another package failed."""


class Plugin(NamedTuple):
    """A plugin and its package.

    Attributes:
        owner: name of the installed package; ``slipstream`` for built-in plugins.
        offers: object with the attributes described above.
        version: version of the package.
    """

    owner: str
    offers: Any
    version: str | None = None

    def get(self, attribute: str) -> Any:
        """Return an attribute; errors of its functions name the package. None if it is missing."""
        value = getattr(self.offers, attribute, None)
        if self.owner == "slipstream":
            return value
        if isinstance(value, Mapping):
            return {name: self._named(attribute, one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._named(attribute, item) for item in value]
        return self._named(attribute, value)

    def _named(self, attribute: str, function: Any) -> Any:
        if not callable(function):
            return function

        def call(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except SlipstreamError:
                raise
            except (Exception, SystemExit) as error:
                where = f"`{attribute}` of the plugin of the package {self.owner}"
                wrapped = wrap_user_error(
                    where, function, error, f"report it to its authors. {self.advice}"
                )
                raise PluginError(str(wrapped)) from error

        return call

    @property
    def advice(self) -> str:
        """Suggested fix for a faulty plugin."""
        return f"Update {self.owner}, or remove it: pip uninstall {self.owner}"


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """Return the plugins of slipstream, then those of other packages.

    Faulty ones are reported on standard error and skipped. Built-in plugins are found by their
    folder, so that they work without installation and may be deleted.
    """
    folders = sorted(file.parent.name for file in _PACKAGE.glob("*/plugin.py"))
    built_in = [EntryPoint(name, f"slipstream.{name}.plugin", GROUP) for name in folders]
    declared = {entry.value: entry for entry in sorted(entry_points(group=GROUP))}  # may be twice
    others = [e for value, e in declared.items() if not value.startswith("slipstream.")]
    loaded: list[Plugin] = []
    for entry in (*built_in, *others):
        owner = getattr(entry.dist, "name", None) or entry.name
        version = getattr(entry.dist, "version", None)
        plugin = Plugin("slipstream" if entry in built_in else owner, None, version)
        with skip_on_error(f"The plugin {entry.name}", plugin):
            with redirect_stdout(sys.stderr):  # keeps standard output for the command
                plugin = plugin._replace(offers=entry.load())
            _check(plugin.offers, entry.module)
            _check_names(plugin.offers, loaded)
            _warn_of_misspellings(plugin)
            loaded.append(plugin)
    return tuple(loaded)


def plugin_versions() -> dict[str, str | None]:
    """Return the version of each other package that has plugins."""
    return {plugin.owner: plugin.version for plugin in plugins() if plugin.owner != "slipstream"}


@contextmanager
def skip_on_error(what: str, plugin: Plugin) -> Iterator[None]:
    """Report an error of the body about a part of a plugin and continue without that part."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an import may end in SystemExit
        print_to_stderr(
            f"{what} of the package {plugin.owner} cannot be used and is left out: "
            f"{type(error).__name__}: {error}. {plugin.advice}."
        )


def _check(offers: Any, module: str) -> None:
    """Raise a TypeError if an attribute has the wrong type."""
    if getattr(getattr(sys.modules[module], "__spec__", None), "_initializing", False):
        raise ImportError(
            f"{module} is still being imported, and one of its imports needs the plugins: import "
            "that one inside a function"
        )
    for name in _MAPPINGS:
        value = getattr(offers, name, {})
        words = [*value, *value.values()] if isinstance(value, Mapping) else [value]
        if not all(isinstance(word, str) for word in (value if name == "environments" else words)):
            raise TypeError(f"`{name}` must map names to modules, got {value!r:.200}")
    for name in _FUNCTIONS:
        if not callable(getattr(offers, name, _check)):
            raise TypeError(f"`{name}` must be a function, got {getattr(offers, name)!r:.200}")
    checks: tuple[Callable[[Any], bool], ...] = (callable, str.isprintable)
    for name, fits in zip(_LISTS, checks, strict=True):
        value = getattr(offers, name, ())
        if not (isinstance(value, list | tuple) and all(map(fits, value))):
            raise TypeError(f"`{name}` must be a list, got {value!r:.200}")


def _warn_of_misspellings(plugin: Plugin) -> None:
    """Report attributes that nothing reads and whose names resemble one that is read."""
    for name, value in vars(plugin.offers).items() if hasattr(plugin.offers, "__dict__") else ():
        if name in _ATTRIBUTES or name.startswith("_") or isinstance(value, ModuleType):
            continue
        guess = closest_match(name, _ATTRIBUTES, cutoff=0.8)
        if guess and not hasattr(plugin.offers, guess):
            print_to_stderr(
                f"The plugin of the package {plugin.owner} has `{name}`, which slipstream does not "
                f"read. Did you mean `{guess}`?"
            )


def _check_names(offers: Any, before: Sequence[Plugin]) -> None:
    """Raise a ValueError if another plugin offers the same name."""
    for attribute in _MAPPINGS:
        for other in before:
            both = {*getattr(offers, attribute, ())} & {*getattr(other.offers, attribute, ())}
            if both:
                raise ValueError(
                    f"`{attribute}` has the name {', '.join(sorted(both))}, which the package "
                    f"{other.owner} offers too"
                )


def iter_offers(attribute: str) -> Iterator[Any]:
    """Yield an attribute of each plugin that has it."""
    offers = (plugin.get(attribute) for plugin in plugins())
    return (value for value in offers if value is not None)


def merge_offers(attribute: str) -> dict[str, Any]:
    """Return one mapping with the entries of all plugins."""
    return {name: value for offer in iter_offers(attribute) for name, value in offer.items()}


def find_owner(attribute: str, module: str) -> Plugin:
    """Return the plugin that offers a module under an attribute."""
    values = ((plugin, plugin.get(attribute) or ()) for plugin in plugins())
    return next(
        plugin
        for plugin, offered in values
        if module in (offered.values() if isinstance(offered, Mapping) else offered)
    )


def load(attribute: str, module: str) -> ModuleType:
    """Import a module that a plugin offers.

    Raises:
        PluginError: a module of another package cannot be imported.
    """
    if module.startswith("slipstream."):
        return importlib.import_module(module)
    try:
        return importlib.import_module(module)
    except SlipstreamError:
        raise
    except (Exception, SystemExit) as error:
        plugin = find_owner(attribute, module)
        raise PluginError(
            f"`{attribute}` of the plugin of the package {plugin.owner} names the module {module}, "
            f"which cannot be imported: {type(error).__name__}: {error}. {plugin.advice}."
        ) from error


def notify(event: object) -> None:
    """Call the callbacks of all plugins with an event."""
    for callbacks in iter_offers("callbacks"):
        for callback in callbacks:
            callback(event)


def folder_kinds(folder: Path | None = None) -> list[FolderKind]:
    """Return the folder kinds of all plugins; with `folder`, only its kind, if any."""
    kinds = merge_offers("folders").items()
    modules = [kind for mark, kind in kinds if folder is None or path_exists(folder / mark)]
    return [cast(FolderKind, load("folders", module)) for module in modules]
