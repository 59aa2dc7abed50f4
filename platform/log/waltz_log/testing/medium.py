"""What a simulated disk is made of: bytes and names as users see them, as the medium has them, and the changes between the two, each of which
survives or not when the machine crashes.

Nothing here knows of paths, open files or faults (`testing/disk.py`), nor which fates are tried (`verification/crashes/crashes.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple, TypeAlias

__all__ = ["LOST", "SECTOR_BYTES", "WHOLE", "Change", "Content", "Directory", "Fate", "File", "NameChange", "Pending", "drawn_fate", "sectors"]

SECTOR_BYTES: Final = 512
"""What a medium writes whole or not at all. Sectors of one write reach it in any order."""

Fate: TypeAlias = int | tuple[bool, ...]
"""The part of a change that reached the medium: its first bytes, or, for a write, these sectors of a file that already has its new length."""

LOST: Final = 0
WHOLE: Final = sys.maxsize


class Pending(NamedTuple):
    """A change that was not synced. `size`: its bytes, 0 for one that has none and is there or not; `sectors`: how many it touches."""

    order: int
    size: int
    sectors: int


class Content:
    """A file's bytes. Those beyond `data`, up to `size`, are zeros and need no memory."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"", size: int | None = None) -> None:
        self.data = bytearray(data)
        self.size = len(data) if size is None else size

    def copy(self) -> Content:
        return Content(self.data, self.size)

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        found = bytes(self.data[offset:end])
        return found + bytes(max(0, end - offset - len(found)))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def put(self, offset: int, change: bytes) -> None:
        if change:
            self.data.extend(bytes(max(0, offset - len(self.data))))
            self.data[offset : offset + len(change)] = change
            self.size = max(self.size, len(self.data))


@dataclass(slots=True, eq=False)
class Change:
    """Bytes at an offset, or with None for bytes a new size. `forsaken`: the sync that should have written it failed."""

    order: int
    offset: int
    data: bytes | None
    forsaken: bool = False

    def pending(self) -> Pending:
        size = 0 if self.data is None else len(self.data)
        return Pending(self.order, size, len(sectors(self.offset, size)))

    def apply(self, content: Content, fate: Fate = WHOLE) -> None:
        if self.data is None:
            if fate != LOST:
                content.resize(self.offset)
        elif isinstance(fate, int):
            content.put(self.offset, self.data[:fate])
        else:
            content.size = max(content.size, self.offset + len(self.data))
            for place, kept in zip(sectors(self.offset, len(self.data)), fate, strict=True):
                if kept:
                    content.put(place.start, self.data[place.start - self.offset : place.stop - self.offset])


