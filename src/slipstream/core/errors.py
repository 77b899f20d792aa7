"""Errors a user can act on: one paragraph of what was expected, what came, and what to do."""

from __future__ import annotations

import re
from typing import ClassVar

# Options that Python knows as arguments; `set`, `from` and `to` have other names there.
_ARGUMENTS = {
    **{"set": "overrides", "from": "start", "to": "stop"},
    **{"study-name": "study_name", "max-workers": "max_workers", "gpu-share": "gpu_share"},
    **{"group-size": "group_size", "force-deploy": "force_deploy", "num-envs": "num_envs"},
    **{name: name for name in ("out", "data", "symbols", "device", "trust", "games", "opponent")},
    **{name: name for name in ("storage", "workers", "cluster", "hours", "members", "seed")},
}
# An option and the gap before its value; commands in quotes are left as they are.
_OPTION = re.compile(rf"`[^`]* [^`]*`|--({'|'.join(_ARGUMENTS)})(?![\w-])( (?=['\"\d]|cpu|cuda))?")


class SlipstreamError(Exception):
    """Base of every error that is the user's to mend; the command line prints it, exit code 2.

    Messages name a command's options; to a caller from Python they read as its arguments:
    ``--study-name`` as ``study_name=``. What stands in a quoted command stays.

    Attributes:
        on_command_line: whether a command is what the user gave.
    """

    on_command_line: ClassVar[bool] = False

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.on_command_line else _OPTION.sub(_argument, text)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the paragraph, without the frames that lead to it."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(SlipstreamError):
    """A configuration that cannot be run: unknown key, value out of range, impossible sizes."""


class DataError(SlipstreamError):
    """Market data or a folder that cannot be used as it is."""


class KernelError(SlipstreamError):
    """A kernel that breaks the contract, or that returned a number nobody can train on."""


class CheckpointError(SlipstreamError):
    """A checkpoint, policy or run directory that is missing, corrupt or foreign."""


class VersionError(CheckpointError):
    """A state that another version of slipstream wrote, from which this one cannot go on."""


class TrustError(SlipstreamError):
    """A folder whose config names code that no command of this user ran for it."""


class ResourceError(SlipstreamError):
    """The machine lacks what was asked for: memory, disk, a device, an optional package."""


def _argument(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f"{_ARGUMENTS[match[1]]}="
