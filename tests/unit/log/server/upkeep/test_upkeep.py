"""Retention, subscribers and compaction in a whole cluster: what goes, what stays, who is informed, and what late and emptied replicas get."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from verification.crashes.storage_model import append
from waltz_log.cli.topics.subscribers import subscriber_facts
from waltz_log.cli.topics.topic_facts import partition_facts
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.client.feed.subscribers import Subscribers
from waltz_log.compaction.manifest import METADATA
from waltz_log.compaction.view import read_metadata
from waltz_log.coordination.subscribers import read_retained, register_subscriber
from waltz_log.coordination.topics import change_catalogue
from waltz_log.core.formats.envelope import pack_keyed, split_keyed
from waltz_log.core.formats.wal_records import WalRecord
from waltz_log.core.retention import decide
from waltz_log.core.topics.catalogue import HOUR_MS, Policies, Topic
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ClusterUnavailable, Fenced, InvalidRequest, OutOfRange, SessionTooOld
from waltz_log.server.base.agreed_clock import PAUSE_S
from waltz_log.server.mounts.sequence_search import SequenceSearch
from waltz_log.server.upkeep import upkeep
from waltz_log.statistics import to_json
from waltz_log.storage.integrity.verify_views import verify_views
from waltz_log.storage.views import views
from waltz_log.storage.views.views import Views
from waltz_log.testing.cluster import LoopClock, MemoryCluster
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page

NAME = TopicName("shop", "orders")
ROUND_S = 0.5
SMALL = {"segment_bytes": 4096, "scrub_bytes_per_s": 0, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}


class Clock(LoopClock):
    """`ahead_ms`: by how much it shows a later date than the others."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class Kept(MemoryCluster):
    """One partition in segments of 4096 bytes that belongs to a topic."""

    def __init__(self, **more: Any) -> None:
        super().__init__(settings={"upkeep_s": ROUND_S, "rpc_timeout_s": 2.0}, storage_settings=SMALL, servers=1, **more)
        self.clock = self.dates = Clock()
        self.session = self.ensemble.session()

    async def create(self, type: str = "regular", **policies: Any) -> Topic:
        rules = Policies(**policies)
        return await change_catalogue(
            self.session, lambda found: found.with_new(NAME, type=type, partitions=1, pool=range(1), now_ms=0, policies=rules)
        )

    async def delete(self) -> None:
        await change_catalogue(self.session, lambda found: found.without(NAME))

    def held(self, name: str) -> tuple[int, int]:
        """First and last transaction that the node has; (-1, -1) before the first question."""
        store = self.storages[name][0]._partitions.get(0)
        return (-1, -1) if store is None else (store.log.first_id, store.log.tail.last_id)

    async def call(self, name: str, method: Any, request: Any) -> Any:
        return await self.network.connect(self.storages[name][1].address).call(method, request, timeout_s=5.0)

    async def view(self, name: str) -> tuple[int, list[WalRecord]]:
        stream = self.network.connect(self.storages[name][1].address).read(
            methods.READ_VIEW, pb.ReadViewRequest(cluster_key=self.key.bytes, partition=0, max_bytes=700)
        )
        records: list[WalRecord] = []
        bound = -1
        while (page := await stream.receive()) is not None:
            assert bound in (-1, page.bound)
            records, bound = records + decode_view_page(page), page.bound
        return bound, records

    async def first(self) -> int:
        return (await read_retained(self.session, 0)).first


@asynccontextmanager
async def kept(**more: Any) -> AsyncIterator[tuple[Kept, WaltzClient]]:
    cluster = Kept(**more)
    await cluster.start()
    client = await cluster.connect(ClientSettings(topics=(str(NAME),)))
    try:
        yield cluster, client
    finally:
        await client.close()
        await cluster.stop()


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_in_virtual_time(scenario())

    run.__name__ = scenario.__name__
    run.__doc__ = scenario.__doc__
    return run


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(ROUND_S / 5)


async def fill(client: WaltzClient, count: int = 60) -> list[bytes]:
    data = [b"%d|" % n + bytes(300) for n in range(count)]
    for first in range(0, count, 2):
        await asyncio.gather(*(client.append(0, each) for each in data[first : first + 2]))
    return data


