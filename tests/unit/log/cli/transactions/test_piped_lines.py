"""Lines that are piped into `waltz append`: all of them in bulk and in order, and a report of what is in the log where they end too soon."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from waltz_log.cli.transactions import piped_lines, transactions
from waltz_log.cli.transactions.piped_lines import LineSplitter, Tally
from waltz_log.cli.transactions.transactions import Appending, Place
from waltz_log.client import Appended, BulkReceipt, ClientSettings, Lock, WaltzClient
from waltz_log.errors import InvalidRequest, NotAppended, OutcomeUnknown
from waltz_log.exit_codes import CONFLICT, FAILED, INTERRUPTED, OK, UNAVAILABLE
from waltz_log.testing import InMemoryCluster

HERE = Place(None, None, 0)


@dataclass
class Pipe:
    """Standard input of the command: what is written here."""

    writer: int
    terminal: bool = False

    def write(self, data: bytes) -> None:
        assert os.write(self.writer, data) == len(data)

    def end(self) -> None:
        os.close(self.writer)
        self.writer = -1


_descriptors = count(600)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    given, writer = os.pipe()
    # A number that no other test has: a thread that still reads for an earlier one must not read what is written for this one.
    reader = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, next(_descriptors))
    os.close(given)
    found = Pipe(writer)
    with os.fdopen(reader, "rb") as file:

        class Input:
            closed = False
            fileno = file.fileno

            @staticmethod
            def isatty() -> bool:
                return found.terminal

        monkeypatch.setattr(sys, "stdin", Input)
        yield found
        if found.writer >= 0:
            found.end()


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch, clients_in: Callable[[InMemoryCluster], type[Any]]) -> AsyncIterator[InMemoryCluster]:
    async with InMemoryCluster(partitions=4, storages=1, servers=1) as made:
        monkeypatch.setattr(transactions, "WaltzClient", clients_in(made))
        yield made


async def append(place: Place = HERE, appending: Appending | None = None, record_bytes_max: int = 1000) -> int:
    return await transactions.append("", None, place, appending or Appending(), ClientSettings(record_bytes_max=record_bytes_max))


async def held(cluster: InMemoryCluster, partition: int = 0) -> list[bytes]:
    async with await cluster.client(ClientSettings()) as client:
        mark = await client.high_water_mark(partition)
        found: list[bytes] = []
        async for each in client.feed(partition, -1):
            found.append(each.data)
            if each.transaction_id >= mark:
                return found
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# ---- cutting lines ---------------------------------------------------------------------------------------------------------------------------------


def test_lines_are_cut_as_split_cuts_them_wherever_chunks_end() -> None:
    chance = random.Random(7)
    for _ in range(200):
        data = bytes(chance.choice(b"ab\n") for _ in range(chance.randrange(40)))
        splitter, found, at = LineSplitter(100), [], 0
        while at < len(data):
            size = chance.randrange(1, 9)
            lines, unfit = splitter.split(data[at : at + size])
            assert unfit is None
            found += lines
            at += size
        *wanted, rest = data.split(b"\n")
        assert (found, splitter.rest) == (wanted, rest)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_above_the_limit_is_refused_and_those_before_it_are_not(end: bytes) -> None:
    lines, unfit = LineSplitter(3).split(b"abc\nabc\nabcd" + end)
    assert lines == [b"abc", b"abc"]
    assert unfit is not None
    assert "than the 3 that a transaction may have" in unfit.reason


# ---- appending -------------------------------------------------------------------------------------------------------------------------------------


async def test_lines_of_a_pipe_are_appended_in_order_and_in_bulk(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several bulk appends, each smaller than a chunk."""
    monkeypatch.setattr(piped_lines, "LINES_TOGETHER", 50)
    monkeypatch.setattr(piped_lines, "READ_BYTES", 300)
    wanted = [b"line %d" % number for number in range(1000)]
    pipe.write(b"".join(line + b"\n" for line in wanted))
    pipe.end()

    async def one_by_one(*_: object, **__: object) -> None:
        raise AssertionError("not in bulk")

    with monkeypatch.context() as patched:
        patched.setattr(WaltzClient, "append", one_by_one)
        assert await append(appending=Appending(header=7)) == OK
    assert "partition=0 lines=1000 first_transaction_id=0 last_transaction_id=999\n" in capsys.readouterr().out
    assert await held(cluster) == wanted


