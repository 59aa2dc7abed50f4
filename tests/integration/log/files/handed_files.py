"""Each kind of file that a person hands over, as it should be, and the forms that it should not have."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from tests.unit.log.compaction.views import compactor, drawn_log, open_view, reader
from verification.crashes.storage_model import KEY, FixedClock, block_of
from waltz_log import untrusted_files
from waltz_log.compaction.manifest import METADATA
from waltz_log.coordination.followed import RULES
from waltz_log.coordination.remembered_values import FILES
from waltz_log.core.adoption import DirectoryFacts, PartitionFacts
from waltz_log.core.formats.backup_manifest import MANIFEST
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE, SessionMark
from waltz_log.exit_codes import FAILED, MACHINE, USAGE
from waltz_log.filesystem import FileSystemDisk, ReadOnlyFileSystemDisk
from waltz_log.journal import Journal, JournalSettings
from waltz_log.journal.export import export_lines
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.rules import AccessRules
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.offline.backup import backup
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.untrusted_files import FileKind

__all__ = [
    "FIXED_NAMES",
    "FORMS",
    "NEVER_READ",
    "ROWS",
    "STORAGE_ENDS",
    "TEXT_FORMS",
    "Row",
    "another_users",
    "copy",
    "export",
    "in_backup",
    "in_storage",
    "journal",
    "storage_directory",
]

PIPELINE = """\
name: legs
source: {cluster: "h:1/w"}
checkpoint: /s/legs
outputs:
  - decode: {format: bytes}
    target: {table: /s/tables/legs}