async def read(client: WaltzClient, after: int, last: int) -> list[bytes]:
    found: list[bytes] = []
    batches = client.feed_batches(0, after=after)
    async for batch in batches:
        found += [transaction.data for transaction in batch]
        if batch[-1].transaction_id >= last:
            break
    await batches.aclose()
    return found


# ---- retention ---------------------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_data_beyond_the_policies_is_trimmed_from_every_replica_and_readers_below_get_both_bounds() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=6000)
        data = await fill(client)
        await until(lambda: all(cluster.held(name)[0] > 30 for name in cluster.storages))
        first = await cluster.first()
        assert {cluster.held(name) for name in cluster.storages} == {(first, 59)}
        assert await read(client, first - 1, 59) == data[first:]
        with pytest.raises(OutOfRange) as fed:
            await read(client, -1, 59)
        server, _ = cluster.servers["server-0"]
        with pytest.raises(OutOfRange) as asked:
            await server._owned(0).transactions(pb.TransactionRequest(partition=0, first_transaction_id=first - 1, count=1))
        with pytest.raises(OutOfRange) as stored:
            request = pb.ReadRequest(cluster_key=cluster.key.bytes, partition=0, session=0, first_transaction_id=0, last_transaction_id=59)
            await cluster.network.connect(cluster.storages["storage-1"][1].address).read(methods.READ, request).receive()
        for caught in (fed, asked, stored):
            assert (caught.value.first, caught.value.last) == (first, 59)
        bound = server._owned(0).bound()
        assert bound is not None
        assert bound.first_transaction_id == first


@in_virtual_time
async def test_a_search_that_trimming_overtakes_goes_on_and_says_that_something_is_gone() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=6000)
        await fill(client)
        await until(lambda: cluster.held("storage-0")[0] > 30)
        await cluster.stop_server("server-0")
        await cluster.start_server("server-1")  # nothing is found in its memory
        await client.append(0, b"more")
        serving = cluster.servers["server-1"][0]._owned(0)._serving
        assert serving is not None
        request = pb.ResolveRequest(partition=0, client_id=client.client_id, first_sequence=0, last_sequence=1 << 30, since=-1)
        search = SequenceSearch(request, 0)
        await search.run(serving.store, 59, math.inf)
        assert (search.trimmed, search.searched_to) == (True, 59)
        rows = [value for (value,) in struct.iter_unpack(">q", search.committed())]
        assert rows[1::3] == [60 - await cluster.first()]


@in_virtual_time
async def test_the_first_retained_id_is_what_it_was_after_everything_was_started_again() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=6000)
        await fill(client)
        await until(lambda: cluster.held("storage-2")[0] > 30)
        first = await cluster.first()
        await cluster.kill_server("server-0")
        for name in list(cluster.storages):
            await cluster.kill_storage(name)
        for name in ("storage-0", "storage-1", "storage-2"):
            await cluster.start_storage(name)
            assert cluster.held(name) == (first, 59)
        await cluster.start_server("server-0")
        await client.append(0, b"more")
        with pytest.raises(OutOfRange) as caught:
            await read(client, first - 2, 60)
        assert caught.value.first == first


@in_virtual_time
async def test_a_replica_that_was_down_follows_and_one_that_was_emptied_begins_where_the_log_does() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=6000)
        await fill(client, 20)
        await cluster.kill_storage("storage-1")
        await cluster.stop_storage("storage-2")
        cluster.disks.pop("storage-2")
        await cluster.start_storage("storage-1")
        await fill(client, 60)
        await until(lambda: cluster.held("storage-0")[0] > 50 and cluster.held("storage-1")[0] > 50)
        first = await cluster.first()
        await cluster.start_storage("storage-2")
        await until(lambda: cluster.held("storage-2") == (first, 79))
        await client.append(0, b"more")
        await until(lambda: {cluster.held(name) for name in cluster.storages} == {(first, 80)})


