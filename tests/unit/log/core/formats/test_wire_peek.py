from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.core.formats.wire_peek import FIELDS_MAX, peek_int32
from waltz_log.transport import waltz_pb2 as pb

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
REQUESTS = st.builds(pb.ReadRequest, cluster_key=st.binary(max_size=20), partition=INT32, session=INT64, max_bytes=INT64, headers_only=st.booleans())
MOUNTS = st.builds(pb.MountRequest, protocol_version=INT32, cluster_key=st.binary(max_size=20), partition=INT32, client_id=INT32)


@settings(max_examples=100, deadline=None)
@given(st.lists(REQUESTS, max_size=3))
def test_a_field_is_read_as_the_decoder_reads_it_also_where_parts_are_merged(parts: list[pb.ReadRequest]) -> None:
    data = b"".join(part.SerializeToString() for part in parts)
    assert peek_int32(data, (2,)) == pb.ReadRequest.FromString(data).partition


@settings(max_examples=100, deadline=None)
@given(st.lists(MOUNTS, max_size=3))
def test_a_field_of_an_inner_message_is_read_as_the_decoder_reads_it(parts: list[pb.MountRequest]) -> None:
    data = b"".join(pb.ClientMessage(mount=part).SerializeToString() for part in parts)
    assert peek_int32(data, (1, 4)) == pb.ClientMessage.FromString(data).mount.partition


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_what_the_decoder_takes_is_never_read_as_something_else(data: bytes) -> None:
    found = peek_int32(data, (2,))
    try:
        decoded = pb.ReadRequest.FromString(data)
    except DecodeError:
        return
    assert found in (None, decoded.partition)


@settings(max_examples=100, deadline=None)
@given(REQUESTS, st.data())
def test_a_message_that_ends_too_early_is_none_or_what_the_decoder_makes_of_it(request: pb.ReadRequest, data: st.DataObject) -> None:
    whole = request.SerializeToString()
    part = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        expected: int | None = pb.ReadRequest.FromString(part).partition
    except DecodeError:
        expected = None
    assert peek_int32(part, (2,)) == expected


def test_an_absent_field_is_zero() -> None:
    assert peek_int32(b"", (2,)) == 0
    assert peek_int32(pb.ClientMessage(flush=pb.FlushRequest(flush_id=9)).SerializeToString(), (1, 4)) == 0


class _Counted(bytes):
    """Says how many of its bytes were looked at."""

    looked = 0

    def __getitem__(self, at: object) -> object:  # type: ignore[override]
        assert isinstance(at, int), "a part of the message was copied"
        type(self).looked += 1
        return super().__getitem__(at)


def test_a_frame_of_a_mebibyte_is_neither_copied_nor_walked_through() -> None:
    frame = pb.ReplicateRequest(open=pb.ReplicateOpen(partition=7)).SerializeToString()
    frame += pb.ReplicateRequest(block=pb.Block(records=bytes(1 << 20))).SerializeToString()
    _Counted.looked = 0
    assert peek_int32(_Counted(frame), (1, 2)) == 7
    assert _Counted.looked < 32


@pytest.mark.parametrize("fields", [FIELDS_MAX, FIELDS_MAX + 1])
def test_a_message_of_very_many_fields_is_given_up(fields: int) -> None:
    data = b"\x10\x05" * fields
    assert peek_int32(data, (2,)) == (5 if fields == FIELDS_MAX else None)
