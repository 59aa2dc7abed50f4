"""The messages that carry records, written without copies of the records: append frames, blocks for replicas, and what a replica read. Servers also
read the first two without copies.

Protobuf copies a `bytes` field when it is set, when a message is made part of another one, when a message is encoded or decoded, and at each access.
For a frame of a MiB each of these copies also needs fresh memory. Here the bytes around the records are written by hand, and the records follow
unchanged. A server reads them as a view of the message that arrived. The bytes on the wire are protobuf's: each side of a connection may use either
way.

The reader accepts only messages in the form that the writer produces (each field once, only known fields). Protobuf reads all others, and also
reports what is wrong with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, NamedTuple  # Any: protobuf's descriptors and fields

from waltz_log.core.formats.block import Block
from waltz_log.core.messages import Encoded
from waltz_log.errors import ProtocolViolation
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.request_texts import with_names

__all__ = [
    "AppendColumns",
    "ReceivedAppend",
    "ReceivedBlock",
    "append_message",
    "decoder_of",
    "read_message",
    "received_append",
    "received_block",
    "replicate_message",
]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_UINT32_MAX = 2**32 - 1
_VARINT_BYTES_MAX = 10

MIXED_BYTES_MAX: Final = 256 * 1024
"""For a client's message that is not an append frame alone."""

_APPEND, _BLOCK = 2, 2
"""The fields of `ClientMessage` and of `ReplicateRequest`."""

_BLOCKS, _REPLICA_LAST = 1, 2
"""The fields of `ReadResponse`."""


class AppendColumns(NamedTuple):
    """The fields of a `pb.AppendFrame`. `records` of a frame that was received is a view of the message."""

    generation: int
    lengths: bytes
    marks: bytes
    lock_counts: bytes
    locks: bytes
    records: bytes | memoryview
    own: bytes
    quota_refusals: int = 0
    traces: bytes = b""


class ReceivedAppend:
    """A `pb.ClientMessage` that holds an append frame, with what servers and the gate (`admitted`) read of one."""

    __slots__ = ("append",)

    DESCRIPTOR: ClassVar[Any] = pb.ClientMessage.DESCRIPTOR
    mount: ClassVar = pb.MountRequest()

    def __init__(self, append: AppendColumns) -> None:
        self.append = append

    def WhichOneof(self, group: Literal["kind"]) -> str:  # as messages call it
        return "append"

    def HasField(self, name: str) -> bool:  # as messages call it
        return name == "append"


class ReceivedBlock:
    """A `pb.ReplicateRequest` that holds one block, with what storage nodes and the gate (`admitted`) read of one."""

    __slots__ = ("block",)

    DESCRIPTOR: ClassVar[Any] = pb.ReplicateRequest.DESCRIPTOR

    def __init__(self, block: Block) -> None:
        self.block = block

    def WhichOneof(self, group: Literal["kind"]) -> str:  # as messages call it
        return "block"

    def HasField(self, name: str) -> bool:  # as messages call it
        return name == "block"


# ---- writing -------------------------------------------------------------------------------------------------------------------------------------


def append_message(frame: AppendColumns) -> Encoded[pb.ClientMessage]:
    own, records = _bytes_field(7, frame.own), frame.records
    before = b"".join(
        [
            _number_field(1, frame.generation),
            _bytes_field(2, frame.lengths),
            _bytes_field(3, frame.marks),
            _bytes_field(4, frame.lock_counts),
            _bytes_field(5, frame.locks),
            own,
            _number_field(8, frame.quota_refusals),
            _bytes_field(9, frame.traces),
            _bytes_head(6, len(records)),
        ]
    )
    return Encoded.of_pieces(pb.ClientMessage, (_bytes_head(_APPEND, len(before) + len(records)) + before, bytes(records)))


def replicate_message(block: Block) -> Encoded[pb.ReplicateRequest]:
    return Encoded.of_pieces(pb.ReplicateRequest, _block_pieces(_BLOCK, block))


def read_message(blocks: Iterable[Block], replica_last_transaction_id: int) -> Encoded[pb.ReadResponse]:
    """The message with the blocks of a range that a replica read."""
    pieces = [piece for block in blocks for piece in _block_pieces(_BLOCKS, block)]
    return Encoded.of_pieces(pb.ReadResponse, (*pieces, _number_field(_REPLICA_LAST, replica_last_transaction_id)))


