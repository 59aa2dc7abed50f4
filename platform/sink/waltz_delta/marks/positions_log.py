"""A Delta table's transaction identifiers, version by version, read from its log files alone: no JVM, and no list of its data files.

Delta's PROTOCOL.md, "Delta Log Entries", "Checkpoints" and "Transaction Identifiers": an identifier is set by a `txn` action in a commit
(`<version>.json`) and kept by every checkpoint, in its main file or one of its parts, never in a sidecar. So the identifiers at a version are those
of the newest checkpoint at or below it and of the commits after that. What costs in reading a table's state is its data files, which are not read
here: looking for the next commit is one request.

Writes nothing. Knows nothing of what an identifier means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from waltz_delta.errors import NotADeltaTable
from waltz_log.extras import explain_missing

__all__ = ["TableLog"]

T = TypeVar("T")

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")

CLEANED_MEANWHILE = 5
"""Times that the log is listed again because a file was gone when it was to be read: whoever cleans up does so once in a while, not all the time."""


class TableLog:
    """Looks when it is made, and again at `refresh`. `NotADeltaTable` where the path holds no log."""

    def __init__(self, path: str, storage_options: dict[str, str] | None = None) -> None:
        with explain_missing("a table's log position", "spark"):
            import pyarrow.fs as files
            from deltalake.exceptions import TableNotFoundError
            from deltalake.fs import DeltaStorageHandler

        self.path = path
        try:
            self._files = files.PyFileSystem(DeltaStorageHandler(path, storage_options or {}))
        except TableNotFoundError:
            raise NotADeltaTable(path=path, reason="no table there") from None
        self._selector = files.FileSelector(_LOG, allow_not_found=True)
        self._newest_told: tuple[int, dict[str, Any]] = (-1, {})
        """Of the commit that was read last, which most often is the newest: asked for next, without another request."""
        self._commits: set[int] = set()
        self._checkpoints: dict[int, list[str]] = {}
        self._version, self._identifiers = self._again(self._load)

    @property
    def version(self) -> int:
        """The newest version, as last looked."""
        return self._version

    @property
    def identifiers(self) -> dict[str, int]:
        """Of the newest version: application id to its version."""
        return dict(self._identifiers)

    def refresh(self) -> bool:
        """Reads the commits made since; whether there were any. One request where there were none."""
        before = self._version
        while (found := self._commit(self._version + 1)) is not None:
            self._identifiers |= found
            self._version += 1
            self._commits.add(self._version)
        return self._version > before

    def first_version(self, reached: Callable[[dict[str, int]], bool]) -> tuple[int, bool]:
        """The first version whose identifiers satisfy `reached`, which once true stays so. False beside it where that is the oldest version that the
        log still tells, so that an older, cleaned one may have satisfied it already. The newest version must satisfy it."""
        return self._again(lambda: self._first_version(reached))

    def newest_first(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Versions with their identifiers, from the newest back to the oldest that the log tells."""
        starts = self._starts()
        end = self._version
        for start in reversed(starts):
            run = list(self._from(start, end))
            yield from reversed(run)
            end = start - 1

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and `commitInfo` of the newest commits, from the newest back, as far as the log's files tell."""
        for version in range(self._version, max(-1, self._version - count), -1):
            found = self._told(version)
            if found is None:
                return
            yield version, found

    def identifiers_at(self, version: int) -> dict[str, int]:
        """Of an older version. `NotADeltaTable` where the log does not reach back so far."""
        for start in reversed(self._starts()):
            if start <= version:
                *_, (_, found) = self._from(start, version)
                return found
        raise NotADeltaTable(path=self.path, reason=f"the log that held version {version} was cleaned up")

    def version_until(self, before: int, time_ms: int) -> int:
        """The last version below `before` that was committed at a time or earlier; the oldest that the log tells where none was."""
        for version in range(before - 1, -1, -1):
            told = self._told(version)
            if told is None:
                return version + 1
            # As Delta has it: what the commit says where that is switched on, else when its file was written.
            at_ms = told.get("inCommitTimestamp")
            if at_ms is None:
                written = self._files.get_file_info(f"{_LOG}/{version:020d}.json").mtime_ns
                at_ms = told.get("timestamp", 0) if written is None else written // 1_000_000
            if at_ms <= time_ms:
                return version
        return 0

    def _told(self, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of a commit, its first line; None where there is no such file."""
        if self._newest_told[0] != version:
            try:
                with self._files.open_input_file(f"{_LOG}/{version:020d}.json") as file:
                    text: bytes = file.read()
            except FileNotFoundError:
                return None
            return _commit_info(text)
        return self._newest_told[1]

    def _first_version(self, reached: Callable[[dict[str, int]], bool]) -> tuple[int, bool]:
        starts = self._starts()
        low, high = 0, len(starts)  # the first start that satisfies it lies in starts[low:high], or behind all of them
        while low < high:
            middle = (low + high) // 2
            if reached(self._at_start(starts[middle])):
                high = middle
            else:
                low = middle + 1
        if low == 0:
            return starts[0], starts[0] == 0
        end = starts[low] if low < len(starts) else self._version
        return next(version for version, identifiers in self._from(starts[low - 1], end) if reached(identifiers)), True

    def _starts(self) -> list[int]:
        """Versions that can be told without any older file, checkpoints and the very first, as far back as no commit is missing."""
        starts = sorted({*self._checkpoints, *(version for version in (0,) if version in self._commits)})
        kept: list[int] = []
        until = self._version
        for start in reversed(starts):
            if not self._commits.issuperset(range(start + 1, until + 1)):
                break
            kept.append(start)
            until = start
        return kept[::-1]

    def _from(self, start: int, end: int) -> Iterator[tuple[int, dict[str, int]]]:
        identifiers = self._at_start(start)
        yield start, identifiers
        for version in range(start + 1, end + 1):
            found = self._commit(version)
            if found is None:
                raise FileNotFoundError(version)
            identifiers = identifiers | found
            yield version, identifiers

    def _at_start(self, version: int) -> dict[str, int]:
        if version in self._checkpoints:
            return self._checkpoint(version)
        found = self._commit(version)
        if found is None:
            raise FileNotFoundError(version)
        return found

    def _load(self) -> tuple[int, dict[str, int]]:
        self._list()
        if not self._commits and not self._checkpoints:
            raise NotADeltaTable(path=self.path, reason="no table there")
        self._version = max([*self._commits, *self._checkpoints])
        starts = self._starts()
        if not starts:
            raise NotADeltaTable(path=self.path, reason=f"the log lacks commits below version {self._version}, and a checkpoint that holds them")
        *_, newest = self._from(starts[-1], self._version)
        return newest

    def _list(self) -> None:
        self._commits, self._checkpoints = set(), {}
        whole: dict[int, int] = {}
        for found in self._files.get_file_info(self._selector):
            name = found.base_name
            if commit := _COMMIT.fullmatch(name):
                self._commits.add(int(commit[1]))
            elif checkpoint := _CHECKPOINT.fullmatch(name):
                version = int(checkpoint[1])
                if checkpoint["parts"] is None:
                    self._checkpoints[version] = [name]
                    whole[version] = 1
                elif whole.setdefault(version, int(checkpoint["parts"])) > 1:
                    self._checkpoints.setdefault(version, []).append(name)
        for version, parts in whole.items():
            if len(self._checkpoints[version]) < parts:
                del self._checkpoints[version]  # being written

    def _again(self, look: Callable[[], T]) -> T:
        """What `look` finds, listing anew where the log was cleaned up under it."""
        for _ in range(CLEANED_MEANWHILE):
            try:
                return look()
            except FileNotFoundError:
                self._list()
        return look()

    def _commit(self, version: int) -> dict[str, int] | None:
        """The identifiers that a commit sets; None where there is no such commit."""
        try:
            with self._files.open_input_file(f"{_LOG}/{version:020d}.json") as file:
                text: bytes = file.read()
        except FileNotFoundError:
            return None
        self._newest_told = (version, _commit_info(text))
        return _identifiers(json.loads(line) for line in text.splitlines() if b'"txn"' in line)

    def _checkpoint(self, version: int) -> dict[str, int]:
        import pyarrow.parquet as parquet

        found: dict[str, int] = {}
        for name in self._checkpoints[version]:
            with self._files.open_input_file(f"{_LOG}/{name}") as file:
                if name.endswith(".json"):
                    found |= _identifiers(json.loads(line) for line in file.read().splitlines())
                else:
                    rows = parquet.ParquetFile(file)
                    if "txn" in rows.schema_arrow.names:
                        found |= _identifiers(rows.read(columns=["txn.appId", "txn.version"]).to_pylist())
        return found


def _identifiers(actions: Any) -> dict[str, int]:
    return {action["txn"]["appId"]: action["txn"]["version"] for action in actions if action.get("txn") and action["txn"]["appId"] is not None}


def _commit_info(text: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text[: text.index(b"\n")] if b"\n" in text else text).get("commitInfo") or {}
    return found
