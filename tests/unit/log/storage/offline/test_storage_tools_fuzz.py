"""Whatever is in the files of a storage directory or a backup: the tools say what they find or refuse with a typed error, in bounded time."""

from __future__ import annotations

import contextlib
import json
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from verification.crashes.storage_model import KEY, FixedClock, block_of
from waltz_log.core.formats.backup_manifest import MANIFEST, BackupFile, BackupManifest, BackupPartition
from waltz_log.core.formats.control_format import CONTROL_FILE, FENCE_FILE, SessionMark
from waltz_log.core.formats.java_control_format import JAVA_ENTRY_BYTES, decode_java_entry
from waltz_log.core.formats.segment_format import DATA, INDEX, TIMES, file_name
from waltz_log.errors import WaltzError
from waltz_log.storage.control.control import ControlFiles
from waltz_log.storage.control.storage_directory import read_directory
from waltz_log.storage.integrity.verify_directory import verify_directory, verify_small_files
from waltz_log.storage.offline.dump import dump_index, dump_records, dump_times
from waltz_log.storage.offline.migrate import migrate
from waltz_log.storage.offline.restore import restore
from waltz_log.storage.offline.segment_statistics import segment_statistics
from waltz_log.storage.segments.segment_log import SegmentLog
from waltz_log.testing.disk import SimulatedDisk

BOUNDED = settings(max_examples=120, deadline=None)


def directory() -> SimulatedDisk:
    disk = SimulatedDisk()
    ControlFiles.create(disk, FixedClock(), KEY, 1)
    log = SegmentLog.open(disk, FixedClock(), KEY, 0, 4096, -1)
    for number in range(9):
        log.append([block_of(0, number * 5, [90] * 5, salt=1)])
    log.close()
    return disk


WHOLE = {path: directory().content(path) for path in (CONTROL_FILE, FENCE_FILE, *(f"0/{name}" for name in directory().list("0")))}
"""Two segments."""


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """One file with some bytes changed, cut off, added or replaced by anything."""
    path = draw(st.sampled_from(sorted(WHOLE)))
    content = bytearray(WHOLE[path])
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        replacement = draw(st.one_of(st.binary(max_size=16), st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 8, bytes(40)])))
        content[at : at + len(replacement)] = replacement
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    return path, bytes(content)


@BOUNDED
@given(st.lists(damaged(), min_size=1, max_size=3))
def test_a_damaged_directory_is_checked_without_a_defect(changes: list[tuple[str, bytes]]) -> None:
    disk = directory()
    for path, content in changes:
        disk.replace(path, content)
    before = {path: disk.content(path) for path in WHOLE}
    try:
        findings, _ = verify_small_files(disk, read_directory(disk))
        reports = list(verify_directory(disk))
        found = findings or any(report.findings for report in reports)
        if not found:
            held = [disk.content(path)[128:] for path in sorted(WHOLE) if path.endswith(".seg")]
            reported = [WHOLE[path][128:] for path in sorted(WHOLE) if path.endswith(".seg")]
            assert held[0] == reported[0], "nothing wrong in a closed segment, and yet other records"
    except WaltzError:
        pass
    for first in (0, 30):
        for tool in (dump_records, dump_index, dump_times):
            assert len(list(tool(disk, "0", first))) < 10_000
        with contextlib.suppress(WaltzError):
            segment_statistics(disk, "0", first)
    with contextlib.suppress(WaltzError):
        migrate(disk)
    assert {path: disk.content(path) for path in WHOLE} == before


@BOUNDED
@given(st.binary(min_size=JAVA_ENTRY_BYTES, max_size=JAVA_ENTRY_BYTES))
def test_any_bytes_are_an_entry_of_the_originals_or_an_invalid_one(data: bytes) -> None:
    assert decode_java_entry(data).current is None, "no checksum of random bytes matches"


MARKS = st.builds(SessionMark, st.integers(-(2**63), 2**63 - 1), st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def manifests(draw: st.DrawFn) -> BackupManifest:
    count = draw(st.integers(1, 3))
    names = st.builds(
        lambda partition, first, kind: f"partitions/{partition}/{file_name(first, kind)}",
        st.integers(0, count - 1),
        st.integers(0, 10**19 - 1),
        st.sampled_from((DATA, INDEX, TIMES)),
    )
    digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
    return BackupManifest(
        cluster_key=UUID(bytes=draw(st.binary(min_size=16, max_size=16))),
        creation_time_ms=draw(st.integers(0, 2**63 - 1)),
        taken_time_ms=draw(st.integers(0, 2**63 - 1)),
        start=draw(st.integers(0, 100)),
        partition_count=count,
        partitions=tuple(BackupPartition(number, draw(MARKS), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)) for number in range(count)),
        files=tuple(
            BackupFile(name, draw(st.integers(0, 2**63 - 1)), draw(digests), draw(st.booleans()))
            for name in draw(st.lists(names, max_size=3, unique=True))
        ),
    )


MANIFESTS = manifests()


@BOUNDED
@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was(manifest: BackupManifest) -> None:
    assert BackupManifest.from_bytes(manifest.to_bytes()) == manifest


@BOUNDED
@given(st.one_of(st.binary(), MANIFESTS.map(BackupManifest.to_bytes)), st.data())
def test_any_other_bytes_are_no_manifest(content: bytes, data: st.DataObject) -> None:
    changed = bytearray(content)
    if changed:
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
    disk = SimulatedDisk()
    disk.open(MANIFEST, "create").write(0, bytes(changed))
    try:
        BackupManifest.from_bytes(bytes(changed))
    except WaltzError:
        try:
            restore(disk, SimulatedDisk(), 1)
        except WaltzError:
            return
        raise AssertionError("restored what is no manifest") from None
    else:
        assert json.loads(changed) == json.loads(content), "only what means nothing may differ"
