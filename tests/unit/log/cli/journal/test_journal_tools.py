"""`waltz journal` on real directories: what it shows, that reading changes nothing, that a journal in use is refused, that what goes out comes in."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waltz_log.cli.main import run
from waltz_log.exit_codes import FAILED, MACHINE, OK, USAGE
from waltz_log.filesystem import FileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.testing.disk import SimulatedDisk
from waltz_log.testing.medium import WHOLE

SETTINGS = JournalSettings(file_bytes=2048, compact_files_min=0, check="hash")


def _make(path: Path, check: str) -> None:
    """Living records with updates, dead ones, two transactions in doubt, one that was open, and a file that is used for the second time."""
    with Journal.open(FileSystemDisk(path), SETTINGS.model_copy(update={"check": check})) as journal:
        for record_id in range(100):
            journal.add(record_id, 1, b"body %d of a record" % record_id)
            if record_id % 10:
                journal.delete(record_id)
        journal.update(20, 2, b"")
        journal.update(20, 255, bytes(range(256)))
        journal.compact()
        for record_id in range(200, 260):
            journal.add(record_id, 1, b"of short life")
            journal.delete(record_id)
        first, second = journal.begin(), journal.begin()
        journal.add_in(first, 1 << 40, 3, b"\x00\xff")
        journal.update_in(second, 30, 4, b"in doubt")
        journal.delete_in(first, 10)
        journal.prepare(first)
        journal.prepare(second)
        journal.add_in(journal.begin(), 7777, 1, b"open")
        journal.add(1000, 1, b"last")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    for check in ("hash", "size"):
        _make(root / check, check)
    return root


@pytest.fixture
def directory(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / getattr(request, "param", "hash"), tmp_path / "journal"))


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALTZ_JOURNAL_FILE_BYTES", "16384")


BOTH_CHECKS = pytest.mark.parametrize("directory", ["hash", "size"], indirect=True)


def reported(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = OK) -> str:
    capsys.readouterr()
    found = run(["journal", *arguments])
    output = capsys.readouterr()
    assert found == code, output.err
    assert output.err.count("\n") <= 1
    return output.out if code in (OK, FAILED) else output.err


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reported([*arguments, "--output", "json"], capsys).splitlines()]


def snapshot(path: Path) -> dict[str, tuple[bytes, int]]:
    return {each.name: (each.read_bytes(), each.stat().st_mtime_ns) for each in path.iterdir()}


# ---- polling -----------------------------------------------------------------------------------------------------------------------------------


@BOTH_CHECKS
def test_reading_changes_nothing_even_in_a_read_only_directory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(directory)
    os.chmod(directory, 0o555)
    try:
        for arguments in (["print"], ["print", "--reclaimed", "--safe"], ["statistics"], ["verify"], ["export"]):
            reported([*arguments, str(directory)], capsys)
    finally:
        os.chmod(directory, 0o755)
    assert snapshot(directory) == before


@BOTH_CHECKS
def test_print_shows_every_record_at_its_position(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(["print", str(directory)], capsys)
    assert {row["kind"] for row in found} == {"add", "update", "update-tx", "add-tx", "delete-tx", "delete", "prepare", "commit"}
    (added,) = [row for row in found if row.get("record") == 1 << 40]
    assert (added["type"], added["bytes"], added["body"], added["kind"]) == (3, 2, "00ff", "add-tx")
    prepared = [row for row in found if row["kind"] == "prepare"]
    assert [sum(count for _, count in row["files"]) for row in prepared] == [2, 1]
    places = [(row["file_id"], row["offset"]) for row in found]
    assert places == sorted(places), "files in order, records in theirs"
    assert "body" not in json.dumps(rows(["print", "--safe", str(directory)], capsys))
    table = reported(["print", str(directory)], capsys)
    assert len(table.splitlines()) == len(found) + 1
    assert r"'\x00\xff'" in table


@BOTH_CHECKS
def test_print_shows_earlier_uses_where_it_is_asked_to(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = rows(["print", str(directory)], capsys)
    assert not any(row["reclaimed"] for row in plain)
    everything = rows(["print", "--reclaimed", str(directory)], capsys)
    earlier = [row for row in everything if row["reclaimed"]]
    assert [row for row in everything if not row["reclaimed"]] == plain
    assert any(row["kind"] == "add" and bytes.fromhex(row["body"]).startswith(b"body ") for row in earlier)
    assert "(reclaimed)" in reported(["print", "--reclaimed", str(directory)], capsys)


def test_stats_count_what_lives_and_what_each_file_holds(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(reported(["statistics", str(directory), "--output", "json"], capsys))
    assert (found["living_records"], len(found["prepared"]), len(found["failed_transactions"])) == (11, 2, 1)
    assert (found["record_id_max"], found["unhealthy"], found["broken_transactions"]) == (1 << 40, 0, [])
    assert sum(file["living"] for file in found["files"]) == 13, "records and the two updates of one"
    assert [file["role"] for file in found["files"] if file["role"] != "empty"][-1] == "current"
    table = reported(["statistics", str(directory)], capsys)
    assert "11 living records" in table
    assert "current" in table


@BOTH_CHECKS
def test_an_undamaged_journal_verifies_and_what_a_crash_leaves_is_a_note(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(["verify", str(directory)], capsys).splitlines()[-1] == "damaged places: 0, notes: 1"
    found = json.loads(reported(["statistics", str(directory), "--output", "json"], capsys))
    (current,) = [file for file in found["files"] if file["role"] == "current"]
    with (directory / current["name"]).open("r+b") as file:
        file.seek(current["used_bytes"])
        file.write(b"\x0b" + current["file_id"].to_bytes(4, "big") + b"torn")
    (directory / "journal-0000000099.tmp").write_bytes(b"half")
    output = reported(["verify", str(directory)], capsys)
    assert "the end of the file is torn" in output
    assert "was being made" in output
    assert output.splitlines()[-1] == "damaged places: 0, notes: 3"


def test_a_crash_leaves_notes_and_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the machine did to writes that were not synced, as long as it kept their order of files: damage would be a false alarm."""
    noted = 0
    for number, survivor in enumerate(_crashed_journals()):
        directory = tmp_path / str(number)
        directory.mkdir()
        for name in survivor.list(""):
            (directory / name).write_bytes(survivor.content(name))
        output = reported(["verify", str(directory)], capsys)
        assert "damaged places: 0" in output
        noted += "torn" in output
    assert noted > 5


