"""A disk call on a thread goes on when the request that began it is cancelled, as when a partition moves to another owner while it is opened. What
comes next must not run beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from waltz_log.filesystem import FileSystemDisk, ThreadOffload
from waltz_log.storage import StorageNode, StorageSettings
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.segments.segment_log import SegmentLog

KEY = UUID(int=7)


class FixedClock:
    def now_ms(self) -> int:
        return 1


class Held:
    """A call that waits on its thread until `go` is set, and counts how many run at once."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._running = 0
        self.at_once = self.calls = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        self.begun.set()
        assert self.go.wait(20)
        try:
            return self._call(*arguments, **named)
        finally:
            self._running -= 1


@asynccontextmanager
async def opened_node(directory: Path) -> AsyncIterator[StorageNode]:
    disk, offload = FileSystemDisk(directory), ThreadOffload(4)
    StorageNode.create(disk, FixedClock(), KEY, 2)
    settings = StorageSettings(name="storage-0", directory=directory, coordinator="test", disk_warn_free_bytes=0, disk_refuse_free_bytes=0)
    node = StorageNode(settings, disk, FixedClock(), offload)
    await node.open(KEY)
    try:
        yield node
    finally:
        await node.close()
        offload.close()


async def begin_and_cancel(request: Coroutine[Any, Any, Any], held: Held) -> None:
    """Returns while the call that the request made is still held on its thread."""
    task = asyncio.create_task(request)
    assert await asyncio.to_thread(held.begun.wait, 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_partition_whose_opening_was_cancelled_is_opened_once_for_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_node(tmp_path) as node:
        held = Held(SegmentLog.open)
        monkeypatch.setattr(SegmentLog, "open", held)
        await begin_and_cancel(node.partition(1), held)
        second = asyncio.create_task(node.partition(1))
        await asyncio.sleep(0.1)
        held.go.set()
        store = await second
        assert (held.calls, held.at_once) == (1, 1)
        assert store is await node.partition(1)
        assert (await store.open_session(1)).last_id == -1


async def test_a_node_that_closes_waits_for_an_opening_whose_request_was_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_node(tmp_path) as node:
        held = Held(SegmentLog.open)
        monkeypatch.setattr(SegmentLog, "open", held)
        await begin_and_cancel(node.partition(1), held)
        closing = asyncio.create_task(node.close())
        assert not (await asyncio.wait([closing], timeout=0.2))[0], "the directory is still in use"
        held.go.set()
        await closing


async def test_control_files_that_grow_for_a_cancelled_request_are_changed_by_no_other_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_node(tmp_path) as node:
        store = await node.partition(0)
        held = Held(ControlFiles.grow)
        monkeypatch.setattr(node.control, "grow", lambda partitions: held(node.control, partitions))
        await begin_and_cancel(node.grow_control_file(9), held)
        fencing = asyncio.create_task(store.open_session(4))
        assert not (await asyncio.wait([fencing], timeout=0.2))[0], "the fence waits for its turn"
        held.go.set()
        await fencing
        assert node.control.header.partitions == 9
