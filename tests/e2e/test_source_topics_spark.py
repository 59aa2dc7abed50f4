"""Topics in a real Spark: one stream over a pattern that grows, key and value apart; and one compacted read. The rest is tested without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_waltz.schema import schema_of
from waltz_log.core.formats.envelope import pack_keyed

T0 = 1_700_000_000_000


def test_a_compacted_read_and_a_refused_one(spark: Any, stub: Callable[..., Any]) -> None:
    log = stub(partitions=2, replicas=2)
    log.create_topic("shop/stock", 2, type="compaction")
    log.append(0, [pack_keyed(b"tea", b"1"), pack_keyed(b"jam", b"2"), pack_keyed(b"tea", b"3")], append_time_ms=T0, headers=lambda at: at)
    log.compact(0, 3)
    log.append(0, [pack_keyed(b"jam", b""), pack_keyed(b"rye", b"5")], append_time_ms=T0)
    frame = spark.read.format("waltz_stub").options(cluster=log.address, topic="shop/stock", compacted="true").load()
    assert frame.schema == schema_of(include_metadata=False, by_topic=True)
    found = sorted((row.partition, row.transaction_id, row.header, row.topic, bytes(row.key), bytes(row.data)) for row in frame.collect())
    rows = [(0, 1, 1, b"jam", b"2"), (0, 2, 2, b"tea", b"3"), (0, 3, 0, b"jam", b""), (0, 4, 0, b"rye", b"5")]
    assert found == [(partition, at, header, "shop/stock", key, data) for partition, at, header, key, data in rows]
    with pytest.raises(PySparkException, match="no such topic"):
        spark.read.format("waltz_stub").options(cluster=log.address, topic="shop/stok").load().collect()


@pytest.mark.slow
def test_a_stream_over_a_pattern_includes_new_topics_and_survives_restarts(spark: Any, stub: Callable[..., Any], tmp_path: Path) -> None:
    log = stub(partitions=6, replicas=2)
    log.create_topic("shop/orders", 2, keyed=True)
    log.create_topic("air/seats", 1)
    appended: list[tuple[str, bytes | None, bytes]] = []

    def append(partition: int, topic: str, key: bytes | None, value: bytes) -> None:
        log.append(partition, [value if key is None else pack_keyed(key, value)], append_time_ms=T0)
        appended.append((topic, key, value))

    def run() -> Any:
        stream = spark.readStream.format("waltz_stub").options(cluster=log.address, topicPattern="shop/.*").load()
        query = stream.writeStream.format("parquet").options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        started = query.trigger(availableNow=True).start()
        assert started.awaitTermination(120)
        return started

    log.append(2, [b"of another topic"], append_time_ms=T0)
    append(0, "shop/orders", b"a", b"1")
    run()
    log.create_topic("shop/returns", 2)
    append(3, "shop/returns", None, b"raw")
    append(1, "shop/orders", b"b", b"")
    run()
    append(0, "shop/orders", b"a", b"2")
    log.delete_topic("shop/orders")
    last = run()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row.topic, row.key, bytes(row.data)) for row in found if row.key is not None) == sorted(each for each in appended if each[1])
    assert [(row.topic, bytes(row.data)) for row in found if row.key is None] == [("shop/returns", b"raw")]
    assert json.loads(last.lastProgress.sources[0].endOffset)["topics"]["0"] == ["shop/orders", True]
    log.append(3, [b"more"], append_time_ms=T0)
    log.create_topic("shop/broken", 1, keyed=True)
    log.append(5, [b"around the topic"], append_time_ms=T0)
    with pytest.raises(PySparkException, match="does not begin with a key: topic=shop/broken partition=5 transaction_id=0"):
        run()
