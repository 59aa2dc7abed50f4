"""The lock of a table's directory: between processes, threads and nested calls, and when the directory or its holder is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from tests.unit.sink.base.lock_holders import another_process, is_free
from waltz_delta.base import local_lock
from waltz_delta.base.job_outcome import Failure
from waltz_delta.base.local_lock import WARNED_AFTER_S, holder_of, locked, require_lockable
from waltz_delta.errors import NotADeltaTable, TableLocked, UnsafeTable
from waltz_log.exit_codes import UNAVAILABLE


class FakeTime:
    def __init__(self, at_poll: Callable[[int], None] = lambda polls: None) -> None:
        self.now_s, self.polls, self._at_poll = 0.0, 0, at_poll

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += 1.0
        self.polls += 1
        self._at_poll(self.polls)


def test_another_process_excludes_this_one_until_it_is_done(tmp_path: Path) -> None:
    with another_process(tmp_path) as holder:
        passed = FakeTime()
        with (
            structlog.testing.capture_logs() as logs,
            pytest.raises(TableLocked) as raised,
            locked(str(tmp_path), within_s=100, clock=passed.clock, sleep=passed.sleep),
        ):
            pytest.fail("locked by both")
        assert raised.value.path == str(tmp_path)
        assert raised.value.waited_s == 100
        assert [entry["waited_s"] for entry in logs] == [WARNED_AFTER_S], "one warning"
        if raised.value.holder is not None:  # None where /proc/locks names another device than stat, as on overlayfs
            assert raised.value.holder == logs[0]["holder"] == holder.pid
        holder.communicate("")
        with locked(str(tmp_path), within_s=0):
            assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_a_killed_holder_is_followed_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with another_process(table) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with locked(str(table), within_s=0):
            assert list(table.iterdir()) == []


def test_a_thread_locks_again_what_it_has_locked_by_any_path(tmp_path: Path) -> None:
    table, link = tmp_path / "table", tmp_path / "link"
    table.mkdir()
    link.symlink_to(table)
    with locked(str(table)):
        with locked(str(link), within_s=0), locked(str(table), within_s=0):
            assert not is_free(table)
        assert not is_free(table), "the end of an inner use does not unlock"
    assert is_free(table)


def test_an_error_unlocks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="within"), locked(str(tmp_path)):
        raise ValueError("within")
    assert is_free(tmp_path)


def test_threads_exclude_each_other_and_all_get_their_turn(tmp_path: Path) -> None:
    within, most, turns = 0, 0, 0
    start = threading.Barrier(8)

    def work() -> None:
        nonlocal within, most, turns
        start.wait()
        for _ in range(5):
            with locked(str(tmp_path), sleep=lambda seconds: time.sleep(0.0005)), locked(str(tmp_path)):
                within += 1
                most = max(most, within)
                time.sleep(0.0005)
                within -= 1
                turns += 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 40)
    assert not local_lock._descriptors


def test_a_table_that_is_removed_and_created_again_meanwhile_has_another_lock(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with another_process(table):

        def replace(polls: int) -> None:
            table.rename(tmp_path / "removed")
            table.mkdir()

        passed = FakeTime(replace)
        with locked(str(table), within_s=100, clock=passed.clock, sleep=passed.sleep):
            assert passed.polls == 1
            assert not is_free(table)


def test_of_a_directory_that_is_replaced_just_before_it_is_locked_the_new_one_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table"
    replaced: list[bool] = []
    table.mkdir()
    flock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if not replaced:
            replaced.append(True)
            table.rename(tmp_path / "removed")
            table.mkdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(str(table), within_s=5):
        assert not is_free(table)
        assert is_free(tmp_path / "removed")


def test_a_directory_that_is_another_one_each_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system whose numbers of files change."""
    monkeypatch.setattr(local_lock, "_inode_at", lambda directory: (0, 0))
    with pytest.raises(TableLocked), locked(str(tmp_path), within_s=0.05):
        pass
    assert is_free(tmp_path)


def test_a_link_to_nothing_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "table").symlink_to(tmp_path / "missing")
    with pytest.raises(NotADeltaTable, match="symbolic link"), locked(str(tmp_path / "table"), within_s=0):
        pass


def test_a_child_that_leaves_the_lock_closes_nothing_of_its_own(tmp_path: Path) -> None:
    program = """
import os, sys
from waltz_delta.base.local_lock import locked
with locked(sys.argv[1], within_s=0):
    child = os.fork()
    if not child:
        opened = os.open(sys.argv[1], os.O_RDONLY)  # gets the number that the lock had
if not child:
    os.fstat(opened)
    sys.exit()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False).returncode == 0


def test_a_directory_that_is_removed_while_it_is_locked_unlocks_without_an_error(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with locked(str(table)):
        table.rmdir()
        with locked(str(table), within_s=0):
            assert not is_free(table), "it was created again, and has another lock"
    assert is_free(table)


def test_a_file_in_the_place_of_the_table_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(NotADeltaTable), locked(str(tmp_path / place)):
            pytest.fail("locked a file")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UnsafeTable, match="NFS") as raised, locked(str(tmp_path)):
        pytest.fail("locked")
    assert "spark.waltz.singleDriver=true" in str(raised.value)
    with pytest.raises(UnsafeTable):
        require_lockable(str(tmp_path / "not" / "there"))
    assert list(tmp_path.iterdir()) == []
    assert not local_lock._descriptors


def test_a_table_that_another_process_commits_to_is_lockable(tmp_path: Path) -> None:
    with another_process(tmp_path):
        require_lockable(str(tmp_path))


def test_a_started_process_does_not_hold_the_lock(tmp_path: Path) -> None:
    with locked(str(tmp_path)):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert is_free(tmp_path)
    finally:
        child.kill()
        child.wait()


def test_a_forked_child_neither_holds_nor_releases_the_lock(tmp_path: Path) -> None:
    """As if the parent were killed: the child alone would keep the lock if it kept the descriptor."""
    received, sent = os.pipe()
    with locked(str(tmp_path)):
        child = os.fork()
        if child == 0:
            os.write(sent, b"free" if is_free(tmp_path) else b"held")
            os.write(sent, b" %d" % (len(local_lock._descriptors) + len(local_lock._held.inodes)))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(received, 100) == b"held 0"
        assert not is_free(tmp_path)
    os.close(received)
    os.close(sent)


def test_the_holder_is_found_in_the_kernels_list() -> None:
    listed = """1: POSIX  ADVISORY  WRITE 100 08:01:77 0 EOF
2: FLOCK  ADVISORY  WRITE 4711 08:01:77 0 EOF
2: -> FLOCK  ADVISORY  WRITE 4712 08:01:77 0 EOF
3: FLOCK  ADVISORY  WRITE 0 08:01:78 0 EOF
"""
    device = os.makedev(8, 1)
    assert holder_of(device, 77, listed) == 4711
    assert holder_of(device, 78, listed) is None, "of another container"
    assert holder_of(os.makedev(8, 2), 77, listed) is None
    assert holder_of(device, 77, "") is None


def test_the_error_survives_pickling_and_a_job_starts_again_for_it() -> None:
    error = TableLocked(path="/t", waited_s=1800.0, holder=4711)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "holder=4711" in str(error)
    assert not Failure.of(error).final
    assert Failure.of(error).code == UNAVAILABLE
