"""The values that decide access, as a storage node followed them last: in files of its directory, so that it uses them after a restart too, also
where the coordinator lost them or was put back to an earlier state.

A file is the SHA-256 of a value in hexadecimal digits, a line feed, and the value as the coordinator stores it. The workers of a node share the
files: each writes what it follows, and a later value replaces an earlier one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final  # Any: values of all kinds

from waltz_log.coordination.followed import RULES, TOPICS, FollowedValue, KnownValues
from waltz_log.errors import WaltzError
from waltz_log.loggers import get_logger
from waltz_log.untrusted_files import REMEMBERED, read_bytes

__all__ = ["FILES", "RememberedValues"]

log = get_logger(__name__)

FILES: Final[Mapping[FollowedValue[Any], str]] = {RULES: "remembered-rules", TOPICS: "remembered-topics"}


class RememberedValues:
    """The remembered values of one process. All calls block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, known: KnownValues) -> None:
        """Adds what the node followed last to what the process knows. A value whose file cannot be read was there, so its absence proves nothing."""
        for kind, name in FILES.items():
            try:
                data = self._read(kind)
                if data is not None:
                    known.learn(kind, data)
            except (ValueError, WaltzError, OSError) as error:
                known.expect_later(kind)
                file = str(self._directory / name)
                log.error("remembered value cannot be read, without it nothing is permitted", value=kind.name, file=file, reason=str(error))

    def store(self, kind: FollowedValue[Any], data: bytes) -> None:
        """Durable when it returns. A disk that does not accept it is reported: the value applies, until a restart."""
        path = self._directory / FILES[kind]
        new = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            if self._is_later(kind, data):
                return
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(handle, "wb") as file:
                file.write(sha256(data).hexdigest().encode() + b"\n" + data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            log.error("value that decides access is not remembered", value=kind.name, file=str(path), reason=str(error))

    def _is_later(self, kind: FollowedValue[Any], data: bytes) -> bool:
        """Whether the file has a value that replaced this one, or this one. What cannot be read is replaced."""
        try:
            there = self._read(kind)
            return there == data or (there is not None and kind.is_older(kind.parse(data), kind.parse(there)))
        except (ValueError, WaltzError):
            return False

    def _read(self, kind: FollowedValue[Any]) -> bytes | None:
        """None: there is no file. Raises `ValueError` for one of other bytes than were written."""
        try:
            digest, found, data = read_bytes(self._directory / FILES[kind], REMEMBERED).partition(b"\n")
        except FileNotFoundError:
            return None
        if not found or digest != sha256(data).hexdigest().encode():
            raise ValueError("its checksum is wrong")
        return data
