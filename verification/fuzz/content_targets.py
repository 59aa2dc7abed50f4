"""Fuzz targets for the contents of records and files: journals, views, outboxes, locks of the last owner (as in `parser_targets.py`). A checksum
protects these parsers from most damage, and would also stop a fuzzer. So they get the bytes unchanged, and again with a correct checksum.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from waltz_log.client.feed.decode_feed import decode_feed
from waltz_log.compaction.index import IndexWriter, decode_index
from waltz_log.compaction.manifest import Manifest, ViewFile
from waltz_log.core.formats.columns import verify_records
from waltz_log.core.formats.envelope import KEY_BYTES_MAX, key_of, pack_keyed, split_keyed
from waltz_log.core.formats.records import encode_record
from waltz_log.core.formats.sealed_headers import verify_sealed_headers
from waltz_log.core.formats.traces import CONTEXT_BYTES, SAMPLED, TRACES_MAX, is_context, pack_traces, unpack_traces
from waltz_log.core.formats.wal_records import WalRecord, encode_wal_record, wal_checksum, wal_record_bytes, walk_wal_records
from waltz_log.errors import CorruptData, ProtocolViolation
from waltz_log.journal import record_codec
from waltz_log.outbox.intent import Intent, decode_intent, encode_intent
from waltz_log.server.ordering.handed_locks import HandedLocks
from waltz_log.transport import view_pages
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page, encode_view_page

__all__ = ["CONTENT_SEEDS", "CONTENT_TARGETS"]

FILE_ID: Final = 7
SALT_SEED: Final = 0x1234_5678

_HEAD: Final = struct.Struct("<qqi")


def _sealed(key: bytes, value: bytes) -> bytes:
    return encode_wal_record(WalRecord(5, 6, 7, key, value))


def view_records(data: bytes) -> None:
    found: list[tuple[int, WalRecord, int]] = []
    try:
        found.extend(walk_wal_records(data, where="fuzz"))
    except CorruptData:
        return
    assert b"".join(encode_wal_record(record) for _, record, _ in found) == data
    assert all(wal_record_bytes(data[start : start + 24]) == end - start for start, _, end in found)


def view_index(data: bytes) -> None:
    count = _HEAD.unpack_from(data)[2] if len(data) >= _HEAD.size else 0
    hashes = data[_HEAD.size : _HEAD.size + 8 * count] if 0 < count < len(data) else b""
    combined = int(np.bitwise_xor.reduce(np.frombuffer(hashes[: len(hashes) // 8 * 8], "<u8"))) if hashes else 0
    for raw in (data, _sealed(str(combined).encode(), data)):
        try:
            for chunk in decode_index(raw, where="fuzz"):
                assert len(chunk.hashes) == len(chunk.offsets) == len(chunk.key_ends) > 0
                assert np.all(np.diff(chunk.key_ends, prepend=0) >= 0)
                assert b"".join(chunk.key(entry) for entry in range(len(chunk))) == chunk.keys
        except CorruptData:
            continue


def view_manifest(data: bytes) -> None:
    for raw in (data, _sealed(b"created: 6", data)):
        try:
            found = Manifest.from_bytes(raw)
        except CorruptData:
            continue
        again = Manifest.from_bytes(found.to_bytes())
        assert again.to_bytes() == found.to_bytes()


def view_page(data: bytes) -> None:
    try:
        page = pb.ReadViewResponse.FromString(data)
    except DecodeError:
        return
    with suppress(CorruptData, ProtocolViolation):
        decode_view_page(page)
    page.checksums = bytes(len(page.transaction_ids) // 8 * 4)
    try:
        records, _ = view_pages._unverified(page)
    except ProtocolViolation:
        return
    checksums = [wal_checksum(record) for record in records]
    page.checksums = struct.pack(f">{len(records)}i", *checksums)
    found = decode_view_page(page)
    following = page.next_transaction_id
    again = encode_view_page(found, checksums, start=page.start, bound=page.bound, next_transaction_id=following, done=page.done)
    assert (again.keys, again.values, again.key_lengths, again.headers) == (page.keys, page.values, page.key_lengths, page.headers)


def keyed(data: bytes) -> None:
    found = split_keyed(data)
    length = int.from_bytes(data[1:5], "big", signed=True)
    assert (found is not None) == (len(data) > 5 and data[0] == 1 and 1 <= length <= min(KEY_BYTES_MAX, len(data) - 5))
    assert found is None or (pack_keyed(*found) == data and key_of(data) == found.key)


def traces(data: bytes) -> None:
    """An append never fails because of its traces."""
    count = data[0] if data else 0
    size = 4 + CONTEXT_BYTES
    entries = [data[1 + at : 1 + at + size] for at in range(0, max(0, len(data) - 1) // size * size, size)][:TRACES_MAX]
    plain = [(int.from_bytes(entry[:4], "big"), entry[4:]) for entry in entries]
    assert unpack_traces(data[1:], count) == [(place, context) for place, context in plain if place < count and is_context(context)]


def feed_frame(data: bytes) -> None:
    """The client's reader and the reader of blocks accept the same frames."""
    try:
        frame = pb.FeedFrame.FromString(data)
    except DecodeError:
        return
    first = frame.blocks[0].first_transaction_id if frame.blocks else 0
    for whole in (True, False):
        try:
            found = decode_feed(frame, 3, first, data=whole)
        except (ProtocolViolation, CorruptData):
            continue
        assert [each.transaction_id for each in found] == list(range(first, first + len(found)))
        if whole and len(frame.blocks) == 1:
            block = frame.blocks[0]
            verify_records(block.records, block.lengths, first_transaction_id=first, partition=3, where="fuzz")
        elif len(frame.blocks) == 1:
            verify_sealed_headers(frame.blocks[0].records, first_transaction_id=first, partition=3, where="fuzz")


