"""`waltz append` and `waltz read` against a cluster in memory: what goes in comes out, and a reader of what is there comes to an end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from waltz_log.cli.transactions import reading, transactions
from waltz_log.cli.transactions.transactions import Place
from waltz_log.client import ClientSettings, Lock, Transaction, WaltzClient
from waltz_log.client.owners.owners import Owners
from waltz_log.errors import InvalidSetting, OutOfRange
from waltz_log.exit_codes import CONFLICT, OK
from waltz_log.testing import InMemoryCluster

AS_USUAL: dict[str, Any] = {"principal": None, "timeout_s": 10.0}
VIEW = ("output", "template", "grep", "header")
SPAN = ("after", "from_time", "to_time", "follow", "compacted")


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch, clients_in: Callable[[InMemoryCluster], type[Any]]) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=3, storages=1, servers=1) as made:
        monkeypatch.setattr(transactions, "WaltzClient", clients_in(made))
        monkeypatch.setattr(reading, "WaltzClient", clients_in(made))
        yield made


async def append(data: str | None, place: Place, *, delete: bool = False) -> None:
    assert await transactions.append("", data, place, transactions.Appending(delete=delete), ClientSettings()) == 0


async def read(place: Place, capsys: pytest.CaptureFixture[str], **options: Any) -> list[str]:
    capsys.readouterr()
    span = reading.Span(**{name: options.pop(name) for name in SPAN if name in options})
    view = reading.View(**{name: options.pop(name) for name in VIEW if name in options})
    assert await reading.read("", place, span=span, view=view, **({"limit": None} | options), **AS_USUAL) == 0
    return [line for line in capsys.readouterr().out.splitlines() if " header=" in line or line.startswith("{")]  # servers log there too


async def test_a_lock_that_moved_is_a_conflict_with_its_own_exit_code(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    here, seat = Place(None, None, 0), Lock("seat", "12:A")

    async def append_locked(data: str, appending: transactions.Appending) -> int:
        return await transactions.append("", data, here, appending, ClientSettings())

    assert await append_locked("first", transactions.Appending(write_locks=[seat], mark=-1)) == OK
    capsys.readouterr()
    assert await append_locked("second", transactions.Appending(write_locks=[seat], mark=-1)) == CONFLICT
    sentence = "waltz: lock conflict, nothing was appended: transaction 0 of log partition 0 wrote seat:12:A, after the mark -1; `waltz read` up to"
    assert f"{sentence} transaction 0, decide again, and repeat with --mark 0\n" in capsys.readouterr().err
    assert await append_locked("third", transactions.Appending(read_locks=[seat], mark=-1)) == CONFLICT
    assert await append_locked("fourth", transactions.Appending(read_locks=[seat, Lock("a", "b")], mark=-1)) == CONFLICT
    assert "wrote one of seat:12:A, a:b" in capsys.readouterr().err
    assert await append_locked("fifth", transactions.Appending(read_locks=[seat], mark=0)) == OK
    assert await append_locked("sixth", transactions.Appending(write_locks=[seat])) == OK, "without a mark, only what comes later conflicts"
    assert [line[-5:] for line in await read(here, capsys)] == ["first", "fifth", "sixth"]


async def test_an_operator_learns_which_of_several_locks_it_was(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def reached(address: str, timeout_s: float) -> AsyncIterator[Owners]:
        async with await cluster.client(ClientSettings()) as client:
            yield client._owners

    monkeypatch.setattr(transactions, "reached", reached)
    calm, seat = Lock("seat", "calm"), Lock("seat", "12A")
    here = Place(None, None, 0)
    assert await transactions.append("", "x", here, transactions.Appending(write_locks=[seat]), ClientSettings()) == OK
    appending = transactions.Appending(write_locks=[calm], read_locks=[seat], mark=-1)
    assert await transactions.append("", "y", here, appending, ClientSettings()) == CONFLICT
    assert "transaction 0 of log partition 0 wrote seat:12A, after the mark -1" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "seat", "seat:", ":12A"])
def test_a_lock_is_a_name_and_a_key(text: str) -> None:
    with pytest.raises(InvalidSetting, match="--read-lock must be name:key, not "):
        transactions.parse_locks("--read-lock", [text])


async def test_a_mark_without_a_lock_is_refused(cluster: InMemoryCluster) -> None:
    with pytest.raises(InvalidSetting, match="--mark needs --write-lock or --read-lock"):
        await transactions.append("", "x", Place(None, None, 0), transactions.Appending(mark=3), ClientSettings())


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
    assert await reading.read("", Place(None, None, 1), span=reading.Span(), view=reading.View(), limit=1, **AS_USUAL) == 0
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


# ---- times, formats, filters ---------------------------------------------------------------------------------------------------------------------

TAIL: dict[str, Any] = {"count": 10, "from_time": None, "follow": False}


async def tail(place: Place, capsys: pytest.CaptureFixture[str], **options: Any) -> list[str]:
    capsys.readouterr()
    view = reading.View(**{name: options.pop(name) for name in VIEW if name in options})
    assert await reading.tail("", place, view=view, **(TAIL | options), **AS_USUAL) == 0
    return [line for line in capsys.readouterr().out.splitlines() if " header=" in line]


async def append_later(cluster: InMemoryCluster, data: str, place: Place) -> int:
    """Appends at another millisecond than everything before. Returns a time before it and after the others."""
    before = cluster.clock.now_ms() + 1
    while cluster.clock.now_ms() <= before:
        await asyncio.sleep(0.001)
    await append(data, place)
    return before


async def test_a_span_of_time_is_read_to_the_millisecond(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await cluster.create_topic("shop/orders", 2)
    times = [await append_later(cluster, f"value {number}", Place("shop/orders", None, number % 2)) for number in range(6)]
    for start, end, wanted in ((2, None, [2, 3, 4, 5]), (None, 4, [0, 1, 2, 3]), (1, 3, [1, 2]), (3, 3, []), (4, 2, [])):
        options = {"from_time": None if start is None else str(times[start]), "to_time": None if end is None else str(times[end])}
        found = await read(Place("shop/orders", None, None), capsys, **options)
        assert sorted(line.rsplit(" ", 1)[1] for line in found) == [str(each) for each in wanted], (start, end)
    assert len(await read(Place(None, None, 0), capsys, from_time="1h")) == 3
    assert await read(Place(None, None, 0), capsys, from_time="2999-01-01") == []
    assert len(await read(Place(None, None, 2), capsys, from_time="1970-01-02")) == 0, "an empty partition"


async def test_tail_begins_with_the_newest_of_all_partitions_together(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(6):
        await append_later(cluster, f"value {number}", Place(None, None, number % 3))
    assert [line[-1] for line in await tail(Place(None, None, None), capsys, count=4)] == ["2", "3", "4", "5"]
    assert [line[-1] for line in await tail(Place(None, None, 1), capsys, count=1)] == ["4"]
    assert await tail(Place(None, None, 1), capsys, count=0) == []
    assert [line[-1] for line in await tail(Place(None, None, None), capsys, grep="value 3")] == ["3"]


async def test_tail_counts_what_fits_and_searches_as_far_back_as_it_must(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Compared with all that was appended, filtered, in the order of their times."""
    rare = [0, 1, 6, 17, 18]
    for number in range(20):
        await append_later(cluster, f"{'rare' if number in rare else 'often'} {number}", Place(None, None, number % 3))
    for count in (1, 2, 4, 5, 9):
        for place, held in ((Place(None, None, None), rare), (Place(None, None, 0), [0, 6, 18])):
            found = await tail(place, capsys, grep="rare", count=count)
            assert [int(line.rsplit(" ", 1)[1]) for line in found] == held[-count:], (count, place)
    assert [line[-1] for line in await tail(Place(None, None, None), capsys, grep="never", count=3)] == []