@in_virtual_time
async def test_a_restarted_replica_that_was_not_clean_when_its_owner_crashed_joins_the_next_session() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=6000)
        await fill(client)
        await until(lambda: all(cluster.held(name)[0] > 30 for name in cluster.storages))
        first = await cluster.first()
        await cluster.kill_server("server-0")
        await cluster.stop_storage("storage-2")
        cluster.disks.pop("storage-2")
        await cluster.start_storage("storage-2")
        whole, begun = [await cluster.storages[name][0].partition(0) for name in ("storage-0", "storage-2")]
        copied = [block async for run in whole.read(0, 0, first, first + 3, 1 << 20) for block in run]
        session = whole.statistics().fence
        await begun.begin(session, first)
        await append(begun, session, copied)
        assert cluster.held("storage-2") == (first, first + 3)
        await cluster.start_server("server-1")
        await client.append(0, b"more")
        await until(lambda: {cluster.held(name) for name in cluster.storages} == {(first, 60)})


@in_virtual_time
async def test_a_fold_goes_no_faster_than_it_is_set_and_appends_do_not_wait_for_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "STEP_BYTES", 2000)
        async with kept() as (cluster, client):
            node = cluster.storages["storage-0"][0]
            vars(node.views)["_settings"] = node.settings.model_copy(update={"compaction_bytes_per_s": 1000})
            await cluster.create("compaction")
            await fill_keyed(client, [], 60)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await until(lambda: 0 < node.views.bound(0) < 30)
            asked = loop.time()
            assert (await client.append(0, pack_keyed(b"k", b"v"))).transaction_id == 60
            assert loop.time() == asked
            await until(lambda: node.views.bound(0) == 61, 60.0)
            assert loop.time() - began > 60 * 200 / 1000


@in_virtual_time
async def test_old_transactions_go_by_the_times_in_the_log_the_last_segment_too() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_ms=2 * HOUR_MS)
        await fill(client, 30)
        cluster.dates.ahead_ms = HOUR_MS
        await asyncio.sleep(2 * PAUSE_S)  # until the server has heard that the dates of all nodes agree
        await fill(client, 30)
        await asyncio.sleep(6 * ROUND_S)
        assert cluster.held("storage-0")[0] == 0
        cluster.dates.ahead_ms = 2 * HOUR_MS + 60_000
        await until(lambda: cluster.held("storage-0")[0] > 20)
        assert cluster.held("storage-0")[0] <= 30, "what is an hour old stays"
        cluster.dates.ahead_ms = 4 * HOUR_MS
        await until(lambda: all(cluster.held(name) == (60, 59) for name in cluster.storages))
        assert (await client.append(0, b"goes on")).transaction_id == 60
        assert await read(client, 59, 60) == [b"goes on"]


@in_virtual_time
async def test_one_clock_that_jumps_ahead_makes_nothing_old() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_ms=HOUR_MS)
        await fill(client, 30)
        jumped = Clock()
        jumped.ahead_ms = 1000 * HOUR_MS
        cluster.storages["storage-1"][0].clock = jumped
        await asyncio.sleep(6 * ROUND_S)
        assert cluster.held("storage-0")[0] == 0
        for name in ("storage-0", "storage-2"):
            cluster.storages[name][0].clock = jumped
        await until(lambda: cluster.held("storage-0")[0] > 0)


@in_virtual_time
async def test_a_partition_of_no_topic_is_left_alone() -> None:
    async with kept() as (cluster, client):
        await fill(client)
        cluster.dates.ahead_ms = 10_000 * HOUR_MS
        await asyncio.sleep(6 * ROUND_S)
        assert cluster.held("storage-0") == (0, 59)


@in_virtual_time
async def test_files_and_folders_of_a_deleted_topic_go_by_themselves() -> None:
    async with kept() as (cluster, client):
        await cluster.create("compaction")
        for n in range(60):
            await client.append(0, pack_keyed(b"k%d" % (n % 5), bytes(300)))
        await until(lambda: cluster.storages["storage-2"][0].views.bound(0) == 60)
        assert cluster.disks["storage-2"].list("shop/orders/0") != []
        await cluster.delete()
        await until(lambda: all(cluster.held(name) == (60, 59) for name in cluster.storages))
        await until(lambda: not any(disk.exists("shop") for disk in cluster.disks.values()))
        for disk in cluster.disks.values():
            assert [name for name in disk.list("0") if name.endswith(".seg")] == [f"{60:019d}.seg"]


