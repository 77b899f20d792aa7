"""Plugins: what applications add to the engine, which does not know them.

A plugin is a module or an object with any of the attributes below. Each is a mapping from names to
references such as ``"my_package.pages:run_page"``, which are imported when they are needed.

============  =====================================================================================
environments  argument of a kernel's `observe` -> class of the environments of such kernels
commands      name of a command or group -> its Typer app
pages         name -> function (environment, evaluation) -> page of a run, or None
============  =====================================================================================

Plugins of slipstream are the `plugin.py` in its folders: without the folder there is no plugin.
Those of other packages are entry points::

    [project.entry-points."slipstream.plugins"]
    my_package = "my_package.plugin"
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

GROUP = "slipstream.plugins"


@functools.cache
def plugins() -> tuple[Any, ...]:
    """Return every plugin: slipstream's own in the order of their folders, then others."""
    package = __name__.partition(".")[0]
    own = sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/plugin.py"))
    modules = [importlib.import_module(f"{package}.{name}.plugin") for name in own]
    return (*modules, *(one.load() for one in entry_points(group=GROUP)))


def offered(attribute: str) -> dict[str, str]:
    """Return the references of all plugins under one attribute, by name."""
    found: dict[str, str] = {}
    for plugin in plugins():
        found |= getattr(plugin, attribute, {})
    return found


def load(reference: str) -> Any:
    """Import what a reference names."""
    return resolve_name(reference)
