"""The compacted view and then the log: nothing is missing and ids only rise, whatever is compacted and trimmed meanwhile and whichever replica
answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_log.client import ClientSettings, TopicHandle, TopicRecord
from waltz_log.client.topics.compacted import VerifiedPage, compacted_batches, decode_page
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.formats.wal_records import WalRecord, wal_checksum
from waltz_log.core.topics.catalogue import Catalogue, Policies
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import InvalidRequest, NotAllowed, OutOfRange, ProtocolViolation, Unavailable
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import encode_view_page

# ---- the rule alone: replicas that compact and trim while they are read ----------------------------------------------------------------------------


class World:
    """A log of (key, value), three replicas whose views end anywhere, and a beginning of the log that moves up to where views reach."""

    def __init__(self, log: list[tuple[int, int]], choices: Any) -> None:
        self.log = log
        self.choices = choices
        self.committed = choices(len(log) + 1)
        self.ends = [choices(self.committed + 1) for _ in range(3)]
        self.first = 0
        self.trims = 0

    def step(self) -> None:
        """What may happen between any two things that a reader does."""
        self.committed += self.choices(len(self.log) - self.committed + 1)
        replica = self.choices(3)
        self.ends[replica] += self.choices(self.committed - self.ends[replica] + 1)
        if self.choices(2):
            self.first = max(self.first, self.choices(sorted(self.ends)[1] + 1))
            self.trims += 1

    def view(self, end: int) -> list[WalRecord]:
        latest = {key: at for at, (key, _) in enumerate(self.log[:end])}
        return [WalRecord(at, 0, 0, b"%d" % key, _value(self.log[at][1])) for key, at in sorted(latest.items(), key=lambda item: item[1])]

    async def pages(self, position: int) -> AsyncGenerator[VerifiedPage, None]:
        """As `ViewReader.pages`: each page may be another replica's, of one that reaches the log."""
        while True:
            self.step()
            reaching = [end for end in self.ends if end >= self.first and end > 0]
            if not reaching:
                assert self.first <= position + 1
                return
            end = reaching[self.choices(len(reaching))]
            wanted = [record for record in self.view(end) if record.transaction_id > position]
            size = 1 + self.choices(3)
            done = len(wanted) <= size
            yield VerifiedPage(wanted[:size], end, done)
            if done:
                return
            position = wanted[size - 1].transaction_id

    async def follow(self, mark: int) -> AsyncGenerator[list[TopicRecord], None]:
        while True:
            self.step()
            if mark + 1 < self.first:
                raise OutOfRange(partition=0, asked=mark + 1, first=self.first, last=self.committed - 1)
            if mark + 1 >= self.committed:
                if self.committed == len(self.log):
                    return  # what no feed does: the test has seen all there is
                continue
            size = 1 + self.choices(4)
            rows = self.log[mark + 1 : min(mark + 1 + size, self.committed)]
            yield [TopicRecord(0, mark + 1 + n, 0, 0, b"%d" % key, _value(value)) for n, (key, value) in enumerate(rows)]
            mark += len(rows)


def _value(number: int) -> bytes:
    """Nought is the end of a key."""
    return b"%d" % number if number else b""


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40), st.randoms(use_true_random=False))
def test_the_view_and_the_log_after_it_fold_to_what_the_whole_log_does(log: list[tuple[int, int]], random: Any) -> None:
    world = World(log, lambda below: random.randrange(below))

    async def main() -> list[TopicRecord]:
        found: list[TopicRecord] = []
        async with aclosing(compacted_batches(world, 0, -1, world.follow)) as batches:  # type: ignore[arg-type]
            while True:
                try:
                    found += await anext(batches)
                except StopAsyncIteration:  # pragma: no cover
                    return found
                if world.committed == len(log) and (not log or found[-1].transaction_id == len(log) - 1):
                    return found

    async def bounded() -> list[TopicRecord]:
        return [] if not log else await asyncio.wait_for(main(), 20)

    found = asyncio.run(bounded())
    ids = [record.transaction_id for record in found]
    assert ids == sorted(set(ids)), "nothing comes twice, and nothing after something newer"
    state: dict[bytes | None, bytes] = {}
    for record in found:
        state[record.key] = record.value
    expected = {b"%d" % key: _value(value) for key, value in log}
    assert {key: value for key, value in state.items() if value} == {key: value for key, value in expected.items() if value}
    for record in found:
        assert log[record.transaction_id] == (int(record.key or b""), int(record.value or b"0"))


