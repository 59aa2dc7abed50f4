"""One table, kept open between batches. For the driver only: `deltalake` must not be used in a process that forks later.

`deltalake` opens a table, which reads the list of all of its files. After that only the commits that follow are read. An append must know the
columns, the properties, the protocol and the identifiers. A commit that changes one of the first three opens the table again. It is also opened
again if the commit of the known version has another content now, because then another table is at the path, and if the log was cleaned up above
that version.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final  # Any: `deltalake` has no types, and JSON values
from urllib.parse import unquote

import pyarrow as pa

from waltz_delta.base.commit_info import commit_info, parsing
from waltz_delta.base.damaged_checkpoint import CHECKPOINT
from waltz_delta.base.store_errors import sentence, store_errors
from waltz_delta.base.table_directory import LOG, UNFINISHED, refuse_other_content
from waltz_delta.engine.allowed import Protocol, TableShape
from waltz_delta.engine.checkpoint_files import HINT, damage, hinted_version
from waltz_delta.engine.identifiers import ChangesRules, Identifiers, actions_of
from waltz_delta.engine.living_files import living_files
from waltz_delta.engine.log_end import CheckpointFiles, Sighting, checkpoint_files, is_end, newest_listed
from waltz_delta.engine.parquet_files import is_own_file
from waltz_delta.engine.stores import file_system, is_local, sync, sync_directory, with_time_limits
from waltz_delta.errors import NotADeltaTable, StoreUnavailable, UnsafeTable
from waltz_delta.marks.positions_log import TableLog

__all__ = ["PROBE", "ArrowTable", "NotOpened", "OpenedTable", "engine_kept"]

PROBE: Final = "_waltz_probe"
"""A folder below the table's directory, for `store_probe`. Delta ignores folders whose names begin with an underscore, and VACUUM spares them."""
_HOLE: Final = re.compile("Expected contiguous commit files|No table metadata or protocol found")
FOLLOWED_MAX: Final = 50
"""From this number of commits on, the table is opened again."""
REMAINS_S: Final = 86_400.0
"""The age at which a file of a commit that was not finished was left by a driver that died. No commit lasts so long."""
_REMAINS: Final = re.compile(rf"\.\d{{20}}\.[0-9a-f]+\.tmp|{UNFINISHED.pattern}")
"""Names of such files: of `commit_files`, and of `deltalake`."""
LOADS_MAX: Final = 3
"""How often a table is opened whose log is cleaned up meanwhile."""
_GONE: Final = re.compile("not found|No such file", re.IGNORECASE)
_NOTHING: Final = "Invalid table location"
_UNKNOWN: Final = re.compile("Unsupported(:| Delta table type)|Max catalog version")
"""What `deltalake` says of a feature, a version or a type that it does not know, and of a table that a catalog manages."""


class NotOpened(Exception):
    """`deltalake` does not know a feature of the table. Internal to this package: the text is the reason for Spark's engine."""


@contextmanager
def engine_kept(path: str) -> Iterator[None]:
    """For work that cannot change its engine: raises `NotOpened` as `UnsafeTable`."""
    try:
        yield
    except NotOpened as error:
        raise UnsafeTable(path=path, reason=f"another process changed the table meanwhile: {error}") from error


