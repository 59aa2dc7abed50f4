"""Messages that carry records are written and read by hand: the same messages as protobuf's, in both directions, and errors left to protobuf."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.block import Block
from waltz_log.errors import PermissionDenied
from waltz_log.security.identity import Identity, Role
from waltz_log.security.permits import admit, attribute
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.block_messages import message_of, replicated_message_of
from waltz_log.transport.large_messages import (
    AppendColumns,
    ReceivedAppend,
    ReceivedBlock,
    append_message,
    decoder_of,
    read_message,
    received_append,
    received_block,
    replicate_message,
)

SHORT = st.binary(max_size=300)
COUNTS = st.integers(0, 2**31 - 1)
FRAMES = st.builds(AppendColumns, COUNTS, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, COUNTS, SHORT)
BLOCKS = st.builds(Block, st.integers(0, 2**63 - 1), SHORT, SHORT, st.integers(0, 2**63 - 1), SHORT)


def as_protobuf(frame: AppendColumns) -> pb.ClientMessage:
    fields = frame._asdict() | {"records": bytes(frame.records)}
    return pb.ClientMessage(append=pb.AppendFrame(**fields))


@given(FRAMES)
def test_an_append_frame_is_protobufs_message_in_both_directions(frame: AppendColumns) -> None:
    written = append_message(frame)
    assert pb.ClientMessage.FromString(written.data) == as_protobuf(frame) == written.decoded()
    assert len(written) == len(written.data)
    for data in (written.data, as_protobuf(frame).SerializeToString()):
        found = received_append(data)
        assert isinstance(found, ReceivedAppend)
        assert found.WhichOneof("kind") == "append"
        assert found.append == frame


@given(BLOCKS)
def test_a_block_for_a_replica_is_protobufs_message_in_both_directions(block: Block) -> None:
    written = replicate_message(block)
    plain = pb.ReplicateRequest(block=replicated_message_of(block))
    assert pb.ReplicateRequest.FromString(written.data) == plain
    for data in (memoryview(written.data), plain.SerializeToString()):
        found = received_block(data)
        assert isinstance(found, ReceivedBlock)
        assert found.WhichOneof("kind") == "block"
        assert (found.block, found.block.traces) == (block, block.traces)
        assert type(found.block.records) is bytes


@given(st.lists(BLOCKS, max_size=3), st.integers(-1, 2**63 - 1))
def test_what_a_replica_read_is_protobufs_message(blocks: list[Block], last: int) -> None:
    written = read_message(blocks, last)
    plain = pb.ReadResponse(blocks=[replicated_message_of(block) for block in blocks], replica_last_transaction_id=last)
    assert pb.ReadResponse.FromString(written.data) == plain == written.decoded()


@given(FRAMES, st.data())
def test_a_damaged_message_is_read_as_protobuf_reads_it_or_refused_with_its_error(frame: AppendColumns, data: st.DataObject) -> None:
    damaged = bytearray(append_message(frame).data)
    place = data.draw(st.integers(0, len(damaged) - 1))
    if data.draw(st.booleans()):
        damaged[place] ^= data.draw(st.integers(1, 255))
    else:
        del damaged[place:]
    try:
        plain = pb.ClientMessage.FromString(bytes(damaged))
    except DecodeError:
        with pytest.raises(DecodeError):
            received_append(bytes(damaged))
        return
    found = received_append(bytes(damaged))
    assert (as_protobuf(found.append) if isinstance(found, ReceivedAppend) else found) == plain


@pytest.mark.parametrize(
    "message",
    [
        pb.ClientMessage(flush=pb.FlushRequest(flush_id=7)),
        pb.ClientMessage(append=pb.AppendFrame(generation=-3, records=b"r")),
        pb.ClientMessage(append=pb.AppendFrame(quota_refusals=-3, records=b"r")),
        pb.ClientMessage(),
    ],
)
def test_every_other_message_of_a_client_is_left_to_protobuf(message: pb.ClientMessage) -> None:
    assert received_append(message.SerializeToString()) == message


def test_several_blocks_and_messages_without_a_block_are_left_to_protobuf() -> None:
    block = message_of(Block(-5, b"", b"r", 0))
    for message in (
        pb.ReplicateRequest(blocks=pb.Blocks(blocks=[block, block])),
        pb.ReplicateRequest(block=block),
        pb.ReplicateRequest(flush=pb.Flush()),
    ):
        assert received_block(message.SerializeToString()) == message


def test_a_field_that_comes_twice_is_merged_by_protobuf() -> None:
    twice = 2 * append_message(AppendColumns(1, b"", b"", b"", b"", b"records", b"")).data
    assert received_append(twice) == pb.ClientMessage.FromString(twice)


def test_only_the_two_procedures_that_carry_records_are_read_by_hand() -> None:
    assert decoder_of(methods.MOUNT) is received_append
    assert decoder_of(methods.REPLICATE) is received_block
    assert decoder_of(methods.STORAGE_DIRECT) is received_block
    assert decoder_of(methods.READ)(pb.ReadRequest(partition=3).SerializeToString()) == pb.ReadRequest(partition=3)


@given(FRAMES, BLOCKS, st.sets(st.sampled_from(list(Role))))
def test_the_gate_judges_a_message_that_was_read_by_hand_as_it_judges_protobufs(frame: AppendColumns, block: Block, roles: set[Role]) -> None:
    identity = Identity("spiffe://waltz/test/a", frozenset(roles))
    for method, read, plain in (
        (methods.MOUNT, received_append(append_message(frame).data), as_protobuf(frame)),
        (methods.REPLICATE, received_block(replicate_message(block).data), pb.ReplicateRequest(block=replicated_message_of(block))),
    ):
        assert not isinstance(read, pb.ClientMessage | pb.ReplicateRequest)
        assert _admitted(identity, method.name, read) == _admitted(identity, method.name, plain)
        assert attribute(read, identity) is attribute(plain, identity) is False


def _admitted(identity: Identity, method: str, request: object) -> bool:
    try:
        admit(identity, method, request)
    except PermissionDenied:
        return False
    return True
