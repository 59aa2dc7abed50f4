"""Corruption in every kind of file that a storage node writes. Only the run's fragile node loses data.

A bit is flipped silently. Whatever reads the file next must notice: a start, a reader, the scrub. Then the byte is repaired, or the node reports the
damage, or it does not serve what the file is needed for. Only what was written is ever served.
"""

from __future__ import annotations

import sys
from random import Random
from typing import TYPE_CHECKING, Final

from verification.crashes.file_kinds import is_padding, kind_of
from verification.simulation.faults import claim, fault
from waltz_log.core.formats.segment_format import DATA, FILE_HEADER_BYTES, TIME_ENTRY_BYTES, TIMES, decode_times
from waltz_log.errors import WaltzError
from waltz_log.storage.integrity.scrub import Scrub
from waltz_log.storage.segments.segment import segment_path
from waltz_log.testing.disk import SimulatedDisk

if TYPE_CHECKING:
    from verification.simulation.world import World
    from waltz_log.storage import StorageNode

__all__ = ["corrupt_a_file", "files_by_kind"]

VIEWS: Final = 0.5
"""The share of the flips in files of compacted views, on a disk that holds views, because few seeds have views."""

WEIGHTS: Final = {"fence": 3, DATA: 3}
"""The weight of kinds of files whose corruption matters in few places; 1 for the others."""

HEADERS: Final = 0.4
"""The share of the flips in the header of a segment's data file, which is a small part of it."""


def files_by_kind(disk: SimulatedDisk) -> dict[str, list[str]]:
    """The files on the disk that are not temporary."""
    found: dict[str, list[str]] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for name in disk.list(folder):
            path = f"{folder}/{name}" if folder else name
            if disk.list(path):
                folders.append(path)
            elif (kind := kind_of(path)) is not None and not path.endswith(".new"):
                found.setdefault(kind, []).append(path)
    return found


@fault("corrupt-file", chance=0.3)
async def corrupt_a_file(world: World, rng: Random) -> None:
    async with claim(world, world.fragile) as name:
        if name is None:
            return
        disk = world.disks[name]
        files = files_by_kind(disk)
        views = sorted(kind for kind in files if kind.startswith("view "))
        kinds = views if views and rng.random() < VIEWS else sorted(files)
        kind = rng.choices(kinds, [WEIGHTS.get(each, 1) for each in kinds])[0]
        path = rng.choice(sorted(files[kind]))
        content = disk.content(path)
        end = len(content.rstrip(b"\0"))
        if kind == TIMES and path == max(each for each in files[kind] if each.startswith(path.rpartition("/")[0] + "/")):
            # Corruption in the last entry of the last segment looks like a write that a crash tore, and the block has the time of the one before.
            end = max(0, FILE_HEADER_BYTES + decode_times(content[FILE_HEADER_BYTES:])[2] - TIME_ENTRY_BYTES)
        node = world.storages[name].node
        if kind == DATA and node is not None:
            end = min(end, _synced_end(node, path))
        places = [at for at in range(end) if not is_padding(kind, at)]
        if not places or node is None:
            return
        fences = {each: node.control.fence(each) for each in range(node.control.header.partitions)} if not world.corrupted else {}
        heads = [at for at in places if at < FILE_HEADER_BYTES]
        at = rng.choice(heads if kind == DATA and heads and rng.random() < HEADERS else places)
        bit = rng.randrange(8)
        if not world.flip(name, path, at, bit):
            return
        if rng.random() < 0.5 or kind in ("control", "fence"):
            await world.kill_storage(name, disk.crash(keep=True))
            try:
                await world.start_storage(name)
            except WaltzError as error:
                world.trace.add(name, f"is refused, and replaced: {error}")
                world.loses_memory(name)
                await world.replace_disk(name, SimulatedDisk())
                await world.start_storage(name, replace=True)
                world.corrupted.discard(name)
                return
        node = world.storages[name].node
        assert node is not None
        if kind in ("control", "fence"):
            for partition, fence in fences.items():
                if partition not in node.statistics().stopped and node.control.fence(partition) < fence:
                    world.history.complaints.append(f"13: a fence went back: {path} of {name} partition={partition} at {world.now_s:.3f}")
            return
        if not await world.storages[name].process.spawn(_is_noticed(node, world, name, path, at, content[at] ^ 1 << bit)):
            world.history.complaints.append(f"13: no check noticed a bit that flipped: {path} of {name} offset={at} at {world.now_s:.3f}")


def _synced_end(node: StorageNode, path: str) -> int:
    """Up to where a check must notice corruption in this file of data. What is not synced yet was never acknowledged, and is a tail for a check."""
    for store in node._open_stores():
        tail = store.log.tail
        if path == segment_path(store.log.directory, tail.segment, DATA):
            return tail.end
    return sys.maxsize


async def _is_noticed(node: StorageNode, world: World, name: str, path: str, at: int, corrupted: int) -> bool:
    """Whether a scrub pass names the damage, or the byte changed since, or nothing of what the file belongs to is served."""
    folder = path.rpartition("/")[0]
    if folder.isdigit():
        try:
            store = await node.partition(int(folder))  # the scrub reads open partitions only, and this one may still be opening
        except WaltzError:
            return True
        if store.statistics().failed is not None:
            return True
    scrub = Scrub(node._open_stores, node.views, node._reads, None, bytes_per_s=1 << 30, pause_s=3600.0)
    await scrub.scrub_all()
    # Only damage at this place counts: an earlier flip elsewhere stays damaged.
    if any(path.startswith((f"{place}.", f"{place}/")) for place in scrub.statistics().damaged):
        return True
    if not folder.isdigit() and all(view.folder != folder for view in node.views.present().values()):
        return True
    disk = world.disks[name]
    return not disk.exists(path) or disk.content(path)[at : at + 1] != bytes([corrupted])
