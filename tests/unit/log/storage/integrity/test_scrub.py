"""The scrub finds corruption, repairs it from replicas that may be trusted, and leaves everything else as it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from verification.crashes.storage_model import KEY, FixedClock, block_of, silent_logs
from waltz_log.core.formats.segment_format import decode_times
from waltz_log.core.ports import Listener
from waltz_log.errors import CorruptData
from waltz_log.statistics import to_json
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.integrity.peers import PeerReplicas
from waltz_log.storage.integrity.repair import SegmentRepair
from waltz_log.storage.integrity.scrub import Scrub
from waltz_log.storage.integrity.verify_directory import verify_directory
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

SESSION = 4
BLOCKS = 60
BLOCK = 5
SEGMENT_BYTES = 4096
FAST = 1 << 40


class Replicas:
    """Nodes with the same transactions in partition 0, each clean in a session, and what scrubs them."""

    def __init__(self, sessions: Sequence[int]) -> None:
        self.network = MemoryNetwork()
        self.sessions = sessions
        self.disks = [SimulatedDisk() for _ in sessions]
        self.nodes: list[StorageNode] = []
        self.listeners: list[Listener] = []
        self.asked: list[int] = []

    async def start(self, place: int) -> None:
        settings = StorageSettings(name=f"s{place}", directory=Path("unused"), coordinator="test", segment_bytes=SEGMENT_BYTES)
        node = StorageNode(settings, self.disks[place], FixedClock(), run_in_place)
        await node.open(KEY)
        self.nodes.append(node)
        self.listeners.append(await self.network.serve(f"s{place}:0", node.service()))

    async def call(self, place: int, method: Any, request: Any) -> Any:
        return await self.network.connect(self.listeners[place].address).call(method, request, timeout_s=10)

    async def open(self, place: int, session: int) -> None:
        await self.call(place, methods.OPEN, pb.OpenRequest(cluster_key=KEY.bytes, partition=0, session=session))

    async def append(self, place: int, session: int, blocks: range) -> None:
        stream = self.network.connect(self.listeners[place].address).open(methods.REPLICATE)
        await stream.send(pb.ReplicateRequest(open=pb.ReplicateOpen(cluster_key=KEY.bytes, partition=0, session=session)))
        for number in blocks:
            block = block_of(0, number * BLOCK, [90] * BLOCK, salt=1)
            message = pb.Block(first_transaction_id=block.first_transaction_id, lengths=block.lengths, records=block.records)
            message.append_time_ms = block.append_time_ms
            await stream.send(pb.ReplicateRequest(block=message))
        await stream.finish()
        while await stream.receive() is not None:
            pass

    async def find(self, partition: int) -> list[str]:
        self.asked.append(partition)
        return [listener.address for listener in self.listeners[1:]]

    def scrub(self, place: int = 0, *, peers: bool = True, bytes_per_s: int = FAST) -> Scrub:
        node = self.nodes[place]
        found = PeerReplicas(self.network, self.find) if peers else None
        return Scrub(lambda: [node._partitions[0]], node.views, run_in_place, found, bytes_per_s=bytes_per_s, pause_s=1)

    def files(self, place: int = 0) -> dict[str, bytes]:
        return {f"0/{name}": self.disks[place].content(f"0/{name}") for name in self.disks[place].list("0")}

    def corrupt_bytes(self, place: int, path: str, offset: int, length: int = 1) -> None:
        content = bytearray(self.disks[place].content(path))
        for at in range(offset, offset + length):
            content[at] ^= 0xA5
        self.disks[place].replace(path, bytes(content))


@asynccontextmanager
async def replicas(*sessions: int, silent: bool = False) -> AsyncIterator[Replicas]:
    with silent_logs() if silent else nullcontext():
        async with _replicas(sessions) as made:
            yield made


@asynccontextmanager
async def _replicas(sessions: Sequence[int]) -> AsyncIterator[Replicas]:
    made = Replicas(sessions)
    for place, session in enumerate(sessions):
        StorageNode.create(made.disks[place], FixedClock(), KEY, 1)
        await made.start(place)
        await made.open(place, session)
        request = pb.LowWaterMarkRequest(cluster_key=KEY.bytes, partition=0, session=session, low_water_mark=-1)
        await made.call(place, methods.SET_LOW_WATER_MARK, request)
        await made.append(place, session, range(BLOCKS))
    yield made
    for node, listener in zip(made.nodes, made.listeners, strict=True):
        await listener.close()
        await node.close()


def meaning(files: dict[str, bytes]) -> dict[str, object]:
    """Records and indexes as they are; of times what they hold: a block may be recorded in two entries of one time."""
    found: dict[str, object] = dict(files)
    for path, content in files.items():
        if path.endswith(".tix") and content:
            firsts, times, _ = decode_times(content[128:])
            assert 20 * len(firsts) == len(content) - 128
            found[path] = (
                content[:128],
                [pair for place, pair in enumerate(zip(firsts, times, strict=True)) if not place or times[place - 1] != pair[1]],
            )
    return found


def closed(found: Replicas, place: int = 0) -> list[str]:
    return [path for path in found.files(place) if path.endswith(".seg")][:-1]


async def test_nothing_is_done_where_nothing_is_wrong() -> None:
    async with replicas(SESSION, SESSION) as found:
        before = found.files()
        operations = len(found.disks[0].operations)
        scrub = found.scrub()
        await scrub.scrub_all()
        reported = scrub.statistics()
        assert (reported.passes, reported.found, reported.repaired, reported.damaged) == (1, 0, 0, {})
        assert reported.bytes_read >= sum(map(len, before.values()))
        assert found.files() == before
        assert len(found.disks[0].operations) == operations
        assert found.asked == []


@pytest.mark.parametrize(
    ("kind", "offset", "length"),
    [("seg", 128 + 3, 1), ("seg", 1500, 700), ("seg", 129, 3900), ("seg", 20, 4), ("idx", 200, 8), ("idx", 2, 1), ("tix", 150, 1), ("tix", 130, 80)],
)
async def test_corruption_in_a_closed_segment_is_repaired_to_the_bytes_it_had(kind: str, offset: int, length: int) -> None:
    async with replicas(SESSION, SESSION) as found:
        path = closed(found)[1].replace("seg", kind)
        before = found.files()
        length = min(length, len(before[path]) - offset)
        found.corrupt_bytes(0, path, offset, length)
        scrub = found.scrub()
        await scrub.scrub_all()
        reported = scrub.statistics()
        assert meaning(found.files()) == meaning(before)
        assert reported.found == reported.repaired >= 1
        assert reported.damaged_segments == 0
        await found.nodes[0].close()  # and the log still opens
        found.nodes[0] = StorageNode(found.nodes[0].settings, found.disks[0], FixedClock(), run_in_place)
        await found.nodes[0].open(KEY)


async def test_a_whole_segment_that_is_gone_or_empty_is_made_again() -> None:
    async with replicas(SESSION, SESSION) as found:
        before = found.files()
        first, second = closed(found)[1:3]
        found.corrupt_bytes(0, first, 0, len(before[first]))
        found.disks[0].replace(second, b"")
        await found.scrub().scrub_all()
        assert meaning(found.files()) == meaning(before)


async def test_several_corrupt_places_are_repaired_with_what_is_good_between_them_from_here() -> None:
    async with replicas(SESSION, SESSION) as found:
        before = found.files()
        path = closed(found)[2]
        for offset in (300, 1700, 3500):
            found.corrupt_bytes(0, path, offset)
        scrub = found.scrub()
        await scrub.scrub_all()
        assert meaning(found.files()) == meaning(before)
        assert (scrub.statistics().found, scrub.statistics().repaired) == (3, 3)


async def test_corruption_stays_and_is_reported_if_the_peer_is_corrupt_at_the_same_place() -> None:
    async with replicas(SESSION, SESSION) as found:
        path = closed(found)[1]
        found.corrupt_bytes(0, path, 1500)
        found.corrupt_bytes(1, path, 1502)
        before, other = found.files(0), found.files(1)
        scrub = found.scrub()
        for _ in range(2):
            await scrub.scrub_all()
            reported = scrub.statistics()
            assert (reported.found, reported.repaired, reported.damaged_segments) == (1, 0, 1)
            assert "no peer serves" in reported.damaged[path.removesuffix(".seg")]
            assert "corrupt data" in reported.damaged[path.removesuffix(".seg")]
            assert (found.files(0), found.files(1)) == (before, other), "corruption stays where it is and does not spread"


async def test_a_second_peer_serves_what_the_first_has_lost() -> None:
    async with replicas(SESSION, SESSION, SESSION) as found:
        before = found.files()
        path = closed(found)[1]
        found.corrupt_bytes(0, path, 500, 2000)
        found.corrupt_bytes(1, path, 1500)
        await found.scrub().scrub_all()
        assert meaning(found.files()) == meaning(before)


async def test_a_peer_of_an_older_session_is_not_believed() -> None:
    async with replicas(SESSION, SESSION - 1) as found:
        path = closed(found)[1]
        found.corrupt_bytes(0, path, 1500)
        before = found.files()
        scrub = found.scrub()
        await scrub.scrub_all()
        assert found.files() == before
        assert "replica of an older session" in scrub.statistics().damaged[path.removesuffix(".seg")]


async def test_nothing_is_repaired_while_a_newer_session_is_being_opened() -> None:
    async with replicas(SESSION, SESSION) as found:
        path = closed(found)[1]
        before = found.files()
        found.corrupt_bytes(0, path, 1500)
        corrupted = found.files()
        await found.open(0, SESSION + 1)
        scrub = found.scrub()
        await scrub.scrub_all()
        assert found.files() == corrupted
        assert "being opened" in scrub.statistics().damaged[path.removesuffix(".seg")]
        assert found.asked == []
        last = BLOCKS * BLOCK - 1
        request = pb.LowWaterMarkRequest(cluster_key=KEY.bytes, partition=0, session=SESSION + 1, low_water_mark=last)
        for place in (0, 1):
            await found.call(place, methods.SET_LOW_WATER_MARK, request)
        await scrub.scrub_all()
        assert meaning(found.files()) == meaning(before)
        assert (scrub.statistics().found, scrub.statistics().repaired, scrub.statistics().damaged) == (1, 1, {})


async def test_a_copy_is_given_up_where_the_replica_left_its_session_meanwhile() -> None:
    async with replicas(SESSION, SESSION) as found:
        found.corrupt_bytes(0, closed(found)[1], 1500)
        corrupted = found.files()
        find = found.find

        async def fenced_meanwhile(partition: int) -> list[str]:
            await found.open(0, SESSION + 1)
            return await find(partition)

        found.find = fenced_meanwhile  # type: ignore[method-assign]
        scrub = found.scrub()
        await scrub.scrub_all()
        assert found.files() == corrupted
        assert scrub.statistics().damaged_segments == 1


async def test_without_peers_data_stays_corrupt_and_an_index_is_made_again() -> None:
    async with replicas(SESSION) as found:
        path = closed(found)[1]
        index = path.replace("seg", "idx")
        before = found.files()
        for _ in range(2):  # twice, as what was rebuilt can be corrupted again
            found.corrupt_bytes(0, index, 300)
            scrub = found.scrub(peers=False)
            await scrub.scrub_all()
            assert meaning(found.files()) == meaning(before)
        found.corrupt_bytes(0, path, 1500)
        corrupted = found.files()
        await scrub.scrub_all()
        assert found.files() == corrupted
        assert "no peers" in scrub.statistics().damaged[path.removesuffix(".seg")]


async def test_corruption_in_the_segment_that_is_written_to_is_repaired_after_it_was_closed_for_that() -> None:
    async with replicas(SESSION, SESSION) as found:
        path = [path for path in found.files() if path.endswith(".seg")][-1]
        whole = found.files()[path]
        found.corrupt_bytes(0, path, 200)
        scrub = found.scrub()
        await scrub.scrub_all()
        assert scrub.statistics().damaged == {}
        assert found.files()[path] == whole, "it had no space taken beforehand"
        assert len(closed(found, 0)) == len(closed(found, 1)) + 1
        for place in (0, 1):
            await found.append(place, SESSION, range(BLOCKS, BLOCKS + 20))
        await scrub.scrub_all()
        assert scrub.statistics().damaged == {}
        assert found.files()[path].startswith(whole)
        assert meaning(found.files(0)) == meaning(found.files(1))


async def test_corruption_in_a_segment_that_the_log_leaves_while_it_is_checked_is_repaired_in_the_same_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicas(SESSION, SESSION) as found:
        path = [path for path in found.files() if path.endswith(".seg")][-1]
        whole = found.files()[path]
        found.corrupt_bytes(0, path, 200)
        scrub, store = found.scrub(), found.nodes[0]._partitions[0]
        verify = scrub._verify

        async def verify_and_leave(partition: Any, first: int, last: int | None, paced: Any) -> Any:
            check = await verify(partition, first, last, paced)
            if check.findings and last is None:
                await store.close_segment(first)
            return check

        monkeypatch.setattr(scrub, "_verify", verify_and_leave)
        await scrub.scrub_all()
        assert found.files()[path] == whole
        assert scrub.statistics().damaged == {}


def test_the_pace_is_kept_and_appends_are_not_held_up() -> None:
    async def run() -> None:
        async with replicas(SESSION, SESSION) as found:
            loop = asyncio.get_running_loop()
            size = sum(map(len, found.files().values()))
            scrub = found.scrub(bytes_per_s=size // 100)
            began = loop.time()
            task = asyncio.ensure_future(scrub.scrub_all())
            for number in range(BLOCKS, BLOCKS + 30):
                before = loop.time()
                await found.append(0, SESSION, range(number, number + 1))
                assert loop.time() == before, "in virtual time nothing but waiting takes time"
                await asyncio.sleep(1)
            assert not task.done()
            await task
            assert loop.time() - began >= 99

    run_in_virtual_time(run())


async def test_a_crash_in_the_middle_of_repair_leaves_what_opens_and_can_be_repaired() -> None:
    reached = 0
    finished = False
    while not finished:
        async with replicas(SESSION, SESSION, silent=True) as found:
            before = found.files()
            found.corrupt_bytes(0, closed(found)[1], 700, 900)
            disk = found.disks[0]
            start = len(disk.operations)

            def crash(operation: Operation, disk: SimulatedDisk = disk, last: int = start + reached) -> None:
                if len(disk.operations) > last:
                    raise OSError(5, "crash")

            disk.before = crash
            scrub = found.scrub()
            await scrub.scrub_all()
            finished = scrub.statistics().repaired == 1
            for seed in range(6 if finished else 2):
                after = disk.crash(Random(seed)) if seed else disk.crash(keep=True)
                node = StorageNode(found.nodes[0].settings, after, FixedClock(), run_in_place)
                await node.open(KEY)
                store = await node.partition(0)
                if finished:
                    assert list(verify_directory(after))[1].findings == (), "what is in its place is on the medium"
                again = Scrub(partial(list, [store]), node.views, run_in_place, PeerReplicas(found.network, found.find), bytes_per_s=FAST, pause_s=1)
                await again.scrub_all()
                left = {f"0/{name}": after.content(f"0/{name}") for name in after.list("0")}
                lost = max(left)  # the newest times of the last segment may be lost in any crash
                assert meaning(left | {lost: b""}) == meaning(before | {lost: b""})
                assert again.statistics().damaged == {}
                await node.close()
        reached += 1
    assert reached > 12


async def test_a_full_disk_leaves_the_segment_as_it_was_and_the_partition_serving() -> None:
    async with replicas(SESSION, SESSION) as found:
        path = closed(found)[1]
        whole = found.files()
        found.corrupt_bytes(0, path, 1500)
        corrupted = found.files()
        disk = found.disks[0]
        disk.total = disk.total_bytes() - disk.free_bytes() + 1000
        scrub = found.scrub()
        await scrub.scrub_all()
        assert found.files() == corrupted
        assert "no room" in scrub.statistics().damaged[path.removesuffix(".seg")]
        disk.total = 1 << 40
        await found.append(0, SESSION, range(BLOCKS, BLOCKS + 1))
        await scrub.scrub_all()
        assert found.files()[path] == whole[path]


async def test_a_node_scrubs_in_the_background_until_it_is_closed() -> None:
    async with replicas(SESSION, SESSION) as found:
        path = closed(found)[1]
        before = found.files()
        node = found.nodes[0]
        object.__setattr__(node, "settings", node.settings.model_copy(update={"scrub_bytes_per_s": FAST, "scrub_pause_s": 0.0}))
        found.corrupt_bytes(0, path, 1500)
        assert node.statistics().scrub is None
        node.start_scrub(PeerReplicas(found.network, found.find))
        async with asyncio.timeout(10):
            while (reported := node.statistics().scrub) is None or not reported.repaired:
                await asyncio.sleep(0)
        assert meaning(found.files()) == meaning(before)
        assert to_json(node.statistics())["scrub"]["repaired"] == 1


def _unscrubbed(found: Replicas, place: int = 0) -> StorageNode:
    node = found.nodes[place]
    object.__setattr__(node, "settings", node.settings.model_copy(update={"scrub_bytes_per_s": 0}))
    return node


async def _read_all(node: StorageNode) -> None:
    async for _ in (await node.partition(0)).read(SESSION, -1, 0, BLOCKS * BLOCK - 1, 1 << 20):
        pass


@pytest.mark.parametrize("place", [1, -1])
def test_a_read_that_meets_corruption_has_it_repaired_at_once_without_a_scrub(place: int) -> None:
    async def run() -> None:
        async with replicas(SESSION, SESSION, silent=True) as found:
            node = _unscrubbed(found)
            assert node.start_scrub(PeerReplicas(found.network, found.find)) is None, "no passes are made"
            await asyncio.sleep(3600)
            path = [path for path in found.files() if path.endswith(".seg")][place]
            found.corrupt_bytes(0, path, 1500 if place == 1 else 200)
            before = asyncio.get_running_loop().time()
            with pytest.raises(CorruptData):
                await _read_all(node)
            assert node.statistics().repairing == (0,)
            async with asyncio.timeout(1):
                while node.statistics().repairing:
                    await asyncio.sleep(0.001)
            await _read_all(node)
            reported = node.statistics().scrub
            assert reported is not None
            assert (reported.passes, reported.repaired, reported.damaged) == (0, 1, {})
            assert asyncio.get_running_loop().time() - before < 1

    run_in_virtual_time(run())


def test_corruption_that_is_found_before_the_peers_are_up_is_repaired_when_they_are_and_not_a_day_later() -> None:
    async def run() -> None:
        async with replicas(SESSION, SESSION, silent=True) as found:
            up = False

            async def find(partition: int) -> list[str]:
                found.asked.append(partition)
                return [found.listeners[1].address] if up else []

            whole = found.files()
            found.corrupt_bytes(0, closed(found)[1], 1500)
            found.corrupt_bytes(0, closed(found)[3], 1500)
            node = found.nodes[0]
            assert node.settings.scrub_pause_s >= 86_400
            node.start_scrub(PeerReplicas(found.network, find))
            await asyncio.sleep(3000)
            reported = node.statistics()
            assert reported.repairing == (0,)
            assert reported.scrub is not None
            assert (reported.scrub.passes, reported.scrub.found, reported.scrub.repaired, reported.scrub.damaged_segments) == (1, 2, 0, 2)
            assert all("none known" in reason for reason in reported.scrub.damaged.values())
            assert 2 * 8 <= len(found.asked) <= 2 * 20, "again and again, with growing pauses"
            up = True
            async with asyncio.timeout(node.settings.repair_retry_max_s + 1):
                while node.statistics().repairing:
                    await asyncio.sleep(0.1)
            assert meaning(found.files()) == meaning(whole)

    run_in_virtual_time(run())


def test_an_index_that_cannot_be_rebuilt_when_the_partition_opens_is_repaired_soon() -> None:
    async def run() -> None:
        async with replicas(SESSION, SESSION, silent=True) as found:
            whole, path = found.files(), closed(found)[1]
            await found.nodes[0].close()
            found.corrupt_bytes(0, path, 1500)
            found.disks[0].replace(path.replace("seg", "idx"), b"")
            node = found.nodes[0] = StorageNode(
                found.nodes[0].settings.model_copy(update={"scrub_bytes_per_s": 0}), found.disks[0], FixedClock(), run_in_place
            )
            await node.open(KEY)
            while not node.statistics().repairing:
                await asyncio.sleep(0)
            node.start_scrub(PeerReplicas(found.network, found.find))
            async with asyncio.timeout(1):
                while node.statistics().repairing:
                    await asyncio.sleep(0.001)
            assert meaning(found.files()) == meaning(whole)

    run_in_virtual_time(run())


def test_trimmed_segments_are_not_repaired_any_more() -> None:
    async def run() -> None:
        async with replicas(SESSION, SESSION, silent=True) as found:
            node = _unscrubbed(found)
            node.start_scrub(None)
            found.corrupt_bytes(0, closed(found)[0], 1500)
            with pytest.raises(CorruptData):
                await _read_all(node)
            await asyncio.sleep(60)
            assert node.statistics().repairing == (0,)
            store = await node.partition(0)
            request = pb.LowWaterMarkRequest(cluster_key=KEY.bytes, partition=0, session=SESSION + 1, low_water_mark=BLOCKS * BLOCK - 1)
            await found.call(0, methods.SET_LOW_WATER_MARK, request)
            await store.trim(store.log.closed()[1][0])
            async with asyncio.timeout(node.settings.repair_retry_max_s + 1):
                while node.statistics().repairing:
                    await asyncio.sleep(0.1)

    run_in_virtual_time(run())


def test_a_defect_in_one_repair_postpones_that_segment_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a failed assertion ends the repairs of the node."""

    async def run() -> None:
        async with replicas(SESSION, SESSION, silent=True) as found:
            before = found.files()
            broken, other = closed(found)[1:3]
            first = int(broken.split("/")[1].removesuffix(".seg"))
            attempts_s: list[float] = []
            fill = SegmentRepair._fill

            async def fails(self: SegmentRepair, replacement: Any, *rest: Any) -> None:
                if replacement.first == first and len(attempts_s) < 4:
                    attempts_s.append(asyncio.get_running_loop().time())
                    raise AssertionError("planted")
                await fill(self, replacement, *rest)

            monkeypatch.setattr(SegmentRepair, "_fill", fails)
            for path in (broken, other):
                found.corrupt_bytes(0, path, 1500)
            node = found.nodes[0]
            node.start_scrub(PeerReplicas(found.network, found.find))
            for path in (broken, other):
                node.corruption.report(CorruptData(where=path, offset=0, reason="planted", transaction_id=-1))
            async with asyncio.timeout(600):
                while meaning(found.files()) != meaning(before):
                    await asyncio.sleep(0.1)
            pauses_s = [later - earlier for earlier, later in pairwise(attempts_s)]
            assert len(attempts_s) == 4
            assert pauses_s == sorted(pauses_s)
            assert pauses_s[-1] > 2 * pauses_s[0] > 0
            assert not any(task.over for task in node._scrubbing)

    run_in_virtual_time(run())
