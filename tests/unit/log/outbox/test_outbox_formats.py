"""Intents as bytes, and what a journal means when it is read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.outbox.bench import bench, run
from waltz_log.client import Intent
from waltz_log.errors import CorruptData, InvalidRequest
from waltz_log.journal import Journal
from waltz_log.outbox.intent import decode_intent, encode_intent
from waltz_log.outbox.ledger import Kind
from waltz_log.outbox.offline import OutboxDirectory
from waltz_log.testing.disk import SimulatedDisk

PARTITIONS = st.integers(0, 2**31 - 1)
HEADERS = st.integers(-(2**31), 2**31 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


def test_an_intent_has_the_bytes_that_the_docstring_says() -> None:
    assert encode_intent(Intent.data(1, b"abc", header=2), 3).hex() == "01010000000100000002" + "0000000000000003" + "00000000" + b"abc".hex()
    called = encode_intent(Intent.call("pay", {"a": 1}, 0, key="k"), 5)
    assert called.hex() == "01020000000000000000" + "0000000000000005" + "00030001" + b'payk{"a":1}'.hex()


@settings(max_examples=60, deadline=None)
@given(partition=PARTITIONS, data=st.binary(max_size=50), header=HEADERS, key=st.text(max_size=5), at=st.integers(0, 2**62))
def test_data_comes_back_as_it_went(partition: int, data: bytes, header: int, key: str, at: int) -> None:
    intent = Intent.data(partition, data, header, key)
    assert decode_intent(encode_intent(intent, at)) == (intent, at)


@settings(max_examples=60, deadline=None)
@given(partition=PARTITIONS, handler=st.text(min_size=1, max_size=9), arguments=JSON, key=st.none() | st.text(max_size=5))
def test_a_call_comes_back_as_it_went(partition: int, handler: str, arguments: object, key: str | None) -> None:
    intent = Intent.call(handler, arguments, partition, key)
    decoded, _ = decode_intent(encode_intent(intent, 0))
    assert decoded == intent
    assert decoded.arguments == arguments


def test_every_truncation_of_the_head_is_found_and_nothing_else_raises() -> None:
    body = encode_intent(Intent.call("pay", [1], 0, key="key"), 1)
    for end in range(22 + 3 + 3):
        with pytest.raises(CorruptData):
            decode_intent(body[:end])
    for at in range(len(body)):
        for bit in range(8):
            flipped = bytearray(body)
            flipped[at] ^= 1 << bit
            try:
                decode_intent(bytes(flipped))
            except CorruptData:
                continue


@pytest.mark.parametrize(
    "make",
    [
        lambda: Intent.data(-1, b""),
        lambda: Intent.data(0, "text"),  # type: ignore[arg-type]
        lambda: Intent.data(0, b"", header=2**31),
        lambda: Intent.data(0, b"", key="k" * 70_000),
        lambda: Intent.call("", None, 0),
        lambda: Intent.call("f", {1, 2}, 0),
        lambda: Intent.call("f", float("nan"), 0),
    ],
)
def test_an_invalid_intent_is_refused_where_it_is_created(make: object) -> None:
    with pytest.raises(InvalidRequest):
        make()  # type: ignore[operator]


def test_an_intent_that_cannot_be_read_becomes_a_dead_letter_with_its_bytes() -> None:
    async def main() -> None:
        async with bench() as b:
            b.reachable = False
            disk = SimulatedDisk()
            async with b.outbox(disk) as outbox:
                await outbox.submit(Intent.data(0, b"good"))
            with OutboxDirectory(disk, 0) as directory:
                (entry,) = directory.pending()
            journal = Journal.open(disk)
            journal.add(entry.entry_id + 100, Kind.INTENT, b"\xff nonsense")
            journal.sync()
            journal.close()
            b.reachable = True
            async with b.outbox(disk) as outbox:
                await outbox.flush()
                (dead,) = outbox.dead_letters()
                assert (dead.intent, dead.body) == (None, b"\xff nonsense")
                assert "cannot be read" in dead.reason
                with pytest.raises(InvalidRequest, match="cannot be read"):
                    await outbox.resubmit(dead.dead_id)
                await outbox.resubmit(dead.dead_id, Intent.data(0, b"in its place"))
                await outbox.flush()
            assert await b.data(0) == [b"good", b"in its place"]

    run(main)
