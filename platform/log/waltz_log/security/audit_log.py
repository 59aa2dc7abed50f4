"""The audit log: each administrative action and each denial, as one JSON object a line.

Lines go to the logger `waltz.audit` of Python's logging. `open_audit` gives it a file that rotates; without one, a process logs them like its other
events. A line holds names and never a payload, and each name is made printable and cut, because a denied caller chooses some of them.

No flood of denied calls erases what was recorded before. Denials are limited (`denial_limit`): the next line of the principal says how many were left
out. With a file, the first and last calls of each principal are also kept beside it, where no other principal's denials reach
(`denied_principals`).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, cast

from pydantic import Field

from waltz_log.errors import InvalidSetting, NotAllowed, PermissionDenied
from waltz_log.loggers import get_logger
from waltz_log.outside_text import cut
from waltz_log.security.denial_limit import DenialLimit
from waltz_log.security.denied_principals import DeniedPrincipals
from waltz_log.settings import Settings
from waltz_log.untrusted_files import PRIVATE

__all__ = ["AuditSettings", "acted", "denied", "open_audit"]

log = get_logger(__name__)

LOGGER: Final = logging.getLogger("waltz.audit")

FACT_BYTES_MAX: Final = 1024
"""For a value that an administrator wrote, such as a list of operations."""

LEFT_PAUSE_S: Final = 10.0
"""Between two writes of what is left of the budget of all denials."""


class AuditSettings(Settings):
    """A file for the audit log. A node of several workers writes one for each, with the worker's number at its end."""

    file: Path = Field(
        description="File that lines are appended to. Its folder must exist. The folder FILE.denied beside it keeps the first and last denied calls "
        "of each principal."
    )
    bytes_max: int = Field(
        default=64 * 1024 * 1024,
        ge=1024 * 1024,
        description="The file is renamed to FILE.1 when it reaches this size, and older files move up. Denials get so small a part of all files "
        "that each line stays for about three weeks.",
    )
    files_max: int = Field(default=10, ge=1, le=1000, description="Renamed files to keep; the oldest is removed.")


class _Trail:
    """Where the lines of this process go. `lines` None: to its log, and nothing is kept of a principal."""

    def __init__(self, limit: DenialLimit, lines: _Lines | None = None, principals: DeniedPrincipals | None = None) -> None:
        self.limit = limit
        self.lines = lines
        self.principals = principals
        self._left_due_s = 0.0

    def deny(self, principal: str | None, facts: Mapping[str, str | int]) -> None:
        if self.principals is not None:
            self.principals.add(principal, facts)
        left_out = self.limit.count(principal)
        if left_out is None:
            return
        if left_out:
            facts = {**facts, "left_out": left_out}
        if self.lines is None:
            log.warning("request denied", principal=principal, **facts)
            return
        self.limit.written(principal, _write("request denied", {"principal": principal, **facts}))
        if time.monotonic() >= self._left_due_s:
            self._left_due_s = time.monotonic() + LEFT_PAUSE_S
            self._keep_left()

    def _keep_left(self) -> None:
        left = self.limit.left()
        if self.principals is not None and left is not None:
            self.principals.keep_left(left)

    def close(self) -> None:
        if self.lines is not None:
            LOGGER.removeHandler(self.lines)
            with suppress(OSError):  # its lines were reported when they were not written
                self.lines.close()
        if self.principals is not None:
            self._keep_left()
            self.principals.close()


def denied(error: NotAllowed, *, verified: bool = True) -> None:
    """Records that a peer was refused, by the rules of access or by the properties of a topic. `verified` False: nothing proves the principal, as
    without TLS. Such denials share one limit, because a client may state many names. What the peer named is cut (`outside_text`)."""
    if isinstance(error, PermissionDenied):
        operation, resource, roles = error.operation, error.resource, error.roles
    else:
        operation, resource, roles = error.action, error.topic, ""
    facts = {"operation": operation, "resource": resource, "roles": roles, "stated_by": "" if verified else error.principal or ""}
    principal = _name(error.principal) if verified and error.principal is not None else None
    _trail.deny(principal, {name: cut(value) for name, value in facts.items() if value})


def _name(principal: str) -> str:
    """A file name for a name in a certificate. Two long ones that begin alike stay two."""
    shown = cut(principal)
    return shown if shown == principal else f"{shown} sha256={hashlib.sha256(principal.encode('utf-8', 'replace')).hexdigest()[:16]}"


def acted(event: str, **facts: str | int | None) -> None:
    """Records that the cluster was administered: what changed, and who did it if that is known."""
    shown = {name: cut(value, FACT_BYTES_MAX) if isinstance(value, str) else value for name, value in facts.items()}
    if _trail.lines is not None:
        _write(event, shown)
    else:
        log.info("cluster administered", action=event, facts=" ".join(f"{name}={value}" for name, value in shown.items() if value is not None))


def _write(event: str, facts: Mapping[str, str | int | None]) -> int:
    """The number of its bytes: JSON is ASCII here."""
    line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts})
    LOGGER.info(line)
    return len(line) + 1


def _open_private(path: str, flags: int) -> int:
    """Only the user of the process reads a new file. A named pipe that no process reads is an error, and the process does not wait for its reader."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, PRIVATE)
    os.set_blocking(descriptor, True)
    return descriptor


class _Lines(RotatingFileHandler):
    """A line that cannot be written, as on a full disk, is reported and does not end the call that it is about."""

    def _open(self) -> TextIOWrapper:
        return cast(TextIOWrapper, open(self.baseFilename, self.mode, encoding=self.encoding, opener=_open_private))

    def handleError(self, record: logging.LogRecord) -> None:
        log.exception("audit line not written", file=self.baseFilename, line=record.getMessage())


_trail = _Trail(DenialLimit())


def open_audit(settings: AuditSettings | None, worker: int | None = None) -> None:
    """Opens the file and the folder of this process, and closes earlier ones. Raises `InvalidSetting` if they cannot be opened."""
    global _trail
    _trail.close()
    _trail = _Trail(DenialLimit())
    if settings is None:
        return
    path = settings.file if worker is None else settings.file.with_name(f"{settings.file.name}-{worker}")
    try:
        lines = _Lines(path, maxBytes=settings.bytes_max, backupCount=settings.files_max, encoding="utf-8")
        try:
            principals = DeniedPrincipals(path.with_name(f"{path.name}.denied"))
        except OSError:
            lines.close()
            raise
    except OSError as error:
        raise InvalidSetting(name="audit.file", reason=f"{path} cannot be written: {error.strerror}", nearest=None) from None
    _trail = _Trail(_limit(settings, principals), lines, principals)
    lines.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(lines)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


def _limit(settings: AuditSettings, principals: DeniedPrincipals) -> DenialLimit:
    """Goes on with what the process before left of the budget: a restart gives denials no new room."""
    files_bytes = settings.bytes_max * (settings.files_max + 1)
    earlier = principals.left()
    return DenialLimit(files_bytes=files_bytes) if earlier is None else DenialLimit(files_bytes=files_bytes, left=earlier[0], since_s=earlier[1])


@atexit.register
def _close() -> None:
    """What is due is written when the process ends."""
    _trail.close()