class LoadedTable:
    """`deltalake`'s table at the versions that are asked for, mostly one after the other. To go on to a later version costs more with each file of
    the table. Methods raise what `DeltaTable` raises."""

    def __init__(self, location: str, storage: Mapping[str, str], version: int | None = None) -> None:
        """`version`: None for the newest."""
        self._location, self._options = location, dict(storage) or None
        self._latest = self._load(version)
        self._earlier: Any = None

    def first(self) -> Any:
        """At the version at which it was opened."""
        return self._latest

    def at(self, version: int) -> Any:
        """The table at this version."""
        if self._latest is None or self._latest.version() < version:
            self._latest = self._brought_to(version)
        if self._latest.version() == version:
            return self._latest
        if self._earlier is None or self._earlier.version() != version:
            self._earlier = self._load(version)
        return self._earlier

    def _brought_to(self, version: int) -> Any:
        """Never beyond it: what is read ahead may be another log's by the time at which that version is asked for."""
        from deltalake.exceptions import DeltaError

        latest, self._latest = self._latest, None
        if latest is not None:
            with suppress(DeltaError, OSError):  # then it is loaded
                latest.update_incremental()
                if latest.version() == version:
                    return latest
        return self._load(version)

    def _load(self, version: int | None) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self._location, version=version, storage_options=self._options)


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """One version of a table."""

    version: int
    table_id: str
    protocol: Protocol
    shape: TableShape
    schema_text: str
    location: str
    commit: bytes | None = field(compare=False, repr=False)
    """The content of the commit that made this version; None if the log has it no more."""
    loaded: LoadedTable = field(compare=False, repr=False)
    """Which the versions of one table share."""
    path: str = field(compare=False, repr=False)
    """As the user names it."""
    seen: Sighting = field(compare=False, repr=False)
    """When this version was the newest."""
    checkpoint: CheckpointFiles = field(default=(), compare=False, repr=False)
    """The checkpoint of this version, in a local log that does not have its commit any more."""
    identifiers: Identifiers = field(default_factory=Identifiers, compare=False, repr=False)

    @property
    def delta_table(self) -> Any:
        """`deltalake`'s table at this version, which may have to be read. Raises `StoreUnavailable`."""
        with store_errors(self.path):
            return self.loaded.at(self.version)

    def identifier(self, app_id: str) -> int | None:
        """The version of an application identifier; None if there is none."""

        def read(name: str) -> int | None:
            with store_errors(self.path):
                found: int | None = self.loaded.at(self.version).transaction_version(name)
                return found

        return self.identifiers.of(app_id, read)

    def same_rules(self, other: OpenedTable) -> bool:
        """Whether files that were written for this version fit the other one."""
        return (self.table_id, self.protocol, self.shape) == (other.table_id, other.protocol, other.shape)

    def living_files(self) -> pa.Table:
        """The data files of this version, as `living_files` describes them."""
        return living_files(self.delta_table)


