"""The log lines about calls that a peer can make fail as often as it likes: requests that are no message of their procedure, and unexpected errors.

A peer gets few lines in a window of seconds, and all peers together have a limit too (`line_limit`); the next line says how many were left out. What
the caller is answered about an unexpected error names its class alone: its text may hold what other callers sent.
"""

from __future__ import annotations

from typing import Final

from waltz_log.core.ports import AnyMethod
from waltz_log.errors import ProtocolViolation
from waltz_log.line_limit import LineLimit
from waltz_log.loggers import get_logger
from waltz_log.security.callers import caller

__all__ = ["log_failure", "log_violation"]

log = get_logger(__name__)

_failures: Final = LineLimit(2, 20)
"""With a stack trace each."""
_violations: Final = LineLimit(2, 60)


def log_failure(method: AnyMethod, peer: str, error: Exception) -> str:
    """Call while the exception is handled. Returns what the caller is answered."""
    left_out = _failures.count(_key(peer))
    if left_out is not None:
        log.exception("call failed", method=method.name, peer=peer, left_out=left_out)
    return f"unexpected error, which the log of the node explains: {type(error).__name__}"


def log_violation(method: AnyMethod, peer: str, error: ProtocolViolation) -> None:
    left_out = _violations.count(_key(peer))
    if left_out is not None:
        log.warning("request refused as malformed", method=method.name, peer=peer, reason=error.reason, left_out=left_out)


def _key(peer: str) -> str:
    """The principal, or else the host: a peer may use many ports."""
    known = caller()
    return peer.rpartition(":")[0] if known is None else known.principal
