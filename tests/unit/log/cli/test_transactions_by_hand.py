"""`waltz append` and `waltz read` against a cluster in memory: what goes in comes out, and a reader of what is there comes to an end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.cli import transactions
from waltz_log.cli.transactions import Place
from waltz_log.client import ClientSettings, WaltzClient
from waltz_log.testing import InMemoryCluster

AS_USUAL: dict[str, Any] = {"principal": None, "timeout_s": 10.0}


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
    chosen: dict[str, Any] = {"after": None, "limit": None, "follow": False, "compacted": False, "output": "table"}
    assert await transactions.read("", place, **(chosen | options), **AS_USUAL) == 0
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
    partition = int(line.split()[0])
    assert await read(Place("shop/orders", None, partition), capsys, after=100) == []