def properties(cluster: Kept, name: str, folder: str = "shop/orders/0") -> dict[str, str] | None:
    """Those in the file `metadata` of a regular topic; None: there is none."""
    disk = cluster.disks[name]
    if not disk.exists(f"{folder}/{METADATA}"):
        return None
    manifest = read_metadata(disk, f"{folder}/{METADATA}")
    assert manifest.type == "regular"
    return dict(manifest.properties)


@in_virtual_time
async def test_every_replica_stores_the_properties_of_a_regular_topic_until_it_is_deleted() -> None:
    async with kept() as (cluster, client):
        await change_catalogue(
            cluster.session, lambda found: found.with_new(NAME, type="regular", partitions=1, pool=range(1), now_ms=0, properties={"owner": "shop"})
        )
        await fill(client)
        await until(lambda: all(properties(cluster, name) == {"owner": "shop"} for name in cluster.storages))
        await cluster.kill_storage("storage-1")
        await cluster.start_storage("storage-1")
        disk = cluster.disks["storage-1"]
        assert list(verify_views(disk)) == [], "the file describes no view"
        await cluster.delete()
        await until(lambda: not any(disk.exists("shop") for disk in cluster.disks.values()))
        await asyncio.sleep(4 * ROUND_S)  # until the partition is free again
        await cluster.create("compaction")
        await until(lambda: cluster.storages["storage-1"][0].views.describe(0).exists)


@in_virtual_time
async def test_a_file_that_cannot_be_written_delays_no_trimming() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=4096)
        for disk in cluster.disks.values():
            disk.make_directory("shop")
            disk.open("shop/orders", "create").close()
        await fill(client)
        await until(lambda: all(cluster.held(name)[0] > 0 for name in cluster.storages))
        assert [properties(cluster, name) for name in cluster.storages] == [None] * 3


@in_virtual_time
async def test_a_deposed_owner_trims_nothing() -> None:
    async with kept() as (cluster, client):
        await cluster.create()
        await fill(client)
        session = to_json(cluster.servers["server-0"][0]._owned(0).statistics())["session"]
        await cluster.stop_server("server-0")
        await cluster.start_server("server-1")
        await client.append(0, b"more")
        trim = pb.TrimRequest(cluster_key=cluster.key.bytes, partition=0, session=session, first_transaction_id=60)
        for name in cluster.storages:
            with pytest.raises(Fenced):
                await cluster.call(name, methods.TRIM, trim)
            assert cluster.held(name)[0] == 0
        with pytest.raises(SessionTooOld):
            trim.session = session + 100
            await cluster.call("storage-0", methods.TRIM, trim)


# ---- subscribers -------------------------------------------------------------------------------------------------------------------------------


async def subscribers_of(cluster: MemoryCluster) -> Subscribers:
    return await Subscribers.connect_over(cluster.seeds, cluster.network.host("subscriber"))


@in_virtual_time
async def test_nothing_goes_that_a_subscriber_has_not_read_until_it_reports_or_is_removed() -> None:
    async with kept() as (cluster, client):
        topic = await cluster.create(retention_bytes=0)
        subscribers = await subscribers_of(cluster)
        await subscribers.register("gone-for-long", {0: 25}, {"table": "orders"})
        await subscribers.register_at_start("reader", [0])
        await fill(client)
        cluster.dates.ahead_ms = 2000 * HOUR_MS
        await asyncio.sleep(8 * ROUND_S)
        assert cluster.held("storage-0")[0] == 0, "the reader has read nothing yet"
        await subscribers.report("reader", {0: 59})
        await until(lambda: cluster.held("storage-0")[0] > 0)
        await asyncio.sleep(4 * ROUND_S)
        assert 15 < cluster.held("storage-0")[0] <= 26, "however long it was silent"
        (place,) = await partition_facts(subscribers._owners, topic, 5.0)
        assert (place["held_by"], place["first_retained"]) == ("subscriber gone-for-long", cluster.held("storage-0")[0])
        assert place["subscribers"]["gone-for-long"] == {"mark": 25, "lag_transactions": 34}
        reported = await subscriber_facts(subscribers._owners, await subscribers.list(), now_ms=1 << 50)
        assert [(each["name"], each["partitions"][0]["lag_transactions"]) for each in reported] == [("gone-for-long", 34), ("reader", 0)]
        assert reported[0]["partitions"][0]["topic"] == "shop/orders/0"
        assert reported[0]["silent_s"] > 1_000_000
        await subscribers.remove("gone-for-long")
        await until(lambda: cluster.held("storage-0")[0] > 40)
        with pytest.raises(InvalidRequest, match="no such subscriber"):
            await subscribers.report("gone-for-long", {0: 59})
        with pytest.raises(OutOfRange) as late:
            await subscribers.register("gone-for-long", {0: 25})
        assert late.value.first == await cluster.first()
        assert [each.name for each in await subscribers.list()] == ["reader"]
        again = await subscribers.register_at_start("late", [0])
        assert again.marks == {0: await cluster.first() - 1}
        await subscribers.close()


