"""A user's own kernel is run under watch before anything is trained on it, once for each state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.sources import source_hashes
from slipstream.files.files import plain
from slipstream.machine.cache import cannot_write, private_folder
from slipstream.vector.contract import check_environment


def check_own_kernel(
    kernel: Kernel,
    loaded: Loaded,
    settings: Mapping[str, Any],
    say: Callable[[str], None] = lambda sentence: None,
) -> bool:
    """Runs `check_environment` on a user's kernel, unless it has passed before.

    What it passed with is remembered in the cache folder: its sources, its settings and its data.

    Args:
        kernel, loaded: as for training.
        settings: of the section `env`.
        say: told when it passes.

    Returns:
        Whether it was run now.

    Raises:
        KernelError: the first rule found broken, with file, line and remedy.
    """
    facts = [source_hashes(kernel.module), plain(settings), plain(loaded.provenance)]
    text = json.dumps(facts, sort_keys=True, default=repr)
    passed = private_folder("checked") / hashlib.sha256(text.encode()).hexdigest()[:20]
    if passed.exists():
        return False
    check_environment(kernel, loaded=loaded)
    try:
        passed.touch()
    except OSError as error:
        raise cannot_write(passed.parent, error, "A passed check") from error
    say(f"{kernel.module.__file__} passed its check (run once for each version of it).")
    return True
