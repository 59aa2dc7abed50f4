"""`waltz outbox`: beside a running service it only reads; on a stopped one it decides about dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from waltz_log.cli.main import run
from waltz_log.client import Intent
from waltz_log.exit_codes import FAILED, MACHINE, OK, USAGE
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.outbox.journal_writer import apply
from waltz_log.outbox.ledger import Kind, Ledger
from waltz_log.outbox.offline import OutboxDirectory
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.store import open_journal, write_statistics


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two intents owed, two dead letters."""
    where = tmp_path / "outbox"
    journal, ledger, _ = open_journal(FileSystemDisk(where), OutboxSettings(), 0, bytes)
    intents = [
        Intent.data(0, b"owed"),
        Intent.call("pay", {"n": 1}, 1, key="k"),
        Intent.data(1, b"\xff\xfe", header=7),
        Intent.call("pay", {"n": 2}, 1),
    ]
    entries, change = ledger.submit(intents, 1000)
    apply(journal, change)
    for entry in entries:
        ledger.admit(entry)
    for entry in entries[2:]:
        apply(journal, ledger.give_up(entry, "given up by a test", 2000)[0])
    journal.sync()
    journal.close()
    return where


def reported(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_status_of_a_stopped_outbox_reports_what_lies_there(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["outbox", "status", str(directory), "--output", "json"]) == FAILED
    found = reported(capsys)
    assert (found["running"], found["depth"], found["dead"], found["in_doubt"], found["client_id"]) == (False, 2, 2, 0, None)
    assert run(["outbox", "status", str(directory)]) == FAILED
    assert "depth" in capsys.readouterr().out


def test_beside_a_running_service_status_reads_its_file_and_the_others_are_refused(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from waltz_log.client import OutboxStatistics

    disk = FileSystemDisk(directory)
    with OutboxDirectory(disk, 0):
        assert run(["outbox", "status", str(directory), "-o", "json"]) == USAGE
        assert "statistics" in capsys.readouterr().err
        snapshot = OutboxStatistics(5, 77, 3, 4, True, 9, 100, 1.5, 2, 0, 20, 11, 30.0, "")
        write_statistics(disk, snapshot)
        assert run(["outbox", "status", str(directory), "-o", "json"]) == OK
        found = reported(capsys)
        assert (found["running"], found["process_id"], found["depth"], found["forward_rate"]) == (True, 77, 9, 30.0)
        for command in (["list", str(directory)], ["retry", str(directory), "--all"], ["drop", str(directory), "--all"]):
            assert run(["outbox", *command]) == USAGE
            assert "another process" in capsys.readouterr().err


def test_list_shows_dead_letters_or_what_is_owed(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["outbox", "list", str(directory), "-o", "json"]) == OK
    first, second = reported(capsys)
    assert (first["data_hex"], first["header"], first["reason"]) == ("fffe", 7, "given up by a test")
    assert (second["handler"], second["arguments"]) == ("pay", {"n": 2})
    assert run(["outbox", "list", str(directory), "--pending", "-o", "json"]) == OK
    assert [row.get("data") or row["handler"] for row in reported(capsys)] == ["owed", "pay"]
    assert run(["outbox", "list", str(directory)]) == OK
    assert "given up by a test" in capsys.readouterr().out


def test_retry_makes_intents_of_dead_letters_edited_where_asked(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with OutboxDirectory(FileSystemDisk(directory), 0) as outbox:
        data, call = (dead.dead_id for dead in outbox.dead_letters())
    assert run(["outbox", "retry", str(directory), str(data), "--data", "mended"]) == OK
    assert run(["outbox", "retry", str(directory), str(call), "--data", "x"]) == USAGE
    assert run(["outbox", "retry", str(directory), str(call), "--arguments", "{no json"]) == USAGE
    assert run(["outbox", "retry", str(directory), str(call), "--arguments", '{"n": 3}']) == OK
    with OutboxDirectory(FileSystemDisk(directory), 0) as outbox:
        assert outbox.dead_letters() == []
        repaired_logs, again = outbox.pending()[2:]
        assert (repaired_logs.intent.payload, repaired_logs.intent.header, repaired_logs.intent.partition) == (b"mended", 7, 1)
        assert again.intent.arguments == {"n": 3}
    capsys.readouterr()


def test_drop_removes_and_needs_an_id(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["outbox", "drop", str(directory)]) == USAGE
    assert run(["outbox", "drop", str(directory), "12345"]) == USAGE
    assert run(["outbox", "drop", str(directory), "--all"]) == OK
    with OutboxDirectory(FileSystemDisk(directory), 0) as outbox:
        assert outbox.dead_letters() == []
        assert len(outbox.pending()) == 2
    assert run(["outbox", "status", str(directory), "-o", "json"]) == OK
    capsys.readouterr()


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert run(["outbox", "status", str(tmp_path / "typo")]) == USAGE
    assert not (tmp_path / "typo").exists()


def test_a_directory_without_an_outbox_is_no_empty_outbox_and_none_is_made_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("of somebody else")
    for command in (["status"], ["list"], ["list", "--pending"], ["retry", "1"], ["retry", "--all"], ["drop", "1"]):
        assert run(["outbox", command[0], str(tmp_path), *command[1:]]) == USAGE
        assert "there is no outbox" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_journal_that_is_not_an_outboxs_is_reported_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for user_type in (Kind.IDENTITY, Kind.ATTEMPT, Kind.DEAD):
        where = tmp_path / str(int(user_type))
        journal = Journal.open(FileSystemDisk(where), JournalSettings(file_bytes=4096))
        journal.add(1, user_type, b"hello")
        journal.sync()
        journal.close()
        before = {path.name: path.read_bytes() for path in where.iterdir()}
        for command in ("status", "list", "retry"):
            assert run(["outbox", command, str(where), *(["--all"] if command == "retry" else [])]) == MACHINE
            assert "record 1 is none of an outbox" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in where.iterdir()} == before


def test_a_ledger_that_was_written_is_read_the_same(directory: Path) -> None:
    journal, ledger, changes = open_journal(FileSystemDisk(directory), OutboxSettings(), 0, bytes)
    journal.close()
    assert isinstance(ledger, Ledger)
    assert changes == []
    assert [dead.reason for dead in ledger.dead.values()] == ["given up by a test"] * 2
    sizes = sum(entry.size for entry in ledger.entries.values())
    for dead in list(ledger.dead.values()):
        ledger.forget(dead)
    assert ledger.bytes == sizes
