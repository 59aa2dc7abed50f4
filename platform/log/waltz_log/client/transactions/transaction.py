"""What applications pass in and get back: locks, drafts, receipts, transactions. Values only, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypedDict

from waltz_log.core.topics.catalogue import Durability
from waltz_log.errors import InvalidRequest

__all__ = ["LOCK_HASHES", "Draft", "DraftOptions", "Lock", "Receipt", "Transaction", "lock_hash", "lock_prefix"]


LOCK_HASHES_MAX = 65_536
"""Some MB."""


class Lock(NamedTuple):
    """A lock of one partition, by name and key. Locks with the same 64-bit hash count as the same lock: that can cause a needless conflict, never
    a missed one."""

    name: str
    key: str | int


class Draft(NamedTuple):
    """A transaction to append. `header`: a number that the application chooses. `high_water_mark`: the last transaction that the application had
    applied when it computed this one; None: as the client knows it.

    Write locks are checked and set, read locks are checked, append locks are set (Client-Server Communication)."""

    data: bytes
    header: int = 0
    write_locks: Sequence[Lock] = ()
    read_locks: Sequence[Lock] = ()
    append_locks: Sequence[Lock] = ()
    high_water_mark: int | None = None


class DraftOptions(TypedDict, total=False):
    """The fields of a draft besides its data, as keyword arguments: `Draft(data, **options)`."""

    header: int
    write_locks: Sequence[Lock]
    read_locks: Sequence[Lock]
    append_locks: Sequence[Lock]
    high_water_mark: int | None


class Receipt(NamedTuple):
    """The transaction is committed. `append_time_ms`: milliseconds since 1970 in UTC, from the owner's clock; 0 if it is not known, because `resolve`
    found the outcome.

    `durability`: `quorum_sync`, or `quorum_memory` if the topic's policy allows an earlier receipt. Then a majority has received the transaction
    and syncs it within the policy's period; until then it is lost if its owner and a majority of its machines fail. Do not use its id as a mark
    before that."""

    partition: int
    transaction_id: int
    append_time_ms: int
    durability: Durability = "quorum_sync"


class Transaction(NamedTuple):
    """One committed transaction of a feed. `data` is empty in a feed without data. `client_id`, `generation` and `sequence`, with the partition,
    are its request id."""

    transaction_id: int
    timestamp_ms: int
    header: int
    data: bytes
    client_id: int
    generation: int
    sequence: int


def lock_prefix(name: str) -> bytes:
    """What is hashed before the key of a lock of that name whose key is text: BLAKE2b, in eight bytes, of this and the key is `lock_hash`."""
    encoded = name.encode()
    return len(encoded).to_bytes(4, "big") + encoded + b"s"


def _hash_lock(lock: tuple[str, str | int]) -> bytes:
    if not isinstance(lock, tuple) or len(lock) != 2 or not isinstance(lock[0], str) or not isinstance(lock[1], str | int):
        raise InvalidRequest(reason=f"a lock must be a name and a key, text or number: {lock!r}")
    try:
        name = lock[0].encode()
        key = b"s" + lock[1].encode() if isinstance(lock[1], str) else b"i%d" % lock[1]
    except ValueError as error:
        raise InvalidRequest(reason=f"a lock must be text or a number: {lock!r}: {error}") from None
    return blake2b(len(name).to_bytes(4, "big") + name + key, digest_size=8).digest()


class _LockHashes(dict[tuple[str, str | int], bytes]):
    """Hashes that were computed before, because applications lock the same names again and again. Forgets all of them when it is full: the order of
    use that `functools.lru_cache` keeps costs more than the lookup itself."""

    def __missing__(self, lock: tuple[str, str | int]) -> bytes:
        if len(self) >= LOCK_HASHES_MAX:
            self.clear()
        found = self[lock] = _hash_lock(lock)
        return found


LOCK_HASHES: Mapping[tuple[str, str | int], bytes] = _LockHashes()
"""`lock_hash` without a call, for the path of each append. Raises `InvalidRequest` for what is no lock, and `TypeError` if it cannot be hashed."""


def lock_hash(lock: tuple[str, str | int]) -> bytes:
    """The eight bytes that represent a lock on the wire: BLAKE2b of name and key. A number and its decimal text are different keys."""
    return LOCK_HASHES[lock]
