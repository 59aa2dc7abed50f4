"""What a replica serves, record by record, compared with what a reader was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from waltz_log.client import Transaction
from waltz_log.core.formats.records import decode_record
from waltz_log.errors import CorruptData

__all__ = ["differences"]


def differences(stored: bytes, log: Iterable[Transaction], partition: int) -> Iterator[str]:
    """The first place where the records that a replica serves are not those of the log, in order and in number."""
    at = 0
    last = -1
    for transaction in log:
        if at >= len(stored):
            yield f"replicas end at {last}, the log holds {transaction.transaction_id}: partition={partition}"
            return
        try:
            record, at = decode_record(stored, at)
        except CorruptData as error:
            yield f"replicas hold what cannot be decoded after {last}: partition={partition} {error}"
            return
        held = (record.transaction_id, record.client_id, record.generation, record.sequence, record.header, record.data)
        read = (transaction.transaction_id, transaction.client_id, transaction.generation, transaction.sequence, transaction.header, transaction.data)
        if held != read or record.partition != partition:
            yield f"replicas hold {record!r:.150}, readers are given {transaction!r:.150}: partition={partition}"
            return
        last = record.transaction_id
    if at < len(stored):
        yield f"replicas hold {len(stored) - at} bytes above {last}, where the log ends: partition={partition}"
