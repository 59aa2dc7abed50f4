"""`waltz subscribers`: what it shows, and that a dry run changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from waltz_log.cli.topics import subscribers as command
from waltz_log.client import ClientSettings
from waltz_log.client.owners.owners import Owners
from waltz_log.coordination.subscribers import register_subscriber
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import InvalidRequest
from waltz_log.testing import InMemoryCluster


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=2, storages=1, servers=1) as made:
        await made.create_topic("shop/orders", log_partitions=(1,))
        client = await made.client()
        for number in range(3):
            await (await client.topic("shop/orders")).append(b"%d" % number)
        await register_subscriber(made.ensemble.session(), Subscriber("billing", {0: -1, 1: 1}, {"host": "app-7"}, 1000, 61_000))

        @asynccontextmanager
        async def reached(address: str, timeout_s: float) -> AsyncIterator[Owners]:
            owners = Owners(made.seeds, made.network, ClientSettings(connect_timeout_s=timeout_s), random.Random(0))
            await owners.open()
            yield owners
            await owners.close()

        monkeypatch.setattr(command, "reached", reached)
        yield made


async def listed(capsys: pytest.CaptureFixture[str], output: str) -> str:
    capsys.readouterr()
    assert await command.listing("memory:1", output=output, every_s=None, timeout_s=5.0) == 0
    return capsys.readouterr().out


def _json(text: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.JSONDecoder().raw_decode(text[text.index("[\n  {" if "[\n  {" in text else "[]") :])[0]
    return found


async def test_each_subscriber_is_shown_with_its_marks_and_what_is_kept(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (reported,) = _json(await listed(capsys, "json"))
    assert (reported["name"], reported["labels"], reported["seen"]) == ("billing", {"host": "app-7"}, "1970-01-01T00:01:01+00:00")
    assert reported["partitions"] == [
        {"partition": 0, "topic": "", "mark": -1, "high_water_mark": -1, "lag_transactions": 0, "first_retained": 0},
        {"partition": 1, "topic": "shop/orders/0", "mark": 1, "high_water_mark": 2, "lag_transactions": 1, "first_retained": 0},
    ]
    shown = await listed(capsys, "table")
    for each in ("billing", "shop/orders/0", "host=app-7", "1970-01-01T00:01:01"):
        assert each in shown


def test_lag_is_what_is_committed_and_not_reported() -> None:
    known = Subscriber("billing", {0: 7, 1: 9, 2: 1}, {}, 0, 5000)
    reported = command.described(known, {0: 10, 1: 9}, {}, {}, 65_500)
    assert [place["lag_transactions"] for place in reported["partitions"]] == [3, 0, None]
    assert reported["silent_s"] == 60


async def test_removing_says_what_is_kept_no_more_and_a_dry_run_changes_nothing(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"timeout_s": 5.0}
    await command.remove("memory:1", "billing", dry_run=True, output="table", **about)
    assert "would be removed: billing; nothing is kept for it above -1 of partition 0, 1 of partition 1" in capsys.readouterr().out
    await command.remove("memory:1", "billing", dry_run=False, output="json", **about)
    assert '"removed": true' in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match="no such subscriber: billing"):
        await command.remove("memory:1", "billing", dry_run=False, output="table", **about)
    assert _json(await listed(capsys, "json")) == []