def sectors(offset: int, size: int) -> list[range]:
    """The parts of a write that lie in one sector each."""
    if not size:
        return []
    cuts = [offset, *range((offset // SECTOR_BYTES + 1) * SECTOR_BYTES, offset + size, SECTOR_BYTES), offset + size]
    return [range(start, stop) for start, stop in pairwise(cuts)]


class File:
    """The bytes as users see them, as the medium has them, and the changes between the two."""

    __slots__ = ("changes", "durable", "now")

    def __init__(self, now: Content | None = None, durable: Content | None = None, changes: list[Change] | None = None) -> None:
        self.now = now or Content()
        self.durable = durable or Content()
        self.changes = changes or []

    def change(self, change: Change) -> None:
        self.changes.append(change)
        change.apply(self.now)

    def sync(self) -> None:
        for change in self.changes:
            if not change.forsaken:
                change.apply(self.durable)
        self.changes = [change for change in self.changes if change.forsaken]

    def forsake(self) -> None:
        for change in self.changes:
            change.forsaken = True

    def drop_forsaken(self) -> None:
        """A process that opens the file again does not see what a failed sync should have written."""
        if any(change.forsaken for change in self.changes):
            self.changes = [change for change in self.changes if not change.forsaken]
            self.now = self.durable.copy()
            for change in self.changes:
                change.apply(self.now)

    def survivor(self, fates: Mapping[int, Fate]) -> File:
        data = self.durable.copy()
        for change in self.changes:
            change.apply(data, fates[change.order])
        return File(data, data.copy())

    def copy(self) -> File:
        return File(self.now.copy(), self.durable.copy(), [replace(change) for change in self.changes])


def drawn_fate(change: Pending, random: Random | None) -> Fate:
    """Lost where nothing draws; otherwise lost, kept or torn, at any byte or between sectors."""
    if random is None:
        return LOST
    fate = random.random()
    if not change.size:
        return LOST if fate < 0.45 else WHOLE
    if fate < 0.35:
        return LOST
    if fate < 0.65:
        return WHOLE
    if fate < 0.85:
        return random.randrange(change.size + 1)
    return tuple(random.random() < 0.5 for _ in range(change.sectors))


Names: TypeAlias = "dict[str, File | Directory]"
NameChange: TypeAlias = "dict[str, File | Directory | None]"


@dataclass(slots=True, eq=False)
class Directory:
    """Names as users see them and as the medium has them, and the changes between the two, each atomic."""

    now: Names = field(default_factory=dict)
    durable: Names = field(default_factory=dict)
    changes: list[tuple[int, NameChange]] = field(default_factory=list)

    def change(self, order: int, names: NameChange) -> None:
        self.changes.append((order, names))
        _rename(self.now, names)

    def survivor(self, fates: Mapping[int, Fate], files: dict[File, File]) -> Directory:
        names = dict(self.durable)
        for order, change in self.changes:
            if fates[order] != LOST:
                _rename(names, change)
        found = Directory()
        for name, entry in names.items():
            if isinstance(entry, Directory):
                found.now[name] = entry.survivor(fates, files)
            else:
                if entry not in files:
                    files[entry] = entry.survivor(fates)
                found.now[name] = files[entry]
        found.durable = dict(found.now)
        return found

    def copy(self, known: dict[File | Directory, File | Directory]) -> Directory:
        found = Directory()
        known[self] = found

        def copied(entry: File | Directory) -> File | Directory:
            if entry not in known:
                known[entry] = entry.copy() if isinstance(entry, File) else entry.copy(known)
            return known[entry]

        found.now = {name: copied(entry) for name, entry in self.now.items()}
        found.durable = {name: copied(entry) for name, entry in self.durable.items()}
        found.changes = [
            (order, {name: None if entry is None else copied(entry) for name, entry in change.items()}) for order, change in self.changes
        ]
        return found

    def names(self, file: File) -> int:
        """How many names the file has here and below."""
        return sum(entry.names(file) if isinstance(entry, Directory) else entry is file for entry in self.now.values())

    def walk(self) -> dict[File, None]:
        """The files that users see, each once."""
        found: dict[File, None] = {}
        for entry in self.now.values():
            found |= entry.walk() if isinstance(entry, Directory) else {entry: None}
        return found

    def reachable(self, found: dict[File | Directory, None]) -> dict[File | Directory, None]:
        """Everything that users see or could see again after a crash, each once."""
        if self not in found:
            found[self] = None
            changed = [entry for _, change in self.changes for entry in change.values() if entry is not None]
            for entry in (*self.now.values(), *self.durable.values(), *changed):
                if isinstance(entry, Directory):
                    entry.reachable(found)
                else:
                    found[entry] = None
        return found

    def paths(self, prefix: str = "") -> Iterator[tuple[str, File | None]]:
        """Every name users see, in order; None for a directory."""
        for name, entry in sorted(self.now.items()):
            yield prefix + name, entry if isinstance(entry, File) else None
            if isinstance(entry, Directory):
                yield from entry.paths(f"{prefix}{name}/")


def _rename(names: Names, change: NameChange) -> None:
    for name, entry in change.items():
        if entry is None:
            names.pop(name, None)
        else:
            names[name] = entry