def _crashed_journals() -> Iterator[SimulatedDisk]:
    disk = SimulatedDisk()
    journal = Journal.open(disk, SETTINGS)
    for record_id in range(12):
        journal.add(record_id, 1, bytes(200))
        if record_id % 4 == 0:
            transaction = journal.begin()
            journal.add_in(transaction, 100 + record_id, 1, bytes(300))
            journal.sync()
            journal.writer.write()
            journal.commit(transaction)
        journal.writer.write()
        pending = disk.pending()
        for kept in (40, pending[-1].size - 1) if pending else ():
            yield disk.survivor([*[WHOLE] * (len(pending) - 1), kept])


@BOTH_CHECKS
def test_damage_is_found_and_shown_by_the_exit_code(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = rows(["print", str(directory)], capsys)[0]
    path = directory / first["file"]
    content = bytearray(path.read_bytes())
    content[first["offset"] + 16] ^= 0x40  # its size
    path.write_bytes(content)
    output = reported(["verify", str(directory)], capsys, FAILED)
    assert f"damage: {first['file']} offset {first['offset']}: only looks like a record" in output
    lines = reported(["verify", str(directory), "--output", "json"], capsys, FAILED).splitlines()
    (finding,) = [found for line in lines if (found := json.loads(line))["damage"]]
    assert finding["where"] == first["file"]
    path.write_bytes(b"ab")
    assert "too short for a header" in reported(["verify", str(directory)], capsys, FAILED)


def test_a_directory_that_cannot_be_one_journal_is_one_finding(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = sorted(each.name for each in directory.iterdir() if each.name.startswith("journal-"))[0]
    other = "jrn" if name.endswith("jrh") else "jrh"
    (directory / f"journal-0000000098.{other}").write_bytes((directory / name).read_bytes())
    output = reported(["verify", str(directory)], capsys, FAILED)
    assert "files of both checks" in output
    assert "both checks" in reported(["statistics", str(directory)], capsys, MACHINE)


# ---- in use, or not there ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["print"], ["statistics"], ["verify"], ["export"], ["compact"], ["import", "--from", __file__], ["measure", "--seconds", "0.1", "--directory"]],
    ids=lambda arguments: str(arguments[0]),
)
def test_a_journal_in_use_is_refused(arguments: list[str], directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(FileSystemDisk(directory), SETTINGS):
        before = snapshot(directory)
        assert "in use by another process" in reported([*arguments, str(directory)], capsys, USAGE)
        assert snapshot(directory) == before


def test_another_process_has_the_directory_for_itself(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import sys; from pathlib import Path; from waltz_log.filesystem import FileSystemDisk; from waltz_log.journal import Journal; "
        "journal = Journal.open(FileSystemDisk(Path(sys.argv[1]))); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        assert "in use by another process" in reported(["statistics", str(directory)], capsys, USAGE)
        other.stdin.close()
        assert other.wait(timeout=30) == 0
    reported(["statistics", str(directory)], capsys)


@pytest.mark.parametrize("command", ["print", "statistics", "verify", "export", "compact"])
def test_a_directory_without_a_journal_is_refused_and_left_unchanged(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such directory" in reported([command, str(tmp_path / "none")], capsys, USAGE)
    assert "there is no journal" in reported([command, str(tmp_path)], capsys, USAGE)
    assert list(tmp_path.iterdir()) == []


# ---- carrying over -------------------------------------------------------------------------------------------------------------------------------


@BOTH_CHECKS
@pytest.mark.parametrize("check", ["hash", "size"])
def test_export_and_import_give_the_same_records_and_transactions(
    check: str, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines"
    assert reported(["export", str(directory), "--to", str(lines)], capsys) == ""
    monkeypatch.setenv("WALTZ_JOURNAL_CHECK", check)
    assert "imported records=11 transactions=2" in reported(["import", str(tmp_path / "copy"), "--from", str(lines)], capsys)
    assert reported(["export", str(tmp_path / "copy")], capsys) == lines.read_text()
    found = json.loads(reported(["statistics", str(tmp_path / "copy"), "--output", "json"], capsys))
    assert found["check"] == check
    with Journal.open(FileSystemDisk(directory)) as original, Journal.open(FileSystemDisk(tmp_path / "copy")) as copy:
        assert copy.loaded.records == original.loaded.records
        assert copy.loaded.prepared == original.loaded.prepared
        copy.commit(copy.loaded.prepared[0].transaction_id)
        assert 1 << 40 in copy
        assert 10 not in copy


def test_import_reads_standard_input(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(reported(["export", str(directory)], capsys)))
    assert "records=11" in reported(["import", str(tmp_path / "copy")], capsys)


def test_import_refuses_a_journal_that_holds_something(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    reported(["export", str(directory), "--to", str(lines)], capsys)
    assert "exists already" in reported(["export", str(directory), "--to", str(lines)], capsys, USAGE)
    assert "not empty" in reported(["import", str(directory), "--from", str(lines)], capsys, USAGE)


def _changed(lines: list[str], number: int, line: str) -> list[str]:
    return [*lines[:number], line, *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "the export is empty"),
        (lambda lines: lines[:-1], "cut off"),
        (lambda lines: lines[:5] + lines[6:], "cut off"),
        (lambda lines: [*lines, lines[1]], "stands behind the end"),
        (lambda lines: lines[1:], "line 1 is not a line"),
        (lambda lines: _changed(lines, 3, "{"), "line 4 is not a line"),
        (lambda lines: _changed(lines, 3, "[1]"), "line 4 is not a line"),
        (lambda lines: _changed(lines, 3, '{"record":"7","type":1,"body":""}'), "line 4 is not a line"),
        (lambda lines: _changed(lines, 3, '{"record":7,"type":1,"body":"?"}'), "line 4 is not a line"),
        (lambda lines: _changed(lines, 3, '{"record":7,"type":256,"body":""}'), "user types are 0 to 255"),
        (lambda lines: _changed(lines, 0, '{"waltz":"journal","version":2,"transactions":[]}'), "line 1 is not a line"),
        (lambda lines: _changed(lines, 0, '{"waltz":"journal","version":1,"transactions":[]}'), "does not name"),
        (
            lambda lines: _changed(lines, -2, json.dumps({"transaction": json.loads(lines[-2])["transaction"], "delete": 40})),
            "is not listed as prepared",
        ),
    ],
)
def test_a_file_that_is_not_an_export_is_refused(
    change: Any, reason: str, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = reported(["export", str(directory)], capsys).splitlines()
    source = tmp_path / "lines"
    source.write_text("".join(f"{line}\n" for line in change(lines)))
    assert reason in reported(["import", str(tmp_path / "copy"), "--from", str(source)], capsys, USAGE)


def test_compact_frees_what_sparse_files_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(FileSystemDisk(tmp_path / "j"), SETTINGS) as journal:
        for record_id in range(300):
            journal.add(record_id, 1, b"body")
        for record_id in range(300):
            if record_id % 30:
                journal.delete(record_id)
    config = tmp_path / "journal.yaml"
    config.write_text("file_bytes: 2048\n")
    before = reported(["export", str(tmp_path / "j")], capsys)
    assert "records=10" in reported(["compact", str(tmp_path / "j"), "--config", str(config)], capsys)
    found = json.loads(reported(["statistics", str(tmp_path / "j"), "--output", "json"], capsys))
    assert len([file for file in found["files"] if file["role"] in ("data", "current")]) <= 2
    assert sorted(reported(["export", str(tmp_path / "j")], capsys).splitlines()) == sorted(before.splitlines())
    config.write_text("file_byte: 2048\n")
    assert "did you mean file_bytes" in reported(["compact", str(tmp_path / "j"), "--config", str(config)], capsys, USAGE)


def test_compact_keeps_the_size_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALTZ_JOURNAL_FILE_BYTES")
    with Journal.open(FileSystemDisk(tmp_path / "j"), SETTINGS) as journal:
        for record_id in range(120):
            journal.add(record_id, 1, b"body of a record")
            if record_id % 9:
                journal.delete(record_id)
    reported(["compact", str(tmp_path / "j")], capsys)
    assert {path.stat().st_size for path in (tmp_path / "j").glob("journal-*")} == {2048}


def test_replaced_updates_are_reported_as_dead_where_the_settings_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal.open(FileSystemDisk(tmp_path / "j"), SETTINGS.model_copy(update={"replaceable_types": frozenset({2})})) as journal:
        journal.add(1, 1, b"")
        journal.update(1, 2, b"first")
        journal.update(1, 2, b"second")
    config = tmp_path / "journal.yaml"
    config.write_text("replaceable_types: [2]\n")
    for arguments, parts in (([], 3), (["--config", str(config)], 2)):
        assert len(reported(["export", str(tmp_path / "j"), *arguments], capsys).splitlines()) == parts + 2
        found = json.loads(reported(["statistics", str(tmp_path / "j"), "-o", "json", *arguments], capsys))
        assert sum(file["living"] for file in found["files"]) == parts


def test_measure_suggests_bounds_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(reported(["measure", "--directory", str(tmp_path), "--seconds", "0.1", "--output", "json"], capsys))
    assert set(found["suggested"]) == {"linger_s", "group_bytes"}
    assert len(found["timings"]) == 6
    shown = reported(["measure", "--directory", str(tmp_path), "--seconds", "0.1"], capsys)
    assert shown.splitlines()[-1].startswith("suggested for group commit: linger_s: ")
    assert list(tmp_path.iterdir()) == []
    assert "no such directory" in reported(["measure", "--directory", str(tmp_path / "none")], capsys, USAGE)
