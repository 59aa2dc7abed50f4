"""Creates the next version of a table: one file of its log, only if it does not exist.

In a directory of this machine that is a file with a name of its own, written to the medium and then linked to the name of the version, which the
system does once. So a commit costs what it holds, and no reader sees a part of it. In an object store `deltalake` sends a conditional request. It
builds the list of the table's files again for each commit, so there a commit costs more with each file that the table has.

Source: Delta's PROTOCOL.md, "Delta Log Entries" and "Commit Provenance Information".
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final  # Any: `deltalake` has no types, and JSON values

from waltz_delta.base.table_directory import LOG
from waltz_delta.engine.arrow_table import OpenedTable
from waltz_delta.engine.log_actions import Change
from waltz_delta.engine.stores import is_local

__all__ = ["ENGINE", "create_commit", "interrupts_kept", "no_hooks", "properties_of"]

ENGINE: Final = "waltz-delta"
"""In `commitInfo`: who wrote the commit."""


def create_commit(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> None:
    """Creates the version after `opened`. `versions`: of application identifiers. `info`: for `commitInfo`. An `OSError` or `DeltaError` does not say
    whether the version exists now, nor who made it."""
    if is_local(opened.location):
        _create_file(Path(opened.location) / LOG, opened.version + 1, _actions(opened, change, versions, info))
        return
    from deltalake import Schema

    with interrupts_kept():
        opened.handle.create_write_transaction(
            change.entries(),
            mode="append",
            schema=Schema.from_json(opened.schema_text),
            partition_by=list(opened.shape.partition_by),
            commit_properties=properties_of(versions, info),
            post_commithook_properties=no_hooks(),
        )


def _create_file(log: Path, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    # Letters as they are: readers that use arrow-rs read some pairs of escapes as another letter (\udbff\udfff as U+FFFFF).
    whole = b"".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for action in actions)
    written = log / f".{version:020d}.{uuid.uuid4().hex}.tmp"
    try:
        with written.open("xb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        os.link(written, log / f"{version:020d}.json")
    finally:
        written.unlink(missing_ok=True)


def _actions(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """`commitInfo` is the first one. The identifiers have no date: with one, they would expire."""
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
    """For `deltalake`. The identifiers have no date: with one, they would expire."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(name, version) for name, version in sorted(versions.items())]
    return CommitProperties(custom_metadata=dict(info), max_commit_retries=0, app_transactions=transactions)


def no_hooks() -> Any:
    """Checkpoints have a thread of their own; a cleanup of the log within the commit would list all of it each time."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