@in_virtual_time
async def test_a_topic_that_keeps_nothing_for_subscribers_trims_past_them() -> None:
    async with kept() as (cluster, client):
        await cluster.create(retention_bytes=0, keep_for_subscribers=False)
        async with await subscribers_of(cluster) as subscribers:
            await subscribers.register("slow", {0: -1})
        await fill(client)
        await until(lambda: cluster.held("storage-0")[0] > 40)


class Between:
    """Does something once, at the n-th operation of a coordinator session on subscribers and what is retained."""

    def __init__(self, session: Any, moment: int, act: Callable[[], Awaitable[None]]) -> None:
        self.made = 0
        self.done = False
        for name in ("get", "set", "create", "children"):
            setattr(session, name, self._counted(getattr(session, name), moment, act))

    def _counted(self, real: Callable[..., Awaitable[Any]], moment: int, act: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[Any]]:
        async def call(path: str, *rest: Any, **named: Any) -> Any:
            if path.startswith(("/store/retained", "/subscribers")):
                if self.made == moment and not self.done:
                    self.done = True
                    await act()
                self.made += 1
            return await real(path, *rest, **named)

        return call


async def register_between(moment: int, *, slowly: bool) -> None:
    """At one moment of a round that trims; `slowly`: the round goes on while the subscriber has written and not read yet."""
    async with kept() as (cluster, client):
        await fill(client)
        own = cluster.ensemble.session()
        outcome: list[int] = []
        registering: list[asyncio.Future[None]] = []
        look = own.get

        async def check_late(path: str, *, latest: bool = False) -> Any:
            if path.startswith("/store/retained"):
                await asyncio.sleep(4 * ROUND_S)
            return await look(path, latest=latest)

        async def register() -> None:
            try:
                await register_subscriber(own, Subscriber("late", {0: -1}, {}, 0, 0))
                outcome.append(0)
            except OutOfRange as error:
                outcome.append(error.first)

        async def act() -> None:
            if slowly:
                own.get = check_late  # type: ignore[method-assign]
                registering.append(asyncio.ensure_future(register()))
                await asyncio.sleep(0.01)
            else:
                await register()

        between = Between(cluster.servers["server-0"][1], moment, act)
        await cluster.create(retention_bytes=0)
        await asyncio.sleep(10 * ROUND_S)
        assert between.done, f"the round made {between.made} operations and no more"
        held = cluster.held("storage-0")[0]
        assert (held == 0) == (outcome == [0]), f"registered: {outcome}, trimmed to {held}"


@in_virtual_time
async def test_a_subscriber_that_registers_during_a_trim_is_either_kept_for_or_refused() -> None:
    """At every moment between two operations of the round in the coordinator."""
    for moment in range(7):
        await register_between(moment, slowly=False)
        await register_between(moment, slowly=True)