"""
BOMB = "\n".join(["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)])


# ---- as they should be ----


@dataclass(frozen=True)
class Row:
    """A kind of file. `make`: writes it and what it stands among, and returns its place. `case`: what reads it. `within`: it lies in a directory that
    was handed over, where a link is no file. `ends`: the exit codes that the documentation gives to a file that is refused."""

    name: str
    make: Callable[[Path], Path]
    case: Callable[[Path, Path], dict[str, Any]]
    kind: FileKind | None = None
    within: bool = False
    ends: tuple[int, ...] = (USAGE,)

    def __str__(self) -> str:
        return self.name

    def copy(self, place: Path) -> Path:
        return copy(self.make, place)


def copy(make: Callable[[Path], Path], place: Path) -> Path:
    """The file, in a copy of what `make` wrote once."""
    if make not in _made:
        root = Path(tempfile.mkdtemp(prefix="waltz-made-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        _made[make] = root, make(root).relative_to(root)
    root, path = _made[make]
    shutil.copytree(root, place, dirs_exist_ok=True, copy_function=shutil.copy2)
    place.chmod(0o755)
    return place / path


_made: dict[Callable[[Path], Path], tuple[Path, Path]] = {}


def written(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        path = place / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def command(*words: str) -> Callable[[Path, Path], dict[str, Any]]:
    """`FILE`: the file; `PLACE`: its directory; `NEW`: a name where nothing is."""

    def case(place: Path, path: Path) -> dict[str, Any]:
        named = {"FILE": str(path), "PLACE": str(place / "given"), "NEW": str(place / "new")}
        return {"command": [named.get(word, word) for word in words]}

    return case


def called(reader_name: str, *, directory: bool = False) -> Callable[[Path, Path], dict[str, Any]]:
    return lambda place, path: {"reader": reader_name, "path": str(place / "given") if directory else str(path)}


def storage_directory(place: Path) -> Path:
    disk = FileSystemDisk(place)
    ControlFiles.create(disk, FixedClock(), KEY, 2)
    control = ControlFiles.open(disk)
    control.count_start()
    control.set_mark(0, SessionMark(3, 50, 49))
    control.close()
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    for number in range(40):
        log.append([block_of(0, number * 5, [90] * 5, salt=1)])
    log.close()
    records = drawn_log(Random(1), 200, 20)
    compactor(open_view(disk)).fold(reader(records), 200, 1_700_000_000_000)
    return place


def in_storage(pattern: str, which: int = 0) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        return sorted(storage_directory(place / "given").glob(pattern))[which]

    return make


def in_backup(pattern: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        source = storage_directory(place / "source")
        backup(ReadOnlyFileSystemDisk(source), FileSystemDisk(place / "given"), 1_700_000_000_000)
        shutil.rmtree(source)
        return sorted((place / "given").glob(pattern))[0]

    return make


def journal(place: Path) -> Path:
    with Journal.open(FileSystemDisk(place), JournalSettings(file_bytes=4096)) as opened:
        for number in range(100):
            opened.add(number, 1, b"body %d" % number)
        opened.sync()
    return place


def in_journal(pattern: str) -> Callable[[Path], Path]:
    return lambda place: sorted(journal(place / "given").glob(pattern))[0]


def export(place: Path) -> Path:
    lines = list(export_lines(ReadOnlyFileSystemDisk(journal(place / "journal")), JournalSettings(file_bytes=4096)))
    return written("export.jsonl", "\n".join(lines) + "\n")(place)


def certificate(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        authority = DevelopmentAuthority(place / "given")
        tls = authority.issue("node", "a")
        (place / "given").chmod(0o755)
        shutil.move(tls.certificate, place / "given" / "node.pem")
        shutil.move(tls.key, place / "given" / "node.key")
        for each in (place / "given").iterdir():
            each.chmod(0o644)
        return place / "given" / name

    return make


def key_set() -> str:
    key = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key())) | {"kid": "1", "alg": "ES256"}
    assert jwt.PyJWKSet.from_dict({"keys": [key]}).keys
    return json.dumps({"keys": [key]})


def facts() -> str:
    return DirectoryFacts(uuid4(), (PartitionFacts(1, 1, 5, 5, True, 1, 1),)).to_json()


def checkpoint(place: Path) -> Path:
    (place / "given" / "offsets").mkdir(parents=True)
    return written("0", 'v1\n{"batchWatermarkMs":0}\n{"0":12}\n')(place / "given" / "offsets")


def rules(place: Path) -> Path:
    (place / "given").mkdir()
    data = AccessRules(revision=3).to_bytes()
    return written(FILES[RULES], sha256(data).hexdigest().encode() + b"\n" + data)(place / "given")


def development(place: Path) -> Path:
    (place / "given").mkdir()
    return written(
        "dev.json", json.dumps({"cluster": "main", "partitions": 1, "storages": 3, "servers": 2, "secure": False, "ports": {}, "pids": {}})
    )(place / "given")


FIXED_NAMES = ("certificate", "key", "authorities", "checkpoint", "development cluster", "remembered rules")
"""Rows of files that are found by their names in a directory."""

STORAGE_ENDS = (FAILED, USAGE, MACHINE)
VERIFY, RESTORE = ("storage", "verify", "--directory", "PLACE"), ("storage", "restore", "FILE", "NEW")


def storage_row(name: str, pattern: str, which: int = 0) -> list[Row]:
    rows = [Row(f"{name}, verify", in_storage(pattern, which), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS)]
    rows.append(
        Row(f"{name}, backup", in_storage(pattern, which), command("storage", "backup", "PLACE", "NEW", "--mib-per-s", "0"), None, True, STORAGE_ENDS)
    )
    return rows


ROWS = [
    Row("settings", written("storage.yaml", "name: a\n"), command("config", "show", "storage", "--config", "FILE"), untrusted_files.SETTINGS),
    Row(
        "console settings", written("c.yaml", "cluster: h:1/w\n"), command("config", "show", "console", "--config", "FILE"), untrusted_files.SETTINGS
    ),
    Row("settings in a bundle", written("s.yaml", "name: a\n"), called("settings in a bundle"), untrusted_files.SETTINGS),
    Row("pipeline file", written("p.yaml", PIPELINE), command("pipeline", "check", "FILE"), untrusted_files.PIPELINE),
    Row("certificate", certificate("node.pem"), called("certificates", directory=True), untrusted_files.CERTIFICATE),
    Row("key", certificate("node.key"), called("certificates", directory=True), untrusted_files.KEY),
    Row("authorities", certificate("authority.pem"), called("certificates", directory=True), untrusted_files.AUTHORITIES),
    Row("key set", written("keys.json", key_set()), called("key set"), untrusted_files.KEY_SET),
    Row("token", written("token", "eyJhbGciOi.eyJz.c2ln\n"), called("token"), untrusted_files.TOKEN),
    Row("descriptor", written("d.bin", b"\x0a\x03abc"), called("descriptor"), untrusted_files.DESCRIPTOR),
    Row("directory facts", written("facts.json", facts()), called("directory facts"), untrusted_files.FACTS),
    Row("checkpoint", checkpoint, called("checkpoint", directory=True), untrusted_files.CHECKPOINT),
    Row("job metrics", written("m.prom", 'waltz_pipeline_rows_total{pipeline="a"} 1\n'), called("job metrics"), untrusted_files.METRICS),
    Row("development cluster", development, called("development cluster", directory=True), untrusted_files.DEVELOPMENT),
    Row("remembered rules", rules, called("remembered rules", directory=True), untrusted_files.REMEMBERED),
    Row("journal export", export, command("journal", "import", "NEW", "--from", "FILE"), untrusted_files.EXPORT),
    Row("log", written("node.log", "started\n"), called("log"), untrusted_files.LOG),
    *storage_row("control file", CONTROL_FILE),
    *storage_row("fence file", FENCE_FILE),
    *storage_row("closed segment's data", "0/*.seg"),
    *storage_row("closed segment's index", "0/*.idx"),
    *storage_row("closed segment's times", "0/*.tix"),
    *storage_row("last segment's data", "0/*.seg", -1),
    *storage_row("last segment's index", "0/*.idx", -1),
    *storage_row("last segment's times", "0/*.tix", -1),
    Row("view manifest", in_storage(f"*/*/*/{METADATA}"), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("view data", in_storage("*/*/*/*.wal"), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("view index", in_storage("*/*/*/*.wal.index"), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("backup manifest", in_backup(MANIFEST), command("storage", "restore", "PLACE", "NEW"), None, True, STORAGE_ENDS),
    Row("backup manifest, verify", in_backup(MANIFEST), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("backup's data", in_backup("partitions/0/*.seg"), command("storage", "restore", "PLACE", "NEW"), None, True, STORAGE_ENDS),
    Row("backup's index, verify", in_backup("partitions/0/*.idx"), command("storage", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("journal file", in_journal("journal-*"), command("journal", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("journal file, print", in_journal("journal-*"), command("journal", "print", "PLACE"), None, True, STORAGE_ENDS),
    Row("journal's salt", in_journal("*salt*"), command("journal", "verify", "PLACE"), None, True, STORAGE_ENDS),
    Row("outbox", in_journal("journal-*"), command("outbox", "list", "PLACE"), None, True, STORAGE_ENDS),
]


# ---- as they should not be ----


def larger_than_its_limit(row: Row, path: Path) -> None:
    os.truncate(path, (row.kind.bytes_max if row.kind is not None and row.kind.bytes_max < 1 << 40 else 1 << 39) + 1)


def sparse(_row: Row, path: Path) -> None:
    os.truncate(path, 1 << 40)


def sparse_with_an_end(_row: Row, path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1 << 40)
        file.write(b"end")


def a_hole_from_its_beginning(_row: Row, path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


def deep(_row: Row, path: Path) -> None:
    path.write_text("[" * 100_000)


def deep_mapping(_row: Row, path: Path) -> None:
    path.write_text('{"a":' * 30_000 + "1" + "}" * 30_000)


def aliases(_row: Row, path: Path) -> None:
    path.write_text(BOMB)


def an_alias_of_itself(_row: Row, path: Path) -> None:
    path.write_text("a: &a [*a]\n")


def tags_of_other_values(_row: Row, path: Path) -> None:
    path.write_text("name: !!timestamp x\nlisten: !!bool 7\n")


def numbers_of_thousands_of_digits(_row: Row, path: Path) -> None:
    path.write_text(f"name: 0x{'f' * 9000}\n")


def escapes(_row: Row, path: Path) -> None:
    path.write_text('"\\e]0;owned\\a\\e[31m": "\\e[2J"\n')


def raw_escapes(_row: Row, path: Path) -> None:
    path.write_bytes(b"\x1b]0;owned\x07: \x1b[2J\n")


def named_pipe(_row: Row, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(_row: Row, path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # a name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path.name)
    finally:
        os.chdir(here)


def linked_to_a_directory(_row: Row, path: Path) -> None:
    path.unlink()
    path.symlink_to("/tmp")


def linked_to_nothing(_row: Row, path: Path) -> None:
    path.unlink()
    path.symlink_to("/tmp/no such file of waltz")


def linked_to_itself(_row: Row, path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_directory(_row: Row, path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(_row: Row, path: Path) -> None:
    path.write_bytes(b"")


def truncated(_row: Row, path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def in_another_encoding(_row: Row, path: Path) -> None:
    path.write_bytes(path.read_bytes().decode("latin-1").encode("utf-16"))


def another_users(_row: Row, path: Path) -> None:
    path.chmod(0)


FORMS = [
    larger_than_its_limit,
    sparse,
    sparse_with_an_end,
    a_hole_from_its_beginning,
    deep,
    deep_mapping,
    aliases,
    an_alias_of_itself,
    tags_of_other_values,
    numbers_of_thousands_of_digits,
    escapes,
    raw_escapes,
    named_pipe,
    a_socket,
    linked_to_a_directory,
    linked_to_nothing,
    linked_to_itself,
    a_directory,
    empty,
    truncated,
    in_another_encoding,
    another_users,
]
TEXT_FORMS = (deep_mapping, aliases, an_alias_of_itself, tags_of_other_values, numbers_of_thousands_of_digits, escapes)
"""For a binary file, each of them is what `deep` and `raw_escapes` are too: other bytes."""

NEVER_READ = (named_pipe, a_socket, linked_to_a_directory, linked_to_itself, a_directory)
"""No reader accepts these. Other forms may be a valid file of some kinds: an empty log, or a descriptor of any bytes."""