def _block_pieces(field: int, block: Block) -> tuple[bytes, bytes]:
    """The block as a field of a message."""
    before = b"".join(
        [
            _number_field(1, block.first_transaction_id),
            _bytes_field(2, block.lengths),
            _number_field(4, block.append_time_ms),
            _bytes_field(5, block.traces),
            _number_field(6, block.checksum),
            _bytes_head(3, len(block.records)),
        ]
    )
    return _bytes_head(field, len(before) + len(block.records)) + before, block.records


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number_field(number: int, value: int) -> bytes:
    """The encoded field of an int32 or int64. Protobuf leaves zeros out, and sends negative numbers as those of 64 bits."""
    return _varint(number << 3) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def _bytes_head(number: int, length: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(length)


def _bytes_field(number: int, value: bytes) -> bytes:
    return _bytes_head(number, len(value)) + value if value else b""


# ---- reading -------------------------------------------------------------------------------------------------------------------------------------


def decoder_of(method: Any) -> Callable[[Any], Any]:
    """A decoder of the requests of a procedure (any of `ports`, whose messages are of any type). It raises protobuf's `DecodeError`, and
    `ProtocolViolation` for names that are not valid (`request_texts`)."""
    by_type: dict[type, Callable[[Any], Any]] = {pb.ClientMessage: received_append, pb.ReplicateRequest: received_block}
    return by_type.get(method.request) or (lambda data: with_names(method.request.FromString(data)))


def received_append(data: bytes | memoryview) -> ReceivedAppend | pb.ClientMessage:
    """Raises what `decoder_of` says."""
    kinds = {1: int, 2: bytes, 3: bytes, 4: bytes, 5: bytes, 6: memoryview, 7: bytes, 8: int, 9: bytes}
    fields = _only_field(memoryview(data), _APPEND, kinds)
    if fields is None or max(fields.get(1, 0), fields.get(8, 0)) > _INT32_MAX:
        if len(data) > MIXED_BYTES_MAX and not _is_only_field(memoryview(data), _APPEND):
            raise ProtocolViolation(reason=f"message too large: bytes={len(data)} limit={MIXED_BYTES_MAX}")
        return with_names(pb.ClientMessage.FromString(data))  # type: ignore[arg-type]  # it reads a view too
    get = fields.get
    columns = (get(1, 0), get(2, b""), get(3, b""), get(4, b""), get(5, b""), get(6, b""), get(7, b""), get(8, 0), get(9, b""))
    return ReceivedAppend(AppendColumns(*columns))


def received_block(data: bytes | memoryview) -> ReceivedBlock | pb.ReplicateRequest:
    """Raises what `decoder_of` says."""
    fields = _only_field(memoryview(data), _BLOCK, {1: int, 2: bytes, 3: bytes, 4: int, 5: bytes, 6: int})
    if fields is None or max(fields.get(1, 0), fields.get(4, 0)) > _INT64_MAX or fields.get(6, 0) > _UINT32_MAX:
        return with_names(pb.ReplicateRequest.FromString(data))  # type: ignore[arg-type]  # it reads a view too
    get = fields.get
    return ReceivedBlock(Block(get(1, 0), get(2, b""), get(3, b""), get(4, 0), get(5, b""), get(6, 0)))


def _is_only_field(data: memoryview, number: int) -> bool:
    """Whether the message has no other field. An append frame consists of columns, which need no more memory decoded; a mount may hold millions of
    empty names."""
    tag = _number_at(data, 0)
    length = None if tag is None or tag[0] != number << 3 | 2 else _number_at(data, tag[1])
    return length is not None and length[0] == len(data) - length[1]


def _only_field(data: memoryview, number: int, kinds: dict[int, type]) -> dict[int, Any] | None:
    """The fields of the message that is the only field of this one; None if it is anything else. `kinds`: by number, what each field is read as."""
    found = _number_at(data, 0)
    if found is None or found[0] != number << 3 | 2:
        return None
    found = _number_at(data, found[1])
    if found is None or found[0] != len(data) - found[1]:
        return None
    at, fields = found[1], dict[int, Any]()
    while at < len(data):
        if (tag := _number_at(data, at)) is None or (value := _number_at(data, tag[1])) is None:
            return None
        field, kind = tag[0] >> 3, kinds.get(tag[0] >> 3)
        at = value[1]
        if kind is None or field in fields or tag[0] & 7 != (0 if kind is int else 2):
            return None
        if kind is int:
            fields[field] = value[0]
        elif value[0] <= len(data) - at:
            fields[field] = kind(data[at : at + value[0]])
            at += value[0]
        else:
            return None
    return fields


def _number_at(data: memoryview, at: int) -> tuple[int, int] | None:
    """A varint and where it ends; None if there is none."""
    value = 0
    for place, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return None
