"""`make lake`: two real processes land one log in one table, and in half of the races one of them is killed or paused at a drawn gap. Each version of
the table must hold what the log says at the version's mark; the last one the whole log, each row found by its statistics.

    python -m verification.lake.races [--races 200] [--seed 1] [--minutes 120] [--s3 URL] [--emulators azure google]
                                      [--bug NAME]

`--races` are run in each mode (append, upsert) at each place: a local path without a lock, and S3. `--s3`: an empty place in a real bucket, with
credentials and region from the environment; otherwise a server of this repository, on loopback. `--emulators`: these stores too, of which
`emulators` fetches an emulator. After `--minutes` no race begins, and the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from deltalake.exceptions import TableNotFoundError

from verification.lake import merge_table
from verification.lake.driver import BUGS, FAULTS, GAPS, MODES, UNCONDITIONAL
from verification.lake.emulators import EMULATORS, emulated
from verification.lake.log_table import MARK
from verification.lake.place import Place
from waltz_delta.engine.stores import file_system

__all__ = ["Place", "local_place", "race", "s3_place"]

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 30
DONE_WITHIN_S = 240.0
"""Of one race, on a busy machine."""
PAUSED_S = 0.3
COLUMNS = {"append": "id", "upsert": "transaction_id"}
"""The column with the transaction's id."""


def race(place: Place, mode: str, seed: int, bug: str = "none", *, gap: str | None = None, fault: str = "none") -> list[str]:
    """What is wrong with the table afterwards; nothing if the engine is right. With a `gap`, the other driver begins when the faulty one died or
    stopped there, and a paused one goes on when the other one is done. Without, every second seed draws gap and fault, and both begin together."""
    random = Random(seed)
    apart, table = gap is not None, f"{place.location}/{mode}-{seed}-{gap}-{bug.replace(' ', '-')}"
    if gap is None:
        gap, fault = (random.choice(GAPS), random.choice(FAULTS)) if seed % 2 == 0 else ("none", "none")
    if mode == "upsert":
        merge_table.create(table, place.storage)
    arguments = [table, json.dumps(dict(place.storage)), mode, str(LENGTH)]
    with ExitStack() as processes:

        def start(*faulty: str) -> subprocess.Popen[bytes]:
            return processes.enter_context(_start([*arguments, str(random.randrange(1 << 30)), *(faulty or ("none", "none")), bug]))

        faulty, other = start(gap, fault), start()
        _release(faulty, *(() if apart else (other,)))
        wrong = _until_done(faulty, other, apart)
        if wrong == ["killed"]:
            again = start()
            _release(again, *((other,) if apart else ()))
            wrong = _until_done(again, other, False)
    found = list(wrong)
    try:
        found += [*_of_versions(table, place.storage, mode), *_of_the_last_version(table, place.storage, mode)]
    except TableNotFoundError:
        found.append("there is no table")
    return [f"{mode} seed={seed} gap={gap} fault={fault}: {each}" for each in found]


def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "verification.lake.driver", *arguments], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
    )


def _release(*drivers: subprocess.Popen[bytes]) -> None:
    """Lets the drivers begin at the same time, when all have started."""
    for driver in drivers:
        assert driver.stdout is not None
        driver.stdout.readline()
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write(b"go\n")
        driver.stdin.flush()


def _until_done(faulty: subprocess.Popen[bytes], other: subprocess.Popen[bytes], apart: bool) -> list[str]:
    """Returns when the faulty driver ended, and the other one too unless the faulty one was killed. `apart`: the other one has not begun."""
    deadline = time.monotonic() + DONE_WITHIN_S
    while True:
        found, status = os.waitpid(faulty.pid, os.WUNTRACED | os.WNOHANG)
        if found and os.WIFSTOPPED(status):
            if apart:
                _release(other)
                other.wait(DONE_WITHIN_S)
            else:
                time.sleep(PAUSED_S)  # the other driver goes on meanwhile
            os.kill(faulty.pid, signal.SIGCONT)
        elif found:
            faulty.returncode = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() > deadline:
            faulty.kill()
            other.kill()
            return [f"not done within {DONE_WITHIN_S:g} s"]
        time.sleep(0.02)
    if faulty.returncode == -signal.SIGKILL:
        return ["killed"]
    wrong = [_failure(faulty)] if faulty.returncode else []
    try:
        other.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        other.kill()
        return [*wrong, f"not done within {DONE_WITHIN_S:g} s"]
    return [*wrong, *([_failure(other)] if other.returncode else [])]