@pytest.mark.parametrize("until", [3, 4])
def test_a_read_up_to_a_mark_ends_there_even_if_the_view_has_no_record_of_it_any_more(until: int) -> None:
    class Reader:
        async def pages(self, position: int) -> AsyncGenerator[VerifiedPage, None]:
            yield VerifiedPage([WalRecord(1, 0, 0, b"k", b"v")], 5, True)

    async def beyond(mark: int) -> AsyncGenerator[list[TopicRecord], None]:
        raise AssertionError("the view told it all")
        yield []

    async def read() -> list[int]:
        feed = compacted_batches(Reader(), 0, -1, beyond, until)  # type: ignore[arg-type]
        return [record.transaction_id async for batch in feed for record in batch]

    assert asyncio.run(read()) == [1]


def test_a_page_whose_ids_do_not_rise_is_refused() -> None:
    def page(*ids: int) -> pb.ReadViewResponse:
        records = [WalRecord(at, 5, 6, b"k", b"v") for at in ids]
        return encode_view_page(records, [wal_checksum(each) for each in records], start=0, bound=9, next_transaction_id=0, done=True)

    assert decode_page(page(3, 7), 3) == ([WalRecord(3, 5, 6, b"k", b"v"), WalRecord(7, 5, 6, b"k", b"v")], 9, True)
    for ids in ((2, 7), (3, 3), (7, 3)):
        with pytest.raises(ProtocolViolation, match="do not rise"):
            decode_page(page(*ids), 3)
    assert decode_page(page(), 3).records == []


# ---- a cluster -------------------------------------------------------------------------------------------------------------------------------------

SMALL = {"segment_bytes": 4096, "scrub_bytes_per_s": 0, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}
FAST = ClientSettings(retry_base_s=0.01, retry_cap_s=0.1, append_timeout_s=20.0)


async def begin(**policies: Any) -> tuple[MemoryCluster, Any, TopicHandle]:
    cluster = MemoryCluster(partitions=2, servers=1, settings={"upkeep_s": 0.5}, storage_settings=SMALL)
    await cluster.start()

    def change(catalogue: Catalogue) -> Any:
        about: dict[str, Any] = {"type": "compaction", "partitions": 2, "pool": range(2), "now_ms": 0, "policies": Policies(**policies)}
        return catalogue.with_new(TopicName("shop", "stock"), **about)

    await change_catalogue(cluster.ensemble.session(), change)
    client = await cluster.connect(FAST)
    return cluster, client, await client.topic("shop/stock")


async def fill(topic: TopicHandle, first: int, count: int) -> dict[bytes | None, bytes]:
    """The state that this leaves, of keys that it touched; ends are empty."""
    state: dict[bytes | None, bytes] = {}
    for n in range(first, first + count):
        key = b"k%d" % (n * n % 23)
        if n % 7 == 0:
            await topic.delete(key)
            state[key] = b""
        else:
            value = state[key] = b"%d|" % n + bytes(150)
            await topic.append(value, key=key)
    return state


async def read_to_the_end(topic: TopicHandle, after: Any = -1) -> list[TopicRecord]:
    found: list[TopicRecord] = []
    async with asyncio.timeout(60):
        async for batch in topic.feed_batches(after=after, compacted=True, until=await topic.high_water_marks()):
            found += batch
    return found


def folded(records: list[TopicRecord]) -> dict[bytes | None, bytes]:
    return {record.key: record.value for record in records}