async def test_tail_reads_no_more_than_it_must(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(60):
        await append_later(cluster, f"value {number}", Place(None, None, number % 2))
    feed, starts = WaltzClient.feed, []

    def counted(client: WaltzClient, partition: int, after: int = -1, *arguments: Any) -> Any:
        starts.append((partition, after))
        return feed(client, partition, after, *arguments)

    monkeypatch.setattr(WaltzClient, "feed", counted)
    assert len(await tail(Place(None, None, None), capsys, count=4)) == 4
    assert sorted(starts) == [(0, 25), (1, 25)], "the last four of each partition, once"


async def test_tail_goes_on_with_what_comes(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    monkeypatch.setattr(reading, "printer", lambda output, template: lambda row: seen.put_nowait(row.data))
    await append("before", Place(None, None, 0))
    tailing = asyncio.ensure_future(reading.tail("", Place(None, None, None), view=reading.View(), **(TAIL | {"follow": True}), **AS_USUAL))
    assert await seen.get() == b"before"
    for number in range(3):
        await append(f"later {number}", Place(None, None, number))
        assert await seen.get() == b"later %d" % number
    tailing.cancel()
    await asyncio.gather(tailing, return_exceptions=True)


async def test_filters_hold_together_and_the_limit_counts_what_is_shown(cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with await cluster.client(ClientSettings()) as client:
        for number in range(8):
            await client.append(0, b"%s %d" % (b"tea" if number % 2 else b"milk", number), number // 4)
    here = Place(None, None, 0)
    assert [line[-1] for line in await read(here, capsys, grep="tea", header=1)] == ["5", "7"]
    assert [line[-1] for line in await read(here, capsys, grep="tea", limit=3)] == ["1", "3", "5"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"after": 1, "from_time": "1h"}, "--from-time cannot be combined with --after"),
        ({"to_time": "1h", "follow": True}, "--to-time cannot be combined with --follow"),
        ({"compacted": True, "from_time": "1h"}, "--compacted cannot be combined with a time"),
        ({"from_time": "yesterday"}, "--from-time must be a time such as 2026-11-25T14:30:00, or a duration ago such as 15m, got 'yesterday'"),
        ({"template": "%q"}, "--format contains %q, which is not defined; use %t, %p"),
        ({"template": "%s", "output": "json"}, "--format cannot be combined with --output"),
    ],
)
async def test_options_that_do_not_fit_together_are_refused(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(message)):
        await read(Place(None, None, 0), capsys, **options)
