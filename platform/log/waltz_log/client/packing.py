"""From what the caller says of an append to what a window takes: checked against what the log could never take, locks as a frame carries them."""

from __future__ import annotations

from collections.abc import Callable

from waltz_log.client.settings import ClientSettings
from waltz_log.client.transaction import Draft, pack_locks
from waltz_log.client.window import AS_KNOWN, NO_LOCKS
from waltz_log.errors import InvalidRequest, TransactionTooLarge

__all__ = ["MARK_MAX", "pack", "refuse"]

MARK_MAX = 2**63 - 1


def pack(draft: Draft, settings: ClientSettings, known: Callable[[], int]) -> tuple[int, bytes, bytes]:
    """Mark, lock counts, locks. `known`: the mark where the draft gives none. Raises `InvalidRequest`, `TransactionTooLarge`."""
    data, header, write, read, append, mark = draft
    if not isinstance(data, bytes) or len(data) > settings.record_bytes_max or not -0x8000_0000 <= header <= 0x7FFF_FFFF:
        refuse(data, header, settings.record_bytes_max)
    counts, locks = pack_locks(write, read, append, settings.locks_max) if write or read or append else (NO_LOCKS, b"")
    if mark is None:
        return (known() if locks else AS_KNOWN), counts, locks
    if not -1 <= mark <= MARK_MAX:
        raise InvalidRequest(reason=f"no such high-water mark: {mark}")
    return mark, counts, locks


def refuse(data: object, header: int, record_bytes_max: int) -> None:
    """Says what is wrong with data or header."""
    if not isinstance(data, bytes):
        raise InvalidRequest(reason=f"data must be bytes, not {type(data).__name__}")
    if len(data) > record_bytes_max:
        raise TransactionTooLarge(what="data", size=len(data), limit=record_bytes_max)
    raise InvalidRequest(reason=f"header does not fit 32 bits, signed: header={header}")
