"""The issuer's public keys, a JWK set (RFC 7517) in a file that is read again when it changes. The node never asks the issuer.

A new file counts only if it holds a key that can be used: an empty or damaged one would refuse every token. The previous keys stay in use then, and
the process logs an error until the file is correct.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final  # Any: keys of PyJWT

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.changing_file import ChangingFile
from waltz_log.untrusted_files import KEY_SET

__all__ = ["KeySet", "TokenKey"]

log = get_logger(__name__)

ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512")
"""Signatures with a key pair. With a shared secret, everyone who checks tokens could make them."""

MATERIAL: Final = ("kty", "crv", "x", "y", "n", "e")
"""The members that are the public key itself. Two keys with the same id may differ."""

KEYS_MAX: Final = 256

REPEAT_S: Final = 60.0
"""Between two log lines about the same unusable file."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Equal to the same key of the same id, read at another time."""

    kid: str | None
    algorithm: str
    material: tuple[str, ...]
    key: Any = field(compare=False)


class KeySet:
    """Raises `InvalidSetting` at start if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._file = ChangingFile(path, KEY_SET)
        self._lock = threading.Lock()
        self._keys: Mapping[str | None, TokenKey] = {}
        self._unusable: InvalidSetting | None = None
        self._logged_s = -REPEAT_S
        self._read()

    def current(self) -> Mapping[str | None, TokenKey]:
        """By id."""
        with self._lock:
            try:
                self._read()
            except InvalidSetting as error:
                if str(error) != str(self._unusable):
                    self._unusable, self._logged_s = error, -REPEAT_S
            if self._unusable is not None and time.monotonic() - self._logged_s >= REPEAT_S:
                self._logged_s = time.monotonic()
                log.error("new token keys refused, the previous ones stay in use", reason=str(self._unusable))
            return self._keys

    def _read(self) -> None:
        try:
            data = self._file.changed()
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror or error}") from None
        if data is not None:
            keys, left_out = self._parsed(data)
            self._keys, self._unusable = keys, None
            if left_out:
                log.warning("token keys left out", file=str(self._file.path), reason="unusable, or with the id of another one", keys=left_out)

    def _parsed(self, data: bytes) -> tuple[Mapping[str | None, TokenKey], int]:
        """The usable keys, and how many are not."""
        import jwt

        try:
            listed = json.loads(data)["keys"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._refused("is not a set of keys (JWKS)") from None
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise self._refused(f"is not a set of at most {KEYS_MAX} keys (JWKS)")
        found: dict[str | None, TokenKey] = {}
        for each in listed:
            kid = each.get("kid") if isinstance(each, dict) else None
            if not isinstance(each, dict) or not isinstance(kid, str | None) or kid in found:
                continue
            try:
                key = jwt.PyJWK(each)
            except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
                continue
            if key.algorithm_name in ALGORITHMS:
                found[kid] = TokenKey(kid, key.algorithm_name, tuple(str(each.get(name, "")) for name in MATERIAL), key.key)
        if not found:
            raise self._refused(f"holds no public key that can be used, with one of the algorithms {', '.join(ALGORITHMS)} (JWKS)")
        return found, len(listed) - len(found)

    def _refused(self, reason: str) -> InvalidSetting:
        return InvalidSetting(name="tls.tokens.keys", reason=f"{self._file.path} {reason}", nearest=None)
