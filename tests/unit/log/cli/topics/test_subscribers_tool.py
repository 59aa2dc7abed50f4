"""`waltz subscriber`: what it shows, and that a dry run changes nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from waltz_log.cli.topics import subscribers as command
from waltz_log.coordination.subscribers import propose_retained, read_subscribers, register_subscriber
from waltz_log.core.topics.subscribers import Subscriber
from waltz_log.errors import InvalidRequest, InvalidSetting, OutOfRange
from waltz_log.processes.clock import WallClock
from waltz_log.testing import InMemoryCluster


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch, reached_in: Callable[[InMemoryCluster], Any]) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=2, storages=1, servers=1) as made:
        await made.create_topic("shop/orders", log_partitions=(1,))
        client = await made.client()
        for number in range(3):
            await (await client.topic("shop/orders")).append(b"%d" % number)
        await register_subscriber(made.ensemble.session(), Subscriber("billing", {0: -1, 1: 1}, {"host": "app-7"}, 1000, 61_000))

        monkeypatch.setattr(command, "reached", reached_in(made))
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
    assert "Would remove billing: retention keeps nothing for it above -1 of partition 0, 1 of partition 1" in capsys.readouterr().out
    await command.remove("memory:1", "billing", dry_run=False, output="json", **about)
    assert '"removed": true' in capsys.readouterr().out
    with pytest.raises(InvalidRequest, match="no such subscriber: billing"):
        await command.remove("memory:1", "billing", dry_run=False, output="table", **about)
    assert _json(await listed(capsys, "json")) == []


# ---- setting a position ----------------------------------------------------------------------------------------------------------------------------


async def placed(to: str, partitions: str | None = "1", *, dry_run: bool = False) -> None:
    assert await command.place("memory:1", "billing", partitions, to, dry_run=dry_run, output="table", timeout_s=5.0) == 0


async def marks(cluster: InMemoryCluster) -> dict[int, int]:
    (found,) = await read_subscribers(cluster.ensemble.session())
    return dict(found.marks)


@pytest.mark.parametrize(("to", "mark"), [("earliest", -1), ("latest", 2), ("0", -1), ("2", 1), ("3", 2), ("1h", -1), ("2999-01-01", 2)])
async def test_a_subscriber_is_set_forward_and_backward(cluster: InMemoryCluster, to: str, mark: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The mark is the transaction before the next one that is read. It was 1."""
    await placed(to, dry_run=True)
    assert await marks(cluster) == {0: -1, 1: 1}, "a dry run changes nothing"
    assert f"Would set billing partition 1: next transaction {mark + 1}, before 2" in capsys.readouterr().out
    await placed(to)
    assert await marks(cluster) == {0: -1, 1: mark}
    output = capsys.readouterr()
    assert f"Set billing partition 1: next transaction {mark + 1}, before 2" in output.out
    assert "was last seen" not in output.err


async def test_all_partitions_of_a_subscriber_are_set_together(cluster: InMemoryCluster) -> None:
    await placed("latest", None)
    assert await marks(cluster) == {0: -1, 1: 2}
    with pytest.raises(InvalidSetting, match="--to needs --partition for an id"):
        await placed("1", None)


@pytest.mark.parametrize("to", ["4", "99"])
async def test_a_subscriber_is_not_set_beyond_the_end(cluster: InMemoryCluster, to: str) -> None:
    with pytest.raises(OutOfRange):
        await placed(to)
    assert await marks(cluster) == {0: -1, 1: 1}


async def test_a_subscriber_is_not_set_below_what_is_about_to_be_trimmed(cluster: InMemoryCluster) -> None:
    """The owner has proposed it, and its replicas still have it: they say that it is there."""
    await propose_retained(cluster.ensemble.session(), 1, 2)
    with pytest.raises(OutOfRange, match="asked=1 first=2"):
        await placed("1")
    assert await marks(cluster) == {0: -1, 1: 1}
    await placed("2")


async def test_an_unknown_subscriber_or_partition_is_refused(cluster: InMemoryCluster) -> None:
    with pytest.raises(InvalidRequest, match="billing is not registered for partition 7"):
        await placed("latest", "7")
    with pytest.raises(InvalidRequest, match="no such subscriber: unknown"):
        await command.place("memory:1", "unknown", None, "latest", dry_run=False, output="table", timeout_s=5.0)


async def test_a_subscriber_that_seems_to_run_is_mentioned(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    now_ms = WallClock().now_ms()
    await register_subscriber(cluster.ensemble.session(), Subscriber("billing", {0: -1, 1: 1}, {}, 1000, now_ms))
    await placed("latest", dry_run=True)
    assert "s ago; stop it before, because a running subscriber reports its own position again" in capsys.readouterr().err
