"""The trace of who submitted an intent is kept beside it, and the append continues it: after a crash, for data and for calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tests.unit.log.outbox.bench import FAST, Bench, bench, run
from waltz_log.client import Intent
from waltz_log.client.append import sent_frame
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.formats.traces import pack_traces
from waltz_log.journal import Journal
from waltz_log.outbox.intent import encode_intent
from waltz_log.outbox.journal_writer import apply
from waltz_log.outbox.ledger import Change, Kind, Ledger
from waltz_log.outbox.settings import OutboxSettings
from waltz_log.outbox.store import journal_settings, open_journal
from waltz_log.testing.disk import SimulatedDisk

TRACED = FAST.model_copy(update={"tracing": True})
SETTINGS = OutboxSettings(file_bytes=64 * 1024, bytes_max=1024 * 1024)
CONTEXT = bytes(range(1, 25)) + b"\x01"


@contextmanager
def caller(number: int, *, sampled: bool = True) -> Iterator[None]:
    """A span of the application, in the trace of that number."""
    context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(int(sampled)))
    with trace.use_span(NonRecordingSpan(context)):
        yield


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the traces whose contexts went out beside records."""
    found: list[int] = []

    def packed(entries: Iterable[tuple[int, bytes]]) -> bytes:
        listed = list(entries)
        found.extend(int.from_bytes(context[:16], "big") for _, context in listed)
        return pack_traces(listed)

    monkeypatch.setattr(sent_frame, "pack_traces", packed)
    return found


async def _submitted_and_crashed(b: Bench) -> SimulatedDisk:
    """Three intents: of a traced caller, of one outside of any span, of one whose span is not recorded."""
    b.reachable = False
    disk = SimulatedDisk()
    outbox = b.outbox(disk, client_settings=TRACED)
    await outbox.start()
    with caller(7):
        await outbox.submit(Intent.data(0, b"traced"))
    await outbox.submit(Intent.data(0, b"no span"))
    with caller(8, sampled=False):
        await outbox.submit(Intent.data(0, b"not recorded"))
    await outbox.abort()
    b.reachable = True
    return disk.crash()


def test_an_append_continues_the_trace_of_its_submit_after_a_crash(sent: list[int]) -> None:
    async def main() -> None:
        async with bench() as b:
            disk = await _submitted_and_crashed(b)
            async with b.outbox(disk, client_settings=TRACED) as again:
                await again.flush()
            assert await b.data(0) == [b"traced", b"no span", b"not recorded"]
        assert sent == [7]

    run(main)


def test_a_forwarder_without_tracing_appends_what_was_submitted_with_it(sent: list[int]) -> None:
    async def main() -> None:
        async with bench() as b:
            disk = await _submitted_and_crashed(b)
            async with b.outbox(disk) as again:
                with caller(9):
                    await again.submit(Intent.data(0, b"more"))
                await again.flush()
            assert await b.data(0) == [b"traced", b"no span", b"not recorded", b"more"]
        assert sent == []

    run(main)


def test_what_a_handler_appends_is_in_the_trace_of_its_submit(sent: list[int]) -> None:
    async def main() -> None:
        async with bench() as b:
            outbox = b.outbox(SimulatedDisk(), client_settings=TRACED)

            @outbox.handler("book")
            def book(tx: TransactionContext, seat: str) -> None:
                tx.append(seat.encode())

            async with outbox:
                with caller(5):
                    await outbox.submit(Intent.call("book", "1A", 1))
                await outbox.submit(Intent.call("book", "1B", 1))
                await outbox.flush()
            assert sorted(await b.data(1)) == [b"1A", b"1B"]
        assert sent == [5]

    run(main)


def test_a_resubmitted_dead_letter_is_in_the_trace_of_who_resubmits(sent: list[int]) -> None:
    async def main() -> None:
        async with bench() as b, b.outbox(SimulatedDisk(), client_settings=TRACED) as outbox:
            with caller(3):
                (receipt,) = await outbox.submit(Intent.call("nobody", 1, 0))
            dead = (await receipt.outcome()).dead
            assert dead is not None
            with caller(4):
                await outbox.resubmit(dead.dead_id, Intent.data(0, b"by hand"))
            await outbox.flush()
        assert sent == [4]

    run(main)


def _reopened(change: Change, *more: tuple[int, int, bytes]) -> Ledger:
    disk = SimulatedDisk()
    journal, _, _ = open_journal(disk, SETTINGS, 0, bytes)
    apply(journal, change)
    for record_id, kind, body in more:
        journal.update(record_id, kind, body)
    journal.sync()
    journal.close()
    again, found, _ = open_journal(disk, SETTINGS, 0, bytes)
    again.close()
    return found


def test_the_context_is_a_record_of_its_own_and_the_intent_keeps_its_bytes() -> None:
    intent = Intent.data(0, b"x", key="k")
    (entry,), change = Ledger().submit([intent], 5, CONTEXT)
    assert change.adds == [(entry.entry_id, Kind.INTENT, encode_intent(intent, 5))]
    assert change.updates == [(entry.entry_id, Kind.TRACE, CONTEXT)]
    assert _reopened(change).entries[entry.entry_id].trace == CONTEXT
    assert Ledger().submit([intent], 5)[1].updates == []


@pytest.mark.parametrize("body", [b"", CONTEXT[:-1], bytes(25), CONTEXT + b"\x00", CONTEXT[:24] + b"\x00"])
def test_a_context_that_cannot_be_read_costs_the_trace_and_not_the_intent(body: bytes) -> None:
    (entry,), change = Ledger().submit([Intent.data(0, b"x")], 5)
    found = _reopened(change, (entry.entry_id, Kind.TRACE, body)).entries[entry.entry_id]
    assert (found.intent, found.trace) == (entry.intent, None)


def test_a_part_of_an_intent_of_a_later_version_is_skipped() -> None:
    """As versions before contexts skip them."""
    (entry,), change = Ledger().submit([Intent.data(0, b"x")], 5, CONTEXT)
    found = _reopened(change, (entry.entry_id, max(Kind) + 1, b"of a later version")).entries[entry.entry_id]
    assert (found.intent, found.trace) == (entry.intent, CONTEXT)


def test_nothing_of_a_context_is_left_when_its_intent_is_in_the_log() -> None:
    disk = SimulatedDisk()
    journal, ledger, _ = open_journal(disk, SETTINGS, 0, bytes)
    (entry,), change = ledger.submit([Intent.data(0, b"x")], 5, CONTEXT)
    apply(journal, change)
    ledger.admit(entry)
    apply(journal, ledger.decided([entry])[0])
    journal.sync()
    journal.close()
    again = Journal.open(disk, journal_settings(SETTINGS), bytes)
    assert list(again.loaded.records) == []
    again.close()
