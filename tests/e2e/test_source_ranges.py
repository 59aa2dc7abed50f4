"""Executors' reading from storage nodes that fail, lag, lie and return corrupt data: real gRPC, no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.ranges import read_range
from pyspark_waltz.record_batches import ARROW_SCHEMA
from pyspark_waltz.source import SCHEMA
from pyspark_waltz.tasks import LogRange
from pyspark_waltz.testing import StubCluster
from waltz_log.transport import waltz_pb2 as pb

Stub = Callable[..., StubCluster]


def fill(cluster: StubCluster, *, blocks: int = 10, rows: int = 100, partition: int = 0) -> list[bytes]:
    data = [b"%d:" % n + b"x" * (n % 300) for n in range(blocks * rows)]
    for n in range(blocks):
        cluster.append(partition, data[n * rows : (n + 1) * rows], append_time_ms=1_700_000_000_000 + n, headers=lambda at: at % 7 - 3)
    return data


def task(cluster: StubCluster, *, first: int = 0, last: int, partition: int = 0, timeout_ms: int = 5000, **changes: Any) -> LogRange:
    addresses = tuple(node.address for node in cluster.nodes)
    values = {"session": cluster.session, "cluster_key": cluster.key.bytes, "replicas": addresses, "fail_on_data_loss": True, **changes}
    return LogRange(partition=partition, first=first, last=last, fetch_timeout_ms=timeout_ms, **values)


def rows_of(read: LogRange) -> pa.Table:
    return pa.Table.from_batches(list(read_range(read)), schema=ARROW_SCHEMA)


def test_a_range_is_decoded_whole_in_order_with_the_schema_that_spark_wants(stub: Stub) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    cluster = stub()
    data = fill(cluster)
    found = rows_of(task(cluster, first=150, last=849))
    assert found.schema.equals(to_arrow_schema(SCHEMA, timezone="UTC"))
    assert found["transaction_id"].to_pylist() == list(range(150, 850))
    assert found["data"].to_pylist() == data[150:850]
    assert found["header"].to_pylist() == [at % 7 - 3 for at in range(150, 850)]
    assert found["partition"].to_pylist() == [0] * 700
    assert [int(time.timestamp() * 1000) for time in found["timestamp"].to_pylist()] == [1_700_000_000_000 + at // 100 for at in range(150, 850)]


def test_data_may_be_empty_and_large(stub: Stub) -> None:
    cluster = stub()
    data = [b"", b"y" * 3_000_000, b"", b"z"]
    cluster.append(0, data)
    assert rows_of(task(cluster, last=3))["data"].to_pylist() == data


def test_a_node_dying_mid_read_is_left_for_another_without_gap_or_repeat(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)
    victim = cluster.nodes[0]
    sent = 0

    def die_after_three(partition: int, block: pb.Block) -> pb.Block:
        nonlocal sent
        sent += 1
        if sent > 3:
            threading.Thread(target=victim.stop).start()
            threading.Event().wait(0.5)  # its stream is cut while it still owes an answer
        return block

    victim.hook = die_after_three
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data
    assert cluster.nodes[1].reads[0][1] >= 100, "it must go on where the first ended"


def test_a_replica_of_an_older_session_is_skipped_even_if_its_tail_seems_right(stub: Stub) -> None:
    cluster = stub(session=7)
    data = fill(cluster)
    dirty = cluster.nodes[0]
    dirty.session = 6
    dirty.blocks = {0: list(dirty.blocks[0][:-1])}
    other = stub(key=cluster.key)
    fill(other, blocks=9)
    dirty.blocks[0].append(other.append(0, [b"never committed"] * 100))
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data
    assert rows_of(task(cluster, last=999, session=6))["data"].to_pylist() != data, "the tail is dirty indeed: only the session tells"


def test_a_flipped_bit_is_found_and_the_rows_come_from_elsewhere(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)

    def corrupted(partition: int, block: pb.Block) -> pb.Block:
        if block.first_transaction_id <= 512 < block.first_transaction_id + len(block.lengths) // 4:
            records = bytearray(block.records)
            records[len(records) // 2] ^= 1
            block.records = bytes(records)
        return block

    cluster.nodes[0].hook = corrupted
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data
    assert len(cluster.nodes[1].reads) == 1


def test_replicas_with_different_broken_records_serve_all_of_them_together(stub: Stub) -> None:
    cluster = stub(replicas=2)
    data = fill(cluster)

    def corrupt_at(bad: int) -> Callable[[int, pb.Block], pb.Block]:
        def corrupted(partition: int, block: pb.Block) -> pb.Block:
            at = bad - block.first_transaction_id
            if 0 <= at < len(block.lengths) // 4:
                offset = sum(int.from_bytes(block.lengths[4 * n : 4 * n + 4], "big") for n in range(at))
                records = bytearray(block.records)
                records[offset + 36] ^= 0x80
                block.records = bytes(records)
            return block

        return corrupted

    cluster.nodes[0].hook, cluster.nodes[1].hook = corrupt_at(511), corrupt_at(512)
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data


def test_a_replica_that_is_behind_serves_what_it_has(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)
    cluster.nodes[0].blocks = {0: cluster.nodes[0].blocks[0][:4]}
    cluster.nodes[1].blocks = {0: cluster.nodes[1].blocks[0][:2]}
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data


def test_a_node_that_comes_back_in_time_is_used(stub: Stub) -> None:
    cluster = stub(replicas=1)
    data = fill(cluster)
    cluster.nodes[0].stop()
    threading.Timer(0.5, cluster.nodes[0].start).start()
    assert rows_of(task(cluster, last=999))["data"].to_pylist() == data


def test_a_hanging_replica_leaves_time_for_the_others(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)
    release = threading.Event()

    def hang(partition: int, block: pb.Block) -> pb.Block:
        release.wait(30)
        return block

    cluster.nodes[0].hook = hang
    try:
        assert rows_of(task(cluster, last=999, timeout_ms=2500))["data"].to_pylist() == data
    finally:
        release.set()


def test_it_gives_up_only_when_none_can_serve_and_says_what_each_said(stub: Stub) -> None:
    cluster = stub()
    fill(cluster)
    cluster.nodes[0].stop()
    cluster.nodes[1].session = 0
    cluster.nodes[2].cluster_key = b"\0" * 16
    with pytest.raises(RangeUnreadable) as caught:
        rows_of(task(cluster, last=999, timeout_ms=700))
    text = str(caught.value)
    assert all(
        part in text for part in ("unavailable", "replica of an older session", "cluster key mismatch", *(node.address for node in cluster.nodes))
    )
    assert (caught.value.first, caught.value.last) == (0, 999)


def test_without_any_replica_the_error_comes_at_once(stub: Stub) -> None:
    cluster = stub()
    with pytest.raises(RangeUnreadable, match="none"):
        rows_of(task(cluster, last=9, replicas=(), timeout_ms=60_000))


def test_a_replica_that_answers_with_other_ids_or_too_many_is_left(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)

    def other(partition: int, block: pb.Block) -> pb.Block:
        block.first_transaction_id += 1
        return block

    cluster.nodes[0].hook = other
    honest = cluster.nodes[1]._answers
    cluster.nodes[1]._answers = lambda request: honest(  # type: ignore[method-assign]
        pb.ReadRequest(**{**{f.name: v for f, v in request.ListFields()}, "last_transaction_id": 999})
    )
    assert rows_of(task(cluster, last=499))["data"].to_pylist() == data[:500]


def test_a_range_trimmed_while_it_is_read_fails_with_what_was_lost_or_is_skipped(stub: Stub) -> None:
    cluster = stub()
    data = fill(cluster)
    cluster.trim(0, 400)
    with pytest.raises(DataLost) as caught:
        rows_of(task(cluster, first=100, last=999))
    assert (caught.value.first, caught.value.last) == (100, 399)
    assert rows_of(task(cluster, first=100, last=999, fail_on_data_loss=False))["data"].to_pylist() == data[400:]
    assert rows_of(task(cluster, first=100, last=299, fail_on_data_loss=False)).num_rows == 0


def test_importing_the_source_imports_no_grpc_and_no_client() -> None:
    import subprocess
    import sys

    names = "('grpc', 'waltz_log.client.inspection.inspect', 'numpy', 'pyarrow')"
    code = f"import pyspark_waltz, sys; print(sorted(n for n in {names} if n in sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "grpc" not in out.stdout
    assert "client" not in out.stdout
