"""Tokens (JWT, RFC 7519): who a caller is, as an issuer that the node trusts has signed it.

A client sends a token beside its certificate, over TLS alone, and to verified nodes alone. The node checks signature, issuer, audience and time at
each call, and again while the call lasts (`transport.token_calls`). The caller is then the token's subject instead of the name in the certificate. No
token makes a peer a node. A token that names a certificate (RFC 8705) counts only from the client with that certificate. A token appears in no log,
error or representation.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final  # claims: any JSON

from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import PermissionDenied
from waltz_log.extras import explain_missing
from waltz_log.security.identity import Identity, Role, matches
from waltz_log.security.settings import TokenSettings
from waltz_log.security.token_keys import KeySet, TokenKey

__all__ = ["LEEWAY_S", "TOKEN_BYTES_MAX", "Credential", "Tokens"]

LEEWAY_S: Final = 30.0
"""By which the clocks of issuer and node may differ."""

TIME_MAX_S: Final = 253_402_300_800
"""The year 10000. A later time is an error of the issuer: such a token would never expire."""

TOKEN_BYTES_MAX: Final = 16 * 1024
SUBJECT_MAX: Final = 256
REQUIRED: Final = ("aud", "exp", "iss", "sub")

BINDING: Final = "cnf"
THUMBPRINT: Final = "x5t#S256"
"""The claim that binds a token to its owner, and in it the SHA-256 of the owner's certificate (RFC 8705, section 3.1)."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What an accepted token says. `ends_s`: when it expires, seconds since 1970."""

    identity: Identity
    ends_s: float
    key: TokenKey


class Tokens:
    """Checks tokens. Raises `InvalidSetting` at start if the file of keys cannot be used; later it keeps the previous keys, and logs why."""

    def __init__(self, settings: TokenSettings, *, now_s: Callable[[], float] = time.time) -> None:
        with explain_missing("tls.tokens", "server"):
            import jwt
        self._jwt: Any = jwt
        self._settings = settings
        self._now_s = now_s
        self._keys = KeySet(settings.keys)
        self._roles = {Role.OPERATOR: settings.operators, Role.APPLICATION: settings.applications, Role.READER: settings.readers}

    def identify(self, token: str, certificate: bytes = b"") -> Credential:
        """The caller. `certificate`: the one of its connection, PEM. Raises `PermissionDenied` with the reason why the token is refused."""
        jwt = self._jwt
        try:
            if len(token) > TOKEN_BYTES_MAX:
                raise _refused("it is too long")
            header = jwt.get_unverified_header(token)
            kid = header.get("kid")
            key = self._keys.current().get(kid) if kid is None or isinstance(kid, str) else None
            if key is None or header.get("alg") != key.algorithm:
                raise _refused("none of the node's keys has signed it")
            # The dates are compared below, with the clock of this object.
            checks = {"require": list(REQUIRED), "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            of = self._settings
            claims = jwt.decode(token, key.key, algorithms=[key.algorithm], audience=of.audience, issuer=of.issuer, options=checks)
        except jwt.InvalidAudienceError:
            raise _refused("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _refused("it is of another issuer") from None
        except (jwt.PyJWTError, RecursionError):
            raise _refused("it is not a token, or its signature is wrong") from None
        ends_s = self._expect_time(claims)
        self._expect_owner(claims, certificate)
        return Credential(self._identity(claims["sub"]), ends_s, key)

    def ended(self, credential: Credential) -> str | None:
        """Why a token that was accepted is not valid any more; None if it is."""
        if credential.ends_s <= self._now_s() - LEEWAY_S:
            return "it has expired"
        if credential.key not in self._keys.current().values():
            return "its key is no longer among the node's keys"
        return None

    def _expect_time(self, claims: dict[str, Any]) -> float:
        """When the token expires."""
        now_s = self._now_s()
        times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
        if not all(_is_time(each) for each in times.values()):
            raise _refused("its times are not numbers of seconds since 1970")
        if times["exp"] <= now_s - LEEWAY_S:
            raise _refused("it has expired")
        if max(times.get("nbf", now_s), times.get("iat", now_s)) > now_s + LEEWAY_S:
            raise _refused("it is not valid yet; compare the clocks of issuer and node")
        return float(times["exp"])

    def _expect_owner(self, claims: dict[str, Any], certificate: bytes) -> None:
        binding = claims.get(BINDING)
        if binding is None:
            if self._settings.bound:
                raise _refused(f"it names no certificate, in {BINDING} and {THUMBPRINT}, and the setting tokens.bound demands one")
            return
        if not isinstance(binding, dict) or set(binding) != {THUMBPRINT}:
            raise _refused(f"it is bound in another way than by {THUMBPRINT}, which this node cannot check")
        if not certificate or binding[THUMBPRINT] != _thumbprint(certificate):
            raise _refused("it belongs to the owner of another certificate")

    def _identity(self, subject: str) -> Identity:
        if not subject.isprintable() or not 0 < len(subject) <= SUBJECT_MAX or subject == CLUSTER_PRINCIPAL:
            raise _refused(f"its subject is not a valid name: 1 to {SUBJECT_MAX} printable characters, and not {CLUSTER_PRINCIPAL}")
        return Identity(subject, frozenset(role for role, patterns in self._roles.items() if any(matches(subject, each) for each in patterns)))


def _is_time(value: object) -> bool:
    """Python's `json` reads NaN, which no comparison holds for, and Infinity. A boolean is an integer in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < TIME_MAX_S


def _thumbprint(certificate: bytes) -> str:
    der = ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode()


def _refused(reason: str) -> PermissionDenied:
    return PermissionDenied(principal=None, operation="authenticate", reason=f"the token is refused, {reason}")
