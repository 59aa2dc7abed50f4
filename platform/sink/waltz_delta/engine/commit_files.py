"""Creates the next version of a table: one file of its log, only if it does not exist.

In a directory of this machine the commit is written to a file of its own and synced. Then the system links that file to the name of the version,
which fails if the name exists. So a commit costs what it holds, and no reader sees a part of it. In an object store `deltalake` sends a conditional
request. It builds the list of the table's files again for each commit, so there a commit costs more with each file of the table.

A free name does not prove that it is the next one: the log may have been cleaned up above the version that the driver knows (`log_end`), and another
table may be at the path. So the log is compared before the link, and again after it.

Source: Delta's PROTOCOL.md, "Delta Log Entries" and "Commit Provenance Information".
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final  # Any: `deltalake` has no types, and JSON values

from waltz_delta.base.damaged_checkpoint import CHECKPOINT, COMMIT
from waltz_delta.base.table_directory import LOG
from waltz_delta.engine.arrow_table import OpenedTable
from waltz_delta.engine.log_actions import Change
from waltz_delta.engine.log_end import checkpoint_files, commit_file, is_end, newest_listed
from waltz_delta.engine.stores import is_local

__all__ = ["ENGINE", "NotNext", "create_commit", "interrupts_kept", "no_hooks", "properties_of"]

ENGINE: Final = "waltz-delta"
"""In `commitInfo`: who wrote the commit."""


class NotNext(OSError):
    """Another commit, or another table, came first. Nothing of this one is in the table. Internal to this package."""


def create_commit(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> None:
    """Creates the version after `opened`. `versions`: of application identifiers. `info`: for `commitInfo`. If this raises an `OSError` but
    `NotNext`, or a `DeltaError`, the commit may be in the table nevertheless."""
    if is_local(opened.location):
        _create_file(Path(opened.location) / LOG, opened, _actions(opened, change, versions, info))
        return
    from deltalake import Schema

    with interrupts_kept():
        opened.loaded.at(opened.version).create_write_transaction(
            change.entries(),
            mode="append",
            schema=Schema.from_json(opened.schema_text),
            partition_by=list(opened.shape.partition_by),
            commit_properties=properties_of(versions, info),
            post_commithook_properties=no_hooks(),
        )


def _create_file(log: Path, opened: OpenedTable, actions: Iterable[Mapping[str, Any]]) -> None:
    # Letters beyond ASCII are not escaped: readers that use arrow-rs read the escapes \udbff\udfff as U+FFFFF.
    whole = b"".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for action in actions)
    version = opened.version + 1
    if not _is_base(log, opened) or not is_end(log, opened.version, opened.seen, opened.shape.properties):
        raise NotNext(errno.EEXIST, f"version {version} is not the next one", str(log))
    written, final = log / f".{version:020d}.{uuid.uuid4().hex}.tmp", commit_file(log, version)
    try:
        with written.open("xb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(written, final)
        except FileExistsError:
            if not _holds(final, whole):  # it is ours if a network file system repeats a request that succeeded
                raise NotNext(errno.EEXIST, f"another commit created version {version} first", str(log)) from None
        _compare_again(log, opened, final, whole)
    finally:
        written.unlink(missing_ok=True)


def _compare_again(log: Path, opened: OpenedTable, final: Path, whole: bytes) -> None:
    """Raises `NotNext` if the new commit followed another version than it was made for, and removes it; an `OSError` if that is not known."""
    version = opened.version + 1
    if _is_base(log, opened):
        if not is_end(log, version, opened.seen, opened.shape.properties):  # made from this commit, or before it and cleaned up
            raise OSError(errno.ESTALE, f"version {version} may lie before a checkpoint", str(log))
        return
    if newest_listed(log, COMMIT) == version and newest_listed(log, CHECKPOINT) < version and _holds(final, whole):
        final.unlink()  # it would be a hole in the log of another table
        raise NotNext(errno.ESTALE, f"version {opened.version} was replaced", str(log))
    raise OSError(errno.ESTALE, f"version {opened.version} was replaced, or cleaned up", str(log))


def _is_base(log: Path, opened: OpenedTable) -> bool:
    """Whether the log still has the commit that made this version, or the checkpoint by which alone it is known."""
    if opened.commit is None:
        return opened.checkpoint == checkpoint_files(log, opened.version) != ()
    try:
        return commit_file(log, opened.version).read_bytes() == opened.commit
    except FileNotFoundError:
        return False


def _holds(final: Path, whole: bytes) -> bool:
    """Whether the file is our commit: each has an id of its own."""
    try:
        return final.read_bytes() == whole
    except FileNotFoundError:
        return False


def _actions(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """`commitInfo` is the first one. An identifier with a date would expire."""
    operation = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": json.dumps(list(opened.shape.partition_by))}}
    yield {"commitInfo": {"timestamp": time.time_ns() // 1_000_000, **operation, "engineInfo": ENGINE, **info}}
    yield from change.actions()
    for name, version in sorted(versions.items()):
        yield {"txn": {"appId": name, "version": version}}


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """`deltalake` calls Python's `json` for each value of a commit's properties, and reports what that raises as a `ValueError` with its name."""
    try:
        yield
    except ValueError as error:
        if KeyboardInterrupt.__name__ in str(error):
            raise KeyboardInterrupt from error
        raise


def properties_of(versions: Mapping[str, int], info: Mapping[str, Any]) -> Any:
    """The same for `deltalake`."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(name, version) for name, version in sorted(versions.items())]
    return CommitProperties(custom_metadata=dict(info), max_commit_retries=0, app_transactions=transactions)


def no_hooks() -> Any:
    """Checkpoints have a thread of their own; a cleanup of the log within the commit would list all of it each time."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
