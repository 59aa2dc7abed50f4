"""The options of the source: each form, each refusal."""

from __future__ import annotations

import pickle

import pytest

from pyspark_waltz.errors import DataLost, RangeUnreadable
from pyspark_waltz.options import EARLIEST, LATEST, Limits, Positions, SourceOptions
from waltz_log.errors import InvalidSetting


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({"cluster": "127.0.0.1:2181/waltz", **options})


def test_every_option_is_read_whatever_its_case() -> None:
    found = SourceOptions.parse(
        {
            "cluster": " 127.0.0.1:2181/waltz ",
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
    assert found.cluster == "127.0.0.1:2181/waltz"
    assert found.partitions == (0, 1, 2, 7)
    assert [found.starting.of(p) for p in (0, 1, 2, 7)] == [17, EARLIEST, EARLIEST, LATEST]
    assert [found.ending.of(p) for p in (0, 1)] == [20, LATEST]
    assert (found.limits.max_rows, found.fail_on_data_loss, found.min_partitions) == (1000, False, 4)
    assert (found.max_records_per_partition, found.fetch_timeout_ms) == (50, 1500)


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
    with pytest.raises(InvalidSetting, match="no end for a stream"):
        parse(endingTransactionIds="latest").check_use("stream")
    with pytest.raises(InvalidSetting, match="stream reads only"):
        parse(maxTransactionsPerTrigger="5").check_use("batch")


def test_options_and_errors_survive_pickling() -> None:
    options = parse(startingTransactionIds='{"0": 4}')
    assert pickle.loads(pickle.dumps(options)) == options
    for error in (
        DataLost(partition=1, first=2, last=3, reason="trimmed"),
        RangeUnreadable(partition=1, first=2, last=3, waited_ms=4, attempts="a: b"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