class ArrowTable:
    """`location`: a directory, or the URL of one in an object store. `storage`: options of the store. `committing`: encloses each commit."""

    def __init__(self, path: str, location: str, storage: Mapping[str, str], committing: Callable[[], AbstractContextManager[None]]) -> None:
        self.path, self.location = path, location
        self.storage = with_time_limits(location, storage)
        self.committing = committing
        self._files: Any = None
        self._known: OpenedTable | None = None
        self._log: TableLog | None = None
        self._last_checkpoint: int | None = None

    def open(self) -> OpenedTable | None:
        """The newest version; None if there is no table. Raises `NotADeltaTable` for a damaged log, `StoreUnavailable`, `NotOpened`."""
        self._known = self._followed() or self._load()
        if self._known is not None and self._known.commit is not None and not self._known.commit.strip():
            empty = f"its newest commit {self._known.version:020d}.json is empty, as after a power failure"
            raise NotADeltaTable(path=self.path, reason=f"{empty}; restore that file, or delete it and audit the table")
        return self._known

    def reopen(self) -> OpenedTable | None:
        """Like `open`, from the table's files alone."""
        self._known = None
        return self.open()

    def open_at(self, version: int) -> OpenedTable:
        """A version that the log still has, that shares nothing with the others. Raises `StoreUnavailable`."""
        with store_errors(self.path):
            return self._opened(LoadedTable(self.location, self.storage, version), Sighting.now())

    def is_table(self) -> bool:
        """Whether there is a table. Raises `NotADeltaTable` if the path holds anything but a table and the remains of a first batch that died."""
        import pyarrow.fs as fs

        if self.open() is not None:
            return True
        files, root = file_system(self.location, self.storage)
        try:
            if files.get_file_info(root).type == fs.FileType.File:
                raise NotADeltaTable(path=self.path, reason="a file is there")
            inside, logged = (
                [found.base_name for found in files.get_file_info(fs.FileSelector(place, allow_not_found=True))] for place in (root, f"{root}/{LOG}")
            )
        except OSError as error:
            raise StoreUnavailable(path=self.path, reason=sentence(error)) from error
        refuse_other_content(self.path, [name for name in inside if not is_own_file(name) and name != PROBE], logged)
        return False

    def count(self) -> int:
        """The rows of the table, from the statistics of its files, and from a file itself that has none."""
        import pyarrow.parquet as parquet

        opened = self.open()
        if opened is None:
            return 0
        files, root = file_system(self.location, self.storage)
        rows = 0
        for found in pa.table(opened.delta_table.get_add_actions()).select(["path", "num_records"]).to_pylist():
            known = found["num_records"]
            rows += known if known is not None else parquet.read_metadata(f"{root}/{unquote(found['path'])}", filesystem=files).num_rows
        return rows

    def reserve(self) -> None:
        """Marks the path as ours before there is a table, so that files of a first batch that dies are not another application's. Object stores have
        no directories; there the names of the files show it."""
        if is_local(self.location):
            log = Path(self.location) / LOG
            made = [each for each in (log, *log.parents) if not each.exists()]
            log.mkdir(parents=True, exist_ok=True)
            for directory in made:
                sync_directory(directory.parent)

    def commit_text(self, version: int) -> bytes | None:
        """The content of a commit; None if its file does not exist."""
        try:
            with store_errors(self.path, FileNotFoundError):
                return self._log_file(f"{version:020d}.json")
        except FileNotFoundError:
            return None

    def commits(self, newest: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Version and `commitInfo` of the newest commits, newest first, up to one that the log does not have any more. Raises `StoreUnavailable` for
        one that cannot be parsed."""
        for version in range(newest, max(-1, newest - count), -1):
            text = self._known.commit if self._known is not None and self._known.version == version else self.commit_text(version)
            if text is None:
                return
            with parsing(self.path, version):
                info = commit_info(text)
            yield version, info

    def log(self) -> TableLog:
        """The log of the table, up to its newest commit."""
        if self._log is None:
            self._log = TableLog(self.location, self.storage)
        else:
            self._log.refresh()
        return self._log

    def last_checkpoint(self) -> int:
        """The version of the newest checkpoint when this was first asked; -1 for none."""
        if self._last_checkpoint is None:
            self._last_checkpoint = self._hinted_checkpoint()  # -1 for one that is being written: a checkpoint more does no harm
        return self._last_checkpoint

    def write_checkpoint(self, table_id: str) -> None:
        """Writes a checkpoint of the newest version, unless the table was removed or replaced meanwhile, and deletes the part of the log that is
        older than the table keeps. Runs in a thread of its own, with a table of its own. Raises what `open` raises."""
        table = ArrowTable(self.path, self.location, self.storage, self.committing)
        opened = table.open()
        if opened is None or opened.table_id != table_id:
            return
        with store_errors(self.path):
            opened.delta_table.create_checkpoint()
            self._sync_checkpoint(opened.version)
            if is_local(self.location):  # Spark checks the hint against this hidden file, if it is there, and then lists the whole log
                (Path(self.location) / LOG / "._last_checkpoint.crc").unlink(missing_ok=True)
                self._remove_remains()
            if opened.shape.properties.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
                opened.delta_table.cleanup_metadata()

    def has_checkpoint_since(self, version: int) -> bool:
        """Whether a local log has a checkpoint of this version or a later one."""
        with store_errors(self.path):
            return is_local(self.location) and newest_listed(Path(self.location) / LOG, CHECKPOINT) >= version

    def is_at(self, opened: OpenedTable) -> bool:
        """Whether the path still has that version of that table, as far as its commit says. Raises `OSError`."""
        try:
            return opened.commit is None or self._log_file(f"{opened.version:020d}.json") == opened.commit
        except FileNotFoundError:
            return False

    def sync_commit(self, version: int) -> None:
        """Returns when a commit that was just made is on the medium, if that is a disk of this machine. `deltalake` leaves its own to the page
        cache."""
        if is_local(self.location):
            log = Path(self.location) / LOG
            sync(str(log / f"{version:020d}.json"))
            sync_directory(log)

    def _remove_remains(self) -> None:
        """Removes what commits left whose driver was killed."""
        for left in (Path(self.location) / LOG).iterdir():
            with suppress(OSError):  # a file that stays costs nothing
                if _REMAINS.fullmatch(left.name) and left.stat().st_mtime < time.time() - REMAINS_S:
                    left.unlink()

    def _sync_checkpoint(self, version: int) -> None:
        """Returns when a checkpoint is on the medium. The commits that it stands for may be deleted after that."""
        if is_local(self.location):
            log = Path(self.location) / LOG
            for path in (*log.glob(f"{version:020d}.checkpoint*"), log / HINT):
                sync(str(path))
            sync_directory(log)

    def _followed(self) -> OpenedTable | None:
        """The newest version, from the known one and the commits after it. None: open the table again."""
        known, seen = self._known, Sighting.now()
        if known is None or known.commit is None or self.commit_text(known.version) != known.commit:
            return None
        identifiers, version, commit = known.identifiers, known.version, known.commit
        while (found := self.commit_text(version + 1)) is not None:
            try:
                identifiers = identifiers.after(actions_of(found))
            except (ChangesRules, ValueError):  # opening it says what is wrong
                return None
            version, commit = version + 1, found
            if version - known.version == FOLLOWED_MAX:
                return None
        if is_local(self.location):
            with store_errors(self.path):
                if not is_end(Path(self.location) / LOG, version, known.seen, known.shape.properties):
                    return None
        if version > known.version and self.commit_text(known.version) != known.commit:  # the later ones may be of another table
            return None
        return replace(known, version=version, commit=commit, identifiers=identifiers, seen=seen)

    def _hinted_checkpoint(self) -> int:
        """The version of the newest checkpoint; -1 for none."""
        try:
            return hinted_version(self._log_file(HINT))
        except OSError:
            return -1

    def _load(self) -> OpenedTable | None:
        """The newest version, as `deltalake` reads it; None if there is no table."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        self._log = None
        for left in reversed(range(LOADS_MAX)):
            seen = Sighting.now()
            try:
                return self._opened(LoadedTable(self.location, self.storage), seen)
            except TableNotFoundError:
                return None
            except (DeltaError, OSError) as error:
                if _NOTHING in str(error):
                    return None
                if not left or not _GONE.search(str(error)):
                    raise self._refusal(error) from error
        raise AssertionError("the last attempt returns or raises")

    def _refusal(self, error: Exception) -> Exception:
        """What is raised for an error of `deltalake` that opens the table."""
        text = str(error)
        if isinstance(error, OSError):
            return StoreUnavailable(path=self.path, reason=sentence(error))
        if _HOLE.search(text):
            reason = "its log lacks commits; move away what is left of the table, and delete the checkpoint"
            return NotADeltaTable(path=self.path, reason=reason)
        if _UNKNOWN.search(text):
            return NotOpened(f"deltalake does not open the table: {sentence(error)}")
        if damaged := self._damaged_checkpoint():
            return NotADeltaTable(path=self.path, reason=damaged)
        return StoreUnavailable(path=self.path, reason=sentence(error))

    def _opened(self, loaded: LoadedTable, seen: Sighting) -> OpenedTable:
        table = loaded.first()
        found, metadata, text = table.protocol(), table.metadata(), str(table.schema().to_json())
        features = frozenset([*(found.reader_features or ()), *(found.writer_features or ())])
        version = int(table.version())
        commit = self.commit_text(version)
        return OpenedTable(
            version=version,
            table_id=str(metadata.id),
            protocol=Protocol(int(found.min_reader_version), int(found.min_writer_version), features),
            shape=TableShape(schema=json.loads(text), partition_by=tuple(metadata.partition_columns), properties=dict(metadata.configuration)),
            schema_text=text,
            location=self.location,
            commit=commit,
            loaded=loaded,
            path=self.path,
            seen=seen,
            checkpoint=checkpoint_files(Path(self.location) / LOG, version) if commit is None and is_local(self.location) else (),
        )

    def _damaged_checkpoint(self) -> str | None:
        files, root = file_system(self.location, self.storage)
        return damage(files, f"{root}/{LOG}")

    def _log_file(self, name: str) -> bytes:
        """By pyarrow: `deltalake`'s own file system holds Python's lock while it waits for the store."""
        if self._files is None:
            self._files = file_system(self.location, self.storage)
        files, root = self._files
        with files.open_input_file(f"{root}/{LOG}/{name}") as file:
            return bytes(file.read())
