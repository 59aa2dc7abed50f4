"""`waltz lag`: subscribers, checkpoints and tables beside a cluster in memory; what cannot be read is one sentence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from waltz_log.cli.topics import lag
from waltz_log.cli.topics.spark_checkpoints import read_checkpoint
from waltz_log.coordination.subscribers import register_subscriber
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import InvalidRequest, NoSuchTopic
from waltz_log.exit_codes import OK, USAGE
from waltz_log.testing import InMemoryCluster


def _offsets(checkpoint: Path, batch: int, next_ids: Mapping[int, int], *, complete: bool = True, cluster: str | None = None) -> None:
    """As Spark writes them: a version, the metadata of the batch, one line for each source."""
    for kind in ("offsets", "commits"):
        (checkpoint / kind).mkdir(parents=True, exist_ok=True)
    offset: dict[str, Any] = {str(partition): next_id for partition, next_id in next_ids.items()}
    offset |= {} if cluster is None else {"cluster": cluster}
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":3}}\n{json.dumps(offset)}')
    (checkpoint / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    if complete:
        (checkpoint / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch, reached_in: Callable[[InMemoryCluster], Any]) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=3, storages=1, servers=1) as made:
        await made.create_topic("shop/orders", 2)
        async with await made.client() as client:
            for partition, count in ((0, 5), (1, 3)):
                topic = await client.topic("shop/orders")
                for number in range(count):
                    await topic.append(b"%d" % number, partition=partition)

        monkeypatch.setattr(lag, "reached", reached_in(made))
        yield made


async def _run(capsys: pytest.CaptureFixture[str], code: int = OK, **asked: Any) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert await lag.run("memory/test", lag.Asked(**asked), output="json", every_s=None, timeout_s=1.0) == code
    out = capsys.readouterr().out
    found: list[dict[str, Any]] = json.JSONDecoder().raw_decode(out[out.index("[\n  {" if "[\n  {" in out else "[]") :])[0]
    return found


async def test_all_readers_are_compared_with_the_same_log(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register_subscriber(cluster.ensemble.session(), Subscriber("billing", {0: 2, 1: 2}, {}, 0, 0))
    (subscriber,) = await _run(capsys)
    assert (subscriber["kind"], subscriber["name"], subscriber["lag"]) == ("subscriber", "billing", 2)
    assert subscriber["places"][0] == {
        "partition": 0,
        "topic": "shop/orders/0",
        "position": 2,
        "high_water_mark": 4,
        "lag": 2,
        "running": None,
    }
    checkpoint = tmp_path / "checkpoint"
    _offsets(checkpoint, 9, {0: 1, 1: 1}, cluster=str(cluster.key))
    _offsets(checkpoint, 10, {0: 4, 1: 1}, cluster=str(cluster.key), complete=False)
    monkeypatch.setattr(lag, "_marks_reader", lambda: lambda path, key: {0: 4, 1: 2} if key == str(cluster.key) else {})
    query, table = await _run(capsys, checkpoints=[str(checkpoint)], tables=["var/tables/orders"])
    assert [(place["position"], place["running"], place["lag"]) for place in query["places"]] == [(0, 3, 4), (0, None, 2)]
    assert (table["kind"], table["lag"]) == ("table", 0)
    (billing,) = await _run(capsys, subscribers=["billing"], topic="shop/orders")
    assert len(billing["places"]) == 2
    with pytest.raises(NoSuchTopic):
        await _run(capsys, topic="shop/nothing")


async def test_one_reader_that_cannot_be_read_does_not_hide_the_others(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await register_subscriber(cluster.ensemble.session(), Subscriber("billing", {0: 4}, {}, 0, 0))
    _offsets(tmp_path / "foreign", 0, {0: 1}, cluster="another")
    asked = lag.Asked(["billing", "nobody"], [str(tmp_path / "none"), str(tmp_path / "foreign"), "s3://bucket/checkpoint"])
    capsys.readouterr()
    assert await lag.run("memory/test", asked, output="table", every_s=None, timeout_s=1.0) == USAGE
    captured = capsys.readouterr()
    assert "billing" in captured.out
    for sentence in (
        "nobody is not shown: no such subscriber: nobody",
        "there is no checkpoint of a query in",
        "the checkpoint is of another cluster: checkpoint=another",
        "a checkpoint is read from a folder of this machine, not from s3://bucket/checkpoint",
    ):
        assert sentence in captured.err


async def test_without_an_owner_the_lag_is_not_known(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await register_subscriber(cluster.ensemble.session(), Subscriber("billing", {0: 2}, {}, 0, 0))
    await cluster.kill_server("server-0")
    await cluster.kill_storage("storage-0")
    await cluster.start_server("server-0")
    (found,) = await _run(capsys)
    assert (found["lag"], found["places"][0]["high_water_mark"]) == (None, None)


def test_a_checkpoint_is_read_at_any_moment_of_a_query(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no checkpoint of a query"):
        read_checkpoint(str(tmp_path))
    _offsets(tmp_path, 0, {0: 7, 12: 3}, complete=False)
    first = read_checkpoint(f"file://{tmp_path}")
    assert (first.batch, first.committed, first.planned) == (None, {0: -1, 12: -1}, {0: 6, 12: 2})
    _offsets(tmp_path, 0, {0: 7, 12: 3})
    _offsets(tmp_path, 1, {0: 9, 12: 3})
    (tmp_path / "offsets" / "2").write_text('v1\n{}\n{"0": 1')
    torn = read_checkpoint(str(tmp_path))
    assert (torn.batch, torn.committed, torn.planned) == (1, {0: 8, 12: 2}, {0: 8, 12: 2})
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"logOffset":3}')
    with pytest.raises(InvalidRequest, match="reads nothing from the log"):
        read_checkpoint(str(tmp_path))
