"""What every answer and every request must have, whichever page it is for.

- The `Host` must name the loopback. A page of another site whose name resolves to this machine is refused, so it cannot read the console.
- A request that changes something must come from a page of the console: the browser says so (`Sec-Fetch-Site`, `Origin`), and the form carries the
  token of this process.
- The content security policy allows nothing inline, nothing from other hosts and no frame. A payload that escaped its escaping would still not run.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["POLICY", "ActionToken", "Guard"]

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send the origin of a form as null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class ActionToken:
    """A secret of this process that its forms carry."""

    def __init__(self) -> None:
        self.value = secrets.token_urlsafe(32)

    def fits(self, given: object) -> bool:
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self.value.encode())


class Guard:
    """Around the whole application."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = _refusal(scope["method"], headers)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
                found.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._application if refusal is None else PlainTextResponse(f"{refusal}\n", 403)
        await answer(scope, receive, guarded)


def _refusal(method: str, headers: Headers) -> str | None:
    """Why a request is refused; None if it is not."""
    host = headers.get("host", "")
    if not _is_loopback(urlsplit(f"//{host}").hostname or ""):
        return "The console answers only at an address of the loopback."
    if method in ("GET", "HEAD"):
        return None
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin") or (origin is not None and urlsplit(origin).netloc != host):
        return "The request comes from a page of another site."
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
