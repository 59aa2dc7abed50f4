"""The options of the source: each form, each refusal."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from pyspark_waltz.errors import DataLost, DoesNotDecode, RangeUnreadable
from pyspark_waltz.log_view import CONNECT_TIMEOUT_S, inspect_cluster
from pyspark_waltz.options import EARLIEST, LATEST, OPTIONS, Limits, Positions, SourceOptions
from waltz_log.client.inspection import inspect
from waltz_log.errors import InvalidSetting


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"cluster": "127.0.0.1:5101", **options})


def test_every_option_is_read_whatever_its_case() -> None:
    found = SourceOptions.parse(
        {
            "cluster": " 127.0.0.1:5101 ",
            "partitions": "7, 0-2",
            "startingtransactionids": '{"0": 17, "1": -2, "7": -1}',
            "ENDINGTRANSACTIONIDS": '{"0": 20}',
            "maxtransactionspertrigger": "1000",
            "failondataloss": "False",
            "minpartitions": "4",
            "maxrecordsperpartition": "50",
            "fetchtimeoutms": "1500",
        }
    )
    assert found.cluster == "127.0.0.1:5101"
    assert found.partitions == (0, 1, 2, 7)
    assert [found.starting.of(p) for p in (0, 1, 2, 7)] == [17, EARLIEST, EARLIEST, LATEST]
    assert [found.ending.of(p) for p in (0, 1)] == [20, LATEST]
    assert (found.limits.max_rows, found.fail_on_data_loss, found.min_partitions) == (1000, False, 4)
    assert (found.max_records_per_partition, found.fetch_timeout_ms) == (50, 1500)


def test_the_options_of_limits_times_and_modes_are_read() -> None:
    found = SourceOptions.parse(
        {
            "cluster": "h:1/w",
            "startingtransactionids": '{"2": 5}',
            "startingtimestamp": "2023-11-14T22:13:20Z",
            "startingtransactionidsbytimestamp": '{"0": 1700000000001, "1": "2023-11-15T00:13:20.002+02:00"}',
            "startingtransactionidsbytimestampstrategy": "LATEST",
            "endingtimestamp": "1700000000005",
            "maxbytespertrigger": "64m",
            "mintransactionspertrigger": "10",
            "maxtransactionspertrigger": "100",
            "maxtriggerdelay": "30s",
            "includemetadata": "true",
        }
    )
    assert found.starting_times is not None
    assert found.ending_times is not None
    assert [found.starting_times.of(p) for p in (0, 1, 3)] == [1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_000]
    assert (found.starting_times.strict, found.starting_times.otherwise) == (False, EARLIEST)
    assert found.starting.given == {2: 5}
    assert (found.ending_times.of(0), found.ending_times.otherwise, found.bounded) == (1_700_000_000_005, LATEST, True)
    assert found.limits == Limits(100, 64 << 20, 10, 30_000)
    assert (found.include_metadata, found.metadata_mode) == (True, False)
    assert parse(mode="Metadata").metadata_mode


def test_without_a_strategy_nothing_as_new_as_the_start_is_an_error() -> None:
    times = parse(startingTimestamp="0").starting_times
    assert times is not None
    assert times.strict


@pytest.mark.parametrize(("text", "delay_ms"), [("500ms", 500), ("2 s", 2000), ("15m", 900_000), ("1min", 60_000), ("1h", 3_600_000)])
def test_delays_are_reported_with_their_unit(text: str, delay_ms: int) -> None:
    assert parse(minTransactionsPerTrigger="1", maxTriggerDelay=text).limits.delay_ms == delay_ms


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("4k", 4096), ("1 GB", 1 << 30)])
def test_bytes_may_be_reported_with_a_unit(text: str, size: int) -> None:
    assert parse(maxBytesPerTrigger=text).limits.max_bytes == size


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"startingTimestamp": "5", "startingTransactionIds": "latest"}, "cannot be together with startingTransactionIds=latest"),
        ({"endingTimestamp": "5", "endingTransactionIds": "latest"}, "cannot be together with endingTransactionIds=latest"),
        ({"startingTransactionIdsByTimestampStrategy": "latest"}, "does nothing without a timestamp"),
        ({"maxTriggerDelay": "5s"}, "does nothing without minTransactionsPerTrigger"),
        ({"minTransactionsPerTrigger": "5", "maxTransactionsPerTrigger": "4"}, "is above maxTransactionsPerTrigger=4"),
        ({"partitions": "0", "startingTransactionIdsByTimestamp": '{"1": 0}'}, "names partition 1, which option partitions leaves out"),
        ({"bootstrap": "h:1"}, "give the addresses of log servers"),
        ({"bootstrap.servers": "h:1"}, "give the addresses of log servers"),
        ({"tls.caFile": "/ca.pem"}, "TLS is set by the environment variables"),
        ({"TLS": "true"}, "TLS is set by the environment variables"),
        ({"kafka.ssl.truststore.location": "/x"}, "TLS is set by the environment variables"),
        ({"kafka.max.poll.records": "1"}, "is an option of Kafka's source"),
        ({"groupIdPrefix": "x"}, "the checkpoint holds the positions of a query"),
        ({"startingTimestamp": "1700000000"}, "1700000000 is 1970-01-20 in milliseconds; were seconds meant"),
        ({"endingTransactionIdsByTimestamp": '{"0": 1700000000}'}, "were seconds meant"),
        (
            {"startingTransactionIds": '{"0": 5, "1": 3}', "endingTransactionIds": '{"0": 5, "1": 2}'},
            "endingTransactionIds lies before the start: partition=1 start=3 end=2",
        ),
        (
            {"startingTimestamp": "2023-11-14T22:13:20Z", "endingTimestamp": "1699999999999"},
            "endingTimestamp lies before the start: start=2023-11-14T22:13:20.000Z end=2023-11-14T22:13:19.999Z",
        ),
        (
            {"startingTimestamp": "1700000000000", "endingTransactionIdsByTimestamp": '{"3": 1600000000000}'},
            "endingTransactionIdsByTimestamp lies before the start: partition=3 ",
        ),
        ({"ssl.enabled": "true"}, "TLS is set by the environment variables"),
    ],
)
def test_options_that_cannot_be_so_are_refused_with_the_reason(options: dict[str, str], reported: str) -> None:
    with pytest.raises(InvalidSetting, match=reported):
        parse(**options)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOffsets", "startingTransactionIds"),
        ("endingOffsets", "endingTransactionIds"),
        ("startingoffsetsbytimestamp", "startingTransactionIdsByTimestamp"),
        ("maxOffsetsPerTrigger", "maxTransactionsPerTrigger"),
        ("minOffsetsPerTrigger", "minTransactionsPerTrigger"),
        ("subscribe", "topic"),
        ("subscribePattern", "topicPattern"),
        ("assign", "partitions"),
        ("kafka.bootstrap.servers", "cluster"),
    ],
)
def test_a_name_from_kafka_is_refused_with_the_option_to_use(name: str, nearest: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(**{name: "x"})
    assert (caught.value.name, caught.value.nearest) == (name, nearest)
    assert nearest in {option.name for option in OPTIONS}


def test_an_end_at_its_start_and_one_for_other_partitions_are_let_pass() -> None:
    parse(startingTransactionIds='{"0": 5, "1": 9}', endingTransactionIds='{"0": 5, "1": -1}')
    parse(startingTimestamp="1700000000000", endingTimestamp="1700000000000")
    parse(startingTimestamp="1700000000000", startingTransactionIds='{"0": 5}', endingTransactionIdsByTimestamp='{"0": 1600000000000}')


def test_bounds_are_fixed_where_the_options_name_both() -> None:
    found = parse(startingTransactionIds='{"0": 5, "1": -1, "2": 7}', endingTransactionIds='{"0": 9, "1": 9}')
    assert found.fixed_bounds(range(4)) == {0}
    assert parse(startingTimestamp="1700000000000", endingTransactionIds='{"1": 9}').fixed_bounds(range(3)) == {1}
    assert parse(endingTransactionIds='{"1": 9}').fixed_bounds(range(3)) == set()


def test_an_end_of_a_stream_is_a_bounded_replay() -> None:
    for options in ({"endingTransactionIds": '{"0": 7}'}, {"endingTimestamp": "1700000000000"}):
        found = parse(**options)
        found.check_use("stream")
        assert found.bounded
    assert not parse().bounded


def test_modes_refuse_the_options_that_do_nothing_in_them() -> None:
    parse(mode="metadata", partitions="0").check_use("batch")
    with pytest.raises(InvalidSetting, match="is for batch reads only"):
        parse(mode="metadata").check_use("stream")
    with pytest.raises(InvalidSetting, match="startingTimestamp does nothing with mode=metadata"):
        parse(mode="metadata", startingTimestamp="0").check_use("batch")


def test_defaults_read_everything_and_fail_on_loss() -> None:
    found = parse()
    assert found.starting == Positions(EARLIEST)
    assert found.ending == Positions(LATEST)
    assert found.partitions is None
    assert found.limits == Limits()
    assert found.fail_on_data_loss


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(maxtransactionpertriger="5")
    assert caught.value.nearest == "maxTransactionsPerTrigger"
    assert "maxtransactionpertriger" in str(caught.value)


def test_a_path_is_refused_in_favour_of_the_address() -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(path="127.0.0.1:2181")
    assert caught.value.nearest == "cluster"


def test_options_of_spark_itself_are_let_pass() -> None:
    assert parse(checkpointlocation="/tmp/x").cluster


@pytest.mark.parametrize("options", [{}, {"cluster": "  "}])
def test_the_address_is_required(options: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="is required"):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", ""),
        ("partitions", "3-1"),
        ("partitions", "a"),
        ("partitions", "1,,2"),
        ("partitions", "-1"),
        ("partitions", "0-99999999999"),
        ("startingTransactionIds", "erliest"),
        ("startingTransactionIds", "{"),
        ("startingTransactionIds", "[1]"),
        ("startingTransactionIds", '{"0": -3}'),
        ("startingTransactionIds", '{"0": "1"}'),
        ("startingTransactionIds", '{"0": true}'),
        ("startingTransactionIds", '{"x": 1}'),
        ("endingTransactionIds", "earliest"),
        ("endingTransactionIds", '{"0": -2}'),
        ("maxTransactionsPerTrigger", "0"),
        ("maxTransactionsPerTrigger", "many"),
        ("failOnDataLoss", "no"),
        ("minPartitions", "-1"),
        ("maxRecordsPerPartition", "1.5"),
        ("fetchTimeoutMs", "0"),
        ("startingTimestamp", "2023-11-14T22:13:20"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-5"),
        ("startingTimestamp", "999999999999999999"),
        ("endingTimestamp", ""),
        ("startingTransactionIdsByTimestamp", "5"),
        ("startingTransactionIdsByTimestamp", '{"0": true}'),
        ("startingTransactionIdsByTimestamp", '{"a": 5}'),
        ("endingTransactionIdsByTimestamp", "{"),
        ("startingTransactionIdsByTimestampStrategy", "earliest"),
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "5 apples"),
        ("minTransactionsPerTrigger", "x"),
        ("maxTriggerDelay", "15"),
        ("includeMetadata", "1"),
        ("mode", "topics"),
    ],
)
def test_an_unusable_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(**{name: value})
    assert caught.value.name == name


def test_a_position_outside_of_the_chosen_partitions_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="partition 3"):
        parse(partitions="0-2", startingTransactionIds='{"3": 1}')


def test_options_of_the_other_use_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="cannot be latest in a stream"):
        parse(endingTransactionIds="latest").check_use("stream")
    with pytest.raises(InvalidSetting, match="stream reads only"):
        parse(maxTransactionsPerTrigger="5").check_use("batch")


def test_options_and_errors_survive_pickling() -> None:
    options = parse(startingTransactionIds='{"0": 4}')
    assert pickle.loads(pickle.dumps(options)) == options
    for error in (
        DataLost(partition=1, first=2, last=3, reason="trimmed"),
        DoesNotDecode(partition=1, transaction_id=2, reason="k is not INT: x"),
        RangeUnreadable(partition=1, first=2, last=3, waited_ms=4, attempts="a: b"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_the_key_of_the_cluster_is_checked_at_the_drivers_first_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    key = UUID("a183fca3-ed08-410a-ad31-ca0dd3380748")
    connected: list[tuple[object, ...]] = []
    monkeypatch.setattr(inspect, "ClusterInspector", lambda *given: connected.append(given))
    inspect_cluster(parse(clusterKey=f" {key} ", fetchTimeoutMs="500"))
    inspect_cluster(parse())
    assert connected == [("127.0.0.1:5101", 0.5, key), ("127.0.0.1:5101", CONNECT_TIMEOUT_S, None)]
    with pytest.raises(InvalidSetting, match=r"^clusterKey must be a key as `waltz cluster status` shows it, got 'main'$"):
        parse(clusterKey="main")
