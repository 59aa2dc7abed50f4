"""Turns the arguments of an append into a `PendingAppend`: checked against the log's limits, with locks in the form of a frame."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from operator import index

from waltz_log.client.append.pending_append import FRAME_OVERHEAD_BYTES, NO_LOCKS, PendingAppend
from waltz_log.client.append.producer import Producer
from waltz_log.client.transactions.transaction import LOCK_HASHES, Draft, Lock, Receipt
from waltz_log.core.locks.lock_columns import ONE_WRITE
from waltz_log.errors import InvalidRequest, TransactionTooLarge

__all__ = ["check_draft", "checked_timeout", "integer_mark", "pack_append", "pack_checked"]

MARK_MAX = 2**63 - 1


def pack_append(future: asyncio.Future[Receipt], producer: Producer, draft: Draft, deadline: float) -> PendingAppend:
    """Raises `InvalidRequest`, `TransactionTooLarge`."""
    data, header, write_locks, read_locks, append_locks, mark = draft
    record_bytes_max = producer.record_bytes_max
    if type(data) is not bytes or type(header) is not int or len(data) > record_bytes_max or not -0x8000_0000 <= header <= 0x7FFF_FFFF:
        check_draft(data, header, record_bytes_max)
    append = PendingAppend()
    append.future = future
    append.data = data
    append.header = header
    if write_locks or read_locks or append_locks:
        try:
            if len(write_locks) == 1 and not read_locks and not append_locks:  # as in most transactions
                append.lock_counts, locks = ONE_WRITE, LOCK_HASHES[write_locks[0]]
            else:
                append.lock_counts, locks = _pack_locks(write_locks, read_locks, append_locks, producer.locks_max)
        except TypeError:
            raise InvalidRequest(reason="locks must be a list, and a lock must be a name and a key, text or number") from None
    else:
        append.lock_counts, locks = NO_LOCKS, b""
    append.locks = locks
    if mark is not None:
        append.mark, append.own_writes_known = integer_mark(mark), False
    elif locks:
        if producer.followers or not producer.mounts:
            append.mark, append.own_writes_known = producer.default_mark()
        else:  # as `default_mark` answers it, without the call
            append.mark, append.own_writes_known = producer.window.known_mark, True
    else:
        append.mark, append.own_writes_known = None, True
    append.size = len(data) + len(locks) + FRAME_OVERHEAD_BYTES
    append.deadline = deadline
    return append


def _pack_locks(write: Sequence[Lock], read: Sequence[Lock], append: Sequence[Lock], locks_max: int) -> tuple[bytes, bytes]:
    """The three counts and the locks, as a frame carries them."""
    total = len(write) + len(read) + len(append)
    if total > locks_max:
        raise TransactionTooLarge(what="locks", size=total, limit=locks_max)
    return bytes((len(write), len(read), len(append))), b"".join([LOCK_HASHES[lock] for lock in (*write, *read, *append)])


def pack_checked(future: asyncio.Future[Receipt], data: bytes, header: int) -> PendingAppend:
    """For data and a header that were checked before; without locks, a mark or a deadline."""
    append = PendingAppend()
    append.future = future
    append.data = data
    append.header = header
    append.lock_counts, append.locks = NO_LOCKS, b""
    append.mark, append.own_writes_known = None, True
    append.size = len(data) + FRAME_OVERHEAD_BYTES
    append.deadline = math.inf
    return append


def integer_mark(mark: object) -> int:
    """The mark of a caller as an int. Raises `InvalidRequest` here, because a wrong value would otherwise fail when the frame is packed, together
    with other appends."""
    try:
        if isinstance(mark, bool):
            raise TypeError
        found = index(mark)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(reason=f"a high-water mark must be a transaction id or -1: {mark!r}") from None
    if not -1 <= found <= MARK_MAX:
        raise InvalidRequest(reason=f"no such high-water mark: {found}")
    return found


def checked_timeout(timeout_s: float) -> float:
    """The timeout of a caller in seconds; 0: nothing is sent. Raises `InvalidRequest` if it is negative or not a number."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s >= 0:
        raise InvalidRequest(reason=f"a timeout must be a number of seconds, 0 or more: timeout_s={timeout_s!r}")
    return timeout_s


def check_draft(data: object, header: object, record_bytes_max: int) -> None:
    """Raises `InvalidRequest` or `TransactionTooLarge` for wrong data or a wrong header. Types that act as integers are accepted."""
    if not isinstance(data, bytes):
        raise InvalidRequest(reason=f"data must be bytes, not {type(data).__name__}")
    if len(data) > record_bytes_max:
        raise TransactionTooLarge(what="data", size=len(data), limit=record_bytes_max)
    try:
        found = index(header)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(reason=f"a header must be a whole number of 32 bits: {header!r}") from None
    if not -0x8000_0000 <= found <= 0x7FFF_FFFF:
        raise InvalidRequest(reason=f"header must fit a signed 32-bit integer: header={found}")
