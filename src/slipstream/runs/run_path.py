"""Where a run is written: a directory of its own, that holds nothing yet."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slipstream.core.errors import ConfigError
from slipstream.core.reader import is_there
from slipstream.files.best_policies import BEST
from slipstream.files.files import disk_errors, is_partial
from slipstream.files.lock import LOCK
from slipstream.files.status import EVENTS, LOG, STATUS
from slipstream.settings.config import RunConfig

CONFIG, PROVENANCE, CHECKPOINTS = "config.yaml", "provenance.json", "checkpoints"


def free_path(config: RunConfig, out: str | Path | None = None, overwrite: bool = False) -> Path:
    """The absolute path of a new run: `out`, else `training.out`, else a name by the time.

    Args:
        config, out: see above.
        overwrite: a run may be there already; anything else may not.

    Raises:
        ConfigError: there is something already.
    """
    wanted = out if out is not None else config.training.out
    if not wanted:
        return _fresh_name(config.short_name)
    path = Path(wanted).expanduser().absolute()
    if is_there(path) and not path.is_dir():
        raise ConfigError(
            f"{path} is a file, and a run is written into a directory of its own: name one that "
            "does not exist with --out."
        )
    if overwrite and is_there(path / CONFIG) and is_there(path / PROVENANCE):
        return path
    if is_there(path) and not holds_no_run(path):
        held = "holds a run" if is_there(path / CONFIG) else "is not empty"
        raise ConfigError(
            f"{path} {held} already and is not overwritten. Go on with it by `slipstream resume "
            f"{path}`, or name another directory with --out."
        )
    return path


def holds_no_run(path: Path) -> bool:
    """Whether a directory is empty, or holds no more than a run that was killed as it began."""
    with disk_errors(path):
        names = {one.name for one in path.iterdir() if not is_partial(one)}
        begun = not any(
            any((path / name).iterdir()) for name in (CHECKPOINTS, BEST) if (path / name).is_dir()
        )
    return begun and names <= {CHECKPOINTS, BEST, PROVENANCE, LOCK, STATUS, EVENTS, LOG}


def _fresh_name(name: str) -> Path:
    """``runs/<env>-<date>-<time>``, numbered where two begin in one second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path(os.getcwd()) / "runs" / f"{name}-{stamp}"
    path, number = base, 2
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path
