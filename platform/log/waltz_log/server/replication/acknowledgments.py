"""What each replica of a store session holds, on disk and in memory, and the id up to which a majority of the assigned replicas holds it. Pure.

A replica's ids only rise until it loses data (`forget`). What a learner holds is kept apart: it counts for no mark.
"""

from __future__ import annotations

from collections.abc import Iterable

from waltz_log.core.recovery import committed_mark

__all__ = ["Acknowledgments"]


class Acknowledgments:
    def __init__(self) -> None:
        self.on_disk: dict[str, int] = {}
        """By replica, the last id that it acknowledged as synced. A replica is listed from the moment it is recorded as clean."""
        self.in_memory: dict[str, int] = {}
        self._learners: dict[str, int] = {}

    def synced(self, name: str, last_transaction_id: int, assigned: int) -> int | None:
        """A replica has everything up to the id on disk. Returns the id that a majority of `assigned` replicas has, None if there is none."""
        self.on_disk[name] = max(last_transaction_id, self.on_disk.get(name, -1))
        return committed_mark(self.on_disk, assigned)

    def received(self, name: str, transaction_id: int, assigned: int) -> int | None:
        """A replica has everything up to the id in memory or on disk. Returns the same as `synced`, for received blocks."""
        self.in_memory[name] = max(transaction_id, self.in_memory.get(name, -1))
        return committed_mark({each: max(on_disk, self.in_memory.get(each, -1)) for each, on_disk in self.on_disk.items()}, assigned)

    def learned(self, name: str, last_transaction_id: int) -> None:
        """A learner has everything up to the id on disk."""
        self._learners[name] = max(last_transaction_id, self._learners.get(name, -1))

    def holding(self, transaction_id: int) -> list[str]:
        """The replicas that have the id on disk, in the order in which they were first listed."""
        return [name for name, last in self.on_disk.items() if last >= transaction_id]

    def learners_holding(self, names: Iterable[str], transaction_id: int) -> list[str]:
        """Which of these learners have the id on disk."""
        return [name for name in names if self._learners.get(name, -1) >= transaction_id]

    def forget_memory(self, name: str) -> None:
        """What a replica had in memory before it restarted does not count."""
        self.in_memory.pop(name, None)

    def forget(self, name: str) -> None:
        """A replica lost data or is not one any more: nothing that it acknowledged counts."""
        self.on_disk.pop(name, None)
        self.in_memory.pop(name, None)
        self._learners.pop(name, None)

    def clear(self) -> None:
        """A new store session: replicas acknowledge again."""
        self.on_disk.clear()
        self.in_memory.clear()
        self._learners.clear()
