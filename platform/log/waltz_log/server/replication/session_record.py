"""The metadata of a partition as its owner wrote it last. It changes only by compare-and-set, so two owners cannot both write.

A session number is given out once: `begin` raises it, and every later write expects the version that the previous one returned.
"""

from __future__ import annotations

import asyncio

from waltz_log.coordination.entries import parsed, readable
from waltz_log.core.metadata import PartitionMetadata, partition_path
from waltz_log.core.ports import Coordinator
from waltz_log.errors import CoordinatorBehind, Fenced

__all__ = ["SessionRecord"]


class SessionRecord:
    """Hold `turn` from reading `current` until `write` returns."""

    def __init__(self, partition: int, generation: int, coordinator: Coordinator) -> None:
        self.partition = partition
        self.generation = generation
        self.turn = asyncio.Lock()
        self.current = PartitionMetadata(generation, -1, {})
        """What is recorded, as far as this owner knows."""
        self._coordinator = coordinator
        self._version = -1

    async def begin(self) -> PartitionMetadata:
        """Records the next session number. Returns the metadata that was found before. Raises `Fenced` if an owner of a newer generation wrote it,
        `CoordinatorBehind` if it names a session that the coordinator does not know."""
        path = partition_path(self.partition)
        while True:
            node = await self._coordinator.get(path)
            if node is None:
                await self._coordinator.create(path, PartitionMetadata(0, 0, {}).to_bytes())
                continue
            found = parsed(path, node, PartitionMetadata.from_bytes)
            if found.newer_session is not None:
                # The session that found the newer one recorded its own number, one above what the metadata knew, before it ended.
                raise CoordinatorBehind(partition=self.partition, replica=None, recorded=found.session - 1, found=found.newer_session)
            if found.generation > self.generation:
                raise Fenced(what="generation", partition=self.partition, mine=self.generation, newer=found.generation)
            mine = PartitionMetadata(self.generation, found.session + 1, found.replicas)
            version = await self._coordinator.set(path, mine.to_bytes(), node.version)
            if version is not None:
                self.current, self._version = mine, version
                return found

    async def write(self, wanted: PartitionMetadata, session: int) -> None:
        """Records the metadata, if it differs from what is recorded. Raises `Fenced` if another process wrote: `session` is over then."""
        if wanted == self.current:
            return
        path = partition_path(self.partition)
        version = await self._coordinator.set(path, wanted.to_bytes(), self._version)
        if version is None:
            node = await self._coordinator.get(path)
            written = readable(path, node, PartitionMetadata.from_bytes)
            if node is None or written != wanted:
                newer = -1 if written is None else written.session
                raise Fenced(what="store session", partition=self.partition, mine=session, newer=newer)
            version = node.version  # our own write, whose answer was lost
        self.current, self._version = wanted, version
