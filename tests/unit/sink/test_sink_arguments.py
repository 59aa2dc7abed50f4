"""The jobs' command line: each argument, each refusal, and what an error becomes."""

from __future__ import annotations

import pytest

from waltz_delta.arguments import parse_arguments
from waltz_log.errors import InvalidSetting

NEEDED = ["--cluster=h:1/w", "--table=/t", "--checkpoint=/c"]


def test_everything_given_reaches_the_job() -> None:
    found = parse_arguments(
        "upsert",
        [
            *NEEDED,
            "--keys=tail, day",
            "--sequence=leg",
            "--partitions=0-1",
            "--starting",
            '{"1": 5}',
            "--max-transactions-per-trigger=60",
            "--trigger=available-now",
            "--schema=tail STRING",
            "--where=tail IS NOT NULL",
            "--select=tail, concat(a, ',') AS b",
            "--option",
            "minPartitions=4",
        ],
        upsert=True,
    )
    assert (found.table, found.checkpoint, found.keys, found.sequence, found.once) == ("/t", "/c", ("tail", "day"), "leg", True)
    assert found.source == {"cluster": "h:1/w", "partitions": "0-1", "maxTransactionsPerTrigger": "60", "minPartitions": "4"}
    assert found.options.starting.given == {1: 5}
    assert (found.schema, found.where, found.select) == ("tail STRING", "tail IS NOT NULL", "tail, concat(a, ',') AS b")


def test_defaults_follow_the_log_from_its_beginning() -> None:
    found = parse_arguments("ingest", NEEDED, upsert=False)
    assert (found.trigger, found.once, found.schema, found.partitions) == ("1 second", False, None, None)
    assert found.source == {"cluster": "h:1/w"}


@pytest.mark.parametrize(
    ("given", "name", "nearest"),
    [
        (["--tabel=/t"], "--tabel", "--table"),
        ([*NEEDED, "--max-transaction-per-trigger=5"], "--max-transaction-per-trigger", "--max-transactions-per-trigger"),
        ([*NEEDED, "--keys=a"], "--keys", None),
        ([*NEEDED, "stray"], "stray", None),
        (NEEDED[:2], "--checkpoint", None),
        ([*NEEDED, "--trigger=sometimes"], "--trigger", None),
        ([*NEEDED, "--partitions=x"], "partitions", None),
        ([*NEEDED, "--starting=erliest"], "startingTransactionIds", None),
        ([*NEEDED, "--option=cluster=x"], "--option", None),
        ([*NEEDED, "--option=minPartition=2"], "minPartition", "minPartitions"),
        ([*NEEDED, "--option=endingTransactionIds=latest"], "endingTransactionIds", None),
        ([*NEEDED, "--table"], "--table", None),
    ],
)
def test_a_wrong_argument_is_named_with_the_nearest_known_one(given: list[str], name: str, nearest: str | None) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse_arguments("ingest", given, upsert=False)
    assert caught.value.name == name
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_an_upsert_needs_keys() -> None:
    with pytest.raises(InvalidSetting, match="--keys"):
        parse_arguments("upsert", NEEDED, upsert=True)
