"""A Delta table's transaction identifiers, version by version, read from its log files alone: no JVM, and no list of its data files.

Source: Delta's PROTOCOL.md, "Delta Log Entries", "Checkpoints" and "Transaction Identifiers". An identifier is set by a `txn` action in a commit
(`<version>.json`) and kept by every checkpoint, in its main file or one of its parts, never in a sidecar. So the identifiers at a version are those
of the newest checkpoint at or below it and of the commits after that. The costly part of a table's state is the list of its data files, which is not
read here: polling for the next commit costs one request.

Writes nothing. Does not interpret identifiers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar  # Any: JSON values

from waltz_delta.base.commit_info import commit_info, parsed, parsing
from waltz_delta.base.damaged_checkpoint import CHECKPOINT, COMMIT, remedy
from waltz_delta.base.store_errors import store_errors
from waltz_delta.errors import NotADeltaTable
from waltz_log.extras import explain_missing

__all__ = ["NOTHING_THERE", "TableLog"]

NOTHING_THERE: Final = "no table there"
"""The reason in `NotADeltaTable` if the path holds no log."""

T = TypeVar("T")

_LOG = "_delta_log"

CLEANED_MEANWHILE = 5
"""How often the log is listed again because a file was removed before it could be read. A cleanup runs now and then, not all the time."""


class TableLog:
    """Reads the log when it is created, and again at `refresh`. Raises `NotADeltaTable` if the path holds no log. Each method raises
    `StoreUnavailable`."""

    def __init__(self, path: str, storage_options: dict[str, str] | None = None) -> None:
        with explain_missing("a table's log position", "spark"):
            import pyarrow.fs as files
            from deltalake.exceptions import TableNotFoundError
            from deltalake.fs import DeltaStorageHandler

        self.path = path
        try:
            with store_errors(path, TableNotFoundError):
                self._files = files.PyFileSystem(DeltaStorageHandler(path, storage_options or {}))
        except TableNotFoundError:
            raise NotADeltaTable(path=path, reason=NOTHING_THERE) from None
        self._selector = files.FileSelector(_LOG, allow_not_found=True)
        self._newest_info: tuple[int, dict[str, Any]] = (-1, {})
        """Version and `commitInfo` of the commit that was read last. That is mostly the newest, which is asked for next; the cache saves a request.
        """
        self._commits: set[int] = set()
        self._checkpoints: dict[int, list[str]] = {}
        self._version, self._identifiers = self._retry(self._load)

    @property
    def version(self) -> int:
        """The newest version at the last `refresh`."""
        return self._version

    @property
    def identifiers(self) -> dict[str, int]:
        """The identifiers of the newest version: application id to its version."""
        return dict(self._identifiers)

    def refresh(self) -> bool:
        """Reads the commits made since, and returns whether there were any. One request if there were none."""
        before = self._version
        while (found := self._commit(self._version + 1)) is not None:
            self._identifiers |= found
            self._version += 1
            self._commits.add(self._version)
        return self._version > before

    def first_version(self, reached: Callable[[dict[str, int]], bool]) -> tuple[int, bool]:
        """The first version whose identifiers satisfy `reached`, which must stay true once it is. Also returns False if that is the oldest version in
        the log, because an older one that was cleaned up may have satisfied it already. The newest version must satisfy it."""
        return self._retry(lambda: self._first_version(reached))

    def newest_first(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Versions with their identifiers, from the newest back to the oldest in the log."""
        starts = self._starts()
        end = self._version
        for start in reversed(starts):
            run = list(self._identifiers_between(start, end))
            yield from reversed(run)
            end = start - 1

    def commits(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and `commitInfo` of the newest commits, newest first, as far back as the log's files reach."""
        for version in range(self._version, max(-1, self._version - count), -1):
            found = self._info_of(version)
            if found is None:
                return
            yield version, found

    def identifiers_at(self, version: int) -> dict[str, int]:
        """The identifiers of an older version. Raises `NotADeltaTable` if the log does not reach back that far."""
        return self._retry(lambda: self._identifiers_at(version))

    def version_until(self, before: int, time_ms: int) -> int:
        """The last version below `before` that was committed at `time_ms` or earlier; the oldest in the log if there is none."""
        for version in range(before - 1, -1, -1):
            info = self._info_of(version)
            if info is None:
                return version + 1
            # As in Delta: the in-commit timestamp if that is enabled, else the modification time of the file.
            at_ms = info.get("inCommitTimestamp")
            if at_ms is None:
                written = self._files.get_file_info(f"{_LOG}/{version:020d}.json").mtime_ns
                at_ms = info.get("timestamp", 0) if written is None else written // 1_000_000
            if at_ms <= time_ms:
                return version
        return 0

    def _identifiers_at(self, version: int) -> dict[str, int]:
        for start in reversed(self._starts()):
            if start <= version:
                *_, (_, found) = self._identifiers_between(start, version)
                return found
        raise NotADeltaTable(path=self.path, reason=f"the log that held version {version} was cleaned up")

    def _info_of(self, version: int) -> dict[str, Any] | None:
        """The `commitInfo` of a commit; None if there is no such file."""
        if self._newest_info[0] != version:
            text = self._commit_text(version)
            if text is None:
                return None
            with parsing(self.path, version):
                return commit_info(text)
        return self._newest_info[1]

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
        return next(version for version, identifiers in self._identifiers_between(starts[low - 1], end) if reached(identifiers)), True

    def _starts(self) -> list[int]:
        """Versions whose identifiers need no older file: checkpoints and the very first version, as far back as no commit is missing."""
        starts = sorted({*self._checkpoints, *(version for version in (0,) if version in self._commits)})
        kept: list[int] = []
        until = self._version
        for start in reversed(starts):
            if not self._commits.issuperset(range(start + 1, until + 1)):
                break
            kept.append(start)
            until = start
        return kept[::-1]

    def _identifiers_between(self, start: int, end: int) -> Iterator[tuple[int, dict[str, int]]]:
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
            raise NotADeltaTable(path=self.path, reason=NOTHING_THERE)
        self._version = max([*self._commits, *self._checkpoints])
        starts = self._starts()
        if not starts:
            raise NotADeltaTable(path=self.path, reason=f"the log lacks commits below version {self._version}, and a checkpoint that holds them")
        *_, newest = self._identifiers_between(starts[-1], self._version)
        return newest

    def _list(self) -> None:
        with store_errors(self.path):
            listed = self._files.get_file_info(self._selector)
        self._commits, self._checkpoints = set(), {}
        whole: dict[int, int] = {}
        for found in listed:
            name = found.base_name
            if commit := COMMIT.fullmatch(name):
                self._commits.add(int(commit[1]))
            elif checkpoint := CHECKPOINT.fullmatch(name):
                version = int(checkpoint[1])
                if checkpoint["parts"] is None:
                    self._checkpoints[version] = [name]
                    whole[version] = 1
                elif whole.setdefault(version, int(checkpoint["parts"])) > 1:
                    self._checkpoints.setdefault(version, []).append(name)
        for version, parts in whole.items():
            if len(self._checkpoints[version]) < parts:
                del self._checkpoints[version]  # being written

    def _retry(self, read: Callable[[], T]) -> T:
        """Returns the result of `read`. Lists the log and runs it again if a cleanup removed a file meanwhile."""
        for _ in range(CLEANED_MEANWHILE):
            try:
                return read()
            except FileNotFoundError:
                self._list()
        return read()

    def _commit(self, version: int) -> dict[str, int] | None:
        """The identifiers that a commit sets; None if there is no such commit."""
        text = self._commit_text(version)
        if text is None:
            return None
        with parsing(self.path, version):
            self._newest_info = (version, commit_info(text))
            return _identifiers(parsed(line) for line in text.splitlines() if b'"txn"' in line)

    def _commit_text(self, version: int) -> bytes | None:
        """The content of a commit; None if there is no such file."""
        try:
            with store_errors(self.path, FileNotFoundError), self._files.open_input_file(f"{_LOG}/{version:020d}.json") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _checkpoint(self, version: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self._checkpoints[version]:
            with store_errors(self.path, FileNotFoundError), self._files.open_input_file(f"{_LOG}/{name}") as file:
                try:
                    found |= _identifiers_of(name, file)
                except ValueError:  # of pyarrow, and of JSON
                    raise NotADeltaTable(path=self.path, reason=remedy(name, self._commits, self._checkpoints)) from None
        return found


def _identifiers_of(name: str, file: Any) -> dict[str, int]:
    """Those of a checkpoint's file."""
    import pyarrow.parquet as parquet

    if name.endswith(".json"):
        return _identifiers(json.loads(line) for line in file.read().splitlines())
    rows = parquet.ParquetFile(file)
    return _identifiers(rows.read(columns=["txn.appId", "txn.version"]).to_pylist()) if "txn" in rows.schema_arrow.names else {}


def _identifiers(actions: Any) -> dict[str, int]:
    return {action["txn"]["appId"]: action["txn"]["version"] for action in actions if action.get("txn") and action["txn"]["appId"] is not None}
