"""What the run with a hostile client reports: each thing that must not be is a fault, and its forged frame is what it claims to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from verification.hostile.forging import cancelling
from verification.hostile.honest import PARTITIONS, Outcomes, body
from verification.hostile.run import GROWTH_BYTES_MAX, Attacked, compare
from waltz_log.core.formats.crc import crc32
from waltz_log.core.formats.records import decode_record, encode_records
from waltz_log.errors import CorruptData
from waltz_log.testing import SyncInMemoryCluster

SOUND = Attacked(
    appends=10,
    committed=10,
    failed=[],
    wrong=[],
    breaches=[],
    tried={},
    p50_alone_s=0.002,
    p99_alone_s=0.03,
    p50_s=0.002,
    p99_s=0.05,
    growth_bytes=0,
    late_growth_bytes=0,
)


def test_a_sound_run_has_no_faults() -> None:
    assert SOUND.faults == []
    assert SOUND.slower == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"committed": 9}, "1 appends are not committed"),
        ({"failed": ["3: unknown"]}, "3: unknown"),
        ({"wrong": ["append 3"]}, "append 3"),
        ({"breaches": ["fenced"]}, "fenced"),
        ({"growth_bytes": GROWTH_BYTES_MAX + 1}, "a node grew"),
        ({"late_growth_bytes": GROWTH_BYTES_MAX + 1}, "memory is not flat"),
        ({"ended": ["server-0"]}, "server-0 ended"),
    ],
)
def test_each_thing_that_must_not_be_is_a_fault(changed: dict[str, Any], said: str) -> None:
    assert any(said in each for each in replace(SOUND, **changed).faults)


def test_receipts_are_compared_with_the_log() -> None:
    with SyncInMemoryCluster(partitions=1 + max(PARTITIONS)) as cluster:
        client = cluster.client()
        ids = [client.append(PARTITIONS[number % len(PARTITIONS)], body(number)).transaction_id for number in range(6)]
        right = Outcomes(ids, [0.0] * 6, 3, [], 1)
        assert compare(client, right) == []
        swapped = replace(right, ids=[ids[2], ids[1], ids[0], *ids[3:]])
        assert len(compare(client, swapped)) == 2
        invented = replace(right, ids=[*ids[:5], 77])
        assert compare(client, invented) == [f"partition {PARTITIONS[1]} lacks 1 transactions with a receipt"]


def test_wrong_checksums_cancel_each_other() -> None:
    bodies = [b"cancels %d" % (number % 10) for number in range(4)]
    records = encode_records(5, 1, 0, 0, [0] * 4, bodies)
    length = len(records) // 4
    forged = cancelling(records, length)
    with pytest.raises(CorruptData):
        decode_record(forged)
    with pytest.raises(CorruptData):
        decode_record(forged, length)
    assert forged[2 * length :] == records[2 * length :]
    first, second = (_closing(forged, at * length) ^ _closing(records, at * length) for at in (1, 2))
    zeros = bytes(length)
    assert crc32(first.to_bytes(4, "little") + zeros[4:]) ^ crc32(zeros) == second, "the register is right again after the second"


def _closing(records: bytes, end: int) -> int:
    return int.from_bytes(records[end - 4 : end], "big")
