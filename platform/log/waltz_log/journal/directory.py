"""The contents of a journal's directory: file names, the check with which they are sealed, and the id of each file. Read-only.

    journal-<id>.jrh      sealed by hash; the name states the id, and the header repeats it
    journal-<id>.jrn      sealed by size; the header states the id, as in the layout, and the name may be an older one
    journal.salt          the secret of the hashes (salt.py)
    *.tmp                 an incomplete file that a crash left; holds nothing
    attic/                damaged files, set aside and never deleted; `.lost` files were too short for a header

With hashes the id in the name decides, because every record proves it; a damaged header does no harm. With sizes only the header states the id.
Source: the layout's "Header Id"; docs/internals/journal.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from waltz_log.core.ports import Disk
from waltz_log.errors import CorruptData
from waltz_log.journal.record_codec import FILE_HEADER_BYTES, CheckKind, check_seed
from waltz_log.journal.salt import SALT_FILE, read_salt
from waltz_log.journal.settings import FILE_BYTES_MAX

__all__ = ["ATTIC", "FILE_ID_MAX", "Directory", "FoundFile", "following_id", "id_distance", "journal_name", "ring_order", "survey"]

ATTIC: Final = "attic"
FILE_ID_MAX: Final = (1 << 31) - 1
_EXTENSIONS: Final[dict[str, CheckKind]] = {"jrh": "hash", "jrn": "size"}
_NAME: Final = re.compile(r"journal-([0-9]{1,10})\.(jrh|jrn)")
_LOST: Final = re.compile(r"journal-([0-9]{1,10})\.(jrh|jrn)\.lost")


def journal_name(file_id: int, check: CheckKind) -> str:
    return f"journal-{file_id:010}.{'jrh' if check == 'hash' else 'jrn'}"


def following_id(file_id: int) -> int:
    """Ids are 1 to 2^31 - 1 and then 1 again."""
    return file_id % FILE_ID_MAX + 1


def id_distance(older: int, newer: int) -> int:
    """How many ids later `newer` was given, on the way round."""
    return (newer - older) % FILE_ID_MAX


def ring_order(ids: Iterable[int]) -> list[int]:
    """Ids, oldest first. They wrap around, so the oldest is the one after the widest gap; a journal never lets its files be half a round apart."""
    ring = sorted(set(ids))
    if not ring:
        return []
    first = max(range(len(ring)), key=lambda n: id_distance(ring[n - 1], ring[n]) or FILE_ID_MAX)
    return ring[first:] + ring[:first]


@dataclass(frozen=True, slots=True)
class FoundFile:
    """`header_id` differs from `id` where a header sealed by hash is not what the name says: damage, or a reuse that a crash interrupted."""

    name: str
    id: int
    header_id: int
    size: int


@dataclass(frozen=True, slots=True)
class Directory:
    """`check` and `salt` are None if there is no journal yet. `files` have no order."""

    check: CheckKind | None
    salt: bytes | None
    files: tuple[FoundFile, ...]
    short: tuple[str, ...]
    """Files too short for a header."""
    temporary: tuple[str, ...]
    lost_ids: frozenset[int]
    """Ids of files that were there and held nothing any more: records missing from them are missing, not reclaimed."""

    def seed(self, file_id: int) -> int | None:
        return check_seed(self.salt, file_id)


def survey(disk: Disk, mode: Literal["read", "write"] = "read") -> Directory:
    """Reads the whole directory. Raises `CorruptData` if it cannot be one journal: both checks, hashes without their salt, impossible headers, two
    files of one id."""
    names = disk.list("")
    matches = {name: found for name in names if (found := _NAME.fullmatch(name))}
    checks: list[CheckKind] = sorted({_EXTENSIONS[found[2]] for found in matches.values()})
    if len(checks) > 1:
        raise _corrupt(next(iter(matches)), "files of both checks stand in one directory")
    salted = SALT_FILE in names
    if checks == ["hash"] and not salted:
        raise _corrupt(SALT_FILE, "files are sealed by hash and their salt is missing; restore it")
    check: CheckKind | None = checks[0] if checks else "hash" if salted else None
    files, short = [], []
    lost = {int(found[1]) for name in disk.list(ATTIC) if (found := _LOST.fullmatch(name))}
    for name, match in matches.items():
        size, header_id = _header(disk, name, mode)
        if header_id is None:
            short.append(name)
            lost.add(int(match[1]))
        else:
            files.append(FoundFile(name, int(match[1]) if check == "hash" else header_id, header_id, size))
    _refuse_impossible(files)
    temporary = tuple(name for name in names if name.endswith(".tmp") and name.startswith(("journal-", SALT_FILE)))
    salt = read_salt(disk) if check == "hash" else None
    return Directory(check, salt, tuple(files), tuple(short), temporary, frozenset(lost))


def _header(disk: Disk, name: str, mode: Literal["read", "write"]) -> tuple[int, int | None]:
    file = disk.open(name, mode)
    try:
        size = file.size()
        if size > FILE_BYTES_MAX:  # loading holds a file in memory
            raise _corrupt(name, f"has {size} bytes, more than a file of a journal")
        header = file.read(0, FILE_HEADER_BYTES)
    finally:
        file.close()
    return size, int.from_bytes(header, "big", signed=True) if len(header) == FILE_HEADER_BYTES else None


def _refuse_impossible(files: list[FoundFile]) -> None:
    by_id: dict[int, FoundFile] = {}
    for file in files:
        if not 1 <= file.id <= FILE_ID_MAX:
            raise _corrupt(file.name, f"no file has the id {file.id}")
        twin = by_id.setdefault(file.id, file)
        if twin is not file:
            raise _corrupt(file.name, f"has the same id as {twin.name}")


def _corrupt(where: str, reason: str) -> CorruptData:
    return CorruptData(where=where, offset=0, transaction_id=-1, reason=reason)
