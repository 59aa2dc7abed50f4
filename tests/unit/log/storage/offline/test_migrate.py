"""A directory of the original becomes ours: what is kept, what is refused, and what a crash in between leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from verification.conformance.java_directory import java_control_file, java_record, java_struct, write_java_directory
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE, SessionMark, encode_counter
from waltz_log.core.formats.records import decode_record
from waltz_log.core.topics.access import CLUSTER_PRINCIPAL
from waltz_log.errors import CorruptData, InvalidSetting, StorageFailed
from waltz_log.filesystem import FileSystemDisk
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify_directory import verify_directory
from waltz_log.storage.offline.migrate import JAVA_CONTROL_FILE, migrate
from waltz_log.testing.disk import Operation, SimulatedDisk
from waltz_log.testing.network import MemoryNetwork
from waltz_log.testing.offload import run_in_place
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb

KEY = UUID("a183fca3-ed08-410a-ad31-ca0dd3380748")
SEGMENTS = [[b"p-%d:" % place + bytes(place % 90) for place in range(first, first + 400)] for first in (0, 400, 800)]
ALL = [data for segment in SEGMENTS for data in segment]
ENTRIES = [(java_struct(-1, -1, -1, 1), java_struct(3, 40, 40, 2)), (java_struct(5, 1199, 1199, 8), java_struct(4, 900, 850, 7))]


class FixedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000


def java_disk(entries: list[tuple[bytes, bytes]] | None = None) -> SimulatedDisk:
    disk = SimulatedDisk()
    write_java_directory(disk, KEY, entries or ENTRIES, {0: SEGMENTS, 1: SEGMENTS})
    return disk


def files(disk: SimulatedDisk, *, below: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(below):
        path = f"{below}/{name}" if below else name
        if disk.list(path):
            found |= files(disk, below=path)
        else:
            found[path] = disk.content(path)
    return found


async def read_back(disk: SimulatedDisk | FileSystemDisk, session: int, partition: int) -> list[tuple[int, int, bytes]]:
    """Id, header and data of all transactions, as a reader gets them from a node on the directory."""
    node = StorageNode(StorageSettings(name="a", directory=Path("unused"), coordinator="test"), disk, FixedClock(), run_in_place)
    await node.open(KEY)
    network = MemoryNetwork()
    listener = await network.serve("a:0", node.service())
    found = []
    request = pb.ReadRequest(
        cluster_key=KEY.bytes, partition=partition, session=session, last_transaction_id=1 << 60, max_bytes=1 << 16, principal=CLUSTER_PRINCIPAL
    )
    stream = network.connect(listener.address).read(methods.READ, request)
    while (answer := await stream.receive()) is not None:
        for block in answer.blocks:
            offset = 0
            while offset < len(block.records):
                record, offset = decode_record(block.records, offset)
                found.append((record.transaction_id, record.header, record.data))
    await listener.close()
    await node.close()
    return found


async def test_a_node_serves_the_segments_as_they_are_and_the_control_file_is_kept() -> None:
    disk = java_disk()
    before = files(disk)
    done = migrate(disk)
    assert done.done
    assert done.marks == (SessionMark(3, 40, 40), SessionMark(5, 1199, 1199))
    assert done.last_transaction_ids == {0: 1199, 1: 1199}
    after = files(disk)
    assert after.pop(JAVA_CONTROL_FILE) == before[CONTROL_FILE]
    assert len(after.pop(CONTROL_FILE)) == 128 + 2 * 60
    assert len(after.pop(FENCE_FILE)) == 128 + 3 * 24
    before.pop(CONTROL_FILE)
    assert after == before, "segments are left alone"
    control = ControlFiles.open(disk)
    assert (control.fence(0), control.fence(1), control.start) == (3, 5, 0)
    control.close()
    for partition, session in ((0, 3), (1, 5)):
        found = await read_back(disk, session, partition)
        assert found == [(place, place % 400, data) for place, data in enumerate(ALL)]


async def test_repaired_last_segments_are_no_findings() -> None:
    disk = java_disk()
    migrate(disk)
    assert disk.list("0").count("0000000000000000800.tix") == 0
    await read_back(disk, 3, 0)
    assert disk.list("0").count("0000000000000000800.tix") == 1
    assert [report.findings for report in verify_directory(disk)] == [()] * 6


def test_doing_it_again_changes_nothing() -> None:
    disk = java_disk()
    first = migrate(disk)
    before = files(disk)
    again = migrate(disk)
    assert not again.done
    assert again.marks == first.marks
    assert files(disk) == before


def test_a_crash_at_any_step_leaves_the_originals_directory_or_ours_and_never_neither() -> None:
    reached = finished = 0
    while not finished:
        for seed in range(4):
            disk = java_disk()
            start = len(disk.operations)

            def before(operation: Operation, disk: SimulatedDisk = disk, last: int = start + reached) -> None:
                if len(disk.operations) > last:
                    raise OSError(5, "crash")

            disk.before = before
            try:
                migrate(disk)
                finished += 1
            except StorageFailed:
                pass
            after = disk.crash(Random(seed))
            found = read_directory(after)
            assert [entry.mark for entry in found.entries] == [SessionMark(3, 40, 40), SessionMark(5, 1199, 1199)]
            if found.java is None:
                assert after.content(JAVA_CONTROL_FILE) == java_disk().content(CONTROL_FILE)
                assert found.fence is not None
            else:
                assert not finished
            migrate(after)  # what was begun can be ended
            again = ControlFiles.open(after)
            assert again.mark(1) == SessionMark(5, 1199, 1199)
        reached += 1
    assert reached > 12


def test_it_is_refused_while_a_node_has_the_directory() -> None:
    disk = java_disk()
    before = files(disk)
    disk.lock()
    with pytest.raises(InvalidSetting, match="another process"):
        migrate(disk)
    assert files(disk) == before


def flip(path: str, offset: int) -> Callable[[SimulatedDisk], None]:
    def change(disk: SimulatedDisk) -> None:
        content = bytearray(disk.content(path))
        content[offset] ^= 0x10
        disk.replace(path, bytes(content))

    return change


def put(path: str, content: bytes) -> Callable[[SimulatedDisk], None]:
    def change(disk: SimulatedDisk) -> None:
        file = disk.open(path, "write" if disk.exists(path) else "create")
        file.truncate(0)
        file.write(0, content)
        file.sync()

    return change


def both_structs(disk: SimulatedDisk) -> None:
    flip(CONTROL_FILE, 128 + 76 + 10)(disk)
    flip(CONTROL_FILE, 128 + 76 + 50)(disk)


CTL = java_control_file(KEY, 1_600_000_000_000, ENTRIES)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (both_structs, "both structs are invalid partition=1"),
        (put(CONTROL_FILE, CTL[:-1]), "bytes for 2 partitions"),
        (put(CONTROL_FILE, CTL + b"\0"), "bytes for 2 partitions"),
        (put(CONTROL_FILE, CTL[:128] + CTL[204:] + CTL[128:204]), "entry 0 names partition 1"),
        (put(CONTROL_FILE, java_control_file(KEY, 1, [ENTRIES[0], (java_struct(3, 9, 9, 2), java_struct(4, 9, 9, 2))])), "both structs are invalid"),
        (put(CONTROL_FILE, java_control_file(KEY, 1, [ENTRIES[0], (java_struct(3, 9, 10, 2), java_struct(4, 9, 10, 3))])), "impossible marks"),
        (put(CONTROL_FILE, java_control_file(KEY, 1, [ENTRIES[0], (java_struct(3, 9, 9, 2), java_struct(4, 1200, 1200, 3))])), "missing"),
        (put(CONTROL_FILE, java_control_file(UUID(int=7), 1, ENTRIES)), "cluster key mismatch"),
        (put(CONTROL_FILE, java_control_file(KEY, 1, ENTRIES[:1])), "does not know"),
        (put(FENCE_FILE, bytes(200)), "200 bytes for 0 partitions"),
        (put(FENCE_FILE, CTL[:128] + 6 * encode_counter(9)), "something else"),
        (put(JAVA_CONTROL_FILE, CTL[:-1] + b"\0"), "something else"),
        (flip("1/0000000000000000400.seg", 4000), "checksum does not match"),
        (flip("1/0000000000000000400.idx", 400), "does not tell where its record is"),
        (lambda disk: disk.remove("1/0000000000000000400.seg"), "missing at the end"),
    ],
    ids=range(15),
)
def test_ambiguous_or_damaged_files_are_refused_and_left_unchanged(change: Callable[[SimulatedDisk], None], reported: str) -> None:
    disk = java_disk()
    change(disk)
    before = files(disk)
    with pytest.raises((CorruptData, InvalidSetting), match=reported):
        migrate(disk)
    disk.lock()  # given back
    assert before.items() <= files(disk).items()
    assert disk.content(CONTROL_FILE) == before[CONTROL_FILE]


def test_a_directory_that_was_never_the_originals_is_refused() -> None:
    disk = SimulatedDisk()
    StorageNode.create(disk, FixedClock(), KEY, 2)
    with pytest.raises(InvalidSetting, match="nothing to migrate"):
        migrate(disk)


def test_a_tail_that_the_original_tore_is_no_reason_to_refuse() -> None:
    disk = java_disk()
    path = "0/0000000000000000800.seg"
    disk.replace(path, disk.content(path) + java_record(1200, 0, b"torn")[:-3])
    assert migrate(disk).last_transaction_ids[0] == 1199


def test_a_full_disk_leaves_the_originals_directory() -> None:
    disk = java_disk()
    disk.total = disk.total_bytes() - disk.free_bytes() + 100
    with pytest.raises(StorageFailed, match="no space"):
        migrate(disk)
    assert read_directory(disk).java is not None
    disk.total = 1 << 40
    assert migrate(disk).done


async def test_a_directory_on_a_real_file_system_is_served(tmp_path: Path) -> None:
    disk = FileSystemDisk(tmp_path)
    write_java_directory(disk, KEY, ENTRIES, {0: SEGMENTS, 1: SEGMENTS})
    assert migrate(disk).done
    found = await read_back(disk, 5, 1)
    assert found == [(place, place % 400, data) for place, data in enumerate(ALL)]
