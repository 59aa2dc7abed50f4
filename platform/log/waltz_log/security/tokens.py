"""Tokens (JWT, RFC 7519): who a caller is, as an issuer that the node trusts has signed it.

A client sends a token beside its certificate, over TLS alone. The node checks signature, issuer, audience and time at each call. The caller is then
the token's subject instead of the name in the certificate. No token makes a peer a node. Keys are a JWK set in a file, and the node never asks the
issuer. A token appears in no log, error or representation.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final  # keys and claims of PyJWT, which is imported where tokens are used

from waltz_log.errors import InvalidSetting, PermissionDenied
from waltz_log.extras import explain_missing
from waltz_log.loggers import get_logger
from waltz_log.security.identity import Identity, Role, matches
from waltz_log.security.settings import TokenSettings

__all__ = ["TokenFile", "Tokens"]

log = get_logger(__name__)

CHECK_S: Final = 0.5
"""Between two checks of a file."""

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""Signatures with a key pair. With a shared secret, everyone who checks tokens could make them."""

LEEWAY_S: Final = 30.0
"""By which the clocks of issuer and node may differ."""

TOKEN_BYTES_MAX: Final = 16 * 1024
REQUIRED: Final = ("aud", "exp", "iss", "sub")


class _File:
    """The contents of a file, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checked_s = -CHECK_S
        self._stamp: tuple[int, int, int] | None = None

    def changed(self) -> bytes | None:
        """None if it is as before, or was checked a moment ago. Raises `OSError`."""
        if time.monotonic() - self._checked_s < CHECK_S:
            return None
        self._checked_s = time.monotonic()
        status = os.stat(self.path)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return None
        data = self.path.read_bytes()
        self._stamp = stamp
        return data


class Tokens:
    """Checks tokens. Raises `InvalidSetting` at start if the file of keys cannot be used; later it keeps the previous keys, and logs why."""

    def __init__(self, settings: TokenSettings, *, now_s: Callable[[], float] = time.time) -> None:
        with explain_missing("tls.tokens", "server"):
            import jwt
        self._jwt: Any = jwt
        self._settings = settings
        self._now_s = now_s
        self._lock = threading.Lock()
        self._file = _File(settings.keys)
        self._keys: dict[str | None, Any] = {}
        self._roles = {Role.OPERATOR: settings.operators, Role.APPLICATION: settings.applications, Role.READER: settings.readers}
        self._read()

    def _read(self) -> None:
        try:
            data = self._file.changed()
            if data is not None:
                keys = self._jwt.PyJWKSet.from_dict(json.loads(data)).keys
                self._keys = {each.key_id: each for each in keys if each.algorithm_name in ALGORITHMS}
        except OSError as error:
            raise InvalidSetting(name="tls.tokens.keys", reason=f"{self._file.path} cannot be read: {error.strerror}", nearest=None) from None
        except (ValueError, TypeError, AttributeError, self._jwt.PyJWTError):
            raise InvalidSetting(name="tls.tokens.keys", reason=f"{self._file.path} is not a set of keys (JWKS)", nearest=None) from None

    def _current_keys(self) -> dict[str | None, Any]:
        with self._lock:
            try:
                self._read()
            except InvalidSetting as error:
                log.error("new token keys refused, the previous ones stay in use", reason=str(error))
            return self._keys

    def identify(self, token: str) -> Identity:
        """The caller. Raises `PermissionDenied` with the reason why the token is refused."""
        jwt = self._jwt
        try:
            if len(token) > TOKEN_BYTES_MAX:
                raise _refused("it is too long")
            header = jwt.get_unverified_header(token)
            key = self._current_keys().get(header.get("kid"))
            if key is None or header.get("alg") != key.algorithm_name:
                raise _refused("none of the node's keys has signed it")
            # The dates are compared below, with the clock of this object.
            checks = {"require": list(REQUIRED), "verify_exp": False, "verify_nbf": False, "verify_iat": False}
            of = self._settings
            claims = jwt.decode(token, key.key, algorithms=[key.algorithm_name], audience=of.audience, issuer=of.issuer, options=checks)
        except jwt.InvalidAudienceError:
            raise _refused("it is for another audience") from None
        except jwt.InvalidIssuerError:
            raise _refused("it is of another issuer") from None
        except jwt.PyJWTError:
            raise _refused("it is not a token, or its signature is wrong") from None
        return self._identity(claims)

    def _identity(self, claims: dict[str, Any]) -> Identity:
        now_s, subject = self._now_s(), claims["sub"]
        begins_s, ends_s = claims.get("nbf", now_s), claims["exp"]
        if not all(isinstance(each, int | float) for each in (begins_s, ends_s)):
            raise _refused("its times are not numbers")
        if ends_s <= now_s - LEEWAY_S:
            raise _refused("it has expired")
        if begins_s > now_s + LEEWAY_S:
            raise _refused("it is not valid yet; compare the clocks of issuer and node")
        return Identity(subject, frozenset(role for role, patterns in self._roles.items() if any(matches(subject, each) for each in patterns)))


def _refused(reason: str) -> PermissionDenied:
    return PermissionDenied(principal=None, operation="authenticate", reason=f"the token is refused, {reason}")


class TokenFile:
    """A client's token, read again when the file changes."""

    def __init__(self, path: Path) -> None:
        self._file = _File(path)
        self._token = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of one call. Raises `InvalidSetting` if there is no token at all."""
        try:
            data = self._file.changed()
            if data is not None:
                self._token = data.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self._token:
                raise InvalidSetting(name="tls.token", reason=f"{self._file.path} holds no token: {error}", nearest=None) from None
            log.warning("token file not read, the previous token stays in use", reason=str(error))
        return (("authorization", f"Bearer {self._token}"),)