def intent(data: bytes) -> None:
    try:
        found, submitted_ms = decode_intent(data)
    except CorruptData:
        return
    assert encode_intent(found, submitted_ms) == data
    if found.handler:
        with suppress(CorruptData):
            json.dumps(found.arguments)


def journal_file(data: bytes) -> None:
    """Decoding in columns finds the same records as decoding one by one, and only records that are also found at their place alone."""
    for seed in (None, SALT_SEED):
        end = 0
        for record in record_codec.scan(data, FILE_ID, seed, 0):
            assert end <= record.offset < record.end <= len(data)
            end = record.end
            alone = record_codec.record_at(data, record.offset, FILE_ID, seed)
            assert alone == (None if record.kind == record_codec.UNHEALTHY else record)
            if record.kind == record_codec.ADD:
                body = record_codec.encode_body(record_codec.ADD, FILE_ID, seed, record.record_id, record.user_type, record.body)
                assert body == data[record.offset : record.end]
    assert record_codec.record_bytes(data) >= len(data)


def handed_locks(data: bytes) -> None:
    try:
        found = HandedLocks.from_bytes(data)
    except struct.error:
        return
    assert HandedLocks.from_bytes(found.to_bytes()) == found


CONTENT_TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    target.__name__: target
    for target in (view_records, view_index, view_manifest, view_page, keyed, traces, feed_frame, intent, journal_file, handed_locks)
}


def _index(*keys: bytes) -> bytes:
    writer = IndexWriter(6)
    for place, key in enumerate(keys):
        writer.add(key, 40 * place)
    return writer.rest()


def _manifest() -> bytes:
    file = ViewFile(3, 2, 100, 50, np.array([True, False, True]), 40, 1, 5)
    return Manifest("a/b", 3, {"k": "v"}, 6, 0, 9, 2, 3, 1, files=(file,)).to_bytes()


def _value_of(record: bytes) -> bytes:
    return next(walk_wal_records(record, where="seed"))[1].value


def _feed() -> bytes:
    records = [encode_record(5, 1, 3, place, 7, b"x" * place, 9 + place) for place in range(3)]
    block = pb.Block(first_transaction_id=9, lengths=struct.pack(">3i", *map(len, records)), records=b"".join(records), append_time_ms=8)
    return pb.FeedFrame(blocks=[block]).SerializeToString()


def _journal(seed: int | None) -> bytes:
    adds = record_codec.encode_adds(FILE_ID, seed, [(place, 2, b"body") for place in range(40)] + [(50, 1, b"longer body"), (51, 1, b"")])
    rest = [
        record_codec.encode_body(record_codec.UPDATE, FILE_ID, seed, 3, 2, b"new"),
        record_codec.encode_body(record_codec.ADD_TX, FILE_ID, seed, 60, 2, b"of a transaction", 8),
        record_codec.encode_delete(FILE_ID, seed, 4),
        record_codec.encode_summary(record_codec.COMMIT, FILE_ID, seed, 8, [(FILE_ID, 1)]),
        record_codec.encode_rollback(FILE_ID, seed, 9),
    ]
    return b"".join(adds + rest)


_RECORDS: Final = [WalRecord(9, 8, 7, b"key", b"value"), WalRecord(10, 8, 0, b"k", b"")]
_CONTEXT: Final = bytes(range(1, 25)) + bytes([SAMPLED])

CONTENT_SEEDS: Final[dict[str, list[bytes]]] = {
    "view_records": [b"".join(map(encode_wal_record, _RECORDS))],
    "view_index": [_index(b"a", b"bc"), _value_of(_index(b"a", b"bc")), _value_of(_index(b"d"))],
    "view_manifest": [_manifest(), _value_of(_manifest())],
    "view_page": [
        encode_view_page(_RECORDS, list(map(wal_checksum, _RECORDS)), start=0, bound=11, next_transaction_id=11, done=True).SerializeToString()
    ],
    "keyed": [pack_keyed(b"key", b"value"), pack_keyed(b"k", b"")],
    "traces": [b"\x05" + pack_traces([(0, _CONTEXT), (4, _CONTEXT), (5, _CONTEXT)])],
    "feed_frame": [_feed()],
    "intent": [
        encode_intent(Intent.data(3, b"data", 7), 6),
        encode_intent(Intent.data(3, b"data", 7, "key"), 6),
        encode_intent(Intent.call("book", {"a": [1, 2]}, 3, "key"), 6),
    ],
    "journal_file": [_journal(None), _journal(SALT_SEED)],
    "handed_locks": [HandedLocks(3, 9, 4, {1: 5, -2: 9}).to_bytes()],
}