@in_virtual_time
async def test_a_round_that_breaks_off_before_it_trims_keeps_no_subscriber_out() -> None:
    async with kept() as (cluster, client):
        await fill(client)
        asked = 0

        async def unreachable(*_: Any) -> bool:
            nonlocal asked
            asked += 1
            raise ClusterUnavailable(address="memory/test", reason="planted")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upkeep, "settle_retained", unreachable)
            await cluster.create(retention_bytes=0)
            await until(lambda: asked > 0)
            await change_catalogue(cluster.session, lambda found: found.with_policies(NAME, {"retention_bytes": -1}))
            await asyncio.sleep(ROUND_S)
        await asyncio.sleep(2 * ROUND_S)
        assert cluster.held("storage-0") == (0, 59)
        async with await subscribers_of(cluster) as subscribers:
            await subscribers.register("late", {0: -1})


# ---- compaction --------------------------------------------------------------------------------------------------------------------------------


def fold(log: list[bytes]) -> list[tuple[int, bytes, bytes]]:
    latest = {}
    for transaction_id, data in enumerate(log):
        keyed = split_keyed(data)
        if keyed is not None:
            latest[keyed.key] = (transaction_id, keyed.key, keyed.value)
    return sorted(latest.values())


def plain(records: list[WalRecord]) -> list[tuple[int, bytes, bytes]]:
    return [(record.transaction_id, record.key, record.value) for record in records]


async def fill_keyed(client: WaltzClient, log: list[bytes], count: int = 80) -> None:
    for n in range(len(log), len(log) + count):
        value = b"" if n % 11 == 0 else b"%d|" % n + bytes(200 + n % 7)
        log.append(pack_keyed(b"k%d" % (n * n % 19), value) if n % 13 else b"\xff no key")
        await client.append(0, log[-1])


@in_virtual_time
async def test_every_replica_folds_the_log_by_key_and_the_view_survives_the_log() -> None:
    async with kept() as (cluster, client):
        await cluster.create("compaction", retention_bytes=3000)
        log: list[bytes] = []
        for _ in range(3):
            await fill_keyed(client, log)
            await until(lambda: all(node.views.bound(0) == len(log) for node, _ in cluster.storages.values()))
            for name in cluster.storages:
                assert await cluster.view(name) == (len(log), (await cluster.view(name))[1])
                assert plain((await cluster.view(name))[1]) == fold(log)
        await until(lambda: all(cluster.held(name)[0] > 150 for name in cluster.storages))
        assert plain((await cluster.view("storage-1"))[1]) == fold(log)
        for name in list(cluster.storages):
            await cluster.kill_storage(name)
            await cluster.start_storage(name)
            assert plain((await cluster.view(name))[1]) == fold(log)


@in_virtual_time
async def test_nothing_is_trimmed_that_the_views_of_a_majority_do_not_hold() -> None:
    async with kept() as (cluster, client):
        for name in ("storage-1", "storage-2"):

            async def nothing(*_: Any, views: Views = cluster.storages[name][0].views) -> Any:
                return views.describe(0)

            vars(cluster.storages[name][0].views)["compact"] = nothing
        await cluster.create("compaction", retention_bytes=0)
        await fill_keyed(client, [])
        await until(lambda: cluster.storages["storage-0"][0].views.bound(0) == 80)
        await asyncio.sleep(6 * ROUND_S)
        assert {cluster.held(name)[0] for name in cluster.storages} == {0}


@in_virtual_time
async def test_a_replica_that_comes_late_is_given_the_view_of_another_and_goes_on_with_it() -> None:
    async with kept() as (cluster, client):
        await cluster.create("compaction", retention_bytes=3000)
        log: list[bytes] = []
        await fill_keyed(client, log, 40)
        await cluster.stop_storage("storage-2")
        await fill_keyed(client, log, 120)
        await until(lambda: cluster.held("storage-0")[0] > 120)
        await cluster.start_storage("storage-2")
        await until(lambda: cluster.storages["storage-2"][0].views.bound(0) == 160)
        assert plain((await cluster.view("storage-2"))[1]) == fold(log)
        await cluster.stop_storage("storage-1")
        cluster.disks.pop("storage-1")
        await cluster.start_storage("storage-1")
        await fill_keyed(client, log, 40)
        await until(lambda: all(node.views.bound(0) == 200 for node, _ in cluster.storages.values()))
        for name in cluster.storages:
            assert plain((await cluster.view(name))[1]) == fold(log)


