"""`waltz storage` and its tools on real directories: what they print, what they refuse, and that reading changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from verification.conformance.java_directory import java_struct, write_java_directory
from verification.crashes.storage_model import KEY, FixedClock, block_of
from waltz_log.cli.main import run
from waltz_log.core.formats.control_format import SessionMark
from waltz_log.errors import ClusterKeyMismatch, Fenced, InvalidSetting
from waltz_log.exit_codes import CLOSED_PIPE, FAILED, MACHINE, OK, USAGE
from waltz_log.filesystem import FileSystemDisk
from waltz_log.processes.storage import admit_behind
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.segments.segment_log import SegmentLog

Reported = Callable[..., tuple[int, str, str]]


@pytest.fixture
def waltz(capsys: pytest.CaptureFixture[str]) -> Reported:
    def reported(*arguments: object) -> tuple[int, str, str]:
        code = run(["storage", *map(str, arguments)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return reported


@pytest.fixture
def node(made_once: Path, tmp_path: Path) -> Path:
    """The directory of a node that was closed, one partition of a few segments."""
    shutil.copytree(made_once, tmp_path / "node")
    return tmp_path / "node"


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made") / "node"
    disk = FileSystemDisk(directory)
    ControlFiles.create(disk, FixedClock(), KEY, 2)
    control = ControlFiles.open(disk)
    control.count_start()
    control.set_mark(0, SessionMark(3, 50, 49))
    control.close()
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    log.append([block_of(0, number * 5, [90] * 5, salt=1) for number in range(40)])
    log.close()
    return directory


def segments(node: Path) -> list[Path]:
    return sorted((node / "0").glob("*.seg"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(bytes(content))


# ---- what they report ----------------------------------------------------------------------------------------------------------------------------


def test_the_control_file_is_shown_with_both_structs(waltz: Reported, node: Path) -> None:
    code, out, _ = waltz("dump-control-file", node, "--output", "json")
    reported = json.loads(out)
    assert code == OK
    assert (reported["format"], reported["cluster_key"], reported["partitions"], reported["starts"]) == ("waltz", str(KEY), 2, 1)
    first, second = reported["entries"][0]["structs"]
    assert (first["state"], second["state"]) == ("older", "current")
    assert (second["session"], second["low_water_mark"], second["local_low_water_mark"], second["fence"]) == (3, 50, 49, -1)
    code, out, _ = waltz("dump-control-file", node, "--partition", 0)
    assert code == OK
    assert len(out.splitlines()) == 5
    assert out.splitlines()[4].split() == ["0", "2", "3", "50", "49", "-1", "current"]


def test_a_range_of_a_segment_is_shown(waltz: Reported, node: Path) -> None:
    path = segments(node)[1]
    first = int(path.stem)
    code, out, _ = waltz("dump-segment", path, "--from", first + 2, "--to", first + 4, "--data", "hex", "--data-bytes", 3, "--output", "json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == OK
    assert [row["transaction_id"] for row in rows] == [first + 2, first + 3, first + 4]
    assert rows[0]["data"] == (((first + 2) * 7 + 1) % 256).to_bytes(1, "big").hex() * 3 + "…"
    code, out, _ = waltz("dump-segment", path, "--from", first + 2, "--to", first + 4)
    assert [line.split()[0] for line in out.splitlines()] == ["transaction_id", *(str(first + n) for n in (2, 3, 4))]
    for part, count in (("index", 31), ("times", 7), ("header", 2)):
        code, out, _ = waltz("dump-segment", path, "--part", part)
        assert (code, len(out.splitlines())) == (OK, count), part
    code, out, _ = waltz("dump-segment", path, "--data", "text", "--to", first)
    assert code == OK
    assert out.isprintable() or out.replace("\n", "").isprintable()


def test_segments_are_counted(waltz: Reported, node: Path) -> None:
    for path, count in ((node, len(segments(node))), (node / "0", len(segments(node))), (segments(node)[0], 1)):
        code, out, _ = waltz("segment-statistics", path, "--output", "json")
        rows = [json.loads(line) for line in out.splitlines()]
        assert (code, len(rows)) == (OK, count)
        assert rows[0]["transactions"] == 30
        assert rows[0]["data_bytes_max"] == 90
    assert len(waltz("segment-statistics", node)[1].splitlines()) == 1 + len(segments(node))


def test_errors_are_reported_with_their_position_and_exit_code_1(waltz: Reported, node: Path) -> None:
    assert waltz("verify", node)[0::2] == (OK, "")
    assert waltz("verify-segment", segments(node)[1])[0] == OK
    flip(segments(node)[1], 2000)
    code, out, err = waltz("verify", node)
    assert (code, err) == (FAILED, "")
    assert out.splitlines()[-2:] == [
        "wrong: 0/0000000000000000030.seg part=data offset=1948 transaction_ids=44..44: record checksum does not match",
        "1 findings",
    ]
    code, out, _ = waltz("verify", node, "--output", "json")
    reported = json.loads(out)
    assert (code, reported["ok"], reported["findings"][0]["transaction_id"]) == (FAILED, False, 44)
    assert [row["findings"] for row in reported["segments"]][:3] == [0, 1, 0]
    code, out, _ = waltz("verify-segment", segments(node)[1], "--output", "json")
    assert (code, json.loads(out)["findings"][0]["offset"]) == (FAILED, 1948)
    assert waltz("verify-segment", segments(node)[0])[0] == OK
    assert waltz("verify", node, "--partition", "1")[0] == OK


# ---- what they refuse --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["verify", "{tmp}/nowhere"], USAGE, "must be an existing directory"),
        (["verify", "{tmp}"], USAGE, "not a storage directory"),
        (["verify", "{segment}"], USAGE, "must be an existing directory"),
        (["dump-control-file", "{tmp}"], USAGE, "not a storage directory"),
        (["dump-control-file", "{node}", "--partition", "2"], USAGE, "must be one of the 2"),
        (["dump-segment", "{node}"], USAGE, "not a segment's data file"),
        (["dump-segment", "{node}/0/0000000000000000001.seg"], USAGE, "is not there"),
        (["dump-segment", "{segment}", "--from", "5000"], USAGE, "out of range"),
        (["dump-segment", "{segment}", "--from", "9", "--to", "8"], USAGE, "above --to"),
        (["dump-segment", "{segment}", "--from", "-1"], USAGE, "--from"),
        (["dump-segment", "{segment}", "--part", "recrods"], USAGE, "did you mean records"),
        (["dump-segment", "{segment}", "--data", "base64"], USAGE, "no such view"),
        (["dump-segment", "{segment}", "--output", "xml"], USAGE, "is table, json or yaml"),
        (["segment-statistics", "{tmp}"], USAGE, "holds no segments"),
        (["verify-segment", "{tmp}/nowhere"], USAGE, "not a segment's data file"),
        (["migrate", "{node}"], USAGE, "nothing to migrate"),
        (["migrate", "{tmp}"], USAGE, "not a storage directory"),
        (["backup", "{tmp}", "{tmp}/b"], USAGE, "not a storage directory"),
        (["backup", "{node}", "{node}"], USAGE, "must not lie within"),
        (["backup", "{node}", "{node}/inside"], USAGE, "must not lie within"),
        (["backup", "{node}", "{tmp}/no/where"], USAGE, "has a parent that is not a directory"),
        (["backup", "{node}", "{tmp}/there"], USAGE, "exists already"),
        (["restore", "{node}", "{tmp}/r"], USAGE, "is not a backup"),
        (["restore", "{tmp}/nowhere", "{tmp}/r"], USAGE, "is not a directory"),
        (["verfy", "{node}"], USAGE, "did you mean 'verify'"),
        (["--name", "x", "verify", "{node}"], USAGE, "none of a node"),
        (["--replace", "migrate", "{node}"], USAGE, "none of a node"),
    ],
)
def test_a_failed_command_is_reported_in_one_line(
    waltz: Reported, node: Path, tmp_path: Path, arguments: list[str], code: int, reported: str
) -> None:
    (tmp_path / "there" / "something").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    places = {"tmp": tmp_path, "node": node, "segment": segments(node)[0]}
    found, out, err = waltz(*(argument.format(**places) for argument in arguments))
    assert (found, out) == (code, "")
    assert err.startswith("waltz: ")
    assert err.count("\n") == 1
    assert reported in err.lower()
    (node / "waltz.lock").unlink(missing_ok=True)  # what `migrate` copied from the directory
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [["verify", "{node}"], ["dump-control-file", "{node}"], ["backup", "{node}", "{tmp}/b"], ["migrate", "{node}"]], ids=lambda a: a[0]
)
@pytest.mark.parametrize("size", [0, 100, 247])
def test_a_control_file_that_is_cut_off_is_reported_in_one_line(waltz: Reported, node: Path, tmp_path: Path, arguments: list[str], size: int) -> None:
    path = node / "waltz-storage.ctl"
    path.write_bytes(path.read_bytes()[:size])
    code, _, err = waltz(*(argument.format(node=node, tmp=tmp_path) for argument in arguments))
    assert (code, err.count("\n")) == (MACHINE, 1)
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "b.incomplete").exists()


def test_segments_cut_off_anywhere_are_shown_as_far_as_they_go(waltz: Reported, node: Path) -> None:
    path = segments(node)[0]
    whole = path.read_bytes()
    for size in (0, 1, 127, 128, 129, 200, 1000, len(whole) - 1):
        path.write_bytes(whole[:size])
        for tool in ("dump-segment", "verify-segment", "segment-statistics"):
            code, _, err = waltz(tool, path)
            assert code in (OK, FAILED, MACHINE), (tool, size)
            assert err.count("\n") <= 1
        assert waltz("verify", node)[0] == FAILED


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_has_enough_ends_a_tool_without_a_word(tmp_path: Path, output: str) -> None:
    log = SegmentLog.open(FileSystemDisk(tmp_path), FixedClock(), KEY, 0, 1 << 20, -1)
    log.append([block_of(0, 0, [90] * 3000, salt=1)])  # shown, more than a pipe holds
    log.close()
    command = [sys.executable, "-m", "waltz_log.cli", "storage", "dump-segment", str(tmp_path / "0" / "0000000000000000000.seg")]
    with subprocess.Popen([*command, "--data", "hex", "--output", output], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        assert tool.stderr is not None
        assert tool.stdout.readline()
        tool.stdout.close()
        assert (tool.stderr.read(), tool.wait(60)) == ("", CLOSED_PIPE)


# ---- what they touch ---------------------------------------------------------------------------------------------------------------------------


def test_inspection_opens_nothing_for_writing_and_leaves_every_byte_and_time(
    waltz: Reported, node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(segments(node)[2], 3000)
    waltz("backup", node, tmp_path / "none")  # refused for the corruption; nothing of it stays
    real = os.open
    flags: set[int] = set()

    def opening(path: Any, mode: int, *rest: Any, **named: Any) -> int:
        if str(node) in str(path):
            flags.add(mode & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        return real(path, mode, *rest, **named)

    def state() -> dict[str, tuple[bytes, int, int]]:
        every = [node, *sorted(node.rglob("*"))]
        return {str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode) for path in every}

    for path in (node, *node.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    before = state()
    monkeypatch.setattr(os, "open", opening)
    commands: list[list[object]] = [
        ["dump-control-file", node],
        ["verify", node],
        ["verify-segment", segments(node)[2]],
        ["segment-statistics", node],
        ["dump-segment", segments(node)[0], "--data", "hex"],
    ]
    for part in ("records", "index", "times", "header"):
        commands.append(["dump-segment", segments(node)[0], "--part", part])
    for arguments in commands:
        assert waltz(*arguments)[0] in (OK, FAILED)
    monkeypatch.undo()
    assert flags == {0}, "for reading alone"
    assert state() == before
    for path in (node, *node.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


# ---- what they make ----------------------------------------------------------------------------------------------------------------------------


def test_a_backup_is_made_verified_and_restored(waltz: Reported, node: Path, tmp_path: Path) -> None:
    code, out, _ = waltz("backup", node, tmp_path / "backup", "--output", "json")
    reported = json.loads(out)
    assert code == OK
    assert reported["linked_bytes"] > 0
    assert reported["partitions"][0]["last_transaction_id"] == 199
    assert waltz("verify", tmp_path / "backup")[0] == OK
    code, out, _ = waltz("restore", tmp_path / "backup", tmp_path / "again")
    assert code == OK
    assert out.splitlines()[0] == "partition 0: transactions=0..199 session=3 clean_up_to=49"
    assert waltz("verify", tmp_path / "again")[0] == OK
    assert [path.read_bytes() for path in segments(tmp_path / "again")] == [path.read_bytes() for path in segments(node)]
    (tmp_path / "backup" / "partitions" / "0" / segments(node)[1].name).unlink()
    code, out, _ = waltz("verify", tmp_path / "backup")
    assert code == FAILED
    assert "is missing in the backup" in out
    code, _, err = waltz("restore", tmp_path / "backup", tmp_path / "more")
    assert (code, err.count("\n")) == (MACHINE, 1)
    assert not (tmp_path / "more").exists()


def test_a_directory_of_the_original_is_migrated_once(waltz: Reported, tmp_path: Path) -> None:
    entries = [(java_struct(-1, -1, -1, 1), java_struct(2, 3, 3, 2))]
    write_java_directory(FileSystemDisk(tmp_path / "java"), KEY, entries, {0: [[b"a", b"b"], [b"c", b"d", b"e"]]})
    code, out, _ = waltz("dump-control-file", tmp_path / "java")
    assert code == OK
    assert out.splitlines()[1] == "format java-waltz-0.13, starts -"
    code, _, err = waltz("backup", tmp_path / "java", tmp_path / "b")
    assert (code, "migrate it first" in err) == (USAGE, True)
    code, out, _ = waltz("migrate", tmp_path / "java", "--output", "json")
    assert code == OK
    assert json.loads(out)["last_transaction_ids"] == {"0": 4}
    code, out, _ = waltz("migrate", tmp_path / "java")
    assert (code, out.startswith("nothing to do")) == (OK, True)
    assert waltz("verify", tmp_path / "java")[0] == OK


def test_migration_is_refused_while_the_original_has_its_control_file(waltz: Reported, tmp_path: Path) -> None:
    entries = [(java_struct(-1, -1, -1, 1), java_struct(2, 0, 0, 2))]
    write_java_directory(FileSystemDisk(tmp_path / "java"), KEY, entries, {0: [[b"a"]]})
    path = tmp_path / "java" / "waltz-storage.ctl"
    hold = "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 128); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as original:
        assert original.stdout is not None
        assert original.stdout.readline() == "held\n"
        code, _, err = waltz("migrate", tmp_path / "java")
        assert (code, "in use by a storage node of Java Waltz" in err) == (USAGE, True)
        original.communicate()
    assert waltz("migrate", tmp_path / "java")[0] == OK


# ---- which directory may start -----------------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_behind_starts_only_where_it_knows_that_it_lost_something(waltz: Reported, node: Path, tmp_path: Path) -> None:
    waltz("backup", node, tmp_path / "backup")
    waltz("restore", tmp_path / "backup", tmp_path / "again")
    disk, restored = FileSystemDisk(node), FileSystemDisk(tmp_path / "again")
    assert admit_behind(disk, KEY, 1, False) == 1, "the one that ran last"
    assert admit_behind(restored, KEY, 7, False) == 7, "counts on from the one that it replaces"
    with pytest.raises(Fenced, match="mine=2 newer=7"):
        admit_behind(disk, KEY, 7, False)
    with pytest.raises(ClusterKeyMismatch):
        admit_behind(disk, UUID(int=1), 7, True)
    control = ControlFiles.open(disk)
    assert control.mark(0).session == 3, "refused and left alone"
    control.close()
    assert admit_behind(disk, KEY, 7, True) == 7
    control = ControlFiles.open(disk)
    assert control.mark(0).session < -1
    control.close()
    disk.lock()
    with pytest.raises(InvalidSetting, match="another process"):
        admit_behind(FileSystemDisk(node), KEY, 7, True)
    disk.unlock()