def test_a_reader_that_begins_late_gets_what_is_current_and_goes_on_as_it_is_appended() -> None:
    async def run() -> None:
        cluster, client, topic = await begin(retention_bytes=3000)
        state = await fill(topic, 0, 150)
        while min(node.views.bound(p) for node, _ in cluster.storages.values() for p in (0, 1)) < 40:
            await asyncio.sleep(0.2)
        while max(first for first in await firsts(cluster)) < 20:
            await asyncio.sleep(0.2)
        with pytest.raises(OutOfRange):
            async for _ in topic.feed_batches():
                pass
        found = await read_to_the_end(topic)
        assert len(found) < 150, "it was compacted"
        assert {key: value for key, value in folded(found).items() if value} == {key: value for key, value in state.items() if value}
        for partition in (0, 1):
            ids = [record.transaction_id for record in found if record.partition == partition]
            assert ids == sorted(set(ids))
        after = {record.partition: record.transaction_id for record in found}
        more = await fill(topic, 150, 40)
        again = await read_to_the_end(topic, after)
        assert folded(again) == more, "from where it was: all that came since, and nothing else"
        await cluster.kill_storage("storage-0")
        await cluster.kill_storage("storage-1")
        await cluster.start_storage("storage-1")
        assert folded(await read_to_the_end(topic)) == folded(found) | more
        await client.close()
        await cluster.stop()

    async def firsts(cluster: MemoryCluster) -> list[int]:
        return [node._partitions[p].log.first_id for node, _ in cluster.storages.values() for p in (0, 1) if p in node._partitions]

    run_in_virtual_time(run())


def test_without_any_view_the_log_alone_is_read_and_where_it_does_not_reach_back_it_is_said() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=2, servers=1, settings={"upkeep_s": 3600.0}, storage_settings=SMALL)
        await cluster.start()

        def change(catalogue: Catalogue) -> Any:
            return catalogue.with_new(TopicName("shop", "stock"), type="compaction", partitions=1, pool=range(2), now_ms=0)

        await change_catalogue(cluster.ensemble.session(), change)
        client = await cluster.connect(FAST)
        topic = await client.topic("shop/stock")
        state = await fill(topic, 0, 20)
        found = await read_to_the_end(topic)
        assert [record.transaction_id for record in found] == list(range(20))
        assert folded(found) == state
        reader = topic._directory.view_reader(0)
        reader._owners.bound = _bound_at_ten  # type: ignore[method-assign]
        with pytest.raises(Unavailable, match="no replica serves the compacted view"):
            async for _ in reader.pages(-1):
                pass
        with pytest.raises(InvalidRequest):
            topic.feed_batches(partition=1, compacted=True)
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())


async def _bound_at_ten(partition: int, timeout_s: float) -> pb.Bound:
    return pb.Bound(partition=partition, session=0, first_transaction_id=10, high_water_mark=20)


def test_who_may_not_read_the_topic_may_not_read_its_view() -> None:
    async def run() -> None:
        cluster = MemoryCluster(partitions=1, servers=1, settings={"upkeep_s": 0.5}, storage_settings=SMALL)
        await cluster.start()

        def change(catalogue: Catalogue) -> Any:
            about: dict[str, Any] = {"type": "compaction", "partitions": 1, "pool": range(1), "now_ms": 0, "properties": {"allow-read": "ada"}}
            return catalogue.with_new(TopicName("shop", "stock"), **about)

        await change_catalogue(cluster.ensemble.session(), change)
        client = await cluster.connect(FAST)
        topic = await client.topic("shop/stock")
        await topic.append(b"12", key=b"tea")
        while min(node.views.bound(0) for node, _ in cluster.storages.values()) < 1:
            await asyncio.sleep(0.2)
        with pytest.raises(NotAllowed):
            await anext(topic.feed(compacted=True))
        ada = await cluster.connect(ClientSettings(principal="ada"))
        assert (await anext((await ada.topic("shop/stock")).feed(compacted=True))).value == b"12"
        await ada.close()
        await client.close()
        await cluster.stop()

    run_in_virtual_time(run())
