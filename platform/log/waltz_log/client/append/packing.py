"""From what the caller says of an append to what a window takes: checked against what the log could never take, locks as a frame carries them."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from waltz_log.client.append.window import AS_KNOWN, NO_LOCKS
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.transactions.transaction import Draft, pack_locks
from waltz_log.errors import InvalidRequest, TransactionTooLarge

__all__ = ["check_draft", "checked_timeout", "pack", "whole_mark"]

MARK_MAX = 2**63 - 1


def pack(draft: Draft, settings: ClientSettings, known: Callable[[], int]) -> tuple[int, bytes, bytes]:
    """Mark, lock counts, locks. `known`: the mark where the draft gives none. Raises `InvalidRequest`, `TransactionTooLarge`."""
    data, header, write, read, append, mark = draft
    if type(data) is not bytes or type(header) is not int or len(data) > settings.record_bytes_max or not -0x8000_0000 <= header <= 0x7FFF_FFFF:
        check_draft(data, header, settings.record_bytes_max)
    counts, locks = pack_locks(write, read, append, settings.locks_max) if write or read or append else (NO_LOCKS, b"")
    if mark is None:
        return (known() if locks else AS_KNOWN), counts, locks
    return whole_mark(mark), counts, locks


def whole_mark(mark: object) -> int:
    """A mark that a caller gave. Any kind of whole number will do; what is none would be found out only when the frame is made, with others in it."""
    try:
        if isinstance(mark, bool):
            raise TypeError
        found = index(mark)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(reason=f"a high-water mark is a transaction id, or -1: {mark!r}") from None
    if not -1 <= found <= MARK_MAX:
        raise InvalidRequest(reason=f"no such high-water mark: {found}")
    return found


def checked_timeout(timeout_s: float) -> float:
    """A deadline that a caller gave, in seconds from now; 0: nothing is sent. Raises `InvalidRequest` where it is negative or not a number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise InvalidRequest(reason=f"a timeout is a number of seconds, 0 or more: timeout_s={timeout_s!r}")
    return timeout_s


def check_draft(data: object, header: object, record_bytes_max: int) -> None:
    """Says what is wrong with data or header, where something is. For what is not plainly right: any kind of whole number will do."""
    if not isinstance(data, bytes):
        raise InvalidRequest(reason=f"data must be bytes, not {type(data).__name__}")
    if len(data) > record_bytes_max:
        raise TransactionTooLarge(what="data", size=len(data), limit=record_bytes_max)
    try:
        found = index(header)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(reason=f"a header is a whole number of 32 bits: {header!r}") from None
    if not -0x8000_0000 <= found <= 0x7FFF_FFFF:
        raise InvalidRequest(reason=f"header does not fit 32 bits, signed: header={found}")
