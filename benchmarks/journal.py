"""The circular journal: records that many callers wait for, one caller alone, and loading; beside SQLite and the bare disk.

The cases alternate in short rounds and the median round counts, so that a disk that is slow for some seconds slows all of them. SQLite has the
fastest settings with the same guarantees: WAL, `synchronous=FULL`, one table with the record id as key, statements prepared. *Same calls*: each
caller's records are one transaction, as SQLite commits one writer at a time; the journal's callers are called back, or are threads that wait. *Same
groups*: SQLite gets in one transaction what the journal put into one sync, for which an application needs its own group commit.

`journal.callers_1`, `_16` and `_64` give both sides that number of callers: threads that each append one record and wait until it is on disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.measurement import Measurement
from benchmarks.setting import Workload
from waltz_log.errors import WaltzError
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import GroupCommitJournal, Journal, JournalSettings

__all__ = ["run"]

BODY: Final = bytes(range(100))
CALLERS: Final = 32
"""Number of threads, each of which waits for its own call."""
CALLS_IN_FLIGHT: Final = 64
"""Outstanding calls of the one thread that uses callbacks: the next group fills while the last one is synced."""
RECORDS_PER_CALL: Final = 32
EQUAL_CALLERS: Final = (1, 16, 64)
"""Numbers of threads on both sides, with one record in each call."""
ROUNDS: Final = 7
RECORD_BYTES: Final = 22 + len(BODY)
SETTINGS: Final = JournalSettings(files_pool=30, files_max=200)

Records = Sequence[tuple[int, int, bytes]]


class _Ids:
    """Blocks of new record ids, for all callers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def records(self, count: int) -> Records:
        with self._lock:
            first = self._next
            self._next += count
        return [(record_id, 1, BODY) for record_id in range(first, first + count)]


