"""Files that commit 9a083b8 wrote are read by today's code, record for record (tests/data/node_of_9a083b8/README.md)."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from waltz_log.cli.main import run
from waltz_log.client import Intent, Outbox, OutboxSettings
from waltz_log.exit_codes import OK
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.storage.offline.dump import dump_records, dump_times
from waltz_log.testing.cluster import MemoryCluster
from waltz_log.testing.offload import run_in_place
from waltz_log.testing.virtual_time import run_in_virtual_time
from waltz_log.transport import methods
from waltz_log.transport import waltz_pb2 as pb
from waltz_log.transport.view_pages import decode_view_page

DATA = Path(__file__).parents[3] / "data" / "node_of_9a083b8"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
SMALL = {"segment_bytes": 4096, "disk_warn_free_bytes": 0, "disk_refuse_free_bytes": 0}


def _summary(lines: Iterable[str]) -> dict[str, Any]:
    found = list(lines)
    return {"records": len(found), "sha256": hashlib.sha256("\n".join(found).encode()).hexdigest()}


def _committed_files() -> dict[str, str]:
    found = [path for name in ("node", "journals") for path in (DATA / name).rglob("*") if path.is_file()]
    found += [DATA / "outbox.tar.xz", DATA / "coordinator.json"]
    return {str(path.relative_to(DATA)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.fixture(autouse=True)
def _committed_files_stay_as_they_are() -> Iterator[None]:
    assert _committed_files() == EXPECTED["files"]
    yield
    assert _committed_files() == EXPECTED["files"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "node", tmp_path / "node"))


def _stored(disk: FileSystemDisk, partition: str, first: int) -> Iterator[str]:
    times = {each.first_transaction_id: each.append_time_ms for each in dump_times(disk, partition, first)}
    time_ms = None
    for each in dump_records(disk, partition, first):
        assert each.damage is None
        assert each.data is not None
        time_ms = times.get(each.transaction_id, time_ms)
        facts = (each.transaction_id, time_ms, each.client_id, each.generation, each.partition, each.sequence, each.header)
        yield " ".join(map(str, (*facts, each.data.hex())))


def test_each_segment_holds_the_records_that_were_written(node: Path) -> None:
    disk = FileSystemDisk(node)
    for partition, segments in EXPECTED["partitions"].items():
        assert {str(int(path.stem)) for path in (node / partition).glob("*.seg")} == set(segments)
        for first, expected in segments.items():
            assert _summary(_stored(disk, partition, int(first))) == expected, f"partition {partition}, segment {first}"


def test_the_command_line_verifies_describes_and_dumps_the_directory(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "describe", "dump-control-file"):
        assert run(["storage", command, str(node)]) == OK, capsys.readouterr().err
        assert EXPECTED["cluster_key"] in capsys.readouterr().out or command == "verify"
    for partition, segments in EXPECTED["partitions"].items():
        for first, expected in segments.items():
            segment = node / partition / f"{int(first):019}.seg"
            assert run(["storage", "verify-segment", str(segment)]) == OK, capsys.readouterr().err
            capsys.readouterr()
            assert run(["storage", "dump-segment", str(segment), "--output", "json"]) == OK
            assert len(capsys.readouterr().out.splitlines()) >= expected["records"]


def test_reading_tools_leave_the_directory_as_it_was(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in sorted(node.rglob("*")) if path.is_file()}
    for command in ("verify", "describe", "dump-control-file"):
        assert run(["storage", command, str(node)]) == OK, capsys.readouterr().err
    assert {path: path.read_bytes() for path in sorted(node.rglob("*")) if path.is_file()} == before


async def _restarted(node: Path) -> MemoryCluster:
    """A cluster of today's code over the files and the coordinator's nodes."""
    cluster = MemoryCluster(partitions=4, storages=1, servers=1, settings={"upkeep_s": 0.5}, storage_settings=SMALL)
    session = cluster.ensemble.session()
    for path, data in sorted(json.loads((DATA / "coordinator.json").read_text()).items()):
        await session.create(path, base64.b64decode(data))
    await session.close()
    cluster.disks["storage-0"] = FileSystemDisk(node)  # type: ignore[assignment]
    await cluster.start()
    return cluster


def test_a_cluster_of_today_serves_every_record_and_the_view(node: Path) -> None:
    async def scenario() -> None:
        cluster = await _restarted(node)
        storage = cluster.storages["storage-0"][0]
        assert storage.statistics().stopped == {}
        assert storage.start == 2
        channel = cluster.network.connect(cluster.storages["storage-0"][1].address)
        stream = channel.read(methods.READ_VIEW, pb.ReadViewRequest(cluster_key=cluster.key.bytes, partition=1, max_bytes=1 << 20))
        lines = []
        while (page := await stream.receive()) is not None:
            assert page.bound == EXPECTED["view_bound"]
            lines += [f"{each.transaction_id} {each.time_ms} {each.header} {each.key.hex()} {each.value.hex()}" for each in decode_view_page(page)]
        assert _summary(lines) == EXPECTED["view"]
        client = await cluster.connect()
        for partition, segments in EXPECTED["partitions"].items():
            firsts = sorted(map(int, segments))
            last = firsts[-1] + segments[str(firsts[-1])]["records"] - 1
            found: dict[str, list[str]] = {first: [] for first in segments}
            async for each in client.feed(int(partition), after=firsts[0] - 1):
                facts = (each.transaction_id, each.timestamp_ms, each.client_id, each.generation, partition, each.sequence, each.header)
                of = max(first for first in firsts if first <= each.transaction_id)
                found[str(of)].append(" ".join(map(str, (*facts, each.data.hex()))))
                if each.transaction_id == last:
                    break
            assert {first: _summary(lines) for first, lines in found.items()} == segments, f"partition {partition}"
        assert (await client.append(2, b"goes on")).transaction_id == 160
        receipt = await (await client.topic("shop/seats")).append(b"taken", key=b"seat 1")
        assert receipt.transaction_id == 170
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_an_outbox_of_today_delivers_what_it_had_accepted(node: Path, tmp_path: Path) -> None:
    with tarfile.open(DATA / "outbox.tar.xz") as packed:
        packed.extractall(tmp_path / "outbox")

    async def scenario() -> None:
        cluster = await _restarted(node)

        disk = FileSystemDisk(tmp_path / "outbox")
        outbox = Outbox(disk, run_in_place, cluster.clock, cluster.seeds, cluster.network, OutboxSettings(file_bytes=64 * 1024))
        await outbox.start()
        (receipt,) = await outbox.submit([Intent.data(3, b"new")])
        await receipt.outcome()
        await outbox.flush()
        client = await cluster.connect()
        found = []
        async for each in client.feed(3):
            found.append(each.data)
            if len(found) == 9:
                break
        assert sorted(found) == sorted([*(b"delivered %d" % n for n in range(5)), *(b"owed %d" % n for n in range(3)), b"new"])
        await outbox.close()
        await client.close()
        await cluster.stop()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("check", ["hash", "size"])
def test_a_journal_gives_the_records_that_were_written(check: Literal["hash", "size"], tmp_path: Path) -> None:
    folder = shutil.copytree(DATA / "journals" / check, tmp_path / check)
    with Journal.open(FileSystemDisk(folder), JournalSettings(file_bytes=2048, files_min=3, check=check)) as journal:
        loaded = journal.loaded
        lines = [f"{each.record_id} {each.user_type} {each.is_update} {each.body.hex()}" for each in loaded.records]
        lines += [f"prepared {each.transaction_id} {len(each.records)} {sorted(each.deletes)}" for each in loaded.prepared]
        assert _summary(lines) == EXPECTED["journals"][check]
