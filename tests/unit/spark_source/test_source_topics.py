"""Topics in the source, without Spark: which partitions options mean, columns of key and value, compacted views and the log behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.naming import TopicOf, Wanted, naming_topic
from pyspark_waltz.offsets import Extent, Offset
from pyspark_waltz.options import SourceOptions
from pyspark_waltz.planner import ViewEnd, view_end
from pyspark_waltz.record_batches import PADDING, arrow_schema, record_batch
from pyspark_waltz.schema import SCHEMA, TOPIC_FIELDS
from pyspark_waltz.tasks import LogRange, ViewRange
from pyspark_waltz.testing import StubCluster, StubInspector, StubSource, block_of
from waltz_log.core.formats.envelope import pack_keyed, split_keyed
from waltz_log.core.topics.catalogue import Catalogue
from waltz_log.core.topics.topic_names import TopicName
from waltz_log.errors import ConnectionLost, EnvelopeBroken, InvalidSetting, NoSuchTopic, NotAllowed, PermissionDenied, Unavailable

T0 = 1_700_000_000_000
ORDERS = TopicOf("shop/orders", True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StubCluster]:
    made = StubCluster(tmp_path, partitions=8, replicas=2)
    yield made
    made.close()


@pytest.fixture
def stream(cluster: StubCluster) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(**options: str) -> Any:
        made.append(StubSource({"cluster": cluster.address, **options}).streamReader(SCHEMA))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def rows(reader: Any, tasks: Any) -> list[tuple[Any, ...]]:
    """(topic, key, data, partition, transaction id) of all tasks."""
    found = []
    for task in tasks:
        for batch in reader.read(task):
            columns = [batch.column(name).to_pylist() for name in ("topic", "key", "data", "partition", "transaction_id")]
            found += list(zip(*columns, strict=True))
    return found


def read_all(cluster: StubCluster, **options: str) -> list[tuple[Any, ...]]:
    reader = StubSource({"cluster": cluster.address, "fetchTimeoutMs": "3000", **options}).reader(SCHEMA)
    return rows(reader, reader.partitions())


# ---- options ---------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"topic": "orders"}, "not a topic's name"),
        ({"topic": "shop/orders,"}, "not a topic's name"),
        ({"topicPattern": "shop/("}, "not a regular expression"),
        ({"topic": "a/b", "topicPattern": "a/.*"}, "cannot be together with topic"),
        ({"compacted": "true"}, "needs topic or topicPattern"),
        ({"compacted": "true", "topic": "a/b", "startingTransactionIds": "latest"}, "cannot be combined with compacted"),
        ({"compacted": "true", "topic": "a/b", "endingTimestamp": "0"}, "cannot be combined with compacted"),
        ({"compacted": "true", "topic": "a/b", "includeMetadata": "true"}, "cannot be combined with compacted"),
        ({"compacted": "true", "topic": "a/b", "filterPushdown": "true"}, "is read whole"),
        ({"topic": "a/b", "principal": "somebody else"}, "principal"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(options: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=reported):
        SourceOptions.parse({"cluster": "h:1/w", **options})


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"startingTransactionIds": '{"a/b": 3}'}, "names topic a/b, which needs topic or topicPattern"),
        ({"topic": "a/b", "startingTransactionIds": '{"a/bb": 3}'}, "no such topic of those read, .* .did you mean a/b"),
        ({"topicPattern": "a/.*", "endingTransactionIds": '{"c/b": 3}'}, "which topicPattern does not match"),
        ({"topic": "a/b", "startingTransactionIds": '{"a/b": "soon"}'}, "must be earliest, latest or JSON"),
        ({"topic": "a/b", "startingTransactionIds": '{"a/b": {"x": 3}}'}, "must be earliest, latest or JSON"),
        ({"topic": "a/b", "endingTransactionIds": '{"a/b": -2}'}, "must be latest or JSON"),
        ({"topic": "a/b", "startingTransactionIdsByTimestamp": '{"a/b": {"0": "yesterday"}}'}, "must be milliseconds"),
        ({"compacted": "true", "topic": "a/b", "startingTransactionIds": '{"a/b": 3}'}, "cannot be combined with compacted"),
    ],
)
def test_a_topic_named_in_a_position_is_one_that_is_read(options: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=reported):
        SourceOptions.parse({"cluster": "h:1/w", **options})


def test_positions_may_name_topics_and_their_own_partitions(cluster: StubCluster, stream: Callable[..., Any]) -> None:
    """Whose log partitions only the catalogue knows: here 0 and 1, and 2 and 3."""
    cluster.create_topic("shop/orders", 2)
    cluster.create_topic("shop/returns", 2)
    for partition in range(4):
        for second in range(3):
            cluster.append(partition, [b"x"] * 4, append_time_ms=T0 + 1000 * second)

    def ids(starts: str, ends: str = "{}", **options: str) -> dict[int, tuple[int, int]]:
        given = {"startingTransactionIds": starts, "endingTransactionIds": ends, "topicPattern": "shop/.*", **options}
        tasks = StubSource({"cluster": cluster.address, **given}).reader(SCHEMA).partitions()
        return {task.partition: (task.first, task.last) for task in tasks if isinstance(task, LogRange)}

    assert ids('{"shop/orders": -1, "shop/returns": {"1": 5}}') == {2: (0, 11), 3: (5, 11)}
    assert ids('{"shop/orders": 3, "1": 7}', '{"shop/orders": {"0": 9}, "shop/returns": 2}') == {0: (3, 8), 1: (7, 11), 2: (0, 1), 3: (0, 1)}
    at_time = f'{{"shop/orders": {{"1": {T0 + 1000}}}, "shop/returns": "2023-11-14T22:13:22Z"}}'
    assert ids('{"shop/returns": {"0": 6}}', startingTransactionIdsByTimestamp=at_time) == {0: (0, 11), 1: (4, 11), 2: (6, 11), 3: (8, 11)}
    for starts, reported in (
        ('{"shop/orders": {"2": 5}}', "partition 2 of topic shop/orders, of which are read 0,1"),
        ('{"shop/gone": 5}', "is not read"),
    ):
        with pytest.raises(InvalidSetting, match=reported):
            ids(starts)
    with pytest.raises(InvalidSetting, match="of which are read 1"):
        ids('{"shop/orders": {"0": 5}}', partitions="1-3")
    ending = stream(topicPattern="shop/.*", endingTransactionIds='{"shop/returns": 2, "shop/later": 1}')
    first = ending.latestOffset(ending.initialOffset(), ReadAllAvailable())
    assert {p: at for p, at in first.items() if p.isdecimal()} == {"0": 12, "1": 12, "2": 2, "3": 2}
    cluster.create_topic("shop/later", 1)
    cluster.append(4, [b"x"] * 4)
    assert ending.latestOffset(first, ReadAllAvailable())["4"] == 1, "an end for a topic that came later"


def test_a_stream_refuses_a_compacted_view_and_says_why() -> None:
    options = SourceOptions.parse({"cluster": "h:1/w", "topic": "a/b", "compacted": "true"})
    with pytest.raises(InvalidSetting, match="could not read the same rows"):
        options.check_use("stream")
    options.check_use("batch")
    assert SourceOptions.parse({"cluster": "h:1/w", "topic": "a/b, c/d,a/b"}).topics == ("a/b", "c/d")


def test_the_schema_has_topic_and_key_only_where_they_are_asked_for() -> None:
    assert StubSource({"cluster": "x"}).schema() == SCHEMA
    for option in ({"topic": "a/b"}, {"topicPattern": ".*"}):
        assert StubSource({"cluster": "x", **option}).log_columns().fields == [*SCHEMA.fields, *TOPIC_FIELDS]
    with_metadata = StubSource({"cluster": "x", "topic": "a/b", "includeMetadata": "true"}).log_columns()
    assert with_metadata.names == arrow_schema(include_metadata=True, by_topic=True).names


def test_names_and_patterns_mean_whole_names_and_deleted_topics_stay_with_a_pattern() -> None:
    catalogue = Catalogue()
    for name, partitions in (("shop/orders", 2), ("shop/orders-old", 1), ("air/seats", 1)):
        catalogue, _ = catalogue.with_new(TopicName.parse(name), type="regular", partitions=partitions, pool=range(9), now_ms=0)
    assert set(Wanted(("air/seats", "shop/orders"), None).partitions(catalogue, {})) == {0, 1, 3}
    assert set(Wanted(None, "shop/orders").partitions(catalogue, {})) == {0, 1}
    assert set(Wanted(None, "shop/.*").partitions(catalogue, {})) == {0, 1, 2}
    assert Wanted(None, "none").partitions(catalogue, {}) == {}
    with pytest.raises(NoSuchTopic):
        Wanted(("shop/order",), None).partitions(catalogue, {})
    known = {p: found.topic for p, found in Wanted(None, ".*").partitions(catalogue, {}).items()}
    left, _ = catalogue.without(TopicName.parse("shop/orders"))
    assert set(Wanted(None, "shop/.*").partitions(left, known)) == {0, 1, 2}, "what it holds is read to its end"
    assert set(Wanted(None, "air/.*").partitions(left, known)) == {3}, "a pattern that changed"
    assert set(Wanted(None, "shop/.*").partitions(left, {})) == {2}, "one that was never read"
    free = left.released(0).released(1)
    assert set(Wanted(None, "shop/.*").partitions(free, known)) == {2}, "nothing of it is left, and whoever appends there is another one"


def test_a_log_partition_that_another_topic_has_now_is_read_from_where_that_begins(cluster: StubCluster, stream: Callable[..., Any]) -> None:
    cluster.create_topic("shop/a", 1)
    cluster.append(0, [b"old-0", b"old-1"])
    reader = stream(topicPattern="shop/.*")
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    assert len(rows(reader, reader.partitions(start, end))) == 2
    cluster.delete_topic("shop/a")
    cluster.catalogue = cluster.catalogue.released(0)
    cluster.publish()
    gone = json.loads(json.dumps(reader.latestOffset(end, ReadAllAvailable())))
    assert rows(reader, reader.partitions(end, gone)) == []
    cluster.append(0, [b"of nobody"])
    assert rows(reader, reader.partitions(gone, json.loads(json.dumps(reader.latestOffset(gone, ReadAllAvailable()))))) == []
    about: dict[str, Any] = {"type": "regular", "partitions": 1, "pool": range(1), "now_ms": 0}
    found, topic = cluster.catalogue.reserved(TopicName.parse("shop/b"), **about)
    cluster.catalogue, _ = found.activated(topic, (3,))
    cluster.publish()
    cluster.append(0, [b"new"])
    assert read_all(cluster, topic="shop/b") == [("shop/b", None, b"new", 0, 3)]


# ---- key and value ---------------------------------------------------------------------------------------------------------------------------------


def batch_of(data: list[bytes], topic: TopicOf | None, first: int = 7) -> pa.RecordBatch:
    block = block_of(3, first, data, append_time_ms=T0)
    return record_batch(block.records + PADDING, block.lengths, np.full(len(data), T0), topic=topic)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), min_size=1, max_size=40))
def test_keys_and_values_are_what_the_plain_splitting_gives(pairs: list[tuple[bytes, bytes]]) -> None:
    batch = batch_of([pack_keyed(key, value) for key, value in pairs], ORDERS)
    assert batch.column("key").to_pylist() == [key for key, _ in pairs]
    assert batch.column("data").to_pylist() == [value for _, value in pairs]
    assert batch.column("topic").to_pylist() == ["shop/orders"] * len(pairs)
    assert batch.column("key").null_count == 0
    plain = batch_of([value for _, value in pairs], TopicOf("a/b", False))
    assert plain.column("data").to_pylist() == [value for _, value in pairs]
    assert plain.column("key").to_pylist() == [None] * len(pairs)
    assert batch.schema == plain.schema == arrow_schema(include_metadata=False, by_topic=True)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=12)
    | st.builds(
        lambda version, length, rest: bytes([version]) + length.to_bytes(4, "big") + rest,
        st.integers(0, 2),
        st.integers(0, 9) | st.integers(65_535, 65_537) | st.just(2**31) | st.just(2**32 - 1),
        st.binary(max_size=9),
    ),
    st.integers(0, 2),
)
def test_data_are_broken_exactly_where_the_plain_splitting_says_so(data: bytes, place: int) -> None:
    good = [pack_keyed(b"k", b"v")] * 3
    all_data = [*good[:place], data, *good[place:]]
    if split_keyed(data) is not None:
        assert batch_of(all_data, ORDERS).column("key").to_pylist()[place] == split_keyed(data).key  # type: ignore[union-attr]
        return
    with pytest.raises(EnvelopeBroken) as raised:
        batch_of(all_data, ORDERS)
    assert raised.value.facts == {"topic": "shop/orders", "partition": 3, "transaction_id": 7 + place}


# ---- the log of topics -----------------------------------------------------------------------------------------------------------------------------


def test_a_batch_reads_the_named_topics_and_reports_topic_and_key(cluster: StubCluster) -> None:
    cluster.create_topic("a/other", 1)
    orders = cluster.create_topic("shop/orders", 2, keyed=True)
    clicks = cluster.create_topic("shop/clicks", 1)
    cluster.append(0, [b"not read"])
    cluster.append(orders.partitions[1], [pack_keyed(b"k", b"v"), pack_keyed(b"gone", b"")])
    cluster.append(clicks.partitions[0], [b"raw"])
    expected = [("shop/orders", b"k", b"v", 2, 0), ("shop/orders", b"gone", b"", 2, 1), ("shop/clicks", None, b"raw", 3, 0)]
    assert read_all(cluster, topic="shop/clicks,shop/orders") == expected
    assert read_all(cluster, topicPattern="shop/.*") == expected
    assert read_all(cluster, topicPattern="none/.*") == []
    assert read_all(cluster, topic="shop/clicks,shop/orders", partitions="0,3") == expected[2:], "of theirs, these"
    with StubInspector(cluster.address) as inspector:
        options = {"cluster": cluster.address, "topicPattern": "shop/.*"}
        assert SourceOptions.parse(options).wanted_partitions(inspector.catalogue) == (1, 2, 3)
        assert SourceOptions.parse({**options, "partitions": "0-2"}).wanted_partitions(inspector.catalogue) == (1, 2)
    assert SourceOptions.parse({"cluster": "x"}).wanted_partitions(Catalogue) is None
    with pytest.raises(NoSuchTopic, match="did you mean shop/orders"):
        read_all(cluster, topic="shop/order")
    cluster.append(orders.partitions[0], [pack_keyed(b"k", b"v"), b"around the topic"])
    with pytest.raises(EnvelopeBroken, match="partition=1 transaction_id=1"):
        read_all(cluster, topic="shop/orders")


def test_new_topics_are_read_from_their_beginning_and_deleted_ones_to_their_end(cluster: StubCluster, stream: Callable[..., Any]) -> None:
    cluster.create_topic("shop/a", 1, keyed=True)
    cluster.append(0, [pack_keyed(b"k", b"0")])
    reader = stream(topicPattern="shop/.*", startingTransactionIds="latest")
    start = json.loads(json.dumps(reader.initialOffset()))
    assert start["topics"] == {"0": ["shop/a", True]}
    cluster.create_topic("other/b", 1)
    cluster.create_topic("shop/c", 2)
    cluster.append(1, [b"of another topic"])
    cluster.append(3, [b"new"])
    cluster.append(0, [pack_keyed(b"k", b"1")])
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    assert rows(reader, reader.partitions(start, end)) == [("shop/a", b"k", b"1", 0, 1), ("shop/c", None, b"new", 3, 0)]
    cluster.append(0, [pack_keyed(b"k", b"2")])
    cluster.delete_topic("shop/a")
    last = json.loads(json.dumps(reader.latestOffset(end, ReadAllAvailable())))
    assert rows(reader, reader.partitions(end, last)) == [("shop/a", b"k", b"2", 0, 2)], "what it holds is read to its end"
    assert reader.latestOffset(last, ReadAllAvailable()) is last
    again = stream(topicPattern="shop/.*")
    assert rows(again, again.partitions(start, end)) == rows(reader, reader.partitions(start, end)), "a batch that runs again says the same"
    again.prepareForTriggerAvailableNow()
    assert json.loads(json.dumps(again.latestOffset(end, ReadAllAvailable()))) == last
    named = stream(topic="shop/a")
    with pytest.raises(NoSuchTopic, match="shop/a"):
        named.latestOffset(last, ReadAllAvailable())


@pytest.mark.parametrize("seed", range(8))
def test_a_stream_over_a_topic_that_is_trimmed_reads_all_that_is_there_and_names_the_rest(
    cluster: StubCluster, stream: Callable[..., Any], seed: int
) -> None:
    random = Random(seed)
    cluster.create_topic("shop/orders", 2, keyed=True)
    strict, loose = stream(topic="shop/orders"), stream(topic="shop/orders", failOnDataLoss="false")
    offset = json.loads(json.dumps(loose.initialOffset()))
    read: dict[int, list[int]] = {0: [], 1: []}
    lost: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(12):
        for partition in (0, 1):
            for _ in range(random.randrange(3)):
                cluster.append(partition, [pack_keyed(b"k", b"v")] * random.randrange(1, 4))
            if random.random() < 0.4 and partition in cluster.marks():
                first = cluster.first.get(partition, 0)
                cluster.trim(partition, random.randrange(first, cluster.marks()[partition] + 2))
        end = loose.latestOffset(offset, ReadAllAvailable())
        if end is offset:
            continue
        end = json.loads(json.dumps(end))
        reported: list[DataLost] = []
        try:
            strict.partitions(offset, end)
        except DataLost as error:
            reported.append(error)
        before = {partition: len(ids) for partition, ids in read.items()}
        for _, _, _, partition, at in rows(loose, loose.partitions(offset, end)):
            read[partition].append(at)
        for partition in (0, 1):
            wanted = set(range(offset.get(str(partition), 0), end[str(partition)]))
            gone = sorted(wanted - set(read[partition][before[partition] :]))
            lost[partition] += gone
            assert gone == [at for at in gone if at < cluster.first.get(partition, 0)], "nothing that is still there"
            if reported and reported[0].partition == partition:
                assert gone == list(range(reported[0].first, reported[0].last + 1)), "exactly what is told"
        assert bool(reported) == any(set(range(offset.get(str(p), 0), end[str(p)])) - set(read[p][before[p] :]) for p in (0, 1))
        offset = end
    for partition, mark in cluster.marks().items():
        assert sorted(read[partition] + lost[partition]) == list(range(int(offset[str(partition)])))
        assert read[partition] == sorted(set(read[partition]))
        assert int(offset[str(partition)]) <= mark + 1


def test_offsets_with_topics_survive_text() -> None:
    offset = Offset({3: 7, 0: 1}, topics={3: TopicOf("shop/orders", True), 0: TopicOf("a/b", False)})
    assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert "topics" not in Offset({0: 1}).to_json()
    with pytest.raises(InvalidSetting):
        Offset.from_json({"0": 1, "topics": {"0": ["short"]}})


def test_metadata_of_topics_is_of_their_partitions(cluster: StubCluster) -> None:
    cluster.create_topic("shop/a", 2)
    cluster.create_topic("shop/b", 1)
    reader = StubSource({"cluster": cluster.address, "topic": "shop/b", "mode": "metadata"}).reader(SCHEMA)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.column("partition").to_pylist() == [2]


def test_a_principal_that_may_not_read_is_refused_at_once(cluster: StubCluster) -> None:
    cluster.create_topic("shop/a", 1)
    cluster.append(0, [b"x"])
    for node in cluster.nodes:
        node.readers[0] = ("ada",)
    assert len(read_all(cluster, topic="shop/a", principal="ada")) == 1
    for other in ({}, {"principal": "bob"}):
        with pytest.raises(NotAllowed, match="may not read"):
            read_all(cluster, topic="shop/a", **other)


# ---- compacted views -------------------------------------------------------------------------------------------------------------------------------


def test_a_view_ends_where_most_replicas_reach_and_where_the_log_begins_at_least() -> None:
    assert view_end({}, Extent(0, 9), 0) == ViewEnd(0, ())
    assert view_end({"a": 0}, Extent(0, 9), 0) == ViewEnd(0, ())
    assert view_end({"a": 4, "b": 9, "c": 6}, Extent(0, 9), 0) == ViewEnd(6, ("b", "c"))
    assert view_end({"a": 4, "b": 9}, Extent(0, 9), 0) == ViewEnd(4, ("a", "b"))
    assert view_end({"a": 4, "b": 9, "c": 6}, Extent(7, 9), 0) == ViewEnd(9, ("b",))
    for ends in ({}, {"a": 4}):
        with pytest.raises(Unavailable, match="log_begins=5"):
            view_end(ends, Extent(5, 9), 0)


def fill(cluster: StubCluster, partition: int, random: Random, count: int) -> None:
    for _ in range(count):
        data = [pack_keyed(b"%d" % random.randrange(12), random.choice([b"", b"%d" % random.randrange(99)])) for _ in range(random.randrange(1, 6))]
        cluster.append(partition, data)


def folded(found: list[tuple[Any, ...]]) -> dict[bytes, bytes]:
    """What a reader knows that applies rows in the order of their ids."""
    state: dict[bytes, bytes] = {}
    for _, key, data, _, _ in sorted(found, key=lambda row: row[4]):
        state[key] = data
    return {key: data for key, data in state.items() if data}


def plainly(cluster: StubCluster, partition: int) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for block in cluster.nodes[0].blocks[partition]:
        for _, key, data, _, _ in [(0, *split(each), 0, 0) for each in data_of(block)]:
            state[key] = data
    return {key: data for key, data in state.items() if data}


def split(data: bytes) -> tuple[bytes, bytes]:
    found = split_keyed(data)
    assert found is not None
    return found


def data_of(block: Any) -> list[bytes]:
    found, at = [], 0
    for n in range(0, len(block.lengths), 4):
        length = int.from_bytes(block.lengths[n : n + 4], "big")
        found.append(block.records[at + 36 : at + length - 4])
        at += length
    return found


@pytest.mark.parametrize("seed", range(6))
def test_the_view_and_the_log_behind_it_fold_to_what_the_whole_log_does(cluster: StubCluster, seed: int) -> None:
    random = Random(seed)
    cluster.create_topic("shop/stock", 2, type="compaction")
    fill(cluster, 0, random, 30)
    fill(cluster, 1, random, 5)
    end = random.randrange(1, cluster.marks()[0] + 2)
    cluster.compact(0, end)
    cluster.compact(0, min(cluster.marks()[0] + 1, end + random.randrange(9)), nodes=[1])
    found = read_all(cluster, topic="shop/stock", compacted="true")
    ids = [(row[3], row[4]) for row in found]
    assert len(set(ids)) == len(ids), "nothing comes twice"
    assert len([row for row in found if row[3] == 0]) <= 12 + cluster.marks()[0] + 1 - end
    for partition in (0, 1):
        assert folded([row for row in found if row[3] == partition]) == plainly(cluster, partition)
    cluster.trim(0, end)
    assert folded([row for row in read_all(cluster, topic="shop/stock", compacted="true") if row[3] == 0]) == plainly(cluster, 0)


@pytest.mark.parametrize("seed", range(6))
def test_compaction_between_planning_and_reading_loses_no_key(cluster: StubCluster, seed: int) -> None:
    random = Random(seed)
    cluster.create_topic("shop/stock", 1, type="compaction")
    fill(cluster, 0, random, 20)
    cluster.compact(0, cluster.marks()[0] // 2)
    reader = StubSource({"cluster": cluster.address, "topic": "shop/stock", "compacted": "true"}).reader(SCHEMA)
    tasks = reader.partitions()
    assert [type(task) for task in tasks] == [ViewRange, LogRange]
    before = plainly(cluster, 0)
    fill(cluster, 0, random, 20)
    cluster.compact(0, cluster.marks()[0] + 1 - random.randrange(40))
    now = plainly(cluster, 0)
    found = rows(reader, tasks)
    assert len({row[4] for row in found}) == len(found)
    reported = {key: data for _, key, data, _, _ in sorted(found, key=lambda row: row[4])}
    for key in {*before, *now}:
        if key in before:
            assert key in reported, "a key that was there when the frame was planned"
        assert reported.get(key, b"") in (before.get(key, b""), now.get(key, b""), *(data for k, data in history(cluster) if k == key))


def history(cluster: StubCluster) -> list[tuple[bytes, bytes]]:
    return [split(data) for block in cluster.nodes[0].blocks[0] for data in data_of(block)]


def test_a_view_is_read_on_at_another_replica_that_ends_no_earlier(cluster: StubCluster) -> None:
    cluster.create_topic("shop/stock", 1, type="compaction")
    cluster.append(0, [pack_keyed(key, b"old") for key in (b"a", b"b", b"c", b"d", b"e", b"f")])
    cluster.compact(0, 6)
    reader = StubSource({"cluster": cluster.address, "topic": "shop/stock", "compacted": "true"}).reader(SCHEMA)
    (task,) = reader.partitions()
    assert isinstance(task, ViewRange)
    first, second = cluster.nodes
    task = replace(task, replicas=(first.address, second.address), fetch_timeout_ms=600)
    cluster.append(0, [pack_keyed(b"b", b"new")])
    cluster.compact(0, 7, nodes=[0])

    def stop_after_the_first_page(sent: int) -> None:
        if sent:
            raise ConnectionLost(address=first.address, reason="as the test asked for")

    first.view_hook = stop_after_the_first_page
    with pytest.raises(RangeUnreadable, match="out of range"):
        rows(reader, [task])  # the first page left b out, and the other view has it below
    cluster.compact(0, 7, nodes=[1])
    found = rows(reader, [task])
    assert [(row[1], row[4]) for row in found] == [(b"a", 0), (b"c", 2), (b"d", 3), (b"e", 4), (b"f", 5), (b"b", 6)]


def test_a_topic_without_views_cannot_be_read_compacted(cluster: StubCluster) -> None:
    cluster.create_topic("shop/orders", 1, keyed=True)
    with pytest.raises(InvalidSetting, match="not a compaction topic"):
        read_all(cluster, topic="shop/orders", compacted="true")


def test_a_denial_names_the_topic_of_the_query_and_nothing_else_changes() -> None:
    job, orders = "spiffe://waltz/reader/job", TopicOf("shop/orders", False)
    of_partition = PermissionDenied(principal=job, operation="read or append or resolve", resource="log:3")
    assert str(naming_topic(of_partition, orders)) == f"permission denied: no rule permits {job} to read shop/orders"
    assert naming_topic(of_partition, None) is of_partition
    for error in (
        PermissionDenied(principal=job, operation="read", resource="shop/orders:0"),
        PermissionDenied(principal=job, operation="/waltz.Server/Bound", roles="reader"),
        NotAllowed(action="read", topic="shop/orders", principal=None),
    ):
        assert naming_topic(error, orders) is error