def _failure(driver: subprocess.Popen[bytes]) -> str:
    assert driver.stderr is not None
    return f"a driver failed: code={driver.returncode} {driver.stderr.read().decode(errors='replace').strip().splitlines()[-1:]}"


def _of_versions(location: str, storage: Mapping[str, str], mode: str) -> Iterator[str]:
    """Of each version: rows and mark are of one commit, and no mark goes back."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    options, before = dict(storage), -1
    files, root = file_system(location, storage)

    @cache
    def ids(name: str) -> list[int]:
        with files.open_input_file(f"{root}/{name}") as file:
            return list(pq.read_table(file, columns=[COLUMNS[mode]])[0].to_pylist())

    for version in range(DeltaTable(location, storage_options=options).version() + 1):
        table = DeltaTable(location, version=version, storage_options=options)
        found = table.transaction_version(MARK)
        mark = -1 if found is None else int(found)
        if mark < before:
            yield f"the mark goes back: version={version} from={before} to={mark}"
        held = sorted(chain.from_iterable(ids(uri.rpartition("/")[2]) for uri in table.file_uris()))
        if held != _rows_at(mark, mode):
            yield f"rows and mark disagree: version={version} mark={mark} rows={held}"
        before = mark


def _of_the_last_version(location: str, storage: Mapping[str, str], mode: str) -> Iterator[str]:
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    table = DeltaTable(location, storage_options=dict(storage))
    held, expected = _held(table, mode), _rows_at(LENGTH - 1, mode)
    for transaction_id in sorted({*held, *expected}):
        if (count := held.count(transaction_id)) != expected.count(transaction_id):
            yield f"{count} times: transaction_id={transaction_id}"
    rows, name = table.to_pyarrow_dataset(), COLUMNS[mode]
    if hidden := [at for at in sorted(set(held)) if rows.to_table(filter=pc.field(name) == at).num_rows == 0]:
        yield f"not found by its value: transaction_id={hidden[0]}"
    if (mark := table.transaction_version(MARK)) != LENGTH - 1:
        yield f"the mark is {mark}"


def _held(table: Any, mode: str) -> list[int]:
    return sorted(table.to_pyarrow_table()[COLUMNS[mode]].to_pylist())


def _rows_at(mark: int, mode: str) -> list[int]:
    return merge_table.rows_at(mark) if mode == "upsert" else list(range(mark + 1))


@contextmanager
def local_place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="waltz-lake-") as directory:
        yield Place(directory, {})


@contextmanager
def s3_place(*, conditional: bool = True) -> Iterator[Place]:
    """A server of its own process: `deltalake` holds Python's lock during some requests. `conditional`: whether it obeys `If-None-Match`."""
    command = [sys.executable, "-m", "verification.lake.s3_server", *([] if conditional else ["unconditional"])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        storage = json.loads(server.stdout.readline())
        try:
            yield Place("s3://lake/races", storage)
        finally:
            server.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Races of two drivers on one table.")
    parser.add_argument("--races", type=int, default=200, help="in each mode at each place")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120, help="after which no race begins")
    parser.add_argument("--s3", help="an empty place in a real bucket, as s3://bucket/folder")
    parser.add_argument("--emulators", nargs="*", choices=tuple(EMULATORS), default=(), help="stores whose emulators are fetched and used too")
    parser.add_argument("--bug", choices=BUGS, default="none")
    given = parser.parse_args()
    began, ended, found = time.monotonic(), 0, 0
    with local_place() as local, s3_place(conditional=given.bug != UNCONDITIONAL) as served, ExitStack() as others:
        remote = served if given.s3 is None else Place(given.s3.rstrip("/"), {})
        places = [remote] if given.bug == UNCONDITIONAL else [local, remote]
        places += [others.enter_context(emulated(name)) for name in given.emulators]
        planned = [(place, mode) for mode in BUGS.get(given.bug, MODES) for place in places]
        for seed in range(given.seed, given.seed + given.races):
            for place, mode in planned:
                if time.monotonic() - began > given.minutes * 60:
                    continue
                for wrong in race(place, mode, seed, given.bug):
                    found += 1
                    print(wrong, flush=True)
                ended += 1
    expected = given.races * len(planned)
    print(f"{ended} of {expected} races in {time.monotonic() - began:.0f} s, {found} differences")
    return 1 if found or ended < expected else 0


if __name__ == "__main__":
    sys.exit(main())