@in_virtual_time
async def test_a_view_that_is_damaged_is_reported_and_replaced_by_another_replicas() -> None:
    for part in ("metadata", ".wal"):
        async with kept() as (cluster, client):
            await cluster.create("compaction", retention_bytes=3000)
            log: list[bytes] = []
            await fill_keyed(client, log)
            await until(lambda: cluster.held("storage-1")[0] > 40 and cluster.storages["storage-1"][0].views.bound(0) == 80)
            await cluster.stop_storage("storage-1")
            flip(cluster.disks["storage-1"], "shop/orders/0", part)
            await cluster.start_storage("storage-1")
            await fill_keyed(client, log, 120)

            async def well() -> bool:
                try:
                    return (await cluster.view("storage-1"))[0] == 200
                except Exception:
                    return False

            await until(well, 60.0)
            assert plain((await cluster.view("storage-1"))[1]) == fold(log)


@in_virtual_time
async def test_corruption_in_an_unread_view_is_found_by_the_scrub_and_repaired_from_another_replica() -> None:
    async with kept() as (cluster, client):
        await cluster.create("compaction", retention_bytes=3000)
        log: list[bytes] = []
        await fill_keyed(client, log)
        await until(lambda: all(node.views.bound(0) == 80 for node, _ in cluster.storages.values()))
        await asyncio.sleep(3 * ROUND_S)
        corrupted = {"storage-0": ".wal", "storage-1": ".index", "storage-2": "metadata"}
        for name, part in corrupted.items():
            node = cluster.storages[name][0]
            flip(cluster.disks[name], "shop/orders/0", part)
            object.__setattr__(node, "settings", node.settings.model_copy(update={"scrub_bytes_per_s": 1 << 20, "scrub_pause_s": 1.0}))
            node.start_scrub(None)

        def repaired_logs() -> bool:
            reported = [node.statistics().scrub for node, _ in cluster.storages.values()]
            return all(each is not None and (each.found, each.repaired, each.damaged_segments) == (1, 1, 0) for each in reported)

        await until(repaired_logs, 60.0)
        for name in cluster.storages:
            assert plain((await cluster.view(name))[1]) == fold(log)
            assert [report.findings for report in verify_views(cluster.disks[name])] == [()]


def flip(disk: SimulatedDisk, folder: str, part: str) -> None:
    for name in disk.list(folder):
        if name.endswith(part):
            file = disk.open(f"{folder}/{name}", "write")
            middle = file.size() // 2
            file.write(middle, bytes([file.read(middle, 1)[0] ^ 4]))
            file.sync()
            file.close()


@in_virtual_time
async def test_a_replica_folds_nothing_above_what_is_committed() -> None:
    async with kept() as (cluster, client):
        topic = await cluster.create("compaction")
        await fill_keyed(client, [], 20)
        session = to_json(cluster.servers["server-0"][0]._owned(0).statistics())["session"]
        for bound in (1 << 40, 10):
            request = pb.CompactRequest(cluster_key=cluster.key.bytes, partition=0, session=session, bound=bound, now_ms=1)
            request.of.CopyFrom(pb.TopicPartition(namespace=topic.name.namespace, topic=topic.name.topic, partition=0))
            await cluster.call("storage-0", methods.COMPACT, request)
            await asyncio.sleep(0.01)
            assert cluster.storages["storage-0"][0].views.bound(0) <= 20


@in_virtual_time
async def test_a_round_that_breaks_is_reported_and_the_next_one_goes_on() -> None:
    async with kept() as (cluster, client):
        real, broken = decide, [True]

        def breaks(*given: Any, **named: Any) -> Any:
            if broken:
                raise RuntimeError("planted")
            return real(*given, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(upkeep, "decide", breaks)
            await cluster.create(retention_bytes=0)
            await fill(client)
            partition = cluster.servers["server-0"][0]._owned(0)
            await until(lambda: "planted" in to_json(partition.statistics())["upkeep"].get("error", ""))
            broken.clear()
            await until(lambda: cluster.held("storage-0")[0] > 40)
