"""Errors a user can act on: one paragraph of what was expected, what came, and what to do."""

from __future__ import annotations


class SlipstreamError(Exception):
    """Base of every error that is the user's to mend; the command line prints it, exit code 2."""


class ConfigError(SlipstreamError):
    """A configuration that cannot be run: unknown key, value out of range, impossible sizes."""


class UnreadKeyError(ConfigError):
    """Settings that nobody reads: unknown ones, or idle beside others. Nothing else is wrong.

    Attributes:
        paths: where each stands, from the outermost section.
    """

    def __init__(self, message: str, paths: list[tuple[str, ...]]) -> None:
        super().__init__(message)
        self.paths = paths


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
