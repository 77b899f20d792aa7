"""Guard: lets nobody in but whoever has the token, and no page but the dashboard's own.

What it holds off, besides people without the token: pages of others in the same browser. One that
points a name of its own at this address (DNS rebinding) comes with its name as `Host`; one that
sends a form comes with its own `Origin`; one that includes our answers may not
(`Cross-Origin-Resource-Policy`). The token stands in an address once, then a cookie is its proof.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Collection
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slipstream.core.safe_io import UnreadableError, read_bytes, regular_file
from slipstream.core.storage.atomic_io import disk_errors
from slipstream.core.storage.folder_registry import state_folder

LOCAL = ("localhost", "127.0.0.1", "::1")
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_REDIRECT_PAGE = (
    '<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">Go on</a>'
)
_BITS = 256


def user_token() -> str:
    """The user's token, from a file of mode 0600 in the state folder; made where there is none.

    It is the same for every dashboard of the user, so that a browser stays known after a restart.
    """
    path = state_folder("dashboard") / "token"
    with disk_errors(path):
        known = _read_token(path)
        if known is None:
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(_BITS // 8))
            known = path.read_text()
    return known


def _read_token(path: Path) -> str | None:
    """A token that nobody else could have read or written."""
    try:
        facts = regular_file(path, 1_000)
        private = facts.st_uid == os.getuid() and not facts.st_mode & 0o077
        text = read_bytes(path, 1_000).decode("ascii") if private else ""
    except (OSError, UnreadableError, UnicodeDecodeError):
        return None
    return text if len(text) * 6 >= _BITS else None


class AuthMiddleware:
    """Around the application.

    Args:
        app: what is validated.
        token: see `own_token`.
        port: names the cookie: cookies of a machine's ports are not apart.
        hosts: names of this server in a browser's address line, whatever the port, so that
            `ssh -L` works. Addresses of numbers are let in where it listens beyond this machine:
            a name that somebody made point here is none.
        beyond: it listens beyond this machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        port: int,
        hosts: Collection[str] = LOCAL,
        is_remote: bool = False,
    ) -> None:
        self._app, self._token, self._hosts, self._is_remote = app, token, set(hosts), is_remote
        self._name = f"slipstream-{port}"
        self._cookie = hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers itself, or hands on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        await (refusal or self._app)(scope, receive, headed)

    def _refusal(self, asked: HTTPConnection) -> Response | None:
        """An answer of its own; None where the application is to answer."""
        hosts, path, method = asked.headers.getlist("host"), asked.url.path, asked.scope["method"]
        if len(hosts) != 1 or not self._is_allowed_host(hosts[0]):
            return PlainTextResponse("This dashboard is not called by that name.", 421)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("It only answers GET and POST.", 405)
        given = asked.query_params.get("token")
        if path == "/" and method == "GET" and given is not None:
            if not _is_equal(given, self._token):
                return PlainTextResponse("That is not the token of this dashboard.", 403)
            entered = HTMLResponse(
                _REDIRECT_PAGE
            )  # no redirect: a Strict cookie would not come along
            entered.set_cookie(self._name, self._cookie, httponly=True, samesite="strict")
            return entered
        if not _is_equal(asked.cookies.get(self._name, ""), self._cookie):
            words = "Open the address that `slipstream dash` printed: it holds the token."
            return PlainTextResponse(words, 401)
        origins = [f"{scheme}://{hosts[0]}" for scheme in ("http", "https")]
        if method == "POST" and asked.headers.get("origin") not in origins:
            return PlainTextResponse("Another page asked for that.", 403)
        return None

    def _is_allowed_host(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]").lower().removesuffix(".")
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._is_remote


def _is_equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
