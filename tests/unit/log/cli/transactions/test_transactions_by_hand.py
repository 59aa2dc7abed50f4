"""`waltz append` and `waltz read` against a cluster in memory: what goes in comes out, and a reader of what is there comes to an end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.cli.transactions import transactions
from waltz_log.cli.transactions.transactions import Place
from waltz_log.client import ClientSettings, Transaction, WaltzClient
from waltz_log.errors import OutOfRange
from waltz_log.testing import InMemoryCluster

AS_USUAL: dict[str, Any] = {"principal": None, "timeout_s": 10.0}
READ: dict[str, Any] = {"after": None, "limit": None, "follow": False, "compacted": False, "output": "table"}


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=3, storages=1, servers=1) as made:

        class Connected:
            @staticmethod
            @asynccontextmanager
            async def open(address: str, settings: ClientSettings) -> AsyncIterator[WaltzClient]:
                async with await made.client(settings) as client:
                    yield client

        monkeypatch.setattr(transactions, "WaltzClient", Connected)
        yield made


async def append(data: str | None, place: Place, *, delete: bool = False) -> None:
    assert await transactions.append("", data, place, header=0, delete=delete, **AS_USUAL) == 0


async def read(place: Place, capsys: pytest.CaptureFixture[str], **options: Any) -> list[str]:
    capsys.readouterr()
    assert await transactions.read("", place, **(READ | options), **AS_USUAL) == 0
    return [line for line in capsys.readouterr().out.splitlines() if " header=" in line or line.startswith("{")]  # servers log there too


async def test_bytes_of_a_command_line_that_are_no_text_are_appended_as_they_are(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await append("\udcff\udcfe", Place(None, None, 0))
    (line,) = await read(Place(None, None, 0), capsys)
    assert line.endswith(r"header=0 \xff\xfe")
    (line,) = await read(Place(None, None, 0), capsys, output="json")
    assert '"data_base64": "//4="' in line


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_topic_is_read_to_where_it_ends_now(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], compacted: bool) -> None:
    await cluster.create_topic("shop/orders", 2, type="compaction")
    here = Place("shop/orders", None, None)
    assert await read(here, capsys, compacted=compacted) == []
    for key in ("a", "b", "c", "d"):
        await append(f"value {key}", Place("shop/orders", key, None))
    await append(None, Place("shop/orders", "a", None), delete=True)
    assert len(await read(here, capsys, compacted=compacted)) == 5
    assert len(await read(here, capsys, compacted=compacted, limit=3)) == 3
    (line,) = await read(Place("shop/orders", "b", None), capsys, compacted=compacted)
    assert "key=b value b" in line


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("follow", [False, True])
async def test_reading_after_a_transaction_that_is_not_there_yet_is_out_of_range(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], compacted: bool, follow: bool
) -> None:
    """Of a topic and of the log; after the last one there is nothing, and that is no mistake."""
    await cluster.create_topic("shop/orders", 1, type="compaction")
    for number in range(3):
        await append(f"value {number}", Place("shop/orders", f"key {number}", None))
    with pytest.raises(OutOfRange) as refused:
        await read(Place("shop/orders", None, 0), capsys, after=3, compacted=compacted, follow=follow)
    assert (refused.value.asked, refused.value.first, refused.value.last) == (4, 0, 2)
    if not compacted:
        log_partition = refused.value.partition
        with pytest.raises(OutOfRange):
            await read(Place(None, None, log_partition), capsys, after=100, follow=follow)
        assert await read(Place(None, None, log_partition), capsys, after=2) == []
    assert await read(Place("shop/orders", None, 0), capsys, after=2, compacted=compacted) == []


async def test_reading_begins_where_retention_left_off_and_what_is_trimmed_meanwhile_is_reported(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("shop/orders", 2)
    for number in range(8):
        await append(f"value {number}", Place("shop/orders", None, number % 2))
    feed, kept = WaltzClient.feed_batches, {0: 0, 1: 2}  # by partition of the log: what its replicas have left

    async def trimmed(client: WaltzClient, partition: int, after: int = -1, data: bool = True, **of: Any) -> AsyncIterator[list[Transaction]]:
        if after + 1 < kept[partition]:
            raise OutOfRange(partition=partition, asked=after + 1, first=kept[partition], last=3)
        async for batch in feed(client, partition, after, data, **of):
            for each in batch:
                yield [each]
                if each.transaction_id + 1 < kept[partition]:
                    raise OutOfRange(partition=partition, asked=each.transaction_id + 1, first=kept[partition], last=3)

    monkeypatch.setattr(WaltzClient, "feed_batches", trimmed)
    both = sorted(line.rsplit(" ", 1)[1] for line in await read(Place("shop/orders", None, None), capsys))
    assert both == ["0", "2", "4", "5", "6", "7"], "1 and 3 were the first two of the second partition"
    assert len(await read(Place(None, None, 1), capsys)) == 2
    assert await transactions.read("", Place(None, None, 1), **{**READ, "limit": 1}, **AS_USUAL) == 0
    assert "partition 1 begins at transaction 2: retention removed what came before" in capsys.readouterr().err
    with pytest.raises(OutOfRange, match="asked=1 first=2"):
        await read(Place(None, None, 1), capsys, after=0)

    async def trimmed_meanwhile(*arguments: Any, **options: Any) -> AsyncIterator[list[Transaction]]:
        async for batch in trimmed(*arguments, **options):
            yield batch
            kept[0] = 3

    monkeypatch.setattr(WaltzClient, "feed_batches", trimmed_meanwhile)
    with pytest.raises(OutOfRange, match="asked=1 first=3"):
        await read(Place(None, None, 0), capsys)
