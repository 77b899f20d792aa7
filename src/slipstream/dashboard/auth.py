"""Authentication: only requests with the token, and only from the dashboard's own pages.

It also protects against foreign pages in the same browser. DNS rebinding arrives with a foreign
`Host`. A form arrives with a foreign `Origin`. A page that includes our answers is blocked by
`Cross-Origin-Resource-Policy`. The token is in the address once; after that a cookie replaces it.
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
    '<!doctype html><meta http-equiv="refresh" content="0; url=/"><a href="/">Continue</a>'
)
_BITS = 256


def user_token() -> str:
    """Return the user's token from a file of mode 0600 in the state folder; create it if missing.

    It is the same for every dashboard of the user, so that a browser stays logged in after a
    restart.
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
    """Return the token of a file that no other user could have read or written; else None."""
    try:
        facts = regular_file(path, 1_000)
        private = facts.st_uid == os.getuid() and not facts.st_mode & 0o077
        text = read_bytes(path, 1_000).decode("ascii") if private else ""
    except (OSError, UnreadableError, UnicodeDecodeError):
        return None
    return text if len(text) * 6 >= _BITS else None


class AuthMiddleware:
    """ASGI middleware that checks host, token and origin.

    Args:
        app: the application.
        token: see `user_token`.
        port: names the cookie, because cookies are shared by all ports of a host.
        hosts: host names of this server, independent of the port, so that `ssh -L` works. Numeric
            addresses are accepted if the server is remote: they cannot be used for DNS rebinding.
        is_remote: the server listens beyond this machine.
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
        """Refuse the request or pass it to the application."""
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
        """Return a refusal; None if the application is to answer."""
        hosts, path, method = asked.headers.getlist("host"), asked.url.path, asked.scope["method"]
        if len(hosts) != 1 or not self._is_allowed_host(hosts[0]):
            return PlainTextResponse("Unknown host name of this dashboard.", 421)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET and POST are supported.", 405)
        given = asked.query_params.get("token")
        if path == "/" and method == "GET" and given is not None:
            if not _is_equal(given, self._token):
                return PlainTextResponse("Wrong token of this dashboard.", 403)
            entered = HTMLResponse(
                _REDIRECT_PAGE
            )  # no redirect, as it would not send a Strict cookie
            entered.set_cookie(self._name, self._cookie, httponly=True, samesite="strict")
            return entered
        if not _is_equal(asked.cookies.get(self._name, ""), self._cookie):
            words = "Open the address that `slipstream dash` printed: it holds the token."
            return PlainTextResponse(words, 401)
        origins = [f"{scheme}://{hosts[0]}" for scheme in ("http", "https")]
        if method == "POST" and asked.headers.get("origin") not in origins:
            return PlainTextResponse("The request comes from another page.", 403)
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
