"""The security requirements for every request and response of the console, on all pages.

- With TLS, the principal of the browser's certificate decides: readers, operators and nodes see the pages, operators and principals that a rule
  lets administer may act, and a payload needs the right to read its topic. The console reads with its own certificate, which may have more rights.
- Without TLS, the `Host` must name the loopback. A page of another site whose name resolves to this machine is refused, so it cannot read the
  console. With TLS the browser compares the host with the console's certificate.
- Without TLS, a request that a proxy passed on is refused: the proxy may serve the whole network. Proxies show themselves by the headers that they
  add, or by HTTP/1.0, which no browser has used for decades. A proxy that hides itself cannot be noticed.
- A request that changes something must come from a page of the console: the browser says so (`Origin`, which it sends with each of them, and
  `Sec-Fetch-Site`), and the form carries the token of this process.
- The content security policy allows nothing inline, nothing from other hosts and no frame. Even a payload that was not
  escaped could not run.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from waltz_log.core.topics.access import allowed
from waltz_log.core.topics.catalogue import Topic
from waltz_log.errors import NotAllowed, PermissionDenied, Unavailable
from waltz_log.security.access import AccessControl
from waltz_log.security.audit_log import denied
from waltz_log.security.callers import caller, calling
from waltz_log.security.identity import Role, named_principal
from waltz_log.security.rules import Operation

__all__ = ["PEER", "POLICY", "ActionToken", "BrowserAccess", "Guard"]

PEER: Final = "waltz_peer"
"""Key in the state of a request: the identity in the browser's certificate."""

_HOST: Final = re.compile(r"(?P<host>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(:[0-9]{1,5})?", re.IGNORECASE)
"""Nothing else: URL parsers disagree about what `evil.example@127.0.0.1` or `[` names."""

_PROXY: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-original-url", "true-client-ip", "cf-connecting-ip"}
)
"""Headers that proxies add, beside all that begin with `x-forwarded-`."""

VIEWERS: Final = frozenset({Role.NODE, Role.OPERATOR, Role.READER})

NO_PARTITION: Final = -1

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
    """A secret of this process, which each form contains."""

    def __init__(self) -> None:
        self.value = secrets.token_urlsafe(32)

    def matches(self, given: object) -> bool:
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self.value.encode())


class BrowserAccess:
    """What the caller, the principal in the browser's certificate, may do in the console. Without TLS: everything."""

    def __init__(self, control: AccessControl) -> None:
        self._control = control

    @property
    def by_certificate(self) -> bool:
        return self._control.enforced

    async def confirm(self) -> None:
        """Reads the rules again for a caller who needs one: `waltz access revoke` asks nodes, and not consoles. Raises `Unavailable` if
        no log server answers."""
        if self._control.confirm is not None and not self._control.needs_no_rule():
            await self._control.confirm()

    def expect_view(self) -> None:
        """Raises `PermissionDenied`."""
        peer = caller()
        if not self._control.enforced or (peer is not None and peer.roles & VIEWERS) or self._control.permits_cluster():
            return
        error = PermissionDenied(principal=named_principal(peer), operation="the console", roles=", ".join(sorted(str(role) for role in VIEWERS)))
        denied(error)
        raise error

    def expect_act(self) -> None:
        """Raises `PermissionDenied`, and `Unavailable` while the rules are not known."""
        self._control.expect_cluster(Operation.ADMINISTER)

    def may_act(self) -> bool:
        return self._control.permits_cluster(Operation.ADMINISTER)

    def expect_read(self, partition: int, topic: Topic | None) -> None:
        """Raises `PermissionDenied` or `NotAllowed`, and `Unavailable` while the rules are not known."""
        self._control.expect(partition, Operation.READ)
        if topic is not None and not self._is_named(topic):
            error = NotAllowed(action="read", topic=str(topic.name), principal=self.principal)
            denied(error)
            raise error

    def may_read(self, partition: int, topic: Topic | None) -> bool:
        """Unlike `expect_read`, it records nothing."""
        return self._control.permits(Operation.READ, partition) and (topic is None or self._is_named(topic))

    def may_read_named(self, topic: str) -> bool:
        """Whether the caller may read all of a topic that the catalogue does not have any more."""
        return self._control.permits(Operation.READ, NO_PARTITION, topic)

    def _is_named(self, topic: Topic) -> bool:
        """Whether the property `allow-read` of the topic permits the caller. Without TLS the storage nodes judge the console itself."""
        named = allowed(topic.properties, "read")
        return not self._control.enforced or not named or self.principal in named

    @property
    def principal(self) -> str | None:
        return named_principal(caller())


class Guard:
    """ASGI middleware: refuses requests, sets the caller and adds headers to each answer."""

    def __init__(self, application: ASGIApp, access: BrowserAccess) -> None:
        self._application = application
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        with calling(scope.get("state", {}).get(PEER)):
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
                found.setdefault("Cache-Control", "no-store")
            await send(message)

        await (refusal or self._application)(scope, receive, guarded)

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        """The answer to a request that is refused; None if it is not."""
        method = scope["method"]
        refused = _refusal(scope, by_certificate=self._access.by_certificate)
        if refused is not None:
            status, reason = refused
            return PlainTextResponse(f"{reason}\n", status)
        try:
            self._access.expect_view()  # first: a caller without any right costs the log servers nothing
            await self._access.confirm()
            self._access.expect_view()
            if method not in ("GET", "HEAD") or scope["path"].startswith("/actions/"):
                self._access.expect_act()
        except PermissionDenied as error:
            return PlainTextResponse(f"{error}\n", 403)
        except Unavailable as error:
            return PlainTextResponse(f"{error}\n", 503)
        return None


def _refusal(scope: Scope, *, by_certificate: bool) -> tuple[int, str] | None:
    """Why the request is refused, independent of its sender, with the status of the answer; None if it is not."""
    method, headers = scope["method"], Headers(scope=scope)
    hosts = headers.getlist("host")
    host = hosts[0].lower() if len(hosts) == 1 else ""
    named = _HOST.fullmatch(host)
    if (hosts or not by_certificate) and named is None:
        return 400, "The header Host must name a host, or a host and a port, once."
    if not by_certificate:
        assert named is not None
        if not _is_loopback(named["host"].strip("[]")):
            return 403, "Without TLS the console answers only at an address of the loopback."
        if scope["http_version"] == "1.0" or any(name in _PROXY or name.startswith("x-forwarded-") for name in headers):
            return 403, "Without TLS the console answers no request that a proxy passed on: it could not know who sends it. Configure `tls`."
    if method in ("GET", "HEAD"):
        return None
    site, origins = headers.get("sec-fetch-site"), headers.getlist("origin")
    own = f"{'https' if by_certificate else 'http'}://{host}"
    if site not in (None, "same-origin") or [origin.lower() for origin in origins] != [own]:
        return 403, "The request comes from a page of another site, or does not say from which (header Origin)."
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