def run(directory: Path, workload: Workload, conditions: Mapping[str, Any]) -> list[Measurement]:
    conditions = {key: value for key, value in conditions.items() if key != "replicas"} | {"bytes": len(BODY)}
    place = directory / "journal"
    place.mkdir(parents=True)
    try:
        return [
            *_group_commit(place, workload.pipelined // 25, conditions),
            *_equal_callers(place, workload.single, conditions),
            *_single(place, workload.single // 8, conditions),
            *_load(place, workload.pipelined, conditions),
        ]
    finally:
        shutil.rmtree(place)


def _in_turns(cases: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The median result of each case, over rounds of all cases."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, case in cases.items():
            found[name].append(case())
    return {name: median(values) for name, values in found.items()}


# ---- many callers ------------------------------------------------------------------------------------------------------------------------------


def _rate(append: Callable[[Records], None], ids: _Ids, callers: int, calls: int, per_call: int) -> float:
    """Records per second if this number of callers append, each waiting for each of its calls."""
    blocks = [[ids.records(per_call) for _ in range(calls)] for _ in range(callers)]

    def work(own: list[Records]) -> None:
        for block in own:
            append(block)

    threads = [threading.Thread(target=work, args=(own,)) for own in blocks]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return callers * calls * per_call / (time.perf_counter() - started)


def _rate_called_back(journal: GroupCommitJournal, ids: _Ids, in_flight: int, calls: int, per_call: int) -> float:
    """Records per second if one thread appends with callbacks and has this number of outstanding calls."""
    blocks = [ids.records(per_call) for _ in range(calls)]
    room = threading.Semaphore(in_flight)
    failed: list[WaltzError] = []

    def done(error: WaltzError | None) -> None:
        if error is not None:
            failed.append(error)
        room.release()

    started = time.perf_counter()
    for block in blocks:
        room.acquire()
        journal.append_all(block, sync=False, on_done=done)
    for _ in range(in_flight):
        room.acquire()
    took_s = time.perf_counter() - started
    if failed:
        raise failed[0]
    return calls * per_call / took_s


class _Sqlite:
    """One connection behind a lock: SQLite has one writer."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        self._connection.execute("create table record(id integer primary key, type integer, body blob)")

    def append(self, records: Records) -> None:
        with self._lock:
            self._connection.execute("begin")
            self._connection.executemany("insert into record values (?, ?, ?)", records)
            self._connection.execute("commit")

    def read_again(self) -> int:
        """How many records a new connection reads, all of them into memory."""
        connection = sqlite3.connect(self._path)
        try:
            return len(connection.execute("select id, type, body from record order by id").fetchall())
        finally:
            connection.close()

    def close(self) -> None:
        self._connection.close()


def _group_commit(place: Path, records_per_round: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    ids = _Ids()
    calls = max(2, records_per_round // (CALLERS * RECORDS_PER_CALL))
    calls_alone = max(5, records_per_round // RECORDS_PER_CALL // 10)
    journal = GroupCommitJournal(Journal.open(FileSystemDisk(place / "many"), SETTINGS))
    sqlite = _Sqlite(place / "sqlite")
    groups: list[float] = []

    def journal_round() -> float:
        before = journal.statistics()
        rate = _rate_called_back(journal, ids, CALLS_IN_FLIGHT, CALLERS * calls, RECORDS_PER_CALL)
        after = journal.statistics()
        groups.append((after.appended_bytes - before.appended_bytes) / RECORD_BYTES / (after.syncs - before.syncs))
        return rate

    def sqlite_groups_round() -> float:
        size = round(groups[-1])
        return _rate(sqlite.append, ids, 1, max(2, calls_alone * RECORDS_PER_CALL // size), size)

    found = _in_turns(
        {
            "journal": journal_round,
            "journal, threads": lambda: _rate(journal.append_all, ids, CALLERS, calls, RECORDS_PER_CALL),
            "sqlite": lambda: _rate(sqlite.append, ids, CALLERS, max(2, calls // 4), RECORDS_PER_CALL),
            "sqlite, same groups": sqlite_groups_round,
        }
    )
    journal.close()
    sqlite.close()
    own = {
        **conditions,
        "calls_in_flight": CALLS_IN_FLIGHT,
        "records_per_call": RECORDS_PER_CALL,
        "records_per_sync": round(median(groups)),
        "check": "hash",
        "threads": round(found["journal, threads"]),
        "ratio_threads": round(found["journal, threads"] / found["sqlite"], 2),
        "ratio_same_groups": round(found["journal"] / found["sqlite, same groups"], 2),
    }
    measured = Measurement("journal.group_commit", found["journal"], "records/s", own)
    return [measured.compared_with(found["sqlite"], f"SQLite (WAL, synchronous=FULL), same calls, {found['sqlite']:,.0f} records/s")]


def _equal_callers(place: Path, calls: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    """`calls`: of all callers together, in each round."""
    ids = _Ids()
    journal = GroupCommitJournal(Journal.open(FileSystemDisk(place / "equal"), SETTINGS))
    sqlite = _Sqlite(place / "sqlite-equal")
    sides: Mapping[str, Callable[[Records], None]] = {"journal": journal.append_all, "sqlite": sqlite.append}
    rounds: dict[int, list[tuple[float, float]]] = {callers: [] for callers in EQUAL_CALLERS}
    for number in range(ROUNDS + 1):
        for callers, found in rounds.items():
            order = list(sides) if number % 2 else list(sides)[::-1]
            rates = {side: _rate(sides[side], ids, callers, max(2, calls // callers), 1) for side in order}
            if number:  # the first warms up
                found.append((rates["journal"], rates["sqlite"]))
    journal.close()
    sqlite.close()
    measured = []
    for callers, found in rounds.items():
        ratios = [mine / theirs for mine, theirs in found]
        own = {**conditions, "callers": callers, "records_per_call": 1, "rounds": ROUNDS, "ratios": f"{min(ratios):.2f} to {max(ratios):.2f}"}
        other = median(theirs for _, theirs in found)
        what = f"SQLite (WAL, synchronous=FULL), as many threads, {other:,.0f} records/s"
        rate = median(mine for mine, _ in found)
        measured.append(Measurement(f"journal.callers_{callers}", rate, "records/s", own, median(ratios), what))
    return measured


# ---- one caller --------------------------------------------------------------------------------------------------------------------------------


def _single(place: Path, count: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    """One caller that waits for each record, compared with writing the same bytes into a file prepared in the same way and syncing them."""
    ids = _Ids()
    journal = GroupCommitJournal(Journal.open(FileSystemDisk(place / "one"), SETTINGS))
    bare = _BareFile(place / "bare")

    def journal_round() -> float:
        records = ids.records(count)
        started = time.perf_counter()
        for record_id, user_type, body in records:
            journal.add(record_id, user_type, body)
        return (time.perf_counter() - started) / count * 1000

    found = _in_turns({"journal": journal_round, "bare": lambda: bare.round_ms(count)})
    journal.close()
    bare.close()
    measured = Measurement("journal.single", found["journal"], "ms", {**conditions, "records": count * ROUNDS, "callers": 1, "check": "hash"})
    return [measured.compared_with(found["bare"], f"preallocated write+fdatasync of {RECORD_BYTES} B, {found['bare']:.3g} ms")]


class _BareFile:
    """A file of the journal's size, filled and synced, as the journal makes its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.posix_fallocate(self._file, 0, SETTINGS.file_bytes)
        os.pwrite(self._file, b"J" * SETTINGS.file_bytes, 0)
        os.fdatasync(self._file)
        self._position = 4

    def round_ms(self, count: int) -> float:
        record = bytes(RECORD_BYTES)
        started = time.perf_counter()
        for _ in range(count):
            if self._position + RECORD_BYTES > SETTINGS.file_bytes:
                self._position = 4
            os.pwrite(self._file, record, self._position)
            os.fdatasync(self._file)
            self._position += RECORD_BYTES
        return (time.perf_counter() - started) / count * 1000

    def close(self) -> None:
        os.close(self._file)


# ---- loading -----------------------------------------------------------------------------------------------------------------------------------


def _load(place: Path, count: int, conditions: Mapping[str, Any]) -> list[Measurement]:
    """Opening a journal, which checks every record, compared with reading the same records from SQLite, which checks none."""
    disk = FileSystemDisk(place / "loaded")
    ids = _Ids()
    sqlite = _Sqlite(place / "sqlite-loaded")
    with Journal.open(disk, SETTINGS) as journal:
        for _ in range(max(1, count // 1000)):
            block = ids.records(min(count, 1000))
            journal.append_all(block)
            sqlite.append(block)
        records = len(journal)
    sqlite.close()

    walked: list[float] = []

    def journal_round() -> float:
        started = time.perf_counter()
        with Journal.open(disk, SETTINGS) as journal:
            took_s = time.perf_counter() - started
            assert sum(1 for _ in journal.loaded.records) == records
            walked.append(records / (time.perf_counter() - started))
        return records / took_s

    def sqlite_round() -> float:
        started = time.perf_counter()
        assert sqlite.read_again() == records
        return records / (time.perf_counter() - started)

    found = _in_turns({"journal": journal_round, "sqlite": sqlite_round})
    own = {**conditions, "records": records, "check": "hash", "with_a_walk_over_all": round(median(walked))}
    measured = Measurement("journal.load", found["journal"], "records/s", own)
    return [measured.compared_with(found["sqlite"], f"SQLite, the same rows read, {found['sqlite']:,.0f} records/s")]
