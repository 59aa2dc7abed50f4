"""Manifests of backups and views whose checksums match and whose contents no program of ours writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.integration.log.files.handed_files import copy, in_backup, in_storage
from tests.integration.log.files.handful import matrix
from tests.integration.log.files.runner import Runner, check
from waltz_log.compaction.manifest import METADATA
from waltz_log.core.formats.backup_manifest import MANIFEST
from waltz_log.core.formats.wal_records import WalRecord, encode_wal_record
from waltz_log.exit_codes import FAILED, MACHINE, OK


def _sealed(fields: dict[str, Any]) -> bytes:
    """With the checksum that the format wants: the author of a manifest can compute it."""
    body = {name: each for name, each in fields.items() if name != "sha256"}
    checksum = sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps(body | {"sha256": checksum}).encode()


def _change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        found: Any = fields
        for name in parents:
            found = found[int(name)] if name.isdigit() else found[name]
        found[int(last) if last.isdigit() else last] = value

    return change


BACKUP = in_backup(MANIFEST)
VIEW_METADATA = in_storage(f"*/*/*/{METADATA}")
NAME = "0" * 19 + ".seg"


def _case_id(where: str, value: Any) -> str:
    return f"{where}-{ascii(value)[:20]}"


def _each(names: Iterable[str], *values: Any) -> list[tuple[str, Any]]:
    return [(name, value) for name in names for value in values]


CRAFTED = [
    *_each(["partition_count"], -1, 0, 1, 3, 1 << 40, 2.0, "2", None, True),
    *_each(["files.0.path"], *(f"partitions/{folder}/{NAME}" for folder in ("00", "²", "٠", "2", "-1", "..", "+0", "", "0/0", "0\n"))),
    *_each(["files.0.path"], "partitions/0/../../x", "/etc/passwd", "partitions/0/x.seg", "partitions/0/.ssh", 7, None, ["a"], NAME),
    *_each(["files.0.size", "files.0.sha256", "files.0.linked"], -1, 1 << 80, None, "x", [], {}, 1.5),
    *_each(("partitions.0." + name for name in ("partition", "fence", "last_transaction_id", "mark")), 1 << 70, "0", None, [], 1.5),
    *_each(["partitions.0.mark.session"], 1 << 63, "0", None),
    *_each(["files", "partitions"], None, {}, "x", [1], [[]], [{"a": 1}]),
    ("cluster_key", 5),
    ("cluster_key", "x" * 10_000),
    ("start", 1 << 70),
    ("creation_time_ms", -(1 << 70)),
    ("unknown", 1),
]


@pytest.mark.parametrize(("where", "value"), matrix(CRAFTED, 1, _case_id))
def test_a_crafted_manifest_of_a_backup_is_refused(where: str, value: Any, runner: Runner, place: Path) -> None:
    manifest = copy(BACKUP, place)
    fields = json.loads(manifest.read_bytes())
    _change(where, value)(fields)
    manifest.write_bytes(_sealed(fields))
    for words in (("restore", str(place / "given"), str(place / "new")), ("verify", str(place / "given"))):
        answer = runner.run({"command": ["storage", *words]}, place)
        check(answer, (MACHINE,))
        assert "unusable manifest" in answer["err"]
        assert len(answer["err"].splitlines()) == 1
    assert sorted(each.name for each in place.iterdir()) == ["given"]


def test_a_manifest_that_is_no_mapping_or_names_a_file_twice_is_refused(runner: Runner, place: Path) -> None:
    manifest = copy(BACKUP, place)
    fields = json.loads(manifest.read_bytes())
    twice = _sealed(fields | {"files": fields["files"] + fields["files"][:1]})
    for content in (b"[]", b"1", b"null", b"[" * 100_000, b'{"sha256": 1}', twice):
        manifest.write_bytes(content)
        answer = runner.run({"command": ["storage", "restore", str(place / "given"), str(place / "new")]}, place)
        check(answer, (MACHINE,))


def test_a_backup_that_states_more_bytes_than_the_disk_has_free_is_refused_at_once(runner: Runner, place: Path) -> None:
    manifest = copy(BACKUP, place)
    fields = json.loads(manifest.read_bytes())
    fields["files"][0]["size"] = 1 << 60
    manifest.write_bytes(_sealed(fields))
    answer = runner.run({"command": ["storage", "restore", str(place / "given"), str(place / "new")]}, place)
    check(answer, (MACHINE,))
    assert "free" in answer["err"]


def test_a_backup_of_a_file_with_a_hole_is_refused_though_its_checksum_would_match(runner: Runner, place: Path) -> None:
    manifest = copy(BACKUP, place)
    fields = json.loads(manifest.read_bytes())
    data = place / "given" / fields["files"][0]["path"]
    os.truncate(data, 1 << 30)
    fields["files"][0]["size"] = 1 << 30
    manifest.write_bytes(_sealed(fields))
    for words in (("restore", str(place / "given"), str(place / "new")), ("verify", str(place / "given"))):
        answer = runner.run({"command": ["storage", *words]}, place)
        check(answer, (MACHINE, FAILED))
        assert "a hole of" in answer["err"] + answer["out"]


VIEW = [
    *_each(("layout", "topic", "partition", "bound", "commit", "not_keyed", "properties"), None, [], "x", 1 << 70, 1.5),
    *_each((f"files.0.{place}" for place in range(9)), -1, 1 << 70, None, "x", []),
    ("files", None),
    ("files", [1]),
    ("files", [[]]),
]
VALID = [["topic", "x"], ["files.0.8", -1], ["files.0.6", -1], ["files.0.7", -1], ["partition", -1]]


@pytest.mark.parametrize(("where", "value"), matrix(VIEW, 1, _case_id))
def test_a_crafted_manifest_of_a_view_is_reported(where: str, value: Any, runner: Runner, place: Path) -> None:
    path = copy(VIEW_METADATA, place)
    _rewrite_view(path, _change(where, value))
    answer = runner.run({"command": ["storage", "verify", str(place / "given")]}, place)
    check(answer, (FAILED, OK) if [where, value] in VALID else (FAILED,))


def test_bits_of_a_view_that_expand_to_gigabytes_are_reported(runner: Runner, place: Path) -> None:
    import zlib
    from base64 import b64encode

    path = copy(VIEW_METADATA, place)
    bomb = b64encode(zlib.compress(bytes(1 << 30), 9)).decode()
    _rewrite_view(path, _change("files.0.5", bomb))
    check(runner.run({"command": ["storage", "verify", str(place / "given")]}, place), (FAILED,))
    _rewrite_view(path, _change("files.0.4", 1 << 50))
    check(runner.run({"command": ["storage", "verify", str(place / "given")]}, place), (FAILED,))


def _rewrite_view(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from waltz_log.core.formats.wal_records import walk_wal_records

    (_, record, _) = next(iter(walk_wal_records(path.read_bytes(), where=METADATA)))
    fields = json.loads(record.value)
    change(fields)
    path.write_bytes(encode_wal_record(WalRecord(record.transaction_id, record.time_ms, record.header, record.key, json.dumps(fields).encode())))
