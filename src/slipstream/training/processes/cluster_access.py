"""Who may use a cluster, and what is said where one cannot be used."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training.processes.cluster import ClusterOptions

_SECONDS = 5.0  # for a head to take a connection
_WORD_SECONDS = 30.0  # and to say its first word, however busy it is
_PROBE_SECONDS = 120.0
# How a connection to Ray begins (RFC 9113, 3.4), and the kind of the answer's first frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME, _KIND, _SETTINGS = 9, 3, 4
_PROBE = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"


def lets_in_everybody(options: ClusterOptions, say: Callable[[str], None]) -> bool:
    """Whether the cluster asks for no token.

    Raises:
        ConfigError: it does not, and that was not asked for.
        ResourceError: nobody answers there.
    """
    _look(options.address)
    mode = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", _PROBE, options.address]
    try:
        done = subprocess.run(command, env=mode, capture_output=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired as error:
        silent = TimeoutError(f"it said nothing for {_PROBE_SECONDS:.0f} s")
        raise unreachable(options.address, silent) from error
    if done.returncode != 0:
        return False
    risk = "whoever reaches its ports can run any code on its machines"
    if not options.insecure:
        raise ConfigError(
            f"The cluster at {options.address} asks for no token: {risk}. Start it with "
            "RAY_AUTH_MODE=token (docs/clusters.md), or give --insecure-cluster where nobody else "
            "reaches it."
        )
    say(f"The cluster at {options.address} asks for no token: {risk} (--insecure-cluster).")
    return True


def _look(address: str) -> None:
    """Refuses an address where nobody is, or somebody else than Ray."""
    host, _, port = address.rpartition(":")
    if not host:
        return
    try:
        with socket.create_connection((host, int(port)), _SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.settimeout(_WORD_SECONDS)
            connection.sendall(_HELLO)
            answer = connection.recv(_FRAME)
    except (OSError, OverflowError) as error:  # the latter: no such port
        raise unreachable(address, error) from error
    if len(answer) <= _KIND or answer[_KIND] != _SETTINGS:
        raise unreachable(address, OSError("what answers there is not the head of one"))


def unreachable(address: str, error: BaseException) -> ResourceError:
    text = first_line(error)
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if any("no authentication token was found" in str(cause) for cause in causes):
        return ResourceError(
            f"This machine has no token for the cluster at {address}: copy the head's "
            "~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if any("token" in str(cause).lower() for cause in causes):
        return ResourceError(
            f"The cluster at {address} did not accept this machine's token ({text}): copy the "
            "head's ~/.ray/auth_token here, or set RAY_AUTH_TOKEN."
        )
    if "ersion mismatch" in str(error):
        text = " ".join(str(error).split())
        return ResourceError(f"{text} Install the same versions on all machines of the cluster.")
    why = text.partition(". ")[0]  # what follows is about options of Ray's commands
    return ResourceError(
        f"No cluster can be used at {address} ({why}). Start one with `ray start --head` "
        "(docs/clusters.md); a machine that begins a study must be one of its nodes. --cluster "
        "local begins one of its own."
    )


def first_line(error: BaseException) -> str:
    """What an error says, without the traces that Ray adds."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, BaseException) else error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