async def test_a_keyed_topic_gets_all_lines_under_the_key_and_no_empty_one(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    await cluster.create_topic("shop/orders", 2, type="compaction")
    pipe.write(b"one\ntwo\n\nfour\n")
    pipe.end()
    assert await append(Place("shop/orders", "key", None)) == FAILED
    assert "waltz: line 3 is empty, and an empty value would remove the key: use --delete: 2 lines are committed" in capsys.readouterr().err
    async with await cluster.client(ClientSettings()) as client:
        topic = await client.topic("shop/orders")
        found = [each async for each in topic.feed(until=await topic.high_water_marks())]
    assert [(each.key, each.value) for each in found] == [(b"key", b"one"), (b"key", b"two")]


async def test_lines_of_a_topic_alternate_between_its_partitions(cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    await cluster.create_topic("shop/plain", 2)
    pipe.write(b"a\nb\nc\nd\n")
    pipe.end()
    assert await append(Place("shop/plain", None, None)) == OK
    assert sum(" lines=2 " in line for line in capsys.readouterr().out.splitlines()) == 2


async def test_what_each_line_would_fail_with_is_said_before_any_is_read(cluster: InMemoryCluster, pipe: Pipe) -> None:
    await cluster.create_topic("shop/orders", 2, type="compaction")
    with pytest.raises(InvalidRequest, match="needs a key of bytes"):
        await append(Place("shop/orders", None, None))


async def test_typed_lines_are_acknowledged_one_by_one(cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.terminal = True
    appending = asyncio.ensure_future(append())
    for number in range(3):
        pipe.write(b"line\n")
        text = ""
        while f"transaction_id={number}" not in text:
            await asyncio.sleep(0.001)
            text += capsys.readouterr().out
    pipe.end()
    assert await appending == OK


# ---- input that ends too soon ----------------------------------------------------------------------------------------------------------------------


async def test_a_line_that_is_too_large_ends_the_input_and_the_lines_before_it_are_committed(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe.write(b"one\ntwo\n" + b"x" * 101 + b"\nfour\n")
    assert await append(record_bytes_max=100) == FAILED
    sentence = (
        "waltz: line 3 has 101 bytes, more than the 100 that a transaction may have (record_bytes_max): 2 lines are committed; line 3 is the first"
    )
    assert sentence in capsys.readouterr().err
    assert await held(cluster) == [b"one", b"two"]


async def test_the_key_counts_for_the_size_of_a_line(cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    await cluster.create_topic("shop/orders", 1, type="compaction")
    pipe.write(b"x" * 50 + b"\n" + b"x" * 99 + b"\n" + b"last\n")
    pipe.end()
    assert await append(Place("shop/orders", "key", None), record_bytes_max=100) == FAILED
    assert "line 2 has 99 bytes, more than the" in capsys.readouterr().err


async def test_a_line_without_an_end_is_not_appended(cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.write(b"one\nhal")
    pipe.end()
    assert await append() == FAILED
    assert "line 2 has no end: the input ended after 3 bytes of it, which are not appended: 1 line is committed" in capsys.readouterr().err
    assert await held(cluster) == [b"one"]


@pytest.mark.parametrize("terminal", [False, True])
async def test_ctrl_c_ends_the_input_and_reports_what_is_committed(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """The pipe stays open and silent: the command must not wait for it."""
    pipe.terminal = terminal
    pipe.write(b"one\ntwo\nthr")
    appending = asyncio.ensure_future(append())
    while await cluster_mark(cluster) < 1:
        await asyncio.sleep(0.001)
    appending.cancel()
    assert await asyncio.wait_for(appending, 30) == INTERRUPTED
    assert "waltz: interrupted: 2 lines are committed; line 3 is the first that is not committed" in capsys.readouterr().err


async def cluster_mark(cluster: InMemoryCluster) -> int:
    async with await cluster.client(ClientSettings()) as client:
        return await client.high_water_mark(0)


async def test_a_failed_line_ends_the_input_with_the_code_of_its_error(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe.terminal = True
    count = 0
    real = transactions._one

    def failing(*arguments: object) -> Callable[[bytes], Awaitable[object]]:
        one = real(*arguments)  # type: ignore[arg-type]  # passed on as they are

        async def append_one(data: bytes) -> object:
            nonlocal count
            count += 1
            if count == 3:
                raise NotAppended(partition=0, reason="planted")
            return await one(data)

        return append_one

    monkeypatch.setattr(transactions, "_one", failing)
    pipe.write(b"one\ntwo\nthree\nfour\n")
    assert await append() == UNAVAILABLE
    report = "planted partition=0: 2 lines are committed, 1 line is not appended; line 3 is the first that is not committed"
    assert report in " ".join(capsys.readouterr().err.split()).replace("planted: partition=0", "planted partition=0")
    assert await held(cluster) == [b"one", b"two"]


async def test_lines_with_a_lock_are_appended_one_by_one_up_to_the_first_conflict(
    cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe.write(b"one\ntwo\nthree\n")
    pipe.end()
    assert await append(appending=Appending(write_locks=[Lock("seat", "1")], mark=-1)) == CONFLICT
    output = capsys.readouterr()
    assert "partition=0 transaction_id=0\n" in output.out
    assert "wrote seat:1, after the mark -1" in output.err
    assert "--mark 0: 1 line is committed, 1 line is not appended; line 2 is the first that is not committed" in output.err
    assert await held(cluster) == [b"one"]


def test_a_tally_says_how_many_outcomes_are_unknown() -> None:
    tally = Tally(read=10)
    tally.add_placed(0, 5, 8, 4)
    tally.add_failed(8, NotAppended(partition=0, reason="x"), 3)
    tally.add_failed(5, OutcomeUnknown(partition=0, client_id=1, sequence=1, since=0, count=3, reason="x"), 3)
    assert tally.sentence() == (
        "4 lines are committed, 3 lines are not appended, the outcome of 3 lines is unknown; line 5 is the first that is not committed"
    )
    assert isinstance(tally.error, OutcomeUnknown)


async def test_a_pipe_that_is_faster_than_the_log_waits_in_the_pipe(cluster: InMemoryCluster, pipe: Pipe) -> None:
    """Bounded memory: while no append is decided, the command reads only what its window and two chunks hold."""
    written = 0

    async def write_all() -> None:
        nonlocal written
        os.set_blocking(pipe.writer, False)
        while True:
            try:
                written += os.write(pipe.writer, b"x" * 99 + b"\n")
            except BlockingIOError:
                return

    real = os.read
    read = 0

    def counted(descriptor: int, size: int) -> bytes:
        nonlocal read
        found = real(descriptor, size)
        read += len(found)
        return found

    lines = None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "read", counted)
        lines = piped_lines.InputLines(sys.stdin.fileno(), 1000)
        for _ in range(50):
            await write_all()
            await asyncio.sleep(0.002)
        assert written > 0
        before = read
        await write_all()
        await asyncio.sleep(0.05)
        assert read == before, "no caller asks for lines, so nothing more is read"
        assert read <= 3 * piped_lines.READ_BYTES
        lines.stop()


async def test_at_most_two_bulk_appends_are_open_and_they_are_decided_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their outcomes are most of what the command keeps for each line."""
    monkeypatch.setattr(piped_lines, "LINES_TOGETHER", 3)
    open_now: list[FakeBulk] = []
    most = 0

    class FakeBulk:
        ended = False

        def __init__(self) -> None:
            nonlocal most
            self.receipt = BulkReceipt(0)
            open_now.append(self)
            most = max(most, len(open_now))

        async def enqueue(self, source: list[bytes]) -> None:
            self.receipt.appended.append(Appended(self.receipt.submitted, len(source), int(source[0])))
            self.receipt.submitted += len(source)

        async def finish(self) -> BulkReceipt:
            assert open_now.pop(0) is self
            return self.receipt

        def cancel(self) -> None: ...

    begin: Any = FakeBulk
    sink = piped_lines.BulkSink(begin, list)
    for number in range(40):
        await sink.add([b"%d" % number])
    await sink.finish()
    assert most == 2
    assert sink.tally.partitions == {0: piped_lines.Placed(40, 0, 39)}


async def test_a_pipe_and_a_text_have_a_document(cluster: InMemoryCluster, pipe: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    pipe.write(b"one\ntwo\n")
    pipe.end()
    assert await append(appending=Appending(output="json")) == OK
    out = capsys.readouterr().out
    found = json.JSONDecoder().raw_decode(out[out.index("{\n") :])[0]
    assert found == {"committed": 2, "partitions": [{"partition": 0, "lines": 2, "first_transaction_id": 0, "last_transaction_id": 1}]}
    assert await transactions.append("", "text", HERE, Appending(output="json"), ClientSettings()) == OK
    assert '{"partition": 0, "transaction_id": 2}\n' in capsys.readouterr().out
