"""A driver of `verification.lake.races`: lands a log of so many transactions in one table, as a query does, in batches of drawn sizes.

    python -m verification.lake.driver LOCATION STORAGE MODE LENGTH SEED GAP FAULT BUG

It prints `ready` and waits for a line. At its second pass through the gap it kills or stops itself. `BUG`: a planted bug, `none` for the product as
it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from verification.lake import merge_table
from verification.lake.log_table import MARK, begin, commit, files
from verification.lake.log_table import opened as opened_table
from waltz_delta.engine import commit_files
from waltz_delta.engine.arrow_table import ArrowTable, OpenedTable
from waltz_delta.engine.arrow_transaction import ArrowTransaction, Overtaken
from waltz_delta.engine.file_statistics import FileStatistics
from waltz_delta.engine.log_actions import AddFile, Change
from waltz_delta.engine.stores import file_system

MODES = ("append", "upsert")
GAPS = ("read", "written", "put", "landed")
"""After the marks were read; after the files were written, or the rows of a MERGE reduced; before the request that creates the version; after it."""
FAULTS = ("kill", "pause")
UNCONDITIONAL = "unconditional put"
BUGS = {
    "mark not compared": MODES,
    "marks in a second commit": MODES,
    UNCONDITIONAL: MODES,
    "both attempts of a task": ("append",),
    "wrong statistics": ("append",),
}
"""Each with the modes that can have it. The unconditional put is one of the server."""
BATCH_MAX = 7


class Gap:
    """Where this driver dies or stops, once."""

    def __init__(self, gap: str, fault: str) -> None:
        self._gap, self._fault, self._passed = gap, fault, 0

    def reached(self, name: str) -> None:
        if name != self._gap:
            return
        self._passed += 1
        if self._passed == 2:
            os.kill(os.getpid(), signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)


def land(table: ArrowTable, mode: str, length: int, seed: int, gap: Gap) -> None:
    random = Random(seed)
    while True:
        transaction = begin(table)
        mark = transaction.version(MARK)
        first = 0 if mark is None else mark + 1
        if first >= length:
            return
        gap.reached("read")
        end = min(length, first + random.randint(1, BATCH_MAX))
        staged = files(table, first, end) if mode == "append" else merge_table.changes(first, end)
        gap.reached("written")
        with suppress(Overtaken):
            (commit if mode == "append" else merge_table.merge)(transaction, staged, end - 1)


def plant(bug: str, location: str, storage: Mapping[str, str]) -> None:
    """Makes this process one with the bug."""
    put, add = commit_files.create_commit, FileStatistics.add
    if bug == "mark not compared":
        version = ArrowTransaction.version

        def uncompared(self: ArrowTransaction, app_id: str) -> int | None:
            found = version(self, app_id)
            self._read.clear()
            return found

        ArrowTransaction.version = uncompared  # type: ignore[method-assign]
    elif bug == "marks in a second commit":

        def twice(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> None:
            put(opened, change, {}, info)
            newest = opened_table(location, storage).open()
            assert newest is not None
            put(newest, Change(), versions, info)

        commit_files.create_commit = twice
    elif bug == "both attempts of a task":

        def doubled(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> None:
            put(opened, replace(change, added=[*change.added, *map(_copied, change.added)]), versions, info)

        def _copied(file: AddFile) -> AddFile:
            files, root = file_system(location, storage)
            files.copy_file(f"{root}/{file.path}", f"{root}/again-{file.path}")
            return replace(file, path=f"again-{file.path}")

        commit_files.create_commit = doubled
    elif bug == "wrong statistics":

        def narrow(self: FileStatistics, rows: Any) -> None:
            add(self, rows)
            self._bounds = {path: (low, high - 1) for path, (low, high) in self._bounds.items()}

        FileStatistics.add = narrow  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    location, options, mode, length, seed, gap, fault, bug = arguments
    storage = json.loads(options)
    at = Gap(gap, fault)
    put = commit_files.create_commit

    def watched(opened: OpenedTable, change: Change, versions: Mapping[str, int], info: Mapping[str, Any]) -> None:
        at.reached("put")
        put(opened, change, versions, info)
        at.reached("landed")

    commit_files.create_commit = watched
    plant(bug, location, storage)
    print("ready", flush=True)
    sys.stdin.readline()
    land(opened_table(location, storage), mode, int(length), int(seed), at)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # of processes that merged, `deltalake` 1.6.6 ends one in 30 with SIGSEGV while it exits, after the last frame of Python
