"""Makes the disk full at every single write of an append, a merge, a history and a compaction, on a real file system. Checks that the table is
unchanged and can be read, that the error is one sentence, and that the same work is done exactly once when there is space again.

    unshare -m python -m verification.lake.full_disk DIRECTORY    mounts a small tmpfs there, which vanishes with the process

The disk has a small number of free pages or inodes. With each additional one the work fails one write later, until it succeeds. If a data file was
not finished, nothing of the attempt is left. If the commit failed, its data files stay, since its outcome is unknown in general, and VACUUM removes
them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from verification.lake import history_table, log_table, merge_table
from verification.lake.log_table import MARK, held_rows
from waltz_delta.engine import arrow_transaction
from waltz_delta.engine.compaction import compact
from waltz_delta.engine.vacuum import vacuum
from waltz_delta.errors import StoreUnavailable

__all__ = ["WORK", "FullFound", "Work", "fill_at_every_write"]

PAGE_BYTES: Final = 4096
MOUNTED_BYTES: Final = 4 << 20
INODES: Final = 120
FULL: Final = "No space left on device"

FIRST, END = 6, 3000
"""The table holds the transactions below `FIRST`; the work lands those below `END`, whose file needs several pages."""


class FullFound(AssertionError):
    """A row is missing or there twice, the table cannot be read, or the error says something else."""


@dataclass(frozen=True)
class Work:
    """`prepare`: makes the table. `run`: what meets the full disk; it does nothing if the table shows that it was done. `rows`: of the table, in
    order. `before`, `after`: those rows."""

    prepare: Callable[[str], object]
    run: Callable[[str], object]
    rows: Callable[[pa.Table], object]
    before: object
    after: object


def _unless_done(path: str, land: Callable[[int], object]) -> None:
    """A driver that starts again: the mark of the table says where it goes on."""
    mark = DeltaTable(path).transaction_version(MARK)
    first = -1 if mark is None else int(mark)
    if first < END - 1:
        land(first + 1)


def _append(path: str) -> None:
    table = log_table.opened(path)
    _unless_done(path, lambda first: log_table.append(table, first, END))


def _upsert(path: str) -> None:
    begun = log_table.begin(log_table.opened(path))
    _unless_done(path, lambda first: merge_table.merge(begun, merge_table.changes(first, END), END - 1))


def _history(path: str) -> None:
    begun = log_table.begin(log_table.opened(path))
    _unless_done(path, lambda first: history_table.merge(begun, first, END))


def _small_files(path: str) -> None:
    table = log_table.opened(path)
    for first in range(0, END, END // 4):
        log_table.append(table, first, first + END // 4)


def _two_merges(path: str) -> None:
    merge_table.create(path, {})
    merge_table.merge(log_table.begin(log_table.opened(path)), merge_table.changes(0, FIRST), FIRST - 1)


def _begun_history(path: str) -> None:
    history_table.create(path, {})
    history_table.merge(log_table.begin(log_table.opened(path)), 0, FIRST)


def _ids(name: str) -> Callable[[pa.Table], object]:
    return lambda table: sorted(table[name].to_pylist())


WORK: Final[Mapping[str, Work]] = {
    "append": Work(lambda path: log_table.append(log_table.opened(path), 0, FIRST), _append, _ids("id"), list(range(FIRST)), list(range(END))),
    "upsert": Work(_two_merges, _upsert, _ids("transaction_id"), merge_table.rows_at(FIRST - 1), merge_table.rows_at(END - 1)),
    "history": Work(
        _begun_history,
        _history,
        history_table.rows_of,
        history_table.versions_at(FIRST - 1),
        history_table.versions_at(END - 1),
    ),
    "compaction": Work(_small_files, lambda path: compact(log_table.opened(path), 1 << 20), _ids("id"), list(range(END)), list(range(END))),
}


def unnamed(path: str) -> list[str]:
    """Data files that no version of the table names, and what else an attempt left."""
    log = Path(path) / "_delta_log"
    named = {uri.rpartition("/")[2] for version in range(DeltaTable(path).version() + 1) for uri in DeltaTable(path, version=version).file_uris()}
    strange = [each.name for each in log.iterdir() if not each.name.endswith((".json", ".parquet", "_last_checkpoint"))]
    return sorted([each.name for each in Path(path).glob("*.parquet") if each.name not in named] + strange)


def _try(path: str, work: Work, limited: Callable[[], None], freed: Callable[[], None]) -> str | None:
    """The work against the limit. Returns what could not be written, `file` or `commit`; None if the work fitted."""
    shutil.rmtree(path, ignore_errors=True)
    work.prepare(path)
    version, failed = DeltaTable(path).version(), None
    limited()
    try:
        work.run(path)
    except StoreUnavailable as error:
        failed = str(error)
        if FULL not in failed or "\n" in failed:
            raise FullFound(f"not a sentence that says why: {failed!r}") from error
    _compare("while the disk is full", path, work, work.after if failed is None else work.before)
    left = unnamed(path)
    if failed is not None and DeltaTable(path).version() != version:
        raise FullFound(f"a commit was made, and reported as failed: {failed}")
    if len(left) > 1 or (left and not left[0].endswith(".parquet")):
        raise FullFound(f"more is left than the files of one attempt: {left}")
    freed()
    work.run(path)
    _compare("with space again", path, work, work.after)
    if DeltaTable(path).version() != version + 1:
        raise FullFound(f"committed {DeltaTable(path).version() - version} times")
    vacuum(log_table.opened(path), 0.0, (), dry_run=False)
    if set(left) & set(unnamed(path)):
        raise FullFound(f"VACUUM leaves {left}")
    _compare("after VACUUM", path, work, work.after)
    return None if failed is None else "commit" if left else "file"


def _compare(when: str, path: str, work: Work, wanted: object) -> None:
    found = work.rows(held_rows(path, {}))
    if found != wanted:
        raise FullFound(f"other rows {when}: {found} instead of {wanted}"[:500])


def fill_at_every_write(directory: Path, kind: str) -> dict[str, list[str]]:
    """What could not be written, for pages and for inodes, ordered by the space that was left."""
    found: dict[str, list[str]] = {"pages": [], "inodes": []}
    filler, fillers = directory / "filler", directory / "fillers"

    def pages_left(pages: int) -> None:
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o644)
        os.posix_fallocate(descriptor, 0, os.statvfs(directory).f_bavail * PAGE_BYTES - pages * PAGE_BYTES)
        os.close(descriptor)

    def inodes_left(inodes: int) -> None:
        fillers.mkdir()
        while os.statvfs(directory).f_favail > inodes:
            (fillers / str(os.statvfs(directory).f_favail)).touch()

    for what, left, free in (("pages", pages_left, filler.unlink), ("inodes", inodes_left, lambda: shutil.rmtree(fillers))):
        amount = 0
        while met := _try(str(directory / kind), WORK[kind], lambda left=left, amount=amount: left(amount), free):  # type: ignore[misc]
            found[what].append(met)
            amount += 1
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fills the disk at every write of a table.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--work", choices=WORK, action="append", help="what meets the full disk; may be repeated (everything)")
    chosen = parser.parse_args(arguments)
    chosen.directory.mkdir(parents=True, exist_ok=True)
    options = f"size={MOUNTED_BYTES},nr_inodes={INODES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(chosen.directory)], check=True)
    arrow_transaction.PAUSE_S = 0.0  # type: ignore[misc]
    for kind in chosen.work or WORK:
        for what, met in fill_at_every_write(chosen.directory, kind).items():
            print(f"{kind} {what}: {' '.join(met)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
