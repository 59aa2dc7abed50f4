"""The `metadata` files of regular topics, which store the properties that a topic got when it was created (Partitioned WAL, directory structure).

The owner of a partition names its topic in each round of upkeep; the node records it, and removes the file when the topic was deleted. A file of
another topic, or of a compacted view, is never replaced or removed here: it goes when its own partition is cleared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from waltz_log.compaction.manifest import METADATA, Manifest
from waltz_log.compaction.view import make_folders, read_metadata, replace_metadata
from waltz_log.core.ports import Clock, Disk, Offload
from waltz_log.errors import CorruptData
from waltz_log.loggers import get_logger
from waltz_log.storage.views.view_folders import read_manifest, remove_view_folder, view_folders
from waltz_log.storage.views.views import TopicPartition

__all__ = ["TopicMetadata"]

log = get_logger(__name__)


class TopicMetadata:
    """The files of one process of a node. Call `open` first."""

    def __init__(self, disk: Disk, clock: Clock, offload: Offload) -> None:
        self._disk = disk
        self._clock = clock
        self._offload = offload
        self._recorded: dict[int, TopicPartition] = {}

    async def open(self, owns: Callable[[int], bool]) -> None:
        """Finds the files of the log partitions that this process owns."""
        self._recorded = {partition: of for partition, of in await self._offload(self._found) if owns(partition)}

    def _found(self) -> list[tuple[int, TopicPartition]]:
        found = []
        for topic, partition in view_folders(self._disk):
            with suppress(CorruptData):  # the owner's next round records it again, and `waltz storage verify` reports it
                manifest = read_manifest(self._disk, topic, partition)
                if manifest.type == "regular":
                    found.append((manifest.log_partition, TopicPartition(topic, partition, dict(manifest.properties))))
        return found

    async def record(self, log_partition: int, of: TopicPartition | None) -> None:
        """`of`: the regular topic of the log partition; None: it has none. A failure is logged and delays nothing: a full disk is still trimmed."""
        before = self._recorded.get(log_partition)
        if before == of:
            return
        try:
            if before is not None:
                await self._offload(self._remove, log_partition, before)
                del self._recorded[log_partition]
            if of is not None and await self._offload(self._write, log_partition, of):
                self._recorded[log_partition] = of
        except OSError as error:
            log.warning("topic not recorded, retried later", partition=log_partition, error=str(error))

    def _write(self, log_partition: int, of: TopicPartition) -> bool:
        """False while the file of another log partition, whose topic was deleted, is in the same place."""
        folder = f"{of.topic.namespace}/{of.topic.topic}/{of.partition}"
        if self._disk.exists(f"{folder}/{METADATA}"):
            with suppress(CorruptData):
                found = read_metadata(self._disk, f"{folder}/{METADATA}")
                if found.type != "regular" or found.log_partition != log_partition:
                    return False
        make_folders(self._disk, folder)
        now_ms = self._clock.now_ms()
        replace_metadata(
            self._disk, folder, Manifest(str(of.topic), of.partition, of.properties, now_ms, 0, 0, log_partition=log_partition, type="regular")
        )
        return True

    def _remove(self, log_partition: int, of: TopicPartition) -> None:
        folder = f"{of.topic.namespace}/{of.topic.topic}/{of.partition}"
        if not self._disk.exists(f"{folder}/{METADATA}"):
            return
        with suppress(CorruptData):
            found = read_metadata(self._disk, f"{folder}/{METADATA}")
            if found.type != "regular" or found.log_partition != log_partition:
                return
        remove_view_folder(self._disk, of.topic, of.partition)
